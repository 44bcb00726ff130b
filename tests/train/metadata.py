"""The metadata services of three clouds, on this machine: what they ask for, what they answer, and how
they fail.

Each is as strict as its documentation: a request without its header or token gets no data. Knows
nothing of who asks.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

FAULTS = ("500", "429", "hang", "drip", "endless", "close", "garbage", "html", "empty")
WHEN = "2026-11-21T08:22:00Z"
AZURE_WHEN = "Sat, 21 Nov 2026 08:22:00 GMT"
MACHINE = "trainer_3"


def azure_event(kind: str = "Preempt", *resources: str, **other: Any) -> dict[str, Any]:
    """An event as Azure words it; of this machine unless `resources` names others."""
    return {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(resources or [MACHINE]),
        "NotBefore": AZURE_WHEN,
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **other,
    }


class Metadata(ThreadingHTTPServer):
    """One cloud's service. `fault`: how the next requests fail; `asked`: their paths so far."""

    daemon_threads = True

    def __init__(self, cloud: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cloud, self.fault = cloud, ""
        self.asked: list[str] = []
        self.ended = threading.Event()
        self.changed = threading.Condition()
        self.tokens: set[str] = set()
        self.action: dict[str, str] | None = None
        self.preempted, self.maintenance, self.etag = "FALSE", "NONE", 1
        self.events: list[Any] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def preempt(self) -> None:
        """The cloud takes the machine back."""
        self.action = {"action": "terminate", "time": WHEN}
        self.events = [azure_event()]
        with self.changed:
            self.preempted, self.etag = "TRUE", self.etag + 1
            self.changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


@contextmanager
def metadata(cloud: str) -> Iterator[Metadata]:
    """The service of `cloud`, as long as the block runs."""
    server = Metadata(cloud)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        with server.changed:
            server.changed.notify_all()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Metadata

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle("GET")

    def do_PUT(self) -> None:
        self._handle("PUT")

    def _handle(self, method: str) -> None:
        self.server.asked.append(self.path)
        if "X-Forwarded-For" in self.headers or "://" in self.path:
            self._send(403, "through a proxy")
        elif self.server.fault:
            self._fail(self.server.fault)
        else:
            getattr(self, self.server.cloud)(method, urlsplit(self.path).path)

    def _send(self, status: int, text: str, **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, fault: str) -> None:
        self.close_connection = True
        if fault.isdigit():
            self._send(int(fault), "not now")
        elif fault == "hang":
            self.server.ended.wait(60)
        elif fault in ("drip", "endless"):
            length = b"Content-Length: 100000\r\n" if fault == "drip" else b""
            with contextlib.suppress(OSError):
                self.wfile.write(
                    b"HTTP/1.1 200 OK\r\n" + length + b"Metadata-Flavor: Google\r\n\r\n"
                )
                while not self.server.ended.wait(0.1):
                    self.wfile.write(b"TRUE {"[:1])
        elif fault == "stranger":
            self._send(200, "4711" if self.path.endswith("/id") else "TRUE")
        elif fault == "garbage":
            self.wfile.write(bytes(range(256)) * 40)
        elif fault in ("html", "empty"):
            # As behind a hotel's login page: every path is there.
            page = "<html>TRUE Preempt terminate</html>" if fault == "html" else ""
            self._send(200, page, Metadata_Flavor="Google")

    def aws(self, method: str, path: str) -> None:
        if (method, path) == ("PUT", "/latest/api/token"):
            life = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if not (life.isdigit() and 1 <= int(life) <= 21600):
                self._send(400, "")
                return
            token = f"AQAAAN{len(self.server.asked)}-_=="
            self.server.tokens.add(token)
            self._send(200, token, X_aws_ec2_metadata_token_ttl_seconds=life)
        elif method != "GET":
            self._send(405, "")
        elif self.headers.get("X-aws-ec2-metadata-token") not in self.server.tokens:
            self._send(401, "")
        elif path == "/latest/meta-data/spot/instance-action" and self.server.action is not None:
            self._send(200, json.dumps(self.server.action))
        else:
            self._send(404, "<html>404 - Not Found</html>")

    def gcp(self, method: str, path: str) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            self._send(403, "Missing Metadata-Flavor:Google header.")
            return
        query = parse_qs(urlsplit(self.path).query)
        if query.get("wait_for_change") == ["true"]:
            with self.server.changed:
                self.server.changed.wait_for(
                    lambda: (
                        query["last_etag"] != [f"{self.server.etag:016x}"]
                        or self.server.ended.is_set()
                    ),
                    timeout=float(query["timeout_sec"][0]),
                )
        found = {
            "id": "4520031799277581759",
            "preempted": self.server.preempted,
            "maintenance-event": self.server.maintenance,
        }.get(path.removeprefix("/computeMetadata/v1/instance/"))
        status, text = (404, "") if method != "GET" or found is None else (200, found)
        self._send(status, text, Metadata_Flavor="Google", ETag=f"{self.server.etag:016x}")

    def azure(self, method: str, path: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if method != "GET" or self.headers.get("Metadata") != "true" or "api-version" not in query:
            self._send(400, '{"error": "Bad request. Required metadata header not specified"}')
        elif path == "/metadata/instance/compute/name" and query.get("format") == ["text"]:
            self._send(200, MACHINE)
        elif path == "/metadata/scheduledevents":
            events = {"DocumentIncarnation": 1, "Events": self.server.events}
            self._send(200, json.dumps(events))
        else:
            self._send(404, '{"error": "Not found"}')
