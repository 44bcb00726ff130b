"""Which data a run has read: the size, time and sha256 of its files.

Owns what is hashed of a file. Needs no torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from train.files import open_file

_WHOLE_BYTES = 256 << 20
_ALL_BYTES = 4 << 30
_END_BYTES = 1 << 20
_READ_BYTES = 1 << 22


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
