"""`python -m train spawn`: start the processes of one host without torchrun.

Owns their environment (RANK, WORLD_SIZE, …) and their common end. All of them end when one fails, when a signal
asks this process to end, or when this process is killed. Knows nothing of their work, and imports no torch.
Restarts nothing: the user, the driver or the scheduler starts the host again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

from train.base.console import say
from train.base.errors import EXIT_FAILED
from train.base.processes import die_with_parent

# The same as torchrun's: long enough to save the work in progress.
GRACE_S = 30.0


def main(argv: Sequence[str]) -> int:
    """Run the command that follows `--` once for each rank of this host."""
    own, dashes, command = list(argv), "--", list[str]()
    if dashes in own:
        at = own.index(dashes)
        own, command = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(prog="python -m train spawn", allow_abbrev=False)
    parser.add_argument("--procs", type=int, required=True, help="processes on this host")
    parser.add_argument("--first-rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--node-rank", type=int, default=0, help="becomes GROUP_RANK")
    options = parser.parse_args(own)
    if not command:
        parser.error("the command is missing: … -- COMMAND")
    if not 0 < options.procs <= options.world_size - options.first_rank <= options.world_size:
        parser.error("these ranks do not fit into the world")
    return spawn(command, options)


def spawn(command: Sequence[str], ranks: argparse.Namespace) -> int:
    """Run `command` once for each of `ranks`, as main() has read them. Return 0 if all of them end with 0, else 1."""
    children = _Children()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda signum, _: children.end(signum))
    signal.signal(signal.SIGALRM, children.kill)
    try:
        for local_rank in range(ranks.procs):
            rank = ranks.first_rank + local_rank
            told = {  # torchrun sets the same variables
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks.world_size),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(ranks.procs),
                "GROUP_RANK": str(ranks.node_rank),
            }
            children.start(command, rank, told)
    except OSError as error:
        say(f"cannot start {command[0]!r}: {error.strerror}")
        children.kill()
    return children.reap()


class _Children:
    """The live processes, signalled and ended together."""

    def __init__(self) -> None:
        self._alive: dict[int, int] = {}  # process id to rank
        # Keep every Popen: subprocess may reap the process of a dropped one, and os.wait() would miss its end.
        self._started: list[subprocess.Popen[bytes]] = []
        self._failed = False
        self._ending: int | None = None

    def start(self, command: Sequence[str], rank: int, environment: dict[str, str]) -> None:
        env = {**os.environ, **environment}
        # If an outer torchrun has set it, rank 0 would look for the store of a torchrun agent.
        env.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - no threads
        )
        self._started.append(child)
        self._alive[child.pid] = rank
        if self._ending is not None:  # a signal came while the process was being started
            self._send(self._ending)

    def reap(self) -> int:
        """Wait for all processes; return the exit code. The first that fails ends the others."""
        if not self._alive:
            return EXIT_FAILED
        while self._alive:
            # Any process may be the first to end, and Popen.wait waits for a given one.
            pid, status = os.wait()
            rank = self._alive.pop(pid, -1)
            code = os.waitstatus_to_exitcode(status)
            if code == 0 or rank < 0:
                continue
            if not self._failed and self._ending is None:
                say(f"rank {rank} (process {pid}) {_in_words(code)}; ending the others")
            self._failed = True
            self.end(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return EXIT_FAILED if self._failed else 0

    def end(self, signum: int) -> None:
        """Pass `signum` on, at each call. Kill the processes that still run GRACE_S after the first call."""
        if self._ending is None:
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        self._ending = signum
        self._send(signum)

    def kill(self, signum: int = 0, frame: FrameType | None = None) -> None:
        self._failed = True
        self._send(signal.SIGKILL)

    def _send(self, signum: int) -> None:
        for pid in list(self._alive):
            with contextlib.suppress(ProcessLookupError):
                # A user's command leads its own process group. torchrun signals groups as well.
                (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signum)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
