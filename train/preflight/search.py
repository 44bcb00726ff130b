"""A client's attempts at the head's port, and what is made of who answers there."""

from __future__ import annotations

import time

from train.preflight import messages
from train.preflight.common import REPLY_S, slack_s
from train.preflight.finding import Finding
from train.preflight.phrases import Host
from train.preflight.report import VERSION, Hello, parsed
from train.preflight.settings import Settings
from train.preflight.wire import Conn, WireError, dial, is_store, resolve

_CONNECT_S = 1.5  # a second SYN goes out after 1 s
_PROGRAM = ("silent", "foreign", "broken")


class Search:
    """Attempts at the head. `trouble`: what the last one met (a word of WireError, "store" for a run
    under way, "other" for another host of the job, "job" for the head of another one; "" for the
    head); `address`: where it went; `head`: who the head said it is."""

    def __init__(self, settings: Settings, hello: Hello) -> None:
        self._settings, self._hello = settings, hello
        self.trouble, self.address = "", ""
        self.head: Hello | None = None
        self._fault: Finding | None = None
        self._since = time.monotonic()
        self._told = False

    async def attempt(self) -> Conn | None:
        """One attempt: a connection to the head of this job, or None."""
        before = self._kind()
        try:
            self.address = await resolve(self._settings.head)
            conn = await self._at_port()
            self.trouble = ""
            return conn
        except WireError as error:
            self.trouble = error.trouble
            return None
        finally:
            if self._kind() != before:
                self._since = time.monotonic()

    def _kind(self) -> str:
        return "program" if self.is_program else self.trouble

    @property
    def is_program(self) -> bool:
        """Whether something answers that is no preflight of this job, and no run under way."""
        return self.trouble in _PROGRAM

    @property
    def met_for_s(self) -> float:
        """For how many seconds it has been like that."""
        return time.monotonic() - self._since

    @property
    def fault(self) -> Finding | None:
        """What answers there, where it is not the head and will not become it."""
        if self.is_program:
            return messages.another_program(self._settings, self.address, self.trouble)
        return self._fault if self.trouble in ("other", "job") else None

    async def _at_port(self) -> Conn:
        """Raises WireError."""
        conn = await dial(self.address, self._settings.port, _CONNECT_S)
        try:
            there = parsed(Hello, await conn.receive(REPLY_S + slack_s(self._settings.nodes)))
        except (WireError, ValueError) as error:
            conn.abort()
            if await is_store(self.address, self._settings.port):
                raise WireError("store") from None
            raise error if isinstance(error, WireError) else WireError("foreign") from None
        if (there.job, there.preflight, there.role) == (self._settings.job, VERSION, "head"):
            self.head = there
            return conn
        try:
            raise WireError(self._made_of(there, conn))
        finally:
            conn.close()

    def _made_of(self, there: Hello, conn: Conn) -> str:
        """The trouble with somebody's preflight that is not that of this job's head."""
        settings, met = self._settings, Host(there.host, self.address)
        if there.job != settings.job:
            if there.role != "head":
                return "foreign"
            me = Host(settings.me)
            self._fault = messages.other_job(me, settings.job, met, there.job, settings.port)
            if not self._told:  # so that it is said there as well
                conn.send("hello", **vars(self._hello))
            self._told = True
            return "job"
        if there.instance == self._hello.instance:
            return "refused"  # this very process: what to make of it the host's checks know
        if there.preflight != VERSION:
            self._fault = messages.another_bundle(settings, met)
        elif there.head != settings.head:
            theirs, ours = f"the head {there.head}", f"the head {settings.head}"
            self._fault = messages.disagree(settings, met, theirs, Host(settings.me), ours)
        else:
            self._fault = messages.wrong_host(settings, self.address, met)
        return "other"
