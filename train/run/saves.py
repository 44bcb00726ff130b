"""The saves of a user's script on the disk of one host, for the comparison of the hosts. Needs no torch.

Owns the search for the newest save, the digest of a save, and the remedy for a host that lacks one.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from train.base import typed
from train.base.files import read_file

_LARGEST_RECORD = 64 << 20
# The bytes at a file's end that a digest covers. A file of torch.save has the checksums of its whole content there.
_END = 64 << 10


class Saved(NamedTuple):
    """A save on a host's disk. `path`: "" if the host has no save. `step`: 0 if no record tells it."""

    path: str = ""
    step: int = 0
    digest: str = ""

    @property
    def words(self) -> str:
        """The save as text for people."""
        if not self.path:
            return "none"
        return f"{self.path} of step {self.step}" if self.step else self.path

    def is_like(self, other: Saved) -> bool:
        """True if a start from either save goes on at the same step."""
        if not self.path or not other.path:
            return self.path == other.path
        return self.digest == other.digest or 0 < self.step == other.step

    @classmethod
    def parse(cls, text: str) -> Saved | None:
        """Read a save that another host has written by json.dumps(); None for anything else."""
        return typed.parse(cls, text)


def patterns(program: Sequence[str], bundle: Path, directory: Path) -> tuple[str, ...]:
    """The absolute patterns of train.resume.exists, as `train script` will look for them.

    `program`: the command's words, which begin with `script`. `bundle`: the directory with code/. `directory`: the
    checkpoint directory.
    """
    options = list(itertools.takewhile(lambda word: word.startswith("--"), program[1:]))
    values = [option.partition("=") for option in options]
    given = [value for name, _, value in values if name == "--resume-exists"]
    workdir = next((value for name, _, value in values if name == "--workdir"), "")
    home = bundle / Path(workdir).expanduser() if workdir else directory / "work"
    file = Path(*program[1 + len(options) :][:1])
    if "--no-python" not in options and file.parts[:1] == ("code",):
        home /= file.relative_to("code").parent  # a file of the job runs in its own directory
    return tuple(os.path.join(home, os.path.expanduser(pattern)) for pattern in given)


def newest(patterns: Iterable[str], directory: Path) -> Saved:
    """The newest save that the patterns match. `directory`: the checkpoint directory, which has the record."""
    path = newest_of([path for pattern in patterns for path in glob.glob(pattern)])
    if not path:
        return Saved()
    return Saved(path, _recorded_step(os.path.realpath(path), directory), digest(path))


def newest_of(paths: Sequence[str]) -> str:
    """The newest of these saves; "" without one.

    If the names differ in only one number, such as a step, the newest save has the highest number. If they differ in
    more, it is the save that was written last, because one of the numbers may be a loss.
    """
    numbers = [[int(digits) for digits in re.findall(r"[0-9]+", path)] for path in paths]
    if len({re.sub(r"[0-9]+", "0", path) for path in paths}) == 1:
        differing = [values for values in zip(*numbers) if len(set(values)) > 1]
        if len(differing) == 1:
            return max(zip(differing[0], paths))[1]
    return max(sorted(paths), key=_written_at, default="")


def _written_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:  # removed meanwhile
        return 0


def _recorded_step(path: str, directory: Path) -> int:
    """The last step at which a rank of this host has recorded that it wrote `path`; 0 if there is no such record."""
    steps = [0]
    for record in (directory / "script").glob("saves-*.jsonl"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            for line in read_file(record, _LARGEST_RECORD).splitlines():
                row = json.loads(line)
                steps += [int(row["step"])] if row["path"] == path else []
    return max(steps)


def digest(path: str) -> str:
    """A digest that is equal for copies of a file or a directory; "" if it cannot be read.

    Reads only a file's end. A directory's digest covers the names and sizes of its files.
    """
    result = hashlib.sha256()
    try:
        if os.path.isdir(path):
            for folder, folders, names in os.walk(path):
                folders.sort()
                for name in sorted(names):
                    file = os.path.join(folder, name)
                    result.update(
                        f"{os.path.relpath(file, path)} {os.stat(file).st_size}\n".encode()
                    )
        else:
            with open(path, "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                opened.seek(max(0, size - _END))
                result.update(f"{size} ".encode() + opened.read(_END))
    except OSError:
        return ""
    return result.hexdigest()[:16]


def remedy(path: str, has: str, lacks: str) -> str:
    """The remedy for the host `lacks`, which needs the save at `path` of the host `has`."""
    words = ["rsync", "-a", f"{has}:{path}", os.path.dirname(path) + "/"]
    copy = f"copy it: on {lacks}, `{shlex.join(words)}`" if path else f"copy it to {lacks}"
    return (
        f"{copy}; or set checkpoint.dir (and train.workdir, if the spec "
        "has it) to a directory that the hosts share"
    )
