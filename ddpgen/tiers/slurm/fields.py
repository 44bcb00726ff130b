"""The tier slurm's own fields of a spec, typed like the others. Pure.

tiers/slurm/directives.py turns the fields into `#SBATCH` lines.
"""

# ruff: noqa: RUF009 (setting() makes a dataclass field, it is not a shared default)
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from ddpgen.spec.fields import Choice, Flag, Refused, Text, WholeNumber, setting
from ddpgen.spec.groups import Group, Texts
from ddpgen.spec.job import Environment, JobSpec
from ddpgen.spec.places import EnvironmentPath, HostDirectory, HostPath
from ddpgen.spec.ssh import Destination
from ddpgen.spec.times import ClockTime, Duration
from ddpgen.spec.yamltree import Scalar
from ddpgen.tiers.slurm.notation import (
    WORD,
    ArrayIndices,
    Constraint,
    Dependency,
    Directive,
    Licenses,
    NodeList,
)

if TYPE_CHECKING:
    from ddpgen.tiers.slurm.site_limits import Limits

SIZE = Text(r"[0-9]+([KMGTkmgt][Bb]?)?", 'a size like "16G"')
_MAIL = r"[A-Za-z0-9_.+'-]+(@[A-Za-z0-9.-]+)?"
_MAIL_EVENTS = (
    "NONE|BEGIN|END|FAIL|REQUEUE|ALL|INVALID_DEPEND|STAGE_OUT|ARRAY_TASKS|"
    "TIME_LIMIT|TIME_LIMIT_90|TIME_LIMIT_80|TIME_LIMIT_50"
)


class Option(Text):
    """An option of sbatch that has no field."""

    def __init__(self) -> None:
        super().__init__(
            rf"--[a-z][a-z-]*(=-?{WORD})?", "an option of sbatch, like --mem-per-gpu=40G"
        )

    def parse(self, raw: Scalar) -> str:
        if re.match(r"(hetjob|packjob|:)(\s|$)|--(het|pack)-group\b", raw.text):
            problem = f"{raw.text} makes components with nodes of their own, and the job runs on those of one component alone"
            raise Refused(problem, "ask for all nodes at once, with nodes: and constraint:")
        return super().parse(raw)


class LimitsGroup(Group):
    """The group of a site's limits. It loads its fields at the first use, because few specs have limits.

    bundle.json leaves it out, because a bundle holds a job that fits.
    """

    def __init__(self) -> None:
        self.shorthand, self.allowed = "", "a mapping"

    @cached_property
    def model(self) -> type[Limits]:
        from ddpgen.tiers.slurm.site_limits import Limits

        return Limits

    def dump(self, value: Any) -> Any:
        return None


@dataclass(frozen=True, repr=False, eq=False)
class Container:
    """The container that the job runs in on every node."""

    image: str = setting(HostPath("an image"))
    runtime: str = setting(Choice("apptainer", "pyxis"), "apptainer")
    mounts: tuple[str, ...] = setting(Texts(HostPath("a path, or source:target")), ())
    options: tuple[str, ...] = setting(Texts(Text(allowed="a word of its command line")), ())


@dataclass(frozen=True, repr=False, eq=False)
class SlurmEnvironment(Environment):
    """The settings that make the Python with torch available on the nodes."""

    modules: tuple[str, ...] = setting(
        Texts(
            Text(
                r"(use (?=[~/]))?(~/|[A-Za-z0-9_./])[A-Za-z0-9._+/@%:=-]*",
                "a module's name, like cuda/12.4, or use and a directory of modules, like use /appl/modules",
            )
        ),
        (),
    )
    conda: str | None = setting(EnvironmentPath(), None)
    venv: str | None = setting(EnvironmentPath(), None)
    uv: str | None = setting(EnvironmentPath(), None)
    container: Container | None = setting(Group(Container, shorthand="image"), None)


@dataclass(frozen=True, repr=False, eq=False)
class SlurmJob(JobSpec):
    """A job for the tier `slurm`: the job's fields and the tier's own."""

    distributed: ClassVar[bool] = True

    time: float | None = setting(ClockTime(), None)
    partition: str | None = setting(Directive(), None)
    account: str | None = setting(Directive(), None)
    qos: str | None = setting(Directive(), None)
    cpus_per_proc: int | None = setting(WholeNumber(1, 4096), None)
    mem: str | None = setting(SIZE, None)
    gpu_request: str = setting(
        Choice("gpus-per-node", "gres", "gpus-per-task", "none"), "gpus-per-node"
    )
    gpu_type: str | None = setting(Text(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "a type like a100"), None)
    constraint: str | None = setting(Constraint(), None)
    nodelist: str | None = setting(NodeList(), None)
    exclude: str | None = setting(NodeList(), None)
    exclude_bad_nodes: bool = setting(Flag(), True)
    reservation: str | None = setting(Directive(), None)
    licenses: str | None = setting(Licenses(), None)
    dependency: str | None = setting(Dependency(), None)
    array: str | None = setting(ArrayIndices(), None)
    array_parallelism: int | None = setting(WholeNumber(1), None)
    exclusive: bool = setting(Flag(), False)
    mail_to: tuple[str, ...] = setting(Texts(Text(rf"{_MAIL}(,{_MAIL})*", "an address")), ())
    mail_on: tuple[str, ...] = setting(
        Texts(
            Text(
                # sbatch reads them in capital and in small letters.
                re.sub("[A-Z]", lambda letter: f"[{letter[0]}{letter[0].lower()}]", _MAIL_EVENTS),
                "an event like END, FAIL or REQUEUE",
            )
        ),
        ("END", "FAIL"),
    )
    comment: str | None = setting(
        Directive(
            r"[A-Za-z0-9_@%+=:,./()\[\]{}\" -]+",
            'letters, digits, spaces and any of _@%+=:,./()[]{}"-',
        ),
        None,
    )
    extra: tuple[str, ...] = setting(Texts(Option()), ())
    requeues: int = setting(WholeNumber(0, 10_000), 20)
    warning: float | None = setting(Duration(), None)
    step_time: float | None = setting(Duration(), None)
    write_time: float | None = setting(Duration(), None)
    environment: SlurmEnvironment = setting(
        Group(SlurmEnvironment, shorthand="packages"), SlurmEnvironment
    )
    setup: tuple[str, ...] = setting(Texts(Text(allowed="a line of bash")), ())
    login: str | None = setting(Destination(), None)
    dir: str = setting(HostDirectory(), "~/ddpgen")
    ssh_options: tuple[str, ...] = setting(Texts(Text(allowed="a word of an ssh command line")), ())
    limits: Limits | None = setting(LimitsGroup(), None)

    @property
    def indices(self) -> str | None:
        """The indices of the job's array, as sbatch takes them: `array`, or one for each point of a sweep."""
        if not self.points:
            return self.array
        return f"0-{len(self.points) - 1}{self.at_once}"

    @property
    def at_once(self) -> str:
        """The end of an array's indices that limits how many tasks run at once; "" without a limit."""
        return f"%{self.array_parallelism}" if self.array_parallelism else ""

    @property
    def single(self) -> SlurmJob:
        return replace(self, array=None, points={})


# Options of sbatch → the fields whose values they take unchanged.
DIRECTIVES: Mapping[str, str] = {
    field.name.replace("_", "-"): field.name
    for field in fields(SlurmJob)
    if isinstance(field.metadata.get("kind"), Directive)
}
