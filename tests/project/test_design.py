"""The documents for engineers name modules that exist, and the way into the code stays short."""

from __future__ import annotations

import re

import pytest

from tests.project.tree import ROOT, project_files

FILES = [name.as_posix() for name in project_files()]
MODULES = [name for name in FILES if name.startswith(("ddpgen/", "train/"))]


def meant_by(name: str) -> list[str]:
    """The files that a name in a document may mean. A name without its first folder is one of ddpgen/ or train/."""
    return [m for m in MODULES if m.endswith(f"/{name}")] or [m for m in FILES if m == name]


@pytest.mark.parametrize("document", ["docs/design.md", "CONTRIBUTING.md"])
def test_a_document_names_each_module_so_that_no_other_is_meant(document: str) -> None:
    named = re.findall(r"(?<![\w/])(?:[a-z_]+/)*[a-z_]+\.py\b", (ROOT / document).read_text())
    assert named
    assert {name: meant_by(name) for name in named if len(meant_by(name)) != 1} == {}


def test_the_eight_files_to_read_first_have_1500_lines_at_most() -> None:
    text = (ROOT / "docs/design.md").read_text()
    section = text.partition("## Read these eight files\n")[2].partition("\n## ")[0]
    files = re.findall(r"^\d\. `([\w/]+\.py)`", section, re.MULTILINE)
    assert len(files) == 8
    assert sum(len((ROOT / name).read_text().splitlines()) for name in files) <= 1500
