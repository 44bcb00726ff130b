"""The line between the driver of several hosts and the script of one: words on standard input.

Owns what each word means to the launch script, and what its absence means: the driver or the network
is gone, so this host has to end by itself. Knows nothing of ssh. Runs without torch.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from train.leash import die_with_parent
from train.metrics import say

# The driver sends a beat every 5 s.
SILENCE_S = 45.0
_LOOK_S = 1.0
# bash can lose its way when a signal arrives while it runs the trap of another: they are kept apart,
# and a script that does not hear is not asked for ever.
_APART_S = 0.5
_DEAF = 10


def main(script: int, patience_s: float) -> int:
    """Pass the driver's words on to `script`, the process that started this, until either is gone.

    `stop` becomes SIGTERM, `kill` SIGUSR1; silence and end of file become SIGHUP and, if the script
    still runs `patience_s` seconds later (no healthy step takes longer), SIGUSR1.
    """
    die_with_parent(signal.SIGKILL)
    if os.getppid() != script:
        return 0  # it has died already, and our parent is now somebody who must not be signalled
    # The terminal's Ctrl-C and a dying session are the script's to handle.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    why = _relay(script)
    if why:
        _send(script, signal.SIGHUP)
        # Where the connection is gone, so is whoever would read this.
        say(f"{why}; asking for a clean stop")
        _until(lambda: os.getppid() != script, patience_s)
        _kill(script)
    return 0


def _relay(script: int) -> str:
    """Why the line is dead; "" when the script has ended first."""
    unfinished = b""
    heard = time.monotonic()
    while os.getppid() == script:
        if not select.select([0], [], [], _LOOK_S)[0]:
            if time.monotonic() - heard > SILENCE_S:
                return f"nothing heard from the driver for {SILENCE_S:.0f} s"
            continue
        arrived = os.read(0, 4096)
        if not arrived:
            return "the driver has gone away"
        heard = time.monotonic()
        *words, unfinished = (unfinished + arrived).split(b"\n")
        for word in words:
            _obey(word.strip(), script)
    return ""


def _obey(word: bytes, script: int) -> None:
    if word == b"stop":
        _send(script, signal.SIGTERM)
        _until(lambda: os.getppid() != script, _APART_S)
    elif word == b"kill":
        _kill(script)


def _kill(script: int) -> None:
    """Have the script kill the job. One that is deaf is killed itself, which ends its launcher."""
    for _ in range(_DEAF):
        _send(script, signal.SIGUSR1)
        _until(lambda: os.getppid() != script, _APART_S)
    _send(script, signal.SIGKILL)


def _send(script: int, signum: signal.Signals) -> None:
    if os.getppid() == script:  # else its process id may be somebody else's by now
        os.kill(script, signum)


def _until(over: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not over() and time.monotonic() < deadline:
        time.sleep(_LOOK_S / 4)  # a parent's end has no event where there is no prctl
