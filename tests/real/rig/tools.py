"""The few commands of the system that the rig is made of, and whether this machine has them; waiting.

Owns running them with a deadline and an error that says what they said. Knows no host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.real.rig.errors import RigError

INSIDE = Path(__file__).parent / "inside"
TIMEOUT_S = 30.0
# Debian's names for what brings them.
PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "iptables": "iptables",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "pivot_root": "util-linux",
    "mount": "mount",
}
# A user's PATH may be without the directories that hold most of these.
SEARCH = os.pathsep.join(
    (os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin")
)
TEST_ID = "DDPGEN_TEST_ID"
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork")


class Upkeep:
    """`with each as up:` is start(), and close() at the end, however that comes."""

    def start(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()


def wait(
    until: Callable[[], Any], within: float, else_: Callable[[], Exception], every: float = 0.1
) -> Any:
    """What `until` returns as soon as that is true, for what has no event to wait for; else raise."""
    deadline = time.monotonic() + within
    while not (found := until()):
        if time.monotonic() > deadline:
            raise else_()
        time.sleep(every)
    return found


def program(name: str) -> list[str]:
    """The start of a command line for one of the programs in inside/."""
    return [sys.executable, "-S", "-E", "-s", str(INSIDE / f"{name}.py")]


def where(command: str) -> str:
    found = shutil.which(command, path=SEARCH)
    if found is None:
        raise RigError(f"{command}: not found; it comes with {PACKAGES[command]}")
    return found


def call(argv: Sequence[str], text: str = "") -> str:
    """Run to the end; anything but success is a RigError that quotes it."""
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment()
        )
    except subprocess.TimeoutExpired:
        raise RigError(f"{' '.join(argv)}: no end in {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = (done.stderr + done.stdout).strip()
        raise RigError(f"{' '.join(argv)}: ended with {done.returncode}: {said}\n{text}")
    return done.stdout


def mark() -> dict[str, str]:
    """The variable by which tests/conftest.py knows whose a process is, where there is one."""
    return {TEST_ID: os.environ[TEST_ID]} if TEST_ID in os.environ else {}


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": SEARCH}


def unavailable() -> str:
    """Why there can be no rig here, with the remedy; empty when there can."""
    if sys.platform != "linux":
        return "a rig is made of Linux namespaces: this is no Linux"
    if os.geteuid() != 0:
        return "a rig needs root: sudo, or a virtual machine of your own"
    lacking = sorted(
        {PACKAGES[name] for name in PACKAGES if shutil.which(name, path=SEARCH) is None}
    )
    if lacking:
        return f"a rig needs more of this machine: apt install {' '.join(lacking)}"
    try:
        call([where("unshare"), *NAMESPACES, "mount", "-t", "tmpfs", "rig", "/tmp"])
    except RigError as error:
        return f"a rig needs namespaces and mounts, this machine (a container?) refuses: {error}"
    return ""
