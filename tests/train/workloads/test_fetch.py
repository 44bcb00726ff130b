"""Downloads from a real server that behaves, breaks off, stalls, lies or is not there."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train.workloads.http_files import Fault, Site, answers, cut, drips, serving, stalls
from train import fetch as fetch_module
from train.errors import TrainError
from train.fetch import fetch, file_sha256

BODY = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "PAUSES_S", (0.0,) * 4)


@pytest.fixture
def server() -> Iterator[Site]:
    with serving({"file": BODY}) as site:
        yield site


def files_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_file_arrives_whole_in_a_new_folder_and_progress_is_told(
    server: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "folder" / "file"
    old = os.umask(0o022)
    try:
        fetch(f"{server.url}/file", str(path), SHA256)
    finally:
        os.umask(old)
    assert path.read_bytes() == BODY
    assert file_sha256(str(path)) == SHA256
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "colleagues share the folder"
    assert files_in(path.parent) == ["file"]
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"{server.url}/file: fetching"
    assert last.startswith(f"{server.url}/file: 0.3 MB in ")


@pytest.mark.parametrize(
    "fault",
    [cut(after=100_000), stalls(after=1000), answers(503), answers(429)],
    ids=["cut", "stalls", "503", "429"],
)
def test_what_fails_for_a_moment_is_asked_for_again(
    server: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(fetch_module, "STALL_S", 2.0)
    server.faults["file"] = [fault]
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256)
    assert (tmp_path / "file").read_bytes() == BODY
    assert len(server.requests) == 2


def test_wrong_hash_leaves_nothing_and_the_message_says_all(server: Site, tmp_path: Path) -> None:
    wanted = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(TrainError) as error:
        fetch(f"{server.url}/file", str(tmp_path / "file"), wanted)
    assert str(error.value) == (
        f"{server.url}/file is not the file it should be: its sha256 is {SHA256}, wanted is "
        f"{wanted}; a proxy or login page may have answered instead, so look at what the URL "
        "returns; if the file was changed on purpose, give its new hash"
    )
    assert files_in(tmp_path) == []
    assert len(server.requests) == 1, "the same bytes would come again"


def test_failed_download_leaves_the_older_file_as_it_was(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("older")
    with pytest.raises(TrainError):
        fetch(f"{server.url}/file", str(tmp_path / "file"), "0" * 64)
    assert (tmp_path / "file").read_text() == "older"


def test_missing_file_is_asked_for_once(server: Site, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="the server answered 404 Not Found; check"):
        fetch(f"{server.url}/other", str(tmp_path / "file"), None)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (answers(503), "the server answered 503 Service Unavailable"),
        (cut(after=1000), "the connection ended after 1000 of 300000 bytes"),
        (stalls(after=0), "timed out"),
    ],
)
def test_a_server_that_fails_every_time_is_given_up(
    server: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, reason: str
) -> None:
    monkeypatch.setattr(fetch_module, "STALL_S", 0.2)
    server.faults["file"] = [fault] * 9
    with pytest.raises(TrainError, match=f"cannot download {server.url}/file: {reason}; check"):
        fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256)
    assert len(server.requests) == 4
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("fault", [drips, stalls(after=0)], ids=["drips", "stalls"])
def test_no_server_holds_a_job_beyond_the_total(server: Site, tmp_path: Path, fault: Fault) -> None:
    server.faults["file"] = [fault] * 9
    began = time.monotonic()
    with pytest.raises(TrainError, match=r"not complete after 0\.5 s"):
        fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, total_s=0.5)
    assert time.monotonic() - began < 15


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="Connection refused; check the network"):
        fetch(f"http://127.0.0.1:{free_port()}/file", str(tmp_path / "file"), None)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mnist/file", "does not begin with http://, https://, file://"),
        ("ftp://127.0.0.1/file", "does not begin with"),
        ("http://", "no host given"),
        ("http://127.0.0.1/a file", "can't contain control characters"),
        ("http://127.0.0.1:port/file", "nonnumeric port"),
        ("http://[::1/file", "Invalid IPv6 URL"),
        ("http://127.0.0.1/größe", "ascii"),
        ("file:///no/such/file", "No such file or directory"),
        ("file:///", "Is a directory"),
    ],
)
def test_bad_url_is_refused_at_once(url: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(TrainError) as error:
        fetch(url, str(tmp_path / "file"), None)
    assert url in str(error.value)
    assert reason in str(error.value)
    assert files_in(tmp_path) == []


def test_file_url(tmp_path: Path) -> None:
    (tmp_path / "source with space").write_bytes(BODY)
    fetch((tmp_path / "source with space").as_uri(), str(tmp_path / "file"), SHA256.upper())
    assert (tmp_path / "file").read_bytes() == BODY


def test_folder_that_cannot_be_made(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(TrainError, match=r"cannot store .*file/file': .*make .* writable"):
        fetch(f"{server.url}/file", str(tmp_path / "file" / "file"), None)


FETCH = "import sys; from train.fetch import fetch; fetch(sys.argv[1], sys.argv[2], sys.argv[3])"


def start_fetcher(url: str, path: Path, script: str = FETCH) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[3])
    return subprocess.Popen(
        [sys.executable, "-c", script, url, str(path), SHA256],
        cwd=root,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_fetching_the_same_file_at_once_do_no_damage(
    server: Site, tmp_path: Path
) -> None:
    both_are_in_the_middle = threading.Barrier(2, timeout=30)

    def waits_for_the_other(handler, body):
        cut(after=len(body) // 2)(handler, body)
        handler.wfile.flush()
        both_are_in_the_middle.wait()
        handler.wfile.write(body[len(body) // 2 :])

    server.faults["file"] = [waits_for_the_other, waits_for_the_other]
    fetchers = [start_fetcher(f"{server.url}/file", tmp_path / "file") for _ in range(2)]
    for fetcher in fetchers:
        _, err = fetcher.communicate(timeout=60)
        assert fetcher.returncode == 0, err
    assert (tmp_path / "file").read_bytes() == BODY
    assert files_in(tmp_path) == ["file"]


def test_killed_fetcher_leaves_nothing_under_the_final_name(server: Site, tmp_path: Path) -> None:
    in_the_middle = threading.Event()

    def stalls_and_tells(handler, body):
        cut(after=len(body) // 2)(handler, body)
        handler.wfile.flush()
        in_the_middle.set()
        handler.site.released.wait(60)

    server.faults["file"] = [stalls_and_tells]
    fetcher = start_fetcher(f"{server.url}/file", tmp_path / "file")
    assert in_the_middle.wait(30)
    fetcher.kill()
    fetcher.communicate(timeout=30)
    assert not (tmp_path / "file").exists()
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256)
    assert (tmp_path / "file").read_bytes() == BODY


def test_full_disk_is_said_once_and_leaves_nothing(server: Site, tmp_path: Path) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999)); {FETCH}"
    fetcher = start_fetcher(f"{server.url}/file", tmp_path / "file", limited)
    _, err = fetcher.communicate(timeout=60)
    assert "TrainError: cannot store" in err
    assert "File too large; make " in err
    assert len(server.requests) == 1
    assert files_in(tmp_path) == []
