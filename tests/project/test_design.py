"""The documents for engineers name modules that exist, and the way into the code stays short."""

from __future__ import annotations

import re

import pytest

from tests.project.tree import ROOT, project_files

MODULES = [f"/{name.as_posix()}" for name in project_files() if name.suffix == ".py"]


@pytest.mark.parametrize("document", ["docs/design.md", "docs/glossary.md", "CONTRIBUTING.md"])
def test_a_module_that_a_document_names_is_there(document: str) -> None:
    named = set(re.findall(r"(?<![\w/])(?:[a-z_]+/)*[a-z_]+\.py\b", (ROOT / document).read_text()))
    assert named
    gone = sorted(name for name in named if not any(m.endswith(f"/{name}") for m in MODULES))
    assert gone == []


def test_the_eight_files_to_read_first_have_1500_lines_at_most() -> None:
    text = (ROOT / "docs/design.md").read_text()
    section = text.partition("## Read these eight files\n")[2].partition("\n## ")[0]
    files = re.findall(r"^\d\. `([\w/]+\.py)`", section, re.MULTILINE)
    assert len(files) == 8
    assert sum(len((ROOT / name).read_text().splitlines()) for name in files) <= 1500
