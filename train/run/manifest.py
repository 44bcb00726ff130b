"""This start's entry in manifest.json, from its beginning to its end.

Owns the file during a run, on rank 0, and the choice of the hashed parts of a data file. A thread packs the bundle and
hashes the data files during the training. A checkpoint or a stop waits for this thread a few seconds at most, and takes
the values that are known by then. After a checkpoint the manifest still gets the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from train.base.console import say
from train.base.files import open_file, read_file, replace_file, sha256_of
from train.run import bundle, provenance
from train.run.lock import FencedOffError
from train.run.provenance import MANIFEST, Start
from train.run.status import read_status

# A data file of up to _WHOLE_BYTES is hashed whole, until the files hashed whole have _ALL_BYTES together. Any other
# file is hashed by its first and last _END_BYTES.
_WHOLE_BYTES = 256 << 20
_ALL_BYTES = 4 << 30
_END_BYTES = 1 << 20

# All checkpoints of a start together wait for the thread up to this long, so that the first one already has the entries
# of a small bundle and of small data files.
_CHECKPOINTS_S = 5.0
# The end of a run waits for the thread up to this long. A run may be killed 30 s after a request to stop (Slurm's
# KillWait, a cloud's notice).
_END_S = 5.0


class RunManifest:
    """manifest.json, with the entry of this start."""

    def __init__(
        self,
        directory: Path,
        check: Callable[[], None],
        run: Mapping[str, Any],
        start: Start,
        environments: Mapping[str, Any],
        earlier: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write the manifest. Raises OSError.

        `check`: raises FencedOffError if this process must not write. `run`: values of the newest start outside of
        `starts`. `earlier`: the earlier starts that a store and the checkpoint know, as manifests with `starts` and
        `environments`.
        """
        self._directory, self._check, self._start = directory, check, start
        known = [found for found in (*earlier, _before(directory)) if found]
        starts = provenance.merged(each for found in known for each in found["starts"])
        provenance.end_earlier(starts, start["from_step"], read_status(directory))
        self._environments = dict(environments)
        every = {key: value for found in known for key, value in found["environments"].items()}
        self._manifest = {
            **run,
            "schema": provenance.SCHEMA,
            "environments": {**every, **environments},
            "starts": [*starts, start],
        }
        hashed = (each["data"]["files"] for each in reversed(starts) if each["data"].get("files"))
        self._known_data = next(hashed, None)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards `_start` and `_ended`
        self._left_s, self._ended = _CHECKPOINTS_S, False
        self._write()

    def complete_with(self, data_files: Sequence[str], data_fingerprint: str) -> None:
        """Keep the bundle and hash the data files in a thread. The manifest gets each value as soon as it is known."""

        def work() -> None:
            try:
                self._check()
                self._complete(bundle=bundle.keep_archive(self._directory, bundle.PACKAGE_ROOT))
                files = fingerprint(data_files, self._known_data)
                data = {"files": files, "fingerprint": data_fingerprint}
                self._complete(data={k: v for k, v in data.items() if v})
            except FencedOffError:
                pass  # the next write raises it as well
            except OSError as error:
                say(f"what runs is not kept in {self._directory}: {error}; training goes on")

        self._thread = threading.Thread(target=work, name="manifest", daemon=True)
        self._thread.start()

    def record_stages(self, stages: Callable[[], Mapping[str, float]]) -> None:
        """Record the stages of this start after its first step, see phase.stages; later calls do nothing. Raises
        FencedOffError."""
        if "stages" not in self._start:
            with suppress(OSError):  # the next write has them too
                self._complete(stages=stages())

    def marker(self) -> dict[str, Any]:
        """The manifest with this start only, for checkpoint.json."""
        manifest = self.snapshot()
        (*_, start) = manifest.pop("starts")
        return {**manifest, "start": start, "environments": self._environments}

    def snapshot(self) -> dict[str, Any]:
        """A copy of the manifest. Waits for the thread, 5 s at most in all calls together."""
        began = time.monotonic()
        self._wait(self._left_s)
        self._left_s -= time.monotonic() - began
        with self._lock:
            return {**self._manifest, "starts": [dict(each) for each in self._manifest["starts"]]}

    def end(self, word: str, step: int, reason: str = "", **values: Any) -> None:
        """Record how this start ended. Raises OSError."""
        self._wait(_END_S)
        ending = {"ended": round(time.time(), 3), "end": word, "reason": reason, "step": step}
        with self._lock:
            self._ended = True
            self._start.update(ending, **values)
            self._check()
            self._write()

    def _complete(self, **values: Any) -> None:
        """Add values to the entry that were not known at the beginning. Raises OSError, FencedOffError."""
        known = {name: value for name, value in values.items() if value}
        with self._lock:
            if not known or self._ended:
                return  # after this start's end the directory may belong to another start
            self._start.update(known)
            self._check()
            self._write()

    def _wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))

    def _write(self) -> None:
        text = json.dumps(self._manifest, indent=1, sort_keys=True) + "\n"
        replace_file(self._directory / MANIFEST, text.encode())


def _before(directory: Path) -> dict[str, Any] | None:
    """The manifest on file, or None. An invalid one is renamed and left out."""
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


def fingerprint(paths: Iterable[str], earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return `{"size": bytes, "mtime": seconds, "sha256": …}` for each file, by its path as given.

    A file beyond 256 MiB, or beyond 4 GiB in all, is hashed by its first and last MiB only, and has `"partial": true`.
    A file that cannot be read has `"error"`. `earlier`: an earlier result. Its entry for a file is kept if size and
    time are the same.
    """
    found: dict[str, Any] = {}
    hashed = 0
    for path in map(str, paths):
        try:
            with open_file(Path(path).expanduser()) as file:
                stat = os.fstat(file.fileno())
                entry = {"size": stat.st_size, "mtime": stat.st_mtime}
                before = (earlier or {}).get(path)
                if isinstance(before, dict) and entry.items() <= before.items():
                    found[path] = before
                    continue
                whole = stat.st_size <= min(_WHOLE_BYTES, _ALL_BYTES - hashed)
                if whole:
                    hashed += stat.st_size
                    found[path] = {**entry, "sha256": sha256_of(file)}
                    continue
                ends = file.read(_END_BYTES)
                file.seek(max(0, stat.st_size - _END_BYTES))
                ends += file.read(_END_BYTES)
                digest = hashlib.sha256(ends).hexdigest()
                found[path] = {**entry, "partial": True, "sha256": digest}
        except (OSError, ValueError, RuntimeError) as error:  # no such user, a NUL in the name
            found[path] = {"error": getattr(error, "strerror", None) or str(error)}
    return found
