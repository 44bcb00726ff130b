"""`ddpgen predict`: the page, what it takes from the newest run, and what it refuses."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ddpgen.conftest import GPT, ROOT, Run

Spec = Callable[..., Path]
EXAMPLES = ROOT / "examples"
PARAMETERS = 837_888  # of gpt with its defaults
HOSTS = GPT + "targets:\n  hosts: {hosts: [desk, laptop]}\n"
OWN = """\
name: own
code: code
train: {workload: my.py:build, steps: 300, global_batch_size: 16, micro_batch_size: 4}
targets:
  hosts: {hosts: [desk, laptop]}
"""


def predicted(run: Run, *argv: str | Path) -> dict[str, Any]:
    outcome = run("predict", *argv, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def left_by_a_run(
    directory: Path, *, took: float = 0.5, processes: int = 2, attempt: str = "0123456789ab", **about: Any
) -> None:  # fmt: skip
    """A checkpoint directory after ten steps, one of which had to wait."""
    settings = {
        "workload": "gpt", "args": {}, "global_batch_size": 16, "micro_batch_size": 4,
        "precision": "fp32", "threads": 1,
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    manifest = {"settings": settings, "facts": {"device": "cpu"}, "parameters": PARAMETERS} | about
    (directory / "manifest.json").write_text(json.dumps(manifest))
    head = {"attempt": attempt, "generation": 1}
    times = [number * took + (7.0 if number > 5 else 0.0) for number in range(10)]
    rows = [{"kind": "start", **head, "time": 0.0, "world_size": processes}]
    rows += [{"kind": "step", "step": n, **head, "time": time} for n, time in enumerate(times)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "metrics.jsonl").write_text("half a li\n" + text + '{"kind": "st')


def test_the_page_of_the_known_case(run: Run, spec: Spec) -> None:
    outcome = run(
        "predict", spec(HOSTS), "--params", "760M", "--dtype", "bf16", "--step-time", "3s"
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert (
        outcome.out
        == """\
gpt on hosts: 2 hosts × 2 processes, 4 micro-batches a step (1 each, share: auto)
gradients  760M parameters (as given), sent as bf16: 1.52 GB
traffic    1.52 GB a step out of the busiest host or into it, in the tree reduction
compute    3 s a step (as given)

  link    all-reduce  comm/compute  not hidden    step  computing
> 1GbE        14.3 s          4.77      12.3 s  15.3 s        20%
  2.5GbE      5.72 s          1.91      3.72 s  6.72 s        45%
  10GbE       1.43 s          0.48     12.3 ms  3.01 s       100%
  100G        143 ms          0.05     1.23 ms     3 s       100%
  400G       35.8 ms          0.01      308 µs     3 s       100%

  nodes, at 1GbE  micro-batches each  all-reduce  compute  not hidden    step  efficiency
  1                                2        none      6 s        none     6 s        100%
> 2                                1      14.3 s      3 s      12.3 s  15.3 s         20%

  what helps, at 1GbE                                 step   speed
  a better link: 10GbE                              3.01 s  5.08 ×
  fewer hosts: 1 of 2                                  6 s  2.55 ×
  more micro-batches a step: global_batch_size: 64  24.3 s  2.52 ×

