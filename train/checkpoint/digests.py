"""The chain of a running training, and the threads that hash its weights.

Owns when a digest enters the chain: with the link `every` steps after its own step. So no step waits for a hash, unless
hashing takes longer than these steps. Knows nothing of rows and files.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from train.base import typed
from train.checkpoint.copies import Copies
from train.checkpoint.weights import digest_of
from train.run.chain import Digest, first_link, link, receipt


@dataclass(frozen=True)
class Saved:
    """The chain in a checkpoint's marker. `digest`: the latest digest, which is in no link yet."""

    last: str
    digest: Digest | None


class Point:
    """The chain after a step. `last`: the link of this step. `due`: true if `hash` must get a copy of these weights."""

    def __init__(self, step: int, last: str, digest: Future[Digest] | None, due: bool) -> None:
        self.step, self.last, self.due, self._digest = step, last, due, digest

    @property
    def digest(self) -> Digest | None:
        """The latest digest, which is in no link yet. Waits for its hash, and raises the error that prevented it."""
        return self._digest.result() if self._digest is not None else None

    @property
    def saved(self) -> dict[str, Any]:
        return asdict(Saved(self.last, self.digest))

    @property
    def receipt(self) -> str:
        return receipt(self.last, self.step, self.digest)

    def hash(self, model: Mapping[str, Any]) -> None:
        """Hash `model`, a copy of the model's state, if a digest is due."""
        if self.due and self._digest is not None and not self._digest.done():
            digest = digest_of(self.step, model)
            with suppress(InvalidStateError):  # the last checkpoint may hash the same weights
                self._digest.set_result(digest)

    def fail(self, error: Exception) -> None:
        """If a digest is due, record that `error` prevented it."""
        if self.due and self._digest is not None:
            with suppress(InvalidStateError):
                self._digest.set_exception(error)


class Chain:
    """The chain from the start's first step on. `here`: the point after the newest step."""

    def __init__(self, step: int, every: int, saved: Any, copies: Copies) -> None:
        """`saved`: the chain in the checkpoint of `step`. Without one, a chain begins here. `copies`: of the weights."""
        known = typed.convert(Saved, saved) or Saved(first_link(step), None)
        digest: Future[Digest] | None = None
        if known.digest is not None:
            digest = Future()
            digest.set_result(known.digest)
        self._every, self._digest, self._copies = every, digest, copies
        self.here = Point(step, known.last, digest, due=False)

    def add(self, step: int, loss: float) -> Digest | None:
        """Add the link of a step. Returns the digest that it holds, or None."""
        due = step % self._every == 0
        digest = self.here.digest if due else None
        if due:
            self._digest = Future()
        self.here = Point(step, link(self.here.last, step, loss, digest), self._digest, due)
        return digest

    def take(self, model: torch.nn.Module) -> None:
        """Copy the weights, and hash the copy in a thread, if a digest of them is due."""
        if self.here.due:
            self._copies.follow()
            copy = self._copies.take(model.state_dict())
            threading.Thread(target=self._hash, args=(self.here, copy), daemon=True).start()

    def _hash(self, point: Point, copy: Mapping[str, Any]) -> None:
        try:
            point.hash(copy)
        except Exception as error:  # noqa: BLE001 - raised where the digest is awaited
            point.fail(error)
