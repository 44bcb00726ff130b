"""A bundle with a driver in it, and hosts that are directories of this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpgen.render import Renderer
from tests.ddpgen.conftest import ROOT

HERE = Path(__file__).parent
TIMEOUT_S = 60

# The driver as it lies in the bundle, in a hurry: every wait is shorter, nothing else differs.
QUICK = """
import os, sys
from pathlib import Path
bundle = Path(sys.argv[1])
sys.path.insert(0, str(bundle / "hosts"))
from driver.command import main
from driver.pace import Pace
pace = Pace(
    signal_repeat=0.0,
    beat=0.1,
    check=float(os.environ["CHECK_S"]),
    after_failure=0.5,
    after_kill=60,
    after_success=60,
    retry=0.2,
    hosts_return=3,
    flush=60,
)
sys.exit(main(sys.argv[2:], str(bundle), pace))
"""


class Stage:
    """A bundle, and a home for each of its hosts."""

    def __init__(self, root: Path, hosts: tuple[str, ...], **keys: Any):
        self.homes, self.bundle = root / "homes", root / "build" / "pair"
        self.checkpoints = root / "build" / "checkpoints" / "pair"
        self.logs = root / "build" / "logs" / "pair"
        for host in hosts:
            (self.homes / host).mkdir(parents=True)
            self.part(host, "done")
        (self.bundle / "train").mkdir(parents=True)
        (self.bundle / "train" / "__main__.py").write_text("it is a copy\n")
        (self.bundle / "bundle.json").write_text("{}\n")
        driver = self.bundle / "hosts" / "driver"
        shutil.copytree(ROOT / "ddpgen" / "driver", driver)  # as it was compiled at an import here
        self.plan = {
            "name": "pair",
            "launcher": "torchrun",
            "elastic": None,
            "restarts": 3,
            "head": hosts[0],
            "ssh_options": [],
            "checkpoint_dir": "checkpoints/pair",
            "hosts": [
                {"name": n, "ssh": n, "dir": "~/ddpgen", "script": f"hosts/{n}.sh"} for n in hosts
            ],
            **keys,
        }
        for host in self.plan["hosts"]:
            shutil.copy(HERE / "host.sh", self.bundle / host["script"])
        self.write()

    def write(self) -> None:
        (self.bundle / "hosts" / "hosts.json").write_text(json.dumps(self.plan))
        values = {
            "example": "--steps=50",
            "name": "pair",
            "hosts": self.plan["hosts"],
            "again": "the same command goes on",
            "points": 0,
        }
        (self.bundle / "hosts" / "run.sh").write_text(Renderer().render("run.sh.j2", values))

    def home(self, host: str) -> Path:
        return self.homes / host

    def door(self, host: str, how: str) -> None:
        (self.home(host) / ".door").write_text(how)

    def part(self, host: str, *parts: str) -> None:
        (self.home(host) / "part").write_text("".join(f"{part}\n" for part in parts))

    def environment(self) -> dict[str, str]:
        fake = shlex.join([sys.executable, "-SE", str(HERE / "fake_ssh.py")])
        check = {"CHECK_S": str(TIMEOUT_S)}
        return os.environ | {"DDPGEN_SSH": fake, "FAKE_HOMES": str(self.homes)} | check

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The driver, in a session of its own as a terminal gives it."""
        command = [sys.executable, "-c", QUICK, str(self.bundle), *words]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        return subprocess.Popen(
            options.pop("command", command),
            env=self.environment() | options.pop("env", {}),
            text=True,
            start_new_session=True,
            **options,
        )

    def play(self, *words: str, **options: Any) -> tuple[int, str]:
        """Exit code and output of a whole run."""
        process = self.start(*words, **options)
        output = rest(process)
        assert "Traceback" not in output, output
        return process.returncode, output

    def started(self) -> list[str]:
        """The hosts whose script has been started."""
        return sorted(path.parent.name for path in self.homes.glob("*/launches"))

    def sessions(self, host: str) -> list[tuple[int, int]]:
        """Process ids of ssh and of the login shell, for every connection so far."""
        lines = (self.home(host) / ".sessions").read_text().splitlines()
        return [(int(ssh), int(shell)) for ssh, shell in map(str.split, lines)]

    def cut(self, host: str) -> None:
        """The connection of the running script breaks, unnoticed by the host."""
        os.kill(self.sessions(host)[-1][0], signal.SIGUSR2)

    def alive(self) -> list[int]:
        """What still runs of all that was started over ssh."""
        pids = [pid for path in self.homes.glob("*/.sessions") for pid in _pids(path)]
        return [pid for pid in pids if _runs(pid)]


def until(process: subprocess.Popen[str], *texts: str) -> str:
    """Read until each of these has been said; what was said so far."""
    assert process.stdout is not None
    heard, missing = "", list(texts)
    while missing:
        line = process.stdout.readline()
        assert line, f"ended without {missing}:\n{heard}"
        heard += line
        hit = next((text for text in missing if text in line), None)
        if hit is not None:
            missing.remove(hit)
    return heard


def rest(process: subprocess.Popen[str]) -> str:
    """What is said to the end; communicate() would miss what until() has read ahead."""
    assert process.stdout is not None
    said = process.stdout.read()
    process.wait(TIMEOUT_S)
    return said


def _pids(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()]


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(*hosts: str, **keys: Any) -> Stage:
        made.append(Stage(tmp_path, hosts or ("desk", "lap"), **keys))
        return made[-1]

    yield make
    for each in made:
        for pid in each.alive():
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                continue
