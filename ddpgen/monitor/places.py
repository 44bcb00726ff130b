"""Where Slurm's programs and the checkpoints are: on this machine, or on a login node by ssh.

Owns how a text gets there and back, and the words for a way that is closed. Nothing here waits longer
than told, but for who follows a log. Knows nothing of what the texts do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ddpgen.driver import child, remote, session
from ddpgen.driver.child import Outcome
from ddpgen.driver.ends import SSH_FAILED
from ddpgen.driver.plan import Host, Plan, at_login
from ddpgen.driver.ssh import Ssh, ready
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import scripts
from ddpgen.spec.job import JobSpec
from ddpgen.spec.slurm import SlurmJob

ANSWER_S = 60.0
# rsync gives up by itself when nothing moves; this is for whatever may keep it from that.
_STALL_S = 60
_SEND_S = 3600.0
_NO_PROGRAM = 127
_HANG_UP_S = 5.0


class Ran(NamedTuple):
    """How a program ended, and what it said, errors included."""

    code: int
    said: str


class Place(Protocol):
    """Where a text can be run."""

    @property
    def beside(self) -> str:
        """The directory that holds bundles, checkpoints and logs, for a text."""

    @property
    def name(self) -> str:
        """The login node, as ssh calls it; "" for this machine."""

    def ask(self, text: bytes, within: float = ANSWER_S) -> Outcome:
        """Run a text. Raises TargetUnavailableError when the way there is closed, or too long."""

    def typed(self, argv: Sequence[str], directory: str) -> str:
        """What to type, to have `argv` run there."""


class Here:
    """This machine."""

    name = ""

    def __init__(self, beside: Path) -> None:
        self.beside = str(beside.absolute())

    def ask(self, text: bytes, within: float = ANSWER_S) -> Outcome:
        """Raises TargetUnavailableError."""
        try:
            outcome = asyncio.run(child.run(["bash", "-s"], text, within))
        except OSError as error:
            raise TargetUnavailableError(f"cannot start bash: {error.strerror}") from None
        return _in_time(outcome, "this machine", within)

    def typed(self, argv: Sequence[str], directory: str) -> str:
        """A command, from where the user stands."""
        place = os.path.relpath(directory)
        return (
            shlex.join(argv) if place == "." else f"(cd {shlex.quote(place)} && {shlex.join(argv)})"
        )


class Login:
    """A login node: every text goes through one shared ssh connection."""

    def __init__(self, ssh: Ssh, host: Host) -> None:
        self._ssh, self._host = ssh, host
        self.name = host.ssh
        self.beside = at_login(host.dir).rstrip("/") or "/"

    def ask(self, text: bytes, within: float = ANSWER_S) -> Outcome:
        """Raises TargetUnavailableError."""
        try:
            outcome = asyncio.run(session.ask(self._ssh, self._host, text, within))
        except session.Trouble as trouble:
            raise TargetUnavailableError(f"{self.name}: {trouble}") from None
        if outcome.code is None or outcome.code == SSH_FAILED:
            why = session.why_not(outcome, self._ssh, self._host, within)
            raise TargetUnavailableError(f"{self.name}: {why}")
        return outcome

    def typed(self, argv: Sequence[str], directory: str) -> str:
        """The ssh command that does it by hand."""
        there = f"cd {shlex.quote(directory.removeprefix('./'))} && {shlex.join(argv)}"
        return f"{self._ssh.by_hand(self._host)} {shlex.quote(there)}"

    def send(self, bundle: Path, directory: str) -> None:
        """Have `directory` there hold what `bundle` holds. Raises TargetUnavailableError."""
        way = self._ssh.shell_for_rsync(self._host, directory)
        argv = ["rsync", "-rlpc", "--exclude=__pycache__", f"--timeout={_STALL_S}", *way]
        try:
            sending = child.run([*argv, "./", "host:./"], b"", _SEND_S, str(bundle))
            outcome = asyncio.run(sending)
        except OSError as error:
            raise TargetUnavailableError(
                f"cannot start rsync on this machine: {error.strerror}; install it"
            ) from None
        if outcome.code != 0:
            why = self._ssh.complaint(outcome.output, self._host)
            raise TargetUnavailableError(f"{self.name}: rsync (code {outcome.code}): {why}")

    def follow(self, file: str, lines: int) -> int:
        """Show a file as it grows, until the user has enough. Raises TargetUnavailableError."""
        return asyncio.run(_follow(self._ssh.command(self._host), scripts.follow(file, lines)))

    def hang_up(self) -> None:
        """End the shared connection; one that does not answer ends by itself."""
        socket = self._ssh.socket(self._host)
        if socket.exists():
            with contextlib.suppress(OSError):
                asyncio.run(child.run(self._ssh.hang_up(self._host), b"", _HANG_UP_S))


@contextlib.contextmanager
def reach(job: SlurmJob, beside: Path, environment: dict[str, str]) -> Iterator[Here | Login]:
    """Where the job's Slurm is: on the login node of the spec, else here, beside the bundle."""
    if job.login is None:
        yield Here(beside)
        return
    host = Host(job.login, job.login, job.dir, "slurm.sbatch")
    way = Plan(job.name, "", None, 0, job.login, job.ssh_options, "", (host,))
    with logins(way, environment) as ((login, _),):
        yield login


