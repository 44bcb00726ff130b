"""The object `stop` in a store: the user's request, made there because the machine cannot be reached.

Owns the note of the job that has ended for it, `stop-obeyed`: a recovery of that job stays stopped, and the next
job removes both. The supervisor of the head watches, whatever its processes run.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from train.console import say
from train.stop import BY_USER, create_stop_file, first_line
from train.store.places import Store, StoreError, open_store

STOP = "stop"
_OBEYED = "stop-obeyed"
_EVERY_S = 5.0


def watch(place: str, job: str, stop_file: Path, every_s: float = _EVERY_S) -> None:
    """Make the stop file as soon as a stop for `job` is in the store at `place`; return then.

    A store or a disk that does not answer is asked again: the training goes on without an answer.
    """
    store = _opened(place, every_s)
    forgotten, said = False, ""
    while True:
        with contextlib.suppress(OSError):
            if not forgotten:
                _forget(store, job)
                forgotten = True
            words = first_line(store.read(STOP))
            reason = f"{BY_USER}: {words}" if words else BY_USER
            if said != reason:
                say(f"a stop was asked for in {place}" + (f": {words}" if words else ""))
                said = reason
            store.write(_OBEYED, f"{job}\n".encode())
            create_stop_file(stop_file, reason)
            return
        time.sleep(every_s)


def _opened(place: str, every_s: float) -> Store:
    """The store, as soon as there is one: a mount may come late. Why there is none is said once."""
    said = False
    while True:
        try:
            return open_store(place)
        except StoreError as error:
            if not said:
                say(f"a stop asked for in {place} is not seen: {error}")
            said = True
        time.sleep(every_s)


def _forget(store: Store, job: str) -> None:
    """Remove a stop that has ended another job. Raises OSError."""
    try:
        obeyed_by = store.read(_OBEYED).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return
    if obeyed_by == job:
        return
    say(f"the stop in {store.name} is removed: it has ended the job before this one")
    store.delete(STOP)
    store.delete(_OBEYED)
