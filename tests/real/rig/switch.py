"""The switch: a network namespace of its own with one bridge for each network, and cables to hosts.

Owns interfaces and addresses, and the slow wire. Knows namespaces by the number of a process in them,
and no more of a host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping

from tests.real.rig import processes
from tests.real.rig.errors import RigError
from tests.real.rig.keeper import PATIENCE_S, Keeper
from tests.real.rig.spec import Link
from tests.real.rig.tools import call, program, where

# What every host with docker has, with the same address on each: it leads nowhere.
DECOY = (
    "link add docker0 type bridge",
    "addr add 172.17.0.1/16 dev docker0",
    "link set docker0 up",
)
AGAIN_S = 0.01
_VISIT_MS = 20  # between two visits of a busy processor to a wire


class Switch:
    """The network between the hosts."""

    def __init__(self, keeper: Keeper, bridges: Mapping[str, str]) -> None:
        self._keeper = keeper
        self._relays: dict[str, int] = {}
        self._cut: set[str] = set()
        self.ip("link set lo up")
        for bridge in bridges.values():
            self.ip(f"link add {bridge} type bridge mcast_snooping 0", f"link set {bridge} up")

    def ip(self, *lines: str) -> None:
        ip_in(self._keeper.pid, lines)

    def connect(self, ends: Mapping[int, tuple[Iterable[Link], bool]]) -> None:
        """Plug hosts in, each known by a process in its network: cables, addresses, the decoy."""
        cables: list[str] = []
        for process, (links, _) in ends.items():
            for link in links:
                host_end = f"{link.nic} address {link.mac} netns {process}"
                cables.append(f"link add {link.port} type veth peer name {host_end}")
        self.ip(*cables)
        for process, (links, decoy) in ends.items():
            lines = ["link set lo up"]
            for link in links:
                lines.append(f"addr add {link.address}/{link.prefix} brd + dev {link.nic}")
                lines.append(f"link set {link.nic} up")
            ip_in(process, [*lines, *(DECOY if decoy else ())])
        self.ip(
            *(
                f"link set {link.port} master {link.bridge} up"
                for links, _ in ends.values()
                for link in links
            )
        )
        self._carries([link.port for links, _ in ends.values() for link in links])

    def disconnect(self, links: Iterable[Link]) -> None:
        """Take the cables away for good, with whatever was wrong with them."""
        for link in links:
            self.repair(link)
            self._cut.discard(link.port)
            with contextlib.suppress(RigError):  # its other end may have gone and taken it along
                self.ip(f"link del {link.port}")

    def cut(self, link: Link) -> None:
        self._cut.add(link.port)
        self.ip(f"link set {link.port} down")

    def mend(self, link: Link) -> None:
        if link.port not in self._cut:
            return
        self._cut.remove(link.port)
        self.ip(f"link set {link.port} up")
        self._carries([link.port])

    def spoil(self, link: Link, process: int, delay_ms: float, largest: int = 0) -> None:
        """Lead the cable through a relay instead of straight into the bridge."""
        self.repair(link)
        near, far = f"{link.port}a", f"{link.port}b"
        self.ip(f"link add {near} type veth peer name {far}", f"link set {near} up")
        how = (str(delay_ms), str(largest))
        words = (link.port, near, *how, f"/proc/{process}/ns/net", link.nic)
        shell = 'read -r pid rest </proc/self/stat; echo "$pid"; exec "$@"'
        argv = ["sh", "-c", shell, "sh", *program("relay"), *words]
        reports = self._keeper.start(f"relay.{link.port}", argv)
        relay = int(reports.line())
        if reports.line() != "ready":
            raise RigError(f"the relay of {link.port} did not come up")
        reports.close()
        self._relays[link.port] = relay
        # Only now: on both ways at once frames would come twice.
        self.ip(f"link set {link.port} nomaster", f"link set {far} master {link.bridge} up")

    def repair(self, link: Link) -> None:
        """The end of that, if there was any."""
        relay = self._relays.pop(link.port, None)
        if relay is None:
            return
        self.ip(f"link del {link.port}a")
        end(relay)
        with contextlib.suppress(RigError):  # the host may be off and its cable gone
            self.ip(f"link set {link.port} master {link.bridge}")

    def _carries(self, ports: Iterable[str]) -> None:
        """Wait until both ends see the cable: the kernel tells the bridge up to a second later."""
        deadline = time.monotonic() + PATIENCE_S
        waiting = set(ports)
        while True:
            lines = self._show().splitlines()
            waiting -= {port for port in waiting for line in lines if carries(port, line)}
            # Of a host that has ended already the cable is gone; it says itself why it did.
            waiting = {port for port in waiting if any(f" {port}@" in line for line in lines)}
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise RigError(f"switch ports without a link: {', '.join(sorted(waiting))}")
            time.sleep(AGAIN_S)

    def _show(self) -> str:
        entered = [where("nsenter"), f"--net=/proc/{self._keeper.pid}/ns/net"]
        return call([*entered, where("ip"), "-o", "-d", "link", "show", "type", "veth"])

    def limit(self, link: Link, process: int, mbit: float | None, direction: str) -> None:
        """Let no more through. Who sends holds back: the switch what goes in, the host what goes out."""
        ends = {"in": (self._keeper.pid, link.port), "out": (process, link.nic)}
        for namespace, interface in [ends[way] for way in ends if direction in (way, "both")]:
            command = [where("nsenter"), f"--net=/proc/{namespace}/ns/net", where("tc"), "qdisc"]
            if mbit is None:
                with contextlib.suppress(RigError):  # there was no limit
                    call([*command, "del", "dev", interface, "root"])
            else:
                # A bucket is refilled when a processor comes to it: one that is too small for the
                # time between two visits on a busy machine is a slower wire than was asked for.
                burst = f"{max(64, round(mbit * _VISIT_MS / 8))}kb"
                bucket = ("tbf", "rate", f"{mbit}mbit", "burst", burst, "latency", "100ms")
                call([*command, "replace", "dev", interface, "root", *bucket])


def ip_in(process: int, lines: Iterable[str]) -> None:
    """ip's commands, as one batch, in the network namespace of a process."""
    text = "".join(f"{line}\n" for line in lines)
    call([where("nsenter"), f"--net=/proc/{process}/ns/net", where("ip"), "-batch", "-"], text)


def carries(port: str, line: str) -> bool:
    """What `ip -o -d link` says of a port that is up, and in no bridge or through it."""
    is_it = f" {port}@" in line and " state UP " in line
    return is_it and (" master " not in line or " state forwarding " in line)


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if not processes.ends(pid, time.monotonic() + PATIENCE_S):
        raise RigError(f"process {pid} does not die")
