"""The interface of a tier: which hosts take part, how to react to a signal, how to report the end of the workers."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from train.base.words import first_few
from train.launch import decision
from train.launch.decision import End, ExitReport, Request
from train.launch.events import Event, Events
from train.launch.options import LEADING
from train.launch.words import Command


@dataclass(frozen=True)
class Membership:
    """The hosts that take part, and the ranks of this host. `head`: "" for a job on one machine. `launch`: the id of
    the launch, if the driver or the scheduler gives one."""

    host_name: str
    procs: int
    world_size: int
    node_rank: int = 0
    first_rank: int = 0
    nodes: int = 1
    min_nodes: int = 1
    head: str = ""
    head_address: str = ""
    port: int = 0
    roster: Sequence[tuple[str, str]] = ()
    launch: str = ""
    # A directory below the spec's checkpoint directory, on a tier where each task has its own.
    task_directory: str = ""

    @property
    def is_head(self) -> bool:
        return self.node_rank == 0

    @property
    def meets_at(self) -> str:
        """The address and the port at which the processes meet."""
        return f"{self.head_address}:{self.port}"

    @property
    def peer(self) -> str:
        """On the head, the address of another host, or its name if no address is known; "" elsewhere."""
        others = [address or name for name, address in self.roster if name != self.host_name]
        return others[0] if self.is_head and others else ""

    @property
    def other_names(self) -> str:
        """The names of the other hosts, in words."""
        return first_few([name for name, _ in self.roster if name != self.host_name])


class Tier:
    """The parts of a launch that differ between the tiers. A tier decides, and the supervisor acts."""

    # The command that starts the job again.
    restart_command: str = ""
    scheduler: str = ""
    # True if the end of this host can be the end of the job.
    decides: bool = True
    # The supervisor's own options that may stand in front of the user's arguments, with their help texts: see
    # options.take_leading().
    leading: ClassVar[Mapping[str, str]] = LEADING
    # The remedy for a secret that is not in the environment. {name} is its name.
    secret_remedy = "export {name}, and start again"
    # True if another process of the launch has put all secrets into the environment.
    has_secrets = False
    # Signals that the workers ignore, because the tier sends them to every process and the supervisor answers them.
    ignored: Sequence[signal.Signals] = ()

    def __init__(self, options: argparse.Namespace, command: Command) -> None:
        """Take the parsed options, which are those of all tiers and those of add_options()."""

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the options that only this tier has."""

    def listen(self, events: Events) -> None:
        """Register the other sources of events that this tier has, such as the words of a driver."""

    def on_event(self, event: Event) -> None:
        """Handle an event of a source that listen() has registered: inject the signal that it stands for."""

    def hand_over(self) -> None:
        """Give back what this tier has taken, such as standard input, before another program replaces this one."""

    def membership(self) -> Membership:
        """Return the hosts that take part, and the ranks of this host. Raises Refusal."""
        raise NotImplementedError

    def prepare(self, member: Membership, address: str) -> None:
        """Do the tier's work before the workers start. Raises Refusal.

        The attempt already holds the directory, and this host takes part by `address`.
        """

    def watch(self, stop_file: Path) -> None:
        """Watch for the tier's own stop requests, now that the workers run, and make `stop_file` at the first one."""

    def on_signal(self, name: str, stops: int, met: bool) -> Request:
        """Decide how to react to a signal once the workers have been started."""
        return decision.on_signal(name, stops, met)

    def not_begun(self, name: str) -> ExitReport:
        """Report a signal that ended the launch before the workers were started."""
        return decision.not_begun(self.restart_command)

    def at_end(self, end: End) -> ExitReport:
        """Turn the end of the workers into the exit code and the last lines."""
        raise NotImplementedError

    def report(self, outcome: ExitReport) -> None:
        """Report the end elsewhere, after it was printed on the terminal."""
