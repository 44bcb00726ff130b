"""Two planted secrets, one in the environment and one in a file: where they get to, and where they must not be.

The values differ from run to run, so that no other test on this machine has them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MARK = f"planted-{secrets.token_hex(8)}"
IN_ENVIRONMENT = {"HF_TOKEN": f"{_MARK}-1"}
IN_FILE = f"{_MARK}-2"
_SAMPLE_S = 0.1
_MOST_BYTES = 1 << 21


def field(file: object) -> list[Any]:
    """`secrets` of a spec."""
    return ["HF_TOKEN", {"WANDB_API_KEY": f"file:{file}"}]


def plant(file: Path, owner: int = 0) -> None:
    """Write the file with the mode and the owner that it has to have."""
    file.write_text(f"{IN_FILE}\n")
    file.chmod(0o600)
    os.chown(file, owner, owner)


@contextlib.contextmanager
def in_no_argument(foreign: str = "") -> Iterator[None]:
    """Look at the arguments of all processes of this machine, over and over, until the end of the context.

    `foreign`: a word by which the arguments of another tool's processes are told, which are not ours to keep clean.
    """
    found: set[bytes] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_SAMPLE_S):
            found.update(words for words in _of_all("cmdline") if _MARK.encode() in words)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
    assert not [each for each in found if not foreign or foreign.encode() not in each]


def workers() -> int:
    """The number of workers that have both values now."""
    wanted = [f"\0HF_TOKEN={_MARK}-1\0", f"\0WANDB_API_KEY={_MARK}-2\0", "\0LOCAL_RANK="]
    return sum(all(word.encode() in b"\0" + each for word in wanted) for each in _of_all("environ"))


def in_files(*places: Path) -> list[Path]:
    """The files below these places that hold one of the values, the planted file itself among them."""
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if _MARK.encode() in path.read_bytes()]


def _of_all(name: str) -> Iterator[bytes]:
    for process in filter(str.isdigit, os.listdir("/proc")):
        # By the system calls alone: a look at all processes is made many times a second.
        with contextlib.suppress(OSError):
            descriptor = os.open(f"/proc/{process}/{name}", os.O_RDONLY)
            try:
                yield os.read(descriptor, _MOST_BYTES)
            finally:
                os.close(descriptor)
