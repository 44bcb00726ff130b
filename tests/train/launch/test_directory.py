"""A checkpoint directory is taken by one launch, each host holds its own part, and why not is said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from train.base.errors import Refusal
from train.launch.directory import acquire
from train.run.layout import MARKER, node_directory, step_directory
from train.run.lock import claim, read_lock, take


def acquired(whole: Path, node: str, scheduler: str = "") -> str:
    return acquire(whole, node_directory(whole, node), "job", scheduler)


def test_a_host_takes_its_own_part_and_forgets_an_old_request_to_stop(tmp_path: Path) -> None:
    for step in (40, 50):
        step_directory(tmp_path, step).mkdir()
    (step_directory(tmp_path, 40) / MARKER).touch()
    (tmp_path / "stop").touch()
    attempt = acquired(tmp_path, "desk")
    assert (tmp_path / "nodes" / "desk" / "status").read_text() == f"running {attempt} 40\n"
    assert not (tmp_path / "stop").exists()
    # The directory itself stays for rank 0 to take, on whichever host that will be.
    assert read_lock(tmp_path) is None


def test_hosts_of_a_shared_directory_do_not_hold_one_another_off(tmp_path: Path) -> None:
    assert acquired(tmp_path, "desk") != acquired(tmp_path, "slow")


def test_a_second_launch_of_a_host_is_refused_with_the_right_file_to_stop_the_first(
    tmp_path: Path,
) -> None:
    claim(tmp_path / "nodes" / "desk", "first", os.getpid())
    with pytest.raises(Refusal) as refused:
        acquired(tmp_path, "desk")
    assert refused.value.code == 69
    assert f"{tmp_path / 'nodes' / 'desk'} is in use by job 'first'" in str(refused.value)
    assert f"'touch {tmp_path / 'stop'}'" in str(refused.value)


def test_under_a_scheduler_a_request_to_stop_outlives_hosts_that_come_late(tmp_path: Path) -> None:
    (tmp_path / "stop").write_text("slurm 4711 0 USR1\n")
    acquired(tmp_path, "desk", "slurm 4711 0")
    assert (tmp_path / "stop").read_text() == "slurm 4711 0 USR1\n"
    holder = read_lock(tmp_path / "nodes" / "desk")
    assert holder is not None
    assert holder.scheduler == "slurm 4711 0"


def test_a_host_of_an_earlier_start_of_a_scheduler_job_is_refused(tmp_path: Path) -> None:
    take(tmp_path, "job", os.getpid(), "slurm.4711.1", "slurm 4711 1")
    with pytest.raises(Refusal, match="later start of Slurm job 4711"):
        acquired(tmp_path, "desk", "slurm 4711 0")
    assert not (tmp_path / "nodes").exists()
    acquired(tmp_path, "desk", "slurm 4711 2")


def test_a_full_disk_under_the_checkpoints_is_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **_named: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("train.launch.directory.claim", full)
    with pytest.raises(Refusal) as refused:
        acquired(tmp_path, "desk")
    said = f"the checkpoint directory {tmp_path} cannot be used: No space left on device"
    assert (refused.value.code, str(refused.value)) == (1, f"{said}; free some space there")


def test_a_stop_file_that_is_a_directory_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "stop").mkdir()
    with pytest.raises(Refusal, match=r"/stop\); it has to be a file"):
        acquire(tmp_path, tmp_path, "job", "")
