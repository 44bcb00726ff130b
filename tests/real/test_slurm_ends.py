"""How a start under Slurm ends that never came to train: the code, the last line and the status name the cause."""

from __future__ import annotations

import re
import sys

import pytest

from tests.real import batch, jobs
from tests.real.batch import Batch
from tests.real.conftest import NewSlurm
from tests.real.rig import Machine
from tests.real.rig.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def cluster(new_slurm: NewSlurm) -> Slurm:
    prolog = {"/etc/slurm/prolog": ("#!/bin/sh\n[ ! -e /opt/broken ]\n", 0o755)}
    return new_slurm(nodes=2, KillWait=10, files=prolog, TaskProlog="/etc/slurm/prolog")


def status(job: Batch) -> str:
    return (job.directory / "status").read_text()


def last_line(job: Batch) -> str:
    """The last line of ddpgen's, without time and host."""
    lines = [line for line in job.log.splitlines() if line.startswith("ddpgen ")]
    return lines[-1].split(": ", 1)[1]


def assert_free(job: Batch) -> None:
    """Nothing keeps another job from the directory, and no copy of the bundle is left."""
    names = [path.name for path in job.directory.iterdir()]
    assert [name for name in names if name == "slurm-job" or "bundle-" in name] == []


@pytest.mark.nightly
def test_a_node_whose_gpu_driver_fails_twice_is_left_out_of_the_third_start(
    cluster: Slurm,
) -> None:
    smi = "#!/bin/sh\necho Unable to determine the device handle\nexit 9\n"
    write(cluster.nodes[0], "/usr/local/bin/nvidia-smi", smi)
    # The rig's torch knows no GPU.
    ignored = {"ignore": ["GPU001"]}
    wanted = batch.spec("gpu", preflight=ignored, gpus_per_node=1, backend="gloo")
    wanted["train"]["steps"] = 10
    job = Batch(cluster, wanted)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    starts = re.findall(r": start (\d): 1 node\(s\), (\w+)", job.log)
    assert starts == [("1", "node1"), ("2", "node1"), ("3", "node2")], job.log
    assert "node1 is left out from now on: GPU006: the GPU driver does not answer" in job.log
    lines = (job.directory / "bad-nodes").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["#", "node1", "node1"]
    assert cluster.show(job.id)["ExcNodeList"] == "node1"


@pytest.mark.nightly
def test_a_job_submitted_from_inside_an_allocation_gets_what_it_asks_for(cluster: Slurm) -> None:
    own = {"mem": "1G", "extra": ["--hint=nomultithread", "--distribution=block"]}
    wanted = batch.spec("inside", tier=own)
    wanted["train"]["steps"] = 10
    job = Batch(cluster, wanted, "--hold")
    cluster.run(["scancel", job.id], check=True)
    tastes = ("SLURM_EXCLUSIVE=1", "SLURM_TIMELIMIT=1", "SLURM_STDOUTMODE=none", "SLURM_LABELIO=1")
    outer = ("salloc", "-n1", "--mem-per-cpu=200", "--gpus-per-task=1", "srun")
    done = cluster.run(
        [*outer, "env", *tastes, "sbatch", "--parsable", "slurm.sbatch"],
        cwd=f"{job.inside}/bundle",
    )
    job.id = done.stdout.strip()
    assert job.id, done.stderr
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert jobs.rows(job.directory)[-1]["step"] == 10
    assert "\nstep 10/10 " in job.log


def test_a_node_that_refuses_in_the_shell_ends_the_job_with_its_words(cluster: Slurm) -> None:
    # On the first node it is a shell, which srun's TERM ends: 143, the highest of the exit codes.
    slow = f'#!/bin/bash\n[ -z "$SLURM_STEP_ID" ] || sleep 20\nexec {sys.executable} "$@"\n'
    write(cluster.nodes[0], "/opt/python", slow)
    job = Batch(cluster, batch.spec("shell", nodes=2, python="/opt/python"))
    assert job.ended() == ("FAILED", "69:0"), job.log
    assert cluster.show(job.id)["Restarts"] == "0"
    # From the file: srun may drop the line that a node has printed last, when it ends the step.
    cause = "node2 ended this start (exit code 69): there is no Python called /opt/python on node2"
    assert last_line(job).startswith(cause), job.log
    assert status(job).startswith(f"failed slurm.{job.id}.0 0 {cause}")
    assert_free(job)


@pytest.mark.nightly
def test_a_node_whose_prolog_fails_ends_the_job_with_its_words(cluster: Slurm) -> None:
    broken = cluster.nodes[1].path("/opt/broken")
    broken.touch()
    job = Batch(cluster, batch.spec("prolog", nodes=2))
    assert job.ended() == ("FAILED", "69:0"), job.log
    # srun drops what slurmd's part of a task has printed, now and then.
    printed = re.search(r"error: (.*rolog failed.*)", job.log)
    unheard = "its last lines are before this one, or in the log of slurmd on node2"
    cause = printed[1] if printed else unheard
    assert last_line(job) == f"node2 ended this start (exit code 1): {cause}", job.log
    assert status(job) == f"failed slurm.{job.id}.0 0 {last_line(job)}\n"
    assert_free(job)
    broken.unlink()


@pytest.mark.nightly
def test_an_srun_that_refuses_is_final_and_in_its_own_words(cluster: Slurm) -> None:
    pyxis = {"environment": {"container": {"image": "/shared/image.sqsh", "runtime": "pyxis"}}}
    job = Batch(cluster, batch.spec("refused", nodes=2, tier=pyxis))
    assert job.ended() == ("FAILED", "69:0"), job.log
    cause = "srun could not start the nodes: srun: unrecognized option '--container-image="
    assert last_line(job).startswith(cause), job.log
    assert status(job).startswith(f"failed slurm.{job.id}.0 0 {cause}")
    assert_free(job)


def test_a_job_cancelled_before_its_training_is_stopped(cluster: Slurm) -> None:
    job = Batch(cluster, batch.spec("early", nodes=2, tier={"setup": ["echo preparing; sleep 60"]}))
    cluster.wait_log(job.id, "preparing")
    cluster.run(["scancel", job.id], check=True)
    assert cluster.ended(job.id)[0] == "CANCELLED"
    cluster.wait_log(job.id, "cancelled, so it stays out of the queue")
    assert job.left() == []
    assert status(job).startswith(f"stopped slurm.{job.id}.0 0 "), job.log
    assert status(job).endswith("; cancelled\n")
    assert_free(job)


def write(node: Machine, path: str, text: str) -> None:
    inside = node.path(path)
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.write_text(text)
    inside.chmod(0o755)