@contextlib.contextmanager
def logins(plan: Plan, environment: dict[str, str]) -> Iterator[list[tuple[Login, Host]]]:
    """The ways to all hosts of `plan`."""
    with contextlib.ExitStack() as stack:
        try:
            ssh = stack.enter_context(ready(plan, environment))
        except ValueError as error:
            raise TargetUnavailableError(str(error)) from None
        found = [(Login(ssh, host), host) for host in plan.hosts]
        for login, _ in found:
            stack.callback(login.hang_up)
        yield found


def checkpoints(place: Place, job: JobSpec) -> str:
    """The checkpoint directory, for a text that runs at `place`."""
    path = job.checkpoint.path or f"checkpoints/{job.name}"
    if path.startswith("/"):
        return path
    if path == "~" or path.startswith("~/"):
        return at_login(path) if place.name else os.path.expanduser(path)
    return f"{place.beside.rstrip('/')}/{path}"


def short(path: str) -> str:
    """A path of this machine as the user would write it, from where they stand."""
    found, stand = Path(path), Path.cwd()
    return str(found.relative_to(stand)) if found.is_relative_to(stand) else path


def as_argument(path: str) -> str:
    """A path that no program takes for an option."""
    return f"./{path}" if path.startswith("-") else path


def run(place: Place, argv: Sequence[str], directory: str = ".", within: float = ANSWER_S) -> Ran:
    """One program from start to end. Raises TargetUnavailableError when there is no such program."""
    made = scripts.command_at_login if place.name else scripts.command
    outcome = place.ask(made(argv, directory), within)
    said = scripts.said(outcome.output)
    if said is not None and outcome.code is not None:
        return Ran(outcome.code, said)
    where = place.name or "this machine"
    if outcome.code == _NO_PROGRAM:
        remedy = (
            "is it the cluster's login node? name that in targets.slurm.login"
            if place.name
            else "run this on the cluster's login node, or name that in the spec: "
            "targets: {slurm: {login: user@host}}"
        )
        raise TargetUnavailableError(f"there is no {argv[0]} on {where}; {remedy}")
    lines = outcome.output.decode("utf-8", "replace").split("\n")
    told = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    raise TargetUnavailableError(f"cannot run {argv[0]} on {where}: {told}")


def facts(outcome: Outcome) -> dict[str, str]:
    """What a text found out. Raises TargetUnavailableError for what it complains of."""
    if outcome.code != 0:
        told = remote.troubles(outcome.output) or outcome.output.decode("utf-8", "replace").strip()
        raise TargetUnavailableError(told or f"bash ended with code {outcome.code}")
    return remote.facts(outcome.output)


def _in_time(outcome: Outcome, where: str, within: float) -> Outcome:
    if outcome.code is None:
        raise TargetUnavailableError(
            f"{where}: no answer within {within:.0f} s; is the cluster's controller up, and the file "
            "server there?"
        )
    return outcome


async def _follow(argv: Sequence[str], text: bytes) -> int:
    """Hand on what comes after the beginning; the input stays open as long as we are here."""
    held: list[bytes] | None = []
    gone = asyncio.Event()

    def hear(data: bytes) -> None:
        nonlocal held
        if held is not None:
            held.append(data)
            _, begun, data = (b"\n" + b"".join(held)).partition(f"\n{scripts.BEGIN}\n".encode())
            if not begun:
                return
            held = None
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:  # whoever read it has gone
            gone.set()

    try:
        following = await child.Child.start(argv, hear)
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
    try:
        following.say(text)
        ends = [asyncio.ensure_future(following.ended()), asyncio.ensure_future(gone.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return ends[0].result() if ends[0].done() else 0
    finally:
        following.close_input()
        await following.kill()
