"""What an old Python meets: one line with the remedy, whatever else it cannot read."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

MAIN = Path(__file__).resolve().parents[2] / "train" / "__main__.py"


def test_an_old_python_is_told_in_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(MAIN), run_name="__main__")
    assert end.value.code == 69
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "environment.modules" in said
    assert said.endswith("(PY003)\n")


def test_python_3_6_can_read_the_file_that_tells_it() -> None:
    ast.parse(MAIN.read_text("utf-8"), feature_version=(3, 6))
