"""Several hosts as one job: same bits, one verdict, and a checkpoint found wherever it lies.

Most have a checkpoint directory each here, as where no file system is shared.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.ports import free_port
from tests.real import jobs
from tests.real.nodes import TRAIN, Host, c10d, hosts, static, until_met, until_step

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(240)]

STEPS = 400  # a few seconds: long enough to reach in
Alone = Callable[[int], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The tensors after so many steps, of one process without any other host."""

    @functools.cache
    def trained(steps: int) -> dict[str, torch.Tensor]:
        place = tmp_path_factory.mktemp("alone")
        done = subprocess.run(
            [sys.executable, "-m", "train", "run", *TRAIN, f"--steps={steps}",
             f"--checkpoint-dir={place}"],
            cwd=jobs.ROOT, capture_output=True, text=True, timeout=jobs.PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return jobs.final_tensors(place)

    return trained


def test_a_stop_file_on_one_host_stops_both_and_the_other_goes_on_from_its_checkpoint(
    tmp_path: Path, alone: Alone
) -> None:
    steps, slow = 60, tmp_path / "slow.py"
    slow.write_text(jobs.SLOW["slow.py"])
    options = [f"--steps={steps}", "--world-size=2", f"--workload={slow}:build"]
    port = free_port()
    first = Host("first", tmp_path / "a", static(port, 1, "2", 0), options, SLOW="0.1")
    other = Host("other", tmp_path / "b", static(port, 1, "2", 1), options, SLOW="0.1")
    with hosts(first, other):
        first.until_step(5)
        (tmp_path / "b" / "stop").touch()
        assert (first.end(), other.end()) == (0, 0), first.output + other.output
    (saved,) = jobs.checkpoints(tmp_path / "a")
    step = int(saved.name.removeprefix("step-"))
    assert 5 <= step < steps
    assert (first.status, other.status) == (f"stopped {step} user", f"stopped {step} user")
    assert jobs.checkpoints(tmp_path / "b") == []

    port = free_port()
    first = Host("first", tmp_path / "a", static(port, 1, "2", 1), options)
    other = Host("other", tmp_path / "b", static(port, 1, "2", 0), options)
    with hosts(first, other):
        assert (first.end(), other.end()) == (0, 0), first.output + other.output
    assert f"resuming at step {step} of {steps}, from the checkpoint of first" in other.output
    assert (first.status, other.status) == (f"done {steps}", f"done {steps}")
    jobs.assert_same_bits(jobs.final_tensors(tmp_path / "b"), alone(steps))


@pytest.mark.parametrize("culprit", ["first", "other"])
def test_a_fault_of_one_host_is_told_by_both_whoever_has_it(tmp_path: Path, culprit: str) -> None:
    port = free_port()
    pair = [
        Host(name, tmp_path / name, static(port, 1, "2", rank),
             ["--world-size=2", *(["--workload=gtp"] if name == culprit else [])])
        for rank, name in enumerate(("first", "other"))
    ]  # fmt: skip
    with hosts(*pair):
        assert [host.end() for host in pair] == [0, 0], "\n".join(h.output for h in pair)
    for host in pair:
        assert host.status.startswith(f"failed 0 {culprit}: workload 'gtp' is neither"), host.output
        # torchrun's agent may say one, where the other one, with the store, ended a moment before it.
        barrier = host.output.count("Error waiting on exit barrier")
        assert host.output.count("Traceback") <= barrier, host.output


def test_two_hosts_of_one_name_are_told_apart_and_refused(tmp_path: Path) -> None:
    port = free_port()
    pair = [
        Host("twin", tmp_path / str(rank), static(port, 1, "2", rank), ["--world-size=2"])
        for rank in (0, 1)
    ]
    with hosts(*pair):
        for host in pair:
            host.end()
            assert "twin: two hosts are called 'twin'" in host.status, host.output


def test_a_host_that_is_told_to_go_parts_from_the_others_at_a_step_they_agree_on(
    tmp_path: Path, alone: Alone
) -> None:
    port = free_port()
    # Only a checkpoint taken at the parting can be there.
    options = [f"--steps={STEPS}", "--elastic", "--checkpoint-every=1000 steps"]
    pair = [
        Host(name, tmp_path / name, c10d(port, 1, "1:2", head=name == "stays", restarts=3), options)
        for name in ("stays", "goes")
    ]
    stays, goes = pair
    with hosts(*pair):
        until_met(pair)
        until_step(pair, 20)
        goes.process.terminate()
        goes.end()
        assert stays.end() == 0, stays.output
    assert goes.status.startswith("running ")
    step = int(goes.status.split()[1])
    assert 20 <= step < STEPS
    assert f"at step {step} the hosts change; meeting again" in stays.output + goes.output
    # Where rank 0 had its disk is where it lies; the host that stays may have to start over.
    if jobs.checkpoints(tmp_path / "stays")[0].name == f"step-{step:09}":
        assert f"resuming at step {step} of {STEPS}" in stays.output
    assert stays.status == f"done {STEPS}"
    jobs.assert_same_bits(jobs.final_tensors(tmp_path / "stays"), alone(STEPS))
