"""The preflight as a launch calls it: what is printed, kept, and the exit code."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.project.tree import ROOT
from tests.train.preflight.program import main
from train.preflight import command
from train.preflight.finding import NOTE, Finding, codes, eased
from train.preflight.report import PreflightResult, Report


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Any:
    """Run it in this process, as a job on one machine; exit code and what it said."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("train.base.processes.die_with_parent", lambda *_: None)

    def call(*words: str, directory: Path = tmp_path / "ckpt", **more: Any) -> tuple[int, str]:
        given = {"job": "j", "checkpoint_dir": str(directory), "host_name": "here", **more}
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
    assert said.startswith("ddpgen: preflight: this machine can start ")


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
    monkeypatch.setattr(command.checks, "examine", lambda job: Report.from_settings(job, [own]))

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


ERRORS = [Finding("NIC001", "here", "its own", "cure it"), Finding("DIR003", "n1", "full", "free")]


@pytest.mark.parametrize(
    ("scheduler", "driven", "shown", "table", "last"),
    [
        ("", False, True, True, True),  # a terminal of its own
        ("", True, True, False, True),  # run.sh: its end table quotes the last line
        ("slurm 4711 0", False, True, False, False),
        ("slurm 4711 0", False, False, True, True),  # the head did not tell
        ("sky a 0", False, True, False, False),
    ],
)
def test_in_one_log_the_head_alone_shows_what_is_wrong(
    call: Any, monkeypatch: Any, scheduler: str, driven: bool, shown: bool, table: bool, last: bool
) -> None:
    monkeypatch.setenv("DDPGEN_SCHEDULER", scheduler)
    monkeypatch.setattr(
        command.checks, "examine", lambda job: Report.from_settings(job, ERRORS[:1])
    )

    def meet(job: Any, examine: Any, *_: Any) -> PreflightResult:
        examine()
        return PreflightResult(ERRORS, [], [], 5.0, "", shown=shown)

    monkeypatch.setattr("train.preflight.checkin.meet", meet)
    words = ["--driven"] if driven else []
    code, said = call(*words, head="127.0.0.1", nodes=2, node_rank=1)
    assert code == 69
    assert (said.count("its own"), said.count("full")) == (table, table), said
    assert ("preflight: NIC001 on here, DIR003 on n1; " in said) == last, said


def test_the_head_shows_once_what_it_has_told_before_the_end(call: Any, monkeypatch: Any) -> None:
    outcome = PreflightResult(ERRORS, [], [], 5.0, "", shown=True)

    def meet(job: Any, examine: Any, judge: Any, tell: Any, say: Any) -> PreflightResult:
        tell(outcome)
        assert "full" in call.capture()
        return outcome

    monkeypatch.setattr("train.preflight.checkin.meet", meet)
    code, said = call(head="127.0.0.1", nodes=2)
    assert (code, said.count("\n")) == (69, 1), said


def test_in_one_log_the_head_shows_its_own_findings_with_those_of_the_others(
    call: Any, monkeypatch: Any
) -> None:
    both = [replace(ERRORS[0], host=host) for host in ("here", "n1")]
    monkeypatch.setenv("DDPGEN_SCHEDULER", "slurm 4711 0")
    monkeypatch.setattr(command.checks, "examine", lambda job: Report.from_settings(job, both[:1]))

    def meet(job: Any, examine: Any, judge: Any, tell: Any, say: Any) -> PreflightResult:
        examine()
        outcome = PreflightResult(both, [], [], 5.0, "", shown=True)
        tell(outcome)
        return outcome

    monkeypatch.setattr("train.preflight.checkin.meet", meet)
    _, said = call(head="127.0.0.1", nodes=2)
    assert said.count("its own") == 1
    assert said.startswith("error    NIC001   here and n1  its own\n")


@pytest.mark.parametrize(
    ("shared", "rank", "is_kept"), [(True, 0, True), (True, 1, False), (None, 1, True)]
)
def test_of_a_shared_directory_the_head_alone_keeps_the_record(
    call: Any, tmp_path: Path, monkeypatch: Any, shared: bool | None, rank: int, is_kept: bool
) -> None:
    (tmp_path / "ckpt").mkdir()
    outcome = PreflightResult([], [], [], 5.0, "a launch")
    monkeypatch.setattr("train.preflight.checkin.meet", lambda *_: outcome)
    assert call(head="127.0.0.1", nodes=2, node_rank=rank, shared=shared)[0] == 0
    assert (tmp_path / "ckpt/preflight.json").exists() == is_kept


HELD = Finding("DIR004", "here", "held by a live job", "wait", NOTE)


@pytest.mark.parametrize(
    ("only", "host", "code", "severity"),
    [
        (True, "here", "PORT002", "note"),
        (True, "here", "GPU003", "note"),
        (True, "there", "GPU003", "error"),  # of no live job
        (True, "here", "DIR003", "error"),
        (False, "here", "PORT002", "error"),
    ],
)
def test_what_a_live_job_holds_is_a_note_to_a_check_that_starts_nothing(
    only: bool, host: str, code: str, severity: str
) -> None:
    found = eased([HELD, Finding(code, host, "so it is", "cure it")], only)
    assert [each.severity for each in found] == ["note", severity]


def test_a_check_beside_a_live_job_does_not_fail_of_it(
    call: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(command.checks, "examine", lambda job: Report.from_settings(job, [HELD]))
    (tmp_path / "ckpt").mkdir()
    code, said = call("--only")
    assert code == 0, said
    assert "note     DIR004   here  held by a live job\n" in said
    assert "when the live one has ended (" in said
    assert not (tmp_path / "ckpt/preflight.json").exists()


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
    monkeypatch.setattr("train.preflight.command._write_file", lambda *_: time.sleep(20))
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
