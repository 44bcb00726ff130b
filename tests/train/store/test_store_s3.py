"""A store by URL, against a real S3 server: the same promises, and a clear word for what is wrong."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ci import do_without
from tests.conftest import ROOT
from tests.ports import free_port
from tests.real.jobs import assert_same_bits
from tests.train.store.faults import KILLED, Machine, through, whole_steps
from tests.train.workers import Run, run
from train.base.errors import TrainError
from train.checkpoint.checkpointer import Checkpointer
from train.checkpoint.store import retries
from train.checkpoint.store.places import open_store
from train.run.layout import MARKER

MODELS = Path(__file__).parents[1] / "odd_models.py"
KEY, SECRET = "someone", "a-secret"
PATIENCE_S = 20.0
pytestmark = pytest.mark.real


@dataclass
class Server:
    """rclone, which keeps each object as a file below `place`."""

    rclone: str
    place: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def bucket(self) -> Path:
        return self.place / "bucket"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                self.rclone, "serve", "s3", str(self.place), f"--addr=127.0.0.1:{self.port}",
                f"--auth-key={KEY},{SECRET}", "--dir-cache-time=50ms", "--no-modtime",
                "--config=/dev/null",
            ],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, "the server ends"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.02)

    def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    do_without("s3fs", "" if importlib.util.find_spec("s3fs") else "pip install s3fs")
    places = [Path(sys.executable).parent, ROOT / ".venv-sky" / "bin", *os.get_exec_path()]
    rclone = shutil.which("rclone", path=os.pathsep.join(map(str, places)))
    if rclone is None:
        do_without("S3 server", "there is no rclone here: make sky")
    assert rclone is not None
    found = Server(rclone, tmp_path / "s3", free_port())
    found.bucket.mkdir(parents=True)
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{found.port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_MAX_ATTEMPTS": "1",
        "DDPGEN_SCHEDULER": "sky task-1 1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retries, "PAUSES_S", (0.0, 0.05))
    found.start()
    yield found
    found.stop()


def test_objects_are_whole_listed_and_deleted(server: Server, tmp_path: Path) -> None:
    store = open_store("s3://bucket/runs/gpt")
    assert store.list("") == {}
    large = tmp_path / "large"
    large.write_bytes(os.urandom(1 << 20) * 60)  # more than goes in one request
    store.put("step-000000001/model.pt", large)
    store.write("step-000000001/checkpoint.json", b"{}")
    store.write("metrics/000000001-000000002.jsonl", b"row\n")
    store.write("stop", b"enough")
    assert store.list("step-") == {
        "step-000000001/model.pt": 60 << 20,
        "step-000000001/checkpoint.json": 2,
    }
    assert list(store.list("metrics/")) == ["metrics/000000001-000000002.jsonl"]
    assert len(store.list("")) == 4
    store.get("step-000000001/model.pt", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
    # Another's change is seen, whatever was listed before.
    (server.bucket / "runs/gpt/stop").write_text("now")
    deadline = time.monotonic() + PATIENCE_S
    while store.read("stop") != b"now":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    store.delete("stop")
    store.delete("stop")
    with pytest.raises(FileNotFoundError):
        store.read("stop")
    assert "stop" not in store.list("")


def trained(place: Path) -> Run:
    return run(
        place, f"{MODELS}:dropout", 2, "--checkpoint-store=s3://bucket/run", "--steps=8",
        "--checkpoint-every=2 steps", "--checkpoint-keep=2",
    )  # fmt: skip


def test_killed_before_a_marker_the_job_goes_on_elsewhere_to_the_same_tensors(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = Checkpointer.due

    def waits(self: Checkpointer, step: int) -> bool:
        self.settle(60.0)
        return due(self, step)

    def hook(_: int, kind: str, name: str) -> None:
        if (kind, name) == ("write", f"step-000000006/{MARKER}"):
            os._exit(KILLED)

    monkeypatch.setattr(Checkpointer, "due", waits)
    with monkeypatch.context() as patch:
        through(patch, hook)
        died = trained(tmp_path / "one")
    assert died.codes[0] == KILLED, died.output
    assert whole_steps(server.bucket / "run") == [2, 4]
    monkeypatch.setenv("DDPGEN_SCHEDULER", "sky task-1 2")
    done = trained(tmp_path / "two")
    assert done.codes == [0, 0], done.output
    assert "step 6 in s3://bucket/run is not whole" in done.output
    assert "resuming at step 4 of 8" in done.output
    assert whole_steps(server.bucket / "run") == [6, 8]
    undisturbed = run(tmp_path / "three", f"{MODELS}:dropout", 2, "--steps=8")
    assert_same_bits(done.tensors(), undisturbed.tensors())


def refused(place: Path, url: str) -> str:
    machine = Machine(place, url)
    with pytest.raises(TrainError) as error:
        machine.open()
    machine.fence.close()
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_bucket_that_is_not_there(server: Server, tmp_path: Path) -> None:
    text = refused(tmp_path / "one", "s3://no-such-bucket/run")
    assert " s3://no-such-bucket/run cannot be used: it is not there; " in text
    assert not (server.place / "no-such-bucket").exists(), "nobody asked for a new one"


def test_a_wrong_key(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "cannot be used: no permission; " in refused(tmp_path / "one", "s3://bucket/run")


def test_no_key(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    text = refused(tmp_path / "one", "s3://bucket/run")
    assert "no credentials (" in text


def test_a_server_that_is_away_at_the_start_and_in_the_middle(
    server: Server, tmp_path: Path
) -> None:
    machine = Machine(tmp_path / "one", "s3://bucket/run")
    assert machine.begin() == 0
    machine.train(1, 2)
    machine.save(2)
    server.stop()
    machine.train(3, 4)
    with pytest.raises(OSError, match=r"\w"):
        machine.save(4)
    machine.end()
    text = refused(tmp_path / "two", "s3://bucket/run")
    assert "Could not connect to the endpoint URL" in text or "Connect" in text
    server.start()
    again = Machine(tmp_path / "two", "s3://bucket/run")
    assert again.begin() == 2
    again.end()
