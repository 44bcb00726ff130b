"""One host: look, send, start, relay, beat, end.

Owns everything that goes to this host and everything that comes from it. It is the only writer to the host's
input. Decides nothing about the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import remote
from .child import Child, Completed, run
from .ends import SSH_FAILED, End, Evidence, judged
from .logs import Logs
from .pace import Pace
from .plan import Plan, PlannedHost
from .screen import Lines, Screen, shown
from .ssh import Ssh, interrupted, is_passing

LAST_LINES = 20
_TRIES = 4
_MARGIN_KIB = 10 * 1024


class Trouble(Exception):  # noqa: N818 - the name that users read
    """A host cannot take part. The message has the reason and the remedy."""


@dataclass(frozen=True)
class Looked:
    """The facts of one host before a start.

    `newest`: the step of its newest checkpoint, or -1. `in_use`: True if a job runs from its bundle. `by`: who
    started that job, or "".
    """

    newest: int
    in_use: bool
    by: str


@dataclass(frozen=True)
class Home:
    """The driver's side on this machine, the same for every command."""

    plan: Plan
    ssh: Ssh
    bundle: Path
    pace: Pace
    screen: Screen
    logs: Logs

    @cached_property
    def need_kib(self) -> int:
        """The room that the bundle needs on a host, with a margin, in KiB."""
        blocks = 0
        for root, names, files in os.walk(self.bundle):
            names[:] = [name for name in names if name != "__pycache__"]
            for name in files:
                with contextlib.suppress(OSError):
                    blocks += os.lstat(os.path.join(root, name)).st_size // 4096 + 1
            blocks += 1
        return blocks * 4 + _MARGIN_KIB


class Session:
    """The driver's side of one host. `report` is called with the end of each script that start() started."""

    def __init__(self, host: PlannedHost, home: Home, report: Callable[[End], None]) -> None:
        self.host, self._home, self._report = host, home, report
        self.state = "waiting"
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._bundle = home.plan.bundle(host)
        self._child: Child | None = None
        self._forced, self._left = False, ""
        self._lines, self._evidence = Lines(), Evidence()
        self._following: asyncio.Task[None] | None = (
            None  # keeps a reference, because asyncio may collect a task without one
        )

    async def look(self) -> Looked:
        """Connect, and check that the job can run there. Raise Trouble."""
        self.state = "connecting"
        home = self._home
        text = remote.prepare(home.plan, self.host, home.need_kib)
        outcome = await ask(home.ssh, self.host, text, home.pace.check)
        found = remote.facts(outcome.output)
        if outcome.code != 0 or "ready" not in found:
            self.state = "unreachable" if outcome.code in (None, SSH_FAILED) else "refused"
            raise Trouble(why_not(outcome, home.ssh, self.host, home.pace.check))
        self.state = "connected"
        return Looked(int(found["newest"] or -1), "in-use" in found, found.get("by", ""))

    async def prepare(self) -> Looked:
        """Look, send the bundle and install. Raise Trouble.

        A job that runs from the bundle is such a trouble, because its restarts need the files.
        """
        looked = await self.look()
        if looked.in_use:
            self.state = "in use"
            by = f", started by {shown(looked.by.encode())}" if looked.by else ""
            raise Trouble(
                f"a job runs from {self._bundle} there{by}; wait for it, or stop it: "
                "bash hosts/run.sh --stop"
            )
        await self.send_bundle()
        if self._home.plan.locked:
            await self._install()
        return looked

    async def _install(self) -> None:
        """Install the packages of the version lock. Raise Trouble.

        This comes before any host starts, because the others would not wait for the slowest one.
        """
        self.state = "installing"
        home = self._home
        outcome = await ask(home.ssh, self.host, remote.install(home.plan, self.host), None)
        self._hear(outcome.output)
        if outcome.code != 0:
            self.state = "refused"
            why = remote.troubles(outcome.output) or home.ssh.complaint(outcome.output, self.host)
            raise Trouble(why)
        self.state = "ready"

    async def send_bundle(self) -> None:
        """Make the host's bundle equal to ours. Raise Trouble."""
        self.state = "sending"
        home = self._home
        # If hosts share the directory, rsync must not delete the file that another host's rsync is writing.
        options = ("--delete", "--filter=P .*.??????", f"--timeout={home.pace.stall:.0f}")
        await send(home.ssh, self.host, home.bundle, self._bundle, options)
        self.state = "ready"

    async def start(self, environment: Mapping[str, str], arguments: Iterable[str]) -> None:
        """Start the host's script, and show its lines from now on. Raise Trouble."""
        token = secrets.token_hex(8)
        self._lines, self._evidence = Lines(), Evidence(token)
        self._forced, self._left = False, ""
        command = self._home.ssh.command(self.host)
        try:
            self._child = await Child.start(command, self._hear)
        except OSError as error:
            raise Trouble(f"cannot start {command[0]}: {error.strerror}") from None
        words = (f"--driven={token}", *arguments)
        self._child.say(remote.start(self._home.plan, self.host, environment, words))
        self.state = "running"
        self._following = asyncio.create_task(self._follow(self._child))

    def send_command(self, command: str) -> None:
        """Send stop or kill to the host's supervisor, if its script runs."""
        if self._child is not None:
            self._forced = self._forced or command == "kill"
            self._child.say(f"{command}\n".encode())

    async def leave(self, why: str) -> None:
        """Close the connection to the host. Without the driver its script soon stops by itself."""
        if self._child is not None:
            self._left = why
            self._child.close_input()
            await self._child.kill()

    async def _follow(self, child: Child) -> None:
        """Send beats until the script has ended, and report its end."""
        code = None
        while code is None:
            child.say(b"beat\n")
            code = await child.ended_within(self._home.pace.beat)
        self._take(self._lines.end())
        self._child = None
        if self._left:
            end = End(self.host.name, "lost", None, self._left, self._forced)
        else:
            end = judged(self.host.name, code, self._evidence, self._forced)
        self.state = end.state
        self._report(end)

    def _hear(self, data: bytes) -> None:
        self._home.logs.write(self.host.name, data)
        self._take(self._lines.feed(data))

    def _take(self, lines: list[bytes]) -> None:
        texts = [text for text in map(shown, lines) if self._evidence.add(text)]
        self.last.extend(texts)
        if texts:
            self._home.screen.lines(self.host.name, texts)


