"""The rig as a whole: brings the hosts up, all at once, and takes everything down.

Owns the order of things and the directory of the rig. How each is done is the other modules' affair.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.real.rig import access, processes
from tests.real.rig.control import Control
from tests.real.rig.errors import RigError
from tests.real.rig.keeper import Keeper
from tests.real.rig.machine import Machine
from tests.real.rig.processes import Process
from tests.real.rig.spec import CONTROL, SUBNETS, Host, wire
from tests.real.rig.switch import Switch
from tests.real.rig.tools import Upkeep, call, unavailable, where

ROOT = Path(__file__).resolve().parents[3]
PREFIX = "ddpgen-rig."
# A shell prints the number by which the machine knows it and becomes something that only waits.
HOLD = 'read -r pid rest </proc/self/stat; echo "$pid"; exec sleep infinity'


class Rig(Upkeep):
    """Hosts on a switch. See the package's docstring for everything it can do."""

    def __init__(
        self,
        hosts: Sequence[Host],
        *,
        subnets: Mapping[str, str] = SUBNETS,
        control: Sequence[str] | None = None,
    ) -> None:
        self.hosts = tuple(hosts)
        if control is None:
            control = [next(iter(hosts[0].interfaces))] if hosts else []
        self.wiring = wire(hosts, subnets, control)
        self._machines: dict[str, Machine] = {}
        self._directory: Path | None = None
        self._keeper: Keeper | None = None

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._machines.values())

    def start(self) -> Rig:
        """Bring it up; when that fails nothing of it stays."""
        reason = unavailable()
        if reason:
            raise RigError(reason)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Power everything off and leave nothing behind."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    @property
    def directory(self) -> Path:
        """Where its files are: keys, configs, logs (host.NAME.log)."""
        if self._directory is None:
            raise RigError("this rig is down")
        return self._directory

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def keeper_pid(self) -> int:
        """The one process whose end is the end of the rig."""
        if self._keeper is None:
            raise RigError("this rig is down")
        return self._keeper.pid

    @property
    def shared(self) -> Path:
        """The shared file system's directory, as seen from here."""
        return Path(f"/proc/{self.keeper_pid}/root{self.directory}/disks/shared")

    def strays(self, within: float = 3.0) -> list[Process]:
        """Processes on any host that are not the rig's and still there after so many seconds."""
        deadline = time.monotonic() + within
        while True:
            found = [each for machine in self for each in machine.processes()]
            left = processes.outlasting(found, deadline - time.monotonic())
            # What has ended may have left children that were not there when we looked.
            if not found or time.monotonic() >= deadline:
                return left

    def _start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._keys = access.Keys(self.directory)
        self._keys.make()
        self._keeper = Keeper(self.directory)
        switch = Switch(self._keeper, self.wiring.bridges)
        self.control = Control(CONTROL, self.wiring.links[CONTROL], switch)
        held = self._keeper.start(CONTROL, [where("unshare"), "--net", "sh", "-c", HOLD])
        shared = self.shared
        shared.mkdir()
        shared.chmod(0o1777)
        for number, host in enumerate(self.hosts):
            links = self.wiring.links[host.name]
            plan = self._write_plan(number, host)
            self._machines[host.name] = Machine(host, links, switch, self._keeper, plan)
        for machine in self:
            machine.begin_boot()
        self.control.came_up(int(held.line()))
        held.close()
        ends = {
            self[host.name].come_in(): (self.wiring.links[host.name], True) for host in self.hosts
        }
        try:
            switch.connect(ends | {self.control.pid: (self.wiring.links[CONTROL], False)})
        except RigError:
            for machine in self:
                if not Path(f"/proc/{machine.pid}").exists():
                    machine.finish_boot()  # it has ended meanwhile, and says why
            raise
        self._write_access()
        for machine in self:
            machine.finish_boot()

    def _write_plan(self, number: int, host: Host) -> Path:
        """What boot.py makes of this host, and the file systems that outlive its power."""
        assert self._keeper is not None
        disks = self.directory / "disks"
        binds = [(str(disks / "shared"), host.shared)] if host.shared else []
        for count, (target, size_mib) in enumerate(host.small_disk.items()):
            small = disks / f"{number}.small{count}"
            Path(f"/proc/{self.keeper_pid}/root{small}").mkdir()
            mount = (where("mount"), "-t", "tmpfs", "-o", f"size={size_mib}m,mode=1777", "rig")
            call([where("nsenter"), f"--mount=/proc/{self.keeper_pid}/ns/mnt", *mount, str(small)])
            binds.append((str(small), target))
        plan = {
            "name": host.name,
            "disk": str(disks / str(number)),
            "needed": [str(path) for path in needed()],
            "binds": binds,
            "sshd": where("sshd"),
            "nic": self.wiring.links[host.name][0].nic,
            "services": [list(argv) for argv in host.services],
            "user": access.USER,
            "uid": access.UID,
            "user_home": access.HOME,
            "files": access.files(host, self.hosts, self.wiring, self._keys),
        }
        path = self.directory / f"{number}.json"
        path.write_text(json.dumps(plan))
        return path

    def _write_access(self) -> None:
        """The driver's way in."""
        config = access.ssh_config(self.hosts, self.wiring, self._keys, self.control.pid)
        self.ssh_config.write_text(config)
        (self.directory / "known_hosts").write_text(self._keys.known_hosts)
        outside = self.directory / "outside"
        outside.write_text(access.outside(self.control.pid))
        outside.chmod(0o755)


def needed() -> list[Path]:
    """What the interpreter of the tests needs to run on a host, the checkout first."""
    hops = [Path(sys.executable)]
    while hops[-1].is_symlink():
        hops.append(hops[-1].parent / os.readlink(hops[-1]))
    base = Path(sys.base_prefix)
    places = [
        ROOT,
        Path(sys.prefix),
        base,
        base.resolve(),
        *(Path(os.path.normpath(hop.parent)) for hop in hops),
    ]
    chosen: list[Path] = []
    for place in sorted(dict.fromkeys(places), key=lambda place: len(place.parts)):
        if not any(place.is_relative_to(other) for other in chosen):
            chosen.append(place)
    return chosen
