"""One file from a URL to a path: whole and verified under its final name, or not there at all.

Owns retries, resumption, verification and the atomic rename. Knows nothing of what a file is for,
nor of processes: any number of them, on any number of nodes, may fetch the same path at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, BinaryIO

from train.errors import TrainError

CHUNK_BYTES = 1 << 18
PROGRESS_EVERY_S = 5.0
SCHEMES = ("http", "https", "file")
WORTH_ANOTHER_TRY = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Limits:
    """How long a download may take, in seconds, and how often it is taken up again.

    `stall_s` bounds the connection and each wait for the next byte, `total_s` all attempts
    together. Attempt n is followed by a pause of `pause_s`·2ⁿ.
    """

    stall_s: float = 20.0
    total_s: float = 300.0
    attempts: int = 4
    pause_s: float = 0.5


def fetch(url: str, path: str, sha256: str | None, limits: Limits = Limits()) -> None:
    """Download `url` to `path`, replacing what is there; its folder is made if need be.

    The bytes arrive under a name of their own beside `path` and are renamed when they are complete,
    on disk and of the hash `sha256` (None: not checked); so two fetchers of one path cannot mix
    their bytes, and the last rename puts the same file there once more. Proxies are taken from the
    environment, as urllib does it. Progress goes to stderr.
    Raises TrainError with the URL, the cause and the remedy; then nothing is left behind.
    """
    _check_scheme(url)
    folder = os.path.dirname(os.path.abspath(path))
    part = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(8)}.part")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(part, "xb") as file:
            _Download(url, file, limits).run(sha256)
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_folder(folder)
    except OSError as error:
        raise TrainError(
            f"cannot store {path!r}: {error.strerror or error}; "
            f"make {folder!r} writable, with room for the file, or choose another folder"
        ) from None
    finally:
        _remove(part)


def file_sha256(path: str) -> str:
    """The hash of the file at `path` as 64 hexadecimal digits. Raises OSError."""
    with open(path, "rb") as file:
        return _digest(file)


class _TransferError(Exception):
    """An attempt ended early, for a reason that another attempt may not meet."""


class _Download:
    """The attempts to bring one URL into one open file, each going on where the last one ended."""

    def __init__(self, url: str, file: BinaryIO, limits: Limits) -> None:
        self.url = url
        self.file = file
        self.limits = limits
        self.validator: str | None = None  # what the server calls this version of the file
        self.resumed = False
        self.deadline = time.monotonic() + limits.total_s
        self.progress = _Progress(url)

    def run(self, sha256: str | None) -> None:
        """Return when the whole file is there and has the wanted hash."""
        self._download()
        if sha256 is None:
            return
        found = self._hash()
        if found != sha256.lower() and self.resumed:
            # Two halves of two versions, perhaps: judge the file only by what came in one piece.
            self._start_over()
            self._download()
            found = self._hash()
        if found != sha256.lower():
            raise TrainError(
                f"{self.url} is not the file it should be: its sha256 is {found}, "
                f"wanted is {sha256.lower()}; a proxy or login page may have answered instead, "
                "so look at what the URL returns; if the file was changed on purpose, "
                "give its new hash"
            )

    def _download(self) -> None:
        for attempt in range(self.limits.attempts):
            try:
                self._attempt()
                self.progress.end()
                return
            except _TransferError as reason:
                last = reason
            left = self.deadline - time.monotonic()
            if left <= 0:
                break
            if attempt + 1 < self.limits.attempts:
                self.progress.say(f"{last}; trying again")
                time.sleep(min(self.limits.pause_s * 2**attempt, left))
        raise TrainError(
            f"cannot download {self.url}: {last} (attempt {attempt + 1} of "
            f"{self.limits.attempts}); check the network, the proxy variables and the URL, "
            "or put the file in its place by hand"
        )

    def _attempt(self) -> None:
        try:
            with urllib.request.urlopen(self._request(), timeout=self._wait_s()) as response:
                self._receive(response)
        except urllib.error.HTTPError as error:
            self._judge_status(error)
        except urllib.error.URLError as error:
            self._judge_failure(error.reason)
        except (http.client.InvalidURL, ValueError) as error:
            raise _bad_url(self.url, str(error)) from None
        except (http.client.HTTPException, OSError) as error:
            raise self._ended_by(error) from None

    def _request(self) -> urllib.request.Request:
        headers = {"Accept-Encoding": "identity", "User-Agent": "ddpgen"}
        request = urllib.request.Request(self.url, headers=headers)
        if self.file.tell() and self.url.lower().startswith("http"):
            request.add_header("Range", f"bytes={self.file.tell()}-")
            if self.validator is not None:
                request.add_header("If-Range", self.validator)
        return request

    def _wait_s(self) -> float:
        left = self.deadline - time.monotonic()
        return max(0.001, min(self.limits.stall_s, left))

    def _receive(self, response: Any) -> None:
        """Append the body to the file; where the server begins anew, so does the file."""
        start, size = _placed(response)
        if self.file.tell() and start == self.file.tell():
            self.resumed = True
        else:
            self._start_over()
            if start:
                raise _TransferError(f"the server began at byte {start}, unasked")
        self.validator = _strong_validator(response)
        while chunk := response.read1(CHUNK_BYTES):
            self._store(chunk)
            self.progress.at(self.file.tell(), size)
            if time.monotonic() > self.deadline:
                raise _TransferError(self._out_of_time())
        if size is not None and self.file.tell() != size:
            raise _TransferError(f"the connection ended after {self.file.tell()} of {size} bytes")

    def _store(self, chunk: bytes) -> None:
        # A full disk is an OSError like a broken connection, but no further attempt cures it.
        try:
            self.file.write(chunk)
            self.file.flush()
        except OSError as error:
            raise TrainError(
                f"cannot store {self.url} at {self.file.name!r}: {error.strerror}; make room there"
            ) from None

    def _start_over(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.validator = None
        self.resumed = False

    def _judge_status(self, error: urllib.error.HTTPError) -> None:
        said = f"the server answered {error.code} {error.reason}"
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            self._start_over()
            raise _TransferError(said)
        if error.code in WORTH_ANOTHER_TRY:
            raise _TransferError(said)
        raise TrainError(f"cannot download {self.url}: {said}; correct the URL") from None

    def _judge_failure(self, reason: Any) -> None:
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise TrainError(
                f"cannot download {self.url}: {reason.verify_message}; the certificate is not "
                "trusted here: set SSL_CERT_FILE to your site's certificates"
            ) from None
        if isinstance(reason, FileNotFoundError | IsADirectoryError | PermissionError):
            raise TrainError(
                f"cannot download {self.url}: {reason.strerror}; correct the path in the URL"
            ) from None
        if not isinstance(reason, OSError):
            raise _bad_url(self.url, str(reason)) from None
        raise self._ended_by(reason) from None

    def _ended_by(self, error: BaseException) -> _TransferError:
        # The last wait is cut short by the deadline: it is no server's silence.
        if isinstance(error, TimeoutError) and time.monotonic() >= self.deadline:
            return _TransferError(self._out_of_time())
        return _TransferError(_in_words(error))

    def _out_of_time(self) -> str:
        return f"not complete after {self.limits.total_s:g} s"

    def _hash(self) -> str:
        self.file.flush()
        with open(self.file.name, "rb") as file:
            return _digest(file)


class _Progress:
    """A line to stderr at the start, every few seconds, and at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.began = self.spoke = time.monotonic()
        self.received = 0
        self.say("fetching")

    def at(self, received: int, size: int | None) -> None:
        self.received = received
        if time.monotonic() - self.spoke >= PROGRESS_EVERY_S:
            self.say(f"{_mb(received)}{f' of {_mb(size)}' if size is not None else ''}")

    def end(self) -> None:
        self.say(f"{_mb(self.received)} in {time.monotonic() - self.began:.1f} s")

    def say(self, text: str) -> None:
        self.spoke = time.monotonic()
        print(f"{self.url}: {text}", file=sys.stderr, flush=True)


def _check_scheme(url: str) -> None:
    scheme, colon, _ = url.partition(":")
    if not colon or scheme.lower() not in SCHEMES:
        raise _bad_url(url, f"it does not begin with {', '.join(f'{s}://' for s in SCHEMES)}")


def _bad_url(url: str, reason: str) -> TrainError:
    return TrainError(f"{url!r} is not a URL that can be fetched: {reason}; correct it")


def _placed(response: Any) -> tuple[int, int | None]:
    """Where in the file the body begins, and the size of the whole file if the server tells."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        place = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers["Content-Range"] or "")
        if place is None:
            raise _TransferError("the server sent a part of the file without saying which")
        return int(place[1]), int(place[2]) + 1 if place[3] == "*" else int(place[3])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _strong_validator(response: Any) -> str | None:
    """An ETag that promises equal bytes; a weak one (`W/…`) does not."""
    tag: str | None = response.headers.get("ETag")
    return tag if tag is not None and tag.startswith('"') else None


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or "") or str(error) or type(error).__name__


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _sync_folder(folder: str) -> None:
    """Make the rename itself durable, where the file system offers that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)


def _remove(part: str) -> None:
    with contextlib.suppress(OSError):  # it is gone if it was renamed, as it should be
        os.unlink(part)
