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
_Found = TypeVar("_Found")


class UnreachableError(Exception):
    """The bucket cannot be reached from here. The message has the reason and the remedy."""


class RefusedError(UnreachableError):
    """The cloud answered that the bucket does not exist, or that this user may not read it."""


def look(at: Address) -> dict[str, str]:
    """Return the facts in the job's part of the bucket, in the form in which driver.state.read takes them.

    `owner-age` is the age of rank 0's time stamp in seconds. Raises UnreachableError.
    """
    return _in_time(at, _look, ANSWER_S)


def refusal(at: Address) -> str:
    """Return the cloud's own words why it refuses the bucket; "" if it does not, or cannot be reached."""
    try:
        _in_time(at, _names, SHORT_S)
    except RefusedError as error:
        return str(error)
    except UnreachableError:
        pass  # the machines will find out
    return ""


def ask_to_stop(at: Address, said: str) -> None:
    """Ask the job to stop after its current step. Raise UnreachableError."""

    def write(files: Any, root: str) -> None:
        files.pipe_file(f"{root}/{STOP}", f"{said}\n".encode())

    _in_time(at, write, ANSWER_S)


def _look(files: Any, root: str) -> dict[str, str]:
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


def _names(files: Any, place: str) -> set[str]:
    try:
        found = files.ls(place, detail=False)
    except FileNotFoundError as error:
        if "bucket" in str(error) and "exist" in str(error):
            raise  # not even the bucket is there
        return set()
    return {str(path).rstrip("/").rpartition("/")[2] for path in found}


def _content(files: Any, path: str) -> str:
    try:
        return bytes(files.cat_file(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _in_time(at: Address, work: Callable[[Any, str], _Found], within: float) -> _Found:
    """Return work(files, root), called in a thread. A thread that hangs is abandoned, and does not keep the process."""
    outcome: list[_Found | BaseException] = []

    def attempt() -> None:
        try:
            outcome.append(work(*_reach(at)))
        except BaseException as error:  # noqa: BLE001 (whatever a cloud's library raises)
            outcome.append(error)

    worker = threading.Thread(target=attempt, daemon=True)
    with _in_its_environment(at):
        worker.start()
        worker.join(within)
    if not outcome:
        raise UnreachableError(f"no answer within {within:.0f} s")
    (found,) = outcome
    if isinstance(found, UnreachableError):
        raise found
    if isinstance(found, BaseException):
        raise (RefusedError if _is_refusal(found) else UnreachableError)(_words(found)) from None
    return found


@contextlib.contextmanager
def _in_its_environment(at: Address) -> Iterator[None]:
    """Add the address's settings to the environment, where the clouds' libraries read them."""
    added = {name: value for name, value in at.settings.items() if not _is_of_the_machines(value)}
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _is_of_the_machines(value: str) -> bool:
    """True if the value is the path of a file that is missing here: the job's machines have it, with credentials."""
    return value.startswith(("/", "~")) and not os.path.exists(os.path.expanduser(value))


def _is_refusal(error: BaseException) -> bool:
    """True if the cloud refused. An error with a file name is about a file of this machine, such as credentials."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    refused = str(error).startswith("Forbidden") and "nonymous" not in str(error)  # of gcsfs
    return refused or isinstance(error, (FileNotFoundError, PermissionError))


def _reach(at: Address) -> tuple[Any, str]:
    known = at.fsspec(_account() if at.scheme == "r2" else "")
    if known is None:
        raise UnreachableError(f"ddpgen cannot read {at.scheme}:// from here")
    url, options, package = known
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
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise UnreachableError(
            f"{R2_ACCOUNT}: {why}; SkyPilot has the account's id written there"
        ) from None


def _words(error: BaseException) -> str:
    said = " ".join(str(error).split())
    kind = type(error).__name__
    if not said:
        return kind
    return said if isinstance(error, OSError) else f"{kind}: {said}"
