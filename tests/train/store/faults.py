"""Stores that go wrong on demand, and the start of a job on a machine of its own.

Owns the wrapper around a store that counts, delays, fails and kills, and the making of remote checkpoints
without a training. Knows nothing of what is being tested.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from train.checkpoint import disk
from train.checkpoint import remote as remote_module
from train.checkpoint.remote import RemoteCheckpoints, open_remote
from train.checkpoint.store.places import DirectoryStore, Store
from train.run.layout import MARKER, step_directory
from train.run.lock import Fence, claim

KILLED = 137
# A hook gets the number of the operation, its kind and the object's name, before it is done.
Hook = Callable[[int, str, str], None]


class Faulty:
    """A store whose operations pass a hook."""

    def __init__(self, store: Store, hook: Hook) -> None:
        self._store, self._hook, self.name = store, hook, store.name
        self.done: list[tuple[str, str]] = []

    def _before(self, kind: str, name: str) -> None:
        self.done.append((kind, name))
        self._hook(len(self.done), kind, name)

    def list(self, prefix: str) -> dict[str, int]:
        self._before("list", prefix)
        return self._store.list(prefix)

    def read(self, name: str) -> bytes:
        self._before("read", name)
        return self._store.read(name)

    def write(self, name: str, content: bytes) -> None:
        self._before("write", name)
        self._store.write(name, content)

    def put(self, name: str, source: Path) -> None:
        self._before("put", name)
        self._store.put(name, source)

    def get(self, name: str, target: Path) -> None:
        self._before("get", name)
        self._store.get(name, target)

    def delete(self, name: str) -> None:
        self._before("delete", name)
        self._store.delete(name)


def tensors_of(step: int) -> dict[str, Any]:
    return {
        "model.pt": {"w": torch.arange(50.0) * step},
        "optimizer.pt": {"optimizer": {"step": step}},
    }


class Machine:
    """One machine's checkpoint directory, and a start of job `job` there."""

    def __init__(
        self, place: Path, store: str | Path, job: str = "sky task-1 1", keep: int = 2
    ) -> None:
        self.directory, self._store, self._keep = place, str(store), keep
        place.mkdir(parents=True, exist_ok=True)
        os.environ["DDPGEN_SCHEDULER"] = job
        (place / "lock").unlink(missing_ok=True)
        self.fence = Fence(place, claim(place, "test", os.getpid()))

    def open(self) -> RemoteCheckpoints:
        """Take the store, bring what is there. Raises TrainError."""
        self.remote = open_remote(self._store, self.directory, self._keep, self.fence, "gpt")
        self.remote.pull(self.fence.check)
        return self.remote

    def begin(self) -> int:
        """As a training does: go on from the newest step. Returns it."""
        self.open()
        step = self.newest()
        self.remote.resume(step)
        self.remote.begin({"attempt": self.fence.attempt}, step, self.fence.check)
        return step

    def newest(self) -> int:
        found = disk.newest_valid(self.directory, lambda step, why: None)
        return found.step if found else 0

    def train(self, first: int, last: int) -> None:
        """Rows for these steps."""
        with open(self.directory / "metrics.jsonl", "a") as file:
            file.writelines(
                json.dumps({"kind": "step", "step": step, "loss": 1 / step}) + "\n"
                for step in range(first, last + 1)
            )

    def save(self, step: int) -> None:
        """Write the checkpoint of this step here, and commit it."""
        name = f"{self.fence.attempt}-{self.fence.generation}"
        disk.write(self.directory, step, tensors_of(step), {"a": 1}, name, self.fence.check)
        self.remote.push(step, self.fence.check)

    def loaded(self) -> dict[str, Any]:
        found = disk.newest_valid(self.directory, lambda step, why: None)
        assert found is not None
        return {name: found.load(name) for name in found.files}

    def end(self) -> None:
        """The process is gone without a word."""
        self.remote.owner.close()
        self.fence.close()


def through(monkeypatch: Any, hook: Hook) -> None:
    """Every store opened from now on is a faulty one."""
    real = remote_module.open_store
    monkeypatch.setattr(remote_module, "open_store", lambda place: Faulty(real(place), hook))


def in_child(body: Callable[[], None], within: float = 60.0) -> int | None:
    """Run `body` in a process that may be killed. Returns its exit code."""

    def work() -> None:
        body()
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(within)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError("the child hangs")
    return child.exitcode


def whole_steps(store: Path) -> list[int]:
    """The steps in a store that have their marker."""
    names = (path.parent.name for path in store.glob(f"step-*/{MARKER}"))
    return sorted(int(name.removeprefix("step-")) for name in names)


def remote(store: Path, step: int) -> Path:
    return step_directory(store, step)


def objects(store: Path) -> list[str]:
    return sorted(DirectoryStore(store).list(""))
