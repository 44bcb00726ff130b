"""Where the main thread of this process stands: the source lines that are worth showing.

Owns the reading of Python stacks. The phase is what the training says itself (train.health.phase). Knows
nothing of files, stores or other processes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat, starmap
from operator import attrgetter, itemgetter
from types import TracebackType
from typing import Optional

from train.health.phase import BACKWARD, NOW

# A thread that computes uses its processor; one that waits in gloo does not.
_IDLE = 0.05

# File, line, function, and its first line: a jump, the end of a loop say, may be of no line at all.
Frame = tuple[str, Optional[int], str, int]
_SAYS = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_name", "f_code.co_firstlineno")
# There a collection while the threads are listed blocks all of them for good (python/cpython#106883).
_NO_COLLECTION = (3, 11) <= sys.version_info < (3, 11, 9)
_COLLECTIVES = os.path.join("torch", "distributed", "distributed_c10d.py")
_TRAIN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LINES = 6
_OURS, _TORCH, _LIBRARY, _USER, _HOOK = "ours", "torch", "library", "user", "hook"
# What stands around a user's own script is nobody's line.
_WITHIN = {"workloads": _USER, "integrations": _HOOK, "script.py": _HOOK, "runner.py": _HOOK}


@dataclass(frozen=True)
class Position:
    """Where a thread stands. `stack`: innermost line first; `where`: the line to show of it;
    `waits`: for other processes; `busy`: the share of a processor it used since the last look."""

    phase: str
    where: str
    stack: tuple[str, ...]
    waits: bool
    busy: float


class Watch:
    """Looks at the thread that has made it, the main one, again and again, from another."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._clock = _cpu_clock(self._ident)
        self._used, self._at = self._cpu_s(), time.monotonic()

    def look(self) -> Position:
        """Where the main thread stands now."""
        used, now = self._cpu_s(), time.monotonic()
        busy = (used - self._used) / max(now - self._at, 1e-6) if self._clock else -1.0
        self._used, self._at = used, now
        return self.read(_frames(self._ident), _foreign, busy)

    def read(
        self,
        frames: Sequence[Frame],
        foreign: Callable[[], Iterable[Sequence[Frame]]] = tuple,
        busy: float = -1.0,
    ) -> Position:
        """Where the thread with these frames stands; `foreign`: those of threads that work for it."""
        phase, waits = NOW.name, NOW.waits > 0
        lines = list(_lines(frames))
        if phase == BACKWARD:
            theirs = next((each for each in map(_users, foreign()) if each), [])
            lines = theirs + lines
            # Nothing of Python's tells computing from waiting for a reduction; the processor's time does.
            waits = waits or (0.0 <= busy < _IDLE and not _is_users(lines))
        shown = [line for line in lines if line[0] in (_OURS, _USER)]
        where = next(iter(shown or lines), None)
        stack = [*lines[:1], *(line for line in shown if line is not lines[0])][: _LINES + 1]
        texts = tuple(text for _, text in stack)
        waits = waits or _in_a_collective(frames)
        return Position(phase, where[1] if where else "", texts, waits, round(busy, 3))

    def _cpu_s(self) -> float:
        return time.clock_gettime(self._clock) if self._clock else 0.0


def _users(frames: Sequence[Frame]) -> list[tuple[str, str]]:
    return [line for line in _lines(frames) if line[0] == _USER]


def _lines(frames: Sequence[Frame]) -> Iterator[tuple[str, str]]:
    """(kind, "file:line in function") of each frame, in their order."""
    for path, number, function, first in frames:
        yield _kind(path), f"{_short(path)}:{first if number is None else number} in {function}"


def _is_users(lines: Sequence[tuple[str, str]]) -> bool:
    """Whether the innermost line that is not a library's is the user's."""
    return next((kind for kind, _ in lines if kind in (_OURS, _USER, _HOOK)), "") == _USER


def _in_a_collective(frames: Sequence[Frame]) -> bool:
    """Whether torch waits there for other processes, whoever has called it."""
    return any(path.endswith(_COLLECTIVES) for path, *_ in frames[:_LINES])


def _foreign() -> list[list[Frame]]:
    """The frames of threads that Python has not started: torch runs in such ones what is computed on
    a GPU backwards."""
    with _collecting_nothing():
        idents = [*sys._current_frames()]
    return [_frames(i) for i in idents if i not in threading._active]  # type: ignore[attr-defined]


def _frames(ident: int) -> list[Frame]:
    """The frames of a thread, innermost first.

    In one go: no line of Python runs in here, so no other thread does, and no frame ends while it is
    read. A loop over `f_back` has crashed CPython 3.11 (in PyFrame_GetBack), and so has faulthandler,
    which reads of threads that a library is just making (python/cpython: new_threadstate).
    """
    frames: list[Frame] = []
    innermost = map(itemgetter(ident), starmap(sys._current_frames, [()]))
    # The last one's f_back is None, which has none; and a thread may have ended, or run no Python.
    with _collecting_nothing(), contextlib.suppress(AttributeError, KeyError, ValueError):
        frames.extend(map(_SAYS, accumulate(chain(innermost, repeat("f_back")), getattr)))
    return frames


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    on = _NO_COLLECTION and gc.isenabled()
    if on:
        gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@functools.cache
def _kind(path: str) -> str:
    """Whose file it is."""
    if path.startswith(_TRAIN):
        return _WITHIN.get(path[len(_TRAIN) :].partition(os.sep)[0], _OURS)
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch and path.startswith(os.path.dirname(torch) + os.sep):
        return _TORCH
    if path.startswith("<") or f"{os.sep}site-packages{os.sep}" in path:
        return _LIBRARY
    standard = sysconfig.get_paths()["stdlib"] + os.sep
    return _LIBRARY if path.startswith(standard) else _USER


@functools.cache
def _short(path: str) -> str:
    """Relative to where the training runs, or to the library's home."""
    home = os.getcwd() + os.sep
    for start in (home, os.path.dirname(_TRAIN.rstrip(os.sep)) + os.sep):
        if path.startswith(start):
            return path[len(start) :]
    packages = f"{os.sep}site-packages{os.sep}"
    return path.rpartition(packages)[2] if packages in path else path


def _cpu_clock(ident: int) -> int:
    """The clock of the processor time of a thread of this process; 0 where there is none (macOS)."""
    try:
        return time.pthread_getcpuclockid(ident)
    except (AttributeError, OSError):
        return 0


def innermost_user_line(trace: TracebackType | None) -> str:
    """The innermost line of a traceback that is the user's, or else ours; "" where there is none."""
    frames: list[Frame] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name, code.co_firstlineno))
        trace = trace.tb_next
    shown = [line for line in _lines(frames[::-1]) if line[0] in (_OURS, _USER)]
    users = [line for line in shown if line[0] == _USER]
    return (users or shown or [("", "")])[0][1]
