"""A client's way to the head: the attempts it makes, and what is made of who answers.

Owns the attempts at the head's port, and what they met. What is said once the head is found, client.py
knows.
"""

from __future__ import annotations

import asyncio
import time

from train.preflight import messages
from train.preflight.common import REPLY_S, VERSION, Hello, slack_s
from train.preflight.finding import Finding
from train.preflight.settings import Settings
from train.preflight.wire import Conn, WireError, dial, is_store, resolve

CONNECT_S = 1.5  # a second SYN goes out after 1 s
_PROGRAM = ("silent", "foreign", "broken")


class Search:
    """Attempts at the head. `trouble`: what the last one met (a word of WireError, "store" for a run
    under way, "other" for another host of the job, "job" for the head of another one; "" before the
    first); `address`: where they go; `fault`: what answered there, if that is a fault by itself."""

    def __init__(self, settings: Settings, hello: Hello) -> None:
        self._settings, self._hello = settings, hello
        self.trouble, self.address = "", ""
        self.fault: Finding | None = None
        self._since = time.monotonic()
        self._told = False

    async def attempt(self) -> Conn | None:
        """One attempt: a connection to the head of this job, or None."""
        try:
            self.address = await resolve(self._settings.head)
            conn = await self._at_port()
            met = "other"
        except WireError as error:
            conn, met = None, error.trouble
        met = "" if conn else met
        if _kind(met) != _kind(self.trouble):
            self._since = time.monotonic()
        self.trouble = met
        return conn

    async def attempt_again(self) -> Conn | None:
        """Two attempts at the head's port, for a head that is known to listen."""
        for pause in (0.5, 0.0):
            if conn := await self.attempt():
                return conn
            await asyncio.sleep(pause)
        return None

    @property
    def is_program(self) -> bool:
        """Whether something answers that is no preflight of this job, and no run under way."""
        return self.trouble in _PROGRAM

    @property
    def met_for_s(self) -> float:
        """For how many seconds it has been like that."""
        return time.monotonic() - self._since

    async def _at_port(self) -> Conn | None:
        """Raises WireError."""
        timeout_s = REPLY_S + slack_s(self._settings.nodes)
        conn = await dial(self.address, self._settings.port, CONNECT_S)
        try:
            there = Hello.from_json(await conn.receive(timeout_s))
            if self._is_head(there):
                return conn
        except (WireError, ValueError) as error:
            conn.abort()
            if await is_store(self.address, self._settings.port):
                raise WireError("store") from None
            raise error if isinstance(error, WireError) else WireError("foreign") from None
        self._make_of(there, conn)
        return None

    def _is_head(self, there: Hello) -> bool:
        same = there.job == self._settings.job and there.preflight == VERSION
        return same and there.role == "head"

    def _make_of(self, there: Hello, conn: Conn) -> None:
        """Somebody's preflight, but not that of this job's head. Raises WireError for other jobs."""
        settings, met = self._settings, messages.at(there.host, self.address)
        if there.job != settings.job:
            if there.role == "head":
                self.fault = messages.other_job(
                    settings.me, settings.job, met, there.job, settings.port
                )
                if not self._told:  # so that it is said there as well
                    conn.send("hello", **self._hello.as_json())
                self._told = True
            conn.close()
            raise WireError("job" if there.role == "head" else "foreign")
        conn.close()
        if there.instance == self._hello.instance:
            raise WireError(
                "refused"
            )  # this very process: what to make of it the host's checks know
        if there.preflight != VERSION:
            self.fault = messages.another_bundle(settings, met)
        elif there.head != settings.head:
            theirs, ours = f"the head {there.head}", f"the head {settings.head}"
            self.fault = messages.disagree(settings, met, theirs, settings.me, ours)
        else:
            self.fault = messages.wrong_host(settings, self.address, met)


def _kind(trouble: str) -> str:
    return "program" if trouble in _PROGRAM else trouble
