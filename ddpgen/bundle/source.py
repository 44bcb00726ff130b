"""Which commit the user's code was at, and which of its files differ from that.

Owns what is asked of git. Where there is no repository, no commit or no git, there is nothing to say.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# A repository's own configuration must not start programs, nor a path be a pattern.
_GIT = ("git", "--no-optional-locks", "--literal-pathspecs", "-c", "core.fsmonitor=false")
_MOST_S = 30.0


def describe(home: Path, code: Sequence[str], files: Mapping[str, Path]) -> dict[str, Any] | None:
    """`{"commit", "branch", "changed"}` of the repository that the spec's directory `home` lies in.

    `code`: the spec's; `files`: what that gathered. `changed`: the names of those that are not in the
    commit as they are.
    """
    home = home.resolve()
    if not any((place / ".git").exists() for place in (home, *home.parents)):
        return None
    with contextlib.suppress(OSError, ValueError):
        status = _git(home, "status", "--porcelain=v2", "--branch", "--no-renames", "-z", "-uno")
        head, changed = _parsed(status)
        if head["branch.oid"].startswith("("):  # there is no commit yet
            return None
        top = Path(next(_git(home, "rev-parse", "--show-toplevel")).removesuffix("\n"))
        tracked = _git(home, "ls-files", "--full-name", "-z", "--", *code) if code else ()
        clean = {top / name for name in set(tracked) - changed}
        return {
            "commit": head["branch.oid"],
            "branch": head["branch.head"].strip("()"),
            "changed": sorted(name for name, file in files.items() if file.resolve() not in clean),
        }
    return None


def _git(where: Path, *words: str) -> Iterator[str]:
    """What git says, cut at each NUL. Raises OSError, ValueError."""
    import subprocess  # here, as it would cost every render outside of repositories its import

    try:
        command = [*_GIT, *words]
        done = subprocess.run(command, cwd=where, capture_output=True, timeout=_MOST_S, check=True)
    except subprocess.SubprocessError as error:
        raise ValueError(str(error)) from None
    return map(os.fsdecode, filter(None, done.stdout.split(b"\0")))


def _parsed(status: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """The head of the repository, and the tracked paths that differ from it."""
    head: dict[str, str] = {}
    changed: set[str] = set()
    for record in status:
        kind, _, rest = record.partition(" ")
        if kind == "#":
            name, _, head[name] = rest.partition(" ")
        else:  # the path comes after 7 fields, and after 9 where a merge has left a conflict
            changed.add(rest.split(" ", 7 if kind == "1" else 9)[-1])
    return head, changed
