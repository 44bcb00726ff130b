"""The position of this process' main thread: the source lines that are worth showing.

Owns the reading of Python stacks. The training itself sets the phase (train.health.phase).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat, starmap
from operator import attrgetter, itemgetter
from types import TracebackType
from typing import Optional

from train.health.phase import BACKWARD, NOW

# A thread that uses less than this share of a processor does not compute: it waits, for example in gloo.
_IDLE = 0.05

# File, line, function, and its first line. The line is None for a jump without a line, such as the end of a loop.
Frame = tuple[str, Optional[int], str, int]
_FIELDS = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_name", "f_code.co_firstlineno")
# In these versions, a collection while the threads are listed blocks all of them for good (python/cpython#106883).
_NO_COLLECTION = (3, 11) <= sys.version_info < (3, 11, 9)
_COLLECTIVES = os.path.join("torch", "distributed", "distributed_c10d.py")
_TRAIN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PACKAGES = re.compile(r".*/(site|dist)-packages/")
_LINES = 6
_RUNTIME, _LIBRARY, _USER, _HOOK = "ours", "library", "user", "hook"
# The built-in workloads stand for the user's code. Our frames around a user's own script are not worth showing.
_KIND_OF_PACKAGE = {"workloads": _USER, "script": _HOOK}


@dataclass(frozen=True)
class Position:
    """The position of a thread. `stack`: the innermost line first. `where`: the one line to show. `waits`: the thread
    waits for other processes. `busy`: the share of a processor that it used since the last look, -1.0 if unknown."""

    phase: str
    where: str
    stack: tuple[str, ...]
    waits: bool
    busy: float


class ThreadSampler:
    """Looks at the thread that made it, the main one, from another thread."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._clock = _cpu_clock(self._ident)
        self._cpu_used_s, self._sampled_at = self._cpu_s(), time.monotonic()

    def sample(self) -> Position:
        """The position of the main thread now."""
        used, now = self._cpu_s(), time.monotonic()
        busy = (
            (used - self._cpu_used_s) / max(now - self._sampled_at, 1e-6) if self._clock else -1.0
        )
        self._cpu_used_s, self._sampled_at = used, now
        return position(_frames(self._ident), busy)

    def _cpu_s(self) -> float:
        return time.clock_gettime(self._clock) if self._clock else 0.0


def position(frames: Sequence[Frame], busy: float = -1.0) -> Position:
    """The position of a thread with these frames."""
    lines = list(_lines(frames))
    shown = [line for line in lines if line[0] in (_RUNTIME, _USER)]
    stack = [*lines[:1], *(line for line in shown if line is not lines[0])][: _LINES + 1]
    where = next((text for _, text in shown or lines), "")
    innermost = next((kind for kind, _ in lines if kind != _LIBRARY), "")
    # A thread inside torch's collectives waits. In a backward pass, a thread that computes and one that waits for a
    # reduction have the same Python frames, and only the processor time distinguishes them.
    waits = NOW.waits > 0 or any(path.endswith(_COLLECTIVES) for path, *_ in frames[:_LINES])
    waits = waits or (NOW.name == BACKWARD and 0.0 <= busy < _IDLE and innermost != _USER)
    return Position(NOW.name, where, tuple(text for _, text in stack), waits, round(busy, 3))


def innermost_user_line(trace: TracebackType | None) -> str:
    """The innermost line of the user's code in a traceback, else of our code, else ""."""
    frames: list[Frame] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name, code.co_firstlineno))
        trace = trace.tb_next
    shown = [line for line in _lines(frames[::-1]) if line[0] in (_RUNTIME, _USER)]
    users = [line for line in shown if line[0] == _USER]
    return (users or shown or [("", "")])[0][1]


def _lines(frames: Sequence[Frame]) -> Iterator[tuple[str, str]]:
    """(kind, "file:line in function") of each frame, in their order."""
    for path, number, function, first in frames:
        yield _kind(path), f"{_short(path)}:{first if number is None else number} in {function}"


@functools.cache
def _kind(path: str) -> str:
    if path.startswith(_TRAIN):
        return _KIND_OF_PACKAGE.get(path[len(_TRAIN) :].partition(os.sep)[0], _RUNTIME)
    standard = sysconfig.get_paths()["stdlib"] + os.sep
    library = path.startswith(("<", standard)) or _PACKAGES.match(path)
    return _LIBRARY if library else _USER


@functools.cache
def _short(path: str) -> str:
    """The path relative to the working directory, to the directory with train/, or to the installed packages."""
    for home in (os.getcwd() + os.sep, os.path.dirname(_TRAIN.rstrip(os.sep)) + os.sep):
        if path.startswith(home):
            return path[len(home) :]
    return _PACKAGES.sub("", path)


def _cpu_clock(ident: int) -> int:
    """The clock of a thread's processor time; 0 if the system has no such clock (macOS)."""
    try:
        return time.pthread_getcpuclockid(ident)
    except (AttributeError, OSError):
        return 0


def _frames(ident: int) -> list[Frame]:
    """The frames of a thread, innermost first.

    Reads all frames in one call into C: no line of Python runs meanwhile, so that no other thread runs and no frame
    ends while it is read. A loop over `f_back` has crashed CPython 3.11 (in PyFrame_GetBack). faulthandler has crashed
    too, because it reads threads that a library is just making (python/cpython: new_threadstate).
    """
    frames: list[Frame] = []
    innermost = map(itemgetter(ident), starmap(sys._current_frames, [()]))
    collects = _NO_COLLECTION and gc.isenabled()
    if collects:
        gc.disable()
    # AttributeError ends the chain: the last f_back is None. The thread may also have ended, or run no Python.
    with contextlib.suppress(AttributeError, KeyError, ValueError):
        frames.extend(map(_FIELDS, accumulate(chain(innermost, repeat("f_back")), getattr)))
    if collects:
        gc.enable()
    return frames
