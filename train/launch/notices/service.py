"""One request to a metadata service, which gives an answer or an error within a bounded time.

Owns the HTTP request and its time limit. Uses no proxy, whatever the environment says, and follows no redirect,
because the service is this machine's own. Knows no cloud.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from train.base import typed

OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
_SERVER_ERROR = 500
# The temporary statuses: request timeout, gone for a while (Azure, during an update), too many requests.
_LATER = (408, 410, 429)
_MOST_BYTES = 1 << 18


class ServiceError(Exception):
    """There is no answer, or none that makes sense. Nothing is known now, and a later request may succeed."""


class AbsentError(ServiceError):
    """The request is for something that is not served here."""


@dataclass(frozen=True)
class Answer:
    """An answer of any status. `text`: the body without the white space around it."""

    status: int
    headers: Mapping[str, str]
    text: str

    def expect_ok(self) -> Answer:
        """Return this answer if its status is 200. Raises ServiceError on a temporary status, else AbsentError."""
        if self.status == OK:
            return self
        passes = self.status >= _SERVER_ERROR or self.status in _LATER
        kind = ServiceError if passes else AbsentError
        raise kind(f"HTTP status {self.status}")

    def mapping(self) -> dict[str, Any]:
        """Return the JSON object in the text. Raises ServiceError if the text is something else."""
        value = typed.parse(dict, self.text)
        if value is None:
            raise ServiceError("an answer that makes no sense")
        return value


class Service:
    """The metadata service below a URL such as `http://169.254.169.254`."""

    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        self._host, self._port = parts.hostname or "", parts.port or 80

    def request(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        timeout_s: float = 1.0,
    ) -> Answer:
        """Return the answer. Wait `timeout_s` for the connection, and as long again for the whole answer.

        Raises AbsentError if nobody listens there, and ServiceError if there is no answer for another reason.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.connect()
        except TimeoutError:
            raise ServiceError(f"no connection within {timeout_s:g} s") from None
        except OSError as error:
            raise AbsentError(f"no connection: {error.strerror or error}") from None
        # A socket's timeout limits each single wait, so an answer of one byte now and then would never end.
        is_cut = threading.Event()
        cut = threading.Timer(timeout_s, _cut, [connection.sock, is_cut])
        cut.daemon = True
        cut.start()
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES).decode("utf-8", "replace").strip()
            if answer.length or is_cut.is_set():
                raise TimeoutError("half an answer")
            return Answer(answer.status, dict(answer.headers.items()), text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServiceError(
                f"no answer within {timeout_s:g} s, or none in HTTP ({error!r})"
            ) from None
        finally:
            cut.cancel()
            connection.close()


def _cut(sock: socket.socket, is_cut: threading.Event) -> None:
    is_cut.set()  # first, because the end of a cut answer looks like any other end
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
