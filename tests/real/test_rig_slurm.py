"""The rig's Slurm cluster: its daemons are real, and jobs leave nothing behind.

The stories of jobs under Slurm build on this. Knows nothing of ddpgen.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.real.rig import RigError
from tests.real.rig.slurm import Slurm
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


def test_a_process_whose_parent_has_died_does_not_outlive_its_job(cluster: Slurm) -> None:
    job = cluster.sbatch("--nodes=2", "--wrap", "srun bash -c '(setsid sleep 300 &)'")
    assert cluster.ended(job, timeout=PATIENCE_S)[0] == "COMPLETED"
    assert cluster.rig.strays(within=3) == []


def test_a_cluster_that_cannot_come_up_says_what_its_daemons_say(rig_possible: None) -> None:
    # slurmd as it starts, or slurmctld in its log: with a daemon that has gone to the background.
    with pytest.raises(RigError, match="select/nonsense"):
        Slurm(nodes=1, SelectType="select/nonsense").start()
