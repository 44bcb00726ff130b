"""The tier slurm's own fields of a spec, typed like the others: what each decides and what a wrong one costs.

Owns the narrow alphabet of an `#SBATCH` line, which is not bash: sbatch eats backslashes even between
single quotes, and takes `#` for a comment. What the fields mean for sbatch is slurm.py's. Pure.
"""

# ruff: noqa: RUF009 (setting() makes a dataclass field, it is not a shared default)
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddpgen.spec.fields import (
    Choice,
    ClockTime,
    Duration,
    Flag,
    Group,
    Text,
    Texts,
    Whole,
    setting,
)
from ddpgen.spec.job import DESTINATION, JobSpec

WORD = r"[A-Za-z0-9_@%+=:,./()\[\]&|*!^][A-Za-z0-9_@%+=:,./()\[\]&|*!^-]*"
_PLAIN = "letters, digits and any of _@%+=:,./()[]&|*!^-, without spaces"
_DIRECTIVE = Text(WORD, _PLAIN)
_SIZE = Text(r"[0-9]+[KMGTkmgt]?", 'a size like "16G"')
_OPTION = Text(rf"--[a-z][a-z-]*(={WORD})?", "an option of sbatch, like --qos=high")
_PATH = Text(wants="a path")


@dataclass(frozen=True, repr=False, eq=False)
class Container:
    """The image that the job runs in on every node."""

    image: str = setting(
        Text(wants="an image"),
        "A .sif file, or what the runtime takes for an image. It has to hold bash, and the Python with "
        "torch that `python` names.",
    )
    runtime: str = setting(
        Choice("apptainer", "pyxis"),
        "What runs it: apptainer (or singularity), or pyxis, Slurm's plugin for enroot.",
        "apptainer",
    )
    mounts: tuple[str, ...] = setting(
        Texts(Text(wants="a path, or source:target")),
        "What else is to be seen in it; the bundle and the checkpoint directory always are.",
        (),
    )
    options: tuple[str, ...] = setting(
        Texts(Text(wants="a word of its command line")),
        "Words added to the runtime's command line. They are taken as they are.",
        (),
    )


@dataclass(frozen=True, repr=False, eq=False)
class Environment:
    """What makes the Python with torch available on the nodes."""

    modules: tuple[str, ...] = setting(
        Texts(Text(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "a module's name, like cuda/12.4")),
        "Loaded in this order, first of all. One that does not exist ends the job at its start.",
        (),
    )
    conda: str | None = setting(_PATH, "The conda environment to activate, by name or path.", None)
    venv: str | None = setting(
        _PATH,
        "The virtual environment to activate, as a path that all nodes see.",
        None,
    )
    uv: str | None = setting(
        _PATH,
        "A project of uv, as a path that all nodes see: synchronised with its lock file at every start, "
        "and then activated.",
        None,
    )
    container: Container | None = setting(
        Group(Container, shorthand="image"),
        "The image in which everything runs. What is activated above is then of the image.",
        None,
    )


