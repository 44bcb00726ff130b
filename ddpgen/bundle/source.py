"""The git commit of the user's code, and the files that differ from it.

Owns the questions to git. Without a repository, a commit or git, there is no answer, and that is no error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# A repository's own configuration must not start programs, and git must not take a path for a pattern.
_GIT = ("git", "--no-optional-locks", "--literal-pathspecs", "-c", "core.fsmonitor=false")
_TIMEOUT_S = 30.0


def describe(home: Path, code: Sequence[str], files: Mapping[str, Path]) -> dict[str, Any] | None:
    """Return `{"commit", "branch", "changed"}` of the repository that holds the spec's directory `home`; or None.

    `code`: the spec's field. `files`: the files of `code` by their names in the bundle. `changed`: the names of files
    that are not in the commit, or differ from it.
    """
    home = home.resolve()
    if not any((directory / ".git").exists() for directory in (home, *home.parents)):
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


def _git(directory: Path, *words: str) -> Iterator[str]:
    """Return git's output, cut at each NUL. Raise OSError, ValueError."""
    # Imported only here, because renders outside of repositories do not need it.
    import subprocess

    from ddpgen.driver import trace

    try:
        command = [*_GIT, *words]
        ended = trace.begin(command, directory)
        done = subprocess.run(
            command, cwd=directory, capture_output=True, timeout=_TIMEOUT_S, check=True
        )
    except subprocess.SubprocessError as error:
        raise ValueError(str(error)) from None
    ended(done.returncode)
    return map(os.fsdecode, filter(None, done.stdout.split(b"\0")))


def _parsed(status: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """Return the facts about HEAD in git's status, and the tracked paths that differ from HEAD."""
    head: dict[str, str] = {}
    changed: set[str] = set()
    for record in status:
        kind, _, rest = record.partition(" ")
        if kind == "#":
            name, _, head[name] = rest.partition(" ")
        else:  # the path comes after 7 fields, and after 9 if a merge has left a conflict
            changed.add(rest.split(" ", 7 if kind == "1" else 9)[-1])
    return head, changed
