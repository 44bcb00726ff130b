"""A reader that leaves before the end of a tool's output, as in `| head -1`: no traceback, no advice."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.train.test_verify import start
from train.__main__ import main
from train.tools.verify import command


class Left(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


@pytest.mark.parametrize("tool", ["diff", "doctor", "report", "verify"])
def test_a_tool_whose_reader_has_left_ends_quietly(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = {"schema": 2, "environments": {}, "starts": [start("a", 0)]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "status").write_text("done a 0\n")
    row = {"kind": "step", "step": 1, "time": 1.0, "loss": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(command, "_verify", lambda options: print("identical"))
    monkeypatch.setattr("train.tools.report.command.write", lambda *_: None)
    monkeypatch.setattr("train.tools.report.plots.available", lambda: True)
    monkeypatch.setattr("sys.stdout", Left())
    assert main([tool, str(tmp_path), *([str(tmp_path)] if tool == "diff" else [])]) == 141
    assert capsys.readouterr().err == ""
