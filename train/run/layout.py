"""The names of checkpoints, of a host's own directory and of the stop file. Other files are named in their modules.

Owns how a step becomes a directory name and back. Needs no torch, so that code that runs before torch is imported can
use it too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from train.base import typed
from train.base.files import read_file

MARKER = "checkpoint.json"
MOST_MARKER_BYTES = 1 << 26
BEST = "best.json"  # names the checkpoint of the best evaluation, which retention leaves alone
_NAME = re.compile(r"step-(\d{9,})")


@dataclass(frozen=True)
class _Best:
    step: int


def step_directory(directory: Path, step: int) -> Path:
    """The directory of the checkpoint of `step`."""
    return directory / f"step-{step:09d}"


def node_directory(directory: Path, node: str) -> Path:
    """The directory in which the host called `node` keeps its own lock and status."""
    return directory / "nodes" / node


def stop_file(holder_directory: Path) -> Path:
    """The stop file that ends the holder of `holder_directory`, which is a checkpoint directory or a host's part of one."""
    directory = (
        holder_directory.parent.parent
        if holder_directory.parent.name == "nodes"
        else holder_directory
    )
    return directory / "stop"


def steps_on_disk(directory: Path) -> list[int]:
    """The steps of the checkpoints, ascending. A directory with a marker counts, whatever the marker says."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = (match for match in map(_NAME.fullmatch, names) if match)
    return sorted(int(match[1]) for match in found if _is_there(directory / match[0] / MARKER))


def best_step(directory: Path) -> int | None:
    """The step that best.json names; None if the file is missing or invalid."""
    try:
        return parse_best(read_file(directory / BEST))
    except OSError:
        return None


def parse_best(content: bytes) -> int | None:
    """The step that this content of best.json names; None if it is invalid."""
    best = typed.parse(_Best, content)
    return best.step if best is not None else None


def _is_there(path: Path) -> bool:
    """True if the file exists, or cannot be looked at: then its reader reports the error."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
