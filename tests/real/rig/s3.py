"""An S3 server on a host of a rig: rclone's, which keeps objects as files and asks for keys.

    store = bucket_host(name="store", rclone=Path(...))     # a Host for Rig or Slurm
    bucket = Bucket(rig["store"], "runs"); bucket.make()

An object is there whole or not at all: an upload that is cut off leaves nothing. `vastdata://NAME` is how
SkyPilot says "any S3 server" (credentials() are the files it looks into); endpoint() and KEY, SECRET are
for everybody else.

    .make()   .objects() -> {key: size}   .get(key) -> bytes
    .slow(kib_per_s)  .fast()   the wire to the server: uploads take their time

Owns the server and the faults of storage. Knows neither SkyPilot nor what is stored.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tests.real.rig import access
from tests.real.rig.machine import Machine
from tests.real.rig.spec import Host

PORT = 9000
KEY, SECRET = "rig", "secret-of-the-rig"
PLACE = "/srv/s3"
SERVE = "/usr/local/sbin/serve-s3"


def host(name: str, rclone: Path, size_mib: int = 512) -> Host:
    """The machine with the server; its disk for objects is this large, and memory."""
    return Host(
        name,
        files={SERVE: (serve(rclone), 0o755)},
        small_disk={PLACE: size_mib},
        services=[(SERVE,)],
    )


def serve(rclone: Path) -> str:
    # Listings are not remembered: a test puts and deletes files behind the server's back.
    return f"""\
#!/bin/bash
setsid -f {rclone} serve s3 {PLACE} --addr :{PORT} --auth-key {KEY},{SECRET} \\
  --dir-cache-time 100ms --no-modtime </dev/null >>/var/log/s3.log 2>&1
until (exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do sleep 0.02; done
"""


def endpoint(name: str) -> str:
    return f"http://{name}:{PORT}"


def credentials(name: str) -> dict[str, tuple[str, int]]:
    """The files in which SkyPilot looks for a server that it calls vastdata."""
    place = f"{access.HOME}/.vastdata"
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    return {
        f"{place}/vastdata.credentials": (f"[vastdata]\n{keys}", 0o644),
        f"{place}/vastdata.config": (
            f"[profile vastdata]\nendpoint_url = {endpoint(name)}\n",
            0o644,
        ),
    }


class Bucket:
    """A bucket on that machine. See the module's docstring."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name

    # Objects

    @property
    def path(self) -> Path:
        """Its objects as files, seen from here."""
        return self.machine.path(f"{PLACE}/{self.name}")

    def objects(self) -> dict[str, int]:
        """Sizes by key, in order of key."""
        found = {}
        for directory, _, names in os.walk(self.path):
            for name in names:
                file = Path(directory, name)
                if name.endswith(".partial"):  # an upload that goes on
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    found[str(file.relative_to(self.path))] = file.stat().st_size
        return dict(sorted(found.items()))

    def get(self, key: str) -> bytes:
        return (self.path / key).read_bytes()

    def make(self) -> None:
        self.path.mkdir()

    # Faults

    def slow(self, kib_per_s: float) -> None:
        self.machine.rate(kib_per_s * 8 / 1000, direction="in")

    def fast(self) -> None:
        self.machine.rate(None)
