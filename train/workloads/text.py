"""Text as one tensor of bytes: a file, a folder, or the source of Python's standard library.

Owns the choice and the order of the files, so that equal folders give equal bytes on every machine. Knows nothing of
windows, tokens or models, and never decodes the bytes.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from train.base.errors import TrainError

SEPARATOR = b"\0"  # between two files: no text contains this byte, so a model can learn the border

# A file with a zero byte in its first SNIFFED bytes counts as binary, as for git and grep.
SNIFFED = 8192

# Folders that are no part of the library itself, or that differ on machines with the same Python version.
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


@dataclass(frozen=True)
class Text:
    """Text as bytes. `bytes`: uint8 [n]. `sha256`: the hash of the bytes. `origin`: their source, in words."""

    bytes: torch.Tensor
    sha256: str
    origin: str


def read_text(path: str | None, max_bytes: int) -> Text:
    """Read the file or folder `path`, or the standard library's source; at most `max_bytes`.

    A folder's files are joined in the order of their paths, without hidden and binary ones.
    Raises TrainError when there is nothing to read, or a file cannot be read.
    """
    if path is None:
        root = sysconfig.get_path("stdlib")
        files = sorted(_walk(root, _is_library_source, _is_library_folder))
        origin = "Python's standard library"
    else:
        root = os.path.expanduser(path)
        origin = repr(path)
        files = _files_of(root)
    content, count = _join(files, max_bytes)
    if not content:
        raise TrainError(
            f"no text found in {origin} ({os.path.abspath(root)!r}); "
            "name a file, or a folder with text files, in train.args.text"
        )
    return Text(
        bytes=torch.frombuffer(content, dtype=torch.uint8),
        sha256=hashlib.sha256(content).hexdigest(),
        origin=f"{origin}, {count} files" if count > 1 else origin,
    )


def _files_of(root: str) -> list[str]:
    if os.path.isdir(root):
        return sorted(_walk(root, _is_visible, _is_visible))
    if not os.path.exists(root):
        raise TrainError(
            f"train.args.text: {root!r} does not exist below {os.getcwd()!r}; a relative path "
            "is looked up in the job's code folder, so list the text under 'code' in the spec, "
            "or give its absolute path on the host"
        )
    if not os.path.isfile(root):
        raise TrainError(f"train.args.text: {root!r} is neither a file nor a folder")
    return [root]


def _walk(
    root: str, accepts_file: Callable[[str], bool], enters_folder: Callable[[str], bool]
) -> Iterator[str]:
    """Yield the regular files below `root`."""
    for folder, folders, names in os.walk(root, onerror=_raise_unreadable):
        folders[:] = [name for name in folders if enters_folder(name)]
        for name in filter(accepts_file, names):
            path = os.path.join(folder, name)
            if os.path.isfile(path):  # not a pipe: reading would hang
                yield path


def _raise_unreadable(error: OSError) -> None:
    raise _unreadable(error.filename, error)


def _unreadable(path: str, error: OSError) -> TrainError:
    # Raise an error, because leaving the file out could silently give two nodes different data.
    return TrainError(
        f"train.args.text: cannot read {path!r}: {error.strerror}; "
        "make it readable, or leave it out of the folder"
    )


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__"


def _is_library_source(name: str) -> bool:
    # _sysconfigdata… holds the paths of the machine that built Python.
    return name.endswith(".py") and not name.startswith("_sysconfigdata")


def _is_library_folder(name: str) -> bool:
    return (
        _is_visible(name)
        and name not in _NOT_THE_LIBRARY
        and not name.startswith("config-")  # built per machine, like _sysconfigdata
    )


def _join(files: list[str], max_bytes: int) -> tuple[bytearray, int]:
    content = bytearray()
    count = 0
    for path in files:
        room = max_bytes - len(content) - (len(SEPARATOR) if count else 0)
        if room <= 0:
            break
        try:
            with open(path, "rb") as file:
                piece = file.read(room)
        except OSError as error:
            raise _unreadable(path, error) from None
        if not piece or b"\0" in piece[:SNIFFED]:
            continue
        if count:
            content += SEPARATOR
        content += piece
        count += 1
    return content, count