checkpoints: interval, lost work and price follow from --preempted-every and --checkpoint-time
"""
    )


def test_without_a_step_time_the_communication_alone(run: Run, spec: Spec) -> None:
    outcome = run("predict", spec(HOSTS))
    assert "\ncompute    not known: " in outcome.out
    assert "--step-time" in outcome.out
    assert "\n  link    all-reduce\n" in outcome.out
    found = predicted(run, spec(HOSTS))
    assert found["links"][0]["communication_s"] == pytest.approx(PARAMETERS * 4 * 8 / 0.85e9)
    assert found["links"][0]["step"] is None
    assert found["checkpoints"] is None


@pytest.mark.parametrize(("hook", "sent"), [("none", 4), ("fp16", 2), ("bf16", 2), ("powersgd", 4)])
def test_gradients_count_as_the_spec_has_them_sent(
    run: Run, spec: Spec, hook: str, sent: int
) -> None:
    text = HOSTS.replace("train:\n", f"train:\n  reduction: allreduce\n  comm_hook: {hook}\n")
    text = text.replace("procs_per_node: 2", "procs_per_node: 2\ngpus_per_node: 2")
    found = predicted(run, spec(text))
    assert found["gradients"]["sent_bytes"] == sent * PARAMETERS
    assert found["traffic_bytes"] == 1.5 * sent * PARAMETERS  # a ring of four ranks
    assert found["link"]["name"] == "100G"  # of hosts with GPUs


def test_the_newest_run_tells_how_long_a_step_computes(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    left_by_a_run(tmp_path / "build/checkpoints/gpt")
    outcome = run("predict", spec(HOSTS))
    # Two micro-batches each were 0.5 s; now there is one.
    (compute,) = [line for line in outcome.out.splitlines() if line.startswith("compute ")]
    for measured in ("250 ms", "9 steps", "build/checkpoints/gpt", "1 host × 2 processes"):
        assert measured in compute
    assert predicted(run, spec(HOSTS))["compute"]["micro_batch_s"] == [0.25, 0.25]


def test_a_run_on_several_hosts_is_told_without_its_communication(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    by_hosts = "20260101-000000-abcd"
    sent_s = PARAMETERS * 4 * 8 / 0.85e8
    left_by_a_run(tmp_path / "build/checkpoints/gpt", took=1.0, processes=4, attempt=by_hosts)
    found = predicted(run, spec(HOSTS), "--link", "100 Mbit/s")
    assert found["compute"]["micro_batch_s"][0] == pytest.approx(1.0 - sent_s)
    assert "2 hosts × 2 processes" in found["compute"]["source"]
    assert found["compute"]["source"].endswith(" 100 Mbit/s")
    assert found["links"][0]["step"]["step_s"] == pytest.approx(1.0)
    found = predicted(run, spec(HOSTS), "--link", "1 Mbit/s")
    assert "31.5 s at 1 Mbit/s" in found["compute"]["source"]


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"parameters": 760_000_000}, "had 760M parameters"),
        ({"facts": {"device": "NVIDIA A100"}}, "had GPUs"),
        ({"processes": 3, "attempt": "20260101-000000-abcd"}, "which hosts build/checkpoints/gpt"),
        ({"settings": {"workload": "toy"}}, 'had train.workload "toy"'),
        ({"took": 0.0}, "--step-time"),
    ],
)
def test_a_run_of_something_else_is_not_taken_for_this_one(
    run: Run, spec: Spec, tmp_path: Path, about: dict[str, Any], said: str
) -> None:
    left_by_a_run(tmp_path / "build/checkpoints/gpt", **about)
    compute = predicted(run, spec(HOSTS))["compute"]
    assert compute["micro_batch_s"] == []
    assert said in compute["source"]


@pytest.mark.parametrize("file", ["manifest.json", "metrics.jsonl"])
@pytest.mark.parametrize(
    "text", ["", "{", "[1]\n", '{"kind": "step"}\n{"kind": "step", "step": 3}', "\0"]
)
def test_spoilt_records_are_as_if_they_were_not_there(
    run: Run, spec: Spec, tmp_path: Path, file: str, text: str
) -> None:
    left_by_a_run(tmp_path / "build/checkpoints/gpt")
    (tmp_path / "build/checkpoints/gpt" / file).write_text(text)
    assert run("predict", spec(HOSTS)).code == 0


def test_a_model_of_ones_own_is_counted_by_its_first_run(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my.py").write_text("def build(context): ...\n")
    outcome = run("predict", spec(OWN))
    assert outcome.code == 2
    assert "my.py:build" in outcome.err
    assert "--params" in outcome.err
    assert "run it once" in outcome.err  # which a script's run would not help
    settings = {"workload": "my.py:build", "args": {}}
    about = {"settings": settings, "parameters": 1000, "gradient_bytes": 2000}
    left_by_a_run(tmp_path / "build/checkpoints/own", **about)
    gradients = predicted(run, spec(OWN))["gradients"]
    assert gradients.pop("source").endswith(" build/checkpoints/own")
    assert gradients == {"parameters": 1000, "dtype": "16 bits", "sent_bytes": 2000}
    assert predicted(run, spec(OWN), "--dtype", "fp32")["gradients"]["sent_bytes"] == 4000
    left_by_a_run(tmp_path / "build/checkpoints/own", **about | {"settings": {"workload": "x"}})
    assert run("predict", spec(OWN)).code == 2


def test_what_a_slow_host_costs_and_the_shares_that_end_it(run: Run, tmp_path: Path) -> None:
    asked = ("predict", EXAMPLES / "fast_and_slow.yaml")
    outcome = run(*asked)
    assert "follow from --step-time HOST=TIME of each" in outcome.out
    assert "nodes, at" not in outcome.out  # equal nodes say nothing of these
    # The fast one has six of eight micro-batches, three for each of two processes; the slow one two.
    outcome = run(*asked, "--step-time", "i9=30ms", "--step-time", "i5=100ms")
    waits, without, share = outcome.out[outcome.out.index("unequal hosts: ") :].splitlines()[:3]
    assert [time in waits for time in ("i9 30 ms", "i5 100 ms", "70 ms")] == [True] * 3
    assert [part in without for part in ("  i9 alone ", "40 ms", "100 ms")] == [True] * 3
    assert [part in share for part in ("share: i9 10, i5 1 ", "50.1 ms", "100 ms")] == [True] * 3
    assert "what helps" not in outcome.out
    outcome = run(*asked, "--step-time", "i9=30ms", "--step-time", "i5=20.1ms")
    assert "a smaller micro_batch_size" in outcome.out


def test_share_auto_fits_the_hosts_by_itself_unless_one_alone_is_faster(
    run: Run, spec: Spec
) -> None:
    text = GPT.replace("global_batch_size: 16", "global_batch_size: 128")
    text += "targets:\n  hosts: {hosts: [{name: slow, procs: 1}, {name: fast, procs: 1}]}\n"
    assert "32 micro-batches a step (16 each, share: auto)" in run("predict", spec(text)).out

    def advice(slow: str, fast: str, *more: str) -> list[str]:
        times = ("--step-time", f"slow={slow}", "--step-time", f"fast={fast}")
        lines = run("predict", spec(text), *times, "--params", "1k", *more).out.splitlines()
        begin = next(n for n, line in enumerate(lines) if line.startswith("unequal hosts: "))
        return [line.strip() for line in itertools.takewhile(bool, lines[begin + 1 :])]

    assert advice("2s", "1s")[0].startswith("share: auto makes the step 1.3")
    alone, with_both = advice("60s", "1s")
    assert alone.startswith("fast alone makes the step 2 s instead of 60 s")
    assert with_both.startswith("share: auto makes the step ")
    few = ("--set", "train.global_batch_size=8")
    assert "smaller micro_batch_size" in advice("2s", "1s", *few)[0]


def test_shard_counts_its_traffic_and_its_memory(run: Run, spec: Spec, tmp_path: Path) -> None:
    shard, link = ("--set", "train.shard=optimizer"), ("--link", "100 Mbit/s")
    gather_s = PARAMETERS * 4 / 2 * 8 / 0.85e8  # each of two hosts sends half of the parameters
    asked = (spec(HOSTS), "--step-time", "1s", *link)
    plain, found = predicted(run, *asked), predicted(run, *asked, *shard)
    assert plain["shard"] is None
    assert found["shard"] == {
        "gather_bytes": PARAMETERS * 2.0,
        "gather_s": pytest.approx(gather_s),
        "whole_bytes": PARAMETERS * 8.0,
        "process_bytes": PARAMETERS * 2.0,
    }
    steps = [each["links"][0]["step"]["step_s"] for each in (plain, found)]
    assert steps[1] - steps[0] == pytest.approx(gather_s)
    lines = run("predict", *asked, *shard).out.splitlines()
    assert "1.68 MB a step more" in lines[3]
    assert "1.68 MB in each process instead of 6.7 MB" in lines[3]
    # Compression takes an all-reduce, and shard the tree.
    assert "compression: " in run("predict", *asked).out
    assert "compression: " not in "".join(lines)
    # A run that had it is told without its gather, one that had not is told as it is.
    by_hosts = {"took": 2.0, "processes": 4, "attempt": "20260101-000000-abcd"}
    computed = []
    for starts in ([{"shard": "optimizer"}], [{}], "spoilt"):
        left_by_a_run(tmp_path / "build/checkpoints/gpt", **by_hosts, starts=starts)  # type: ignore[arg-type]
        computed.append(predicted(run, spec(HOSTS), *link)["compute"]["micro_batch_s"][0])
    assert computed[1] == computed[2] == pytest.approx(computed[0] + gather_s)


def test_of_three_unequal_hosts_the_slowest_is_left_out(run: Run, spec: Spec) -> None:
    text = GPT.replace("global_batch_size: 16", "global_batch_size: 128")
    text += "targets:\n  hosts: {hosts: [{name: slow}, {name: fast, share: 2}, {name: faster, share: 3}]}\n"
    times = ("slow=9s", "fast=1s", "faster=1s")
    asked = [word for each in times for word in ("--step-time", each)]
    outcome = run("predict", spec(text), *asked, "--params", "1k")
    (advice,) = [line for line in outcome.out.splitlines() if "leaving out" in line]
    assert "leaving out slow, " in advice
    assert "share: fast 1, faster " in advice


def test_fewer_hosts_where_the_wire_costs_more_than_they_bring(run: Run, spec: Spec) -> None:
    text = GPT.replace("global_batch_size: 16", "global_batch_size: 64")
    hosts = "targets:\n  hosts: {hosts: [a, b, c, d, e]}\n"
    asked = ("--params", "760M", "--step-time", "3s")
    speeds = {
        change["what"]: change["speed"]
        for change in predicted(run, spec(text + hosts), *asked)["changes"]
    }
    assert all(speed > 1.02 for speed in speeds.values())
    assert speeds["fewer hosts: 1 of 5"] > 2
    outcome = run("predict", spec(text + hosts), "--step-time", "3s")
    assert "\n  what helps, at 1GbE: nothing" in outcome.out


def test_a_price_needs_no_interruptions_and_a_run_that_never_ends_has_none(run: Run) -> None:
    asked = ("predict", EXAMPLES / "spot.yaml", "--step-time", "1.2s")
    outcome = run(*asked, "--price", "44", "--spot-price", "18")
    on_demand, spot = outcome.out.splitlines()[-2:]
    assert on_demand.startswith("  on demand: 44.00 ")
    assert " 293.94 " in on_demand
    assert spot.startswith("  spot: ")
    assert "--preempted-every" in spot
    lost = ("--checkpoint-time", "40s", "--restart-time", "3h")
    outcome = run(*asked, *lost, "--price", "44", "--spot-price", "58")
    *_, never, again, spot = outcome.out.splitlines()
    assert "never end: a loss costs 3.12 h" in never
    assert again == on_demand
    assert spot.startswith("  spot never pays")


def test_spot_machines_their_checkpoints_and_their_price(run: Run) -> None:
    asked = ("--step-time", "1.2s", "--checkpoint-time", "40s", "--restart-time", "6min")
    prices = ("--spot-price", "18", "--price", "44")
    outcome = run("predict", EXAMPLES / "spot.yaml", *asked, *prices)
    assert outcome.out.endswith("""
