"""A copy of a bundle that a later render does not touch, because a job submitted now may start tomorrow.

Owns build/.submitted/: one directory for each content, named by the content's hash.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from ddpgen.bundle import write
from ddpgen.errors import FileTroubleError

_log = logging.getLogger(__name__)
DIRECTORY = ".submitted"
_DIGITS = 12


def path(directory: Path, listing: bytes) -> Path:
    """Return the path of the copy of a bundle whose bundle.json holds `listing`."""
    digest = hashlib.sha256(listing).hexdigest()[:_DIGITS]
    return directory.parent / DIRECTORY / f"{directory.name}-{digest}"


def copy_bundle(directory: Path) -> Path:
    """Copy the bundle, unless an equal copy is there, and return the copy's path. Raise the bundle's errors."""
    directory = directory.absolute()
    try:
        with write.exclusive_lock(directory):
            raw = (directory / write.LISTING).read_bytes()
            listing: dict[str, Any] = json.loads(raw)
            items = [write.Item(name, file=directory / name) for name in listing.pop("files")]
            copy = path(directory, raw)
            made = write.write(copy, items, listing, force=True).changed
    except OSError as error:
        raise FileTroubleError(f"{directory}: {error.strerror}; render again") from None
    _log.debug(f"{'copied the bundle to' if made else 'the bundle has a copy already:'} {copy}")
    return copy
