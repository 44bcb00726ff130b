"""The object `stop` in a store: the user's request to stop, made there because the machine cannot be reached.

Owns the object `stop-obeyed`, which names the job that the request has ended. A recovery of that job stays stopped,
and the next job removes both objects. The head's supervisor watches for the request, whatever program its workers run.
"""

from __future__ import annotations

import time
from pathlib import Path

from train.base.console import say
from train.checkpoint.store.places import Store, open_store
from train.run.stop import BY_USER, create_stop_file, first_line

STOP = "stop"
_OBEYED = "stop-obeyed"
_EVERY_S = 5.0


def watch(store_url: str, job: str, stop_file: Path, every_s: float = _EVERY_S) -> None:
    """Wait until a stop for `job` is in the store at `store_url`, make the stop file, and return.

    Asks again if the store or the disk does not answer. The training goes on meanwhile.
    """
    store: Store | None = None
    forgotten, printed = False, set[str]()

    def say_once(message: str) -> None:
        if message not in printed:
            say(message)
        printed.add(message)

    while True:
        try:
            store = store or open_store(store_url)  # a mount may come late
            if not forgotten:
                _forget(store, job)
                forgotten = True
            reason = first_line(store.read(STOP))
            say_once(f"a stop was asked for in {store_url}" + (f": {reason}" if reason else ""))
            store.write(_OBEYED, f"{job}\n".encode())
            create_stop_file(stop_file, f"{BY_USER}: {reason}" if reason else BY_USER)
            return
        except OSError as error:
            if store is None:
                say_once(f"a stop asked for in {store_url} is not seen: {error}")
        time.sleep(every_s)


def _forget(store: Store, job: str) -> None:
    """Remove a request that has ended another job. Raises OSError."""
    try:
        obeyed_by = store.read(_OBEYED).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return
    if obeyed_by == job:
        return
    say(f"the stop in {store.name} is removed: it has ended the job before this one")
    store.delete(STOP)
    store.delete(_OBEYED)
