"""The kinds of stores: a directory (a mounted bucket, another disk), or a URL.

Owns the few operations that a store needs, and the messages of their errors. Knows nothing of checkpoints.

Writes only whole objects, from their start to their end. Uses no append, no random write, no rename, no link and no
lock, and a directory need exist only while something is in it. On some mounts close() does the upload, so its errors
count, and the size is checked afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

# fsspec's file systems that can list by a prefix without walking through everything else.
_LISTS_BY_PREFIX = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")
_S3: dict[str, Any] = {
    # Without these, each try on a silent network would wait for minutes.
    "connect_timeout": 10,
    "read_timeout": 60,
    # Some servers give a wrong checksum for an object that was uploaded in parts; the sha256 in the marker counts.
    "response_checksum_validation": "when_required",
}


class StoreError(OSError):
    """A store that cannot be used. The message names the cause and the remedy."""


class Store(Protocol):
    """Named objects. Names are relative, with `/` between their parts. All methods raise OSError, and
    FileNotFoundError for an object that is not there."""

    name: str

    def list(self, prefix: str) -> dict[str, int]:
        """Return the names that begin with `prefix`, at most two parts deep, each with its size in bytes."""

    def read(self, name: str) -> bytes:
        """Return a small object's content."""

    def write(self, name: str, content: bytes) -> None:
        """Write a small object, or replace it."""

    def put(self, name: str, source: Path) -> None:
        """Upload a file; on return it is in the store and has the right size."""

    def get(self, name: str, target: Path) -> None:
        """Download an object into the file `target`."""

    def delete(self, name: str) -> None:
        """Delete an object; no error if it is gone already."""


def open_store(url: str) -> Store:
    """Open the store at `url`, a path or a URL such as s3://bucket/prefix. Raises StoreError."""
    scheme, separator, _ = url.partition("://")
    if separator:
        return UrlStore(url, scheme)
    path = Path(url).expanduser().absolute()
    parent = path.parent
    if not parent.is_dir() and not any(_is_mount(above) for above in path.parents):
        # Do not make the directory, because everything would lie on this machine's own disk, and be lost with it.
        raise StoreError(f"there is no directory {parent}; is the bucket mounted there?")
    return DirectoryStore(path)


def _is_mount(path: Path) -> bool:
    return str(path) != path.anchor and os.path.ismount(path)


