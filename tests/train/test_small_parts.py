"""Configuration, status, metrics, progress, schedules and workloads by name."""

from __future__ import annotations

import io
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from train.base.console import Progress, clock, say, say_restart
from train.base.errors import TrainError, start_command
from train.distributed import gradients
from train.distributed.process_group import RankInfo
from train.distributed.timing import StepClock
from train.run import provenance
from train.run.config import Period, RunConfig, parse, period, seconds
from train.run.metrics import MetricsLog
from train.run.status import Status, read_status, write_status
from train.training import numerics, records, rng
from train.training.builder import load_workload
from train.training.optim import LearningRate, lr_factor
from train.training.startup import check_world_size
from train.workload import Context, Workload

REQUIRED = [
    "--workload=toy",
    "--steps=10",
    "--global-batch-size=8",
    "--micro-batch-size=2",
    "--checkpoint-dir=ckpt",
]
CONTEXT = Context(0, 0, 0, 1, torch.device("cpu"), 2)


def config(*more: str) -> RunConfig:
    return parse([*REQUIRED, *more])


@pytest.mark.parametrize(
    ("text", "value"),
    [("90s", 90), ("10min", 600), ("1h30min", 5400), ("1.5h", 5400), ("2d", 172800)],
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


def test_periods() -> None:
    assert period("200 steps") == Period(steps=200)
    assert period("1 step") == Period(steps=1)
    assert period("10min") == Period(seconds=600)
    assert period("auto:1h30min") == Period(mean_s=5400.0)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--lr=0"], "0 is not a positive number"),
        (["--lr=nan"], "nan is not a positive number"),
        (["--steps=-1"], "-1 is less than 0"),
        (["--epochs=2"], "give either --steps or --epochs"),
        (["--micro-batch-size=3"], "--global-batch-size=8 is not a multiple"),
        (["--shares=3,3"], "has to add up to the 4 micro-batches"),
        (["--shares=4,0"], "every rank needs at least one"),
        (["--checkpoint-every=0 steps"], "would never pass"),
        (["--checkpoint-every=soon"], "is not a duration such as"),
        (["--checkpoint-every=auto:0s"], "is no time at all"),
        (["--arg=depth"], "'depth' is not NAME=JSON"),
        (["--arg=depth={"], "depth: '{' is not JSON"),
        (["--weight=0"], "'0' is not a positive number such as 3, 0.5 or 1/2"),
        (["--weight=1/0"], "'1/0' is not a positive number"),
        (["--epochs=1e99999999"], "'1e99999999' is not a positive number"),
        (["--weight=1e-99999999"], "'1e-99999999' is not a positive number"),
        (["--elastic", "--world-size=2"], "--elastic leaves the number of processes open"),
        (["--step=3"], "unrecognized arguments"),
    ],
)
def test_a_bad_argv_is_one_clear_message_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        config(*argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_arguments_of_the_workload_arrive_as_they_were_written() -> None:
    hostile = {"text": 'it\'s "quoted"\n$(touch pwned) \\ é', "n": 3, "deep": [1, {"a": None}]}
    argv = [f"--arg={name}={json.dumps(value)}" for name, value in hostile.items()]
    assert config(*argv).args == hostile


def test_two_threads_that_write_a_status_at_once_both_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, real = threading.Barrier(2, timeout=60), os.fsync

    def meet(descriptor: int) -> None:
        real(descriptor)
        both.wait()

    monkeypatch.setattr("train.run.status.os.fsync", meet)
    told = [Status("failed", "abc123", 40, why) for why in ("heard", "met")]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write_status, tmp_path, each) for each in told]:
            done.result(60)
    assert read_status(tmp_path) in told
    assert os.listdir(tmp_path) == ["status"]


def test_status_is_one_line_that_a_shell_can_read(tmp_path: Path) -> None:
    write_status(tmp_path, Status("failed", "abc123", 40, "no\nspace  left"))
    assert (tmp_path / "status").read_text() == "failed abc123 40 no space left\n"
    assert read_status(tmp_path) == Status("failed", "abc123", 40, "no space left")
    assert os.listdir(tmp_path) == ["status"]
    write_status(tmp_path, Status("failed", "abc", 7, "x" * (2 << 20)))
    status = read_status(tmp_path)
    assert status is not None
    assert status.step == 7


@pytest.mark.parametrize(
    "text",
    ["", "running", "what abc 3", "done abc x", "done a \u00b2", "done a \u0663", "done a -1"],
)  # fmt: skip
def test_a_status_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "status").write_text(text, "utf-8")
    assert read_status(tmp_path) is None