checkpoints, each taking 40 s, with a machine lost every 2 h
  every 12.6 min is best (Young 1974), goodput 85% to 89%
  13 min lost each time, 6 min of it to start again
  on demand: 44.00 for an hour that counts, 293.94 for all steps
  spot: 20.19 to 21.25 for an hour that counts, 134.85 to 141.95 for all steps
  spot pays above a goodput of 41%
""")
    assert len(outcome.out.splitlines()) <= 32


def test_the_interval_of_the_spec_beside_the_best_one(run: Run, spec: Spec) -> None:
    text = spec(HOSTS + "checkpoint: {every: 1000 steps}\n")
    asked = ("--preempted-every", "2h", "--checkpoint-time", "5s")
    outcome = run("predict", text, *asked, "--step-time", "1s")
    assert "\n  every 17.2 min, as the spec says: " in outcome.out
    # How long a thousand steps take is not known; and a spec may have a time instead.
    assert predicted(run, text, *asked)["checkpoints"]["spec_interval_s"] is None
    assert predicted(run, spec(HOSTS), *asked)["checkpoints"]["spec_interval_s"] == 600.0


@pytest.mark.parametrize("tier", ["local", "hosts", "slurm", "sky"])
def test_every_tier_and_every_example_has_a_page(run: Run, tier: str) -> None:
    for example in sorted(EXAMPLES.glob("*.yaml")):
        if f"\n  {tier}:" not in example.read_text() and tier != "local":
            continue
        outcome = run("predict", example, "--target", tier, "--params", "9M", "--step-time", "1s")
        if outcome.code != 69:  # one that does not fit on one machine
            assert outcome.code == 0, (example, outcome.err)
            lines = outcome.out.splitlines()
            assert len(lines) <= 30, example
            assert max(map(len, lines)) <= 110, example


def test_one_process_and_one_machine_send_nothing(run: Run, spec: Spec) -> None:
    outcome = run("predict", spec(GPT.replace("procs_per_node: 2\n", "")))
    assert "\ntraffic    none: " in outcome.out
    outcome = run("predict", spec(), "--step-time", "1s")
    assert "\ntraffic    none between machines; 3.35 MB a step " in outcome.out
    assert "what helps" not in outcome.out
    # A link is between machines; but the GPUs of one have a link between them.
    found = predicted(run, spec(), "--step-time", "1s", "--link", "10GbE")
    assert found["links"] == []
    assert found["nodes"][0]["communication_s"] == 0.0
    found = predicted(run, spec(GPT + "gpus_per_node: 2\n"), "--link", "NVLink")
    assert found["links"][-1]["communication_s"] == pytest.approx(PARAMETERS * 32 / 3.6e12 / 0.85)
    assert found["nodes"] == []


def test_a_script_of_ones_own_does_more_work_on_more_nodes(run: Run) -> None:
    outcome = run("predict", EXAMPLES / "nanogpt.yaml")
    assert outcome.code == 2
    assert "train.py" in outcome.err
    assert "--params" in outcome.err
    assert "run it once" not in outcome.err
    given = ("--params", "124M", "--step-time", "1s", "--link", "10GbE")
    nodes = predicted(run, EXAMPLES / "nanogpt.yaml", *given)["nodes"]
    assert [row["micro_batches"] for row in nodes] == [1] * 5
    assert nodes[0]["efficiency"] == 1.0
    assert nodes[-1]["efficiency"] > 0.5


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--params", "many"], "k, M, B or T"),
        (["--link", "10 GB/s"], '"10 GB/s" counts bytes'),
        (["--dtype", "fp8"], "'fp8' is not one of 'fp32', 'bf16', 'fp16'"),
        (["--efficiency", "85"], "like 0.85"),
        (["--step-time", "3"], "3 has no unit"),
        (["--step-time", "desk=1s"], "no time for laptop"),
        (["--step-time", "desk=1s", "--step-time", "1s"], "without a host"),
        (["--step-time", "1s", "--step-time", "2s"], "--step-time is given twice"),
        (["--step-time", "desk=1s", "--step-time", "desk=2s"], "--step-time of desk is given twice"),
        (["--step-time", "=1s"], '"=1s" names no host'),
        (["--target", "local", "--step-time", "desk=1s"], "local has no hosts"),
        (["--spot-price", "free"], '"free" is no price'),
        (["--plot", "picture.pdf"], "--plot: picture.pdf "),
        (["--target", "all"], "one tier"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_error(
    run: Run, spec: Spec, argv: list[str], says: str
) -> None:
    outcome = run("predict", spec(HOSTS), *argv)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("Error: ") == 1
    assert says in outcome.err


def test_a_wrong_spec_and_a_tier_that_is_not_there(run: Run, spec: Spec) -> None:
    assert run("predict", "nothing.yaml").code == 66
    assert run("predict", spec(GPT + "nods: 3\n")).code == 65
    assert run("predict", spec(GPT), "--target", "slurm").code == 69


@pytest.mark.parametrize("more", [[], ["--step-time", "150ms"]])
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot(run: Run, spec: Spec, tmp_path: Path, more: list[str], suffix: str) -> None:
    file = tmp_path / f"gpt.{suffix}"
    outcome = run("predict", spec(HOSTS), "--plot", file, *more)
    assert (outcome.code, outcome.err) == (0, f"wrote {file}\n")
    begins = {"svg": b"<?xml", "png": b"\x89PNG"}[suffix]
    assert file.read_bytes().startswith(begins)
    if suffix == "svg":
        drawn = file.read_text()
        assert all(
            name in drawn
            for name in ("2.5GbE", "400G", "gpt on hosts", "182 ms" if more else "31.5 ms")
        )


def test_a_plot_that_cannot_be_written_and_one_of_nothing(run: Run, spec: Spec) -> None:
    outcome = run("predict", spec(HOSTS), "--plot", "nowhere/a.png")
    assert outcome.code == 2
    assert "no directory nowhere" in outcome.err
    alone = GPT.replace("procs_per_node: 2\n", "").replace("size: 16", "size: 4")
    outcome = run("predict", spec(alone), "--plot", "a.png")
    assert outcome.code == 69
    assert "nothing to draw" in outcome.err


@pytest.mark.slow
def test_without_matplotlib_the_plot_is_refused_and_the_page_is_not(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(HOSTS)
    program = (
        "import sys; sys.modules['matplotlib'] = None; from ddpgen import cli\n"
        "sys.argv = ['ddpgen', 'predict', 'job.yaml', *sys.argv[1:]]\n"
        "sys.exit(cli.run())\n"
    )
    for more, code in (([], 0), (["--plot", "a.png"], 69)):
        done = subprocess.run(
            [sys.executable, "-c", program, *more],
            cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    assert "pip install 'ddpgen[plot]'" in done.stderr
