"""Jobs under Slurm: every shape, twenty at once, odd names, what sbatch accepts; and the edges of a job's
life: before its training begins, between its starts, beside others."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.real import batch, jobs
from tests.real.batch import Batch, assert_done_with_the_bits_of_one_machine
from tests.real.conftest import NewSlurm
from tests.real.rig import access
from tests.real.rig.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
PAUSE, LONG_PAUSE = 0.05, 0.25
EXAMPLES = [
    path
    for path in sorted((jobs.ROOT / "examples").glob("*.yaml"))
    if "slurm" in yaml.safe_load(path.read_text()).get("targets", {})
]
AT_ONCE = 20


@pytest.fixture(scope="module")
def cluster(new_slurm: NewSlurm) -> Slurm:
    return new_slurm(nodes=4, KillWait=20)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobs.alone(tmp_path_factory.mktemp("alone"), batch.spec("job"))


@pytest.fixture(scope="module", autouse=True)
def warned(cluster: Slurm) -> Batch:
    """A job with a short limit: while it runs, others are looked at."""
    return Batch(
        cluster, batch.spec("warned", LONG_PAUSE), "--signal=B:USR1@20", "--time=2", "-w", "node4"
    )


@pytest.mark.nightly
def test_twenty_jobs_at_once_on_one_node_have_twenty_ports(cluster: Slurm) -> None:
    first = Batch(cluster, batch.spec("ports"), "--hold", "--nodelist=node1")
    ids = []
    for number in range(AT_ONCE):
        access.copy(first.place, cluster.rig.shared / f"at{number}")
        script = f"{cluster.shared}/at{number}/bundle/slurm.sbatch"
        held = ("--hold", "--nodelist=node1", f"--output={cluster.shared}/at{number}.log")
        ids.append(cluster.sbatch(*held, script, "--steps=2"))
    cluster.run(["scancel", first.id], check=True)
    cluster.run(["scontrol", "release", ",".join(ids)], check=True)
    ends = {each: cluster.ended(each) for each in ids}
    wrong = [cluster.log(each) for each, end in ends.items() if end != ("COMPLETED", "0:0")]
    assert wrong == []
    seen = [cluster.show(each) for each in ids]
    assert max(each["StartTime"] for each in seen) < min(each["EndTime"] for each in seen)
    ports = [re.findall(r"meeting at .* port (\d+)", cluster.log(each)) for each in ids]
    assert len({port for (port,) in ports}) == AT_ONCE


@pytest.mark.nightly
def test_a_second_job_for_the_same_directory_is_refused_and_the_first_stays_away_when_cancelled(
    cluster: Slurm,
) -> None:
    # In places that a shell would take apart.
    name = 'it\'s $(touch pwned) "two" & more'
    wanted = batch.spec("twice", 0.2, starts=2)
    wanted["rendezvous"]["launcher"] = "env"
    wanted["checkpoint"]["dir"] = "che'ck $1\tpoints;"
    first = Batch(cluster, wanted, place=name)
    first.until_step(batch.EVERY + 1)
    second = first.submit()
    assert cluster.ended(second) == ("FAILED", "69:0")
    assert f"belongs to Slurm job {first.id}" in cluster.log(second)
    # Between two starts too, when the first one is in the queue again.
    cluster.run(["scontrol", "requeue", first.id], check=True)
    cluster.until(first.id, "PENDING")
    cluster.run(["scontrol", "hold", first.id], check=True)
    third = first.submit()
    assert cluster.ended(third) == ("FAILED", "69:0")
    assert f"belongs to Slurm job {first.id}, which is PENDING" in cluster.log(third)
    cluster.run(["scontrol", "release", first.id], check=True)
    first.until_start(1)
    cluster.run(["scancel", first.id], check=True)
    assert cluster.ended(first.id)[0] == "CANCELLED"
    said = cluster.wait_log(first.id, "cancelled, so it stays out of the queue")
    assert re.search(r"stopped at step \d+; cancelled, so it stays", said), said
    assert (first.directory / "status").read_text().startswith("stopped ")
    assert first.left() == []
    assert not list(cluster.rig.shared.glob("**/pwned"))


@pytest.mark.nightly
def test_a_job_that_fails_stays_failed(cluster: Slurm) -> None:
    failing = Batch(cluster, batch.spec("failing", "no number", restarts=0))
    assert failing.ended() == ("FAILED", "1:0"), failing.log
    assert "TypeError" in failing.log
    told = (failing.directory / "status").read_text()
    assert re.match(r"failed \S+ 0 crashed: rank \d in step 1: TypeError: ", told), told
    assert cluster.show(failing.id)["Restarts"] == "0"
    wrong = failing.submit(arguments=["--step=5"])
    assert cluster.ended(wrong) == ("FAILED", "2:0")


# Each of its first steps fails on rank 0 alone.
CRASHING = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 2))
if dist.get_rank() == 0:
    lsos
dist.barrier()
"""


