"""`ddpgen bench`: what its table says of made-up runs, and which shapes are refused before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpgen import job
from ddpgen.measure import bench, bench_table, plot
from ddpgen.measure.bench_table import BenchRun, Table
from ddpgen.measure.cost import Link
from ddpgen.spec.fields import Refused
from ddpgen.tiers.slurm.fields import SlurmJob
from tests.ddpgen.conftest import GPT, Run

Spec = Callable[..., Path]
HOSTS = GPT + "targets:\n  hosts: {hosts: [desk, laptop]}\n"
FACTS = {"torch": "2.13.0", "machine": "x86_64", "cpu_capability": "AVX2", "device": "cpu"}
MANIFEST = {"unit": "tokens", "units_per_step": 1000, "gradient_bytes": 1e6, "facts": FACTS}


def left(
    step_s: float = 0.1, processes: int = 1, *, waiting: float | None = 0.02, steps: int = 20,
    ends: str = "done", losses: dict[int, Any] | None = None, **about: Any,
) -> BenchRun:  # fmt: skip
    """What is read of a run whose steps took so long, but for slow first ones."""
    rows: list[dict[str, Any]] = [{"kind": "start", "step": 0, "time": 0, "world_size": processes}]
    now = 0.0
    for step in range(1, steps + 1):
        took = step_s + (1.0 if step <= bench_table.WARM_UP else 0.0)
        now += took
        loss = (losses or {}).get(step, 1 / 3 / step)
        rows.append({"kind": "step", "step": step, "time": round(now, 3), "loss": loss})
        if waiting is not None and step % 5 == 0:
            more = [0.01] * (processes - 1)  # all but rank 0 wait for it
            ranks = {
                "waiting": [waiting, *(waiting + w for w in more)],
                "batches": [0.005] * processes,
            }
            rows.append({"kind": "ranks", "step": step, "time": now, "seconds": took, **ranks})
    rows.append({"kind": ends, "step": steps, "time": now})
    metrics = "half a li\n" + "".join(json.dumps(row) + "\n" for row in rows)
    return bench_table.read(metrics, json.dumps({**MANIFEST, "world_size": processes, **about}))


def made(spec: Path, runs: dict[str, list[BenchRun]], link: Link | None = None) -> Table:
    readings = job.load(str(spec))
    jobs = {}
    for shape in runs:
        shaped = bench.shaped(readings[bench.tier_of(shape)], shape, 20)
        jobs[shape] = (shaped.tier, shaped.job)
    return bench_table.make(jobs, runs, {"processors": 2, "ddpgen": "1.0"}, "gpt", link, 1.0)


def test_the_whole_table(spec: Spec) -> None:
    runs = {
        "1": [left(waiting=0), left(0.3, waiting=0), left(0.1, waiting=0)],
        "2": [left(0.0625, 2), left(0.0625, 2)],
    }
    assert (
        bench_table.as_text(made(spec(), runs))
        == """\
