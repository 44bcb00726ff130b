"""The version lock NAME.lock of a spec NAME.yaml: checks that it is there, whole and not outdated.

Owns the lines at its head. The rest is a requirements file with hashes; it is empty if the head names a
container. ddpgen/reproduce/resolve.py makes locks.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

_FIELD = re.compile(r"^# (from|for|container): (.+)$", re.MULTILINE)


def place(spec: str) -> Path:
    """Return the path of this spec's lock."""
    return Path(spec).with_suffix(".lock")


def head(spec: str, facts: Mapping[str, str]) -> str:
    """Return the lines at the head of this spec's lock."""
    first = f"# Lock of {Path(spec).name}, written by `ddpgen lock`; do not edit."
    return "\n".join([first, *(f"# {name}: {value}" for name, value in facts.items()), ""])


def facts(text: str) -> dict[str, str] | None:
    """Return the facts at the head of a lock; None if ddpgen did not write it."""
    first, _, rest = text.partition("\n")
    return dict(_FIELD.findall(rest)) if re.match("# Lock of .*`ddpgen lock`", first) else None


def source(path: Path, home: Path) -> str:
    """Return the fact `from`: the file that a lock is made from, with its hash. Raise OSError."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{Path(os.path.relpath(path, home)).as_posix()} sha256:{digest}"


def check(job: JobSpec, spec: str) -> Iterator[Conflict]:
    """Yield the faults of the lock, if the job runs from one."""
    if not job.locked:
        return
    about, lock = ("environment.packages", "environment"), place(spec)
    again = f"write it with {shlex.join(['ddpgen', 'lock', spec])}"
    try:
        text = lock.read_text("utf-8")
    except FileNotFoundError:
        yield Conflict(about, f"is locked, and there is no {lock}", again)
        return
    except (OSError, UnicodeDecodeError) as error:
        yield Conflict(about, f"{lock} cannot be read: {error}", again)
        return
    said = facts(text)
    if said is None:
        yield Conflict(about, f"{lock} is not what `ddpgen lock` writes", f"move it away; {again}")
        return
    if "container" in said:
        what = (
            f"{lock} names a container by its digest, which only apptainer on slurm, and sky, start"
        )
        yield Conflict(about, what, f"write environment: installed for this tier, or {again}")
    origin, _, digest = said.get("from", "").partition(" sha256:")
    made_from = lock.parent / origin
    try:
        current = source(made_from, lock.parent) if digest and made_from.is_file() else None
    except OSError as error:
        what = f"{made_from}, from which {lock} is made, cannot be read: {error.strerror}"
        yield Conflict(about, what, f"correct that, or move it away if {lock} holds without it")
        return
    if current is not None and current != said["from"]:
        what = f"{lock} is outdated: {made_from} has changed since"
        yield Conflict(about, what, f"{again} -r {shlex.quote(str(made_from))}")
    elif "container" not in said and not re.search(r"^torch==", text, re.MULTILINE):
        what = f"{lock} has no torch, and the job needs it"
        yield Conflict(about, what, f"add torch to what it is made from; {again}", fatal=False)


def container(job: JobSpec, spec: str) -> str:
    """Return the container image in the job's lock, or ""."""
    if not job.locked:
        return ""
    try:
        head_facts = facts(place(spec).read_text("utf-8")) or {}
    except (OSError, UnicodeDecodeError):  # check() reports it
        return ""
    return head_facts.get("container", "")