async def ask(
    ssh: Ssh, host: PlannedHost, text: bytes, within: float | None, line: str = ""
) -> Completed:
    """Run a text on a host; try again if the host had too many connections at once. Raise Trouble.

    `line`: see trace.begin().
    """
    for attempt in range(_TRIES):
        try:
            outcome = await run(ssh.command(host), text, within, line=line)
        except OSError as error:
            told = f"cannot start {ssh.words[0]}: {error.strerror}; install ssh, or name it in DDPGEN_SSH"
            raise Trouble(told) from None
        if outcome.code != SSH_FAILED or not is_passing(outcome.output):
            break
        await asyncio.sleep(attempt + ssh.numbers[host.name] % 10 / 10)
    return outcome


async def send(
    ssh: Ssh, host: PlannedHost, bundle: Path, directory: str, options: Iterable[str]
) -> None:
    """Copy `bundle` to `directory` on a host. `options`: more options of rsync. Raise Trouble."""
    shell = ssh.shell_for_rsync(host, directory)
    command = ["rsync", "-rlpc", "--exclude=__pycache__", *options, *shell, "./", "host:./"]
    try:
        outcome = await run(command, b"", None, str(bundle))
    except OSError as error:
        told = f"cannot start rsync on this machine: {error.strerror}; install it"
        raise Trouble(told) from None
    if outcome.code != 0:
        raise Trouble(f"rsync (code {outcome.code}): {ssh.complaint(outcome.output, host)}")


def why_not(outcome: Completed, ssh: Ssh, host: PlannedHost, within: float) -> str:
    """Return why a text failed on a host: its own complaint, if it printed one, else the cause in ssh's output."""
    first = outcome.output.decode("utf-8", "replace").strip().partition("\n")[0].strip()
    if outcome.code is None:
        after = f" after {first!r}" if first else ""
        return (
            f"no answer within {within:.0f} s{after}; is it switched on, and is "
            f"`{ssh.by_hand(host)}` right?"
        )
    if reason := remote.troubles(outcome.output):
        return reason
    remedied = ssh.remedied(outcome.output, host)
    # `exec tmux` in ~/.bashrc ends with 1.
    if outcome.code == 0 or (outcome.code < 128 and (not first or "not a terminal" in first)):
        return interrupted(first)
    return remedied or ssh.complaint(outcome.output, host)
