"""The preflight as a launch calls it: what is printed, kept, and the exit code."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.project.tree import ROOT
from tests.train.preflight.program import main
from train.preflight import command
from train.preflight.finding import Finding, codes
from train.preflight.report import PreflightResult, Report


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Any:
    """Run it in this process, as a job on one machine; exit code and what it said."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("train.processes.die_with_parent", lambda *_: None)

    def call(*words: str, directory: Path = tmp_path / "ckpt", **more: Any) -> tuple[int, str]:
        given = {"job": "j", "checkpoint_dir": str(directory), "me": "here", **more}
        code = main([json.dumps(given), *words])
        return code, capsys.readouterr().err

    call.capture = lambda: capsys.readouterr().err
    return call


def kept(directory: Path) -> Any:
    return json.loads((directory / "preflight.json").read_text())


def test_nothing_wrong_is_not_talked_about(call: Any, tmp_path: Path) -> None:
    assert call() == (0, "")
    assert kept(tmp_path / "ckpt")["ok"] is True
    code, said = call("--only")
    assert code == 0
    assert said.startswith("ddpgen: preflight: this machine can start the job (")


def test_an_error_is_told_with_code_and_remedy_and_ends_with_69(call: Any, tmp_path: Path) -> None:
    code, said = call(nic="nosuch0")
    assert code == 69
    assert "NIC001" in said
    assert "nosuch0" in said
    assert "ddpgen explain NIC001" in said
    record = kept(tmp_path / "ckpt")
    assert record["ok"] is False
    assert [finding["code"] for finding in record["findings"]] == ["NIC001"]
    assert record["hosts"][0]["host"] == "here"


def test_what_was_shown_early_is_not_shown_again(call: Any, monkeypatch: Any) -> None:
    own = Finding("NIC006", "here", "its own", "cure it")
    late = Finding("NIC008", "there", "of the others", "cure it")
    monkeypatch.setattr(command.checks, "examine", lambda job: Report.of(job, [own]))

    def meet(job: Any, examine: Any, *_: Any) -> PreflightResult:
        assert "its own" not in capture()
        examine()
        assert "its own" in capture()
        return PreflightResult([own, late], [], [], 5.0, "")

    capture = call.capture
    monkeypatch.setattr("train.preflight.checkin.meet", meet)
    code, said = call(head="127.0.0.1", nodes=2)
    assert code == 69
    assert (said.count("its own"), said.count("of the others")) == (0, 1), said


def test_an_ignored_error_is_a_warning(call: Any) -> None:
    code, said = call(nic="nosuch0", ignore=["NIC001", "NIC002"])
    assert code == 0
    assert "warning" in said
    assert "NIC001" in said


def test_what_cannot_be_ignored_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="there is no code 'NIC999'"):
        codes("NIC001,NIC999")


def test_a_directory_that_cannot_be_is_told_without_a_trace(call: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, said = call(directory=tmp_path / "file" / "ckpt")
    assert code == 69
    assert "DIR00" in said
    assert "Traceback" not in said


def test_the_record_of_a_live_job_stays(call: Any, tmp_path: Path, monkeypatch: Any) -> None:
    assert call()[0] == 0
    before = (tmp_path / "ckpt" / "preflight.json").read_text()
    held = Finding("DIR004", "here", "held by a live job", "wait")
    report = Report("here", 0, 1, 1, 1, "", findings=(held,))
    monkeypatch.setattr("train.preflight.checks.examine", lambda settings: report)
    assert call()[0] == 69
    assert (tmp_path / "ckpt" / "preflight.json").read_text() == before


def test_a_file_server_that_does_not_answer_holds_up_no_word(
    call: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "ckpt").mkdir()
    monkeypatch.setattr("train.preflight.command._KEEP_S", 0.2)
    monkeypatch.setattr("train.preflight.command._keep", lambda *_: time.sleep(20))
    began = time.monotonic()
    code, said = call(nic="nosuch0")
    assert code == 69
    assert "NIC001" in said
    assert time.monotonic() - began < 10


def test_without_a_terminal_at_all_the_exit_code_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = f"supervise local --job=j --checkpoint-dir={tmp_path}/file -- true -- true"
    command = f'exec "{sys.executable}" -m train {words} >&- 2>&- <&-'
    assert subprocess.run(["bash", "-c", command], cwd=ROOT, timeout=20).returncode == 69
