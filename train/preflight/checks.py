"""The checks of one host by itself, in bounded time.

First all looks run in parallel, because a file server, a name server or a driver may not answer. Then each module
judges the results of its own looks. Knows nothing of other hosts.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from train.base import nic
from train.base.nic import NetworkError
from train.preflight import directory, facts, gpus, limits, network
from train.preflight.facts import Torch
from train.preflight.finding import Finding
from train.preflight.report import Report
from train.preflight.settings import Settings

LIMIT_S = directory.WATCH_S + 0.3  # for all looks together
ALONE_S = 6.5  # if no other host waits for the verdict
# The least wait for a result, because this process itself may have stood still until the deadline.
_LAST_S = 0.3
NAMES_S = 5.0

T = TypeVar("T")


def examine(settings: Settings) -> Report:
    """Check this host, and return its report within some 6 s. A look that hangs becomes a finding."""
    deadline = time.monotonic() + (ALONE_S if settings.alone else LIMIT_S)
    torch = facts.torch()
    answers = gpus.start_query() if gpus.needs_gpus(settings, torch) else None
    directory_call = BackgroundCall(lambda: directory.look(settings))
    lookups = {
        name: BackgroundCall(functools.partial(nic.resolve, name))
        for name in network.names(settings)
    }
    facts_call = BackgroundCall(lambda: facts.gather(torch, Path.cwd()))
    saves = BackgroundCall(lambda: facts.newest_save(settings)) if settings.saves else None
    net = network.inspect_network(settings, lambda name: _resolved(settings, name, lookups[name]))
    cards = answers() if answers else None
    host_facts = facts_call.result(deadline) or {}
    if saves is not None and (save := saves.result(deadline)) is not None:
        host_facts["save"] = save
    directory_check = directory_call.result(deadline)
    if directory_check is not None and directory_check.token:
        host_facts["filesystem"] = directory_check.token
    findings = [
        *_judge_torch(settings, torch),
        *network.judge(settings, net),
        *directory.judge(settings, directory_check),
        *(gpus.judge(settings, cards, torch) if cards else ()),
        *limits.judge(settings, limits.read_limits()),
    ]
    return Report.from_settings(
        settings,
        findings,
        nic=net.interface,
        address=net.address,
        prefix=net.prefix,
        first_address=net.first_address,
        resolved=net.head,
        facts=host_facts,
    )


def _judge_torch(settings: Settings, torch: Torch | None) -> Iterator[Finding]:
    """PY002."""
    if torch is None:
        yield Finding(
            "PY002",
            settings.host_name,
            f"torch is not installed for {sys.executable} of {settings.host_name}",
            "activate the virtual environment that has it, install it there, or set python: in the "
            "spec to an interpreter that has it",
        )


def _resolved(settings: Settings, name: str, lookup: BackgroundCall[str]) -> str:
    address = lookup.result(lookup.started_at + NAMES_S)
    if address is None:
        raise NetworkError(
            f"{settings.host_name} got no answer to what the address of {name!r} is in {NAMES_S:g} s",
            "look after the name server in /etc/resolv.conf there, or add the name to /etc/hosts",
            "NAME001",
        )
    return address


class BackgroundCall(Generic[T]):
    """A look at something that may not answer, in a daemon thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._result: T | None = None
        self._error: BaseException | None = None
        self.started_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="preflight", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - result() raises it
            self._error = error

    def result(self, deadline: float) -> T | None:
        """Return the look's result, or None if the look has not ended by `deadline`. Raises the look's exception."""
        self._thread.join(max(_LAST_S, deadline - time.monotonic()))
        if self._error is not None:
            raise self._error
        return self._result