@pytest.mark.nightly
def test_all_nodes_end_when_a_script_has_crashed_for_good(cluster: Slurm) -> None:
    wanted = batch.spec("twice", nodes=2)
    wanted["train"] = {"script": "loop.py"}
    job = Batch(cluster, wanted, code={"loop.py": CRASHING})
    job.until(lambda: "crashed twice in the same way" in job.log)
    began = time.monotonic()
    assert job.ended() == ("FAILED", "1:0"), job.log
    assert time.monotonic() - began < 100  # torchrun's exit barrier takes 300 s
    last = job.log.rstrip().splitlines()[-1]
    assert "failed: crashed twice in the same way before its first step: NameError" in last


@pytest.mark.nightly
def test_the_example_runs_on_what_is_free(cluster: Slurm) -> None:
    wanted = yaml.safe_load((jobs.ROOT / "examples" / "cluster.yaml").read_text())
    wanted = {**wanted, "python": sys.executable}
    job = Batch(cluster, wanted, "--exclude=node4", arguments=["--steps=12", "--log-every=1"])
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert "6 processes on 3 hosts" in job.log
    losses = [row["loss"] for row in jobs.rows(job.directory)]
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_slurm_accepts_every_example(cluster: Slurm, tmp_path: Path, example: Path) -> None:
    assert refusal(cluster, tmp_path, yaml.safe_load(example.read_text())) == ""


@pytest.mark.parametrize(
    "tier",
    [
        {"gpu_request": "gpus-per-node"},
        {"gpu_request": "gpus-per-node", "gpu_type": "toy"},
        {"gpu_request": "gres", "gpu_type": "toy"},
        {"gpu_request": "gpus-per-task"},
        {"gpu_request": "none", "exclusive": True},
    ],
)
def test_slurm_accepts_each_way_to_ask_for_gpus(
    cluster: Slurm, tmp_path: Path, tier: dict[str, Any]
) -> None:
    spec = batch.spec("gpus", nodes=2, procs_per_node=3, gpus_per_node=3, tier=tier)
    assert refusal(cluster, tmp_path, spec) == ""


def test_slurm_refuses_gpus_that_no_node_has(cluster: Slurm, tmp_path: Path) -> None:
    tier = {"gpu_type": "a100"}
    spec = batch.spec("gpus", procs_per_node=4, gpus_per_node=4, tier=tier)
    assert "not available" in refusal(cluster, tmp_path, spec)


def refusal(cluster: Slurm, place: Path, spec: dict[str, Any]) -> str:
    """What sbatch has against it."""
    bundle = jobs.render(place, spec, target="slurm")
    text = (bundle / "slurm.sbatch").read_text()
    done = cluster.run(["sbatch", "--test-only"], stdin=text)
    return done.stderr if done.returncode else ""


def test_a_node_that_cannot_start_ends_the_job_for_good(cluster: Slurm) -> None:
    # srun ends the other node's script by a TERM, as a preemption would.
    setup = 'if [ "$SLURM_NODEID" = 1 ]; then false; else sleep 20; fi'
    job = Batch(cluster, batch.spec("cannot", nodes=2, tier={"setup": [setup]}))
    assert job.ended() == ("FAILED", "69:0"), job.log
    assert cluster.show(job.id)["Restarts"] == "0"
    assert "setup of the spec failed" in job.log
    assert not (job.directory / "slurm-job").exists()


