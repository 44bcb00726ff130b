"""What the scripts of several hosts call before the training: a claim of their own part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from train.__main__ import main
from train.layout import MARKER, step_directory
from train.lock import claim, read_lock, take


def claimed(directory: Path, node: str) -> int:
    return main(
        ["claim", f"--checkpoint-dir={directory}", f"--pid={os.getpid()}", f"--node={node}"]
    )


def test_a_host_claims_its_own_part_and_forgets_an_old_request_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (40, 50):
        step_directory(tmp_path, step).mkdir()
    (step_directory(tmp_path, 40) / MARKER).touch()
    (tmp_path / "stop").touch()
    assert claimed(tmp_path, "desk") == 0
    attempt = capsys.readouterr().out.strip()
    assert (tmp_path / "nodes" / "desk" / "status").read_text() == f"running {attempt} 40\n"
    assert not (tmp_path / "stop").exists()
    # The directory itself stays for rank 0 to take, on whichever host that will be.
    assert read_lock(tmp_path) is None


def test_hosts_of_a_shared_directory_do_not_hold_one_another_off(tmp_path: Path) -> None:
    assert claimed(tmp_path, "desk") == claimed(tmp_path, "slow") == 0


def test_a_second_script_of_a_host_is_refused_with_the_right_file_to_stop_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(tmp_path / "nodes" / "desk", "first", os.getpid())
    assert claimed(tmp_path, "desk") == 69
    error = capsys.readouterr().err
    assert f"{tmp_path / 'nodes' / 'desk'} is in use by job 'first'" in error
    assert f"'touch {tmp_path / 'stop'}'" in error


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "a\nb"])
def test_a_name_that_is_no_directory_is_a_wrong_argument(tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit) as caught:
        claimed(tmp_path, name)
    assert caught.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_under_a_scheduler_a_request_to_stop_outlives_the_claims_of_hosts_that_come_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPGEN_SCHEDULER", "slurm 4711 0")
    (tmp_path / "stop").write_text("slurm 4711 0 USR1\n")
    assert claimed(tmp_path, "desk") == 0
    assert (tmp_path / "stop").read_text() == "slurm 4711 0 USR1\n"
    holder = read_lock(tmp_path / "nodes" / "desk")
    assert holder is not None
    assert holder.scheduler == "slurm 4711 0"


def test_a_host_of_an_earlier_start_of_a_scheduler_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take(tmp_path, "job", os.getpid(), "slurm.4711.1", "slurm 4711 1")
    monkeypatch.setenv("DDPGEN_SCHEDULER", "slurm 4711 0")
    assert claimed(tmp_path, "desk") == 69
    assert "is held by a later start of Slurm job 4711" in capsys.readouterr().err
    assert not (tmp_path / "nodes").exists()
    monkeypatch.setenv("DDPGEN_SCHEDULER", "slurm 4711 2")
    assert claimed(tmp_path, "desk") == 0
