"""Azure: a scheduled event of type Preempt, at least 30 seconds before a Spot VM is evicted.

Owns the Scheduled Events of the Instance Metadata Service, as in "Scheduled Events for Linux VMs". They
concern all machines of an availability or scale set, so only the events that name this machine count. The first
request switches the service on, and its answer may take minutes.
"""

from __future__ import annotations

import re
from typing import Any

from train.launch.notices.service import Service, ServiceError

_HEADERS = {"Metadata": "true"}
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_PATIENCE_S = 10.0


class Azure:
    """The Instance Metadata Service of Azure."""

    name = "azure"

    def __init__(self, base: str, period_s: float) -> None:
        self._service = Service(base)
        self._machine = ""

    def probe(self) -> None:
        name = self._service.request(_NAME, _HEADERS).expect_ok().text
        if not re.fullmatch(r"[\w.-]{1,80}", name):
            raise ServiceError("an answer that is no machine's name")
        self._machine = name

    def read_notice(self) -> str:
        if not self._machine:
            self.probe()
        answer = self._service.request(_EVENTS, _HEADERS, timeout_s=_PATIENCE_S).expect_ok()
        events = answer.mapping().get("Events")
        if not isinstance(events, list):
            raise ServiceError("an answer that makes no sense")
        for event in events:
            if isinstance(event, dict) and self._is_taken(event):
                at = event.get("NotBefore")
                # An event without a time has begun.
                when = f"at {at}" if isinstance(at, str) and at else "now"
                return f"azure takes this machine back {when}"
        return ""

    def _is_taken(self, event: dict[str, Any]) -> bool:
        named = event.get("Resources")
        names = [str(name).casefold() for name in named] if isinstance(named, list) else []
        return event.get("EventType") == "Preempt" and self._machine.casefold() in names
