"""A job of Slurm from submission to end by `ddpgen` alone: on the login node, and from a laptop over ssh."""

from __future__ import annotations

import re
import signal
import time

import pytest
import yaml

from tests.real import batch, jobs, planted
from tests.real.conftest import NewSlurm
from tests.real.desk import Desk, Said
from tests.real.rig.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="login-node", marks=pytest.mark.nightly),
        pytest.param(True, id="laptop"),
    ],
)
def desk(
    request: pytest.FixtureRequest, new_slurm: NewSlurm, tmp_path_factory: pytest.TempPathFactory
) -> Desk:
    """On a login node of a cluster without accounting that soon forgets a job; away from one with."""
    cluster = new_slurm(nodes=2, accounting=request.param, MinJobAge=60)
    return Desk(cluster, tmp_path_factory.mktemp("desk"), request.param)


@pytest.fixture
def cluster(desk: Desk) -> Slurm:
    return desk.cluster


def test_a_job_that_would_wait_for_ever_is_refused_with_the_profile_of_the_site(
    desk: Desk, cluster: Slurm
) -> None:
    job = cluster.sbatch("--time=180", "--wrap=true")
    cluster.when(job, lambda shown: shown.get("Reason") == "PartitionTimeLimit")
    cluster.run(["scancel", job])

    desk.sit_down("never", time="3h")
    written = desk.types(
        "site", "-o", "rig.yaml", *(["--login=ctl"] if desk.login else []), spec=()
    )
    assert written.code == 0, written.err
    profiles = desk.here / ".ddpgen"
    profiles.mkdir()
    (desk.here / "rig.yaml").rename(profiles / "rig.yaml")
    slurm = yaml.safe_load((profiles / "rig.yaml").read_text())["targets"]["slurm"]
    assert (slurm["partition"], slurm["gpu_request"]) == ("work", "gpus-per-node")
    assert slurm["limits"]["max_array_size"] == 1001
    partitions = {each["name"]: each for each in slurm["limits"]["partitions"]}
    assert {*partitions} == {"work", "high", "low", "lowc", "lowg"}
    nodes = {"count": 2, "cpus": 32, "mem": "32000M", "gpus": 4, "gpu_type": "toy"}
    assert partitions["work"] == {"name": "work", "time": "2h", "nodes": [nodes]}
    assert ("sacctmgr" in written.err) != desk.login

    def validated(*fields: str) -> Said:
        options = [word for field in fields for word in ("--set", field)]
        return desk.types("validate", "--target=slurm", "--profile=rig", *options)

    slow = validated()
    assert slow.code == 65
    assert "job.yaml:" in slow.err
    assert "targets.slurm.time: 3h is more than work's limit of 2h" in slow.err
    fits = "targets.slurm.time=2h"
    assert validated(fits).code == 0
    assert "targets.slurm.nodes: work has 2 node(s)" in validated(fits, "targets.slurm.nodes=3").err
    many = validated(fits, "gpus_per_node=8", "procs_per_node=1")
    assert "no partition has 8 GPUs a node" in many.err


