"""Preflights as a user starts them by hand: each host's script in a terminal of its own.

Owns putting a bundle on the hosts of a rig, starting its scripts, and what every terminal shows and
when. Knows no fault: stories do to the rig what they tell of.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real import fleet, jobs
from tests.real.rig import Host, Machine, Rig, access

NAMES = ("desk", "laptop", "tower")
# What is promised: named so many seconds after the last host was started.
WITHIN_S = 10.0
PATIENCE_S = 90.0
# rendezvous.timeout of a job of which a host never comes: the others say so after 5 s, and may have begun
# seconds after the others.
MISSING_S = 12
REFUSED = 69
SMALL_DISK = "/data"


def in_time(took_s: float, within_s: float = WITHIN_S) -> bool:
    """Whether it came within the seconds that are promised. Asked by `make nightly` only, which runs these
    stories one at a time: beside others they show what is said, and not how fast."""
    return took_s < within_s or "DDPGEN_TEST_TIMES" not in os.environ


def hosts(names: Sequence[str] = NAMES, **more: Any) -> list[Host]:
    """Hosts on three networks: the one where all meet, another by cable, and a VPN."""
    nets = {"lan": ("eth0", None), "lab": ("eth1", None), "vpn": ("tailscale0", None)}
    return [
        Host(name, networks=nets, small_disk={SMALL_DISK: 32}, shared="/shared", **more)
        for name in names
    ]


def mend(rig: Rig) -> None:
    """As after booting; what a story does to disks it undoes itself."""
    for each in rig:
        if not each.up:
            each.boot()
        each.thaw()
        each.kill_all()
        each.clear_firewall()
        each.plug()
        each.black_hole(None)
        each.empty(SMALL_DISK)


class Terminal(jobs.Lines):
    """A script that runs on a host, and what it has printed so far."""

    def __init__(self, machine: Machine, argv: Sequence[str], **options: Any) -> None:
        self.host = machine.name
        self.process = machine.popen(argv, **jobs.PIPED, **options)
        self._listen()

    @property
    def text(self) -> str:
        """Everything printed, without the line breaks: for sentences that a table breaks."""
        return " ".join(self.output.split())

    def until(self, pattern: str, within: float = PATIENCE_S) -> float:
        """Wait for a line that matches; when it came."""

        def found() -> float | None:
            lines = zip(self.times, self.lines, strict=False)
            return next((at for at, line in lines if re.search(pattern, line)), None)

        with self._news:
            self._news.wait_for(lambda: found() or self.ended_at is not None, within)
            at = found()
        assert at is not None, f"{self.host}: no {pattern!r} in {within} s:\n{self.output}"
        return at

    def ended(self, within: float) -> bool:
        """Wait for its end; whether it came."""
        with self._news:
            return self._news.wait_for(lambda: self.ended_at is not None, within)

    def end(self, within: float = PATIENCE_S) -> int:
        """Wait for its end; the exit code."""
        assert self.ended(within), f"{self.host}: no end in {within} s:\n{self.output}"
        return self.process.wait(PATIENCE_S)

    def findings(self) -> list[Shown]:
        """The rows of the table, as far as it was printed."""
        found: list[Shown] = []
        for at, line in zip(self.times, self.lines, strict=False):
            if row := re.match(r"(error|warning|note) +([A-Z]+\d{3}) +(\S+) *(.*)", line):
                found.append(Shown(at, *row.groups()))
            elif found and line.startswith("  "):
                found[-1] = found[-1].longer(line)
        return found


@dataclass(frozen=True)
class Shown:
    """A finding on a terminal: when its first line came, and all of its words."""

    at: float
    severity: str
    code: str
    host: str
    text: str

    def longer(self, line: str) -> Shown:
        text = f"{self.text} {line.strip()}"
        return Shown(self.at, self.severity, self.code, self.host, text)


class Launch:
    """The scripts of some hosts, started one after the other."""

    def __init__(self, terminals: Sequence[Terminal]) -> None:
        self.terminals = {each.host: each for each in terminals}
        self.began = max(each.began for each in terminals)

    def __getitem__(self, host: str) -> Terminal:
        return self.terminals[host]

    def ends(self, code: int = REFUSED) -> None:
        """All of them end, and with this code."""
        deadline = time.monotonic() + PATIENCE_S
        for each in self.terminals.values():
            assert each.ended(deadline - time.monotonic()), f"{each.host}: no end\n{self.output}"
        codes = {name: each.end() for name, each in self.terminals.items()}
        assert codes == dict.fromkeys(codes, code), self.output

    def names(
        self, code: str, host: str, *words: str, on: Sequence[str] = (), severity: str = "error"
    ) -> None:
        """Every terminal (or those of `on`) shows this finding in time, once, with these words."""
        for each in (self.terminals[name] for name in on or self.terminals):
            shown = [one for one in each.findings() if (one.code, one.host) == (code, host)]
            assert len(shown) == 1, f"{each.host}: {code} {host}: {len(shown)}\n{self.output}"
            assert shown[0].severity == severity, self.output
            took = shown[0].at - self.began
            assert in_time(took), f"{each.host}: {code} after {took:.1f} s\n{self.output}"
            for word in words:
                assert word in shown[0].text, f"{word!r} is not in\n{shown[0].text}\n{self.output}"

    def names_only(self, *codes: str) -> None:
        """No terminal shows any other error or warning."""
        for each in self.terminals.values():
            shown = {one.code for one in each.findings() if one.severity != "note"}
            assert shown <= set(codes), self.output

    def waits_for(self, host: str, *words: str, on: Sequence[str]) -> None:
        """These terminals have said in time that the host has not come."""
        for name in on:
            at = self[name].until(rf"waiting for .*\b{host}\b")
            assert in_time(at - self.began), self.output
            for word in words:
                assert word in self[name].text, f"{word!r}: {self.output}"

    def joined(self, other: Launch) -> Launch:
        """Both, as one."""
        return Launch([*self.terminals.values(), *other.terminals.values()])

    @property
    def output(self) -> str:
        return "\n".join(
            f"{each.host} {at - self.began:6.2f} | {line}"
            for each in self.terminals.values()
            for at, line in zip(each.times, each.lines, strict=False)
        )


class Stage:
    """A rig, and where the jobs of a story are rendered."""

    def __init__(self, rig: Rig, place: Path) -> None:
        self.rig, self._place = rig, place
        self._count = 0

    def job(self, hosts: Sequence[Any] = NAMES, on: Sequence[str] = NAMES, **more: Any) -> Bundle:
        """Render a job of these hosts and put it on the hosts `on` of the rig."""
        self._count += 1
        place = self._place / str(self._count)
        meeting = {"timeout": f"{more.pop('patience', 30)}s", "port": more.pop("port", 29500)}
        spec = fleet.spec(hosts, tier={"rendezvous": meeting}, **{"name": "job", **more})
        bundle = Bundle(self.rig, jobs.render(place, spec, target="hosts"), spec["name"])
        for name in on:
            bundle.put(self.rig[name])
        return bundle

    def launch(self, hosts: Sequence[Any] = NAMES, **more: Any) -> Launch:
        """The same, and start every script."""
        return self.job(hosts, **more).start()

    def ends(self, launch: Launch, code: int = REFUSED) -> None:
        """It ends on all hosts with this code, and nothing of it is left."""
        launch.ends(code)
        assert self.rig.strays(within=30) == []


class Bundle:
    """A bundle that lies on every host of a rig, where run.sh puts it, too."""

    def __init__(self, rig: Rig, bundle: Path, name: str) -> None:
        self.rig, self.place, self.name = rig, bundle, name
        self.directory = f"{Machine.home}/ddpgen/{name}"

    def put(self, machine: Machine) -> None:
        """Lay it on this host, in place of whatever lies there."""
        parent = machine.path("ddpgen")
        shutil.rmtree(parent, ignore_errors=True)
        parent.mkdir()
        os.chown(parent, access.UID, access.UID)
        access.copy(self.place, parent / self.name)

    @property
    def hosts(self) -> list[str]:
        return sorted(
            path.stem for path in (self.place / "hosts").glob("*.sh") if path.stem != "run"
        )

    def at(self, host: str, name: str) -> Path:
        """A file of the bundle on one host."""
        return self.rig[host].path(f"{self.directory}/{name}")

    def terminal(
        self, host: str, *arguments: str, script: str = "", before: str = "", **options: Any
    ) -> Terminal:
        """Start a host's script with --preflight; `before` are words of a shell."""
        path = f"{self.directory}/hosts/{script or host}.sh"
        words = ["bash", "-c", f'{before}exec bash "$@"', "bash", path, "--preflight", *arguments]
        return Terminal(self.rig[host], words, **options)

    def start(
        self,
        *names: str,
        arguments: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> Launch:
        """Start these hosts' scripts in this order; without names all, the head as the last: it waits
        for nobody for long once anything is wrong."""
        given = arguments or {}
        chosen = names or sorted(self.hosts, key=lambda host: host == NAMES[0])
        return Launch([self.terminal(each, *given.get(each, ()), **options) for each in chosen])

    def kept(self, host: str) -> Path:
        """preflight.json of a host."""
        return self.rig[host].path(f"ddpgen/checkpoints/{self.name}/preflight.json")


def closed_but_for(machine: Machine, *ports: int) -> None:
    """A firewall as distributions set them up: nobody outside may connect, but for these ports."""
    opened = ",".join(map(str, (22, *ports)))
    rule = ("!", "-i", "lo", "-p", "tcp", "--syn", "-m", "multiport", "!", "--dports", opened)
    as_root(machine, "iptables", "-A", "INPUT", *rule, "-j", "DROP")


def as_root(machine: Machine, *argv: str) -> None:
    machine.run(argv, user="root", check=True)


def edited(path: Path, change: Callable[[str], str]) -> None:
    """A file of one host, changed there for good (its disk is its own)."""
    path.write_text(change(path.read_text()))
