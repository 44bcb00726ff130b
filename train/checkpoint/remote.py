"""The checkpoints of a training, in a store that outlives the machine.

Owns the store's objects. `step-000000200/{model.pt, optimizer.pt, checkpoint.json}` has the same bytes as in the
checkpoint directory; checkpoint.json is written last and commits the checkpoint. Further objects are `metrics/`,
`bundles/`, `best.json`, `manifest.json`, `progress.json` and `status`. Only rank 0 uses them, and only the store's
owner writes them. Knows nothing of models, nor of how a store is reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from train.base import processes
from train.base.console import say
from train.base.errors import TrainError
from train.base.files import replace_file
from train.base.scheduler import VARIABLE, Scheduled
from train.checkpoint.download import Contents, bring_newest, contents, object_name
from train.checkpoint.segments import Segments
from train.checkpoint.store.owner import MANIFEST, Owner, Ownership
from train.checkpoint.store.places import (
    Store,
    StoreError,
    describe_error,
    is_on_disk_of,
    open_store,
)
from train.checkpoint.store.retries import BoundedStore, HangsError, StoreCalls, with_retries
from train.checkpoint.store.stop import STOP
from train.run import provenance
from train.run.bundle import ARCHIVES
from train.run.layout import BEST, MARKER, best_step, parse_best, step_directory
from train.run.lock import Fence, FencedOffError
from train.run.progress import NAME as PROGRESS
from train.run.status import Status

# Keep at least two checkpoints. Some mounts upload in the background, so the newest may be missing although its write
# has returned.
_MIN_KEPT = 2
# The file with the turn (Owner.turn) of the last start on this machine. The first supervisor of a start removes it, so
# only processes that were restarted in place find it.
TURN = "store-turn"
# We count the starts of this scheduler in the checkpoint directory. Another machine has another directory, so the count
# says nothing there.
_COUNTS_NOTHING = "sky"


def open_remote(
    store_url: str, directory: Path, keep: int, fence: Fence, job: str
) -> RemoteCheckpoints:
    """Take the store at `store_url` for this start of the job, and return it.

    Raises TrainError when the store cannot be used, or belongs to another job that is alive, or to a later start of
    this job.
    """
    scheduled = Scheduled.parse(os.environ.get(VARIABLE, ""))
    counted = scheduled is None or scheduled.scheduler != _COUNTS_NOTHING
    home = f"{processes.machine()} {directory}"
    owner = Owner(
        job=scheduled.job if scheduled else job,
        attempt=fence.attempt,
        host=socket.gethostname(),
        restarts=scheduled.restarts if scheduled and counted else 0,
        home=home,
    )
    remote, calls = None, StoreCalls(store_url)
    try:
        store: Store = calls.run("opening it", 0, lambda: open_store(store_url))
        remote = RemoteCheckpoints(store, directory, keep, owner, remembers=not counted)
        remote.take_ownership()
    except FencedOffError as error:
        raise TrainError(str(error)) from None
    except OSError as error:
        reason = f"the checkpoint store {store_url} cannot be used: {describe_error(error)}"
        if remote is not None:
            remote.give_up(reason)
            remote.stop_renewing()
        raise TrainError(reason) from None
    if calls.run("a look at its disk", 0, lambda: is_on_disk_of(store, directory)):
        say(
            f"{store_url} is on the same disk as {directory}: what is lost with this machine is lost there, too"
        )
    return remote


class RemoteCheckpoints:
    """The store of a training, as its rank 0 uses it."""

    def __init__(
        self, store: Store, directory: Path, keep: int, identity: Owner, remembers: bool = False
    ) -> None:
        """`remembers`: keep this owner's turn in a file, because the job's starts are not counted across machines."""
        self._store, self._directory = BoundedStore(store), directory
        self._keep, self._identity = keep, identity
        self._turn_file = directory / TURN if remembers else None
        self.owner = Ownership(store, identity)
        self._contents: Contents = {}
        self._bad = set[int]()  # steps in the store that are not whole
        self._segments: Segments | None = None
        self._rows: list[str] = []
        self._described: Mapping[str, Any] | None = None
        self._printed: set[str] = set()
        self.committed: int | None = None
        # The store's manifest of the earlier starts; empty without one.
        self.earlier: list[dict[str, Any]] = []
        self._best: int | None = None

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def fenced_off(self) -> FencedOffError | None:
        """The error with which this process must end, if another start has taken the store over, else None."""
        return self.owner.lost

    def take_ownership(self) -> None:
        """Become the store's owner. Raises TrainError, FencedOffError, OSError."""
        self.owner.take(self._remembered())
        self._remember()

    def pull(self, may_tidy: Callable[[], None]) -> None:
        """Download the newest whole checkpoint of the store, unless the newest one here is at least as new.

        Prints the name of each checkpoint in the store that is not whole, and leaves it there. Raises TrainError when
        the store does not answer or this disk is too small, and any error of `may_tidy`.
        """
        try:
            self._contents = with_retries(self.name, lambda: contents(self._store))
        except OSError as error:
            raise TrainError(f"{self.name} cannot be listed: {describe_error(error)}") from None
        newest, self._bad = bring_newest(
            self._store, self._contents, self._directory, self._identity.attempt, may_tidy
        )
        if self._bad:
            say(f"using the checkpoint of step {newest}" if newest else "starting over")
        try:
            # Do this now, while the other ranks wait for hours if need be (STORE_S).
            self._rows = list(self._store.list("metrics/"))
            self._segments_to(newest).restore()
            self._restore_best()
        except OSError as error:
            self._say_problem("metrics.jsonl and best.json cannot be brought back from", error)
        try:
            manifest = with_retries(self.name, lambda: self._store.read(MANIFEST))
            self.earlier = [provenance.parse(manifest)]
        except (FileNotFoundError, ValueError):
            pass  # ValueError: another version wrote it, or it is not whole
        except OSError as error:
            self._say_problem("the starts before this one cannot be read in", error)

    def resume(self, step: int) -> None:
        """Note that the training goes on from `step`. From now on every wait for the store has a limit."""
        self._store.limit()
        if MARKER in self._contents.get(step, {}) and step not in self._bad:
            self.committed = step
        self._segments = self._segments_to(step)

    def begin(
        self, manifest: Mapping[str, Any], step: int, may_publish: Callable[[], None]
    ) -> None:
        """Write the manifest and the status to the store, and commit the checkpoint here if the store lacks it.

        Raises as push does.
        """
        self.describe(manifest)
        try:
            self._write_status("running", step)
        except OSError as error:
            self._say_problem("the status of this run cannot be written to", error)
        if self.committed is not None:
            self._tidy(step)  # the start before may have died between its commit and its _tidy()
        elif step and step_directory(self._directory, step).is_dir():
            self.push(step, may_publish)

    def describe(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, and the bundles that the store lacks, unless this manifest was written before. Raises
        FencedOffError."""
        if manifest == self._described:
            return
        try:
            self.owner.check()
            self._write_manifest(manifest)
            self._keep_bundles()
            self._described = manifest
        except OSError as error:
            self._say_problem("manifest.json and the bundle of this run cannot be kept in", error)

    def push(self, step: int, may_publish: Callable[[], None]) -> None:
        """Commit the checkpoint of `step`, which is whole here, to the store; then delete old ones.

        `may_publish` raises an error to abandon the upload. Raises OSError, FencedOffError.
        """
        if self.committed == step:
            return
        place, there = step_directory(self._directory, step), object_name(step)
        marker = (place / MARKER).read_bytes()
        sizes = {name: int(file["size"]) for name, file in json.loads(marker)["files"].items()}
        if not self._has_checkpoint(step, marker, sizes):
            if MARKER in self._contents.get(step, {}):
                self._may_change(may_publish)
                self._store.delete(f"{there}/{MARKER}")
                del self._contents[step][MARKER]
            self._may_change(may_publish)
            for name in sizes:
                self._store.put(f"{there}/{name}", place / name)
            self._write_metrics(step)
            self._may_change(may_publish)
            self._store.write(f"{there}/{MARKER}", marker)
        self._bad.discard(step)
        self._check_listed(step, {**sizes, MARKER: len(marker)})
        self.committed = step
        self._tidy(step)

    def close(self, manifest: Mapping[str, Any] | None = None) -> None:
        """At the end of the job, write its last rows, best.json, progress, status and `manifest`. Raises nothing."""
        try:
            self.owner.check()
            if self._segments is not None:
                self._segments.close()
            self._write_best()
            if manifest is not None:
                self._write_manifest(manifest)
            self._write_progress()
            status = (self._directory / "status").read_bytes()
            self._store.write("status", status)
            if status.startswith(b"done "):
                self._store.delete(STOP)  # it came too late, and must not stop the next job
        except FencedOffError as error:
            say(str(error))
        except OSError as error:
            self._say_problem("the last words of the job cannot be written to", error, "")
        # Release the store, so that the next job need not watch for a while to see that this job has ended.
        with contextlib.suppress(OSError):
            self.owner.release()
        self.owner.close()

    def stop_renewing(self) -> None:
        """Stop renewing the ownership: another process of this job will take the store."""
        self.owner.close()

    def give_up(self, reason: str) -> None:
        """Write to the store that the job has failed for good, if the store answers. Raises nothing."""
        self._store.limit()
        with contextlib.suppress(OSError, FencedOffError):
            if self.owner.may_speak():
                self._write_status("failed", self.committed or 0, reason)
                self.owner.release()

    def explain(self, error: OSError) -> str:
        """Return one line with the store's name and why an upload to it failed."""
        if isinstance(error, HangsError):
            return f"{self.name} does not answer: {describe_error(error)}"
        return f"{self.name}: {describe_error(error)}"

    def _remembered(self) -> int | None:
        """Return the turn of the last start on this machine, or None if there is no such file."""
        if self._turn_file is not None:
            with contextlib.suppress(OSError, ValueError):
                return int(self._turn_file.read_text())
        return None

    def _remember(self) -> None:
        if self._turn_file is not None:
            with contextlib.suppress(OSError):  # another write reports a full disk
                replace_file(self._turn_file, f"{self.owner.turn}\n".encode())

    def _segments_to(self, step: int) -> Segments:
        return Segments(self._store, self._directory / "metrics.jsonl", self._rows, step)

    def _has_checkpoint(self, step: int, marker: bytes, sizes: dict[str, int]) -> bool:
        """Return whether the store has this checkpoint already, with the same marker."""
        stored = self._contents.get(step, {})
        if step in self._bad or stored != {**sizes, MARKER: len(marker)}:
            return False
        return self._store.read(f"{object_name(step)}/{MARKER}") == marker

    def _may_change(self, may_publish: Callable[[], None]) -> None:
        may_publish()
        self.owner.check()

    def _check_listed(self, step: int, sizes: dict[str, int]) -> None:
        """List the store and raise StoreError if a file is not listed, because other machines see only listed files."""
        self._contents = contents(self._store)
        stored = self._contents.get(step, {})
        for name, size in sizes.items():
            if stored.get(name) != size:
                has = f"{stored[name]} bytes instead of {size}" if name in stored else "not there"
                raise StoreError(f"{name} was written, and is {has}: {self.name} has lost it")

    def _tidy(self, step: int) -> None:
        """Write progress, status and best.json, and delete old checkpoints. An OSError here does not fail the
        checkpoint."""
        try:
            self._write_progress()
            self._write_status("running", step)
            self._write_best()
            self._prune()
        except OSError as error:
            self._say_problem("old checkpoints cannot be deleted in", error)

    def _prune(self) -> None:
        """Delete all but the newest whole checkpoints and the best one, also the older ones that are not whole."""
        whole = sorted(s for s, files in self._contents.items() if MARKER in files)
        whole = [step for step in whole if step not in self._bad]
        kept = whole[-max(self._keep, _MIN_KEPT) :]
        for step in sorted(self._contents):
            if step in kept or step == self._best or step > whole[-1]:
                continue
            self.owner.check()
            # Delete the marker first, so that a half-deleted checkpoint does not look like a whole one.
            for name in sorted(self._contents[step], key=lambda name: name != MARKER):
                self._store.delete(f"{object_name(step)}/{name}")
            del self._contents[step]

    def _write_best(self) -> None:
        """Write best.json once the store has the best checkpoint. Until then the store keeps the one that was best
        before."""
        best = best_step(self._directory)
        if best not in (None, self._best) and MARKER in self._contents.get(best or 0, {}):
            self._store.write(BEST, (self._directory / BEST).read_bytes())
            self._best = best

    def _restore_best(self) -> None:
        """Download best.json of the store, unless the one here names a later step. Raises OSError."""
        try:
            content = self._store.read(BEST)
        except FileNotFoundError:
            return
        self._best = parse_best(content)
        if (self._best or 0) > (best_step(self._directory) or 0):
            replace_file(self._directory / BEST, content)

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        text = json.dumps({**manifest, "job": self._identity.job}, indent=1, sort_keys=True) + "\n"
        self._store.write(MANIFEST, text.encode())
        self.owner.wrote_manifest(text.encode())

    def _keep_bundles(self) -> None:
        stored = self._store.list(f"{ARCHIVES}/")
        for path in sorted((self._directory / ARCHIVES).glob("*.tar.gz")):
            if f"{ARCHIVES}/{path.name}" not in stored:
                self.owner.check()
                self._store.put(f"{ARCHIVES}/{path.name}", path)

    def _write_metrics(self, step: int) -> None:
        try:
            if self._segments is not None:
                self._segments.upload(step)
        except OSError as error:
            self._say_problem("rows of metrics.jsonl cannot be written to", error)

    def _write_status(self, word: str, step: int, reason: str = "") -> None:
        line = Status(word, self._identity.attempt, step, reason).line
        self._store.write("status", line.encode())

    def _write_progress(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._store.write(PROGRESS, (self._directory / PROGRESS).read_bytes())

    def _say_problem(
        self, problem: str, error: OSError, consequence: str = "; the checkpoints go on"
    ) -> None:
        if problem not in self._printed:
            self._printed.add(problem)
            say(f"{problem} {self.name}: {describe_error(error)}{consequence}")