@pytest.mark.nightly
def test_a_check_shows_each_fault_once_and_passes_beside_the_running_job(cluster: Slurm) -> None:
    job = Batch(cluster, batch.spec("beside", LONG_PAUSE, nodes=2, tier={"time": "0:02:00"}))
    job.until_step(1)
    check = job.submit(arguments=["--preflight"])
    python = {"interpreter": sys.executable, "activate": ["ulimit -n 40"]}
    wanted = batch.spec("files", nodes=2, python=python)
    bad = Batch(cluster, wanted, arguments=["--preflight"])
    assert cluster.ended(check) == ("COMPLETED", "0:0"), cluster.log(check)
    notes = re.findall(r"^note .*", cluster.log(check), re.MULTILINE)
    assert len(notes) == 1, cluster.log(check)
    assert f"is held by Slurm job {job.id}, job 'beside'" in notes[0]
    assert "2 hosts can start the job when the live one has ended" in cluster.log(check)
    cluster.run(["scancel", job.id], check=True)
    assert bad.ended() == ("FAILED", "69:0"), bad.log
    assert len(re.findall(r"^error +LIM001 +node", bad.log, re.MULTILINE)) == 2, bad.log
    assert bad.log.splitlines()[-1].endswith("LIM001 on node2; nothing was started"), bad.log


def test_a_higher_partition_takes_the_nodes_away(cluster: Slurm, alone: Path) -> None:
    # By requeue, by cancel, by cancel after a grace time. Slurm's signals come by way of torchrun once.
    lower = {"low": ("node1", "env"), "lowc": ("node2", "torchrun"), "lowg": ("node3", "env")}
    taken = []
    for name, (node, launcher) in lower.items():
        wanted = batch.spec(f"in-{name}", 0.15)
        wanted["rendezvous"]["launcher"] = launcher
        taken.append(Batch(cluster, wanted, "-p", name, "-w", node, "--exclusive"))
    for job in taken:
        job.until_step(3)
    wanted = ("-p", "high", "-w", "node[1-3]", "--nodes=3", "--exclusive")
    higher = cluster.sbatch(*wanted, "--wrap", "true")
    assert cluster.ended(higher) == ("COMPLETED", "0:0")
    for job in taken:
        assert_done_with_the_bits_of_one_machine(job, alone, starts=2)


@pytest.mark.nightly
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
def test_the_warning_of_other_launchers_is_one_here(cluster: Slurm, alone: Path) -> None:
    """USR2, which a user's SBATCH_SIGNAL may ask for, is taken as USR1; HUP is not heard. The job's name looks like
    what Slurm says of a job that it has put back into the queue."""
    options = ("--signal=B:USR2@60", "--job-name=x JobState=X Restarts=1")
    job = Batch(cluster, batch.spec("job", PAUSE), *options, place="usr2")
    job.until_step(10)
    for where in ("--batch", "--full"):
        cluster.run(["scancel", "--signal=HUP", where, job.id], check=True)
    reached = job.step()
    job.until_step(reached + 5)
    assert cluster.show(job.id)["JobState"] == "RUNNING"
    cluster.run(["scancel", "--signal=USR2", "--batch", job.id], check=True)
    cluster.until(job.id, "PENDING")
    assert "USR2 from Slurm: asking for a clean stop" in job.log
    job.until_start(1)
    cluster.run(["scancel", "--signal=USR2", "--full", job.id], check=True)
    assert_done_with_the_bits_of_one_machine(job, alone, starts=3)


