"""The chain over the steps of a run: each link hashes the link before it, a step, its loss and a digest of the weights.

Owns the definition of a link, and the form of a digest in a row. Knows nothing of files and threads, and needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train.base import typed
from train.run.metrics import as_json_value

# The length of a tensor's hash in a row. It only shows which tensor differs; the root proves the weights.
TENSOR_HASH_BYTES = 4


@dataclass(frozen=True)
class Digest:
    """The weights after `step` as a hash tree: the tree's root, and the beginning of each tensor's hash, in hex."""

    step: int
    root: str
    tensors: str


def digest_in(row: Mapping[str, Any]) -> Digest | None:
    """Return the digest in a row of metrics.jsonl, if it has one."""
    return typed.convert(Digest, row.get("digest"))


def first_link(step: int) -> str:
    """Return the link in front of a chain that begins after `step`."""
    return _sha256("ddpgen", step)


def link(before: str, step: int, loss: Any, digest: Digest | None) -> str:
    """Return the link of a step. `loss` and `digest`: as in its row."""
    return _sha256(
        before, step, json.dumps(as_json_value(loss)), *(vars(digest).values() if digest else ())
    )


def receipt(last: str, step: int, digest: Digest | None) -> str:
    """Return the end of a chain with the last link `last`, of `step`. `digest`: as in the row of the end."""
    return _sha256(last, step, "end", *(vars(digest).values() if digest else ()))


def _sha256(*words: Any) -> str:
    return hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()
