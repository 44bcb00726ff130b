"""What differs between the tiers: who takes part, what a signal means, what follows the end of the workers."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from train.base.words import some
from train.launch import decision
from train.launch.decision import End, ExitReport, Request
from train.launch.events import Event, Events
from train.launch.options import ONLY_CHECK
from train.launch.words import Command


@dataclass(frozen=True)
class Membership:
    """Who takes part, and which part is this host's. `head`: "" for a job on one machine. `launch`: which
    launch this is, where whoever started the hosts says it."""

    me: str
    procs: int
    world_size: int
    node_rank: int = 0
    first_rank: int = 0
    nodes: int = 1
    least: int = 1
    head: str = ""
    head_address: str = ""
    port: int = 0
    roster: Sequence[tuple[str, str]] = ()
    launch: str = ""
    # A directory below the spec's, where each task has one of its own.
    part: str = ""

    @property
    def is_head(self) -> bool:
        return self.node_rank == 0

    @property
    def meets_at(self) -> str:
        """Where the processes meet."""
        return f"{self.head_address}:{self.port}"

    @property
    def peer(self) -> str:
        """On the head: another host, by its address or its name."""
        others = [address or name for name, address in self.roster if name != self.me]
        return others[0] if self.is_head and others else ""

    @property
    def others(self) -> str:
        """Who takes part beside this host, in words."""
        return some([name for name, _ in self.roster if name != self.me])


class Tier:
    """What differs between the tiers. Its functions decide; the supervisor acts."""

    # What to type to start it again.
    again: str = ""
    scheduler: str = ""
    # Whether the end of this host can be the end of the job.
    decides: bool = True
    # Options in front of the user's arguments that are the supervisor's, and what they do, for --help: see
    # options.take_leading().
    leading: ClassVar[Mapping[str, str]] = ONLY_CHECK
    # What the workers do not hear, as the tier signals every process and the supervisor answers.
    ignored: Sequence[signal.Signals] = ()

    def __init__(self, options: argparse.Namespace, command: Command) -> None:
        """`options`: those of all tiers and those of add_options()."""

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """The options of this tier alone."""

    def listen(self, events: Events) -> None:
        """Have come as events what else this tier waits for: a driver's words, a notice."""

    def on_event(self, event: Event) -> None:
        """Such an event has come: what it means is injected as a signal."""

    def hand_over(self) -> None:
        """Another program takes the place of this one: leave it what this tier has taken."""

    def membership(self) -> Membership:
        """Who takes part. Raises Refusal."""
        raise NotImplementedError

    def prepare(self, member: Membership, address: str) -> None:
        """The directory is this attempt's, and this host takes part by `address`: what is to be done before the
        workers start. Raises Refusal."""

    def watch(self, stop_file: Path) -> None:
        """The workers have been started: from now on make `stop_file` when the tier is told to stop."""

    def on_signal(self, name: str, stops: int, met: bool) -> Request:
        """What a signal means once the workers have been started."""
        return decision.on_signal(name, stops, met)

    def not_begun(self, name: str) -> ExitReport:
        """What a signal means before that."""
        return decision.not_begun(self.again)

    def at_end(self, end: End) -> ExitReport:
        """What the end of the workers means."""
        raise NotImplementedError

    def report(self, outcome: ExitReport) -> None:
        """The end is known and was said on the terminal: tell it elsewhere."""