def test_a_script_runs_in_its_own_bundle_alone(cluster: Slurm) -> None:
    """Copied away, piped to sbatch in another bundle, and where scontrol is not there."""
    job = Batch(cluster, batch.spec("own"), "--hold", arguments=["--preflight"])
    other = Batch(cluster, batch.spec("other"), "--hold", arguments=["--preflight"])
    cluster.run(["scancel", job.id, other.id], check=True)
    copy, away = f"{cluster.shared}/own.sbatch", f"{other.inside}/bundle"
    cluster.run(["cp", f"{job.inside}/bundle/slurm.sbatch", copy], check=True)
    few = f"{cluster.shared}/few"
    tools = "bash readlink cmp grep sleep"
    words = f'mkdir {few}; for t in {tools}; do ln -s "$(type -P $t)" {few}/; done'
    cluster.run(["bash", "-c", words], check=True)
    piped = cluster.run(["bash", "-c", f"sbatch --parsable <{copy}"], cwd=away).stdout.strip()
    submitted = {
        cluster.sbatch(copy, cwd=away): f"{cluster.shared} is not the bundle of this script",
        piped: f"{away} is not the bundle of this script",
        cluster.sbatch(
            f"--export=PATH={few}", f"{job.inside}/bundle/slurm.sbatch", cwd=away
        ): "scontrol: command not found",
    }
    for number, words in submitted.items():
        assert cluster.ended(number) == ("FAILED", "69:0"), cluster.log(number)
        assert words in cluster.log(number)
        assert "submit slurm.sbatch inside its bundle" in cluster.log(number)
    there = ["bash", "-c", f"sbatch --parsable --export=PATH={few} slurm.sbatch --preflight"]
    number = cluster.run(there, cwd=f"{job.inside}/bundle").stdout.strip()
    assert cluster.ended(number) == ("FAILED", "69:0"), cluster.log(number)
    assert "scontrol does not name the nodes of this job" in cluster.log(number)


@pytest.mark.nightly
def test_a_stop_made_in_the_queue_ends_the_job_there(cluster: Slurm) -> None:
    job = Batch(cluster, batch.spec("inqueue", PAUSE))
    job.until_step(3)
    cluster.run(["scancel", "--signal=USR1", "--batch", job.id], check=True)
    cluster.until(job.id, "PENDING")
    (job.directory / "stop").touch()
    assert cluster.ended(job.id) == ("FAILED", "75:0"), job.log
    assert "made while the job was in the queue" in job.log
    assert sorted(path.name for path in job.directory.glob("slurm-bundle-*")) == []


@pytest.mark.nightly
def test_a_script_that_knows_nothing_of_slurm_is_requeued_and_goes_on(
    cluster: Slurm, tmp_path: Path
) -> None:
    spec = yaml.safe_load((jobs.ROOT / "examples" / "nanogpt.yaml").read_text())
    code = {"train.py": (jobs.ROOT / "examples" / "code" / "nanogpt" / "train.py").read_text()}
    spec |= {"python": sys.executable, "procs_per_node": 2}
    spec["train"]["args"]["max_iters"] = 6000
    whole = jobs.run(jobs.render(tmp_path, spec, code))
    assert whole.process.returncode == 0, whole.output
    spec |= {"procs_per_node": 1, "nodes": 2, "targets": {"slurm": batch.TIER}}
    job = Batch(cluster, spec, code=code)
    job.until_start(0)
    cluster.run(["scontrol", "requeue", job.id], check=True)  # a clean stop, at its next save
    job.until_start(1)
    cluster.run(
        ["scancel", "--signal=TERM", "--full", job.id], check=True
    )  # all processes are killed
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.launch() == f"slurm.{job.id}.2"
    ckpt = Path("work", "out", "ckpt.pt")
    found = [
        torch.load(place / ckpt, weights_only=True)["model"]
        for place in (job.directory, tmp_path / "checkpoints" / "nanogpt")
    ]
    jobs.assert_same_bits(*found)


def test_a_time_limit_with_a_warning(warned: Batch, alone: Path) -> None:
    # On a busy machine the limit may come a second time.
    assert_done_with_the_bits_of_one_machine(warned, alone, starts=range(2, 6))
    assert "USR1 from Slurm" in warned.log
    assert "DUE TO TIME LIMIT" not in warned.log
