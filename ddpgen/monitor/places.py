"""The machine with Slurm's programs and the checkpoints: this one, or a login node by ssh.

Sends a text to the machine and returns its answer. Owns the message for a login node that cannot be reached. Every
call has a time limit, except the one that follows a log. Knows nothing of the texts' content.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ddpgen.driver import child, remote, session
from ddpgen.driver.child import Completed
from ddpgen.driver.ends import SSH_FAILED
from ddpgen.driver.plan import Plan, PlannedHost, login_path, login_path_in
from ddpgen.driver.ssh import Ssh, ready
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import scripts
from ddpgen.monitor.record import checkpoints
from ddpgen.programs import stream
from ddpgen.spec.job import JobSpec
from ddpgen.text.shell import as_argument

ANSWER_S = 60.0
_STALL_LIMIT = "--timeout=60"  # rsync ends by itself if no byte moves for this long
_NOT_FOUND = 127
_T = TypeVar("_T")
NOTHING: Mapping[str, str] = {}


class ProgramResult(NamedTuple):
    """A program's exit code and its output, stderr included."""

    code: int
    output: str


class Machine:
    """This machine. `base`: the path, in a text, of the directory that holds bundles, checkpoints and logs."""

    name = ""

    def __init__(self, base: str) -> None:
        self.base = base.rstrip("/")

    def facts(self, text: bytes, purpose: str) -> dict[str, str]:
        """Run a text and return its facts. Raise TargetUnavailableError, also with the text's own complaint.

        `purpose`: the purpose of the text, for the log.
        """
        line = f"{self.shell_line(['bash', '-s'], '.')}  # {purpose}"
        outcome = self._ask(text, ANSWER_S, line)
        if outcome.code != 0:
            output = outcome.output.decode("utf-8", "replace").strip()
            message = remote.troubles(outcome.output) or output
            raise TargetUnavailableError(message or f"bash ended with code {outcome.code}")
        return remote.facts(outcome.output)

    def run(
        self,
        argv: Sequence[str],
        directory: str = ".",
        timeout_s: float = ANSWER_S,
        *,
        variables: Mapping[str, str] = NOTHING,
    ) -> ProgramResult:
        """Run a program to its end. Raise TargetUnavailableError if it is not there, or gives no answer in time.

        `variables`: for its environment. They are in no command line and in no log.
        """
        line = self.shell_line(argv, directory)
        outcome = self._ask(scripts.command(argv, directory, variables), timeout_s, line)
        output = scripts.program_output(outcome.output)
        if output is not None and outcome.code is not None:
            return ProgramResult(outcome.code, output)
        name = self.name or "this machine"
        if outcome.code == _NOT_FOUND:
            raise TargetUnavailableError(
                f"there is no {argv[0]} on {name}; name the cluster's login node in the spec: targets: "
                "{slurm: {login: user@host}}"
            )
        lines = outcome.output.decode("utf-8", "replace").split("\n")
        last_line = next(
            (line.strip() for line in reversed(lines) if line.strip()), "it said nothing"
        )
        raise TargetUnavailableError(f"cannot run {argv[0]} on {name}: {last_line}")

    def shell_line(self, argv: Sequence[str], directory: str) -> str:
        """Return the line with which a user runs `argv` on the machine."""
        return shell_line(argv, directory)

    def shown(self, path: str) -> str:
        """Return a path on the machine as people write it."""
        return short(path)

    def checkpoints(self, job: JobSpec) -> str:
        """Return the job's checkpoint directory, as a path for a text."""
        return str(checkpoints(job, Path(self.base)))

    def _ask(self, text: bytes, timeout_s: float, line: str) -> Completed:
        try:
            outcome = finish(child.run(["bash", "-s"], text, timeout_s, line=line))
        except OSError as error:
            raise TargetUnavailableError(f"cannot start bash: {error.strerror}") from None
        if outcome.code is None:
            raise TargetUnavailableError(
                f"this machine: no answer within {timeout_s:.0f} s; is the cluster's controller up, and the "
                "file server there?"
            )
        return outcome


class LoginNode(Machine):
    """A login node: every text goes through one shared ssh connection."""

    def __init__(self, ssh: Ssh, host: PlannedHost) -> None:
        super().__init__(login_path(host.dir))
        self._ssh, self._host = ssh, host
        self.name = host.ssh

    def shell_line(self, argv: Sequence[str], directory: str) -> str:
        remote_command = f"cd {shlex.quote(directory.removeprefix('./'))} && {shlex.join(argv)}"
        return f"{self._ssh.login_command(self._host)} {shlex.quote(remote_command)}"

    def shown(self, path: str) -> str:
        return f"{self.name}:{path.removeprefix('./')}"

    def checkpoints(self, job: JobSpec) -> str:
        return login_path_in(job.checkpoint_path, self.base)

    def send(self, bundle: Path, directory: str) -> None:
        """Copy `bundle` to `directory` on the login node. Raise TargetUnavailableError."""
        try:
            finish(session.send(self._ssh, self._host, bundle, directory, [_STALL_LIMIT]))
        except session.Trouble as trouble:
            raise TargetUnavailableError(f"{self.name}: {trouble}") from None

    def tail(self, file: str, lines: int, follow: bool) -> int:
        """Show the end of a file and return the exit code. `follow`: show new lines until the user ends it."""
        return stream(self._ssh.command(self._host), scripts.tail(file, lines, follow))

    def _ask(self, text: bytes, timeout_s: float, line: str) -> Completed:
        try:
            outcome = finish(session.ask(self._ssh, self._host, text, timeout_s, line))
        except session.Trouble as trouble:
            raise TargetUnavailableError(f"{self.name}: {trouble}") from None
        if outcome.code is None or outcome.code == SSH_FAILED:
            reason = session.failure_reason(outcome, self._ssh, self._host, timeout_s)
            raise TargetUnavailableError(f"{self.name}: {reason}")
        return outcome


@contextlib.contextmanager
def logins(plan: Plan) -> Iterator[list[LoginNode]]:
    """Yield all hosts of `plan` as login nodes, in its order."""
    with connections(plan) as ssh:
        yield [LoginNode(ssh, host) for host in plan.hosts]


@contextlib.contextmanager
def connections(plan: Plan) -> Iterator[Ssh]:
    """Yield the ssh connections to the hosts of `plan`. Raise TargetUnavailableError."""
    with contextlib.ExitStack() as stack:
        try:
            ssh = stack.enter_context(ready(plan, os.environ))
        except ValueError as error:
            raise TargetUnavailableError(str(error)) from None
        yield ssh


def finish(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end and return its result, also if an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def short(path: str) -> str:
    """Return a path of this machine as a user writes it in their working directory."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def shell_line(argv: Sequence[str], directory: str) -> str:
    """Return the line with which a user runs `argv` in a directory of this machine."""
    relative, words = shlex.quote(os.path.relpath(directory)), shlex.join(argv)
    return words if relative == "." else f"(cd {relative} && {words})"


def tail(files: Sequence[str], lines: int, follow: bool) -> list[str]:
    """Return the command that shows the end of files of this machine."""
    names = [as_argument(short(file)) for file in files]
    return ["tail", "-n", str(lines), *(["-F"] if follow else []), *names]
