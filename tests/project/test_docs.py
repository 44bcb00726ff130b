"""What the documents tell people to type works, and shows what they say it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.markdown import Block, blocks, documents, first_line_not_said
from tests.project.tree import ROOT, copy_project

DOCUMENTS = {str(path.relative_to(ROOT)): path for path in documents(ROOT)}
# Stories of a minute of processor each, whose commands tests/real runs in make test as well.
LONG = ("docs/numbers.md", "docs/reproduce.md", "docs/results.md")


def marked(path: Path) -> list[Block]:
    return [block for block in blocks(path.read_text()) if block.mark == "run"]


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in DOCUMENTS],
)
def test_commands_of_the_document_run_and_show_what_it_says(name: str, tmp_path: Path) -> None:
    checkout = copy_project(tmp_path / "checkout")
    env = reader_environment(tmp_path)
    for block in marked(DOCUMENTS[name]):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.script],
            cwd=checkout,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        place = f"{name}:{block.line}"
        assert done.returncode == 0, f"{place} -> {done.returncode}\n{done.stdout}"
        missing = first_line_not_said(block.shown, done.stdout)
        assert missing is None, f"{place} shows {missing!r}; the command said\n{done.stdout}"


def reader_environment(tmp_path: Path) -> dict[str, str]:
    """A reader's shell: `ddpgen` and `python3` of this environment first on PATH."""
    own = Path(sys.executable).parent
    shim = tmp_path / "bin"
    shim.mkdir()
    (shim / "ddpgen").write_text(
        f'#!/bin/bash\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m ddpgen "$@"\n'
    )
    (shim / "ddpgen").chmod(0o755)
    return os.environ | {"PATH": f"{shim}:{own}:{os.environ['PATH']}", "COLUMNS": "100"}


def test_every_command_of_the_readme_is_run_or_says_why_not() -> None:
    unmarked = [
        f"README.md:{block.line}"
        for block in blocks((ROOT / "README.md").read_text())
        if block.mark is None
    ]
    assert not unmarked, "no <!-- run --> and no <!-- not run: why --> before " + ", ".join(
        unmarked
    )


def test_a_document_that_shows_what_is_not_said_is_caught() -> None:
    (block,) = blocks(
        "text\n<!-- run -->\n```console\n$ echo one; echo three\none\n...\nthree\n```\n"
    )
    assert (block.line, block.mark, block.script) == (2, "run", "echo one; echo three")
    assert first_line_not_said(block.shown, "one\ntwo\nthree\n") is None
    assert first_line_not_said(block.shown, "three\none\n") == "three"


def test_the_example_report_needs_nothing_else_and_names_no_path() -> None:
    text = (ROOT / "docs/report-example.html").read_text()
    assert re.findall(r"""<script|(?:src|href)=["'](?!#)|@import|url\((?!#)""", text) == []
    assert re.findall(r"""(?<![\w.<:/])(?:~|/[a-z]+)/[\w.]+|file:""", text) == []
    assert "crashed or killed" in text
    assert "preempted" in text
    assert len(text) < 1_500_000


def test_readme_shows_the_real_spec_and_the_real_script() -> None:
    checker = [sys.executable, str(ROOT / "tools" / "readme.py"), "--check"]
    done = subprocess.run(checker, timeout=60)
    assert done.returncode == 0, "python tools/readme.py brings README.md up to date"
