"""A sweep: each point has the bits of a spec written by hand, and a further launch starts only what is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real import batch, fleet, jobs
from tests.real.conftest import NewSlurm
from tests.real.desk import AWAY, Desk
from tests.real.rig import Host, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
RATES, SEEDS = ("1e-2", "3e-3", "1e-3"), (0, 1)
SWEEP = {"train.lr": list(map(float, RATES)), "train.seed": "0..1"}


def by_hand(place: Path, wanted: dict[str, Any], **train: Any) -> Path:
    """The checkpoint directory of a spec with these values, trained alone."""
    alone = {name: value for name, value in wanted.items() if name != "sweep"}
    return jobs.alone(place, {**alone, "train": {**wanted["train"], **train}})


def test_points_on_this_machine_are_trained_one_after_the_other_and_only_what_is_missing_again(
    tmp_path: Path,
) -> None:
    wanted = batch.spec("grid", targets={"local": {"procs_per_node": 1}})
    wanted["train"] |= {"steps": 20, "args": {"pause": 0.1, "until": str(tmp_path / "hurry")}}
    wanted["sweep"] = {"train.seed": "0..2", "train.lr": [0.01]}
    bundle = jobs.render(tmp_path / "job", wanted)
    directory = tmp_path / "job/checkpoints/grid"
    job = jobs.Job(bundle)
    job.until(r"training seed=0; 2 more to come")
    job.until_step(5)
    (tmp_path / "hurry").touch()
    job.until(r"training seed=1; 1 more to come")
    (tmp_path / "hurry").unlink()
    job.until_step(5)
    job.process.terminate()
    assert job.end() == 75, job.output
    assert not (directory / "seed=2").exists()
    (tmp_path / "hurry").touch()
    again = jobs.run(bundle)
    assert again.process.returncode == 0, again.output
    assert re.findall(r"seed=\d is done|training seed=\d|every point", again.output) == [
        "seed=0 is done", "training seed=1", "training seed=2", "every point",
    ]  # fmt: skip
    for seed in range(3):
        expected = jobs.final_tensors(by_hand(tmp_path / f"hand{seed}", wanted, seed=seed))
        jobs.assert_same_bits(jobs.final_tensors(directory / f"seed={seed}"), expected)


@pytest.mark.nightly
def test_a_point_that_fails_is_named_at_the_end_and_the_others_are_trained(tmp_path: Path) -> None:
    wanted = jobs.spec({**batch.TRAIN, "workload": "toy", "steps": 4}, restarts=0)
    wanted["sweep"] = [{"train.seed": 1}, {"train.seed": 2}]
    bundle = jobs.render(tmp_path, wanted)
    broken = tmp_path / "checkpoints/job/seed=1"
    broken.mkdir(parents=True)
    (broken / "metrics.jsonl").mkdir()
    job = jobs.run(bundle)
    assert job.process.returncode == 1, job.output
    assert "the sweep has ended; failed: seed=1" in job.output
    assert (tmp_path / "checkpoints/job/seed=2/status").read_text().startswith("done ")


@pytest.mark.nightly
@pytest.mark.usefixtures("rig_possible")
def test_points_on_hosts_are_trained_one_after_the_other_and_a_done_one_not_again(
    tmp_path: Path,
) -> None:
    wanted = fleet.spec(["desk", "laptop"], {"args": {"pause": 0}, "steps": 20})
    wanted["sweep"] = {"train.lr": [0.1, 0.2]}
    bundle = jobs.render(tmp_path / "hosts", wanted, target="hosts")
    with Rig([Host("desk"), Host("laptop")]) as rig:
        first = fleet.Driver(rig, bundle, "--point=lr=0.2")
        assert first.end() == 0, first.output
        driver = fleet.Driver(rig, bundle)
        assert driver.end() == 0, driver.output
        assert "ddpgen: lr=0.2 is done" in driver.lines
        assert "ddpgen: lr=0.1:" in driver.lines
        assert fleet.ask(rig, bundle, "--fetch").returncode == 0
        shown = fleet.ask(rig, bundle, "--status", "--point=lr=0.2")
        assert shown.returncode == 2, shown  # an operand of --status
        shown = fleet.ask(rig, bundle, "--point=lr=0.2", "--status")
        assert "done at step 20" in shown.stdout, shown
        unknown = fleet.ask(rig, bundle, "--point=lr=7", "--stop")
        assert (unknown.returncode, "the points are lr=0.1, lr=0.2" in unknown.stderr) == (2, True)
    for rate in (0.1, 0.2):
        kept = tmp_path / f"hosts/checkpoints/job/lr={rate}"
        hand = by_hand(tmp_path / str(rate), wanted, lr=rate)
        jobs.assert_same_bits(jobs.final_tensors(kept), jobs.final_tensors(hand))


@pytest.fixture(scope="module")
def desk(new_slurm: NewSlurm, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(new_slurm(nodes=2), tmp_path_factory.mktemp("desk"), login=True)


@pytest.mark.nightly
def test_a_sweep_on_slurm_with_a_profile_goes_through_kills_and_a_preemption(
    desk: Desk, tmp_path: Path
) -> None:
    cluster = desk.cluster
    hurry = cluster.rig.shared / "hurry"
    wanted = batch.spec("grid", code=["paced.py"])
    train = {**wanted.pop("train"), "args": {"pause": 0.1, "until": f"{cluster.shared}/hurry"}}
    del wanted["targets"]
    desk.puts_down({**wanted, "extends": "team.yaml", "sweep": SWEEP, "targets": {"slurm": {"array_parallelism": 6}}})  # fmt: skip
    (desk.here / "team.yaml").write_text(yaml.safe_dump({"train": train}))
    site = {"login": "ctl", "dir": AWAY, "partition": "low", **batch.TIER}
    profiles = desk.here / ".ddpgen"
    profiles.mkdir()
    (profiles / "rig.yaml").write_text(yaml.safe_dump({"targets": {"slurm": site}}))
    chosen = ("--profile=rig", "--set=train.steps=60")

    def shown(*words: str) -> dict[str, Any]:
        said = desk.types("status", "--json", *words, spec=("build/grid",))
        assert said.code == 0, said
        return {run["point"]: run for run in json.loads(said.out)["runs"]}

    launched = desk.types("launch", "--target=slurm", *chosen)
    assert launched.code == 0, launched.err
    number = launched.out.strip()
    names = [f"lr={float(rate)},seed={seed}" for rate in RATES for seed in SEEDS]
    assert [*shown()] == names
    row = rf"(?m)^{names[5]} +running +\d+ of 60 .* {number}_5 RUNNING$"
    table = desk.until("status", row, spec=("build/grid",)).out
    assert table.endswith("6 points: 6 running\n"), table

    # Two are killed. The jobs of the others are preempted, and come back.
    for index in (1, 4):
        cluster.run(["scancel", "--signal=KILL", "--full", f"{number}_{index}"], check=True)
    urgent = cluster.sbatch("--partition=high", "--nodes=2", "--exclusive", "--wrap=sleep 1")
    cluster.ended(urgent)
    hurry.touch()
    ends = {index: cluster.ended(f"{number}_{index}") for index in range(6)}
    done = [index for index, end in ends.items() if end == ("COMPLETED", "0:0")]
    assert done == [0, 2, 3, 5], ends
    assert {run["state"].split()[0] for n, run in shown().items() if names.index(n) in done} == {"done"}  # fmt: skip

    again = desk.types("launch", "--target=slurm", *chosen)
    assert again.code == 0, again.err
    assert "--array=1,4%6" in again.err
    assert again.err.count(" is done\n") == 4
    second = again.out.strip()
    assert {cluster.ended(f"{second}_{index}") for index in (1, 4)} == {("COMPLETED", "0:0")}
    assert desk.types("status", spec=("build/grid",)).out.endswith("6 points: 6 done\n")
    nothing = desk.types("launch", "--target=slurm", *chosen)
    assert (nothing.code, nothing.out) == (0, ""), nothing
    assert "nothing to start: every point is done" in nothing.err
    one = desk.types(
        "status", "--only=seed=1", f"--only=lr={float(RATES[0])}", spec=("build/grid",)
    ).out
    assert f"checkpoints/grid/{names[1]}:\n  done at step 60" in one

    for name, (rate, seed) in zip(names, ((r, s) for r in RATES for s in SEEDS), strict=True):
        hand = by_hand(
            tmp_path / name, {**wanted, "train": {**train, "steps": 60}}, lr=float(rate), seed=seed
        )
        kept = desk.there / "checkpoints/grid" / name
        jobs.assert_same_bits(jobs.final_tensors(kept), jobs.final_tensors(hand))


@pytest.mark.nightly
def test_a_sweep_that_waits_and_runs_is_stopped_as_a_whole(desk: Desk) -> None:
    desk.sit_down("few", array_parallelism=1)
    spec = yaml.safe_load((desk.here / "job.yaml").read_text())
    desk.puts_down({**spec, "sweep": {"train.seed": "0..2"}})
    launched = desk.types("launch", "--target=slurm")
    assert launched.code == 0, launched.err
    number = launched.out.strip()
    desk.until("status", r"(?m)^3 points: 1 running, 2 waiting$")
    stopped = desk.types("stop")
    assert stopped.out.splitlines() == [
        f"seed=2: taken out of the queue: {number}_2",
        f"seed=1: taken out of the queue: {number}_1",
        f"seed=0: {number}_0: asked for a clean stop; it will not be requeued",
    ], stopped.err
    assert desk.cluster.ended(f"{number}_0") == ("FAILED", "75:0")
    assert desk.types("stop").out == "nothing to stop: no point waits or runs\n"
    refused = desk.types("logs")
    assert (refused.code, "--only seed=0" in refused.err) == (2, True), refused
    assert "stopped" in desk.types("logs", "--only=seed=0").out
