"""A cloud that costs nothing: moto speaks AWS's protocols, and a private SkyPilot server believes it.

Owns both processes and the home they live in. It sells what tests/sky/catalogs lists, at those prices.
Nothing is ever started in it: `sky launch --dryrun` ends with the choice. Knows nothing of what is
being tested.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import ports
from tests.sky import environment

START_S = 90.0
# The first answer takes longest: SkyPilot looks then whether AWS lets it in.
ANSWER_S = 300.0
END_S = 20.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Chosen(NamedTuple):
    """A line of the optimizer's table."""

    infra: str
    instance: str
    gpus: str
    cost: float  # USD an hour, of all nodes
    chosen: bool


class Cloud:
    """moto and a SkyPilot server, up between `with` and its end."""

    def __init__(self, home: Path) -> None:
        self.home = environment.make_home(home)
        self.log = home / "log"
        aws = ports.free_port()
        self.port, self._queue = _server_port()
        self.variables = environment.variables(
            home,
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{aws}",
            SKYPILOT_API_SERVER_LOCAL_PORT=str(self.port),
        )
        self._aws = aws
        # Else it asks two dozen clouds whether this person may use them, which takes a minute.
        (home / ".sky" / "config.yaml").write_text("allowed_clouds: [aws]\n")
        (home / ".aws").mkdir()
        (home / ".aws" / "credentials").write_text(
            "[default]\naws_access_key_id = moto\naws_secret_access_key = moto\n"
        )
        (home / ".aws" / "config").write_text("[default]\nregion = us-east-1\n")

    @contextlib.contextmanager
    def up(self) -> Iterator[Cloud]:
        """Both processes, until they are no longer wanted."""
        bin_dir = environment.PYTHON.parent
        moto = [bin_dir / "moto_server", "--host=127.0.0.1", f"--port={self._aws}"]
        server = [environment.PYTHON, "-m", "sky.server.server", "--host=127.0.0.1"]
        asked = {**self.variables, "IS_SKYPILOT_SERVER": "true"}
        with (
            self._queue,
            self._running(moto, self.variables),
            self._running([*server, f"--port={self.port}"], asked),
        ):
            self._await(self._aws, "/moto-api/data.json")
            self._await(self.port, "/api/health")
            yield self

    def make_bucket(self, name: str) -> None:
        """An empty bucket of S3."""
        assert self._status("PUT", self._aws, f"/{name}") == 200

    def sky(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """A command of `sky`, as a person types it in this directory; its words without colours."""
        done = subprocess.run(
            [environment.PYTHON.parent / "sky", *words],
            cwd=cwd, env={**self.variables, "COLUMNS": "200"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=ANSWER_S,
        )  # fmt: skip
        return subprocess.CompletedProcess(words, done.returncode, _COLOUR.sub("", done.stdout))

    @contextlib.contextmanager
    def _running(self, command: Sequence[str | Path], variables: dict[str, str]) -> Iterator[None]:
        with self.log.open("a") as log:
            process = subprocess.Popen(
                command, cwd=self.home, env=variables, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield
        finally:
            # At once, its workers with it: what a server tidies up at its end goes with the home.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_S)

    def _await(self, port: int, path: str) -> None:
        deadline = time.monotonic() + START_S
        while self._status("GET", port, path) != 200:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def _status(self, method: str, port: int, path: str) -> int:
        """0 for a server that does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


def _server_port() -> tuple[int, socket.socket]:
    """A port for the server, and what holds another for its queue until the server has that.

    The server works that one out from its own, among those of outgoing connections (mp_queue.py), and
    does not start where anybody's connection happens to have it. A socket that is bound, and does not
    listen, keeps it from those, and with SO_REUSEADDR not from the server.
    """
    while True:
        port = ports.free_port()
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("", 50_000 + (port - 46_580 + 11) % 10_000))
        except OSError:
            held.close()
            continue
        return port, held


def table(said: str) -> list[Chosen]:
    """What the optimizer considered, cheapest first."""
    row = re.compile(
        r"^ (\S.*?)  +(\S+)  +\S+  +\S+  +(\S+)  +([0-9.]+)[ \t]*(✔?)[ \t]*$", re.MULTILINE
    )
    return [
        Chosen(infra, instance, gpus, float(cost), bool(mark))
        for infra, instance, gpus, cost, mark in row.findall(said)
    ]
