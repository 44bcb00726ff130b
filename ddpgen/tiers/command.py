"""A job → the command line of its supervisor (train/launch/words.py has its form). Pure.

Owns which options the supervisor, the launcher and the training get. An option that has the runtime's default
is left out, because the bundle pins the runtime and bundle.json records every value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpgen.spec.job import Checkpoint, JobSpec, Rendezvous, Stop, Train
from ddpgen.spec.times import seconds
from ddpgen.text.shell import Word

if TYPE_CHECKING:
    from fractions import Fraction

# Variables that a supervisor pins, unless the spec's env has them.
PINNED = (
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "CUBLAS_WORKSPACE_CONFIG",
    "TORCH_CPP_LOG_LEVEL",
    "PYTHONUNBUFFERED",
)
_FLAGS = (
    "optimizer lr weight_decay momentum schedule warmup_steps grad_clip seed precision reduction "
    "shard comm_hook bucket_cap_mb threads determinism data_workers eval_every log_every"
)


class SupervisorCommand(NamedTuple):
    """The sections of the command, in order. The arguments that a user adds follow them."""

    options: tuple[Word, ...]
    launcher: tuple[Word, ...]
    program: tuple[Word, ...]

    @property
    def host_command(self) -> tuple[Word, ...]:
        """The command that a host starts, as shown to people."""
        return (*self.launcher, "--", *self.program)


# The version lock's file name in the bundle.
LOCK = "environment.lock"
# torchrun waits this long for more hosts than the least number, at each start and after each loss of a host. Hosts that
# are started together arrive in this time. A later host joins by a restart, which costs less than a longer wait.
_LAST_CALL_S = 5
# The restarts that torchrun may make in an elastic job, in which each host that joins or leaves costs one. The training
# itself gives up if it crashes twice without progress.
_ELASTIC_RESTARTS = 1000


class TierOptions(NamedTuple):
    """The part of a supervisor's command that is a tier's own."""

    options: tuple[Word, ...] = ()
    """Options of the supervisor that follow those of every tier."""

    directory: str = ""
    """The checkpoint directory for the supervisor, if it is not the spec's."""

    store: str = ""
    """The store for checkpoints that must outlive the machine, if it is not the URL of the spec."""

    signals: str = ""
    """The signals that torchrun acts on; "" for torchrun's own default."""

    unpinned: tuple[str, ...] = ()
    """Variables that the supervisor does not set, so that the machine's own values hold."""

    procs_known: bool = False
    """True if the supervisor gets the number of processes of each node from a file of the bundle."""

    balances: bool = False
    """True if micro-batches move between the processes while the training runs."""


def command(
    job: JobSpec, tier_options: TierOptions, backend: str, weight: int | Fraction = 1
) -> SupervisorCommand:
    """Return the command for one node of a job. `weight`: the weight of each of the node's processes."""
    stores = bool(tier_options.store or job.checkpoint.url)
    added = {word for point in job.points.values() for word in point.words}
    program = _program(job, backend, weight, tier_options.balances, stores)
    return SupervisorCommand(
        (*_options(job, tier_options, backend), *tier_options.options),
        tuple(_rendezvous(job, tier_options.signals) if job.distributed else _standalone(job)),
        tuple(word for word in program if word not in added),
    )


def _standalone(job: JobSpec) -> Iterator[Word]:
    yield from ("torchrun", "--standalone", "--local-addr=127.0.0.1")
    yield from _processes(job, job.restarts)


def ports(first: int) -> str:
    """Return the range of 1000 ports from which a supervisor takes one: `first` and up, to 65535 at most."""
    return f"{first}-{min(first + 999, 65535)}"


