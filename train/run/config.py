"""The argv of `python -m train run`, parsed into one frozen value.

Owns the options, their defaults and their units. The defaults are the same as in the job spec. Knows nothing of files,
processes or torch.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|s|sec|min|h|d))")
_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Period:
    """The period of the checkpoints. Exactly one field is set.

    `steps`, `seconds`: the period in this unit. `at`: the steps after which a checkpoint is written. `mean_s`: the
    average seconds between two interruptions, from which the best period follows.
    """

    steps: int | None = None
    seconds: float | None = None
    mean_s: float | None = None
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run. Sizes are in samples, durations in seconds."""

    workload: str
    steps: int | None
    epochs: Fraction | None
    global_batch_size: int
    micro_batch_size: int
    optimizer: str
    lr: float
    weight_decay: float
    momentum: float
    schedule: str
    warmup_steps: int
    grad_clip: float | None
    seed: int
    precision: str
    reduction: str
    shard: str
    comm_hook: str
    bucket_cap_mb: float
    find_unused_parameters: bool
    threads: int
    determinism: str
    data_workers: int
    backend: str
    world_size: int | None
    shares: tuple[int, ...] | None
    weight: Fraction
    balance: bool
    elastic: bool
    rendezvous_timeout: float
    collective_timeout: float
    eval_every: int
    best_metric: str
    best_mode: str
    patience: int
    min_delta: float
    log_every: int
    digest: bool
    trackers: tuple[str, ...]
    profile: tuple[int, int] | None
    checkpoint_dir: str
    checkpoint_store: str
    checkpoint_every: Period
    checkpoint_keep: int
    code_dir: str | None
    until: int | None
    accept_changes: bool
    probe: bool
    args: dict[str, Any]

    @property
    def micro_batches(self) -> int:
        """V, the number of micro-batches that make up one step."""
        return self.global_batch_size // self.micro_batch_size


def parse(argv: Sequence[str]) -> RunConfig:
    """Parse `argv`. Exits with status 2 and a message on standard error if an option is wrong."""
    parser = build_parser()
    given = vars(parser.parse_args(argv))
    given["args"] = dict(given.pop("arg"))
    given["trackers"] = tuple(dict.fromkeys(given.pop("tracker")))
    config = RunConfig(**given)
    if (config.steps is None) == (config.epochs is None):
        parser.error("give either --steps or --epochs")
    if config.global_batch_size % config.micro_batch_size:
        parser.error(
            f"--global-batch-size={config.global_batch_size} is not a multiple of "
            f"--micro-batch-size={config.micro_batch_size}"
        )
    if config.patience and not config.best_metric:
        parser.error("--patience needs --best-metric, to know what is to improve")
    if config.elastic and (config.world_size or config.shares):
        parser.error(
            "--elastic leaves the number of processes open, --world-size and --shares fix it"
        )
    if config.balance and config.reduction != "tree":
        parser.error("--balance needs --reduction=tree, whose result depends on no process' part")
    if config.shard != "none" and config.reduction != "tree":
        parser.error(
            "--shard needs --reduction=tree, whose gradients are the same bits on every process"
        )
    if config.shares is not None and sum(config.shares) != config.micro_batches:
        parser.error(
            f"--shares has to add up to the {config.micro_batches} micro-batches of a step"
        )
    return config


