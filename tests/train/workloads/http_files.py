"""A real HTTP server on 127.0.0.1 that serves files, and falls silent on request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """The files by name, the names that are sent by half only, and the names that were asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.stalls: set[str] = set()
        self.requests: list[str] = []
        self.released = threading.Event()  # ends every stall, so that the server can be closed
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.site.requests.append(name)
        body = self.site.files.get(name)
        if body is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if name in self.site.stalls:
            self.wfile.write(body[: len(body) // 2])
            self.site.released.wait(60)
        else:
            self.wfile.write(body)
        return None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence: pytest's output is for failures."""


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
