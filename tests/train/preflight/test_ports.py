"""Who holds a port: a real process is found by the port it holds, and an earlier run is told apart."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from train.preflight import ports
from train.preflight.settings import Settings

LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[3])), family=int(sys.argv[2]))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
Start = Callable[..., tuple[int, subprocess.Popen[str]]]

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program that listens; its port and itself."""
    started: list[subprocess.Popen[str]] = []

    def begin(
        *words: str, at: str = "127.0.0.1", cwd: Path | None = None, **env: str
    ) -> tuple[int, subprocess.Popen[str]]:
        family = socket.AF_INET6 if ":" in at else socket.AF_INET
        process = subprocess.Popen(
            [sys.executable, *(words or ("-c", LISTEN)), at, str(int(family)), str(free_port())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd,
            env={**os.environ, **env},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0]
        return int(process.stdout.readline()), process

    yield begin
    for process in started:
        process.communicate("", timeout=10)


def settings(port: int) -> Settings:
    return Settings("job", "desk", Path("/nowhere"), port=port, head="desk", nodes=2)


def taken() -> OSError:
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@pytest.mark.parametrize("at", ["127.0.0.1", "0.0.0.0", "::1"])
def test_another_program_is_named_with_its_command(start: Start, at: str) -> None:
    port, process = start(at=at)
    found = ports.holder(port)
    assert found is not None
    assert (found.pid, found.job, found.is_own) == (process.pid, "", False)
    finding = ports.listen_finding(settings(port), taken(), ports.holder(port))
    assert (finding.code, finding.host) == ("PORT001", "desk")
    assert finding.cause.startswith(f"port {port} of desk ")
    assert f"by process {process.pid} ({sys.executable}" in finding.cause
    assert f"kill {process.pid}" in finding.remedy
    assert "rendezvous.port" in finding.remedy


def test_an_earlier_run_of_this_job_is_told_by_its_environment(start: Start) -> None:
    port, process = start(DDPGEN_JOB="job")
    finding = ports.listen_finding(settings(port), taken(), ports.holder(port))
    assert finding.code == "PORT002"
    assert f"earlier run: process {process.pid} (" in finding.cause
    assert f"`kill {process.pid}`" in finding.remedy


def test_another_job_has_every_right_to_its_port(start: Start) -> None:
    port, process = start(DDPGEN_JOB="other")
    finding = ports.listen_finding(settings(port), taken(), ports.holder(port))
    assert finding.code == "PORT001"
    assert f"job other of ddpgen, process {process.pid}" in finding.cause


@pytest.mark.parametrize("module", ["train", "torch.distributed.run"])
def test_an_earlier_run_is_told_by_its_command(start: Start, tmp_path: Path, module: str) -> None:
    place = tmp_path / module.replace(".", "/")
    for package in [p for p in place.parents if p.is_relative_to(tmp_path)][:-1]:
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
    place.with_suffix(".py").write_text(LISTEN)
    port, _ = start("-m", module, cwd=tmp_path)
    assert ports.listen_finding(settings(port), taken(), ports.holder(port)).code == "PORT002"


def test_who_has_only_a_connection_by_the_port_is_named_too(start: Start) -> None:
    port, process = start()
    # An address of its own, and so a port that nobody else uses.
    with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.1", 0)) as client:
        # That of the other end is somebody else's matter.
        found = ports.holder(port)
        assert found is not None
        assert found.pid == process.pid
        mine = ports.holder(client.getsockname()[1])
        assert mine is not None
        assert mine.pid == os.getpid()


def test_a_free_port_has_no_holder_and_one_out_of_sight_is_said_to_be(start: Start) -> None:
    port = free_port()
    assert ports.holder(port) is None
    finding = ports.listen_finding(settings(port), taken(), ports.holder(port))
    assert finding.code == "PORT001"
    assert "this user cannot see" in finding.cause
    assert f"sudo ss -ltnp 'sport = :{port}'" in finding.remedy


def test_a_system_without_proc_names_nobody(start: Start, tmp_path: Path) -> None:
    port, process = start()
    nowhere = tmp_path / "proc"
    assert ports.holder(port, nowhere) is None
    assert ports.process(process.pid, nowhere) is None


@pytest.mark.parametrize(("port", "rights"), [(80, True), (29500, False)])
def test_a_port_that_may_not_be_listened_on(port: int, rights: bool) -> None:
    finding = ports.listen_finding(
        settings(port), PermissionError(errno.EACCES, "Permission denied"), None
    )
    assert finding.code == "PORT007"
    assert "Permission denied" in finding.cause
    assert ("special rights" in finding.cause) is rights


def test_a_long_command_with_odd_characters_stays_one_line(start: Start) -> None:
    port, _ = start("-c", LISTEN + "#\033[2J\n" * 100)
    found = ports.holder(port)
    assert found is not None
    assert str(found).isprintable()
    assert len(str(found)) < 150
