"""The version lock NAME.lock of a spec NAME.yaml: checks that it is there, made by `ddpgen lock` and not outdated.

Owns the lines at the head of a lock. The rest of a lock is a requirements file with hashes, and is empty if the head
names a container. ddpgen/reproduce/resolve.py makes locks.
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


def path(spec: str) -> Path:
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
    fields, lock = ("environment.packages", "environment"), path(spec)
    lock_advice = f"write it with {shlex.join(['ddpgen', 'lock', spec])}"
    try:
        text = _text(lock)
    except FileNotFoundError:
        yield Conflict(fields, f"is locked, and there is no {lock}", lock_advice)
        return
    except (OSError, UnicodeDecodeError) as error:
        yield Conflict(fields, f"{lock} cannot be read: {error}", lock_advice)
        return
    head_facts = facts(text)
    if head_facts is None:
        yield Conflict(
            fields, f"{lock} is not what `ddpgen lock` writes", f"move it away; {lock_advice}"
        )
        return
    if "container" in head_facts:
        problem = (
            f"{lock} names a container by its digest, which only apptainer on slurm, and sky, start"
        )
        yield Conflict(
            fields, problem, f"write environment: installed for this tier, or {lock_advice}"
        )
    origin, _, digest = head_facts.get("from", "").partition(" sha256:")
    source_file = lock.parent / origin
    try:
        current = source(source_file, lock.parent) if digest and source_file.is_file() else None
    except OSError as error:
        problem = f"{source_file}, from which {lock} is made, cannot be read: {error.strerror}"
        yield Conflict(fields, problem, f"correct that, or move it away if {lock} holds without it")
        return
    if current is not None and current != head_facts["from"]:
        problem = f"{lock} is outdated: {source_file} has changed since"
        yield Conflict(fields, problem, f"{lock_advice} -r {shlex.quote(str(source_file))}")
    elif "container" not in head_facts and not re.search(r"^torch==", text, re.MULTILINE):
        problem = f"{lock} has no torch, and the job needs it"
        yield Conflict(
            fields, problem, f"add torch to what it is made from; {lock_advice}", fatal=False
        )


def container(job: JobSpec, spec: str) -> str:
    """Return the container image in the job's lock, or ""."""
    if not job.locked:
        return ""
    try:
        head_facts = facts(_text(path(spec))) or {}
    except (OSError, UnicodeDecodeError):  # check() reports it
        return ""
    return head_facts.get("container", "")


def _text(lock: Path) -> str:
    """Return the text of a lock. Raise OSError, UnicodeDecodeError."""
    if lock.exists() and not lock.is_file():  # opening a pipe would wait for ever
        raise OSError("it is no file")
    return lock.read_text("utf-8")
