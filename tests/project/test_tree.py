"""Every file of the project is clean text that names no developer's machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT, project_files

# Goldens and test data hold hostile values on purpose; the licence is as its authors wrote it.
AS_IT_IS = ("tests/golden/", "tests/data/", "LICENSE")
TABS_BELONG = ("Makefile",)
# Home directories of people; the names that documentation uses for anybody may stand.
SOMEBODYS_HOME = re.compile(
    r"/(?:home|Users)/(?!you\b|user\b|me\b|USER\b|\$)[\w.-]+|/(?:root)/\.?\w"
)


def texts() -> list[tuple[Path, str]]:
    """Every text file of the project; bytes that are not UTF-8 make it a binary one."""
    found = []
    for name in project_files():
        data = (ROOT / name).read_bytes()
        if b"\0" not in data:
            found.append((name, data.decode("utf-8")))
    return found


def test_text_has_no_trailing_blanks_no_tabs_and_ends_with_one_newline() -> None:
    wrong = []
    for name, text in texts():
        if name.as_posix().startswith(AS_IT_IS) or not text:
            continue
        for number, line in enumerate(text.split("\n"), start=1):
            if line != line.rstrip():
                wrong.append(f"{name}:{number}: blanks at the end of the line")
            if "\t" in line and name.name not in TABS_BELONG:
                wrong.append(f"{name}:{number}: a tab")
        if not text.endswith("\n") or text.endswith("\n\n"):
            wrong.append(f"{name}: does not end with exactly one newline")
    assert not wrong, "\n".join(wrong)


def test_no_file_names_a_path_of_a_developers_machine() -> None:
    here = re.compile("|".join(re.escape(path) for path in paths_of_this_machine()) or r"(?!)")
    wrong = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts()
        for number, line in enumerate(text.split("\n"), start=1)
        if SOMEBODYS_HOME.search(line) or here.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def paths_of_this_machine() -> list[str]:
    """The checkout, and the environment if it is somewhere else. Short ones say nothing."""
    return [path for path in (str(ROOT), sys.prefix) if path.count("/") > 1 and len(path) > 8]


def test_the_projects_own_scripts_pass_shellcheck() -> None:
    scripts = [str(name) for name in project_files() if name.suffix == ".sh"] + [".ci/run"]
    scripts = [name for name in scripts if not name.startswith(AS_IT_IS)]
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run(
        [shellcheck, "--severity=style", *scripts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [".ci/run", "tools/venv.sh"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)


def test_ci_runs_make_test_and_forgives_nothing() -> None:
    script = (ROOT / ".ci/run").read_text()
    commands = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    assert commands[-1].endswith("'make test || .venv/bin/python tools/again.py'")
    venv, set_up, installed, collected, last = [line for line in commands if "made" in line][1:]
    assert (venv.split(" || ")[1], set_up.split(" || ")[1]) == ("made=$?", "made=$?")
    assert " lint types site sky " in set_up
    assert installed == 'wait "$installing" || made=$?'
    assert collected.startswith('wait "$collecting" || { made=$?; ')
    assert last == 'if ((made)); then exit "$made"; fi'
    assert "set -euo pipefail" in commands
    assert not [line for line in commands if "|| true" in line or "set +e" in line]


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings
    assert headings[0].strip("[]").lower() == "unreleased"


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert text.rstrip().endswith("limitations under the License.")
