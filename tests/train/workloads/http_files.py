"""A real HTTP server on 127.0.0.1 that serves files, and misbehaves on request.

Owns what a test may ask of a server: faults, one for each coming request of a file. Knows nothing of
what the files are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Fault = Callable[["Handler", bytes], None]


class Site:
    """The files by name, the faults to come, and the names that were asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[str] = []
        self.released = threading.Event()  # ends every stall, so that the server can be closed
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.site.requests.append(name)
        self.close_connection = True
        body = self.site.files.get(name)
        if body is None:
            return self.send_error(404)
        faults = self.site.faults.get(name, [])
        if faults:
            return faults.pop(0)(self, body)
        self.start_body(body)
        self.wfile.write(body)
        return None

    def start_body(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence: pytest's output is for failures."""


def answers(code: int) -> Fault:
    """An HTTP error."""
    return lambda handler, body: handler.send_error(code)


def cut(after: int) -> Fault:
    """The connection ends `after` bytes of a body promised whole."""

    def fault(handler: Handler, body: bytes) -> None:
        handler.start_body(body)
        handler.wfile.write(body[:after])

    return fault


def stalls(after: int) -> Fault:
    """`after` bytes of the body, then silence on an open connection."""

    def fault(handler: Handler, body: bytes) -> None:
        cut(after)(handler, body)
        handler.wfile.flush()
        handler.site.released.wait(60)

    return fault


def drips(handler: Handler, body: bytes) -> None:
    """A byte now and then: never silent for long, never done."""
    handler.start_body(body)
    for i in range(len(body)):
        try:
            handler.wfile.write(body[i : i + 1])
        except OSError:
            return
        if handler.site.released.wait(0.05):
            return


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Site]:
    """Serve `files` at `site.url` until the end of the block."""
    site = Site(files)
    handler = type("SiteHandler", (Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield site
    finally:
        site.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