def _rendezvous(job: JobSpec, signals: str) -> Iterator[Word]:
    """Yield the launcher's words on a host that meets other hosts at one address."""
    if job.rendezvous.launcher == "env":
        yield from ("spawn", f"--procs={job.procs_per_node}", "--first-rank={first_rank}")
        yield from ("--world-size={world_size}", "--node-rank={node_rank}")
        return
    yield from ("torchrun", "--nnodes={nodes}")
    if job.rendezvous.launcher == "torchrun-static":
        yield from ("--node-rank={node_rank}", "--master-addr={head}", "--master-port={port}")
        restarts = 0  # with fixed ranks, torchrun's agents hardly ever find each other again
    else:
        yield from ("--rdzv-backend=c10d", "--rdzv-endpoint={head}:{port}", "--rdzv-id={launch}")
        waiting = f"join_timeout={max(1, round(job.rendezvous.timeout))}"
        if job.resizes:
            waiting += f",last_call_timeout={_LAST_CALL_S}"
        # Without is_host, torchrun guesses from the hostname whether this host runs the rendezvous' store. With a
        # second network card or a VPN, no host would run it.
        yield f"--rdzv-conf=is_host={{is_head}},{waiting}"
        restarts = _ELASTIC_RESTARTS if job.resizes else job.restarts
    # The others reach this host by its address: its hostname may not resolve for them, or resolve to 127.0.1.1.
    yield "--local-addr={address}"
    yield from _processes(job, restarts)
    if signals:
        yield f"--signals-to-handle={signals}"


def _processes(job: JobSpec, restarts: int) -> Iterator[Word]:
    yield f"--nproc-per-node={job.procs_per_node}"
    yield f"--max-restarts={restarts}"
    # A crash is noticed within this many seconds. In some versions torchrun's own default is longer.
    yield "--monitor-interval=0.1"


def _options(job: JobSpec, tier_options: TierOptions, backend: str) -> Iterator[Word]:
    """Yield the supervisor's options that every tier has."""
    yield f"--job={job.name}"
    yield f"--checkpoint-dir={tier_options.directory or _from_bundle(job.checkpoint_path)}"
    kept_variables = sorted(
        name for name in PINNED if name in job.env or name in tier_options.unpinned
    )
    timeout = job.rendezvous.timeout if job.distributed else Rendezvous.timeout
    yield from non_default(
        ("procs", 1 if tier_options.procs_known else job.procs_per_node, 1),
        ("gpus", job.gpus_per_node or 0, 0),
        ("backend", backend, "gloo"),
        ("nic", job.nic or "", ""),
        ("threads", job.train.threads, 1),
        ("timeout", seconds(timeout), seconds(Rendezvous.timeout)),
        ("keep", ",".join(kept_variables), ""),
        ("store", tier_options.store or job.checkpoint.url or "", ""),
        ("ignore", ",".join(job.preflight.ignore), ""),
        ("lock", LOCK if job.locked else "", ""),
        ("secrets", ",".join(s.name + (s.file and f"={s.file}") for s in job.secrets), ""),
    )
    if job.points:
        yield "--points"
    if not job.preflight.enabled:
        yield "--no-preflight"
    if job.train.program_field != "workload" or job.train.reduction != "tree":
        yield "--bits-may-differ"


def non_default_times(*options: tuple[str, Any, str]) -> Iterator[str]:
    """Yield those options whose time is not the default. Each is (name, section of the spec, field of the section)."""
    for name, section, field in options:
        value, default = getattr(section, field), getattr(type(section), field)
        yield from non_default((name, seconds(value), seconds(default)))


def non_default(*options: tuple[str, Any, Any]) -> Iterator[str]:
    """Yield those options whose value is not the runtime's default. Each is (name, value, default)."""
    return (f"--{name}={value}" for name, value, default in options if value != default)


def _from_bundle(path: str) -> str:
    """Return `path` for a process in the bundle: a relative path starts in the directory that holds the bundle."""
    starts = ("/", "~/", "{checkpoint_dir}")
    return path if path.startswith(starts) or path == "~" else f"../{path}"


