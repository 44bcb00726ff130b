"""The tier `sky`: one of the machines that SkyPilot has found for a start of a task.

Owns the reading of SkyPilot's variables and the number of a start in its checkpoint directory. Decides how to react to
a signal, and with which exit code to report the end of the workers to SkyPilot.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from train.base import typed
from train.base.errors import EXIT_UNAVAILABLE, Refusal
from train.base.files import locked, replace_file
from train.launch import decision, directory, notice
from train.launch.decision import KILLED, NOT_BEGUN, STOPPED, End, ExitReport, Request, judge
from train.launch.notices import clouds
from train.launch.options import ports
from train.launch.tier import Membership, Tier
from train.launch.words import Command

# This code has SkyPilot start the job again. On Slurm, SkyPilot keeps only the highest code of several machines. The
# machines that end a moment later are killed, which gives 143, so this code is higher.
EXIT_PREEMPTED = 175
SKY_EXIT_STOPPED = 130
_TOLD = ("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_TASK_ID")
# Files of an earlier start: its stop request, and its number as an owner of the store (train/checkpoint/store).
_LEFTOVERS = ("stop", "store-turn")
_MOST = 64
_NOTICES_EVERY_S = 5.0


class Sky(Tier):
    """One machine of a task."""

    restart_command = "sky jobs launch sky.yaml"
    has_secrets = True
    secret_remedy = "launch with --secret {name}, and have it in your environment"
    # SkyPilot signals every process below its shell. The workers ignore that, to finish a step and its checkpoint.
    ignored = (signal.SIGTERM,)

    def __init__(self, options: argparse.Namespace, command: Command) -> None:
        self._options = options
        self.me = ""
        self._directory = Path()

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--nodes", type=int, default=1, help="how many machines were planned")
        add(
            "--ports",
            type=ports,
            default=range(29500, 30500),
            help="FROM-TO: the head's is one of",
        )
        add("--bucket", default="", help="the URL of what has to be mounted")
        add("--mount", default="", help="where it has to be mounted")
        add(
            "--no-notices",
            action="store_true",
            help="do not watch for the cloud's preemption notice",
        )
        add(
            "--hook",
            default="",
            help="a file that tells a pod's hook what to stop, and by which Python",
        )

    def membership(self) -> Membership:
        options = self._options
        member = membership(os.environ, options.nodes, options.procs, options.ports)
        self.me = member.host_name
        if options.mount and not os.path.ismount(os.path.realpath(options.mount)):
            raise Refusal(
                EXIT_UNAVAILABLE,
                f"{member.host_name}: the bucket {options.bucket} is not mounted at {options.mount}; sky jobs "
                "logs --controller ID (or sky logs --provision CLUSTER) says why",
            )
        self._directory = directory.of(options.checkpoint_dir, member.task_directory)
        try:
            number = enroll(self._directory, member.launch, member.node_rank)
        except OSError as error:
            raise directory.unusable(self._directory, error) from None
        self.scheduler = f"sky {member.task_directory} {number}"
        return member

    def prepare(self, member: Membership, address: str) -> None:
        if self._options.hook:
            hook = Path(self._options.hook).expanduser()
            try:
                hook.parent.mkdir(parents=True, exist_ok=True)
                replace_file(hook, f"{sys.executable}\n{self._directory}\n".encode())
            except OSError as error:
                raise directory.unusable(hook.parent, error) from None

    def watch(self, stop_file: Path) -> None:
        if not self._options.no_notices:
            about = stop_file, tuple(clouds()), _NOTICES_EVERY_S
            threading.Thread(target=notice.watch, args=about, daemon=True).start()

    def on_signal(self, name: str, stops: int, met: bool) -> Request:
        """React to the shutdown of a machine, or to `sky cancel`. After either of them no exit code counts.

        Before the processes of all machines have met, kill them: nobody looks for the stop file, and they ignore TERM.
        """
        if not met:
            early = f"{self.me}: {name}: stopping before the training begins"
            return Request("kill", "" if stops else early)
        asking = f"{self.me}: {name}: asking for a clean stop"
        return Request("stop", "" if stops else asking, f"signal: {name}")

    def not_begun(self, name: str) -> ExitReport:
        """Have SkyPilot start the job again, because a signal ended this start."""
        line = f"{self.me}: stopped before the training began"
        return ExitReport(EXIT_PREEMPTED, (line,), comes_back=True)

    def at_end(self, end: End) -> ExitReport:
        """Report the end with the exit code on which SkyPilot acts."""
        kind, line, reason = judge(end)
        # A signal has ended this start: until the workers have met, on_signal() kills them.
        if kind in (NOT_BEGUN, KILLED) and not end.met:
            return self.not_begun("")
        if kind != STOPPED:
            report = decision.at_end(end)
            return replace(report, lines=tuple(f"{self.me}: {line}" for line in report.lines))
        # The user's own stop is an object in the bucket, and never a signal.
        if reason.startswith(("preempted", "signal")):
            back = f"{self.me}: {line}, {reason}; SkyPilot starts a managed job again"
            return ExitReport(EXIT_PREEMPTED, (back,), comes_back=True)
        starts_again = f"; {end.next}: {self.restart_command}" if end.next else ""
        stopped = f"{self.me}: {line} ({reason or 'user'}){starts_again}"
        return ExitReport(SKY_EXIT_STOPPED, (stopped,))


# --- what SkyPilot says ---------------------------------------------------------------------------


def membership(
    told: Mapping[str, str], planned: int, procs: int, ports: Sequence[int]
) -> Membership:
    """Read from SkyPilot's variables which machines take part, and which one this is. Raises Refusal."""
    addresses = told.get("SKYPILOT_NODE_IPS", "").split()
    rank, task = told.get("SKYPILOT_NODE_RANK", ""), told.get("SKYPILOT_TASK_ID", "")
    if not addresses or not rank.isdecimal() or not task:
        raise Refusal(
            EXIT_UNAVAILABLE,
            f"SkyPilot has not said which machine this is ({', '.join(_TOLD)}); start it by sky jobs "
            "launch sky.yaml",
        )
    nodes, node_rank = len(addresses), int(rank)
    if nodes != planned or node_rank >= nodes:
        raise Refusal(
            EXIT_UNAVAILABLE,
            f"planned for {planned} machine(s), and this is number {node_rank} of {nodes}; set nodes in "
            "the spec and render again",
        )
    part = task_name(task)
    # All machines of a start compute the same name. Another start has another one: a new cluster counts its jobs from 1
    # again, but its machines have other addresses. If they are nodes of Slurm, they may have the same addresses, but in
    # another job of Slurm. Only a cloud that gives a cluster all the addresses of the one before repeats a name.
    machines = zlib.crc32(" ".join([*addresses, told.get("SLURM_JOB_ID", "")]).encode())
    launch = f"sky.{part}.{told.get('SKYPILOT_INTERNAL_JOB_ID') or 0}.{machines:08x}"
    return Membership(
        host_name=f"node{node_rank}",
        procs=procs,
        world_size=nodes * procs,
        node_rank=node_rank,
        first_rank=node_rank * procs,
        nodes=nodes,
        min_nodes=nodes,
        head="node0",
        head_address=addresses[0],
        # Not a fixed one, because SkyPilot's machines may be nodes of Slurm, which jobs share.
        port=ports[zlib.crc32(launch.encode()) % len(ports)],
        roster=[(f"node{number}", address) for number, address in enumerate(addresses)],
        launch=launch,
        task_directory=part,
    )


