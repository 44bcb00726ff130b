"""Before a start: every host at once is looked at and sent the bundle.

Owns who is ready and who is not, and why. Starts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from .session import Home, Looked, Session, Trouble

_NAMED = 8


class Preparation:
    """Prepares hosts, in as much time as it takes and no longer than the user wants it."""

    def __init__(self, sessions: Mapping[str, Session], home: Home) -> None:
        self._sessions, self._home = sessions, home
        self.wanted = asyncio.Event()  # the user's wish to stop
        self.troubles: dict[str, str] = {}

    async def prepare(self, names: Iterable[str]) -> dict[str, Looked]:
        """Prepare hosts all at once; who is ready. The others are in `troubles`."""
        tasks = {name: asyncio.create_task(_prepare(self._sessions[name])) for name in names}
        wanted = asyncio.create_task(self.wanted.wait())
        try:
            await self._until_done(tasks, wanted)
        finally:
            for task in (wanted, *tasks.values()):
                task.cancel()
            results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        self.troubles, found = {}, {}
        for name, result in zip(tasks, results, strict=True):
            if isinstance(result, Looked):
                found[name] = result
            elif isinstance(result, Trouble):
                self.troubles[name] = str(result)
            elif not isinstance(result, asyncio.CancelledError):
                raise result
        return found

    async def prepare_enough(self, enough: int) -> dict[str, Looked]:
        """Prepare again and again until enough hosts are ready, or nobody."""
        loop, pace = asyncio.get_running_loop(), self._home.pace
        deadline = loop.time() + pace.again
        ready: dict[str, Looked] = {}
        while not self.wanted.is_set():
            ready |= await self.prepare(name for name in self._sessions if name not in ready)
            if len(ready) >= enough:
                return ready
            if loop.time() > deadline:
                break
            self._remind(self.troubles)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.wanted.wait(), pace.retry)
        self.show_troubles()
        return {}

    def show_troubles(self) -> None:
        """Name every host that is not ready, and why."""
        for name, trouble in self.troubles.items():
            self._say(f"{name}: {trouble}")

    async def _until_done(
        self, tasks: Mapping[str, asyncio.Task[Looked]], wanted: asyncio.Task[bool]
    ) -> None:
        while pending := {task for task in tasks.values() if not task.done()}:
            done, _ = await asyncio.wait(
                {*pending, wanted},
                timeout=self._home.pace.remind,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if wanted in done:
                return
            if not done:
                self._remind(name for name, task in tasks.items() if not task.done())

    def _remind(self, names: Iterable[str]) -> None:
        waiting = [f"{name} ({self._sessions[name].state})" for name in names]
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        self._say(f"still waiting for {', '.join(waiting[:_NAMED])}{more}")

    def _say(self, message: str) -> None:
        self._home.screen.say(message)
        self._home.logs.note(message)


async def _prepare(session: Session) -> Looked:
    looked = await session.look()
    session.refuse_disturbing(looked)
    await session.send()
    return looked