class DirectoryStore:
    """A store in a directory, usually of a mounted bucket."""

    def __init__(self, root: Path) -> None:
        self._root, self.name = root, str(root)
        self._mount = _mount_of(root)

    def _check_mounted(self) -> None:
        """Raise StoreError if the mount is gone, because the directory is then on this machine's own disk."""
        if self._mount is not None and not os.path.ismount(self._mount):
            raise StoreError(f"the mount at {self._mount} is gone; mount the bucket again")

    def list(self, prefix: str) -> dict[str, int]:
        self._check_mounted()
        return {
            name: size for name, size in _walk(self._root, "", prefix) if name.startswith(prefix)
        }

    def read(self, name: str) -> bytes:
        self._check_mounted()
        return (self._root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        self._write(name, len(content), lambda path: path.write_bytes(content))

    def put(self, name: str, source: Path) -> None:
        size = source.stat().st_size
        self._write(name, size, lambda path: shutil.copyfile(source, path))

    def get(self, name: str, target: Path) -> None:
        self._check_mounted()
        shutil.copyfile(self._root / name, target)

    def delete(self, name: str) -> None:
        self._check_mounted()
        path = self._root / name
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._tidy(path.parent)

    def _tidy(self, directory: Path) -> None:
        """Delete a directory that is empty now: a disk keeps it, a bucket drops it with the last object in it."""
        if directory != self._root:
            with contextlib.suppress(OSError):
                directory.rmdir()

    def _write(self, name: str, size: int, fill: Callable[[Path], object]) -> None:
        self._check_mounted()
        path = self._root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fill(path)
            _sync(path)
            there = path.stat().st_size
            if there != size:
                raise StoreError(f"{path} has {there} bytes after {size} were written")
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            self._tidy(path.parent)
            raise


def _sync(path: Path) -> None:
    with contextlib.suppress(OSError):  # some mounts have no fsync; there close() uploads
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _mount_of(root: Path) -> Path | None:
    """Return the mount point at or above `root`, other than the machine's `/`; None if there is no other."""
    resolved = root.resolve()
    return next((place for place in (resolved, *resolved.parents) if _is_mount(place)), None)


def _walk(root: Path, above: str, prefix: str) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(root / above))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = above + entry.name
        with contextlib.suppress(FileNotFoundError):  # deleted since scandir
            if not entry.is_dir():
                yield name, entry.stat().st_size
            elif not above and (f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/")):
                yield from _walk(root, f"{name}/", prefix)


class UrlStore:
    """A store that fsspec reaches: s3://, gs://, az:// and others, each through a package of its own."""

    def __init__(self, url: str, scheme: str) -> None:
        self.name = url.rstrip("/")
        try:
            import fsspec  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise StoreError(
                f"{url} needs fsspec, which is not installed; pip install {_package(scheme)}"
            ) from None
        options: dict[str, Any] = {}
        if scheme in ("s3", "s3a") and "config_kwargs" not in fsspec.config.conf.get("s3", {}):
            options["config_kwargs"] = _s3_options()
        try:
            self._fs = fsspec.filesystem(
                scheme, skip_instance_cache=True, use_listings_cache=False, **options
            )
        except ImportError as error:
            raise StoreError(
                f"{scheme}:// needs a package that is not here ({error}); pip install {_package(scheme)}"
            ) from None
        except ValueError:
            raise StoreError(
                f"{scheme}:// is not a store that fsspec knows; for R2 and others that speak "
                "S3, use s3:// with AWS_ENDPOINT_URL set, or mount the bucket and give its directory"
            ) from None
        self._root = str(self._fs._strip_protocol(url)).rstrip("/")
        self._by_prefix = scheme in _LISTS_BY_PREFIX

    def list(self, prefix: str) -> dict[str, int]:
        with _translated():
            self._fs.invalidate_cache()
            by = {"prefix": prefix} if self._by_prefix else {}
            try:
                found = self._fs.find(self._root, detail=True, **by)
            except FileNotFoundError:
                return {}  # nothing there yet; if the bucket is missing, the first write says so
        names = {self._relative(path): int(info["size"] or 0) for path, info in found.items()}
        return {name: size for name, size in names.items() if name and name.startswith(prefix)}

    def read(self, name: str) -> bytes:
        with _translated():
            self._fs.invalidate_cache()
            return bytes(self._fs.cat_file(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        with _translated():
            self._fs.pipe_file(self._path(name), content)
        self._check(name, len(content))

    def put(self, name: str, source: Path) -> None:
        with _translated():
            self._fs.put_file(str(source), self._path(name))
        self._check(name, source.stat().st_size)

    def get(self, name: str, target: Path) -> None:
        with _translated():
            self._fs.get_file(self._path(name), str(target))

    def delete(self, name: str) -> None:
        with _translated(), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _relative(self, path: str) -> str:
        root = f"{self._root}/"
        return path[len(root) :] if path.startswith(root) else ""

    def _check(self, name: str, size: int) -> None:
        with _translated():
            self._fs.invalidate_cache()
            there = int(self._fs.info(self._path(name))["size"] or 0)
        if there != size:
            self.delete(name)
            raise StoreError(f"{self.name}/{name} has {there} bytes after {size} were written")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Within this context, turn the exceptions of the packages below fsspec into OSErrors."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - each package has its own
        said = " ".join(str(error).split())[:300]
        name = type(error).__name__
        if "Credential" in name or "Credential" in said:
            raise StoreError(
                f"no credentials ({said}); give them by the environment or the cloud's own "
                "configuration file"
            ) from None
        raise StoreError(f"{name}: {said}") from None


def _s3_options() -> dict[str, Any]:
    try:
        from botocore.config import Config  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return {}  # s3fs is missing, and the caller's next step says so
    return {name: value for name, value in _S3.items() if name in Config.OPTION_DEFAULTS}


def _package(scheme: str) -> str:
    packages = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
    packages |= dict.fromkeys(("abfs", "abfss", "az", "adl"), "adlfs")
    return packages.get(scheme, "fsspec")


_REASONS = {
    errno.ENOSPC: "no space left there; make room or raise the quota",
    errno.EDQUOT: "the quota is used up; make room or raise it",
    errno.EROFS: "it is read-only; mount it for writing",
    errno.EACCES: "no permission; whoever runs this has to list, read, write and delete there",
    errno.EPERM: "no permission; whoever runs this has to list, read, write and delete there",
    errno.ENOTCONN: "the mount is gone; mount the bucket again",
    errno.ESTALE: "the mount is gone; mount the bucket again",
    errno.EIO: "the mount answers with an error; its own log says which",
    errno.ENOENT: "it is not there; create the bucket, or correct its name",
}


def describe_error(error: OSError) -> str:
    """Return one line: the fault of the store, and the remedy if it is known."""
    if isinstance(error, StoreError):
        return str(error)
    message = " ".join(str(error.strerror or error).split())
    number = error.errno
    if number is None:  # from fsspec, whose exceptions carry only words
        kinds = {PermissionError: errno.EACCES, FileNotFoundError: errno.ENOENT}
        number = kinds.get(type(error))
        reason = _REASONS.get(number or 0)
        return f"{reason} ({message})" if reason else message
    return _REASONS.get(number, message)


def is_on_disk_of(store: Store, directory: Path) -> bool:
    """Return whether the store is just another directory on the disk of `directory`."""
    if not isinstance(store, DirectoryStore):
        return False
    with contextlib.suppress(OSError):
        path = Path(store.name)
        existing = path if path.exists() else path.parent
        return existing.stat().st_dev == directory.stat().st_dev
    return False
