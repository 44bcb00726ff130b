"""One host: query, send, start, relay, beat, end.

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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from . import remote
from .child import Child, Completed, run
from .ends import SSH_FAILED, End, Evidence, judged
from .logs import Logs
from .pace import Pace
from .plan import Plan, PlannedHost
from .screen import Lines, Screen, shown
from .secret_values import Mask
from .ssh import Ssh, interrupted, is_transient

LAST_LINES = 20
UNREACHABLE = "unreachable"
_MAX_ATTEMPTS = 4
_MARGIN_KIB = 10 * 1024


class Trouble(Exception):  # noqa: N818 - the name that users read
    """A host cannot take part. The message has the reason and the remedy."""


@dataclass(frozen=True)
class HostFacts:
    """The facts of one host before a start.

    `newest_checkpoint`: a step, or -1. `in_use`: True if a job runs from its bundle. `started_by`: who started
    that job, or "".
    """

    newest_checkpoint: int
    in_use: bool
    started_by: str


@dataclass(frozen=True)
class Context:
    """The driver's side on this machine, the same for every command. `secrets`: their values, for a start."""

    plan: Plan
    ssh: Ssh
    bundle: Path
    pace: Pace
    screen: Screen
    logs: Logs
    secrets: Mapping[str, str] = field(default_factory=dict)

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

    def __init__(self, host: PlannedHost, context: Context, report: Callable[[End], None]) -> None:
        self.host, self._context, self._report = host, context, report
        self.state = "waiting"
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._bundle = context.plan.bundle(host)
        self._child: Child | None = None
        self._forced, self._disconnect_reason = False, ""
        self._lines, self._evidence = Lines(), Evidence()
        self._mask = Mask(context.secrets.values())
        self._relay_task: asyncio.Task[None] | None = (
            None  # keeps a reference, because asyncio may collect a task without one
        )

    async def query(self) -> HostFacts:
        """Connect, and check that the job can run there. Raise Trouble."""
        self.state = "connecting"
        context = self._context
        text = remote.prepare(context.plan, self.host, context.need_kib)
        outcome = await ask(context.ssh, self.host, text, context.pace.check)
        facts = remote.facts(outcome.output)
        if outcome.code != 0 or "ready" not in facts:
            self.state = UNREACHABLE if outcome.code in (None, SSH_FAILED) else "refused"
            raise Trouble(failure_reason(outcome, context.ssh, self.host, context.pace.check))
        self.state = "connected"
        return HostFacts(int(facts["newest"] or -1), "in-use" in facts, facts.get("by", ""))

    async def prepare(self) -> HostFacts:
        """Query the host, send the bundle and install. Raise Trouble.

        It is a trouble if a job runs from the bundle, because this job's restarts need the files.
        """
        facts = await self.query()
        if facts.in_use:
            self.state = "in use"
            starter = f", started by {shown(facts.started_by.encode())}" if facts.started_by else ""
            raise Trouble(
                f"a job runs from {self._bundle} there{starter}; wait for it, or stop it: "
                "bash hosts/run.sh --stop"
            )
        await self.send_bundle()
        if self._context.plan.locked:
            await self._install()
        return facts

    async def _install(self) -> None:
        """Install the packages of the version lock. Raise Trouble.

        This comes before any host starts, because started hosts would not wait for the slowest install.
        """
        self.state = "installing"
        context = self._context
        outcome = await ask(context.ssh, self.host, remote.install(context.plan, self.host), None)
        self._on_output(outcome.output)
        if outcome.code != 0:
            self.state = "refused"
            reason = remote.troubles(outcome.output) or context.ssh.complaint(
                outcome.output, self.host
            )
            raise Trouble(reason)
        self.state = "ready"

    async def send_bundle(self) -> None:
        """Make the host's bundle equal to ours. Raise Trouble."""
        self.state = "sending"
        context = self._context
        # If hosts share the directory, rsync must not delete the file that another host's rsync is writing.
        options = ("--delete", "--filter=P .*.??????", f"--timeout={context.pace.stall:.0f}")
        await send(context.ssh, self.host, context.bundle, self._bundle, options)
        self.state = "ready"

    async def start(self, environment: Mapping[str, str], arguments: Iterable[str]) -> None:
        """Start the host's script, and show its lines from now on. Raise Trouble."""
        token = secrets.token_hex(8)
        self._lines, self._evidence = Lines(), Evidence(token)
        self._forced, self._disconnect_reason = False, ""
        command = self._context.ssh.command(self.host)
        try:
            self._child = await Child.start(command, self._on_output)
        except OSError as error:
            raise Trouble(f"cannot start {command[0]}: {error.strerror}") from None
        words = (f"--driven={token}", *arguments)
        self._child.write(remote.start(self._context.plan, self.host, environment, words))
        self.state = "running"
        self._relay_task = asyncio.create_task(self._follow(self._child))

    def send_command(self, command: str) -> None:
        """Send stop or kill to the host's supervisor, if its script runs."""
        if self._child is not None:
            self._forced = self._forced or command == "kill"
            self._child.write(f"{command}\n".encode())

    async def disconnect(self, reason: str) -> None:
        """Close the connection to the host. Without the driver, the host's script soon stops by itself."""
        if self._child is not None:
            self._disconnect_reason = reason
            self._child.close_input()
            await self._child.kill()

    async def _follow(self, child: Child) -> None:
        """Send beats until the script has ended, and report its end."""
        code = None
        while code is None:
            child.write(b"beat\n")
            code = await child.ended_within(self._context.pace.beat)
        self._pass_on(self._mask.end())
        self._show_lines(self._lines.end())
        self._child = None
        if self._disconnect_reason:
            end = End(self.host.name, "lost", None, self._disconnect_reason, self._forced)
        else:
            end = judged(self.host.name, code, self._evidence, self._forced)
        self.state = end.state
        self._report(end)

    def _on_output(self, data: bytes) -> None:
        self._pass_on(self._mask.feed(data))

    def _pass_on(self, data: bytes) -> None:
        self._context.logs.write(self.host.name, data)
        self._show_lines(self._lines.feed(data))

    def _show_lines(self, lines: list[bytes]) -> None:
        texts = [text for text in map(shown, lines) if self._evidence.add(text)]
        self.last_lines.extend(texts)
        if texts:
            self._context.screen.lines(self.host.name, texts)


