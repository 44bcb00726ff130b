"""What /proc says of a process, as those see it that wait for it."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from train.base import processes

# proc_pid_stat(5): pid, name, state, ppid, pgrp, session, tty, tpgid, flags, ..., starttime (the 22nd).
STAT = b"4711 (a) name) %s 1 4711 4711 0 -1 %d" + b" 0" * 12 + b" 99 0 0\n"


@pytest.mark.parametrize(
    ("state", "flags", "said"),
    [
        (b"R", 0x400000, "R"),
        (b"S", 0, "S"),
        (b"R", 0x400004, "X"),  # its connections are closed; it never runs a line again
        (b"D", 0x4, "X"),
        (b"Z", 0x400004, "Z"),
    ],
)
def test_who_exits_is_dead_to_its_peers(state: bytes, flags: int, said: str) -> None:
    assert processes.state_in(STAT % (state, flags), started=99) == said
    assert processes.state_in(STAT % (state, flags), started=98) == ""


def test_a_process_from_its_start_to_its_end() -> None:
    child = subprocess.Popen(["sleep", "100"])
    started = processes.start_time(child.pid)
    assert processes.process_state(child.pid, started) not in ("", "X", "Z")
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.process_state(child.pid, started) == "Z"
    child.wait()
    assert processes.process_state(child.pid, started) == ""


def test_a_group_of_another_user_is_left_to_him(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(group: int, signum: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refused)
    processes.end_group(4711)
