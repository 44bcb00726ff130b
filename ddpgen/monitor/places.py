"""Where Slurm's programs and the checkpoints are: on this machine, or on a login node by ssh.

Owns how a text gets there and back, and the message for a login node that cannot be reached. Everything
but following a log has a time limit. Knows nothing of what the texts do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ddpgen.driver import child, remote, session
from ddpgen.driver.child import Completed
from ddpgen.driver.ends import SSH_FAILED
from ddpgen.driver.plan import Plan, PlannedHost, at_login
from ddpgen.driver.ssh import Ssh, ready
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import scripts
from ddpgen.monitor.record import Following
from ddpgen.programs import stream
from ddpgen.shell import as_argument
from ddpgen.spec.job import JobSpec

ANSWER_S = 60.0
_STALLED = "--timeout=60"  # rsync ends by itself when nothing moves for so long
_NO_PROGRAM = 127


class Ran(NamedTuple):
    """How a program ended, and what it said, errors included."""

    code: int
    said: str


class Place:
    """This machine. `beside`: the directory that holds bundles, checkpoints and logs, for a text."""

    name = ""

    def __init__(self, beside: str) -> None:
        self.beside = beside.rstrip("/")

    def facts(self, text: bytes) -> dict[str, str]:
        """What a text finds out. Raises TargetUnavailableError, also for what it complains of."""
        outcome = self._ask(text, ANSWER_S)
        if outcome.code != 0:
            said = outcome.output.decode("utf-8", "replace").strip()
            told = remote.troubles(outcome.output) or said
            raise TargetUnavailableError(told or f"bash ended with code {outcome.code}")
        return remote.facts(outcome.output)

    def run(self, argv: Sequence[str], directory: str = ".", within: float = ANSWER_S) -> Ran:
        """One program from start to end. Raises TargetUnavailableError when there is no such program."""
        outcome = self._ask(scripts.command(argv, directory), within)
        said = scripts.said(outcome.output)
        if said is not None and outcome.code is not None:
            return Ran(outcome.code, said)
        where = self.name or "this machine"
        if outcome.code == _NO_PROGRAM:
            raise TargetUnavailableError(
                f"there is no {argv[0]} on {where}; name the cluster's login node in the spec: targets: "
                "{slurm: {login: user@host}}"
            )
        lines = outcome.output.decode("utf-8", "replace").split("\n")
        told = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        raise TargetUnavailableError(f"cannot run {argv[0]} on {where}: {told}")

    def typed(self, argv: Sequence[str], directory: str) -> str:
        """What to type, to have `argv` run there."""
        return typed(argv, directory)

    def shown(self, path: str) -> str:
        """A path there as people write it."""
        return short(path)

    def checkpoints(self, job: JobSpec) -> str:
        """The checkpoint directory, for a text."""
        path = job.checkpoint.path or f"checkpoints/{job.name}"
        if path == "~" or path.startswith("~/"):
            return self._at_home(path)
        return path if path.startswith("/") else f"{self.beside}/{path}"

    def _at_home(self, path: str) -> str:
        return os.path.expanduser(path)

    def _ask(self, text: bytes, within: float) -> Completed:
        try:
            outcome = asyncio.run(child.run(["bash", "-s"], text, within))
        except OSError as error:
            raise TargetUnavailableError(f"cannot start bash: {error.strerror}") from None
        if outcome.code is None:
            raise TargetUnavailableError(
                f"this machine: no answer within {within:.0f} s; is the cluster's controller up, and the "
                "file server there?"
            )
        return outcome


class Login(Place):
    """A login node: every text goes through one shared ssh connection."""

    def __init__(self, ssh: Ssh, host: PlannedHost) -> None:
        super().__init__(at_login(host.dir))
        self._ssh, self._host = ssh, host
        self.name = host.ssh

    def typed(self, argv: Sequence[str], directory: str) -> str:
        there = f"cd {shlex.quote(directory.removeprefix('./'))} && {shlex.join(argv)}"
        return f"{self._ssh.by_hand(self._host)} {shlex.quote(there)}"

    def shown(self, path: str) -> str:
        return f"{self.name}:{path.removeprefix('./')}"

    def send(self, bundle: Path, directory: str) -> None:
        """Have `directory` there hold what `bundle` holds. Raises TargetUnavailableError."""
        try:
            asyncio.run(session.send(self._ssh, self._host, bundle, directory, [_STALLED]))
        except session.Trouble as trouble:
            raise TargetUnavailableError(f"{self.name}: {trouble}") from None

    def tail(self, file: str, lines: int, follow: bool) -> int:
        """Show the end of a file, and what is added to it until the user has enough; the exit code."""
        return stream(self._ssh.command(self._host), scripts.tail(file, lines, follow))

    def _at_home(self, path: str) -> str:
        return at_login(path)

    def _ask(self, text: bytes, within: float) -> Completed:
        try:
            outcome = asyncio.run(session.ask(self._ssh, self._host, text, within))
        except session.Trouble as trouble:
            raise TargetUnavailableError(f"{self.name}: {trouble}") from None
        if outcome.code is None or outcome.code == SSH_FAILED:
            why = session.why_not(outcome, self._ssh, self._host, within)
            raise TargetUnavailableError(f"{self.name}: {why}")
        return outcome


@contextlib.contextmanager
def logins(plan: Plan) -> Iterator[list[Login]]:
    """All hosts of `plan`, in its order."""
    with connections(plan) as ssh:
        yield [Login(ssh, host) for host in plan.hosts]


@contextlib.contextmanager
def connections(plan: Plan) -> Iterator[Ssh]:
    """How the hosts of `plan` are reached. Raises TargetUnavailableError."""
    with contextlib.ExitStack() as stack:
        try:
            ssh = stack.enter_context(ready(plan, os.environ))
        except ValueError as error:
            raise TargetUnavailableError(str(error)) from None
        yield ssh


def short(path: str) -> str:
    """A path of this machine as the user would write it, from their working directory."""
    found, stand = Path(path), Path.cwd()
    return str(found.relative_to(stand)) if found.is_relative_to(stand) else path


def typed(argv: Sequence[str], directory: str) -> str:
    """What to type here, to have `argv` run in a directory of this machine."""
    place, words = shlex.quote(os.path.relpath(directory)), shlex.join(argv)
    return words if place == "." else f"(cd {place} && {words})"


def tail(files: Sequence[str], lines: int, follow: bool) -> list[str]:
    """The command that shows the end of files of this machine."""
    named = [as_argument(short(file)) for file in files]
    return ["tail", "-n", str(lines), *(["-F"] if follow else []), *named]


def directory(following: Following) -> Path:
    """The checkpoint directory of a job that keeps it on this machine."""
    return Path(Place(str(following.beside)).checkpoints(following.job))
