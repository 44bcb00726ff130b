"""The tier hosts' own fields of a spec, typed like the others: its machines, and the job on each of them. Pure."""

# ruff: noqa: RUF009 (setting() makes a dataclass field, it is not a shared default)
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from ddpgen.spec.fields import (
    Choice,
    Flag,
    NodeCount,
    Nodes,
    Number,
    Refused,
    Text,
    WholeNumber,
    setting,
)
from ddpgen.spec.groups import Group, Groups, Texts
from ddpgen.spec.job import ENV, INTERFACE, NAME, JobSpec, Machine, Python
from ddpgen.spec.places import Address, HostDirectory
from ddpgen.spec.ssh import Destination
from ddpgen.spec.yamltree import Scalar

if TYPE_CHECKING:
    from fractions import Fraction  # slow to import, and most jobs do not need it

ADDRESS = Address()


class HostName(Text):
    """The name of a host. The refusal of a destination of ssh shows the fields to write for it."""

    def parse(self, raw: Scalar) -> str:
        try:
            return super().parse(raw)
        except Refused as refused:
            if host := re.fullmatch(rf"(ssh://)?[\w.-]+@({self.pattern})(:[0-9]+)?", raw.text):
                remedy = f"write {{name: {host[2]}, ssh: {raw.text}}}"
                raise Refused(refused.problem, remedy) from None
            raise


@dataclass(frozen=True, repr=False, eq=False)
class Host:
    """One machine of the tier `hosts`. A field that is left out has the job's value."""

    name: str = setting(HostName(NAME.pattern, NAME.allowed))
    ssh: str | None = setting(Destination(), None)
    address: str | None = setting(ADDRESS, None)
    nic: str | None = setting(INTERFACE, None)
    procs: int | None = setting(WholeNumber(1, 1024), None)
    gpus: int | None = setting(WholeNumber(0, 1024), None)
    share: float | None = setting(Number(greater_than=0), None)
    dir: str | None = setting(HostDirectory(), None)
    python: Python | None = setting(Group(Python, shorthand="interpreter"), None)
    env: Mapping[str, str] = setting(ENV, dict)


@dataclass(frozen=True, repr=False, eq=False)
class HostsJob(JobSpec):
    """A job for the tier `hosts`: the job's fields and the tier's own."""

    distributed: ClassVar[bool] = True
    uniform: ClassVar[bool] = False

    nodes: NodeCount = setting(Nodes(100_000), None)
    hosts: tuple[Host, ...] = setting(Groups(Group(Host, shorthand="name")), ())
    head: str | None = setting(Text(allowed="the name of a host"), None)
    spares: int = setting(WholeNumber(0, 100_000), 0)
    exclude_bad_nodes: bool = setting(Flag(), True)
    share: str | None = setting(Choice("auto", "even"), None)
    dir: str = setting(HostDirectory(), "~/ddpgen")
    ssh_options: tuple[str, ...] = setting(Texts(Text(allowed="a word of an ssh command line")), ())

    def __post_init__(self) -> None:
        if vars(self)["procs_per_node"] is None and not self.train.command:
            own = (
                host if host.procs or host.gpus is None else replace(host, procs=host.gpus or 1)
                for host in self.hosts
            )
            object.__setattr__(self, "hosts", tuple(own))
        super().__post_init__()
        if vars(self)["nodes"] is None:
            object.__setattr__(self, "nodes", NodeCount(max(1, len(self.hosts) - self.spares)))

    @property
    def world_size(self) -> int:
        return sum(self.procs(host) for host in self.taking_part) or super().world_size

    @property
    def on_gpus(self) -> bool:
        return all(self.gpus(host) for host in self.hosts)

    @property
    def machines(self) -> tuple[Machine, ...]:
        return tuple(
            Machine(host.name, self.procs(host), self.gpus(host), self.weight(host))
            for host in self.taking_part
        )

    @property
    def weighted(self) -> bool:
        return any(host.share for host in self.hosts)

    @property
    def balances(self) -> bool:
        """True if micro-batches move between the processes by measured times: as `share` says, else if they can."""
        if self.share is not None:
            return self.share == "auto"
        return self.world_size > 1 and not self.weighted and not self.fixed

    @property
    def fixed(self) -> str:
        """Return the field that keeps the micro-batches where they are, or "" if they can move."""
        if self.train.program_field != "workload":
            return f"train.{self.train.program_field}"
        return "" if self.train.reduction == "tree" else "train.reduction"

    @property
    def resizes(self) -> bool:
        return self.nodes.elastic

    @property
    def order(self) -> tuple[Host, ...]:
        """The hosts by node rank: the head, then the others in the order of the list."""
        head = self.head or (self.hosts[0].name if self.hosts else "")
        return tuple(sorted(self.hosts, key=lambda host: host.name != head))

    @property
    def taking_part(self) -> tuple[Host, ...]:
        """The hosts by node rank, without the spares, which are the last hosts."""
        return self.order[: len(self.hosts) - self.spares]

    def procs(self, host: Host) -> int:
        return host.procs or self.procs_per_node

    def gpus(self, host: Host) -> int:
        return (self.gpus_per_node if host.gpus is None else host.gpus) or 0

    def weight(self, host: Host) -> int | Fraction:
        """Return the weight of each process on `host`: its part of the work, relative to other processes."""
        if host.share is None:
            return 1
        from fractions import Fraction

        return Fraction(repr(host.share)) / self.procs(host)

    def for_host(self, host: Host) -> HostsJob:
        """Return the job with the values of `host` in place of the job's own."""
        return replace(
            self,
            procs_per_node=self.procs(host),
            nic=host.nic or self.nic,
            gpus_per_node=self.gpus_per_node if host.gpus is None else host.gpus,
            python=host.python or self.python,
            env={**self.env, **host.env},
            dir=host.dir or self.dir,
        )
