"""The rig's Slurm cluster: its daemons are real, and jobs leave nothing behind.

The stories of jobs under Slurm build on this. Knows nothing of ddpgen.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.real.rig import RigError
from tests.real.rig.slurm import Slurm, SlurmError
from tests.real.rig.tools import wait

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(120)]

PATIENCE_S = 30.0


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
    wait(lambda: cluster.run(sacct).stdout == "COMPLETED\n", PATIENCE_S, AssertionError)


def test_how_a_job_failed_is_told_and_what_sbatch_refuses_too(cluster: Slurm) -> None:
    job = cluster.sbatch("--wrap", "exit 3")
    assert cluster.ended(job) == ("FAILED", "3:0")
    with pytest.raises(SlurmError, match="invalid partition"):
        cluster.sbatch("--partition=nowhere", "--wrap", "true")
    with pytest.raises(SlurmError, match=f"job {job} is still"):
        cluster.until(job, "RUNNING", timeout=0)


def test_a_process_whose_parent_has_died_does_not_outlive_its_job(cluster: Slurm) -> None:
    job = cluster.sbatch("--nodes=2", "--wrap", "srun bash -c '(setsid sleep 300 &)'")
    assert cluster.ended(job, timeout=PATIENCE_S)[0] == "COMPLETED"
    assert cluster.rig.strays(within=3) == []


def test_a_job_goes_on_without_slurmd_and_is_over_when_that_is_back(cluster: Slurm) -> None:
    job = cluster.sbatch("--wrap", "echo begun; until [ -e /shared/go ]; do sleep 0.1; done")
    cluster.wait_log(job, "begun")
    node = cluster.node(cluster.show(job)["BatchHost"])
    cluster.kill_slurmd(node)
    assert cluster.show(job)["JobState"] == "RUNNING"
    (cluster.rig.shared / "go").touch()
    wait(lambda: not cluster.rig.strays(within=0), PATIENCE_S, AssertionError)
    assert cluster.show(job)["JobState"] == "COMPLETING"
    cluster.start_slurmd(node)
    assert cluster.ended(job) == ("COMPLETED", "0:0")
    cluster.is_ready()


def test_a_cluster_that_cannot_come_up_says_what_its_daemons_say(rig_possible: None) -> None:
    # slurmd as it starts, or slurmctld in its log: with a daemon that has gone to the background.
    with pytest.raises(RigError, match="select/nonsense"):
        Slurm(nodes=1, SelectType="select/nonsense").start()
