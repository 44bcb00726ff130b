"""The job spec, typed: every field with its default and with what a wrong value costs the user.

This is the one place where a field is declared. `ddpgen schema`, `docs/spec.md` and the reader's
messages all come from here. Rules between fields are in rules.py. Pure.
"""

# ruff: noqa: RUF009 (setting() makes a dataclass field, it is not a shared default)
from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ddpgen.spec.fields import (
    Arguments,
    Choice,
    Duration,
    Every,
    Flag,
    Group,
    Groups,
    NodeCount,
    Nodes,
    Number,
    Pairs,
    Period,
    Steps,
    Text,
    Texts,
    Value,
    Whole,
    setting,
)

if TYPE_CHECKING:
    from fractions import Fraction  # which is slow to import, and most jobs need none

TIERS = ("local", "hosts", "slurm", "sky")
_INTERFACE = Text(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}", "one exact interface name, like eth0")
ADDRESS = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", "an IPv4 address or a host name")
DESTINATION = Text(
    r"[^\s\0-][^\s\0]*", "a destination of ssh: an alias, user@host or ssh://user@host:port"
)
_NAME = Text(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    "up to 63 letters, digits, `.`, `_` or `-`, starting with a letter or digit",
)
_ENV = Pairs(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _", Value(wants="a text"))


@dataclass(frozen=True, repr=False, eq=False)
class Checkpoint:
    """Where the job's progress is kept and how often it is written."""

    dir: str | None = setting(
        Text(wants="a path"),
        "Where checkpoints, metrics and the job's status go. Relative: beside the bundle, so that "
        "rendering again never touches them; `~/` is the home on the host. A URL like s3://bucket/place: "
        "there as well, by fsspec (`pip install s3fs` on the hosts). Two jobs with the same directory "
        "exclude each other. Left out: checkpoints/<name>.",
        None,
    )
    every: Period = setting(
        Every(),
        "How often a checkpoint is written, in steps or in time. A crash loses at most this much "
        "work; too often, and the disk slows training down.",
        Period(None, 600.0),
    )
    keep: int = setting(
        Whole(1),
        "How many checkpoints are kept. With 1, a damaged newest checkpoint means starting over.",
        3,
    )
    shared: bool | None = setting(
        Flag(),
        "Set to true where all hosts are to see one directory, as on NFS: the launch then fails when "
        "they do not. Left out, both work.",
        None,
    )

    @property
    def url(self) -> str | None:
        """Where checkpoints are kept beside the directory, when `dir` is a URL."""
        return self.dir if self.dir and "://" in self.dir else None

    @property
    def path(self) -> str | None:
        """`dir`, when it is a directory."""
        return None if self.url else self.dir


@dataclass(frozen=True, repr=False, eq=False)
class Rendezvous:
    """How the processes find each other, and how long they wait."""

    port: int = setting(
        Whole(1, 65535),
        "The head's port. One that is taken or blocked by a firewall keeps the nodes apart. A job "
        "on one machine needs none. On slurm and sky one of the thousand from here on.",
        29500,
    )
    timeout: float = setting(
        Duration(),
        "How long the processes wait for each other at the start. Too short, and a slow machine "
        "misses it; too long, and a missing one costs you that time before you hear of it.",
        120.0,
    )
    collective_timeout: float = setting(
        Duration(),
        "How long a step waits for a silent process before the attempt is given up. Shorter than "
        "the longest pause of a healthy process, and good runs die.",
        300.0,
    )
    launcher: str = setting(
        Choice("torchrun", "torchrun-static", "env"),
        "How processes on several hosts are started. torchrun: hosts meet at the head, in any order; "
        "restarts crashed processes. torchrun-static: the plan numbers the hosts. env: no torchrun at "
        "all, for networks that confuse it. With the last two a crash starts all hosts anew.",
        "torchrun",
    )


@dataclass(frozen=True, repr=False, eq=False)
class Preflight:
    """What every host looks at before torch starts."""

    enabled: bool = setting(
        Flag(),
        "Look at every host, and at the ways between them, before torch starts. Switched off, a wrong "
        "NIC or a closed port hangs the job, and nothing tells you why.",
        True,
    )
    ignore: tuple[str, ...] = setting(
        Texts(Text(r"[A-Z]+[0-9]{3}", "a code like NIC008")),
        "Codes that are to be warnings and no errors (`ddpgen explain` lists them). What is ignored may "
        "show itself later, without a name.",
        (),
    )


@dataclass(frozen=True, repr=False, eq=False)
class Python:
    """Which Python runs the job on the hosts."""

    interpreter: str = setting(
        Text(wants="a program name, ~/path or /path"),
        "The Python that has torch: a name on the host's PATH, ~/path or /path. A wrong one ends "
        "the launch before anything runs.",
        "python3",
    )
    activate: tuple[str, ...] = setting(
        Texts(Text(wants="a line of bash")),
        "Lines of bash to run first, such as `module load …` or `source ~/venv/bin/activate`. They "
        "are taken as they are, not quoted; one that fails ends the launch.",
        (),
    )


@dataclass(frozen=True, repr=False, eq=False)
class Resume:
    """How a user's script goes on from its own checkpoints."""

    begin: str = setting(
        Choice("auto", "scratch", "by-itself"),
        "auto: from what is there. scratch: each start may train over it. by-itself: a command finds its "
        "checkpoint without being told.",
        "auto",
    )
    exists: tuple[str, ...] = setting(
        Texts(Text(wants="a path or a pattern like ckpt-*.pt")),
        "What shows that there is progress: files in the working directory, or absolute.",
        (),
    )
    args: tuple[str, ...] = setting(
        Texts(Text(wants="an argument")), "Arguments that are added then.", ()
    )


@dataclass(frozen=True, repr=False, eq=False)
class Stop:
    """How a user's script is asked to stop, and how long it may take."""

    signal: str | None = setting(
        Choice("USR1", "USR2", "TERM", "INT"),
        "What every process of the script gets. Left out, none: it is ended at a step boundary.",
        None,
    )
    grace: float = setting(Duration(), "After this it gets TERM, and is killed 10 s later.", 120.0)


@dataclass(frozen=True, repr=False, eq=False)
class Best:
    """Which evaluation is the best."""

    metric: str = setting(
        Text(r"[^\0\s]+", "the name of a metric, like loss or accuracy"),
        "A metric of the evaluations; an unknown one is an error before the first step.",
        "loss",
    )
    mode: str | None = setting(
        Choice("min", "max"),
        "Whether less of it is better, or more. The wrong one keeps the worst. Left out: min, for `loss`; "
        "any other metric needs it.",
        None,
    )


@dataclass(frozen=True, repr=False, eq=False)
class EarlyStop:
    """When evaluations that get no better end the training."""

    patience: int = setting(
        Whole(1),
        "After so many evaluations in a row that are no better the training is done (exit code 0). Too few, "
        "and noise ends it.",
    )
    min_delta: float = setting(
        Number(low=0), "An improvement of no more than this does not count as one.", 0.0
    )


@dataclass(frozen=True, repr=False, eq=False)
class Train:
    """What is trained, on how much, and how."""

    workload: str | None = setting(
        Text(
            r"[A-Za-z_][A-Za-z0-9_]*|[^:\0]+\.py:[A-Za-z_][A-Za-z0-9_]*",
            "gpt, mnist, toy, or your own as FILE.py:FUNCTION",
        ),
        "What to train: a built-in (gpt, mnist, toy), or FILE.py:FUNCTION in `code` that returns a "
        "workload.",
        None,
    )
    script: str | None = setting(
        Text(
            r"[^\0:]+\.py|module:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
            "a .py file of `code`, /PATH.py on the hosts, or module:NAME (any other program: command)",
        ),
        "A training script of your own, for those who keep their own loop: a file of `code`, one that is on "
        "the hosts (an image's), or a module as `python -m` takes it. docs/own-script.md says what it gets.",
        None,
    )
    command: tuple[str, ...] = setting(
        Texts(Text(wants="a word")),
        "Any other program, word by word, that each process runs: [./train.sh, --lr, 0.1]. Of what it saves "
        "nothing is known, so resume has to say how it goes on.",
        (),
    )
    steps: int | None = setting(
        Whole(1),
        "How many optimizer steps to train. Give this or epochs.",
        None,
    )
    epochs: float | None = setting(
        Number(above=0),
        "How often to go over the data. Give this or steps.",
        None,
    )
    global_batch_size: int | None = setting(
        Whole(1),
        "Samples per optimizer step over all processes; a workload needs it. It decides what is learned; "
        "the number of processes does not.",
        None,
    )
    micro_batch_size: int | None = setting(
        Whole(1),
        "Samples per forward pass; a workload needs it, and it has to divide global_batch_size. Too "
        "large, and a process runs out of memory; it is part of the result's bits.",
        None,
    )
    optimizer: str = setting(Choice("adamw", "adam", "sgd"), "How gradients become steps.", "adamw")
    lr: float = setting(
        Number(above=0),
        "The (highest) learning rate. Too high diverges, too low wastes the run.",
        1e-3,
    )
    weight_decay: float = setting(
        Number(low=0), "Pull of the weights towards zero; too much underfits.", 0.0
    )
    momentum: float = setting(Number(low=0), "Momentum of sgd; the others ignore it.", 0.9)
    schedule: str = setting(
        Choice("constant", "linear", "cosine"),
        "How the learning rate goes on after the warm-up: stays, or falls to zero at the end.",
        "constant",
    )
    warmup_steps: int = setting(
        Whole(0),
        "Steps over which the learning rate rises from zero. None, and a transformer may diverge at "
        "the start.",
        0,
    )
    grad_clip: float | None = setting(
        Number(above=0),
        "The gradient's norm is cut to this. Left out, one bad batch can undo the run.",
        None,
    )
    seed: int = setting(
        Whole(0), "Decides weights, sample order and dropout: same seed, same bits.", 0
    )
    precision: str = setting(
        Choice("fp32", "bf16", "fp16"),
        "The numbers of forward and backward. The short ones are faster on GPUs and less exact; "
        "fp16 needs a GPU.",
        "fp32",
    )
    reduction: str = setting(
        Choice("tree", "allreduce"),
        "How gradients are summed. tree: same bits on any number of processes. allreduce: DDP's own "
        "way, its bits change with the number of processes.",
        "tree",
    )
    comm_hook: str = setting(
        Choice("none", "fp16", "bf16", "powersgd"),
        "Compress gradients on their way; less traffic, other bits. Only with allreduce. With powersgd a "
        "restart changes the bits as well.",
        "none",
    )
    bucket_cap_mb: float = setting(
        Number(above=0),
        "MiB of gradients sent at once. Too small costs latency, too large costs overlap.",
        25.0,
    )
    find_unused_parameters: bool = setting(
        Flag(),
        "Set to true when a forward pass may skip parameters: without it such a step hangs until "
        "the collective timeout.",
        False,
    )
    threads: int = setting(
        Whole(1),
        "CPU threads per process. More than cores/processes slows everything down; it is part of "
        "the result's bits.",
        1,
    )
    data_workers: int = setting(
        Whole(0),
        "Processes per rank that prepare data ahead. 0 prepares it in the training process.",
        0,
    )
    eval_every: int = setting(
        Steps(),
        'Evaluate on the held-out data every so many steps; "0 steps" means only at the end.',
        0,
    )
    best: Best | None = setting(
        Group(Best, shorthand="metric"),
        "Keep the checkpoint of the best evaluation beside the newest ones, and name it in best.json. Left "
        "out, it goes with the others.",
        None,
    )
    early_stop: EarlyStop | None = setting(
        Group(EarlyStop),
        "End the training when the metric of `best` gets no better. Left out, it goes on to the last step.",
        None,
    )
    log_every: int = setting(Steps(1), "A line of progress every so many steps.", 10)
    args: Mapping[str, Any] | tuple[str, ...] = setting(
        Arguments(
            r"[A-Za-z_][A-Za-z0-9_.-]*",
            "letters, digits, `.`, _ and -, starting with a letter",
            Value(wants="a text"),
        ),
        "Arguments of the workload or script. A name that a workload does not know is an error. A script "
        "gets a mapping as --name=value, `true` as --name, a list's items as --name=item each; a list "
        "instead of the mapping word for word. {checkpoint_dir}, {job}, {attempt}, {world_size}, "
        "{port} and {array_index} are filled in.",
        dict,
    )
    args_style: str | None = setting(
        Choice("flags", "equals", "no-prefix"),
        "How a script is told `true`, `false` and `null` of a mapping. flags: --name, nothing, nothing. "
        "equals: --name=True, =False, =None. no-prefix: --name, --no-name, nothing. Left out, `false` and "
        "`null` are refused.",
        None,
    )
    workdir: str | None = setting(
        Text(wants="a path"),
        "Where a script runs: a directory of its own, in which the files of `code` are links, so that what "
        "it writes stays out of the bundle. Relative: beside the bundle. Left out: work in the checkpoint "
        "directory.",
        None,
    )
    resume: Resume = setting(
        Group(Resume, shorthand="begin"),
        "How a script goes on from what it has saved. One that loads it by itself, Hugging Face's Trainer and "
        "Lightning need nothing here; one that begins anew over its own checkpoint is refused.",
        Resume,
    )
    guard: tuple[str, ...] = setting(
        Texts(Text(r"[^\0]*[^\0/]/[^\0/]+", "DIRECTORY/FILE, like ckpt-*/DONE")),
        "The file that a script or command writes last into each of its checkpoint directories. A directory "
        "of this pattern without it is moved to `torn` at the next start; name no others by it.",
        (),
    )
    stop: Stop = setting(
        Group(Stop, shorthand="signal"),
        "How a script is stopped. Left out, it ends after a step and a save of its own.",
        Stop,
    )

    @property
    def runs(self) -> str:
        """The field that says what runs: workload, script or command."""
        return "script" if self.script else "command" if self.command else "workload"

    @property
    def own_file(self) -> str:
        """The user's file in `code` that is run; "" where there is none."""
        if self.runs == "workload":
            return (self.workload or "").rpartition(":")[0]
        place = self.script or self.command[0]
        if place.startswith(("/", "~/", "module:")) or (self.command and "/" not in place):
            return ""
        return posixpath.normpath(place)


@dataclass(frozen=True, repr=False, eq=False)
class JobSpec:
    """One job for one tier: the spec's top level with that tier's overlay merged in."""

    # Whether its processes meet over a network.
    meets: ClassVar[bool] = False

    name: str = setting(
        _NAME,
        "The job's name: of the bundle's directory, and of its checkpoints unless checkpoint.dir "
        "says otherwise. Two jobs of one name share them.",
    )
    train: Train = setting(Group(Train), "What is trained, on how much, and how.")
    nodes: NodeCount = setting(
        Nodes(100_000), "How many machines. `local` runs on exactly one.", NodeCount(1)
    )
    procs_per_node: int = setting(
        Whole(1, 1024),
        "Processes per machine: one per GPU, or a few on CPUs. More than there are cores or GPUs "
        "is slower than fewer.",
        1,
    )
    backend: str = setting(
        Choice("auto", "gloo", "nccl"),
        "How processes talk: nccl between NVIDIA GPUs, gloo otherwise. auto: nccl when gpus_per_node "
        "asks for GPUs, else gloo.",
        "auto",
    )
    nic: str | None = setting(
        _INTERFACE,
        "The network interface that carries gradients, by exact name. A wrong one hangs the job or "
        "crawls over a slow network. Left out, local uses loopback.",
        None,
    )
    gpus_per_node: int | None = setting(
        Whole(0, 1024),
        "GPUs to use on each machine; left out or 0, the job runs on CPUs.",
        None,
    )
    checkpoint: Checkpoint = setting(
        Group(Checkpoint), "Where progress is kept, how often, how much of it.", Checkpoint
    )
    rendezvous: Rendezvous = setting(
        Group(Rendezvous), "How processes meet and how long they wait.", Rendezvous
    )
    preflight: Preflight = setting(
        Group(Preflight, shorthand="enabled"),
        "What every host looks at before torch starts; `off` skips it.",
        Preflight,
    )
    restarts: int = setting(
        Whole(0, 1000),
        "How often crashed processes are restarted from the last checkpoint before the job fails. In "
        "an elastic job only crashes without a newer checkpoint count.",
        3,
    )
    env: Mapping[str, str] = setting(
        _ENV,
        "Environment variables of the job, byte for byte; numbers are taken as written. What is "
        "named here wins over what the scripts would set.",
        dict,
    )
    python: Python = setting(
        Group(Python, shorthand="interpreter"),
        "The Python on the hosts: an interpreter, or interpreter and activation lines.",
        Python,
    )
    code: tuple[str, ...] = setting(
        Texts(Text(wants="a path relative to this file")),
        "Your files, relative to the spec: of a directory its contents, of a file itself. They are "
        "copied into the bundle's code/; what is left out is missing on the host.",
        (),
    )

    @property
    def checkpoint_path(self) -> str:
        """The checkpoint directory on the disk of a host; a relative one lies beside the bundle."""
        return self.checkpoint.path or f"checkpoints/{self.name}"

    @property
    def world_size(self) -> int:
        """Processes over all nodes."""
        return self.nodes * self.procs_per_node

    @property
    def on_gpus(self) -> bool:
        """Whether there is a GPU wherever a process runs."""
        return bool(self.gpus_per_node)

    @property
    def micro_batches(self) -> int:
        """Micro-batches per optimizer step over all processes; 0 for a script."""
        train = self.train
        if not train.global_batch_size or not train.micro_batch_size:
            return 0
        return math.ceil(train.global_batch_size / train.micro_batch_size)


@dataclass(frozen=True, repr=False, eq=False)
class Host:
    """One machine of the tier `hosts`. What is left out is as the job says."""

    name: str = setting(
        _NAME,
        "What the host is called here: in its script hosts/NAME.sh and before its lines of output.",
    )
    ssh: str | None = setting(
        DESTINATION,
        "Where ssh finds it, as you would type it; ssh_config, keys and jump hosts are in force. Left "
        "out: its name.",
        None,
    )
    address: str | None = setting(
        ADDRESS,
        "How the other hosts reach it. One that leads to another network card than `nic` keeps the "
        "hosts apart. Left out: the host in `ssh`.",
        None,
    )
    nic: str | None = setting(
        _INTERFACE,
        "Its network interface towards the others, by exact name. A wrong one is named at the start. "
        "Left out: the job's `nic`, else the one by which it reaches the head.",
        None,
    )
    procs: int | None = setting(
        Whole(1, 1024),
        "Processes on it, instead of procs_per_node. More than cores or GPUs slows all hosts down.",
        None,
    )
    gpus: int | None = setting(
        Whole(0, 1024), "GPUs to use on it, instead of gpus_per_node; 0 for none.", None
    )
    share: float | None = setting(
        Number(above=0),
        "Its part of the work, relative to the others'. Without it every process does the same, and "
        "all wait for the slowest host. The result does not depend on it.",
        None,
    )
    dir: str | None = setting(
        Text(wants="a path"),
        "Where on it the bundle and relative checkpoint directories go, instead of targets.hosts.dir.",
        None,
    )
    python: Python | None = setting(
        Group(Python, shorthand="interpreter"),
        "Its Python, instead of the job's: an interpreter, or interpreter and activation lines.",
        None,
    )
    env: Mapping[str, str] = setting(
        _ENV,
        "Environment variables on it, laid over the job's.",
        dict,
    )


@dataclass(frozen=True, repr=False, eq=False)
class HostsJob(JobSpec):
    """A job for the tier `hosts`: the job's fields and the tier's own."""

    meets: ClassVar[bool] = True

    nodes: NodeCount = setting(
        Nodes(100_000),
        "How many hosts; left out, all that are listed. A range like 2..4 makes the job elastic: it "
        "goes on with fewer when one is lost, and takes it back.",
        None,
    )
    hosts: tuple[Host, ...] = setting(
        Groups(Group(Host, shorthand="name")),
        "The machines, as names or mappings. One that is missing here takes no part.",
        (),
    )
    head: str | None = setting(
        Text(wants="the name of a host"),
        "The host where all meet; the others have to reach it. Left out: the first.",
        None,
    )
    dir: str = setting(
        Text(wants="a path"),
        "Where on the hosts the bundle goes, as DIR/<name>. Relative or `~/`: below the home there. A "
        "place without room ends the launch before anything is started.",
        "~/ddpgen",
    )
    ssh_options: tuple[str, ...] = setting(
        Texts(Text(wants="a word of an ssh command line")),
        "Words for every ssh command, like `-J` and `gate`. What ssh_config can say is better said there.",
        (),
    )

    def __post_init__(self) -> None:
        if vars(self)["nodes"] is None:
            object.__setattr__(self, "nodes", NodeCount(len(self.hosts) or 1))

    @property
    def world_size(self) -> int:
        """Processes over all hosts."""
        return sum(self.procs(host) for host in self.hosts) or super().world_size

    @property
    def on_gpus(self) -> bool:
        """Whether every host has a GPU."""
        return all(self.gpus(host) for host in self.hosts)

    @property
    def order(self) -> tuple[Host, ...]:
        """The hosts by node rank: the head, then the others as they are listed."""
        head = self.head or (self.hosts[0].name if self.hosts else "")
        return tuple(sorted(self.hosts, key=lambda host: host.name != head))

    def procs(self, host: Host) -> int:
        """How many processes run on `host`."""
        return host.procs or self.procs_per_node

    def gpus(self, host: Host) -> int:
        """How many GPUs the job uses on `host`."""
        return (self.gpus_per_node if host.gpus is None else host.gpus) or 0

    def weight(self, host: Host) -> int | Fraction:
        """The part of the work of each process on `host`, relative to the others'."""
        if host.share is None:
            return 1
        from fractions import Fraction

        return Fraction(repr(host.share)) / self.procs(host)

    def on(self, host: Host) -> HostsJob:
        """The job as `host` sees it."""
        return replace(
            self,
            procs_per_node=self.procs(host),
            nic=host.nic or self.nic,
            gpus_per_node=self.gpus_per_node if host.gpus is None else host.gpus,
            python=host.python or self.python,
            env={**self.env, **host.env},
            dir=host.dir or self.dir,
        )