def test_a_job_is_launched_stopped_launched_again_and_done(
    desk: Desk, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "away" if desk.login else "near"
    # On the login node all programs are started by the rig, which would put the variable into an argument.
    secrets = planted.field(f"{cluster.shared}/token") if desk.login else ()
    token = cluster.rig.shared / "token"
    desk.sit_down(name, secrets)
    kept = desk.there / "checkpoints" / name
    if secrets:
        missing = desk.types("launch", "--target", "slurm")
        assert missing.code == 69
        assert (
            "the secret HF_TOKEN is not in your environment, or is empty there; export it"
            in missing.err
        )
        planted.plant(token, batch.access.UID)
        for variable, value in planted.IN_ENVIRONMENT.items():
            monkeypatch.setenv(variable, value)
    with planted.in_no_argument():
        launched = desk.types("launch", "--target", "slurm")
        assert launched.code == 0, launched.err
        first = launched.out.strip()
        assert "sbatch: Job" in launched.err
        told = desk.until("status", r"(?m)^  step: +[1-9]").out
        assert planted.workers() == (2 if secrets else 0)
    assert re.search(rf"(?m)^{first} +RUNNING +node\[1-2\]", told), told
    assert "\n  running\n" in told
    stopped = desk.types("stop")
    said = f"{first}: asked for a clean stop; it will not be requeued\n"
    assert stopped == Said(0, said, ""), stopped
    assert cluster.ended(first) == ("FAILED", "75:0"), cluster.log(first)
    ended = desk.until("status", r"exit code 75: it was stopped|does not know")
    assert re.search(r"\n  stopped at step [1-9]", ended.out), ended.out

    again = desk.types("launch", "--target", "slurm")
    assert again.code == 0, again.err
    second = again.out.strip()
    cluster.until(second, "RUNNING")
    if desk.login:
        follow_for_a_while(desk)
        watching = desk.begins("status", "--watch", "--interval=2")
        assert watching.stdout is not None
        begun = watching.stdout.readline() + watching.stdout.readline()
        assert re.fullmatch(rf".* {second} RUNNING\n.*/{name}: running, step .*\n", begun), begun
    (cluster.rig.shared / f"hurry-{name}").touch()
    assert cluster.ended(second) == ("COMPLETED", "0:0"), cluster.log(second)
    assert jobs.rows(kept)[-1]["step"] == batch.STEPS
    if desk.login:
        out, err = watching.communicate(timeout=60)
        assert (watching.returncode, err) == (0, ""), err
        assert f" {second} COMPLETED\n" in out
        assert f"/{name}: done at step {batch.STEPS}, step {batch.STEPS} of " in out
    shown = desk.types("logs", "--lines=1000")
    assert shown.code == 0, shown
    assert f"done at step {batch.STEPS}" in shown.out + shown.err
    assert f"logs/{name}-{second}.log" in shown.err
    assert (desk.there / "logs" / f"{name}-{second}.log").is_file()
    if secrets:
        assert planted.in_files(cluster.rig.shared, desk.here) == [token]
    nothing = desk.types("stop")
    assert nothing.out.startswith("nothing to stop: "), nothing
    assert not (kept / "stop").exists()


def follow_for_a_while(desk: Desk) -> None:
    """Ctrl-C ends it, and nothing of it stays on the login node."""
    following = desk.begins("logs", "--follow")
    assert following.stdout is not None
    with following.stdout:
        assert any("step " in line for line in following.stdout)
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130
    deadline = time.monotonic() + 20
    while tails := [p for p in desk.cluster.login.processes() if "tail" in str(p)]:
        assert time.monotonic() < deadline, tails
        time.sleep(0.1)


def test_a_job_that_waits_is_taken_out_of_the_queue(desk: Desk, cluster: Slurm) -> None:
    desk.sit_down("later", extra=["--begin=now+1hour"])
    launched = desk.types("launch", "--target", "slurm")
    assert launched.code == 0, launched.err
    number = launched.out.strip()
    assert re.search(rf"(?m)^{number} +PENDING .*BeginTime$", desk.types("status").out)
    missing = desk.types("logs")
    assert missing.code == 66, missing
    assert f"is not there yet: job {number} is PENDING (BeginTime)" in missing.err
    assert desk.types("stop") == Said(0, f"taken out of the queue: {number}\n", "")
    assert cluster.ended(number)[0] == "CANCELLED"


def test_a_refusal_of_sbatch_is_what_sbatch_says(desk: Desk, cluster: Slurm) -> None:
    desk.sit_down("refused", partition="nowhere")
    refused = desk.types("launch", "--target", "slurm")
    assert (refused.code, refused.out) == (69, "")
    assert "invalid partition specified: nowhere" in refused.err
    assert refused.err.endswith("sbatch refuses the job; nothing was submitted\n")