async def ask(
    ssh: Ssh, host: PlannedHost, text: bytes, timeout_s: float | None, line: str = ""
) -> Completed:
    """Run a text on a host; try again if the host had too many connections at once. Raise Trouble.

    `line`: see trace.begin().
    """
    for attempt in range(_MAX_ATTEMPTS):
        try:
            outcome = await run(ssh.command(host), text, timeout_s, line=line)
        except OSError as error:
            message = f"cannot start {ssh.words[0]}: {error.strerror}; install ssh, or name it in DDPGEN_SSH"
            raise Trouble(message) from None
        if outcome.code != SSH_FAILED or not is_transient(outcome.output):
            break
        if attempt == 0:
            alone = await run(ssh.command(host, keep=False), b"", timeout_s)
            if alone.code == SSH_FAILED and not is_transient(alone.output):
                return alone
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
        message = f"cannot start rsync on this machine: {error.strerror}; install it"
        raise Trouble(message) from None
    if outcome.code != 0:
        raise Trouble(f"rsync (code {outcome.code}): {ssh.complaint(outcome.output, host)}")


def failure_reason(outcome: Completed, ssh: Ssh, host: PlannedHost, timeout_s: float) -> str:
    """Return why a text failed on a host: its own complaint, if it printed one, else the cause in ssh's output."""
    first = outcome.output.decode("utf-8", "replace").strip().partition("\n")[0].strip()
    if outcome.code is None:
        printed = f" after {first!r}" if first else ""
        return (
            f"no answer within {timeout_s:.0f} s{printed}; is it switched on, and is "
            f"`{ssh.login_command(host)}` right?"
        )
    if reason := remote.troubles(outcome.output):
        return reason
    remedied = ssh.remedied(outcome.output, host)
    # With `exec tmux` in ~/.bashrc, the login shell ends with exit code 1.
    if outcome.code == 0 or (outcome.code < 128 and (not first or "not a terminal" in first)):
        return interrupted(first)
    return remedied or ssh.complaint(outcome.output, host)
