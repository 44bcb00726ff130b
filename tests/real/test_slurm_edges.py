"""The edges of a job's life under Slurm: before its training begins, between its starts, beside others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.real import batch, jobs
from tests.real.batch import Batch, assert_done_with_the_bits_of_one_machine
from tests.real.conftest import NewSlurm
from tests.real.rig.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
PAUSE = 0.05


@pytest.fixture(scope="module")
def cluster(new_slurm: NewSlurm) -> Slurm:
    return new_slurm(nodes=3, KillWait=20)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return batch.alone(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("culprit", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_node_that_cannot_start_ends_the_job_for_good(cluster: Slurm, culprit: int) -> None:
    # srun ends the other node's script by a TERM, as a preemption would.
    setup = f'if [ "$SLURM_NODEID" = {culprit} ]; then false; else sleep 20; fi'
    job = Batch(cluster, batch.spec(f"cannot{culprit}", nodes=2, tier={"setup": [setup]}))
    assert job.ended() == ("FAILED", "69:0"), job.log
    assert cluster.show(job.id)["Restarts"] == "0"
    assert "setup of the spec failed" in job.log
    assert not (job.directory / "slurm-job").exists()


def test_a_preemption_before_the_training_begins_brings_it_back(
    cluster: Slurm, alone: Path
) -> None:
    # bash runs the trap when the sleep, which is ended by the signal as well, is over.
    once = '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || { echo entering; sleep 30; }'
    wanted = batch.spec("early", python={"interpreter": sys.executable, "activate": [once]})
    job = Batch(cluster, wanted, "-p", "lowc", "-w", "node3", "--exclusive")
    cluster.wait_log(job.id, "entering")
    taker = cluster.sbatch("-p", "high", "-w", "node3", "--exclusive", "--wrap", "true")
    assert cluster.ended(taker) == ("COMPLETED", "0:0")
    assert_done_with_the_bits_of_one_machine(job, alone, starts=2)


@pytest.mark.nightly
def test_a_step_that_is_longer_than_killwait_brings_it_back_all_the_same(
    cluster: Slurm, alone: Path
) -> None:
    job = Batch(cluster, batch.spec("long", 4.0), "-p", "lowc", "-w", "node2", "--exclusive")
    job.until(lambda: "resuming" in job.log or "backend gloo" in job.log)
    taker = cluster.sbatch("-p", "high", "-w", "node2", "--exclusive", "--wrap", "true")
    cluster.wait_log(job.id, "no clean stop within Slurm's KillWait")
    assert cluster.ended(taker) == ("COMPLETED", "0:0")
    assert_done_with_the_bits_of_one_machine(job, alone, starts=2)


@pytest.mark.nightly
def test_one_job_of_an_array_is_struck_and_the_others_are_not(cluster: Slurm) -> None:
    wanted = batch.spec("many", PAUSE, starts=2, tier={"array": "0-1"})
    array = Batch(cluster, wanted, "--nodelist=node1", "--oversubscribe")
    places = [array.place / "checkpoints" / f"many-{index}" for index in (0, 1)]
    array.until(lambda: all(jobs.checkpoints(place) for place in places))
    numbers = [cluster.show(f"{array.id}_{index}")["JobId"] for index in (0, 1)]
    # Slurm calls one of them by the number of the whole.
    struck = numbers.index(array.id)
    name, other = f"{array.id}_{struck}", f"{array.id}_{1 - struck}"
    cluster.run(["scancel", "--signal=USR1", "--batch", name], check=True)
    cluster.when(name, lambda shown: shown.get("Restarts") == "1")
    for each in (name, other):
        assert cluster.ended(each) == ("COMPLETED", "0:0"), cluster.log(each)
    assert cluster.show(name)["Restarts"] == "1"
    assert cluster.show(other)["Restarts"] == "0"


@pytest.mark.nightly
def test_a_stop_by_hand_is_obeyed_once(cluster: Slurm, alone: Path) -> None:
    job = Batch(cluster, batch.spec("byhand", PAUSE, nodes=2))
    job.until_step(3)
    (job.directory / "stop").touch()
    assert job.ended() == ("FAILED", "75:0"), job.log
    assert "stopped at step" in job.log
    assert cluster.show(job.id)["Restarts"] == "0"
    job.id = job.submit()
    assert_done_with_the_bits_of_one_machine(job, alone, starts=1)


def test_a_stop_made_in_the_queue_ends_the_job_there(cluster: Slurm) -> None:
    job = Batch(cluster, batch.spec("inqueue", PAUSE))
    job.until_step(3)
    cluster.run(["scancel", "--signal=USR1", "--batch", job.id], check=True)
    cluster.until(job.id, "PENDING")
    (job.directory / "stop").touch()
    assert cluster.ended(job.id) == ("FAILED", "75:0"), job.log
    assert "made while the job was in the queue" in job.log
    assert sorted(path.name for path in job.directory.glob("bundle-*")) == []


@pytest.mark.nightly
def test_every_process_signalled_at_once_brings_it_back(cluster: Slurm, alone: Path) -> None:
    # srun ends the tasks by KILL then: what is lost is what stands behind the newest checkpoint.
    job = Batch(cluster, batch.spec("full", PAUSE, nodes=2))
    job.until_step(batch.EVERY + 1)
    job.until(lambda: bool(jobs.checkpoints(job.directory)))
    cluster.run(["scancel", "--signal=TERM", "--full", job.id], check=True)
    assert_done_with_the_bits_of_one_machine(job, alone, starts=2)


def test_a_cancelled_job_stops_cleanly_and_stays_away(cluster: Slurm) -> None:
    job = Batch(cluster, batch.spec("cancelled", PAUSE, nodes=2))
    job.until_step(3)
    cluster.run(["scancel", job.id], check=True)
    assert cluster.ended(job.id)[0] == "CANCELLED"
    cluster.wait_log(job.id, "cancelled, so it stays out of the queue")
    assert "stopped at step" in job.log
    assert (job.directory / "status").read_text().startswith("stopped ")


@pytest.mark.nightly
@pytest.mark.usefixtures("slurm_possible")
def test_a_node_that_slurm_does_not_miss_yet_is_missed() -> None:
    times = {"timeout": "20s", "collective_timeout": "8s"}
    wanted = batch.spec("missed", PAUSE, nodes=2, restarts=0, rendezvous=times)
    with Slurm(nodes=2, SlurmdTimeout=100) as patient:
        job = Batch(patient, wanted)
        job.until_step(6)
        patient.node(job.nodes[1]).power_off()
        patient.wait_log(job.id, "a node does not answer any more; back into the queue", 220)
        patient.when(job.id, lambda shown: shown["Restarts"] == "1")
