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
from collections.abc import Iterable
from typing import Any

from .ends import DONE, NO_START, STOPPED, End, culprit, exit_code, may_start_again
from .screen import folded
from .session import Home, Looked, Session, Trouble
from .wording import some, table

_NAMED = 8
_ASKED = (
    "",
    "asking all hosts for a clean stop; Ctrl-C again to kill",
    "killing the job on all hosts; what it has not saved is lost",
    "leaving; what still runs on a host ends by itself, at the latest after the collective timeout",
)


class DriverRun:
    """One run of the driver: prepare and start all hosts, again if needed, until the last one ends."""

    def __init__(self, home: Home, arguments: tuple[str, ...]) -> None:
        self._home, self._arguments = home, arguments
        self._plan, self._pace = home.plan, home.pace
        # None: the deadline may have changed.
        self._events: asyncio.Queue[End | None] = asyncio.Queue()
        report = self._events.put_nowait
        self._sessions = {host.name: Session(host, home, report) for host in home.plan.hosts}
        self._head = home.plan.head
        me = f"{getpass.getuser()}@{socket.gethostname()}, {time.strftime('%Y-%m-%d %H:%M')}"
        self._environment = {"DDPGEN_LAUNCH": home.logs.directory.name, "DDPGEN_STARTED_BY": me}
        self._running: set[str] = set()
        self._stoppable: list[asyncio.Task[Any]] = []  # what a stop cancels
        self._retries: list[asyncio.Task[None]] = []
        self._ends: list[End] = []  # of this start, in order of time
        self._crashes: Counter[str] = Counter()
        self._returned: set[str] = set()
        self._asked = 0  # 1 stop, 2 kill, 3 leave
        self._signals: dict[str, float] = {}  # the time of the last one of each kind
        self._troubles: dict[str, str] = {}  # by name of a host, why it is not ready for a start
        self._deadline: float | None = None
        self._killed = self._settled = False
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
            await self._leave("the driver ended")

    # --- before the start ---------------------------------------------------------------------

    async def _prepare_first(self) -> set[str]:
        """Return the hosts to start: all of them, or enough for an elastic job, or none."""
        self._progress(f"looking at {len(self._sessions)} hosts and sending them the bundle")
        looked = await self._prepare(self._sessions)
        self._newest = max((found.newest for found in looked.values()), default=-1)
        if len(looked) < self._plan.enough or self._asked:
            return set()
        if len(looked) < len(self._sessions):
            self._show_troubles()
            if self._head not in looked:
                self._head = next(name for name in self._sessions if name in looked)
        return set(looked)

    def _not_started(self) -> int:
        if self._asked:
            self._progress("stopped before anything was started")
            return STOPPED
        self._show_troubles()
        self._say("nothing was started")
        return NO_START

    async def _prepare(self, names: Iterable[str]) -> dict[str, Looked]:
        """Prepare hosts concurrently and return those that are ready. `_troubles` gets the others. A stop cancels it."""
        tasks = {asyncio.create_task(self._sessions[name].prepare()): name for name in names}
        self._stoppable = list(tasks)
        pending = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=self._pace.remind)
            if pending and not self._asked:
                self._remind(name for task, name in tasks.items() if task in pending)
        self._stoppable = []
        found: dict[str, Looked] = {}
        self._troubles = {}
        for task, name in tasks.items():
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    found[name] = task.result()
                except Trouble as trouble:
                    self._troubles[name] = str(trouble)
        return found

    async def _prepare_enough(self) -> dict[str, Looked]:
        """Prepare hosts until enough are ready, and return them; {} after a stop or Pace.again seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._pace.again
        ready: dict[str, Looked] = {}
        while not self._asked:
            ready |= await self._prepare(name for name in self._sessions if name not in ready)
            if len(ready) >= self._plan.enough and not self._asked:
                return ready
            if loop.time() > deadline:
                break
            self._remind(self._troubles)
            self._stoppable = [asyncio.create_task(asyncio.sleep(self._pace.retry))]
            await asyncio.wait(self._stoppable)
        if self._asked:
            self._progress("not started again: a stop was asked for")
        else:
            self._show_troubles()
        return {}

    def _show_troubles(self) -> None:
        for line in folded(self._troubles):
            self._say(line)

    def _remind(self, names: Iterable[str]) -> None:
        waiting = [f"{name} ({self._sessions[name].state})" for name in names]
        self._progress(f"still waiting for {some(waiting, _NAMED)}")

    # --- while it runs ------------------------------------------------------------------------

    async def _start_all(self, ready: set[str]) -> None:
        self._ends, self._deadline = [], None
        self._killed = self._settled = False
        self._progress(f"starting on {len(ready)} hosts; the head is {self._head}")
        await asyncio.gather(*(self._start(name) for name in self._sessions if name in ready))
        for name in self._sessions:
            if name not in ready and self._plan.elastic:
                self._retries.append(asyncio.create_task(self._try_again(name)))

    async def _start(self, name: str) -> None:
        session = self._sessions[name]
        head = [] if self._head == self._plan.head else [f"--head={self._head}"]
        try:
            await session.start(self._environment, [*head, *self._arguments])
        except Trouble as trouble:
            self._events.put_nowait(End(name, "refused", NO_START, str(trouble)))
        self._running.add(name)
        self._ends = [end for end in self._ends if end.host != name]
        if self._asked:
            session.send_command("stop" if self._asked == 1 else "kill")

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

    def _on_end(self, end: End) -> None:
        self._running.discard(end.host)
        self._ends.append(end)
        if end.good:
            # The job has come to its end, so no host is started again for it.
            self._settled = True
            if end.state == "stopped" and not (self._asked or self._plan.elastic):
                # It may have stopped before the rendezvous, when it could not stop the others.
                self._send_to_all("stop")
            self._within(self._pace.exit_barrier)
        elif not self._killed:
            self._say(f"{end.host}: {end.state}: {end.reason or 'it gave no reason'}")
            if not self._goes_on_without(end):
                self._end_the_others(end)

    def _goes_on_without(self, end: End) -> bool:
        """True if an elastic job goes on; then the lost host is tried again, within `restarts`."""
        name, losses = end.host, {"lost", "crashed"}
        if name in self._returned:
            losses.add("refused")  # its script from before the loss may not have ended yet
        if not self._plan.elastic or self._asked or self._settled or end.state not in losses:
            return False
        if name == self._head or len(self._running) < self._plan.enough:
            return False
        self._crashes[name] += end.state == "crashed"
        if self._crashes[name] > self._plan.restarts:
            self._say(f"{name} is not tried again: restarts is {self._plan.restarts}")
        else:
            self._progress(f"going on with {len(self._running)} hosts; {name} is tried again")
            self._retries.append(asyncio.create_task(self._try_again(name)))
        return True

    async def _try_again(self, name: str) -> None:
        """Try to start the host until it is back. An end of the job cancels this task."""
        session, shown = self._sessions[name], ""
        while True:
            await asyncio.sleep(self._pace.retry)
            try:
                # If hosts share the directory, the other hosts' scripts hold it, and it has all files.
                if not (await session.look()).in_use:
                    await session.send_bundle()
            except Trouble as trouble:
                if str(trouble) != shown:
                    shown = str(trouble)
                    self._progress(f"{name}: not back yet: {shown}")
                continue
            if self._running and not (self._asked or self._settled or self._killed):
                self._progress(f"{name} is back")
                self._returned.add(name)
                await self._start(name)
            return

    def _end_the_others(self, end: End) -> None:
        for task in self._retries:
            task.cancel()
        if end.state == "lost" and not self._plan.restartable:
            self._send_to_all(
                "stop"
            )  # the lost host may still train; then all end with a checkpoint
        if self._running:
            names = ", ".join(sorted(self._running)[:_NAMED])
            # Hosts that cannot start either report that soon. After any other end, hosts get longer for their reasons.
            within = self._pace.refused if end.state == "refused" else self._pace.alone
            self._progress(f"ending the others, within {within:.0f} s: {names}")
            self._within(within)

    def _within(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    async def _out_of_time(self) -> None:
        self._deadline = None
        if self._killed:
            await self._leave(
                "left to itself" if self._asked == 3 else "it did not answer any more"
            )
        else:
            self._kill()

    def _kill(self) -> None:
        self._killed = True
        self._send_to_all("kill")
        self._deadline = None
        self._within(self._pace.kill)

    def _send_to_all(self, command: str) -> None:
        for name in self._running:
            self._sessions[name].send_command(command)

    async def _leave(self, why: str) -> None:
        await asyncio.gather(*(self._sessions[name].leave(why) for name in self._running))

    def _on_signal(self, name: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._signals.get(name, -self._pace.same) < self._pace.same:
            return
        self._signals[name] = now
        if self._asked >= 3 or (name == "HUP" and self._asked):
            return  # a closing terminal may send HUP twice; only Ctrl-C or TERM means "now"
        self._asked += 1
        if self._running:
            self._progress(f"{name}: {_ASKED[self._asked]}")
        if self._asked == 1:
            for task in self._stoppable:
                task.cancel()
            self._send_to_all("stop")
        elif self._asked == 2:
            self._kill()
        else:
            self._killed = True
            self._within(0.0)
        self._events.put_nowait(None)

    def _on_pause(self) -> None:
        self._say("not paused: the hosts would take the driver for dead and stop the job")

    # --- after it ended -----------------------------------------------------------------------

    async def _prepare_again(self) -> set[str]:
        """Return the hosts to start again, or none. An elastic job gets another head."""
        plan = self._plan
        lost_head = self._head if plan.elastic else None
        if self._asked or not may_start_again(self._ends, plan.launcher, lost_head):
            return set()
        if self._restarted >= plan.restarts:
            self._say(f"not started again: restarts is {plan.restarts}")
            return set()
        self._restarted += 1
        self._progress(f"starting again, {self._restarted} of {plan.restarts} times at most")
        looked = await self._prepare_enough()
        if looked and plan.elastic:
            names = [name for name in self._sessions if name in looked]
            self._head = next((name for name in names if name != self._head), self._head)
        elif looked:
            newest = max(found.newest for found in looked.values())
            if newest <= self._newest:
                self._say("not started again: no checkpoint is newer than at the last start")
                return set()
            self._newest = newest
        return set(looked)

    def _conclude(self) -> int:
        last = {end.host: end for end in self._ends}
        blamed = culprit(self._ends)
        code = exit_code(list(last.values()), blamed, self._plan.elastic is not None)
        if blamed is not None and code not in (DONE, STOPPED) and self._asked < 2:
            self._show_last_lines(blamed)
        self._show_table(last, good=code in (DONE, STOPPED))
        if all(end.state == "lost" for end in last.values()):
            self._say(
                "no host could be reached at the end: the job may go on there, and stops by itself if it misses "
                "this driver; to ask: bash hosts/run.sh --status"
            )
        return code

    def _show_last_lines(self, blamed: End) -> None:
        lines = self._sessions[blamed.host].last
        if lines and len(self._sessions) > 1:
            self._say(f"the last lines of {blamed.host}:")
            self._home.screen.quote(blamed.host, list(lines))

    def _show_table(self, last: dict[str, End], good: bool) -> None:
        rows = [("host", "state", "code", "reason")]
        for name, session in self._sessions.items():
            end = last.get(name)
            code = "" if end is None or end.code is None else str(end.code)
            reason = end.reason if end else self._troubles.get(name, "")
            rows.append((name, end.state if end else session.state, code, reason))
        screen = self._home.screen
        (screen.progress if good else screen.say)("\n".join(table(rows)))
        (self._progress if good else self._say)(
            f"everything the hosts said is in {self._home.logs.directory}"
        )

    async def _give_up_retries(self) -> None:
        for task in self._retries:
            task.cancel()
        await asyncio.gather(*self._retries, return_exceptions=True)
        self._retries = []

    def _progress(self, message: str) -> None:
        self._home.screen.progress(message)
        self._home.logs.note(message)

    def _say(self, message: str) -> None:
        self._home.screen.say(message)
        self._home.logs.note(message)
