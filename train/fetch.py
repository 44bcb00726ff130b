"""One file from a URL to a path: whole and verified under its final name, or not there at all.

Owns the attempts, the verification and the atomic rename. Knows nothing of what a file is for, nor of
processes: any number of them, on any number of nodes, may fetch the same path at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import BinaryIO

from train.errors import TrainError

CHUNK_BYTES = 1 << 18
SCHEMES = ("http", "https", "file")
# Before each attempt, in seconds.
PAUSES_S = (0.0, 0.5, 1.0, 2.0)
# Without a byte for so long, a connection is given up.
STALL_S = 20.0
_ASK_AGAIN = (408, 425, 429, 500, 502, 503, 504)
# What another attempt does not cure.
_PERMANENT = (ssl.SSLCertVerificationError, FileNotFoundError, IsADirectoryError, PermissionError)


def fetch(url: str, path: str, sha256: str | None, total_s: float = 300.0) -> None:
    """Download `url` to `path`, replacing what is there; its folder is made if need be.

    The bytes arrive under a name of their own beside `path` and are renamed when they are complete,
    on disk and of the hash `sha256` (None: not checked); so two fetchers of one path cannot mix
    their bytes, and the last rename puts the same file there once more. All attempts together take
    `total_s` seconds at most. Proxies are taken from the environment, as urllib does it.
    Raises TrainError with the URL, the cause and the remedy; then nothing is left behind.
    """
    if url.partition(":")[0].lower() not in SCHEMES:
        raise TrainError(
            f"cannot download {url!r}: it does not begin with {', '.join(f'{s}://' for s in SCHEMES)}; "
            "correct the URL"
        )
    folder = os.path.dirname(os.path.abspath(path))
    part = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(8)}.part")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(part, "xb") as file:
            found = _download(url, file, total_s)
            file.flush()
            os.fsync(file.fileno())
        if sha256 is not None and found != sha256.lower():
            raise TrainError(
                f"{url} is not the file it should be: its sha256 is {found}, wanted is "
                f"{sha256.lower()}; a proxy or login page may have answered instead, so look at what "
                "the URL returns; if the file was changed on purpose, give its new hash"
            )
        os.replace(part, path)
    except OSError as error:
        raise TrainError(
            f"cannot store {path!r}: {error.strerror or error}; "
            f"make {folder!r} writable, with room for the file, or choose another folder"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # it is gone if it was renamed, as it should be
            os.unlink(part)


def file_sha256(path: str) -> str:
    """The hash of the file at `path` as 64 hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


class _TransferError(Exception):
    """An attempt has failed. `again`: another one may succeed."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


def _download(url: str, file: BinaryIO, total_s: float) -> str:
    """Fill the file from the URL; returns the sha256. Raises TrainError, and OSError of the disk."""
    began = time.monotonic()
    print(f"{url}: fetching", file=sys.stderr, flush=True)
    for pause in PAUSES_S:
        time.sleep(pause)
        file.seek(0)
        file.truncate()
        digest = hashlib.sha256()
        try:
            for chunk in _chunks(url, began + total_s):
                file.write(chunk)
                digest.update(chunk)
        except _TransferError as error:
            failed = error
        else:
            took = f"{file.tell() / 1e6:.1f} MB in {time.monotonic() - began:.1f} s"
            print(f"{url}: {took}", file=sys.stderr, flush=True)
            return digest.hexdigest()
        if not failed.again:
            break
        if time.monotonic() >= began + total_s:
            failed = _TransferError(f"not complete after {total_s:g} s")
            break
    raise TrainError(
        f"cannot download {url}: {failed}; check the network, the proxy variables, SSL_CERT_FILE and "
        "the URL, or put the file in its place by hand"
    )


def _chunks(url: str, deadline: float) -> Iterator[bytes]:
    """What the URL returns, all of it. Raises _TransferError."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "ddpgen"}
    received = 0
    try:
        request = urllib.request.Request(url, headers=headers)
        wait_s = max(0.001, min(STALL_S, deadline - time.monotonic()))
        with urllib.request.urlopen(request, timeout=wait_s) as response:
            size = response.headers.get("Content-Length")
            while chunk := response.read1(CHUNK_BYTES):
                received += len(chunk)
                yield chunk
                if time.monotonic() > deadline:
                    raise _TransferError("out of time")
    except urllib.error.HTTPError as error:
        error.close()
        raise _TransferError(
            f"the server answered {error.code} {error.reason}", again=error.code in _ASK_AGAIN
        ) from None
    except (http.client.InvalidURL, ValueError) as error:
        raise _TransferError(f"not a URL that can be fetched ({error})", again=False) from None
    except (http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        permanent = isinstance(reason, (*_PERMANENT, str))
        raise _TransferError(str(reason) or type(reason).__name__, again=not permanent) from None
    if size is not None and size.isdecimal() and received != int(size):
        raise _TransferError(f"the connection ended after {received} of {size} bytes")
