"""Signals, ends of children, results of threads, alarms: one at a time, in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from train.launch.events import Due, Events, Exit, Readable, Result, Signal


@pytest.fixture
def events() -> Iterator[Events]:
    """Restores what an Events changes of this process."""
    before = {s: signal.getsignal(s) for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)}
    yield Events([signal.SIGUSR1, signal.SIGUSR2])
    signal.set_wakeup_fd(-1)
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_signals_come_in_their_order(events: Events) -> None:
    for signum in (signal.SIGUSR2, signal.SIGUSR1):
        os.kill(os.getpid(), signum)
    assert [events.next(), events.next()] == [Signal("USR2"), Signal("USR1")]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    code = (
        "import signal, os; from train.launch.events import Events\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "events = Events([signal.SIGINT, signal.SIGTERM])\n"
        "os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(events.next())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "Signal(name='TERM')\n", done.stderr


def test_a_signal_that_comes_after_the_end_changes_nothing() -> None:
    code = (
        "import signal, os; from train.launch.events import Events\n"
        "events = Events([signal.SIGTERM, signal.SIGUSR1])\n"
        "events.close(); del events\n"
        "os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGUSR1)\n"
        "raise SystemExit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize(("program", "code"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_the_end_of_a_child(events: Events, program: str, code: int) -> None:
    child = subprocess.Popen(["sh", "-c", program])
    events.watch_child(child.pid)
    assert events.next() == Exit(child.pid, code)
    child.returncode = code


def test_a_child_that_has_ended_before_it_is_watched(events: Events) -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    events.watch_child(child.pid)
    assert events.next() == Exit(child.pid, 0)
    child.returncode = 0


def test_work_beside_the_loop_is_answered_and_a_signal_does_not_wait_for_it(events: Events) -> None:
    go = threading.Event()
    events.run_in_thread(lambda: go.wait(30))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert events.next() == Signal("USR1")
    go.set()
    assert events.next() == Result(True)
    error = ValueError("no")

    def fail() -> None:
        raise error

    events.run_in_thread(fail)
    assert events.next() == Result(error=error)


def test_a_descriptor_is_read_to_its_end(events: Events) -> None:
    reading, writing = os.pipe()
    events.watch_descriptor(reading)
    os.write(writing, b"beat")
    assert events.next() == Readable(b"beat")
    os.close(writing)
    assert events.next() == Readable(b"")
    os.close(reading)


def test_alarms_come_when_they_are_due_and_can_be_set_anew() -> None:
    now = [0.0]
    events = Events([], clock=lambda: now[0])
    try:
        events.set_alarm("late", 20)
        events.set_alarm("early", 10)
        events.set_alarm("late", 5)
        now[0] = 7.0
        assert events.next() == Due("late")
        now[0] = 10.0
        assert events.next() == Due("early")
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def test_data_that_waited_while_the_process_was_frozen_comes_before_an_alarm() -> None:
    now = [0.0]
    events = Events([], clock=lambda: now[0])
    reading, writing = os.pipe()
    try:
        events.watch_descriptor(reading)
        events.set_alarm("silent", 45)
        os.write(writing, b"beat")
        now[0] = 60.0
        assert events.next() == Readable(b"beat")
        events.set_alarm("silent", 45)
        now[0] = 100.0
        events.set_alarm("later", 0)
        assert events.next() == Due("later")
        now[0] = 105.0
        assert events.next() == Due("silent")
    finally:
        os.close(reading)
        os.close(writing)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def test_a_ctrl_c_that_a_wrapper_passes_on_as_well_is_one() -> None:
    now = [0.0]
    events = Events([signal.SIGINT], clock=lambda: now[0])
    try:
        for at, expected in ((10.0, Signal("INT")), (10.3, Due("none")), (10.6, Signal("INT"))):
            now[0] = at
            os.kill(os.getpid(), signal.SIGINT)
            events.set_alarm("none", 0)
            assert events.next() == expected
            while expected == Signal("INT") and events.next() != Due("none"):
                pass
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def test_what_is_injected_comes_first(events: Events) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    events.inject(Signal("TERM"))
    assert [events.next(), events.next()] == [Signal("TERM"), Signal("USR1")]
