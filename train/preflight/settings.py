"""The launch as a supervisor describes it to the preflight of its host. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from train.base.scheduler import Scheduled


@dataclass(frozen=True)
class Settings:
    """One host's view of the launch, from its command line alone.

    `head`: the name or address that reaches the head; "" for a job on one machine, which meets no other host.
    `addresses`: the spec's address of each host, by name, in the order of the node ranks. It is empty if the spec lists
    no hosts; an address is "" if only the name is known, as for a scheduler's nodes.
    `min_nodes`: the number of hosts that an elastic job needs to begin; equal to `nodes` otherwise.
    `timeout_s`: seconds to wait for a host that has not arrived.
    `scheduler`: the scheduler's job and its start (see train.base.scheduler), or "".
    `script`: the command that starts the job, for messages.
    `saves`: patterns of the saves from which a user's script goes on (train.resume).
    `check_only`: nothing starts after this check.
    """

    job: str
    host_name: str
    checkpoint_dir: Path
    node_rank: int = 0
    nodes: int = 1
    min_nodes: int = 1
    world_size: int = 1
    procs: int = 1
    head: str = ""
    port: int = 0
    is_head: bool = True
    addresses: Mapping[str, str] = field(default_factory=dict)
    nic: str = ""
    backend: str = "gloo"
    gpus: int = 0
    same_bits: bool = True
    shared: bool | None = None
    timeout_s: float = 120.0
    ignore: frozenset[str] = frozenset()
    scheduler: str = ""
    script: str = "bash hosts/run.sh"
    saves: tuple[str, ...] = ()
    check_only: bool = False

    @property
    def alone(self) -> bool:
        """True if the job has no other hosts."""
        return not self.head or self.nodes == 1

    @property
    def scheduled(self) -> Scheduled | None:
        """The scheduler's job, or None if people start the hosts."""
        return Scheduled.parse(self.scheduler)

    def or_address(self, host: str, address: str = "an IPv4 address") -> str:
        """The end of a remedy: set the address of `host` in the spec. Returns "" if a scheduler finds the hosts,
        because such a spec lists none."""
        return "" if self.scheduled else f", or set the address of {host} in the spec to {address}"

    @property
    def own_address(self) -> str:
        """This host's address in the spec, or "" if the spec does not give it."""
        return self.addresses.get(self.host_name, "")

    @property
    def peer(self) -> str:
        """The host at the other end of the route that decides this host's interface: the head, or on the head another
        host ("" if unknown)."""
        if not self.is_head:
            return self.head
        return next((at for name, at in self.addresses.items() if name != self.host_name), "")
