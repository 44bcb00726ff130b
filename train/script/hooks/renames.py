"""The renames of a script. Many scripts save under a temporary name, and then rename the file.

Owns an audit hook of Python, which sees os.rename, os.replace, os.link, pathlib and shutil.move alike. An audit
hook stays to the end of the process.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from train.script.hooks.progress import BeginsAnewError, Progress

_EVENTS = ("os.rename", "os.link")  # os.replace raises os.rename


def follow(progress: Progress) -> None:
    """Tell `progress` of each rename and each hard link just before it happens."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        source, target, *directories = arguments
        if any(directory != -1 for directory in directories):
            return  # the names are relative to an open directory
        try:
            progress.renamed(os.fsdecode(source), os.fsdecode(target))
        except BeginsAnewError:
            raise
        except Exception:  # noqa: BLE001 - another thread may save meanwhile; the rename is the script's own
            return

    sys.addaudithook(hook)
