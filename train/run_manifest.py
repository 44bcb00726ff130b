"""This start's entry in manifest.json, from its beginning to its end.

Owns the file while a run has it, on rank 0, and what is hashed of a data file. The slow parts (packing the
bundle, hashing data files) happen in a thread beside the training, and are there before the first checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from train import bundle, provenance
from train.console import say
from train.files import open_file, read_file, replace_file
from train.lock import FencedOffError
from train.provenance import MANIFEST, Start
from train.status import read_status

# Of the data files.
_WHOLE_BYTES = 256 << 20
_ALL_BYTES = 4 << 30
_END_BYTES = 1 << 20
_READ_BYTES = 1 << 22


class RunManifest:
    """manifest.json, with the entry of this start."""

    def __init__(
        self,
        directory: Path,
        check: Callable[[], None],
        about: Mapping[str, Any],
        start: Start,
        environments: Mapping[str, Any],
        earlier: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write it. `check` raises FencedOffError when this process may not. `about`: what it says of the newest start
        outside of `starts`. `earlier`: what a store and the checkpoint say of earlier starts, as manifests
        with `starts` and `environments`. Raises OSError."""
        self._directory, self._check, self._start = directory, check, start
        known = [found for found in (*earlier, _before(directory)) if found]
        starts = provenance.merged(each for found in known for each in found["starts"])
        provenance.end_earlier(starts, start["from_step"], read_status(directory))
        self._environments = dict(environments)
        every = {key: value for found in known for key, value in found["environments"].items()}
        self._manifest = {
            **about,
            "schema": provenance.SCHEMA,
            "environments": {**every, **environments},
            "starts": [*starts, start],
        }
        self._known_data = starts[-1]["data"].get("files") if starts else None
        self._thread: threading.Thread | None = None
        self._write()

    def complete_with(self, data_files: Sequence[str], data_fingerprint: str) -> None:
        """Have the bundle kept and the data files hashed, beside the training."""

        def work() -> None:
            try:
                self._check()
                name = bundle.keep(self._directory, bundle.HERE)
                files = fingerprint(data_files, self._known_data)
                data = {"files": files, "fingerprint": data_fingerprint}
                self._start.update(bundle=name, data={k: v for k, v in data.items() if v})
                self._check()
                self._write()
            except FencedOffError:
                pass  # whoever writes next meets it as well
            except OSError as error:
                say(f"what runs is not kept in {self._directory}: {error}; training goes on")

        self._thread = threading.Thread(target=work, name="manifest", daemon=True)
        self._thread.start()

    def marker(self) -> dict[str, Any]:
        """What goes into each checkpoint.json: about this start only. Waits for what is under way."""
        manifest = self.whole()
        del manifest["starts"]
        return {**manifest, "start": self._start, "environments": self._environments}

    def whole(self) -> dict[str, Any]:
        """All of it, when what is under way is done."""
        self._wait()
        return dict(self._manifest)

    def end(self, word: str, step: int, reason: str = "", **values: Any) -> None:
        """How this start ended. Raises OSError."""
        self._wait()
        ending = {"ended": round(time.time(), 3), "end": word, "reason": reason, "step": step}
        self._start = {**self._start, **ending, **values}
        self._manifest["starts"][-1] = self._start
        self._check()
        self._write()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        text = json.dumps(self._manifest, indent=1, sort_keys=True) + "\n"
        replace_file(self._directory / MANIFEST, text.encode())


def _before(directory: Path) -> dict[str, Any] | None:
    """The manifest that lies there. One that cannot be read is set aside."""
    path = directory / MANIFEST
    try:
        return provenance.parse(read_file(path, provenance.MOST_BYTES))
    except OSError:
        return None
    except ValueError as error:
        aside = f"{MANIFEST}.{time.strftime('%Y%m%d-%H%M%S')}"
        os.rename(path, directory / aside)
        say(f"{MANIFEST} {error}; it is set aside as {aside}, and the starts in it are left out")
        return None


def fingerprint(paths: Iterable[str], known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`{"size": bytes, "mtime": seconds, "sha256": …}` of each file, by its path as it was given.

    Of a file beyond 256 MiB, and of what comes after 4 GiB in all, only the first and the last MiB are
    hashed: it has `"partial": true`. One that cannot be read has `"error"`. `known`: an earlier
    result, taken over where size and time are the same.
    """
    found: dict[str, Any] = {}
    hashed = 0
    for path in map(str, paths):
        try:
            with open_file(Path(path).expanduser()) as file:
                stat = os.fstat(file.fileno())
                entry = {"size": stat.st_size, "mtime": stat.st_mtime}
                before = (known or {}).get(path)
                if isinstance(before, dict) and entry.items() <= before.items():
                    found[path] = before
                    continue
                whole = stat.st_size <= min(_WHOLE_BYTES, _ALL_BYTES - hashed)
                digest = hashlib.sha256()
                if whole:
                    hashed += stat.st_size
                    while piece := file.read(_READ_BYTES):
                        digest.update(piece)
                else:
                    entry["partial"] = True
                    digest.update(file.read(_END_BYTES))
                    file.seek(max(0, stat.st_size - _END_BYTES))
                    digest.update(file.read(_END_BYTES))
                found[path] = {**entry, "sha256": digest.hexdigest()}
        except (OSError, ValueError, RuntimeError) as error:  # no such user, a NUL in the name
            found[path] = {"error": getattr(error, "strerror", None) or str(error)}
    return found