all shapes gave the same losses, bit for bit, in 20 steps
gpt: 15 steps of 3 runs of each shape, after 5 to warm up; 2 processors, x86_64, AVX2, torch 2.13.0, ddpgen 1.0

  shape  processes     step       least to most  tokens/s  computing  communication  waiting for ranks  for batches  efficiency
  1              1   100 ms    100 ms to 300 ms    10,000      95 ms           none               none         5 ms        100%
  2              2  62.5 ms  62.5 ms to 62.5 ms    16,000    32.5 ms          20 ms               5 ms         5 ms         80%"""
    )


def test_an_efficiency_that_cannot_be_says_that_the_machine_was_busy(spec: Spec) -> None:
    told = "above 110%: "
    assert told in bench_table.as_text(made(spec(), {"1": [left(0.1)], "2": [left(0.04, 2)]}))
    assert told not in bench_table.as_text(made(spec(), {"1": [left(0.1)], "2": [left(0.048, 2)]}))


def test_markdown_and_json_say_the_same(spec: Spec) -> None:
    found = made(spec(), {"1": [left()], "2": [left(0.0625, 2)]})
    text = bench_table.as_markdown(found)
    assert "\n\ngpt: 15 steps " in text
    assert "| 2 | 2 | 62.5 ms | 62.5 ms to 62.5 ms | 16,000 |" in text
    rows = json.loads(bench_table.as_json(found))["rows"]
    assert rows[1]["step_s"] == 0.0625
    assert rows[1]["efficiency"] == pytest.approx(0.8)
    assert rows[1]["facts"] == FACTS


def test_with_json_only_the_figures_go_to_standard_output(
    run: Run, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "runs", lambda *_: ({"1": [left()]}, 0))
    outcome = run("bench", spec(), "--shapes", "1", "--json")
    assert json.loads(outcome.out)["rows"][0]["step_s"] == pytest.approx(0.1)
    assert outcome.err.startswith("one run: ")
    assert run("bench", spec(), "--shapes", "1").out == outcome.err


def test_where_ranks_are_not_timed_steps_are(spec: Spec) -> None:
    found = made(spec(), {"1": [left(waiting=None)]})
    (row,) = found.rows
    assert (row.step_s, row.compute_s) == (pytest.approx(0.1), None)
    assert "computing" not in bench_table.as_text(found)
    mixed = made(spec(), {"1": [left()], "2": [left(0.05, 2, waiting=None)]})
    assert bench_table.as_text(mixed).splitlines()[-1].split()[-5:] == ["-", "-", "-", "-", "100%"]


@pytest.mark.parametrize(
    ("other", "line", "agree"),
    [
        (left(), "all shapes", True),
        (
            left(losses={7: 0.1 + 0.2, 8: 9}),
            "from step 7 on: 1 0.3, 2 0.30000000000000004; ",
            False,
        ),
        (left(losses={7: 0.3}, steps=19), "from step 20 on: 1 0.0", False),
        (
            left(losses={7: 1}, facts={**FACTS, "device": "A100"}),
            "1 0.3, 2 1; what was computed on differs: device cpu, A100",
            True,
        ),
        (
            left(processes=2, losses={7: 1}, exact_on_any_world_size=False),
            "differs: the number of processes",
            True,
        ),
    ],
    ids=["same", "last bit", "one fewer", "another device", "allreduce"],
)
def test_losses_are_compared_bit_for_bit(other: BenchRun, line: str, agree: bool) -> None:
    exact = "exact_on_any_world_size" not in other.manifest
    first = left(losses={7: 0.3}, **({} if exact else {"exact_on_any_world_size": False}))
    if line.startswith("all"):
        first = left()
    said, right = bench_table.compare({"1": [first], "2": [other]})
    assert line in said
    assert right is agree


def test_one_run_has_nothing_to_compare_with() -> None:
    said, right = bench_table.compare({"1": [left()]})
    assert said.startswith("one run: ")
    assert right


def test_several_hosts_are_held_against_the_prediction(spec: Spec) -> None:
    # 4 micro-batches of 50 ms, one each on two hosts with two processes; 1 MB at 10 MB/s, twice a half.
    runs = {"1": [left(0.2)], "2": [left(0.1, 2)], "hosts": [left(0.18, 4)]}
    found = made(spec(HOSTS), runs, Link("80 Mbit/s", 80e6))
    assert [row.predicted_s for row in found.rows] == [None, None, pytest.approx(0.15)]
    assert bench_table.as_text(found).splitlines()[-1].endswith("150 ms (+20%)")
    sharded = HOSTS.replace("steps: 300", "steps: 300\n  shard: optimizer")
    found = made(spec(sharded), runs, Link("80 Mbit/s", 80e6))
    assert found.rows[-1].predicted_s == pytest.approx(0.2)  # each host sends half of 1 MB more
    without_one = made(spec(HOSTS), {"2": runs["2"], "hosts": runs["hosts"]}, Link("x", 80e6))
    assert {row.predicted_s for row in without_one.rows} == {None}


def test_a_run_that_was_cut_off_is_not_done() -> None:
    assert left().done
    assert not left(ends="stopped").done
    assert not bench_table.read("", "").done


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_plot(spec: Spec, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    plot.bench(made(spec(), {"1": [left()], "2": [left(0.05, 2, waiting=None)]}), file)
    assert file.stat().st_size > 1000
    if suffix == ".svg":
        assert "50 ms, 20,000 tokens/s, 100%" in file.read_text()


@pytest.mark.parametrize(
    ("text", "options", "code", "said"),
    [
        (GPT, ["--shapes", "1,many"], 2, '"many" is no shape'),
        # The machines of a SkyPilot job are gone when it has ended.
        (GPT, ["--shapes", "sky"], 2, '"sky" is no shape'),
        (GPT, ["--shapes", "1,hosts"], 69, "no targets.hosts; "),
        (GPT, ["--shapes", "gpu"], 2, "no GPUs on local; "),
        (GPT, ["--shapes", "8"], 2, "shape 8: 8 processes "),
        (GPT.replace("300", "8"), [], 2, "8 steps are too few"),
        (GPT, ["--plot", "a.pdf"], 2, "--plot: a.pdf "),
        (
            "name: own\ncode: .\ntrain: {script: own.py}\n", ["--shapes", "1"], 2,
            "train.script has a loop of its own",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_one_error_before_anything_runs(
    run: Run, spec: Spec, tmp_path: Path, text: str, options: list[str], code: int, said: str
) -> None:
    (tmp_path / "own.py").write_text("print(1)\n")
    outcome = run("bench", spec(text), *options)
    assert (outcome.code, outcome.out) == (code, "")
    assert said in outcome.err
    assert not (tmp_path / "build").exists()


def test_a_run_that_cannot_start_ends_it_with_its_exit_code(run: Run, spec: Spec) -> None:
    outcome = run("bench", spec(GPT + "python: /nowhere/python\n"), "--shapes", "2,1")
    assert (outcome.code, outcome.out) == (69, "")
    assert outcome.err.startswith("bench: shape 2, run 1 of 3\n+ bash build/gpt-bench-2/local.sh\n")
    assert "/nowhere/python" in outcome.err
    assert outcome.err.endswith("\nbench: ended in shape 2\n")


def test_a_shape_changes_the_length_and_the_place_and_nothing_that_is_learned(spec: Spec) -> None:
    text = HOSTS.replace("steps: 300", "epochs: 2\n  warmup_steps: 50\n  eval_every: 3 steps")
    readings = job.load(str(spec(text)))
    of_hosts = bench.shaped(readings["hosts"], "hosts", None).job
    here = bench.shaped(readings["local"], "4", None).job
    for each in (of_hosts, here):
        train = each.train
        assert (train.steps, train.epochs, train.warmup_steps, train.eval_every) == (
            30,
            None,
            29,
            0,
        )
    assert of_hosts.name == "gpt-bench-hosts"
    assert (here.procs_per_node, here.env) == (4, {"CUDA_VISIBLE_DEVICES": ""})
    with pytest.raises(Refused, match="shape 5"):
        bench.shaped(readings["local"], "5", None)


def test_of_an_array_one_task_is_measured(spec: Spec) -> None:
    readings = job.load(str(spec(GPT + "targets:\n  slurm: {array: 0-3, partition: gpu}\n")))
    measured = bench.shaped(readings["slurm"], "slurm", None).job
    assert isinstance(measured, SlurmJob)
    assert (measured.array, measured.partition) == (None, "gpu")


def test_by_default_the_processes_that_have_work_and_a_processor(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = job.load(str(spec()))["local"].job
    for processors, shapes in ((64, ("1", "2", "4")), (3, ("1", "2")), (1, ("1",))):
        monkeypatch.setattr("os.cpu_count", lambda count=processors: count)
        assert bench.default_shapes(wanted) == shapes
