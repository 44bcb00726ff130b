"""Damaged checkpoints, full disks, an old attempt: none of them costs more than a message or a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ci import do_without
from tests.real import jobs

pytestmark = [pytest.mark.real, pytest.mark.nightly]
TRAIN: dict[str, Any] = {**jobs.SLOW_GPT, "steps": 40}
# Without it the 40 steps are over before anything can be done to the job.
SLOW = {"SLOW": "0.035"}


def rendered(place: Path, train: dict[str, Any] = TRAIN, **job: Any) -> Path:
    job = {"checkpoint": {"dir": str(place / "ckpt"), "every": "4 steps"}, **job}
    return jobs.render(place / "job", jobs.spec(train, procs_per_node=2, **job), jobs.SLOW)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    place = tmp_path_factory.mktemp("undisturbed")
    done = jobs.run(rendered(place))
    assert done.process.returncode == 0, done.output
    return jobs.final_tensors(place / "ckpt")


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory of a run that was stopped after a few checkpoints."""
    place = tmp_path_factory.mktemp("half")
    job = jobs.Job(rendered(place), env=SLOW)
    job.until_step(13)
    job.until_committed(place / "ckpt")  # it is written while the training goes on
    (place / "ckpt" / "stop").touch()
    assert job.end() == 75, job.output
    return place / "ckpt"


def flip_a_bit(newest: Path) -> None:
    content = bytearray((newest / "optimizer.pt").read_bytes())
    content[len(content) // 3] ^= 0x10
    (newest / "optimizer.pt").write_bytes(content)


# Which damage is found is tested in tests/train/test_checkpoint.py.
def test_without_its_newest_checkpoint_a_run_gives_the_same_bits_from_the_one_before(
    tmp_path: Path, half_done: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    directory = tmp_path / "ckpt"
    subprocess.run(["cp", "-a", str(half_done), str(directory)], check=True, timeout=30)
    *_, before, newest = jobs.checkpoints(directory)
    flip_a_bit(newest)
    job = jobs.run(rendered(tmp_path))
    assert job.process.returncode == 0, job.output
    assert f"{newest.name} is not valid: optimizer.pt does not match its sha256" in job.output
    assert f"it is set aside as {newest}.corrupt" in job.output
    assert f"resuming at step {int(before.name.removeprefix('step-'))} of 40" in job.output
    jobs.assert_same_bits(jobs.final_tensors(directory), undisturbed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own for the checkpoints, with little room (the preflight wants some)."""
    disk = tmp_path / "ckpt"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], timeout=30
    )
    if mounted.returncode:
        do_without("small file system", "mounting one needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True, timeout=30)


def test_a_disk_that_fills_up_keeps_the_checkpoint_before_and_room_brings_the_run_home(
    tmp_path: Path, small_disk: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    bundle = rendered(tmp_path)
    filler = small_disk / "filler"
    job = jobs.Job(bundle, env=SLOW)
    job.until_step(5)
    job.until_committed(small_disk)  # it is written while the training goes on
    with contextlib.suppress(OSError):  # the job writes meanwhile
        filler.write_bytes(b"x" * (32 << 20))
    os.truncate(filler, filler.stat().st_size - 20_000)
    assert job.end() == 1, job.output
    assert "could not be written (no space left on the device); training goes on" in job.output
    assert "no space left on the device; make room and start the job again" in job.lines[-1]
    assert not list(small_disk.glob(".tmp-*"))
    kept = jobs.checkpoints(small_disk)[-1]
    filler.unlink()
    again = jobs.run(bundle)
    assert again.process.returncode == 0, again.output
    assert f"resuming at step {int(kept.name.removeprefix('step-'))} of 40" in again.output
    jobs.assert_same_bits(jobs.final_tensors(small_disk), undisturbed)


def test_an_old_attempt_that_wakes_up_beside_a_new_one_ends_and_damages_nothing(
    tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    bundle = rendered(tmp_path)
    old = jobs.Job(bundle, env=SLOW)
    old.until_step(6)
    frozen = [*old.workers(), old.agent(), old.process.pid]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    # As on a host that hangs: the lock's holder cannot be asked, somebody decides it is gone.
    (tmp_path / "ckpt" / "lock").unlink()
    new = jobs.run(bundle)
    assert new.process.returncode == 0, new.output
    before = sorted(p.name for p in (tmp_path / "ckpt").glob("step-*"))
    status = (tmp_path / "ckpt" / "status").read_text()
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)
    assert old.end() == 1
    assert "no longer holds" in old.output
    assert "another job has taken over" in old.output
    assert (tmp_path / "ckpt" / "status").read_text() == status
    assert sorted(p.name for p in (tmp_path / "ckpt").glob("step-*")) == before
    jobs.assert_same_bits(jobs.final_tensors(tmp_path / "ckpt"), undisturbed)
