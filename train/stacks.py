"""Where a thread of this process stands: source lines, and what they mean for a training.

Owns the reading of Python stacks: which lines are worth showing, the phase of a step they belong to,
and whether the thread waits there for other processes. The loop says nothing of this itself, so it
costs a step nothing. Knows nothing of files, stores or other processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat, starmap
from operator import attrgetter, itemgetter
from typing import Any, Optional

FORWARD, BACKWARD, DATA, UPDATE = "forward", "backward", "data", "optimizer step"
EXCHANGE = "the exchange at the end of the step"
TRAINING = frozenset({FORWARD, BACKWARD, DATA, UPDATE, EXCHANGE, "exchange of buffers", "snapshot"})
# The functions of train/ that stand for a phase, looked for from the innermost frame outwards.
_PHASES = {
    ("loop", "_forward"): FORWARD,
    ("loop", "_backward"): BACKWARD,
    ("loop", "_update"): UPDATE,
    ("loop", "train_step"): DATA,  # what is left of it: the next micro-batch
    ("control", "ask"): EXCHANGE,
    ("control", "answer"): EXCHANGE,
    ("buffers", "combine"): "exchange of buffers",
    ("saver", "wait_copied"): "snapshot",
    ("books", "stepped"): "books",
    ("evaluate", "evaluate"): "evaluation",
    ("session", "_set_up"): "building model and data",
    ("session", "_resume"): "loading the checkpoint",
    ("session", "_check_equal"): "comparing the parameters",
    ("session", "_machinery"): "connecting the ranks",
    ("session", "close"): "last checkpoint",
    ("dist", "join"): "joining",
    ("session", "run"): "starting",
    ("run", "_run"): "importing torch",
}
# Where ours waits for other processes, or (ask, on a GPU) for what may be waiting for them.
_WAITS = {
    ("control", "ask"),
    ("control", "answer"),
    ("buffers", "combine"),
    ("evaluate", "_mean"),
    ("mesh", "receive"),
    ("dist", "gather"),
    ("dist", "barrier"),
    ("dist", "from_rank_0"),
    ("dist", "_follow"),
    ("dist", "join"),
    ("saver", "_broadcast"),
    ("reduce", "wait"),
}
# A thread that computes uses its processor; one that waits in gloo does not.
_IDLE = 0.05

# File, line, function, and its first line: a jump, the end of a loop say, may be of no line at all.
Frame = tuple[str, Optional[int], str, int]
_SAYS = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_name", "f_code.co_firstlineno")
# By [], which gives functions of our own: what others set of theirs is not ours.
_own_state, _frame_of = (
    ctypes.pythonapi[name] for name in ("PyThreadState_Get", "PyThreadState_GetFrame")
)
_own_state.restype = ctypes.c_void_p
_frame_of.argtypes, _frame_of.restype = [ctypes.c_void_p], ctypes.py_object
_LINES = 6
_OURS, _TORCH, _LIBRARY, _USER = "ours", "torch", "library", "user"


@dataclass(frozen=True)
class Stand:
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
        self._state = _own_state()
        self._kinds: dict[str, tuple[str, str]] = {}
        self._clock = _cpu_clock(threading.get_ident())
        self._used, self._at = self._cpu_s(), time.monotonic()

    def look(self) -> Stand:
        """Where the main thread stands now."""
        used, now = self._cpu_s(), time.monotonic()
        busy = (used - self._used) / max(now - self._at, 1e-6) if self._clock else -1.0
        self._used, self._at = used, now
        return self.read(_frames(map(_frame_of, (self._state,))), _foreign, busy)

    def read(
        self,
        frames: Sequence[Frame],
        foreign: Callable[[], Iterable[Sequence[Frame]]] = tuple,
        busy: float = -1.0,
    ) -> Stand:
        """Where the thread with these frames stands; `foreign`: those of threads that work for it."""
        lines = list(self._lines(frames))
        phase, waits = _meaning(lines, busy)
        if phase == BACKWARD:
            for other in foreign():
                theirs = [line for line in self._lines(other) if line[0] == _USER]
                if theirs:
                    lines, waits = theirs + lines, False
                    break
        shown = [line for line in lines if line[0] in (_OURS, _USER)]
        # A user's line that called us says nothing; one that we have called does.
        ours = next((i for i, line in enumerate(lines) if line[2] in _PHASES), len(lines))
        mine = next((line for line in lines[:ours] if line[0] == _USER), None)
        where = mine or next(iter(shown or lines), None)
        stack = [*lines[:1], *(line for line in shown if line is not lines[0])][: _LINES + 1]
        texts = tuple(text for _, text, _ in stack)
        return Stand(phase, where[1] if where else "", texts, waits, round(busy, 3))

    def _lines(self, frames: Sequence[Frame]) -> Iterator[tuple[str, str, tuple[str, str]]]:
        """(kind, "file:line in function", (module, function)) of each frame, innermost first."""
        for path, number, function, first in frames:
            kind, name = self._file(path)
            module = os.path.splitext(os.path.basename(path))[0]
            text = f"{name}:{first if number is None else number} in {function}"
            yield kind, text, (module if kind == _OURS else f"{kind} {module}", function)

    def _file(self, path: str) -> tuple[str, str]:
        """Whose file it is, and how it is shown."""
        if path not in self._kinds:
            self._kinds[path] = _kind(path), _short(path)
        return self._kinds[path]

    def _cpu_s(self) -> float:
        return time.clock_gettime(self._clock) if self._clock else 0.0


def _foreign() -> list[list[Frame]]:
    """The frames of threads that Python has not started: torch runs in such ones what is computed on
    a GPU backwards."""
    if (3, 11) <= sys.version_info < (3, 11, 9):
        return []  # to list the threads may block all of them for good (python/cpython#106883)
    idents = [i for i in sys._current_frames() if i not in threading._active]  # type: ignore[attr-defined]
    return [_frames(map(itemgetter(i), starmap(sys._current_frames, [()]))) for i in idents]


def _frames(innermost: Iterator[Any]) -> list[Frame]:
    """What `innermost` gives, and all that called it.

    In one go: no line of Python runs in here, so no other thread does, and no frame ends while it is
    read. A loop over `f_back` has crashed CPython 3.11 (in PyFrame_GetBack), and so has faulthandler,
    which reads of threads that a library is just making (python/cpython: new_threadstate).
    """
    frames: list[Frame] = []
    # The last one's f_back is None, which has none; and a thread may have ended, or run no Python.
    with contextlib.suppress(AttributeError, KeyError, ValueError):
        frames.extend(map(_SAYS, accumulate(chain(innermost, repeat("f_back")), getattr)))
    return frames


def _meaning(lines: list[tuple[str, str, tuple[str, str]]], busy: float) -> tuple[str, bool]:
    """The phase, and whether the thread waits for other processes."""
    names = [name for _, _, name in lines]
    phase = next((_PHASES[name] for name in names if name in _PHASES), "")
    # What stands inside of a user's own function is that function's doing, unless it has called a
    # collective.
    inner = [kind for kind, _, _ in lines]
    ends = inner.index(_USER) if _USER in inner else len(lines)
    within = set(names[:ends])
    called = next((n for module, n in names[:ends] if module == "torch distributed_c10d"), "")
    if called or within & _WAITS:
        return phase or called, True
    autograd = any(module == "torch graph" for module, _ in names[:ends])
    if autograd and not phase:
        phase = BACKWARD
    # Backward, nothing of Python's tells computing from waiting; the processor's time does.
    place = next((i for i, name in enumerate(names) if name in _PHASES), len(names))
    native = autograd or _USER not in inner[:place]
    return phase, phase == BACKWARD and native and 0.0 <= busy < _IDLE


def _kind(path: str) -> str:
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    if path.startswith(own):
        return _USER if path.startswith(own + "workloads" + os.sep) else _OURS
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch and path.startswith(os.path.dirname(torch) + os.sep):
        return _TORCH
    if path.startswith("<") or f"{os.sep}site-packages{os.sep}" in path:
        return _LIBRARY
    standard = sysconfig.get_paths()["stdlib"] + os.sep
    return _LIBRARY if path.startswith(standard) else _USER


def _short(path: str) -> str:
    """Relative to where the training runs, or to the library's home."""
    home = os.getcwd() + os.sep
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    for start in (home, own):
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


def innermost_user_line(trace: object) -> str:
    """The innermost line of a traceback that is the user's, or ours; "" where there is none."""
    watch, found = Watch(), ""
    while trace is not None:
        frame, line = trace.tb_frame, trace.tb_lineno  # type: ignore[attr-defined]
        line = frame.f_code.co_firstlineno if line is None else line
        kind, name = watch._file(frame.f_code.co_filename)
        text = f"{name}:{line} in {frame.f_code.co_name}"
        if kind == _USER or (kind == _OURS and not found):
            found = text
        trace = trace.tb_next  # type: ignore[attr-defined]
    return found
