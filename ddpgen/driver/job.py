"""The job as a whole: prepare all hosts, start them, and end them together.

Owns every decision: when the other hosts must end, which host is tried again, when all start again. Sessions
carry the decisions out and report their ends; the pure judgements are in ends.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import signal
import socket
import time
from collections import Counter
from collections.abc import Container, Iterable
from typing import Any

from . import bad_nodes
from .ends import (
    DONE,
    NO_START,
    STOPPED,
    End,
    all_by_fault,
    culprit,
    exit_code,
    lost_host,
    may_start_again,
)
from .fault_list import FaultList
from .screen import folded
from .session import UNREACHABLE, Context, HostFacts, Session, Trouble
from .wording import first_names, table

_MAX_NAMES = 8
_STOP_MESSAGES = (
    "",
    "asking all hosts for a clean stop; Ctrl-C again to kill",
    "killing the job on all hosts; what it has not saved is lost",
    "leaving; what still runs on a host ends by itself, at the latest after the collective timeout",
)


class DriverRun:
    """One run of the driver: prepare and start all hosts, again if needed, until the last one ends."""

    def __init__(self, context: Context, arguments: tuple[str, ...]) -> None:
        self._context, self._arguments = context, arguments
        self._plan, self._pace = context.plan, context.pace
        # None wakes the loop, because the deadline may have changed.
        self._events: asyncio.Queue[End | None] = asyncio.Queue()
        report = self._events.put_nowait
        self._all_sessions = {
            host.name: Session(host, context, report) for host in context.plan.hosts
        }
        self._sessions: dict[str, Session] = {}  # of the hosts that take part
        self._head = context.plan.head
        self._faults = FaultList(context.logs.directory.parent / bad_nodes.FILE)
        self._blamed: set[str] = set()  # hosts whose own fault has ended this start
        self._excludes = context.plan.exclude_bad_nodes and "--preflight" not in arguments[:2]
        starter = f"{getpass.getuser()}@{socket.gethostname()}, {time.strftime('%Y-%m-%d %H:%M')}"
        self._environment = {
            "DDPGEN_LAUNCH": context.logs.directory.name,
            "DDPGEN_STARTED_BY": starter,
            **context.secrets,
        }
        self._running: set[str] = set()
        self._stoppable: list[asyncio.Task[Any]] = []  # the tasks that a stop cancels
        self._retries: list[asyncio.Task[None]] = []
        self._ends: list[End] = []  # of this start, in order of time
        self._crashes: Counter[str] = Counter()
        self._returned: set[str] = set()
        self._stop_level = 0  # 1 stop, 2 kill, 3 leave
        self._signals: dict[str, float] = {}  # the time of the last one of each kind
        self._troubles: dict[str, str] = {}  # by name of a host, why it is not ready for a start
        self._deadline: float | None = None
        self._killed = self._job_ended = False
        self._restarted = 0
        self._newest = -1

    async def run(self) -> int:
        """Run the job to its end, show the last table, and return the exit code."""
        loop = asyncio.get_running_loop()
        for name in ("INT", "TERM", "HUP"):
            number = getattr(signal, f"SIG{name}")
            if name == "HUP" and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the driver must survive the closing of the terminal
            loop.add_signal_handler(number, self._on_signal, name)
        loop.add_signal_handler(signal.SIGTSTP, self._on_pause)
        try:
            ready = await self._prepare_first()
            if not ready:
                return self._not_started()
            while ready:
                await self._start_all(ready)
                await self._until_all_ended()
                ready = await self._prepare_again()
            return self._conclude()
        finally:
            await self._give_up_retries()
            await self._disconnect("the driver ended")

    # --- before the start ---------------------------------------------------------------------

    async def _prepare_first(self) -> set[str]:
        """Return the hosts to start: all of them, or enough for an elastic job, or none."""
        self._choose_hosts()
        count = len(self._sessions)
        hosts = f"{count} host{'s' if count > 1 else ''}"
        self._progress(f"looking at {hosts} and sending the bundle")
        prepared = await self._prepare_enough(patience_s=0.0)
        self._newest = max((facts.newest_checkpoint for facts in prepared.values()), default=-1)
        if prepared and len(prepared) < len(self._sessions):
            self._show_troubles()
            if self._head not in prepared:
                self._head = next(name for name in self._sessions if name in prepared)
        return set(prepared)

    def _not_started(self) -> int:
        if self._stop_level:
            self._progress("stopped before anything was started")
            return STOPPED
        self._show_troubles()
        self._say("nothing was started")
        return NO_START

    async def _prepare(self, names: Iterable[str]) -> dict[str, HostFacts]:
        """Prepare hosts concurrently and return the ready hosts. `_troubles` gets the others. A stop cancels the rest."""
        tasks = {asyncio.create_task(self._sessions[name].prepare()): name for name in names}
        self._stoppable = list(tasks)
        pending = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=self._pace.reminder)
            if pending and not self._stop_level:
                self._report_waiting(name for task, name in tasks.items() if task in pending)
        self._stoppable = []
        ready: dict[str, HostFacts] = {}
        self._troubles = {}
        for task, name in tasks.items():
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    ready[name] = task.result()
                except Trouble as trouble:
                    self._troubles[name] = str(trouble)
        return ready

    async def _prepare_enough(self, patience_s: float) -> dict[str, HostFacts]:
        """Prepare hosts until enough are ready, and return them; {} after a stop, or after `patience_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        ready: dict[str, HostFacts] = {}
        while not self._stop_level:
            ready |= await self._prepare(name for name in self._sessions if name not in ready)
            if len(ready) >= self._plan.min_hosts and not self._stop_level:
                return ready
            if loop.time() >= deadline:
                if self._replace_unreachable(ready):
                    continue
                break
            self._report_waiting(self._troubles)
            self._stoppable = [asyncio.create_task(asyncio.sleep(self._pace.retry))]
            await asyncio.wait(self._stoppable)
        return {}

    # --- who takes part -----------------------------------------------------------------------

    def _choose_hosts(self) -> None:
        """Choose the hosts of the next start: a spare takes the place of a bad host."""
        plan = self._plan
        bad = bad_nodes.bad(self._faults.read()) if plan.exclude_bad_nodes else []
        names = bad_nodes.taking_part(plan, [fault.node for fault in bad])
        for fault in bad:
            if fault.node in plan.names:
                fate = "has to stay" if fault.node in names else "is left out"
                self._say(f"{fault.node} {fate}: {fault.words}; see {self._faults.path}")
        if spares := [name for name in names if name not in plan.regular]:
            self._progress(f"in its place: {', '.join(spares)}")
        self._sessions = {name: self._all_sessions[name] for name in names}
        if self._head not in names:
            self._head = names[0]

    def _replace_unreachable(self, ready: Container[str]) -> bool:
        """Leave out an unreachable host that has ended a start before. Return True if other hosts take part now."""
        known = {fault.node for fault in self._faults.read()}
        silent = [n for n, s in self._sessions.items() if n not in ready and s.state == UNREACHABLE]
        before = set(self._sessions)
        if self._plan.room and len(silent) == 1 and silent[0] in known:
            self._blame(silent[0], "it cannot be reached")
            self._choose_hosts()
        return set(self._sessions) != before

    def _blame(self, name: str, why: str) -> None:
        """Put a host's own fault on file, once for each start."""
        if self._excludes and name not in self._blamed:
            self._blamed.add(name)
            self._say(f"{name} has ended this start by its own fault: {why}")
            self._faults.add(name, why)

    def _is_bad(self, name: str) -> bool:
        bad = bad_nodes.bad(self._faults.read())
        return self._plan.exclude_bad_nodes and name in [fault.node for fault in bad]

    def _show_troubles(self) -> None:
        for line in folded(self._troubles):
            self._say(line)

    def _report_waiting(self, names: Iterable[str]) -> None:
        waiting = [f"{name} ({self._sessions[name].state})" for name in names]
        self._progress(f"still waiting for {first_names(waiting, _MAX_NAMES)}")

    # --- while it runs ------------------------------------------------------------------------

    async def _start_all(self, ready: set[str]) -> None:
        self._ends, self._deadline = [], None
        self._killed = self._job_ended = False
        self._blamed = set()
        self._progress(f"starting on {len(ready)} hosts; the head is {self._head}")
        await asyncio.gather(*(self._start(name) for name in self._sessions if name in ready))
        for name in self._sessions:
            if name not in ready and self._plan.elastic:
                self._retries.append(asyncio.create_task(self._try_again(name)))

    async def _start(self, name: str) -> None:
        session = self._sessions[name]
        head = [] if self._head == self._plan.head else [f"--head={self._head}"]
        names = tuple(self._sessions)
        hosts = [] if names == self._plan.regular else [f"--hosts={','.join(names)}"]
        self._blamed.discard(name)
        try:
            await session.start(self._environment, [*head, *hosts, *self._arguments])
        except Trouble as trouble:
            self._events.put_nowait(End(name, "refused", NO_START, str(trouble)))
        self._running.add(name)
        self._ends = [end for end in self._ends if end.host != name]
        if self._stop_level:
            session.send_command("stop" if self._stop_level == 1 else "kill")

    async def _until_all_ended(self) -> None:
        loop = asyncio.get_running_loop()
        while self._running:
            timeout_s = None if self._deadline is None else max(0.0, self._deadline - loop.time())
            try:
                event = await asyncio.wait_for(self._events.get(), timeout_s)
            except asyncio.TimeoutError:
                await self._out_of_time()
                continue
            if event is not None:
                self._on_end(event)
        await self._give_up_retries()
        if lost := lost_host(self._ends):
            self._blame(lost, "its peers and the driver have lost it")

    def _on_end(self, end: End) -> None:
        self._running.discard(end.host)
        self._ends.append(end)
        if end.clean:
            # The job has come to its end, so no host is started again for it.
            self._job_ended = True
            if end.state == "stopped" and not (self._stop_level or self._plan.elastic):
                # The host may have stopped before the rendezvous, so that it could not stop the others.
                self._send_to_all("stop")
            self._limit_wait(self._pace.after_success)
            return
        if end.fault is not None:
            self._blame(*end.fault)
        if not self._killed:
            self._say(f"{end.host}: {end.state}: {end.reason or 'it gave no reason'}")
            if not self._continues_without(end):
                self._end_other_hosts(end)

    def _continues_without(self, end: End) -> bool:
        """Return True if an elastic job goes on. Then try the lost host again, within `restarts`, unless it is bad."""
        name, losses = end.host, {"lost", "crashed"}
        if name in self._returned:
            losses.add("refused")  # its script from before the loss may not have ended yet
        if not self._plan.elastic or self._stop_level or self._job_ended or end.state not in losses:
            return False
        if name == self._head or len(self._running) < self._plan.min_hosts:
            return False
        if self._is_bad(name):
            self._progress(f"going on with {len(self._running)} hosts; {name} is left out")
            return True
        self._crashes[name] += end.state == "crashed"
        if self._crashes[name] > self._plan.restarts:
            self._say(f"{name} is not tried again: restarts is {self._plan.restarts}")
        else:
            self._progress(f"going on with {len(self._running)} hosts; {name} is tried again")
            self._retries.append(asyncio.create_task(self._try_again(name)))
        return True

    async def _try_again(self, name: str) -> None:
        """Try to start the host until it is back. An end of the job cancels this task."""
        session, last_message = self._sessions[name], ""
        while True:
            await asyncio.sleep(self._pace.retry)
            try:
                # If hosts share the directory, it is in use by the other hosts' scripts, and it has all files.
                if not (await session.query()).in_use:
                    await session.send_bundle()
            except Trouble as trouble:
                if str(trouble) != last_message:
                    last_message = str(trouble)
                    self._progress(f"{name}: not back yet: {last_message}")
                continue
            if self._running and not (self._stop_level or self._job_ended or self._killed):
                self._progress(f"{name} is back")
                self._returned.add(name)
                await self._start(name)
            return

    def _end_other_hosts(self, end: End) -> None:
        for task in self._retries:
            task.cancel()
        if end.state == "lost" and not self._plan.restartable:
            self._send_to_all(
                "stop"
            )  # the lost host may still train; then all end with a checkpoint
        if self._running:
            names = ", ".join(sorted(self._running)[:_MAX_NAMES])
            # Hosts that cannot start either report that soon. After any other end, hosts get longer for their reasons.
            limit_s = (
                self._pace.after_refusal if end.state == "refused" else self._pace.after_failure
            )
            self._progress(f"ending the others, within {limit_s:.0f} s: {names}")
            self._limit_wait(limit_s)

    def _limit_wait(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    async def _out_of_time(self) -> None:
        self._deadline = None
        if self._killed:
            await self._disconnect(
                "left to itself" if self._stop_level == 3 else "it did not answer any more"
            )
        else:
            self._kill()

    def _kill(self) -> None:
        self._killed = True
        self._send_to_all("kill")
        self._deadline = None
        self._limit_wait(self._pace.after_kill)

    def _send_to_all(self, command: str) -> None:
        for name in self._running:
            self._sessions[name].send_command(command)

    async def _disconnect(self, reason: str) -> None:
        await asyncio.gather(*(self._sessions[name].disconnect(reason) for name in self._running))

    def _on_signal(self, name: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._signals.get(name, -self._pace.signal_repeat) < self._pace.signal_repeat:
            return
        self._signals[name] = now
        if self._stop_level >= 3 or (name == "HUP" and self._stop_level):
            return  # a closing terminal may send HUP twice; only Ctrl-C or TERM means "now"
        self._stop_level += 1
        if self._running:
            self._progress(f"{name}: {_STOP_MESSAGES[self._stop_level]}")
        if self._stop_level == 1:
            for task in self._stoppable:
                task.cancel()
            self._send_to_all("stop")
        elif self._stop_level == 2:
            self._kill()
        else:
            self._killed = True
            self._limit_wait(0.0)
        self._events.put_nowait(None)

    def _on_pause(self) -> None:
        self._say("not paused: the hosts would take the driver for dead and stop the job")

    # --- after it ended -----------------------------------------------------------------------

    async def _prepare_again(self) -> set[str]:
        """Return the hosts to start again, or none. An elastic job gets another head."""
        plan = self._plan
        lost_head = self._head if plan.elastic else None
        # If one host's fault ended the start, a start without this host may succeed.
        by_fault = bool(self._blamed and plan.room) and all_by_fault(self._ends)
        again = by_fault or may_start_again(self._ends, plan.launcher, lost_head)
        ended = self._stop_level or self._job_ended
        if ended or not again:
            return set()
        if self._restarted >= plan.restarts:
            self._say(f"not started again: restarts is {plan.restarts}")
            return set()
        self._restarted += 1
        self._progress(f"starting again, {self._restarted} of {plan.restarts} times at most")
        self._choose_hosts()
        prepared = await self._prepare_enough(self._pace.hosts_return)
        if self._stop_level:
            self._progress("not started again: a stop was asked for")
        elif not prepared:
            self._show_troubles()
        elif plan.elastic:
            names = [name for name in self._sessions if name in prepared]
            self._head = next((name for name in names if name != self._head), self._head)
        elif not by_fault:
            newest = max(facts.newest_checkpoint for facts in prepared.values())
            if newest <= self._newest:
                self._say("not started again: no checkpoint is newer than at the last start")
                return set()
            self._newest = newest
        return set(prepared)

    def _conclude(self) -> int:
        last_ends = {end.host: end for end in self._ends}
        blamed = culprit(self._ends)
        code = exit_code(list(last_ends.values()), blamed, self._plan.elastic is not None)
        if blamed is not None and code not in (DONE, STOPPED) and self._stop_level < 2:
            self._show_last_lines(blamed)
        self._show_table(last_ends, good=code in (DONE, STOPPED))
        if all(end.state == "lost" for end in last_ends.values()):
            self._say(
                "no host could be reached at the end: the job may go on there, and stops by itself if it misses "
                "this driver; to ask: bash hosts/run.sh --status"
            )
        return code

    def _show_last_lines(self, blamed: End) -> None:
        lines = self._sessions[blamed.host].last_lines
        if lines and len(self._sessions) > 1:
            self._say(f"the last lines of {blamed.host}:")
            self._context.screen.quote(blamed.host, list(lines))

    def _show_table(self, last_ends: dict[str, End], good: bool) -> None:
        rows = [("host", "state", "code", "reason")]
        for name, session in self._sessions.items():
            end = last_ends.get(name)
            code = "" if end is None or end.code is None else str(end.code)
            reason = end.reason if end else self._troubles.get(name, "")
            rows.append((name, end.state if end else session.state, code, reason))
        screen = self._context.screen
        (screen.progress if good else screen.say)("\n".join(table(rows)))
        (self._progress if good else self._say)(
            f"everything the hosts said is in {self._context.logs.directory}"
        )

    async def _give_up_retries(self) -> None:
        for task in self._retries:
            task.cancel()
        await asyncio.gather(*self._retries, return_exceptions=True)
        self._retries = []

    def _progress(self, message: str) -> None:
        self._context.screen.progress(message)
        self._context.logs.note(message)

    def _say(self, message: str) -> None:
        self._context.screen.say(message)
        self._context.logs.note(message)
