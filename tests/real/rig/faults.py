"""What can go wrong on the network of a host or of the driver: cable, firewall, rate, delay.

Owns the words of these faults and what they mean for the kernel. Knows no processes and no disks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tests.real.rig.errors import RigError
from tests.real.rig.spec import Link
from tests.real.rig.switch import Switch
from tests.real.rig.tools import call, where

Direction = Literal["in", "out", "both"]


class Wired:
    """Something that hangs on the switch."""

    def __init__(self, name: str, links: Sequence[Link], switch: Switch) -> None:
        self.name = name
        self._links = links
        self._switch = switch
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        """A process in its network, the first there was."""
        if self._pid is None:
            raise RigError(f"{self.name} is off")
        return self._pid

    @property
    def nic(self) -> str:
        return self._links[0].nic

    @property
    def address(self) -> str:
        return self._links[0].address

    @property
    def addresses(self) -> dict[str, str]:
        """Its address on each network."""
        return {link.network: link.address for link in self._links}

    def unplug(self, network: str | None = None) -> None:
        """Pull the cable (of one network, or all): the link is down and says so."""
        for link in self._on(network):
            self._switch.cut(link)

    def plug(self, network: str | None = None) -> None:
        for link in self._on(network):
            self._switch.mend(link)

    def drop(
        self, port: int | None = None, *, ports: range | None = None, direction: Direction = "in"
    ) -> None:
        """Firewall: such packets vanish, without a word. Connections that are open go silent too."""
        for rule in rules(port, ports, direction, both_ways=True):
            self._iptables("-A", *rule, "-j", "DROP")

    def reject(
        self, port: int | None = None, *, ports: range | None = None, direction: Direction = "in"
    ) -> None:
        """Firewall: who tries is told, as if nobody listened."""
        for rule in rules(port, ports, direction, both_ways=False):
            self._iptables("-A", *rule, "-j", "REJECT", "--reject-with", "tcp-reset")

    def clear_firewall(self) -> None:
        self._iptables("-F")

    def rate(
        self, mbit: float | None, network: str | None = None, direction: Direction = "both"
    ) -> None:
        """So many Mbit/s, each way or only one; None: as fast as it goes."""
        for link in self._on(network):
            self._switch.limit(link, self.pid, mbit, direction)

    def delay(self, ms: float, network: str | None = None) -> None:
        """So many ms later, each way; delay(0) ends it."""
        for link in self._on(network):
            if ms:
                self._switch.spoil(link, self.pid, ms)
            else:
                self._switch.repair(link)

    def black_hole(self, largest: int | None, network: str | None = None) -> None:
        """Packets of more than `largest` bytes vanish, both ways, and nobody is told; None: none do.

        As where a tunnel on the way takes less than the interfaces believe. Ends a delay.
        """
        for link in self._on(network):
            if largest:
                self._switch.spoil(link, self.pid, 0.0, largest)
            else:
                self._switch.repair(link)

    def _on(self, network: str | None) -> list[Link]:
        chosen = [link for link in self._links if network in (None, link.network)]
        if not chosen:
            raise RigError(f"{self.name} is not on {network}: {', '.join(self.addresses)}")
        return chosen

    def _iptables(self, *words: str) -> None:
        # In its mounts as well: iptables' lock file is the host's, not the machine's.
        entered = [where("nsenter"), "--target", str(self.pid), "--net", "--mount"]
        call([*entered, where("iptables"), "-w", *words])


def rules(
    port: int | None, ports: range | None, direction: Direction, *, both_ways: bool
) -> list[tuple[str, ...]]:
    """The matches of iptables for connections to ("in") or from ("out") here. The loopback stays."""
    if port is not None:
        ports = range(port, port + 1)
    span = None if ports is None else f"{ports[0]}:{ports[-1]}"
    come, go = ("INPUT", "!", "-i", "lo", "-p", "tcp"), ("OUTPUT", "!", "-o", "lo", "-p", "tcp")
    if span is None:
        chains = {"in": [come], "out": [go], "both": [come, go]}[direction]
        return [chain if not both_ways else chain[:-2] for chain in chains]
    requests, answers = ("--dport", span), ("--sport", span)
    made: list[tuple[str, ...]] = []
    if direction in ("in", "both"):
        made += [(*come, *requests), (*go, *answers)][: 1 + both_ways]
    if direction in ("out", "both"):
        made += [(*go, *requests), (*come, *answers)][: 1 + both_ways]
    return made