def test_metrics_after_a_torn_line_start_on_a_line_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    log = MetricsLog(path)
    head = {"kind": "step", "attempt": "a", "time": 1}
    log.write({"step": 2, "loss": float("nan"), **head})
    log.write({"step": 3, **head})
    log.close()
    rest = json.dumps(head)[1:]
    assert path.read_text().splitlines() == [
        '{"step": 1}',
        '{"step": 2, "lo',
        f'{{"step": 2, "loss": "nan", {rest}',
        f'{{"step": 3, {rest}',
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_plain_lines_in_a_file_and_one_line_on_a_terminal() -> None:
    plain, terminal = io.StringIO(), Terminal()
    for out in (plain, terminal):
        progress = Progress(0, 4, "tokens", 256, 2, out)
        for step in range(1, 5):
            progress.update(step, 2.5, 1e-3)
    lines = plain.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("step 2/4  loss 2.5000  lr 1.00e-03  ")
    assert "tokens/s" in lines[0]
    assert lines[0].endswith(" left")
    assert lines[1].endswith(" in all")
    assert terminal.getvalue().count("\r\x1b[2K") == 2
    assert terminal.getvalue().endswith("\n")


def test_a_message_never_stands_in_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = Progress(0, 9, "tokens", 256, 1, terminal)
    say("before it")
    progress.update(1, 2.5, 1e-3)
    progress.update(2, 2.5, 1e-3)
    say("in the middle of it", 0)
    say("after it")
    progress.update(3, 2.5, 1e-3)
    progress.end_line()
    progress.end_line()
    lines = terminal.getvalue().split("\n")
    assert [line.split("\r\x1b[2K")[-1].split("  loss")[0] for line in lines] == [
        "ddpgen: before it",
        "step 2/9",
        "ddpgen rank 0: in the middle of it",
        "ddpgen: after it",
        "step 3/9",
        "",
    ]


@pytest.mark.parametrize(
    ("count", "then", "said"),
    [
        (None, "", ""),
        ("0", "; it begins anew", ""),
        ("1", "", "restart 1 of 2: a worker had failed"),
        ("2", "; it begins anew", "restart 2 of 2: a worker had failed; it begins anew"),
    ],
)
def test_a_restart_is_explained(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: str | None,
    then: str,
    said: str,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    if count is not None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    say_restart(then)
    assert capsys.readouterr().err == (f"ddpgen: {said}\n" if said else "")


def test_a_launch_script_says_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPGEN_SCRIPT", raising=False)
    assert start_command(among_hosts=False) == "bash local.sh"
    assert start_command(among_hosts=True) == "bash hosts/run.sh"
    monkeypatch.setenv("DDPGEN_SCRIPT", "sbatch slurm.sbatch")
    assert start_command(among_hosts=True) == "sbatch slurm.sbatch"


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 3599, 3723)] == ["0:00", "1:00", "59:59", "1:02:03"]


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627]),
    ],
)
def test_the_learning_rate_is_a_function_of_the_step(schedule: str, factors: list[float]) -> None:
    settings = config(f"--schedule={schedule}", "--warmup-steps=2")
    assert [lr_factor(settings, step, 6) for step in range(6)] == pytest.approx(factors)


@pytest.mark.slow
def test_parameter_groups_keep_their_proportions() -> None:
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.01}], lr=0.1)
    rate = LearningRate([optimizer], config("--warmup-steps=10"), 10)
    assert rate.set_for(4) == pytest.approx(0.05)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.005])


def test_seeds_depend_on_purpose_and_position() -> None:
    seeds = {
        rng.derive(s, p, i, v) for s in (0, -1) for p in range(3) for i in (0, 1) for v in (0, 1)
    }
    assert len(seeds) == 24
    assert all(0 <= seed < 2**63 for seed in seeds)
    rng.set_global(5, torch.device("cpu"))
    first = torch.rand(3)
    rng.set_global(5, torch.device("cpu"))
    assert torch.equal(first, torch.rand(3))


def test_settings_that_change_the_bits_are_told_from_those_that_do_not() -> None:
    was = numerics.settings(config(), 10)
    free = config(
        "--world-size=4",
        "--shares=2,1,1",
        "--weight=3/2",
        "--checkpoint-keep=9",
        "--log-every=1",
        "--digest",
    )
    assert provenance.differences(was, numerics.settings(free, 99)) == []
    other = numerics.settings(config("--lr=0.5", "--schedule=cosine"), 10)
    assert provenance.differences(was, other) == [
        "last_step: None -> 10",
        "lr: 0.001 -> 0.5",
        "schedule: 'constant' -> 'cosine'",
    ]


