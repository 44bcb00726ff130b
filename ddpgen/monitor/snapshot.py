"""A copy of a bundle that rendering again does not touch: what is submitted now may start tomorrow.

Owns build/.submitted/: one directory for each content, named by it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from ddpgen.bundle import write
from ddpgen.errors import FileTroubleError

PLACE = ".submitted"
_DIGITS = 12


class Copy(NamedTuple):
    """Where it is; `new`: its like was not there before, so nothing that was submitted needs it."""

    path: Path
    new: bool


def take(directory: Path) -> Copy:
    """Copy the bundle, if its like is not there yet. Raises the bundle's errors."""
    directory = directory.absolute()
    try:
        with write.alone(directory):
            raw = (directory / write.LISTING).read_bytes()
            listing: dict[str, Any] = json.loads(raw)
            names = listing.pop("files")
            digest = hashlib.sha256(raw).hexdigest()[:_DIGITS]
            copy = directory.parent / PLACE / f"{directory.name}-{digest}"
            items = [write.Item(name, file=directory / name) for name in names]
            new = not copy.exists()
            write.write(copy, items, listing, force=True)
    except OSError as error:
        raise FileTroubleError(f"{directory}: {error.strerror}; render again") from None
    return Copy(copy, new)


def give_up(copy: Copy) -> None:
    """Nothing was submitted: leave no copy behind that was not there before."""
    if copy.new:
        shutil.rmtree(copy.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds others
            copy.path.parent.rmdir()