def build_parser() -> argparse.ArgumentParser:
    """The options of `python -m train run`."""
    parser = argparse.ArgumentParser(
        prog="python -m train run",
        description="Train one workload with DDP, resumable to the bit.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--workload", required=True, help="gpt, mnist, toy, or my_model.py:build")
    add("--steps", type=_at_least(0), help="optimizer steps in all")
    add("--epochs", type=_fraction, help="passes over the dataset; the last step is filled up")
    add("--global-batch-size", type=_at_least(1), required=True, help="samples a step")
    add("--micro-batch-size", type=_at_least(1), required=True, help="samples a forward pass")
    add("--optimizer", choices=("adamw", "adam", "sgd"), default="adamw")
    add("--lr", type=_positive, default=1e-3, help="learning rate after the warm-up")
    add("--weight-decay", type=_not_negative, default=0.0)
    add("--momentum", type=_not_negative, default=0.9, help="for sgd")
    add("--schedule", choices=("constant", "linear", "cosine"), default="constant")
    add("--warmup-steps", type=_at_least(0), default=0)
    add("--grad-clip", type=_positive, help="largest norm of the gradient")
    add("--seed", type=int, default=0)
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    add("--reduction", choices=("tree", "allreduce"), default="tree")
    add(
        "--shard",
        choices=("none", "optimizer"),
        default="none",
        help="optimizer: each process keeps only the optimizer's state of its part of the parameters",
    )
    add("--comm-hook", choices=("none", "fp16", "bf16", "powersgd"), default="none")
    add("--bucket-cap-mb", type=_positive, default=25.0, help="size of DDP's buckets, MiB")
    add("--find-unused-parameters", action="store_true")
    add("--threads", type=_at_least(1), default=1, help="intra-op threads of each process")
    add(
        "--determinism",
        choices=("default", "portable"),
        default="default",
        help="portable: the same bits on all x86 processors with AVX2, which costs speed",
    )
    add("--data-workers", type=_at_least(0), default=0, help="processes that fetch batches ahead")
    add("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    add("--world-size", type=_at_least(1), help="the number of processes the plan counts on")
    add("--shares", type=_shares, help="micro-batches of each rank: 3,3,2")
    add(
        "--weight",
        type=_fraction,
        default=Fraction(1),
        help="this process' part of a step: 3 or 1/2",
    )
    add(
        "--balance",
        action="store_true",
        help="move micro-batches from slow processes to fast ones while the training runs",
    )
    add("--elastic", action="store_true", help="hosts may come and go; SIGTERM says that they do")
    add("--rendezvous-timeout", type=seconds, default=120.0, help="to join the process group")
    add("--collective-timeout", type=seconds, default=300.0, help="for a peer in a collective")
    add("--eval-every", type=_at_least(0), default=0, help="steps; 0: only at the end")
    add("--best-metric", default="", help="metric of the evaluations; its best checkpoint stays")
    add("--best-mode", choices=("min", "max"), default="min", help="which is better: less, or more")
    add(
        "--patience",
        type=_at_least(0),
        default=0,
        help="evaluations in a row without an improvement that end the training; 0: it goes on",
    )
    add("--min-delta", type=_not_negative, default=0.0, help="improve by more than this")
    add("--log-every", type=_at_least(1), default=10, help="steps between progress lines")
    add("--digest", action="store_true", help="hash the weights every --log-every steps")
    add(
        "--tracker",
        choices=("tensorboard", "wandb", "mlflow"),
        action="append",
        default=[],
        help="where metrics go as well; may be given again",
    )
    add("--profile", type=_steps, metavar="20..25", help="trace these steps, on every rank")
    add("--checkpoint-dir", required=True)
    add(
        "--checkpoint-store",
        default="",
        metavar="PLACE",
        help="where checkpoints outlive the machine: a mounted bucket's directory, or s3://…",
    )
    add(
        "--checkpoint-every",
        type=period,
        default=Period(seconds=600.0),
        help="200 steps, 10min, or auto:2h where something interrupts every 2h on average",
    )
    add("--checkpoint-keep", type=_at_least(1), default=3)
    add("--code-dir", help="the user's files; becomes the working directory")
    add(
        "--until",
        type=_at_least(1),
        metavar="STEP",
        help="stop after this step, with a checkpoint; every step is the same as in the whole run",
    )
    add(
        "--accept-changes",
        action="store_true",
        help="resume although the settings differ from those the checkpoint was written with",
    )
    add("--probe", action="store_true", help="measure network and collectives instead of training")
    add(
        "--arg", type=_arg, action="append", default=[], metavar="NAME=JSON", help="of the workload"
    )
    return parser


def seconds(text: str) -> float:
    """Parse a duration such as `90s`, `10min`, `1h30min` into seconds. Raises argparse.ArgumentTypeError."""
    parts = list(_DURATION.finditer(text))
    if not parts or "".join(m[0] for m in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 10min or 2h")
    value = sum(float(m[1]) * _SECONDS[m[2]] for m in parts)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all")
    return value


def period(text: str) -> Period:
    """Parse `200 steps`, a duration, or `auto:` and a duration. Raises argparse.ArgumentTypeError."""
    if text.startswith("auto:"):
        return Period(mean_s=seconds(text.removeprefix("auto:")))
    found = re.fullmatch(r"(\d+) steps?", text)
    if found is None:
        return Period(seconds=seconds(text))
    if int(found[1]) == 0:
        raise argparse.ArgumentTypeError("a period of 0 steps would never pass")
    return Period(steps=int(found[1]))


def _at_least(low: int) -> Any:
    def integer(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is less than {low}")
        return value

    return integer


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _fraction(text: str) -> Fraction:
    # Exact, because 1.1 epochs of 100 samples are 110, and floating point makes that a little more.
    try:
        # Test the float first, because the fraction of 1e99999999 would take for ever.
        value = Fraction(text if "/" in text or 0 < float(text) < float("inf") else 0)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number such as 3, 0.5 or 1/2")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is negative or not finite")
    return value


def _shares(text: str) -> tuple[int, ...]:
    try:
        shares = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 3,3,2") from None
    if min(shares) < 1:
        raise argparse.ArgumentTypeError("every rank needs at least one micro-batch")
    return shares


def _steps(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)\.\.([1-9]\d*)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of steps such as 20..25")
    return int(found[1]), int(found[2])


def _arg(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name}: {value!r} is not JSON") from None