def test_the_manifest_counts_what_is_trained_and_sent() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 5).bfloat16())
    model[0].bias.requires_grad_(False)
    trainer: Any = SimpleNamespace(
        config=config(),
        world=SimpleNamespace(device=torch.device("cpu"), size=2),
        workload=SimpleNamespace(model=model, unit="tokens", units_per_sample=2),
        settings={},
        repeats=True,
    )
    fence: Any = SimpleNamespace(attempt="a", generation=1)
    found = records._describe_run(trainer, fence)
    assert (found["parameters"], found["gradient_bytes"]) == (12 + 25, 4 * 12 + 2 * 25)


def user_file(tmp_path: Path, text: str) -> str:
    (tmp_path / "my_model.py").write_text(text)
    return "my_model.py:build"


@pytest.mark.parametrize(
    ("text", "name", "args", "message"),
    [
        ("", "gtp", {}, r"'gtp' is neither built in .*did you mean 'gpt'\?"),
        ("", "none.py:build", {}, "workload file 'none.py' is not in"),
        ("def biuld(context): ...", "my_model.py:build", {}, r"no 'build'; did you mean 'biuld'\?"),
        ("build = 3", "my_model.py:build", {}, "'build' is a int, not a function"),
        (
            "def build(context): return None",
            "my_model.py:build",
            {},
            "without model, dataset, loss",
        ),
        (
            "def build(context, depth=1): ...",
            "my_model.py:build",
            {"dept": 2},
            r"train.args.dept: .* no such argument; did you mean 'depth'\?; it takes depth",
        ),
        ("def build(context, depth): ...", "my_model.py:build", {}, "missing a required argument"),
    ],
)
def test_a_workload_that_cannot_be_built_says_what_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    name: str,
    args: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    user_file(tmp_path, text)
    with pytest.raises(TrainError, match=message):
        load_workload(name, CONTEXT, args)


def test_a_plain_object_with_the_right_attributes_is_a_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = user_file(
        tmp_path,
        "import torch, types\n"
        "def build(context, *, width=2):\n"
        "    model = torch.nn.Linear(width, 1)\n"
        "    return types.SimpleNamespace(model=model, dataset=[1, 2], loss=lambda m, b: 0)\n",
    )
    workload = load_workload(name, CONTEXT, {"width": 5})
    assert isinstance(workload, Workload)
    assert workload.model.in_features == 5  # type: ignore[union-attr]
    assert workload.unit == "samples"


@pytest.mark.parametrize(
    ("planned", "started", "among_hosts", "said"),
    [
        (2, 2, True, ""),
        (None, 3, False, ""),
        (3, 2, False, "planned for 3 processes and started as 2; "),
        (2, 4, True, "planned for 2 processes and started as 4; "),
        (2, 1, True, "planned for 2 processes and started as 1: torchrun has left a node out, as"),
    ],
)
def test_a_world_of_another_size_is_told_with_its_cause(
    planned: int | None, started: int, among_hosts: bool, said: str
) -> None:
    settings = config() if planned is None else config(f"--world-size={planned}")
    place = RankInfo.from_environment(
        {"WORLD_SIZE": f"{started}", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    )
    if not said:
        check_world_size(settings, place, among_hosts)
        return
    with pytest.raises(TrainError) as refused:
        check_world_size(settings, place, among_hosts)
    assert str(refused.value).startswith(said)
    assert ("clocks" in str(refused.value)) == (among_hosts and started < (planned or 0))


@pytest.mark.parametrize(
    ("hook", "rank", "told"), [("powersgd", 0, 1), ("powersgd", 1, 0), ("none", 0, 0)]
)
def test_powersgd_says_at_the_start_that_a_restart_changes_its_bits(
    hook: str,
    rank: int,
    told: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gradients, "wrap", lambda model, *rest, **more: model)
    monkeypatch.setattr(gradients, "_register_hook", lambda *rest: None)
    config = SimpleNamespace(comm_hook=hook, micro_batches=4, find_unused_parameters=False)
    world = SimpleNamespace(size=2, rank=rank, backend="nccl")
    gradients.AllReduceGradients(torch.nn.Linear(2, 2), world, config, StepClock())  # type: ignore[arg-type]
    said = capsys.readouterr()
    assert (said.out + said.err).count("the weights are not those") == told
