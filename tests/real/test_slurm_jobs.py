"""Jobs under Slurm that nobody disturbs: every shape, twenty at once, odd names, and what sbatch accepts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real import batch, jobs
from tests.real.batch import Batch
from tests.real.conftest import NewSlurm
from tests.real.rig.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
EXAMPLES = [
    path
    for path in sorted((jobs.ROOT / "examples").glob("*.yaml"))
    if "slurm" in yaml.safe_load(path.read_text()).get("targets", {})
]
AT_ONCE = 20


@pytest.fixture(scope="module")
def cluster(new_slurm: NewSlurm) -> Slurm:
    return new_slurm(nodes=3)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return batch.alone(tmp_path_factory.mktemp("alone"))


@pytest.mark.nightly
def test_every_shape_gives_the_bits_of_one_machine(cluster: Slurm, alone: Path) -> None:
    shapes = [(nodes, procs) for nodes in (1, 2, 3) for procs in (1, 2)]
    submitted = [
        Batch(cluster, batch.spec(f"shape{nodes}x{procs}", nodes=nodes, procs_per_node=procs))
        for nodes, procs in shapes
    ]
    for (nodes, procs), each in zip(shapes, submitted, strict=True):
        assert each.ended() == ("COMPLETED", "0:0"), each.log
        assert f"{nodes * procs} processes" in each.log
        assert jobs.rows(each.directory)[-1]["step"] == batch.STEPS
        jobs.assert_same_bits(jobs.final_tensors(each.directory), jobs.final_tensors(alone))
    assert cluster.rig.strays(within=30) == []


@pytest.mark.nightly
def test_twenty_jobs_at_once_on_one_node_have_twenty_ports(cluster: Slurm) -> None:
    first = Batch(cluster, batch.spec("ports"), "--hold", "--nodelist=node1")
    ids = []
    for number in range(AT_ONCE):
        batch.copy(first.place, cluster.rig.shared / f"at{number}")
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


def test_a_second_job_for_the_same_directory_is_refused_with_the_number_of_the_first(
    cluster: Slurm, alone: Path
) -> None:
    first = Batch(cluster, batch.spec("twice", 0.2, nodes=2))
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
    batch.assert_done_with_the_bits_of_one_machine(first, alone, starts=2)


def test_names_and_places_that_a_shell_would_take_apart(cluster: Slurm, alone: Path) -> None:
    name = 'it\'s $(touch pwned) "two" & more'
    wanted = batch.spec("odd", nodes=2, checkpoint={"dir": "che'ck $HOME\tpoints;"})
    odd = Batch(cluster, wanted, place=name)
    assert odd.ended() == ("COMPLETED", "0:0"), odd.log
    directory = odd.place / "che'ck $HOME\tpoints;"
    jobs.assert_same_bits(jobs.final_tensors(directory), jobs.final_tensors(alone))
    assert not list(cluster.rig.shared.glob("**/pwned"))


def test_a_job_that_fails_stays_failed(cluster: Slurm) -> None:
    failing = Batch(cluster, batch.spec("failing", "no number", restarts=0))
    assert failing.ended() == ("FAILED", "1:0"), failing.log
    assert "TypeError" in failing.log
    assert cluster.show(failing.id)["Restarts"] == "0"
    wrong = failing.submit(arguments=["--step=5"])
    assert cluster.ended(wrong) == ("FAILED", "2:0")


@pytest.mark.nightly
def test_the_example_runs_on_what_is_free(cluster: Slurm) -> None:
    wanted = yaml.safe_load((jobs.ROOT / "examples" / "cluster.yaml").read_text())
    wanted = {**wanted, "python": sys.executable}
    job = Batch(cluster, wanted, arguments=["--steps=12", "--log-every=1"])
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
