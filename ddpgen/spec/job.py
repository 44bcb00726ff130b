"""The job spec, typed: every field with its kind and its default.

A field of the job is declared here, a field of one tier in fields.py of the tier's folder. The reference (docs/spec.md)
says what each field decides and what a wrong value costs. Rules between fields are in rules.py. Pure.
"""

# ruff: noqa: RUF009 (setting() makes a dataclass field, it is not a shared default)
from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ddpgen.spec.fields import (
    Choice,
    Flag,
    NodeCount,
    Nodes,
    Number,
    Text,
    Value,
    WholeNumber,
    setting,
)
from ddpgen.spec.groups import Arguments, Group, Pairs, Texts
from ddpgen.spec.secrets import Secret, Secrets
from ddpgen.spec.times import Duration, Period, Span, Steps, StepsOrDuration, StepSpan

if TYPE_CHECKING:
    from fractions import Fraction  # which is slow to import, and most jobs need none

MAX_SAMPLES = 100_000_000  # in a step; the positions of more would not fit into memory
# The name of an interface. An address is refused, because gloo and NCCL choose an interface only by its name.
INTERFACE = Text(
    r"(?![0-9]+(\.[0-9]+){3}$|[^:]*:[^:]*:)[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}",
    "one exact interface name, like eth0",
)
NAME = Text(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    "up to 63 letters, digits, `.`, `_` or `-`, starting with a letter or digit",
)
EXTENDED = Text(allowed="a path relative to this file")
ENV = Pairs(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _", Value(allowed="a text"))


@dataclass(frozen=True, repr=False, eq=False)
class Checkpoint:
    """The checkpoints: where they lie, how often one is written, how many are kept."""

    dir: str | None = setting(Text(allowed="a path"), None)
    every: Period = setting(StepsOrDuration(), Period(None, 600.0))
    keep: int = setting(WholeNumber(1), 3)
    shared: bool | None = setting(Flag(), None)

    @property
    def url(self) -> str | None:
        """`dir`, if it is the URL of a store; else None."""
        return self.dir if self.dir and "://" in self.dir else None

    @property
    def path(self) -> str | None:
        """`dir`, if it is a directory; else None."""
        return None if self.url else self.dir


@dataclass(frozen=True, repr=False, eq=False)
class Rendezvous:
    """How the processes find each other, and how long they wait."""

    port: int = setting(WholeNumber(1, 65535), 29500)
    timeout: float = setting(Duration(), 120.0)
    collective_timeout: float = setting(Duration(), 300.0)
    launcher: str = setting(Choice("torchrun", "torchrun-static", "env"), "torchrun")


@dataclass(frozen=True, repr=False, eq=False)
class Preflight:
    """The checks of every host before torch starts."""

    enabled: bool = setting(Flag(), True)
    ignore: tuple[str, ...] = setting(Texts(Text(r"[A-Z]+[0-9]{3}", "a code like NIC008")), ())


@dataclass(frozen=True, repr=False, eq=False)
class Python:
    """The Python that runs the job on the hosts."""

    interpreter: str = setting(Text(allowed="a program name, ~/path or /path"), "python3")
    activate: tuple[str, ...] = setting(Texts(Text(allowed="a line of bash")), ())


@dataclass(frozen=True, repr=False, eq=False)
class Environment:
    """The packages of the job's Python: those that the hosts have installed, or those of the version lock."""

    packages: str = setting(Choice("installed", "locked"), "installed")


_PYTHON = re.compile(r"(\S*/)?python[0-9.]*")
_PYTHON_FLAGS = re.compile(r"-[bBdEiIOPqRsSuvx]+")  # those without a value
# A path with `..` in it.
_UPWARDS = r"([^\0]*/)?\.\.(/|$)"


@dataclass(frozen=True, repr=False, eq=False)
class Resume:
    """How a user's script goes on from its own checkpoints."""

    begin: str = setting(Choice("auto", "scratch", "by-itself"), "auto")
    exists: tuple[str, ...] = setting(
        Texts(Text(rf"(?!{_UPWARDS})[^\0]+", "a path or a pattern like ckpt-*.pt, without ..")), ()
    )
    args: tuple[str, ...] = setting(Texts(Value(allowed="an argument")), ())


@dataclass(frozen=True, repr=False, eq=False)
class Stop:
    """How a user's script is asked to stop, and how long it may take to end."""

    signal: str | None = setting(Choice("USR1", "USR2", "TERM", "INT"), None)
    grace: float = setting(Duration(), 120.0)


@dataclass(frozen=True, repr=False, eq=False)
class Best:
    """The metric that decides which evaluation is the best."""

    metric: str = setting(
        Text(r"(?!(true|false)$)[^\0\s]+", "the name of a metric, like loss or accuracy"), "loss"
    )
    mode: str | None = setting(Choice("min", "max"), None)


@dataclass(frozen=True, repr=False, eq=False)
class EarlyStop:
    """The rule that ends the training when evaluations no longer improve."""

    patience: int = setting(WholeNumber(1))
    min_delta: float = setting(Number(low=0), 0.0)


@dataclass(frozen=True, repr=False, eq=False)
class Profile:
    """The steps that the profiler traces."""

    steps: Span = setting(StepSpan())


@dataclass(frozen=True, repr=False, eq=False)
class Train:
    """The training: the workload, script or command, and the settings of its loop."""

    workload: str | None = setting(
        Text(
            r"[A-Za-z_][A-Za-z0-9_]*|[^:\0]+\.py:[A-Za-z_][A-Za-z0-9_]*",
            "gpt, mnist, toy, or your own as FILE.py:FUNCTION",
        ),
        None,
    )
    script: str | None = setting(
        Text(
            r"[^\0:]+\.py|module:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
            "a .py file of `code`, /PATH.py on the hosts, or module:NAME (any other program: command)",
        ),
        None,
    )
    command: tuple[str, ...] = setting(Texts(Value(allowed="a word")), ())
    steps: int | None = setting(WholeNumber(1), None)
    epochs: float | None = setting(Number(greater_than=0), None)
    global_batch_size: int | None = setting(WholeNumber(1, MAX_SAMPLES), None)
    micro_batch_size: int | None = setting(WholeNumber(1, MAX_SAMPLES), None)
    optimizer: str = setting(Choice("adamw", "adam", "sgd"), "adamw")
    lr: float = setting(Number(greater_than=0), 1e-3)
    weight_decay: float = setting(Number(low=0), 0.0)
    momentum: float = setting(Number(low=0), 0.9)
    schedule: str = setting(Choice("constant", "linear", "cosine"), "constant")
    warmup_steps: int = setting(WholeNumber(0), 0)
    grad_clip: float | None = setting(Number(greater_than=0), None)
    seed: int = setting(WholeNumber(0), 0)
    precision: str = setting(Choice("fp32", "bf16", "fp16"), "fp32")
    reduction: str = setting(Choice("tree", "allreduce"), "tree")
    shard: str = setting(Choice("none", "optimizer"), "none")
    comm_hook: str = setting(Choice("none", "fp16", "bf16", "powersgd"), "none")
    bucket_cap_mb: float = setting(Number(greater_than=0), 25.0)
    find_unused_parameters: bool = setting(Flag(), False)
    threads: int = setting(WholeNumber(1), 1)
    determinism: str = setting(Choice("default", "portable"), "default")
    data_workers: int = setting(WholeNumber(0), 0)
    eval_every: int = setting(Steps(), 0)
    best: Best | None = setting(Group(Best, shorthand="metric"), None)
    early_stop: EarlyStop | None = setting(Group(EarlyStop), None)
    log_every: int = setting(Steps(1), 10)
    digest: bool | None = setting(Flag(), None)
    profile: Profile | None = setting(Group(Profile, shorthand="steps"), None)
    trackers: tuple[str, ...] = setting(Texts(Choice("tensorboard", "wandb", "mlflow")), ())
    args: Mapping[str, Any] | tuple[str, ...] = setting(
        Arguments(
            r"[A-Za-z_][A-Za-z0-9_.-]*",
            "letters, digits, `.`, _ and -, starting with a letter",
            Value(allowed="a text"),
        ),
        dict,
    )
    args_style: str | None = setting(Choice("flags", "equals", "no-prefix"), None)
    workdir: str | None = setting(Text(allowed="a path"), None)
    resume: Resume = setting(Group(Resume, shorthand="begin"), Resume)
    guard: tuple[str, ...] = setting(
        Texts(
            Text(
                rf"(?![/~]|{_UPWARDS})[^\0]*[^\0/]/[^\0/]+",
                "DIRECTORY/FILE in the working directory or {checkpoint_dir}, without .., like ckpt-*/DONE",
            )
        ),
        (),
    )
    stop: Stop = setting(Group(Stop, shorthand="signal"), Stop)

    @property
    def program_field(self) -> str:
        """The field that says what runs: workload, script or command."""
        return "script" if self.script else "command" if self.command else "workload"

    @property
    def user_file(self) -> str:
        """The user's file in `code` that the job runs; "" if it runs no such file."""
        if self.program_field == "workload":
            file = (self.workload or "").rpartition(":")[0]
            return file and posixpath.normpath(file)
        program = self.script or self.command[0]
        if self.command and _PYTHON.fullmatch(program):
            # Python looks for its script in the working directory, which has the files of `code`.
            words = [word for word in self.command[1:] if not _PYTHON_FLAGS.fullmatch(word)]
            script = words[0] if words and not self.workdir else ""
            on_host = not script.endswith(".py") or script.startswith(("/", "{"))
            return "" if on_host else posixpath.normpath(script)
        if program.startswith(("/", "~/", "module:")) or (self.command and "/" not in program):
            return ""
        return posixpath.normpath(program)


class PointProgram(NamedTuple):
    """The words that one point of a sweep adds to the program, and an id of the point's whole program.

    `args`: its words of `train.args`, known before the program is planned.
    """

    words: tuple[str, ...] = ()
    id: str = ""
    args: tuple[str, ...] = ()


class Machine(NamedTuple):
    """One node of a job.

    `name` is "" if a scheduler chooses the node. `weight`: the share of each process in the work, relative to the
    processes of other nodes.
    """

    name: str
    procs: int
    gpus: int
    weight: int | Fraction = 1


@dataclass(frozen=True, repr=False, eq=False)
class JobSpec:
    """One job for one tier: the spec's top level with that tier's overlay merged in.

    A tier with fields of its own has a subclass, which overrides the properties that depend on these fields.
    """

    # True if the job's processes meet over a network.
    distributed: ClassVar[bool] = False
    # True if the job's fields about machines hold for every machine. If False, the tier's own rules check the machines.
    uniform: ClassVar[bool] = True

    name: str = setting(NAME)
    train: Train = setting(Group(Train))
    nodes: NodeCount = setting(Nodes(100_000), NodeCount(1))
    procs_per_node: int = setting(WholeNumber(1, 1024), None)
    backend: str = setting(Choice("auto", "gloo", "nccl"), "auto")
    nic: str | None = setting(INTERFACE, None)
    gpus_per_node: int | None = setting(WholeNumber(0, 1024), None)
    checkpoint: Checkpoint = setting(Group(Checkpoint), Checkpoint)
    rendezvous: Rendezvous = setting(Group(Rendezvous), Rendezvous)
    preflight: Preflight = setting(Group(Preflight, shorthand="enabled"), Preflight)
    restarts: int = setting(WholeNumber(0, 1000), 3)
    env: Mapping[str, str] = setting(ENV, dict)
    secrets: tuple[Secret, ...] = setting(Secrets(), ())
    python: Python = setting(Group(Python, shorthand="interpreter"), Python)
    environment: Environment = setting(Group(Environment, shorthand="packages"), Environment)
    code: tuple[str, ...] = setting(Texts(Text(allowed="a path relative to this file")), ())
    # The points of a sweep by name. A job with points has the values of the first.
    points: Mapping[str, PointProgram] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if vars(self)["procs_per_node"] is None:
            # A command may start processes by itself.
            gpus = 0 if self.train.command else self.gpus_per_node
            object.__setattr__(self, "procs_per_node", gpus or 1)

    @property
    def checkpoint_path(self) -> str:
        """The checkpoint directory on a host's disk. A relative path starts at the directory that holds the bundle."""
        return self.checkpoint.path or f"checkpoints/{self.name}"

    @property
    def locked(self) -> bool:
        """True if each host installs the packages of the version lock."""
        return self.environment.packages == "locked"

    @property
    def world_size(self) -> int:
        """The number of processes on all nodes."""
        return self.nodes * self.procs_per_node

    @property
    def on_gpus(self) -> bool:
        """True if every process runs on a node with a GPU."""
        return bool(self.gpus_per_node)

    @property
    def machines(self) -> Sequence[Machine]:
        """The nodes, by node rank."""
        return (Machine("", self.procs_per_node, self.gpus_per_node or 0),) * self.nodes

    @property
    def weighted(self) -> bool:
        """True if the spec gives some processes more work than others."""
        return False

    @property
    def digests(self) -> bool:
        """True if the weights are hashed every `log_every` steps. This is the default if each of these steps has a
        checkpoint, because its copy of the weights can be hashed."""
        if self.train.digest is not None or self.preempted_after is not None:
            return bool(self.train.digest)
        period = self.checkpoint.every.steps
        return period is not None and self.train.log_every % period == 0

    @property
    def balances(self) -> bool:
        """True if micro-batches move between processes while the job runs."""
        return False

    @property
    def sharded(self) -> bool:
        """True if each process keeps only a part of the optimizer's state."""
        return self.train.shard != "none" and self.world_size > 1

    @property
    def resizes(self) -> bool:
        """True if nodes may come and go while the job runs."""
        return False

    @property
    def preempted_after(self) -> float | None:
        """The mean time between preemptions in seconds, from which the job computes its checkpoint interval."""
        return None

    @property
    def single(self) -> JobSpec:
        """The job as a single copy, even if a scheduler would start several: the first point of a sweep."""
        return replace(self, points={}) if self.points else self

    def at_point(self, name: str) -> JobSpec:
        """The job of one point of a sweep, which has its own part of the checkpoint directory."""
        directory = f"{(self.checkpoint.url or self.checkpoint_path).rstrip('/')}/{name}"
        return replace(self, points={}, checkpoint=replace(self.checkpoint, dir=directory))

    @property
    def installs(self) -> frozenset[str] | None:
        """The packages that the job installs, with all that they need, if its Python has no others; else None."""
        return None

    def persists(self, path: str) -> bool:
        """True if a file below `path`, as the job sees it, still exists at the job's next start."""
        return True

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in an optimizer step, over all processes; 0 for a script."""
        train = self.train
        if not train.global_batch_size or not train.micro_batch_size:
            return 0
        return math.ceil(train.global_batch_size / train.micro_batch_size)
