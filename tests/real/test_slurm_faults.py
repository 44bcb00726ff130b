"""What a night on a cluster does to a job: signals, limits, preemption, lost nodes, kills.

Every story ends alike: the job comes back by itself, where there is room for it, and ends in the weights
of a run that nobody disturbed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.real import batch, jobs
from tests.real.batch import Batch, assert_done_with_the_bits_of_one_machine
from tests.real.conftest import NewSlurm
from tests.real.rig import Machine, processes
from tests.real.rig.slurm import Slurm
from train.launch import bad_nodes

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(400)]
PAUSE, LONG_PAUSE = 0.15, 0.25
# Two minutes, as a start takes half a one on a busy machine; and where such jobs do not run.
LIMIT = ("--time=2", "--exclude=node[1-9]")


@pytest.fixture(scope="module")
def whole(new_slurm: NewSlurm) -> Slurm:
    return new_slurm(nodes=11, KillWait=20, SlurmdTimeout=20)


@pytest.fixture
def cluster(whole: Slurm) -> Slurm:
    """All nodes are up and take jobs, whatever the test before has left."""
    for node in whole.nodes:
        if not node.up:
            node.boot()
        elif not processes.running(node.pid, "slurmd"):
            whole.start_slurmd(node)
    whole.is_ready()
    return whole


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobs.alone(tmp_path_factory.mktemp("alone"), batch.spec("job"))


def test_a_killed_worker_a_warning_and_a_killed_node_one_after_the_other(
    cluster: Slurm, alone: Path, tmp_path: Path
) -> None:
    job = Batch(cluster, batch.spec("struck", PAUSE, starts=2, nodes=2), "--exclude=node[10-11]")
    job.until_step(batch.EVERY + 1)
    job.until(lambda: bool(jobs.checkpoints(job.directory)))
    kill(workers(second(job))[-1])
    job.until(lambda: "resuming at step" in job.log)  # in place: torchrun does that
    job.until_step(batch.EVERY + 3)
    cluster.run(["scancel", "--signal=USR1", "--batch", job.id], check=True)
    job.until_start(1)
    assert "stopped at step" in job.log
    kill(script(second(job)))
    # A slurmd that is asked twice to end a start, as on a busy machine, may end the next one as well.
    assert_done_with_the_bits_of_one_machine(job, alone, starts=range(3, 5))
    # By SLURM_RESTART_COUNT the workload knows that it is to be fast.
    again = jobs.ddpgen(
        "reproduce",
        job.directory,
        "--procs",
        "3",
        "-o",
        tmp_path / "again",
        SLURM_RESTART_COUNT="2",
    )
    assert again.stdout.startswith("identical: steps 0 to 100, 100 losses and "), again.stderr


def test_a_requeue_by_hand_and_a_kill_of_the_first_node(cluster: Slurm, alone: Path) -> None:
    job = Batch(cluster, batch.spec("first", PAUSE, starts=2, nodes=2), "--exclude=node[10-11]")
    job.until_step(batch.EVERY + 1)
    cluster.run(["scontrol", "requeue", job.id], check=True)
    job.until_start(1)
    # Here the other node's torchrun loses its store and ends with 1, and which of the two comes first is open.
    kill(script(job.cluster.node(job.nodes[0])))
    assert_done_with_the_bits_of_one_machine(job, alone, starts=range(3, 5))


def test_nodes_and_daemons_that_are_lost(cluster: Slurm, alone: Path) -> None:
    # Slurm does not know yet that this one is down, and takes it.
    cluster.node("node2").power_off()
    early = Batch(cluster, batch.spec("early", nodes=2), "--exclude=node[4-11]")
    late = Batch(
        cluster,
        batch.spec("late", LONG_PAUSE, tier={"nodes": "2..3"}),
        "--exclude=node[1-3],node[7-11]",
    )
    # Its processes wait for each other for longer than this story lasts.
    patient = {"timeout": "60s", "collective_timeout": "300s"}
    wanted = batch.spec("fenced", PAUSE, nodes=2, rendezvous=patient)
    fenced = Batch(cluster, wanted, "--exclude=node[1-6],node[10-11]")
    for job in (late, fenced):
        job.until_step(3)
    assert late.nodes == ["node4", "node5", "node6"]
    cluster.node("node4").power_off()
    # What runs on this one is told to end by nobody: neither by the slurmd that is dead, nor by the other
    # node, which it does not hear.
    lost = second(fenced)
    cluster.kill_slurmd(lost)
    lost.drop(1024, 65534, direction="both")
    assert workers(lost)

    assert_done_with_the_bits_of_one_machine(fenced, alone, starts=2)
    training = [each for each in lost.processes() if "train" in each.command]
    assert processes.outlasting(training, 30) == []
    said = (fenced.directory / "nodes" / lost.name / "status").read_text()
    assert f"a later start of Slurm job {fenced.id} has taken over" in said
    assert_done_with_the_bits_of_one_machine(late, alone, starts=2)
    assert "3 processes on 3 hosts" in late.log
    assert "2 processes on 2 hosts" in late.log
    assert early.ended() == ("COMPLETED", "0:0"), early.log
    assert early.nodes == ["node1", "node3"]
    # srun named the first one, the second had the job's supervisor, and for the third Slurm requeued the job.
    for job, name in ((early, "node2"), (late, "node4"), (fenced, lost.name)):
        faults = bad_nodes.read(job.directory / bad_nodes.FILE)
        assert [fault.node for fault in faults] == [name], job.log
    lost.clear_firewall()


def test_a_time_limit_without_a_warning(cluster: Slurm, alone: Path) -> None:
    # CONT is no warning: it learns of its limit when that has been reached.
    job = Batch(cluster, batch.spec("unwarned", LONG_PAUSE), "--signal=CONT@1", *LIMIT)
    assert_done_with_the_bits_of_one_machine(job, alone, starts=range(2, 6))
    assert "DUE TO TIME LIMIT" in job.log


def second(job: Batch) -> Machine:
    """Its second node: neither the batch script nor rank 0 of a fixed numbering is there."""
    return job.cluster.node(job.nodes[1])


def workers(node: Machine) -> list[int]:
    """Not torchrun, whose command line holds theirs."""
    return [each.pid for each in node.processes() if b"LOCAL_RANK" in batch.environment(each.pid)]


def script(node: Machine) -> int:
    """What srun started there."""
    found = [each.pid for each in node.processes() if "slurm-node" in each.command]
    return next(pid for pid in found if processes.program(processes.parent(pid)) == "slurmstepd")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
