"""The machine with Slurm's programs and the checkpoints: this one, or a login node by ssh.

Owns the way of a text to the machine and of its answer back, and the message for a login node that cannot be
reached. Every call but following a log has a time limit. Knows nothing of the texts' content.
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
from ddpgen.driver.plan import Plan, PlannedHost, at_login, lies_at
from ddpgen.driver.ssh import Ssh, ready
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import scripts
from ddpgen.monitor.record import checkpoints
from ddpgen.programs import stream
from ddpgen.shell import as_argument
from ddpgen.spec.job import JobSpec

ANSWER_S = 60.0
_STALLED = "--timeout=60"  # rsync ends by itself if no byte moves for so long
_NO_PROGRAM = 127


class Ran(NamedTuple):
    """A program's exit code and its output, stderr included."""

    code: int
    said: str


class Place:
    """This machine. `beside`: the path, in a text, of the directory that holds bundles, checkpoints and logs."""

    name = ""

    def __init__(self, beside: str) -> None:
        self.beside = beside.rstrip("/")

    def facts(self, text: bytes, purpose: str) -> dict[str, str]:
        """Run a text and return its facts. Raise TargetUnavailableError, also with the text's own complaint.

        `purpose`: of the text, for the log.
        """
        line = f"{self.typed(['bash', '-s'], '.')}  # {purpose}"
        outcome = self._ask(text, ANSWER_S, line)
        if outcome.code != 0:
            said = outcome.output.decode("utf-8", "replace").strip()
            told = remote.troubles(outcome.output) or said
            raise TargetUnavailableError(told or f"bash ended with code {outcome.code}")
        return remote.facts(outcome.output)

    def run(self, argv: Sequence[str], directory: str = ".", within: float = ANSWER_S) -> Ran:
        """Run a program to its end. Raise TargetUnavailableError if it is not there, or gives no answer in time."""
        line = self.typed(argv, directory)
        outcome = self._ask(scripts.command(argv, directory), within, line)
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
        """Return the line with which a user runs `argv` on the machine."""
        return typed(argv, directory)

    def shown(self, path: str) -> str:
        """Return a path on the machine as people write it."""
        return short(path)

    def checkpoints(self, job: JobSpec) -> str:
        """Return the job's checkpoint directory, as a path for a text."""
        return str(checkpoints(job, Path(self.beside)))

    def _ask(self, text: bytes, within: float, line: str) -> Completed:
        try:
            outcome = asyncio.run(child.run(["bash", "-s"], text, within, line=line))
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

    def checkpoints(self, job: JobSpec) -> str:
        return lies_at(job.checkpoint_path, self.beside)

    def send(self, bundle: Path, directory: str) -> None:
        """Copy `bundle` to `directory` on the login node. Raise TargetUnavailableError."""
        try:
            asyncio.run(session.send(self._ssh, self._host, bundle, directory, [_STALLED]))
        except session.Trouble as trouble:
            raise TargetUnavailableError(f"{self.name}: {trouble}") from None

    def tail(self, file: str, lines: int, follow: bool) -> int:
        """Show the end of a file and return the exit code. `follow`: show new lines until the user ends it."""
        return stream(self._ssh.command(self._host), scripts.tail(file, lines, follow))

    def _ask(self, text: bytes, within: float, line: str) -> Completed:
        try:
            outcome = asyncio.run(session.ask(self._ssh, self._host, text, within, line))
        except session.Trouble as trouble:
            raise TargetUnavailableError(f"{self.name}: {trouble}") from None
        if outcome.code is None or outcome.code == SSH_FAILED:
            why = session.why_not(outcome, self._ssh, self._host, within)
            raise TargetUnavailableError(f"{self.name}: {why}")
        return outcome


@contextlib.contextmanager
def logins(plan: Plan) -> Iterator[list[Login]]:
    """Yield all hosts of `plan` as login nodes, in its order."""
    with connections(plan) as ssh:
        yield [Login(ssh, host) for host in plan.hosts]


@contextlib.contextmanager
def connections(plan: Plan) -> Iterator[Ssh]:
    """Yield the ssh connections to the hosts of `plan`. Raise TargetUnavailableError."""
    with contextlib.ExitStack() as stack:
        try:
            ssh = stack.enter_context(ready(plan, os.environ))
        except ValueError as error:
            raise TargetUnavailableError(str(error)) from None
        yield ssh


def short(path: str) -> str:
    """Return a path of this machine as a user writes it in their working directory."""
    found, stand = Path(path), Path.cwd()
    return str(found.relative_to(stand)) if found.is_relative_to(stand) else path


def typed(argv: Sequence[str], directory: str) -> str:
    """Return the line with which a user runs `argv` in a directory of this machine."""
    place, words = shlex.quote(os.path.relpath(directory)), shlex.join(argv)
    return words if place == "." else f"(cd {place} && {words})"


def tail(files: Sequence[str], lines: int, follow: bool) -> list[str]:
    """Return the command that shows the end of files of this machine."""
    named = [as_argument(short(file)) for file in files]
    return ["tail", "-n", str(lines), *(["-F"] if follow else []), *named]
