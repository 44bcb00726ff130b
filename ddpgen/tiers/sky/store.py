"""Read and write a job's part of a bucket from this machine, by fsspec, if that and credentials are installed.

Owns which objects are read, and the time limit on a network that does not answer. Nothing else in ddpgen
depends on fsspec.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ddpgen.driver.state import mapping
from ddpgen.tiers.sky.bucket import R2_ACCOUNT, STOP, Address

ANSWER_S = 40.0
SHORT_S = 15.0  # for an answer that we can do without
_Result = TypeVar("_Result")


class UnreachableError(Exception):
    """The bucket cannot be reached from here. The message has the reason and the remedy."""


class RefusedError(UnreachableError):
    """The cloud answered that the bucket does not exist, or that this user may not read it."""


def read_facts(address: Address) -> dict[str, str]:
    """Return the facts in the job's part of the bucket, in the form in which driver.state.read takes them.

    `owner-age` is the age of rank 0's time stamp in seconds. Raises UnreachableError.
    """
    return _with_timeout(address, _read_facts, ANSWER_S)


def refusal(address: Address) -> str:
    """Return the cloud's own reason for refusing the bucket; "" if the cloud takes it or cannot be reached."""
    try:
        _with_timeout(address, _names, SHORT_S)
    except RefusedError as error:
        return str(error)
    except UnreachableError:
        pass  # the machines will find out
    return ""


def ask_to_stop(address: Address, reason: str) -> None:
    """Ask the job to stop after its current step. Raise UnreachableError."""

    def write(files: Any, root: str) -> None:
        files.pipe_file(f"{root}/{STOP}", f"{reason}\n".encode())

    _with_timeout(address, write, ANSWER_S)


def _read_facts(files: Any, root: str) -> dict[str, str]:
    names = _names(files, root)
    if not names:
        return {"there": "no"}
    owner = mapping(_content(files, f"{root}/owner.json"))
    steps = [name for name in names if re.fullmatch(r"step-\d{9,}", name)]
    numbers = sorted((int(name.removeprefix("step-")) for name in steps), reverse=True)
    whole = (n for n in numbers if files.exists(f"{root}/step-{n:09}/checkpoint.json"))
    facts = {
        "there": "yes",
        "now": str(int(time.time())),
        "newest": str(next(whole, "")),
        "status": _content(files, f"{root}/status").partition("\n")[0],
        "progress": _content(files, f"{root}/progress.json").partition("\n")[0],
    }
    if isinstance(renewed := owner.get("time"), (int, float)):
        facts["owner-age"] = str(max(0, int(time.time() - renewed)))
    if STOP in names:
        facts["stop"] = "asked"
    return facts


def _names(files: Any, directory: str) -> set[str]:
    try:
        paths = files.ls(directory, detail=False)
    except FileNotFoundError as error:
        if "bucket" in str(error) and "exist" in str(error):
            raise  # not even the bucket is there
        return set()
    return {str(path).rstrip("/").rpartition("/")[2] for path in paths}


def _content(files: Any, path: str) -> str:
    try:
        return bytes(files.cat_file(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _with_timeout(
    address: Address, work: Callable[[Any, str], _Result], timeout_s: float
) -> _Result:
    """Return work(files, root), called in a thread. A thread that hangs is abandoned, and does not keep the process."""
    outcome: list[_Result | BaseException] = []

    def attempt() -> None:
        try:
            outcome.append(work(*_open(address)))
        except BaseException as error:  # noqa: BLE001 (whatever a cloud's library raises)
            outcome.append(error)

    worker = threading.Thread(target=attempt, daemon=True)
    with _with_settings(address):
        worker.start()
        worker.join(timeout_s)
    if not outcome:
        raise UnreachableError(f"no answer within {timeout_s:.0f} s")
    (result,) = outcome
    if isinstance(result, UnreachableError):
        raise result
    if isinstance(result, BaseException):
        raise (RefusedError if _is_refusal(result) else UnreachableError)(_words(result)) from None
    return result


@contextlib.contextmanager
def _with_settings(address: Address) -> Iterator[None]:
    """Add the address's settings to the environment, where the clouds' libraries read them."""
    added = {name: value for name, value in address.settings.items() if not _is_missing_file(value)}
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _is_missing_file(value: str) -> bool:
    """True if the value is the path of a file that is missing here. The job's machines have it, with credentials."""
    return value.startswith(("/", "~")) and not os.path.exists(os.path.expanduser(value))


def _is_refusal(error: BaseException) -> bool:
    """True if the cloud refused. An error with a file name is about a file of this machine, such as credentials."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    refused = str(error).startswith("Forbidden") and "nonymous" not in str(error)  # of gcsfs
    return refused or isinstance(error, (FileNotFoundError, PermissionError))


def _open(address: Address) -> tuple[Any, str]:
    fsspec_address = address.fsspec(_account() if address.scheme == "r2" else "")
    if fsspec_address is None:
        raise UnreachableError(f"ddpgen cannot read {address.scheme}:// from here")
    url, options, package = fsspec_address
    try:
        fsspec = importlib.import_module("fsspec")
        files, root = fsspec.core.url_to_fs(
            url, skip_instance_cache=True, use_listings_cache=False, **options
        )
    except ImportError:
        raise UnreachableError(f"that takes pip install {package}") from None
    return files, str(root).rstrip("/")


def _account() -> str:
    try:
        return Path(R2_ACCOUNT).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise UnreachableError(
            f"{R2_ACCOUNT}: {reason}; SkyPilot has the account's id written there"
        ) from None


def _words(error: BaseException) -> str:
    message = " ".join(str(error).split())
    kind = type(error).__name__
    if not message:
        return kind
    return message if isinstance(error, OSError) else f"{kind}: {message}"
