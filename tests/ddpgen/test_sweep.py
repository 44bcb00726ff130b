"""A sweep: the points and their names, the words that each adds to the training, and which points a command means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpgen import api, job
from ddpgen.driver.state import JobState
from ddpgen.errors import OptionRefusedError, SpecInvalidError, TargetUnavailableError, report
from ddpgen.measure import bench, probe
from ddpgen.monitor.record import Following, Launch, read_launches, write_launch
from ddpgen.monitor.report import JobStatus, Report, facts
from ddpgen.site.layers import Chosen
from ddpgen.tiers import points, sweep
from ddpgen.tiers.registry import TIERS
from tests.ddpgen.conftest import Run, ddpgen

TOY = """\
name: grid
procs_per_node: 2
train: {workload: toy, steps: 20, global_batch_size: 8, micro_batch_size: 2}
targets:
  local: {nodes: 1}
  hosts: {hosts: [{name: desk, share: 2}, laptop]}
  slurm: {nodes: 2, time: 10min, array_parallelism: 2}
  sky: {nodes: 2, cpus: 4+, bucket: s3://my-checkpoints, requirements: [torch==2.13.0]}
"""
GRID = "sweep: {train.lr: [1e-2, 1e-3], train.seed: 0..2}\n"

# A sweep, and the names of its points.
NAMES: list[tuple[str, str]] = [
    ("{train.lr: [1e-2, 3e-4], train.seed: 0..1}", "lr=1e-2,seed=0 lr=1e-2,seed=1 lr=3e-4,seed=0 lr=3e-4,seed=1"),
    ("{train.seed: 3..5}", "seed=3 seed=4 seed=5"),
    ("{train.lr: [1e-2, 3e-4], train.steps: 10}", "lr=1e-2 lr=3e-4"),
    ("{train.lr: [1e-2]}", "lr=1e-2"),
    ("{train.grad_clip: [null, 1.0]}", "grad_clip=null grad_clip=1.0"),
    ("{train.args.hidden: [8, 16], train.weight_decay: [0, 0.1]}",
     "hidden=8,weight_decay=0 hidden=8,weight_decay=0.1 hidden=16,weight_decay=0 hidden=16,weight_decay=0.1"),
    ("[{train.lr: 1e-2}, {train.lr: 1e-3, train.seed: 7}]", "lr=1e-2 lr=1e-3,seed=7"),
    ("[{name: small, train.args.hidden: 8}, {train.args.hidden: 16}]", "small hidden=16"),
    ("{train.eval_every: 5 steps, train.best: [{metric: loss}, {metric: accuracy, mode: max}]}", "best=metric-loss best=metric-accuracy+mode-max"),
    ("{train.trackers: [[tensorboard], []]}", "trackers=tensorboard trackers="),
]  # fmt: skip

# A sweep that is wrong, the place of the fault, and the decisive word.
WRONG: list[tuple[str, str, str]] = [
    ("sweep: 3", "sweep", '"3"'),
    ("sweep: {}", "sweep", "empty"),
    ("sweep: []", "sweep", "empty"),
    ("sweep: [3]", "sweep[0]", "a mapping"),
    ("sweep: {train.lr: []}", "sweep.train.lr", "no values"),
    ("sweep: {nodes: [1, 2]}", "sweep.nodes", "all points share"),
    ("sweep: {train: [{}, {}]}", "sweep.train", "all points share"),
    ("sweep: {train.script: [a.py, b.py]}", "sweep.train.script", "same program"),
    ("sweep: {'code[0]': [a, b]}", "sweep.code[0]", "item of a list"),
    ("sweep: {train.lr: [1e-2, -1]}", "sweep.train.lr[1]", "above 0"),
    ("sweep: {train.micro_batch_size: [2, 3]}", "sweep.train.micro_batch_size[1]", "not a multiple"),
    ("sweep: [{}]", "sweep[0]", "is empty"),
    ("sweep: {train.lrr: [1e-2, 1e-3]}", "sweep.train.lrr", "did you mean lr"),
    ("sweep: {train.lr: [1e-2, 1e-2]}", "sweep", "two points"),
    ("sweep: [{name: a, train.lr: 1}, {name: a, train.lr: 2}]", "sweep[1]", "two points"),
    ("sweep: [{name: a/b, train.lr: 1}]", "sweep[0].name", "letters"),
    ("sweep: {train.lr: [1e-2, 1e-3], train.seed: 0..999}", "sweep", "2 × 1000"),
    ("sweep: {train.seed: 0..999999999}", "sweep", "has 1000000000 points"),
    ("sweep: {train.threads: [1, 2]}", "sweep.train.threads[0]", "how processes are started"),
    ("sweep: {train.lr: [1e-2, 0.01]}", "sweep", "are the same training"),
    ("sweep: {train.args.hidden: ['" + "8" * 121 + "', 8]}", "sweep", "too long"),
]  # fmt: skip


WITH_ARRAY = [("sweep: {train.lr: [1, 2]}", "array: 0-3"), ("", "array_parallelism: 2")]


def on_slurm(top: str, tier: str) -> str:
    job_fields = TOY.partition("targets:")[0]
    return f"{job_fields}{top}\ntargets: {{slurm: {{nodes: 2, time: 10min, {tier}}}}}\n"


def load(text: str, *overrides: str) -> dict[str, Any]:
    return job.load("job.yaml", Chosen(None, overrides), text.encode())


def errors(text: str) -> list[str]:
    """The errors of a spec, as `validate` prints them; the warnings of a sound one."""
    try:
        return list(report("job.yaml", job.check([*load(text).values()], Path())))
    except SpecInvalidError as error:
        return list(report("job.yaml", error.findings))


@pytest.mark.parametrize(("text", "names"), NAMES)
def test_a_point_is_called_by_what_differs(text: str, names: str) -> None:
    readings = load(f"{TOY}sweep: {text}\n")
    assert [" ".join(reading.points) for reading in readings.values()] == [names] * 4


@pytest.mark.parametrize(("text", "where", "word"), WRONG)
def test_a_wrong_sweep_is_refused_at_its_place(text: str, where: str, word: str) -> None:
    lines = errors(f"{TOY}{text}\n")
    assert [line for line in lines if f" {where}: " in line and word in line], lines


def test_a_list_has_more_than_a_thousand_points_in_no_spec() -> None:
    items = ", ".join(f"{{train.seed: {seed}}}" for seed in range(1001))
    assert "1001 points" in errors(f"{TOY}sweep: [{items}]\n")[0]


def test_a_sweep_of_a_program_of_words_is_refused() -> None:
    (line,) = errors("name: a\ntrain: {script: module:json.tool}\nsweep: {train.workdir: [a, b]}\n")
    assert "train.args.NAME" in line


def test_an_option_and_a_sweep_of_one_field_contradict_each_other() -> None:
    with pytest.raises(SpecInvalidError) as refused:
        load(TOY + GRID, "train.lr=5")
    assert "--only" in str(refused.value.findings[0].remedy)
    (reading, *_) = load(TOY, "sweep={train.lr: [1, 2]}").values()
    assert [*reading.points] == ["lr=1", "lr=2"]


@pytest.mark.parametrize("tier", TIERS)
def test_a_point_runs_the_command_of_a_spec_that_is_written_by_hand(tier: str) -> None:
    """Words that all points have stay in the artefact; each other word is in points.json."""
    reading = load(TOY + GRID.replace("0..2", "0..2, train.args.hidden: [8, 16]"))[tier]
    swept = sweep.programmed(reading)
    artefact = TIERS[tier].plan(swept).command.program
    listed = json.loads(sweep.listing({tier: swept}))[tier]
    assert len(listed) == 12
    for name, point in listed.items():
        values = dict(part.split("=") for part in name.split(","))
        alone = load(
            TOY, f"train.lr={values['lr']}", f"train.seed={values['seed']}", f"train.args.hidden={values['hidden']}",
        )[tier].job  # fmt: skip
        assert sorted([*artefact, *point["words"]]) == sorted(
            TIERS[tier].plan(alone).command.program
        )
    assert len({point["id"] for point in listed.values()}) == 12


def test_an_id_is_of_the_training_and_not_of_the_shares_of_the_hosts() -> None:
    whole = sweep.programmed(load(TOY + GRID)["hosts"]).points
    even = sweep.programmed(load(TOY.replace(", share: 2", "") + GRID)["hosts"]).points
    longer = sweep.programmed(load(TOY.replace("steps: 20", "steps: 30") + GRID)["hosts"]).points
    assert whole == even
    assert not {p.id for p in whole.values()} & {p.id for p in longer.values()}


def test_a_bundle_keeps_its_points(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TOY + GRID)
    run("render", "job.yaml", "--target", "all")
    jobs = job.bundle_jobs(tmp_path / "build/grid")
    for tier, reading in load(TOY + GRID).items():
        assert jobs[tier].points == sweep.programmed(reading).points
    run("render", "job.yaml", "--target", "all", "--set", "sweep=null")
    assert not job.bundle_jobs(tmp_path / "build/grid")["slurm"].points


def test_an_array_beside_a_sweep_is_refused_and_a_limit_without_one_has_no_effect() -> None:
    (both, *_), (alone, *_) = (errors(on_slurm(top, tier)) for top, tier in WITH_ARRAY)
    assert "array of its own" in both
    assert "without a sweep" in alone


# A script of a sweep, and what it is told of its working directory.
WORKDIRS = [
    ("workdir: /w, args: {lr: 1}", "", "all points of the sweep"),
    (
        "workdir: /w, args: {lr: 1}",
        "nodes: 2\npython: /opt/python\ntargets: {sky: {bucket: s3://bbb, setup: get}}",
        "",
    ),
    ("workdir: /w, args: {lr: 1, out: x}", "", "all points of the sweep"),
    ("args: {lr: 1, out: /scratch/x}", "", ""),
    ("args: {lr: 1, save-dir: '/x/{job}'}", "", ""),
    ("workdir: /w, args: {lr: 1, out: s3://b/x}", "", ""),
    ("workdir: /w, args: {lr: 1, run: x}", "", ""),
    ("args: {lr: 1, out: '{checkpoint_dir}'}", "", ""),
    ("args: {lr: 1, data: /scratch/x}", "", ""),
    ("workdir: /w, args: {lr: 1, to: '{checkpoint_dir}'}", "", ""),
    ("args: {lr: 1}", "", ""),
]


def with_workdir(train: str, top: str) -> str:
    return f"name: a\ntrain: {{script: /t.py, {train}}}\nsweep: {{train.args.lr: [1, 2]}}\n{top}\n"


@pytest.mark.parametrize(("swept", "told_of"), [("outer_lr: [1, 2]", 1), ("out: [/a, /b]", 0)])
def test_a_sweep_over_places_needs_no_directory_for_each_point(swept: str, told_of: int) -> None:
    text = f"name: a\ntrain: {{script: /t.py, workdir: /w}}\nsweep: {{train.args.{swept}}}\n"
    assert len([line for line in errors(text) if "all points of the sweep" in line]) == told_of


@pytest.mark.parametrize(("swept", "told_of"), [("out: [/s/a, /s/b]", 0), ("lr: [1, 2]", 1)])
def test_a_place_that_each_point_has_for_itself(
    swept: str, told_of: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text('torch.save(torch.load(p), f"{args.out}/ckpt.pt")\n')
    train = "train: {script: t.py, args: {out: /s/out, lr: 1}}"
    lines = errors(f"name: a\ncode: t.py\n{train}\nsweep: {{train.args.{swept}}}\n")
    assert len([line for line in lines if "one place for all points" in line]) == told_of


@pytest.mark.parametrize(("train", "top", "word"), WORKDIRS)
def test_a_working_directory_of_all_points_is_a_warning(train: str, top: str, word: str) -> None:
    lines = errors(with_workdir(train, top))
    assert len(lines) == bool(word)
    assert all(word in line for line in lines)


CHOSEN: list[tuple[str, str]] = [
    ("", "lr=1e-2,seed=0 lr=1e-2,seed=1 lr=1e-3,seed=0 lr=1e-3,seed=1"),
    ("lr=1e-2", "lr=1e-2,seed=0 lr=1e-2,seed=1"),
    ("lr=0.01", "lr=1e-2,seed=0 lr=1e-2,seed=1"),
    ("train.lr=.01 seed=1", "lr=1e-2,seed=1"),
    ("lr=1e-3,seed=0", "lr=1e-3,seed=0"),
    ("lr=5", ""),
    ("nodes=2", ""),
]


@pytest.mark.parametrize(("only", "names"), CHOSEN)
def test_only_chooses_points_by_their_values(only: str, names: str) -> None:
    swept = load(TOY + GRID.replace("0..2", "0..1"))["local"].job
    if names:
        assert " ".join(sweep.chosen(swept, only.split())) == names
        return
    with pytest.raises(OptionRefusedError, match="the points are lr=1e-2,seed=0"):
        sweep.chosen(swept, only.split())


def test_only_without_a_sweep_is_refused() -> None:
    assert sweep.chosen(load(TOY)["local"].job, []) == []
    with pytest.raises(OptionRefusedError, match="no sweep"):
        sweep.chosen(load(TOY)["local"].job, ["lr=1"])


# --- following ------------------------------------------------------------------------------------


def at(word: str, step: int = 0, **more: Any) -> JobStatus:
    state = JobState(
        directory_state="yes" if word else "no",
        status=word,
        status_step=step,
        step=step or None,
        **more,
    )
    running = word == "running"
    return JobStatus(
        [Report("/d", state, running)],
        ended=bool(word) and not running,
        jobs="7_1 RUNNING" if running else "",
    )


def test_the_status_of_a_sweep_is_a_table_with_a_row_for_each_point() -> None:
    answers: dict[str, points.Answer] = {
        "lr=1": at("done", 20, loss=0.5, last_step=20), "lr=2": at("running", 7), "lr=3": at(""),
        "lr=4": at("failed", 3, reason="no memory"), "lr=5": TargetUnavailableError("ssh has failed\nmore"),
    }  # fmt: skip
    status = points.together(answers)
    heading, *rows, summary = status.parts
    words = [" ".join(str(row).split()) for row in rows]
    assert heading.split() == ["point", "state", "step", "loss", "job"]  # type: ignore[union-attr]
    assert words == [
        "lr=1 done 20 of 20 0.5000", "lr=2 running 7 7_1 RUNNING", "lr=3 not begun", "lr=4 failed at step 3: no memory 3",
        "lr=5 unknown: ssh has failed",
    ]  # fmt: skip
    assert summary == "5 points: 1 done, 1 running, 1 not begun, 1 failed, 1 unknown"
    assert not status.ended
    runs = facts("slurm", status).runs
    assert [run.get("point") for run in runs] == ["lr=1", "lr=2", "lr=3", "lr=4"]
    assert runs[1].get("job") == "7_1 RUNNING"


def test_a_long_reason_does_not_widen_the_table() -> None:
    status = points.together({"lr=1": at("failed", 3, reason="no memory left " * 20)})
    row = str(status.parts[1])
    assert " failed at step 3: no memory left" in row
    assert len(row) < 90
    assert "…" in row


def test_a_sweep_has_ended_with_its_last_point_and_an_error_of_all_is_the_error() -> None:
    assert points.together({"a": at("done"), "b": at("stopped")}).ended
    with pytest.raises(TargetUnavailableError, match="no ssh"):
        points.together({"a": TargetUnavailableError("no ssh"), "b": TargetUnavailableError("no")})


def test_each_point_has_its_directory_its_place_in_the_bucket_and_its_name_at_skypilot() -> None:
    jobs = {tier: reading.job for tier, reading in load(TOY + GRID).items()}
    name = "lr=1e-2,seed=0"
    assert jobs["slurm"].at_point(name).checkpoint_path == f"checkpoints/grid/{name}"
    sky = jobs["sky"].at_point(name)
    assert (sky.name, sky.bucket.prefix) == ("grid-lr-1e-2-seed-0", f"grid/{name}")
    url = replace(jobs["local"], checkpoint=replace(jobs["local"].checkpoint, dir="s3://b/p/"))
    assert url.at_point(name).checkpoint.url == f"s3://b/p/{name}"


def test_the_ids_of_points_outlive_a_launch_of_others(tmp_path: Path) -> None:
    bundle = tmp_path / "grid"
    write_launch(
        bundle,
        Launch("slurm", "7", "", "/logs/grid-7_*.log", points={"lr=1": "7_0", "lr=2": "7_1"}),
    )
    write_launch(bundle, Launch("slurm", "9", "", "/logs/grid-9_*.log", points={"lr=2": "9_1"}))
    launched = read_launches(bundle)["slurm"]
    swept = replace(load(TOY + "sweep: {train.lr: [1, 2, 3]}\n")["slurm"].job)
    runs = Following(swept, "slurm", bundle, launched).points
    seen = {
        name: run.launched and (run.launched.job, run.launched.log) for name, run in runs.items()
    }
    assert seen == {
        "lr=1": ("7_0", "/logs/grid-7_0.log"), "lr=2": ("9_1", "/logs/grid-9_1.log"), "lr=3": None,
    }  # fmt: skip
    assert [run.point_index for run in runs.values()] == [0, 1, 2]


def test_a_launch_leaves_out_the_points_that_are_done_or_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(TOY + "sweep: {train.lr: [1, 2, 3, 4]}\n")
    spec = api.load("job.yaml")
    programs = sweep.programmed(spec.readings["slurm"]).points
    marks = {name: {"id": each.id, "arguments": ["--x"]} for name, each in programs.items()}
    marks["lr=4"] = {"id": "of other settings", "arguments": ["--x"]}
    states = {
        "lr=1": at("done", point=marks["lr=1"]), "lr=2": at("running"), "lr=3": at("stopped"),
        "lr=4": at("done", point=marks["lr=4"]),
    }  # fmt: skip
    monkeypatch.setattr(points, "statuses", lambda run: {n: states[n] for n in run.points})
    submitted: list[tuple[str, ...]] = []

    def submit(_: Any, bundle: Path, arguments: Any, names: Any) -> Launch:
        submitted.append(tuple(names))
        return Launch("slurm", "7", points=dict.fromkeys(names, "7"))

    monkeypatch.setattr(TIERS["slurm"], "submit", submit)
    assert spec.launch("slurm", ["--x"]).job == "7"
    assert spec.launch("slurm", ["--x"], only=["lr=1.0"]).job == ""
    assert spec.launch("slurm", only=["lr=1"]).job == "7"  # done, with other arguments
    assert submitted == [("lr=3", "lr=4"), ("lr=1",)]


def test_the_plan_names_the_points_and_the_resolved_spec_has_the_sweep(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(TOY + GRID)
    assert "points       6, each" in run("plan", "job.yaml", "--target=local").out
    assert len(json.loads(run("plan", "job.yaml", "--target=slurm", "--json").out)["points"]) == 6
    resolved = run("plan", "job.yaml", "--resolved").out
    (tmp_path / "again.yaml").write_text(resolved)
    assert [*job.load("again.yaml")["sky"].points] == [*load(TOY + GRID)["sky"].points]


def begun(directory: Path, status: str) -> None:
    directory.mkdir(parents=True)
    row = {"kind": "step", "step": 7, "attempt": "a", "generation": 1, "time": 1.0, "loss": 0.5}
    (directory / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
    (directory / "status").write_text(f"{status} a 7\n")
    (directory / "point.json").write_text('{"id": "x", "arguments": []}')


@pytest.mark.slow
def test_the_report_of_a_sweep_is_one_page_and_of_one_point_its_own(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(TOY + "sweep: {train.lr: [1, 2, 3]}\n")
    run("render", "job.yaml", "--target=all")
    nothing = run("report", "job.yaml", "--target=local")
    assert (nothing.code, "no job has begun in" in nothing.err) == (66, True)
    away = run("report", "job.yaml", "--target=sky")
    assert (away.code, "is not on this machine; give it" in away.err) == (69, True)
    away = run("report", "job.yaml", "--target=hosts")
    assert (away.code, "bash build/grid/hosts/run.sh --fetch" in away.err) == (69, True)
    grid = tmp_path / "build/checkpoints/grid"
    begun(grid / "lr=1", "done")
    begun(grid / "lr=2", "stopped")

    def page(*words: str) -> str:
        done = ddpgen("report", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip()).relative_to(tmp_path).as_posix()

    assert page("job.yaml", "--target=local") == "build/checkpoints/grid/report.html"
    assert "3 points: 1 done, 1 stopped, 1 waiting" in (grid / "report.html").read_text()
    assert page("build/grid", "--target=local", "--only=lr=2") == (
        "build/checkpoints/grid/lr=2/report.html"
    )
    assert page("build/checkpoints/grid", "-o", "all.html") == "all.html"
    assert "2 points: 1 done, 1 stopped; " in (tmp_path / "all.html").read_text()


def test_the_directory_of_a_sweep_is_told_from_one_of_a_run(run: Run, tmp_path: Path) -> None:
    grid = tmp_path / "grid"
    begun(grid / "lr=1", "done")
    begun(grid / "lr=2", "stopped")
    table = run("status", "grid").out.splitlines()
    assert [line.split()[:2] for line in table[1:3]] == [["lr=1", "done"], ["lr=2", "stopped"]]
    assert table[-1] == "2 points: 1 done, 1 stopped"
    assert run("stop", "grid").out == "nothing to stop: no point waits or runs\n"
    for command in ("logs", "doctor", "verify"):
        refused = run(command, "grid")
        assert (refused.code, "grid is of a sweep; give" in refused.err) == (2, True), refused
    (grid / "status").write_text("done a 7\n")
    assert run("status", "grid").out.startswith("grid:\n  done at step 7\n")


def test_two_specs_with_other_points_differ(run: Run, tmp_path: Path) -> None:
    for name, rates in (("a", "1, 2"), ("b", "1, 3"), ("c", "1, 2")):
        (tmp_path / f"{name}.yaml").write_text(f"{TOY}sweep: {{train.lr: [{rates}]}}\n")
    assert "lr=3" in run("diff", "a.yaml", "b.yaml").out
    assert run("diff", "a.yaml", "c.yaml").code == 0


def test_a_probe_and_a_bench_take_the_first_point_alone() -> None:
    for tier, reading in load(TOY + GRID).items():
        probed = probe.probed(reading)
        assert (probed.points, probed.job.points) == ({}, {})
        words = TIERS[tier].plan(sweep.programmed(probed)).command
        assert "--points" not in words.options
        assert "--lr=0.01" in words.program
    shaped = bench.shaped(load(TOY + GRID)["local"], "1", 60)
    assert (shaped.points, shaped.job.points) == ({}, {})
