"""The file `bad-nodes` of a job on this machine, next to the logs of its launches.

Reads and writes the file, whose form is in bad_nodes.py. The driver keeps it, because the hosts need not share a
directory.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from . import bad_nodes
from .bad_nodes import Fault


class FaultList:
    """The file at `path`. If the file cannot be read, it counts as empty. A failed write is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Fault]:
        with contextlib.suppress(OSError):
            return bad_nodes.read(self.path.read_text("utf-8", "replace").splitlines())
        return []

    def add(self, node: str, why: str) -> None:
        fault = Fault(node, time.strftime("%Y-%m-%dT%H:%M:%S"), why)
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = self.path.read_text("utf-8") if self.path.exists() else bad_nodes.HEADER
            part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            part.write_text(f"{text.rstrip()}\n{fault.line}\n", "utf-8")
            part.replace(self.path)
