"""The tier `hosts`: one of the hosts that hosts/hosts.json lists.

Owns the reading of that file, the choice of the hosts that take part, and the ranks of this host. The driver
(ddpgen/driver/) reads the same file. Every host counts the ranks from it, so that no two hosts have the same rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Optional

from train.base import typed
from train.base.errors import EXIT_UNAVAILABLE, EXIT_USAGE, Refusal, start_command
from train.launch import bad_nodes, decision, directory
from train.launch.decision import End, ExitReport, Request
from train.launch.driver_link import DriverLink, take_standard_input
from train.launch.events import Event, Events
from train.launch.options import LEADING
from train.launch.tier import Membership, Tier
from train.launch.words import Command
from train.run.config import seconds
from train.run.layout import step_directory

_LISTED = Path("hosts", "hosts.json")
_MOST_REASON = 4000
_Bounds = Optional[tuple[int, int]]


@dataclass(frozen=True)
class HostEntry:
    """A host of hosts.json: its name, the address at which the others reach it, and its number of processes."""

    name: str
    address: str
    procs: int


@dataclass(frozen=True)
class Listed:
    """The part of hosts.json that a host needs. `hosts`: in the order of their ranks. `elastic`: the least and the
    greatest number of hosts that take part, if fewer than all may. `spares`: so many of the last hosts take no part
    unless --hosts names them."""

    hosts: tuple[HostEntry, ...]
    elastic: _Bounds = None
    spares: int = 0

    @property
    def least(self) -> int:
        """The number of hosts that is enough to begin."""
        return self.elastic[0] if self.elastic else len(self.hosts) - self.spares


def read(path: Path) -> Listed:
    """Read hosts.json. Raises Refusal if the file is missing, or does not have the form that ddpgen writes."""
    listed = typed.read(Listed, path)
    if listed is None:
        message = f"{path} cannot be read; copy the whole bundle, or render again"
        raise Refusal(EXIT_UNAVAILABLE, message)
    return listed


def membership(
    listed: Listed, me: str, head: str = "", only: str = "", port: int = 0, launch: str = ""
) -> Membership:
    """Compute the ranks of the host `me`. `only`: the names of the hosts that take part. `head`: the host where they
    meet, by default the first. The head's ranks come first, then the others' in the order of the list.

    Raises Refusal for names that would give two hosts one rank.
    """
    regular = listed.hosts[: len(listed.hosts) - listed.spares]
    names = only.split(",") if only else [host.name for host in regular]
    taking_part = set(names)
    chosen = [host for host in listed.hosts if host.name in taking_part]
    head = head or listed.hosts[0].name
    asked = ",".join(names)
    if len(chosen) != len(names):
        known = " ".join(host.name for host in listed.hosts)
        raise Refusal(
            EXIT_USAGE,
            f"--hosts={asked}: names a host twice, or one that is not there; the hosts are {known}",
        )
    if me not in taking_part:
        raise Refusal(
            EXIT_USAGE,
            f"--hosts={asked}: without {me}, this host has nothing to do; name it too",
        )
    if head not in taking_part:
        raise Refusal(EXIT_USAGE, f"--head={head}: takes no part; name one of {asked}")
    ordered = sorted(chosen, key=lambda host: host.name != head)
    rank = next(i for i, host in enumerate(ordered) if host.name == me)
    return Membership(
        host_name=me,
        procs=ordered[rank].procs,
        world_size=sum(host.procs for host in ordered),
        node_rank=rank,
        first_rank=sum(host.procs for host in ordered[:rank]),
        nodes=len(ordered),
        min_nodes=min(listed.least, len(ordered)),
        head=head,
        head_address=ordered[0].address,
        port=port,
        roster=[(host.name, host.address) for host in ordered],
        launch=launch,
    )


class Hosts(Tier):
    """One host of several, started by hosts/run.sh or by hand."""

    leading: ClassVar[Mapping[str, str]] = {
        **LEADING,
        "--head=": "NAME: meet at this host instead of the first, on all the same",
        "--hosts=": "A,B: only these take part, on all the same",
        "--driven=": "",
        "--install": "",
    }
    restart_command = start_command(among_hosts=True)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--me", required=True, help="this host's name in hosts.json")
        add("--head", default="", help="meet at this host instead of the first (on all the same)")
        add("--hosts", default="", help="only these take part: A,B (on all the same)")
        add("--port", type=int, default=29500, help="where the processes meet, on the head")
        add(
            "--collective-timeout", type=seconds, default=300.0,
            help="how long a clean stop may take when the driver is gone",
        )  # fmt: skip

    def __init__(self, options: argparse.Namespace, command: Command) -> None:
        self._options, self._command = options, command
        self._line = take_standard_input() if options.driven else None
        self._link: DriverLink | None = None
        self._nodes = 1
        self._leaves = False
        script = os.path.join(os.getcwd(), "hosts", f"{options.me}.sh")
        # The command that the user has typed: the driver's, or this host's script.
        self._same = "the same command" if options.driven else f"bash {shlex.quote(script)}"

    def listen(self, events: Events) -> None:
        if self._line is not None:
            timeout_s = self._options.collective_timeout
            self._link = DriverLink(events, self._line, timeout_s, lambda: self._leaves)

    def on_event(self, event: Event) -> None:
        if self._link is not None:
            self._link.on_event(event)

    def hand_over(self) -> None:
        if self._line is not None:
            os.dup2(self._line, 0)

    def membership(self) -> Membership:
        options = self._options
        listed = read(_LISTED)
        # Two runs that meet at one address under one name would merge, so the driver names each of its launches.
        launch = os.environ.get("DDPGEN_LAUNCH", "")
        member = membership(listed, options.me, options.head, options.hosts, options.port, launch)
        self._nodes = member.nodes
        # The driver starts a host again that it has lost. Only the head stops an elastic job without the driver.
        may_miss_this_host = member.min_nodes < member.nodes and not member.is_head
        self._leaves = bool(options.driven) and may_miss_this_host
        return member

    def on_signal(self, name: str, stops: int, met: bool) -> Request:
        if name == "HUP" and self._leaves:
            return Request("leave", f"{name}: leaving the other hosts, which go on")
        return decision.on_signal(name, stops, met, bool(self._options.driven))

    def not_begun(self, name: str) -> ExitReport:
        # If a driver has ended this start, the driver itself prints the reason.
        return decision.not_begun("" if self._options.driven else self._same)

    def at_end(self, end: End) -> ExitReport:
        return decision.at_end(end, self._results(end), self._same)

    def report(self, outcome: ExitReport) -> None:
        """Print the end for the driver. No other program can print this line: only this process has the token."""
        if token := self._options.driven:
            reason = " ".join(outcome.why.split())[:_MOST_REASON]
            fault = bad_nodes.of_reason(outcome.why, self._nodes)
            data = {"crashed": outcome.crashed, "reason": reason}
            if fault is not None:
                data["fault"] = [fault.node, fault.why]
            with contextlib.suppress(OSError, ValueError):  # the driver is gone
                print(f"ddpgen-end {token} {json.dumps(data)}", file=sys.stderr, flush=True)

    def _results(self, end: End) -> str:
        results = directory.of(self._options.checkpoint_dir)
        if self._command.program[0] == "script":
            return (
                f"what the script wrote is in {results}, here or on the host where it ran as rank 0"
            )
        # Without a shared directory the checkpoints are where rank 0 ran.
        step = end.status.step if end.status is not None else 0
        if step_directory(results, step).is_dir():
            return f"results are in {results}"
        return "results are on the host of rank 0"
