"""The run's bundle as one archive, kept next to the checkpoints so that the run can be repeated.

Owns the archive's form and its name, `bundles/<12 hex of bundle.json's sha256>.tar.gz`. Needs no torch.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any

from train.base.errors import TrainError
from train.base.files import open_file, replace_file

# The limit for an unpacked archive: a small archive may unpack to any size, and its files are held in memory.
_MOST_BYTES = 1 << 30
_LARGEST = _MOST_BYTES - (64 << 20)  # the rest is for the archive's headers

LISTING = "bundle.json"
ARCHIVES = "bundles"
PACKAGE_ROOT = Path(__file__).parents[2]
"""The bundle that this module is a part of, if it is part of one."""


def archive_path(directory: Path, name: str) -> Path:
    """The path at which a checkpoint directory keeps the bundle `name`."""
    return directory / ARCHIVES / f"{name}.tar.gz"


def keep_archive(directory: Path, bundle: Path) -> str:
    """Keep the bundle in `directory`. Returns its name, or "" without a bundle. Raises OSError, also for a bundle that
    is too large to be read back.

    If files were edited since the render, the archive has them as they are now, and gets another name.
    """
    try:
        content = (bundle / LISTING).read_bytes()
        listing = json.loads(content)
        paths = sorted(listing["files"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""
    if sum(os.path.getsize(bundle / path) for path in paths if (bundle / path).exists()) > _LARGEST:
        raise OSError(errno.EFBIG, f"the bundle has more than {_LARGEST >> 20} MiB", str(bundle))
    files = {path: found for path in paths if (found := _read_file(bundle / path)) is not None}
    sums = {path: hashlib.sha256(file).hexdigest() for path, (file, _) in files.items()}
    if sums != listing["files"]:
        content = _text({**listing, "files": sums})
    name = hashlib.sha256(content).hexdigest()[:12]
    place = archive_path(directory, name)
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        replace_file(place, _packed({LISTING: (content, False), **files}))
    return name


def _text(listing: dict[str, Any]) -> bytes:
    """bundle.json in the form in which ddpgen writes it."""
    return f"{json.dumps(listing, indent=2, sort_keys=True, ensure_ascii=False)}\n".encode()


def _read_file(path: Path) -> tuple[bytes, bool] | None:
    """A file's content, and true if it may be executed; None if the file was removed."""
    try:
        with open_file(path) as file:
            return file.read(), bool(path.stat().st_mode & 0o100)
    except FileNotFoundError:
        return None


def _packed(files: dict[str, tuple[bytes, bool]]) -> bytes:
    """The archive, with the same bytes for the same files on every host."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(files):
            content, executable = files[path]
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755 if executable else 0o644
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def name_of(unpacked: Path) -> str:
    """The name of an unpacked bundle; "" for a directory that is no bundle."""
    try:
        return hashlib.sha256((unpacked / LISTING).read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def unpack(directory: Path, name: str, target: Path) -> None:
    """Write the bundle `name` that `directory` keeps into `target`, which is empty or does not exist.

    Raises TrainError if `directory` has no such bundle or it is damaged, and OSError if `target` cannot be written.
    """
    for path, (content, executable) in contents(directory, name).items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(content)
        (target / path).chmod(0o755 if executable else 0o644)


def contents(directory: Path, name: str) -> dict[str, tuple[bytes, bool]]:
    """The files of the bundle `name` that `directory` keeps: content, and true if it may be executed.

    Raises TrainError if `directory` has no such bundle or it is damaged.
    """
    place = archive_path(directory, name)
    try:
        files = _unpacked(place)
    except FileNotFoundError:
        raise TrainError(
            f"{place} is not there: the run did not come from a bundle, or the archive was left behind "
            "when the directory was copied; copy it as well"
        ) from None
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        zlib.error,
        tarfile.TarError,
    ) as error:
        raise TrainError(
            f"{place} is damaged ({error}); get it from where it was made once more"
        ) from None
    if hashlib.sha256(files[LISTING][0]).hexdigest()[:12] != name:
        raise TrainError(f"{place} holds another bundle than its name says; get it once more")
    return files


def _unpacked(archive: Path) -> dict[str, tuple[bytes, bool]]:
    """Exactly the files that the archive's bundle.json lists, each one verified. Raises ValueError and others."""
    files = {}
    with open_file(archive) as packed, gzip.GzipFile(fileobj=packed) as unzipped:
        bounded: Any = _Bounded(unzipped)
        with tarfile.open(fileobj=bounded, mode="r|") as tar:
            for info in tar:
                _check_size(info.size)
                if (file := tar.extractfile(info) if info.isreg() else None) is None:
                    raise ValueError(f"{info.name} is no ordinary file")
                files[info.name] = file.read(), bool(info.mode & 0o100)
    sums = json.loads(files[LISTING][0])["files"]
    if sums.keys() | {LISTING} != files.keys():
        raise ValueError("it does not hold the files that it lists")
    for path, expected in sums.items():
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path} leads out of it")
        if hashlib.sha256(files[path][0]).hexdigest() != expected:
            raise ValueError(f"{path} does not match its sha256")
    return files


class _Bounded:
    """The content of an archive, up to `_MOST_BYTES`."""

    def __init__(self, unzipped: gzip.GzipFile) -> None:
        self._unzipped, self._size = unzipped, 0

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes. Raises ValueError beyond the limit."""
        content = self._unzipped.read(size)
        self._size += len(content)
        _check_size(self._size)
        return content


def _check_size(size: int) -> None:
    if size > _MOST_BYTES:
        raise ValueError(f"it unpacks to more than {_MOST_BYTES >> 20} MiB")
