"""A running host: commands in it, its processes, its disk, its power.

Owns entering the namespaces of one host. Its network is made elsewhere (switch), its inside too (boot).
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.real.rig import processes
from tests.real.rig.access import HOMES, USER
from tests.real.rig.control import Words
from tests.real.rig.errors import RigError
from tests.real.rig.faults import Wired
from tests.real.rig.keeper import PATIENCE_S, Keeper, Reports
from tests.real.rig.processes import Process
from tests.real.rig.spec import Host, Link
from tests.real.rig.switch import Switch, end
from tests.real.rig.tools import NAMESPACES, mark, program, where

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BALLAST = "ballast"
MIB, LARGE_MIB = 1 << 20, 1024


class Machine(Wired):
    """One host of a rig."""

    home = HOMES[USER]

    def __init__(
        self,
        host: Host,
        links: Sequence[Link],
        switch: Switch,
        keeper: Keeper,
        plan: Path,
    ) -> None:
        super().__init__(host.name, links, switch)
        self._keeper = keeper
        self._plan = plan
        self._reports: Reports | None = None

    # Power

    @property
    def up(self) -> bool:
        return self._pid is not None

    def boot(self) -> None:
        """Start it (again): the disk as it was, cable in, no firewall, a fast wire."""
        self.begin_boot()
        self._switch.connect({self.come_in(): (self._links, True)})
        self.finish_boot()

    def begin_boot(self) -> None:
        """The first third, so that many can boot at once: namespaces."""
        if self.up:
            raise RigError(f"{self.name} is on")
        argv = [where("unshare"), *NAMESPACES, *program("boot"), str(self._plan)]
        self._reports = self._keeper.start(f"host.{self.name}", argv)

    def come_in(self) -> int:
        """The second: there is a process in them, and a network to plug cables into."""
        assert self._reports is not None
        self._pid = int(self._reports.line())
        return self._pid

    def finish_boot(self) -> None:
        """The last: sshd listens."""
        assert self._reports is not None
        if self._reports.line() != "ready":
            raise RigError(f"{self.name} did not come up")
        self._reports.close()

    def power_off(self) -> None:
        """Pull the plug. Silent first: else its kernel would say goodbye for its processes."""
        for link in self._links:
            self._switch.cut(link)
        waiting = processes.entrances(self.pid)
        processes.send([self.pid], signal.SIGKILL)
        processes.send(waiting, signal.SIGCONT)
        end(self.pid)
        self._pid = None
        self._switch.disconnect(self._links)

    # Commands

    def run(
        self,
        argv: Words,
        *,
        user: str = USER,
        timeout: float = 60,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._inside(argv, user, env, cwd), timeout=timeout, input=stdin, check=check,
            stdin=subprocess.DEVNULL if stdin is None else None, capture_output=True, text=True,
        )  # fmt: skip

    def popen(
        self,
        argv: Words,
        *,
        user: str = USER,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """The process returned stands outside, for one inside that dies with it."""
        return subprocess.Popen(self._inside(argv, user, env, cwd), **options)

    def _inside(
        self, argv: Words, user: str, env: Mapping[str, str] | None, cwd: str | None
    ) -> list[Any]:
        home = HOMES[user]
        variables = {"PATH": PATH, "HOME": home, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8"}
        variables |= {**mark(), **(env or {})}
        return [
            *(where("nsenter"), "--target", str(self.pid)),
            *("--mount", "--uts", "--ipc", "--net", "--pid", "--wd=/", "--"),
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--pdeathsig=KILL"),
            *("env", "-i", "-C", cwd or home),
            *(f"{name}={value}" for name, value in variables.items()),
            *argv,
        ]

    # Processes

    def processes(self) -> list[Process]:
        """What runs here and is not the rig's own; nothing when the power is off."""
        if self._pid is None:
            return []
        return processes.of_host(self.name, self._pid)

    def kill_all(self) -> None:
        """SIGKILL to all of them, and to what they start meanwhile; the host and its sshd go on."""
        while found := self.processes():
            processes.send((each.pid for each in found), signal.SIGKILL)
            processes.send(processes.entrances(self.pid), signal.SIGCONT)
            processes.outlasting(found, PATIENCE_S)

    def freeze(self) -> None:
        processes.send((each.pid for each in self.processes()), signal.SIGSTOP)

    def thaw(self) -> None:
        processes.send((each.pid for each in self.processes()), signal.SIGCONT)
        processes.send(processes.entrances(self.pid), signal.SIGCONT)

    # Disk

    def path(self, inside: str) -> Path:
        """A file of the host (from trainer's home on), for who stands outside; while it is up."""
        return Path(f"/proc/{self.pid}/root{os.path.join(self.home, inside)}")

    def fill(self, place: str) -> None:
        """Fill the file system there, to the last byte."""
        size = os.statvfs(self.path(place))
        if size.f_blocks * size.f_frsize > LARGE_MIB * MIB:
            raise RigError(f"{place} on {self.name} is large, and memory: give it a small_disk")
        with (self.path(place) / BALLAST).open("wb", buffering=0) as file:
            for piece in (MIB, 4096, 1):
                write_until_full(file.fileno(), bytes(piece))

    def empty(self, place: str) -> None:
        (self.path(place) / BALLAST).unlink(missing_ok=True)


def write_until_full(descriptor: int, piece: bytes) -> None:
    """Write this piece again and again until no such piece fits any more."""
    while True:
        try:
            os.write(descriptor, piece)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return
            raise
