"""What a supervisor tells the check of its host about the launch. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from train.base.scheduler import Scheduled


@dataclass(frozen=True)
class Settings:
    """One host's view of the launch, before it knows more than its command line.

    `head`: name or address by which the head is reached; "" for a job on one machine, which meets
    nobody. `addresses`: of all hosts by name, by node rank, as the spec has them, where it lists them
    (else only the count is known); "" where only the name is known, as of a scheduler's nodes.
    `least`: how many hosts are enough to begin (an elastic job),
    equal to `nodes` otherwise. `timeout_s`: how long a host that has not arrived is waited for.
    `scheduler`: which start of which scheduler's job this is (see train.base.scheduler), "" for none;
    `script`: what people type to start the job; `saves`: patterns of the saves from which a user's script
    goes on (train.resume); `only`: nothing will be started after the check.
    """

    job: str
    me: str
    checkpoint_dir: Path
    node_rank: int = 0
    nodes: int = 1
    least: int = 1
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
    only: bool = False

    @property
    def alone(self) -> bool:
        """Whether there is nobody to meet."""
        return not self.head or self.nodes == 1

    @property
    def scheduled(self) -> Scheduled | None:
        """Whose job this is, where a scheduler has started it: there nobody starts a host by hand."""
        return Scheduled.parse(self.scheduler)

    def or_address(self, host: str, address: str = "an IPv4 address") -> str:
        """The end of a remedy: to give `host` this address in the spec. "" where a scheduler finds the hosts, because
        such a spec lists none."""
        return "" if self.scheduled else f", or set address: of {host} in the spec to {address}"

    @property
    def own_address(self) -> str:
        """How the others reach this host, as the spec has it; empty when it does not say."""
        return self.addresses.get(self.me, "")

    @property
    def peer(self) -> str:
        """Towards whom the interface is chosen: the head, or on the head another host ("" if unknown)."""
        if not self.is_head:
            return self.head
        return next((at for name, at in self.addresses.items() if name != self.me), "")
