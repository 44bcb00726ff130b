"""Several hosts as one job: same bits, one verdict, and a checkpoint found wherever it lies.

Most have a checkpoint directory each here, as where no file system is shared.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from tests.ports import free_port
from tests.real import jobs
from tests.real.nodes import TRAIN, Host, c10d, spawn, static, until_met, until_step
from train.lock import claim, read_lock

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(240)]

STEPS = 400  # a few seconds: long enough to reach in
# The same model and the same bits; one process alone has time, until another host is back.
PATIENT = """\
import dataclasses
import time

import torch.distributed as dist

from train.workloads import gpt


def build(context, **args):
    made = gpt.build(context, **args)

    def loss(model, batch):
        if not dist.is_initialized() or dist.get_world_size() == 1:
            time.sleep(0.03)
        return made.loss(model, batch)

    return dataclasses.replace(made, loss=loss)
"""


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


@contextmanager
def hosts(*started: Host) -> Iterator[None]:
    """Whatever happens in a test, no host outlives it."""
    with ExitStack() as stack:
        for host in started:
            stack.callback(host.power_off)
        yield


def test_three_processes_on_a_fast_and_a_slow_host_give_the_bits_of_one(
    tmp_path: Path, alone: Alone
) -> None:
    port = free_port()
    fast = Host(
        "fast", tmp_path / "a", c10d(port, 2, "2", head=True), ["--world-size=3", "--weight=3/2"]
    )
    slow = Host("slow", tmp_path / "b", c10d(port, 1, "2", head=False), ["--world-size=3"])
    with hosts(fast, slow):
        assert (fast.end(), slow.end()) == (0, 0), fast.output + slow.output
    assert (fast.status, slow.status) == ("done 12", "done 12")
    # Ranks go by arrival.
    both = fast.output + slow.output
    either = (
        "(fast: 2, micro-batches 0-5; slow: 1, 6-7)",
        "(slow: 1, micro-batches 0-1; fast: 2, 2-7)",
    )
    assert any(f"3 processes on 2 hosts {how}, backend gloo, device cpu" in both for how in either)
    head = tmp_path / ("a" if "done at step" in fast.output else "b")
    jobs.assert_same_bits(jobs.final_tensors(head), alone(12))


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
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--backend=nccl", "backend nccl needs CUDA"),
        ("--workload=gtp", "workload 'gtp' is neither built in"),
    ],
)
def test_a_fault_of_one_host_is_told_by_both_whoever_has_it(
    tmp_path: Path, culprit: str, option: str, reason: str
) -> None:
    port = free_port()
    pair = [
        Host(name, tmp_path / name, static(port, 1, "2", rank),
             ["--world-size=2", *([option] if name == culprit else [])])
        for rank, name in enumerate(("first", "other"))
    ]  # fmt: skip
    with hosts(*pair):
        assert [host.end() for host in pair] == [0, 0], "\n".join(h.output for h in pair)
    for host in pair:
        assert host.status.startswith(f"failed 0 {culprit}: {reason}"), host.output
        # torchrun's agent may say one, where the other one, with the store, ended a moment before it.
        barrier = host.output.count("Error waiting on exit barrier")
        assert host.output.count("Traceback") <= barrier, host.output


def test_without_torchrun_the_bits_are_the_same(tmp_path: Path, alone: Alone) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first = Host("first", tmp_path / "a", spawn(2, 0, 3), ["--world-size=3"], **env)
    other = Host("other", tmp_path / "b", spawn(1, 2, 3), ["--world-size=3"], **env)
    with hosts(first, other):
        assert (first.end(), other.end()) == (0, 0), first.output + other.output
    assert "(first: 2, micro-batches 0-5; other: 1, 6-7)" in first.output
    assert (first.status, other.status) == ("done 12", "done 12")
    jobs.assert_same_bits(jobs.final_tensors(tmp_path / "a"), alone(12))


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


def test_a_directory_that_a_live_job_holds_is_refused_on_all_hosts(tmp_path: Path) -> None:
    attempt = claim(tmp_path / "a", "rival", os.getpid())
    port = free_port()
    first = Host("first", tmp_path / "a", static(port, 1, "2", 0), ["--world-size=2"])
    other = Host("other", tmp_path / "b", static(port, 1, "2", 1), ["--world-size=2"])
    with hosts(first, other):
        for host in (first, other):
            host.end()
            assert (
                f"first: {tmp_path / 'a'} is in use by job 'rival', attempt {attempt}"
                in host.status
            )


def test_a_host_dies_and_comes_back_and_the_bits_are_those_of_one_process(
    tmp_path: Path, alone: Alone
) -> None:
    port = free_port()
    (tmp_path / "patient.py").write_text(PATIENT)
    options = [f"--steps={STEPS}", "--elastic", "--checkpoint-every=5 steps"]
    options += [f"--workload={tmp_path / 'patient.py'}:build"]

    def start(name: str, *, head: bool) -> Host:
        launcher = c10d(port, 1, "1:2", head=head, restarts=5)
        return Host(name, tmp_path / name, launcher, options)

    stays, goes = start("stays", head=True), start("goes", head=False)
    with hosts(stays, goes):
        until_met((stays, goes))
        until_step((stays, goes), 30)
        goes.power_off()
        goes.end()
        stays.until("1 processes, ")
        stays.until_step(60)
        back = start("goes", head=False)
        with hosts(back):
            stays.until("the hosts change; meeting again")
            assert (stays.end(), back.end()) == (0, 0), stays.output + back.output
    assert (stays.status, back.status) == (f"done {STEPS}", f"done {STEPS}")
    places = [tmp_path / name for name in ("stays", "goes")]
    last = [p for p in places if jobs.checkpoints(p)[-1:] == [p / f"step-{STEPS:09}"]]
    jobs.assert_same_bits(jobs.final_tensors(last[0]), alone(STEPS))


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
    # Where rank 0 had its disk is where it lies; the host that stays may have to begin anew.
    if jobs.checkpoints(tmp_path / "stays")[0].name == f"step-{step:09}":
        assert f"resuming at step {step} of {STEPS}" in stays.output
    assert stays.status == f"done {STEPS}"
    jobs.assert_same_bits(jobs.final_tensors(tmp_path / "stays"), alone(STEPS))


def test_a_worker_is_killed_and_the_workers_of_both_hosts_start_again(
    tmp_path: Path, alone: Alone
) -> None:
    port = free_port()
    options = [f"--steps={STEPS}", "--world-size=2", "--checkpoint-every=5 steps"]
    pair = [
        Host(name, tmp_path / "shared", c10d(port, 1, "2", head=name == "a", restarts=3), options)
        for name in ("a", "b")
    ]
    with hosts(*pair):
        until_step(pair, 20)
        os.kill(pair[1].workers()[0], signal.SIGKILL)
        assert [host.end() for host in pair] == [0, 0], pair[0].output + pair[1].output
    assert [host.status for host in pair] == [f"done {STEPS}"] * 2
    holder = read_lock(tmp_path / "shared")
    assert holder is not None
    assert holder.generation >= 2
    jobs.assert_same_bits(jobs.final_tensors(tmp_path / "shared"), alone(STEPS))
