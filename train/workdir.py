"""The working directory of a user's script: a tree of directories whose files are links into the bundle's code.

So a script finds what lies beside it, and what it writes does not get into the bundle.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def make(code: Path, workdir: Path) -> None:
    """Have `workdir` show what is in `code`, in directories of its own. Raises OSError.

    Several processes may do it at once. What the script has put in the place of a file stays.
    """
    for here, directories, files in os.walk(code):
        directories[:] = [name for name in directories if name != "__pycache__"]
        inside = Path(here).relative_to(code)
        there = workdir / inside
        there.mkdir(parents=True, exist_ok=True)
        for name in files:
            _link(there / name, Path(here, name))


def _link(place: Path, target: Path) -> None:
    with contextlib.suppress(OSError):  # no link, or another process has just removed it
        if os.readlink(place) == str(target):
            return
    if os.path.lexists(place) and not place.is_symlink():
        return
    draft = place.with_name(f".{secrets.token_hex(8)}")  # hosts may share the directory
    draft.symlink_to(target)
    os.replace(draft, place)
