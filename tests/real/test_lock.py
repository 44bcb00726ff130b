"""A job that runs from a lock: installed once a host, never half, and named when that cannot be."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import wheels
from tests.ddpgen.conftest import ddpgen
from tests.real import jobs

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
SCRIPT = """
import os, time, tiny, torch
print("tiny is", tiny.HERE, flush=True)
while os.environ.get("WAIT") and not os.path.exists(os.environ["DDPGEN_STOP_FILE"]):
    time.sleep(0.05)
"""
JOB: dict[str, Any] = {
    "name": "tiny",
    "python": sys.executable,
    "environment": "locked",
    "code": ["where.py"],
    "train": {"script": "where.py"},
    "targets": {"local": {}, "hosts": {"hosts": [{"name": "desk", "address": "127.0.0.1"}]}},
}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[wheels.Index]:
    wheels.write(tmp_path / "wheels")
    index = wheels.Index(tmp_path / "wheels")
    yield index
    index.open.set()
    index.close()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where environments are made; nothing else is read that pip or uv find on this machine."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    alone = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "PIP_TIMEOUT": "120",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in {**alone, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "cache" / "ddpgen"


@pytest.fixture
def bundle(tmp_path: Path, index: wheels.Index, environment: Path) -> Path:
    """The job, locked and rendered."""
    place = tmp_path / "job"
    place.mkdir()
    (place / "job.yaml").write_text("name: tiny\ntrain: {command: 'true', resume: scratch}\n")
    (place / "requirements.txt").write_text(f"--index-url {index.url}\ntiny\n")
    done = ddpgen("lock", "job.yaml", "-r", "requirements.txt", cwd=place)
    assert done.returncode == 0, done.stderr
    index.served.clear()
    index.asked.clear()
    return jobs.render(place, JOB, {"where.py": SCRIPT}, target="all")


def whole(environment: Path) -> list[str]:
    """What is there to be run from."""
    return [found.parent.name for found in environment.glob("*/installed.txt")]


@pytest.mark.nightly
def test_a_start_installs_what_the_next_ones_find(
    bundle: Path, index: wheels.Index, environment: Path
) -> None:
    job = jobs.run(bundle)
    assert job.process.returncode == 0, job.output
    assert len(re.findall("installing into", job.output)) == 1
    (name,) = whole(environment)
    assert f"tiny is {environment / name}/lib/" in job.output
    assert sorted(index.served) == ["borrowed-1.0-py3-none-any.whl", "tiny-1.0-py3-none-any.whl"]
    index.close()
    again = jobs.run(bundle)
    assert again.process.returncode == 0, again.output
    assert f"tiny is {environment / name}/lib/" in again.output
    assert "installing into" not in again.output


@pytest.mark.nightly
def test_a_killed_install_is_done_over_and_of_two_one_waits(
    bundle: Path, index: wheels.Index, environment: Path
) -> None:
    index.open.clear()
    killed = jobs.Job(bundle)
    assert index.asked.wait(jobs.PATIENCE_S)
    killed.process.kill()
    killed.end()
    assert [path for path in environment.iterdir() if path.is_dir()]
    assert whole(environment) == []
    index.asked.clear()
    words = [sys.executable, "-m", "train", "install", "environment.lock"]
    both = [subprocess.Popen(words, cwd=bundle, **jobs.PIPED) for _ in range(2)]
    assert index.asked.wait(jobs.PATIENCE_S)
    index.open.set()
    said = [each.communicate(timeout=jobs.PATIENCE_S)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert all("borrowed==1.0 tiny==1.0\n" in text for text in said)
    assert index.served.count("tiny-1.0-py3-none-any.whl") <= 2  # once for the killed one, maybe
    job = jobs.run(bundle)
    assert job.process.returncode == 0, job.output
    assert "installing into" not in job.output


@pytest.mark.nightly
def test_a_stop_while_it_installs_is_a_stop(
    bundle: Path, index: wheels.Index, environment: Path
) -> None:
    index.open.clear()
    job = jobs.Job(bundle)
    assert index.asked.wait(jobs.PATIENCE_S)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 75, job.output
    assert "stopped before the training began" in job.output
    assert whole(environment) == []


class Driven(jobs.Job):
    """A host's script, and the driver's end of its line."""

    def __init__(self, bundle: Path) -> None:
        words = ["bash", str(bundle / "hosts/desk.sh"), "--driven=t"]
        self.process = subprocess.Popen(words, **{**jobs.PIPED, "stdin": subprocess.PIPE})
        self._listen()
        threading.Thread(target=self._beat, daemon=True).start()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()

    def _beat(self) -> None:
        while self.ended_at is None:
            self.tell("beat")
            time.sleep(5)


@pytest.mark.nightly
def test_the_driver_is_heard_before_and_within_the_environment(
    bundle: Path, index: wheels.Index, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.open.clear()
    host = Driven(bundle)
    assert index.asked.wait(jobs.PATIENCE_S)
    host.tell("stop")
    assert host.end() == 75, host.output
    assert whole(environment) == []
    index.open.set()
    monkeypatch.setenv("WAIT", "until the stop file is there")
    host = Driven(bundle)
    host.until("^tiny is ")
    host.tell("stop")
    host.until("TERM: asking for a clean stop")
    host.end()
    assert len(whole(environment)) == 1


@pytest.mark.nightly
def test_a_host_without_a_network_says_what_to_do(
    bundle: Path, index: wheels.Index, environment: Path
) -> None:
    index.close()
    job = jobs.run(bundle)
    assert job.process.returncode == 69
    last = job.lines[-1]
    assert "could not install environment.lock" in last
    assert f"type on one that has it and shares this home: cd {bundle} && python3" in last
    assert last.endswith("(PY004)")
    assert whole(environment) == []


@pytest.mark.nightly
def test_another_file_of_that_version_is_refused(
    bundle: Path, tmp_path: Path, environment: Path
) -> None:
    wheels.wheel(tmp_path / "wheels", "tiny", {"tiny.py": "HERE = 'elsewhere'\n"})
    job = jobs.run(bundle)
    assert job.process.returncode == 69
    assert "hash" in job.output.lower()
    assert whole(environment) == []
