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
# The loopback stays.
COME, GO = ("INPUT", "!", "-i", "lo", "-p", "tcp"), ("OUTPUT", "!", "-o", "lo", "-p", "tcp")


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

    def drop(self, port: int, last: int | None = None, *, direction: Direction = "in") -> None:
        """Firewall: packets of this port, or of all up to `last`, vanish, without a word. Connections that
        are open go silent too."""
        span = f"{port}:{last or port}"
        for rule in rules(span, direction):
            self._iptables("-A", *rule, "-j", "DROP")

    def reject(self, port: int) -> None:
        """Firewall: who tries is told, as if nobody listened."""
        self._iptables(
            "-A", *COME, "--dport", str(port), "-j", "REJECT", "--reject-with", "tcp-reset"
        )

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


def rules(span: str, direction: Direction) -> list[tuple[str, ...]]:
    """The matches of iptables for connections to ("in") or from ("out") here, and for the answers."""
    requests, answers = ("--dport", span), ("--sport", span)
    made: list[tuple[str, ...]] = []
    if direction in ("in", "both"):
        made += [(*COME, *requests), (*GO, *answers)]
    if direction in ("out", "both"):
        made += [(*GO, *requests), (*COME, *answers)]
    return made