@dataclass(frozen=True, repr=False, eq=False)
class SlurmJob(JobSpec):
    """A job for the tier `slurm`: the job's fields and the tier's own."""

    meets: ClassVar[bool] = True

    time: float | None = setting(
        ClockTime(),
        "The time limit of one start. The job comes back after it until it is done. Left out: the "
        "partition's own.",
        None,
    )
    partition: str | None = setting(
        _DIRECTIVE, "Where it queues. A wrong one is refused by sbatch.", None
    )
    account: str | None = setting(_DIRECTIVE, "Who is charged for it.", None)
    qos: str | None = setting(_DIRECTIVE, "The quality of service.", None)
    cpus_per_proc: int | None = setting(
        Whole(1, 4096),
        "CPUs for each process. Fewer than its threads, and they wait for each other. Left out: its "
        "threads and its data_workers.",
        None,
    )
    mem: str | None = setting(
        _SIZE,
        "Memory per node. Too little, and the kernel kills a process; left out, the site's default.",
        None,
    )
    gpu_request: str = setting(
        Choice("gpus-per-node", "gres", "gpus-per-task", "none"),
        "How the site wants to be asked for gpus_per_node: --gpus-per-node=N, --gres=gpu:N, "
        "--gpus-per-task=N, or not at all, where whole nodes are given.",
        "gpus-per-node",
    )
    gpu_type: str | None = setting(
        Text(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "a type like a100"),
        "Which GPUs, where the site has several.",
        None,
    )
    constraint: str | None = setting(
        _DIRECTIVE, "Features the nodes must have, like a100&ib.", None
    )
    nodelist: str | None = setting(_DIRECTIVE, "Nodes that have to be among them.", None)
    exclude: str | None = setting(_DIRECTIVE, "Nodes to stay away from.", None)
    reservation: str | None = setting(_DIRECTIVE, "The reservation to run in.", None)
    licenses: str | None = setting(_DIRECTIVE, "Licenses it needs.", None)
    dependency: str | None = setting(_DIRECTIVE, "What it waits for, like afterok:4711.", None)
    array: str | None = setting(
        Text(r"[0-9][0-9,:%-]*", "indices like 0-7 or 0-7%2"),
        "Submit it once for each index. Each has its own checkpoint directory, with -INDEX at its end, "
        "and sees the index as SLURM_ARRAY_TASK_ID.",
        None,
    )
    exclusive: bool = setting(
        Flag(), "Whole nodes, shared with nobody. It may wait longer for them.", False
    )
    mail_to: str | None = setting(
        Text(r"[A-Za-z0-9_.+-]+(@[A-Za-z0-9.-]+)?", "an address"), "Who is told.", None
    )
    mail_on: tuple[str, ...] = setting(
        Texts(
            Text(
                r"NONE|BEGIN|END|FAIL|REQUEUE|ALL|INVALID_DEPEND|STAGE_OUT|"
                r"TIME_LIMIT|TIME_LIMIT_90|TIME_LIMIT_80|TIME_LIMIT_50|ARRAY_TASKS",
                "an event like END, FAIL or REQUEUE",
            )
        ),
        "Of which events. Left out: of its end and its failure.",
        ("END", "FAIL"),
    )
    comment: str | None = setting(
        Text(r"[A-Za-z0-9_@%+=:,./()\[\] -]+", "letters, digits, spaces and any of _@%+=:,./()[]-"),
        "What the site's operators read about it.",
        None,
    )
    extra: tuple[str, ...] = setting(
        Texts(_OPTION),
        "Further options of sbatch, like --mem-per-gpu=40G. One that this tier sets by itself is refused.",
        (),
    )
    requeues: int = setting(
        Whole(0, 10_000),
        "How often it may go back into the queue: after a time limit, a preemption, a lost node. It ends "
        "as failed when that is used up.",
        20,
    )
    warning: float | None = setting(
        Duration(),
        "How long before the time limit it is told to stop: one step and one checkpoint have to fit in. "
        "Left out: from step_time and write_time, else 5 minutes or a third of `time`.",
        None,
    )
    step_time: float | None = setting(
        Duration(), "How long a step takes, as measured; for `warning`.", None
    )
    write_time: float | None = setting(
        Duration(),
        "How long writing a checkpoint takes, as measured; for `warning`.",
        None,
    )
    environment: Environment = setting(
        Group(Environment), "Modules, conda, venv, uv or a container.", Environment
    )
    setup: tuple[str, ...] = setting(
        Texts(Text(wants="a line of bash")),
        "Lines of bash run once on every node at every start, in the environment, before anything else. "
        "One that fails ends the job.",
        (),
    )
    login: str | None = setting(
        DESTINATION,
        "The cluster's login node, for `ddpgen launch`, `status`, `logs` and `stop` from elsewhere. Left "
        "out: they are used on it.",
        None,
    )
    dir: str = setting(
        Text(wants="a path"),
        "Where on the login node the submitted bundles, relative checkpoint directories and logs go; all "
        "nodes have to see it. Relative or `~/`: below the home there.",
        "~/ddpgen",
    )
    ssh_options: tuple[str, ...] = setting(
        Texts(Text(wants="a word of an ssh command line")),
        "Words for every ssh command. What ssh_config can say is better said there.",
        (),
    )
