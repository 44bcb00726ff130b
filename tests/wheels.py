"""Tiny wheels, and an index that has them: what a test installs, without one of the world's.

`tiny` needs `borrowed`, which lends an environment all that the Python of the tests has: torch, above all,
which is far too large to be installed for a test.
"""

from __future__ import annotations

import hashlib
import sysconfig
import threading
import zipfile
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAMES = ("borrowed", "tiny")


def wheel(
    place: Path,
    name: str,
    files: Mapping[str, str],
    requires: Iterable[str] = (),
    version: str = "1.0",
) -> Path:
    """Write a wheel of pure Python; its path."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {wanted}\n" for wanted in requires)
    info = f"{name}-{version}.dist-info"
    kind = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    path = place / f"{name}-{version}-py3-none-any.whl"
    about = {f"{info}/METADATA": metadata, f"{info}/WHEEL": kind, f"{info}/RECORD": ""}
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**files, **about}.items():
            archive.writestr(zipfile.ZipInfo(inside), text)  # of no date: the same bytes every time
    return path


def write(place: Path) -> None:
    """Write `tiny` and `borrowed`."""
    place.mkdir()
    wheel(place, "tiny", {"tiny.py": "HERE = __file__\n"}, ["borrowed"])
    wheel(place, "borrowed", {"borrowed.pth": f"{sysconfig.get_path('purelib')}\n"})


def lock(place: Path, seen: str) -> str:
    """A lock of both, which lie in `place`, called `seen` where they are installed."""
    pinned = [
        f"{n}==1.0 --hash=sha256:{digest(place / f'{n}-1.0-py3-none-any.whl')}" for n in NAMES
    ]
    head = ["# Lock of job.yaml, written by `ddpgen lock`", "--no-index", f"--find-links {seen}"]
    return "\n".join([*head, *pinned, ""])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Index:
    """A package index on this machine. `asked`: a wheel was asked for; `open`: they are handed out."""

    def __init__(self, wheels: Path) -> None:
        self.served: list[str] = []
        self.asked, self.open = threading.Event(), threading.Event()
        self.open.set()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/").split("/")[-1]
                if name.endswith(".whl"):
                    index.asked.set()
                    index.open.wait()
                    index.served.append(name)
                    content, kind = (wheels / name).read_bytes(), "application/octet-stream"
                else:
                    found = sorted(wheels.glob(f"{name}-*.whl"))
                    links = [f'<a href="/{w.name}#sha256={digest(w)}">{w.name}</a>' for w in found]
                    content, kind = "\n".join(links).encode(), "text/html"
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Be a network that is not there."""
        self._server.shutdown()
        self._server.server_close()