def _program(
    job: JobSpec, backend: str, weight: int | Fraction, balances: bool, stores: bool
) -> Iterator[Word]:
    if job.train.program_field != "workload":
        yield from _script(job)
        return
    yield "run"
    yield from _training(job.train)
    yield f"--backend={backend}"
    every = str(job.checkpoint.every)
    if job.preempted_after is not None:
        every = f"auto:{seconds(job.preempted_after)}"
    yield from non_default(
        ("world-size", "{world_size}" if job.distributed and not job.resizes else "", ""),
        ("weight", weight, 1),
    )
    if balances:
        yield "--balance"
    if job.digests:
        yield "--digest"
    yield from non_default_times(
        ("rendezvous-timeout", job.rendezvous, "timeout"),
        ("collective-timeout", job.rendezvous, "collective_timeout"),
    )
    yield from non_default(
        ("checkpoint-store", "{store}" if stores else "", ""),
        ("checkpoint-every", every, str(Checkpoint.every)),
        ("checkpoint-keep", job.checkpoint.keep, Checkpoint.keep),
        ("code-dir", "code" if job.code else "", ""),
    )
    if job.resizes:
        yield "--elastic"
    yield "--checkpoint-dir={checkpoint_dir}"
    assert isinstance(job.train.args, Mapping)  # a list is refused
    for name, value in job.train.args.items():
        yield f"--arg={name}={_json(value)}"


def _training(train: Train) -> Iterator[Word]:
    """Yield the flags that decide the result of the training, without those that have the runtime's default."""
    yield f"--workload={train.workload}"
    yield f"--steps={train.steps}" if train.steps else f"--epochs={train.epochs!r}"
    yield f"--global-batch-size={train.global_batch_size}"
    yield f"--micro-batch-size={train.micro_batch_size}"
    flags = _FLAGS.split()
    yield from non_default(
        *((flag.replace("_", "-"), getattr(train, flag), getattr(Train, flag)) for flag in flags)
    )
    if train.best:
        yield f"--best-metric={train.best.metric}"
        yield from non_default(("best-mode", train.best.mode or "min", "min"))
    yield from (f"--tracker={name}" for name in train.trackers)
    if train.profile:
        yield f"--profile={train.profile.steps}"
    if train.early_stop:
        yield f"--patience={train.early_stop.patience}"
        yield from non_default(("min-delta", train.early_stop.min_delta, 0.0))
    if train.find_unused_parameters:
        yield "--find-unused-parameters"


def _script(job: JobSpec) -> Iterator[Word]:
    train = job.train
    yield "script"
    if train.workdir:
        yield f"--workdir={_from_bundle(train.workdir)}"
    if train.resume.begin == "scratch":
        yield "--from-scratch"
    yield from (f"--resume-exists={pattern}" for pattern in train.resume.exists)
    yield from (f"--resume-arg={word}" for word in train.resume.args)
    yield from (f"--guard={pattern}" for pattern in train.guard)
    yield from non_default(("stop-signal", train.stop.signal, Stop.signal))
    yield from non_default_times(("stop-grace", train.stop, "grace"))
    if train.command:
        yield "--no-python"
        yield from _words(train.command)
        return
    yield f"code/{train.user_file}" if train.user_file else str(train.script)
    if not isinstance(train.args, Mapping):
        yield from _words(train.args)
        return
    for name, value in train.args.items():
        yield from argument_words(name, value, train.args_style)


def argument_words(name: str, value: Any, style: str | None) -> Iterator[str]:
    """Yield the words that a script gets for one entry of `args`. `style`: the spec's `args_style`."""
    for item in value if isinstance(value, list) else (value,):
        yield from _script_argument(f"--{name}", item, style)


def _words(words: Iterable[str]) -> Iterator[str]:
    """Yield the words unchanged, but -- as {--}, because a bare -- would begin the section of the user's arguments."""
    return ("{--}" if word == "--" else word for word in words)


def _script_argument(name: str, value: Any, style: str | None) -> Iterator[str]:
    """Yield the word for one entry of a mapping, if it needs one; ddpgen.spec.rules has refused unclear values."""
    if value is None or isinstance(value, bool):
        if style == "equals":
            yield f"{name}={value}"
        elif value:
            yield name
        elif value is False and style == "no-prefix":
            yield f"--no-{name[2:]}"
    else:
        yield f"{name}={value if isinstance(value, str) else _json(value)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
