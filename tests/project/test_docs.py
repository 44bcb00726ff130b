"""What the documents tell people to type works, and shows what they say it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddpgen
from tests.project.markdown import Block, blocks, documents, first_line_not_said
from tests.project.tree import ROOT, copy_project

# The marks of the blocks that run then.
STORIES: dict[str, tuple[str, ...]] = {"day": ("run",), "night": ("run", "run nightly")}


def marked(name: str, marks: tuple[str, ...]) -> list[Block]:
    return [block for block in blocks((ROOT / name).read_text()) if block.mark in marks]


def stories() -> Iterator[Any]:
    """Each document that has commands for the day, and each that has more for the night."""
    for path in documents(ROOT):
        name = str(path.relative_to(ROOT))
        if marked(name, ("run",)):
            yield pytest.param(name, "day", id=name)
        if marked(name, ("run nightly",)):
            yield pytest.param(name, "night", id=f"{name} at night", marks=pytest.mark.nightly)


@pytest.mark.real
@pytest.mark.timeout(900)  # the gpt of examples/ to its end, beside other stories
@pytest.mark.parametrize(("name", "story"), list(stories()))
def test_commands_of_the_document_run_and_show_what_it_says(
    name: str, story: str, tmp_path: Path
) -> None:
    checkout = copy_project(tmp_path / "checkout")
    env = reader_environment(tmp_path)
    for block in marked(name, STORIES[story]):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.script],
            cwd=checkout,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        place = f"{name}:{block.line}"
        assert done.returncode == 0, f"{place} -> {done.returncode}\n{done.stdout}"
        missing = first_line_not_said(block.shown, done.stdout)
        assert missing is None, f"{place} shows {missing!r}; the command said\n{done.stdout}"


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.timeout(300)
def test_the_notebook_trains_a_job_and_renders_it_for_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "python.ipynb").read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(codes) > 4
    names: dict[str, Any] = {}
    for code in codes:
        exec(code, names)
    assert {finding.path for finding in names["findings"]} == {"procs_per_nod", "train.lr"}
    assert names["launched"] == ddpgen.Launch("local", names["launched"].bundle, exit_code=0)
    assert names["run"]["state"] == "done at step 40"
    assert (tmp_path / names["run"]["weights"]).is_file()
    assert [bundle.directory.name for bundle in names["bundles"]] == ["toy-0.1", "toy-0.03"]
    assert "#SBATCH --time=0-01:00:00" in names["bundles"][1].artefacts[0].text


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


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=lambda p: p.name)
def test_a_picture_needs_nothing_else_and_names_no_path(picture: Path) -> None:
    text = picture.read_text()
    assert re.findall(r"""<script|(?:src|href)=["'](?!#)|@import|url\(["']?(?!#)""", text) == []
    assert re.findall(r"""(?<![\w.<:/])(?:~|/tmp|/home|/root)/""", text) == []


def test_the_recording_ends_with_the_same_weights() -> None:
    text = (ROOT / "docs/recording.svg").read_text().replace("&#160;", " ")
    assert re.search(r"kill -9 \d+.*restart 1 of 3.*sha256sum", text, flags=re.DOTALL)
    sums = re.findall(r">([0-9a-f]{12}) +build/checkpoints/(\w+)/", text)
    assert [name for _, name in sums] == ["calm", "gpt"]
    assert sums[0][0] == sums[1][0]


def test_the_diagram_is_current_and_shows_the_files_of_real_bundles() -> None:
    checker = [sys.executable, str(ROOT / "tools/diagram.py"), "--check"]
    assert subprocess.run(checker, timeout=60).returncode == 0, "python tools/diagram.py draws it"


def test_readme_shows_the_real_spec_and_the_real_script() -> None:
    checker = [sys.executable, str(ROOT / "tools" / "readme.py"), "--check"]
    done = subprocess.run(checker, timeout=60)
    assert done.returncode == 0, "python tools/readme.py brings README.md up to date"
