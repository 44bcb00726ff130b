"""The rig's Slurm cluster: its daemons are real, its faults do what they say, and jobs leave nothing.

The stories of jobs under Slurm build on this. Knows nothing of ddpgen.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.real.rig import RigError
from tests.real.rig.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(120)]

PATIENCE_S = 30.0
# Tells what it is on the first start, and on every later one only that; waits to be ended on the first.
COMES_BACK = """#!/bin/bash
echo "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"
[[ ${SLURM_RESTART_COUNT:-0} -gt 0 ]] || srun sleep 300
"""


@pytest.fixture(scope="module")
def cluster(new_slurm: Callable[..., Slurm]) -> Slurm:
    return new_slurm(nodes=2, accounting=True, KillWait=2)


def test_a_job_runs_on_nodes_with_names_and_gpus_of_their_own_and_is_accounted_for(
    cluster: Slurm,
) -> None:
    told = 'echo "$(hostname) $(id -un) $CUDA_VISIBLE_DEVICES" && touch "/shared/$(hostname)"'
    asked = ("--nodes=2", "--gpus-per-node=2", "--output=%x-%j.log", "--job-name=two words")
    job = cluster.sbatch(*asked, "--wrap", f"srun bash -c '{told}'")
    assert cluster.ended(job) == ("COMPLETED", "0:0"), cluster.log(job)
    assert sorted(cluster.log(job).split("\n")) == ["", "node1 trainer 0,1", "node2 trainer 0,1"]
    assert cluster.show(job)["JobName"] == "two words"
    assert {machine.nic for machine in cluster.rig} == {"eth0", "enp1s0", "eth7"}
    for node in cluster.nodes:
        assert (cluster.rig.shared / node.name).exists()
    sacct = ["sacct", "-X", "-n", "-P", "-o", "State", "-j", job]
    until(lambda: cluster.run(sacct).stdout == "COMPLETED\n")


def test_a_process_whose_parent_has_died_does_not_outlive_its_job(cluster: Slurm) -> None:
    job = cluster.sbatch("--nodes=2", "--wrap", "srun bash -c '(setsid sleep 300 &)'")
    assert cluster.ended(job, timeout=PATIENCE_S)[0] == "COMPLETED"
    assert cluster.rig.strays(within=3) == []


def test_a_job_in_a_higher_partition_takes_the_nodes_of_lower_ones(cluster: Slurm) -> None:
    back = cluster.sbatch("-p", "low", "-w", "node1", "--exclusive", stdin=COMES_BACK)
    gone = cluster.sbatch("-p", "lowc", "-w", "node2", "--exclusive", stdin=COMES_BACK)
    cluster.wait_log(back, "start 0")
    cluster.wait_log(gone, "start 0")
    high = cluster.sbatch("-p", "high", "--nodes=2", "--exclusive", "--wrap", "true")
    assert cluster.ended(high) == ("COMPLETED", "0:0")
    assert cluster.ended(gone)[0] == "PREEMPTED"
    assert cluster.ended(back) == ("COMPLETED", "0:0")
    assert cluster.show(back)["Restarts"] == "1"


def test_a_node_that_lost_its_power_takes_jobs_again_once_it_is_up(cluster: Slurm) -> None:
    cluster.nodes[1].power_off()
    cluster.nodes[1].boot()
    cluster.is_ready()
    job = cluster.sbatch("--nodes=2", "--wrap", "srun hostname")
    assert cluster.ended(job) == ("COMPLETED", "0:0"), cluster.log(job)


def test_a_job_goes_on_without_slurmd_and_is_over_when_that_is_back(cluster: Slurm) -> None:
    job = cluster.sbatch("--wrap", "echo begun; until [ -e /shared/go ]; do sleep 0.1; done")
    cluster.wait_log(job, "begun")
    node = cluster.node(cluster.show(job)["BatchHost"])
    cluster.kill_slurmd(node)
    assert cluster.show(job)["JobState"] == "RUNNING"
    (cluster.rig.shared / "go").touch()
    until(lambda: not stray(cluster))
    assert cluster.show(job)["JobState"] == "COMPLETING"
    cluster.start_slurmd(node)
    assert cluster.ended(job) == ("COMPLETED", "0:0")
    cluster.is_ready()


def test_a_cluster_that_cannot_come_up_says_what_its_daemons_say(rig_possible: None) -> None:
    # slurmd as it starts, or slurmctld in its log: with a daemon that has gone to the background.
    with pytest.raises(RigError, match="select/nonsense"):
        Slurm(nodes=1, SelectType="select/nonsense").start()


def stray(cluster: Slurm) -> list[str]:
    return [each.command for each in cluster.rig.strays(within=0)]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)