def task_name(task: str) -> str:
    """Return a task's id, which is the same after every recovery, as a file name."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", task)
    return name if len(name) <= _MOST else f"{name[:48]}-{zlib.crc32(name.encode())}"


# --- the number of a start ------------------------------------------------------------------------


@dataclass(frozen=True)
class Enrolled:
    """The record of a start: its number, its name, and the ranks of the machines that have come."""

    number: int
    start: str
    node_ranks: tuple[int, ...]


def enroll(place: Path, launch: str, node_rank: int) -> int:
    """Return the number of this start in the directory `place`, which is above the numbers of all earlier starts there.

    The first machine of a start counts it, and removes the files that an earlier start has left. Other machines that
    share the directory find it counted. No clock is read, because the machines' clocks differ. Raises OSError.
    """
    place.mkdir(parents=True, exist_ok=True)
    record = place / "starts.json"
    with locked(place / ".starts.guard"):
        content = record.read_bytes() if record.exists() else b""
        last = typed.parse(Enrolled, content) or Enrolled(-1, "", ())
        # A machine comes once in each start. If it is on record already, a new start has begun.
        if last.start != launch or node_rank in last.node_ranks:
            last = Enrolled(last.number + 1, launch, ())
            for name in _LEFTOVERS:
                (place / name).unlink(missing_ok=True)
        entry = replace(last, node_ranks=tuple(sorted([*last.node_ranks, node_rank])))
        replace_file(record, json.dumps(asdict(entry)).encode() + b"\n")
    return entry.number
