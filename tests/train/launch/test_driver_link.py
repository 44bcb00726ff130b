"""The line from a driver: what each word means, and what silence means."""

from __future__ import annotations

import pytest

from train.launch.driver_link import HEAD_FIRST_S, SILENCE_S, DriverLink
from train.launch.events import Due, Event, Events, Readable, Signal

PATIENCE_S = 300.0


class Recorded(Events):
    """Events that nothing causes: what was injected, and which alarms are set."""

    def __init__(self) -> None:
        self.signals: list[str] = []
        self.alarms: dict[str, float] = {}
        self.watched: list[int] = []

    def watch_descriptor(self, descriptor: int) -> None:
        self.watched.append(descriptor)

    def set_alarm(self, name: str, seconds: float) -> None:
        self.alarms[name] = seconds

    def inject(self, event: Event) -> None:
        assert isinstance(event, Signal)
        self.signals.append(event.name)

    def due(self, seconds: float) -> Due:
        """The alarm that was set to so many seconds."""
        (name,) = (name for name, after in self.alarms.items() if after == seconds)
        del self.alarms[name]
        return Due(name)


def link(leaves: bool = False) -> tuple[Recorded, DriverLink]:
    events = Recorded()
    return events, DriverLink(events, 7, PATIENCE_S, lambda: leaves)


@pytest.mark.parametrize(
    ("data", "signals"),
    [
        ([b"beat\n", b"beat\n"], []),
        ([b"stop\n"], ["TERM"]),
        ([b"sto", b"p\nnonsense\n"], ["TERM"]),
        ([b"beat\nstop\nkill\n"], ["TERM", "KILL"]),
        ([b"stop\r\n"], ["TERM"]),
        ([b"kill"], []),
        ([b"\xff\n"], []),
    ],
)
def test_each_word_becomes_its_signal(data: list[bytes], signals: list[str]) -> None:
    events, line = link()
    events.alarms.clear()
    for each in data:
        line.on_event(Readable(each))
    assert (events.watched, events.signals) == ([7], signals)
    assert list(events.alarms.values()) == [SILENCE_S]  # the silence begins anew


@pytest.mark.parametrize("how", ["silence", "end of file"])
def test_without_the_driver_it_stops_and_later_kills(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    events, line = link()
    line.on_event(events.due(SILENCE_S) if how == "silence" else Readable(b""))
    assert events.signals == ["HUP"]
    said = {
        "silence": "nothing heard from the driver for 45 s",
        "end of file": "the driver has gone away",
    }
    assert capsys.readouterr().err.startswith(f"ddpgen: {said[how]}; ")
    line.on_event(Readable(b"stop\n"))  # from before the connection broke
    assert events.signals == ["HUP"]
    line.on_event(events.due(PATIENCE_S))
    assert events.signals == ["HUP", "KILL"]


def test_a_host_that_the_others_can_spare_lets_the_head_stop_the_job_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events, line = link(leaves=True)
    line.on_event(Readable(b""))
    assert events.signals == []
    assert capsys.readouterr().err == "ddpgen: the driver has gone away; leaving the other hosts\n"
    line.on_event(events.due(HEAD_FIRST_S))
    assert events.signals == ["HUP"]
    line.on_event(events.due(PATIENCE_S))
    assert events.signals == ["HUP", "KILL"]
