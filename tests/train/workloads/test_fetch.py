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
from tests.train.workloads.http_files import Site, answers, cut, drips, serving, stalls
from train.errors import TrainError
from train.fetch import Limits, fetch, file_sha256

BODY = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
QUICK = Limits(stall_s=5, total_s=20, attempts=4, pause_s=0)


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
        fetch(f"{server.url}/file", str(path), SHA256, QUICK)
    finally:
        os.umask(old)
    assert path.read_bytes() == BODY
    assert file_sha256(str(path)) == SHA256
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "colleagues share the folder"
    assert files_in(path.parent) == ["file"]
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"{server.url}/file: fetching"
    assert last.startswith(f"{server.url}/file: 0.3 MB in ")


def test_broken_off_download_goes_on_where_it_ended(server: Site, tmp_path: Path) -> None:
    server.faults["file"] = [cut(after=100_000)]
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, QUICK)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.requests == [("file", None), ("file", "bytes=100000-")]


def test_server_without_ranges_is_asked_for_the_whole_file_again(
    server: Site, tmp_path: Path
) -> None:
    server.ranges = False
    server.faults["file"] = [cut(after=100_000)]
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, QUICK)
    assert (tmp_path / "file").read_bytes() == BODY


@pytest.mark.parametrize("etags", [True, False], ids=["server-tells", "server-keeps-silent"])
def test_file_that_changed_between_two_attempts_is_not_stitched_together(
    server: Site, tmp_path: Path, etags: bool
) -> None:
    def breaks_off_and_changes(handler, body):
        cut(after=100_000)(handler, b"x" * len(body))

    server.etags = etags
    server.faults["file"] = [breaks_off_and_changes]
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, QUICK)
    assert (tmp_path / "file").read_bytes() == BODY


def test_part_that_is_already_complete_is_not_resumed_for_ever(
    server: Site, tmp_path: Path
) -> None:
    def promises_more(handler, body):
        handler.send_whole(body, promised=len(body) + 1)

    server.faults["file"] = [promises_more]
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, QUICK)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.requests[1] == ("file", "bytes=300000-")


def test_wrong_hash_leaves_nothing_and_the_message_says_all(server: Site, tmp_path: Path) -> None:
    wanted = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(TrainError) as error:
        fetch(f"{server.url}/file", str(tmp_path / "file"), wanted, QUICK)
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
        fetch(f"{server.url}/file", str(tmp_path / "file"), "0" * 64, QUICK)
    assert (tmp_path / "file").read_text() == "older"


def test_missing_file_is_asked_for_once(server: Site, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="the server answered 404 Not Found; correct the URL"):
        fetch(f"{server.url}/other", str(tmp_path / "file"), None, QUICK)
    assert len(server.requests) == 1


def test_busy_server_is_asked_again(server: Site, tmp_path: Path) -> None:
    server.faults["file"] = [answers(503), answers(429)]
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, QUICK)
    assert len(server.requests) == 3


def test_server_that_stays_busy_is_given_up(server: Site, tmp_path: Path) -> None:
    server.faults["file"] = [answers(503)] * 9
    with pytest.raises(TrainError, match=r"503 Service Unavailable \(attempt 4 of 4\)"):
        fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, QUICK)
    assert files_in(tmp_path) == []


def test_stalled_server_is_left_in_time_and_resumed(server: Site, tmp_path: Path) -> None:
    server.faults["file"] = [stalls(after=1000)]
    # It bounds the answers that do come, too.
    limits = Limits(stall_s=2, total_s=40, attempts=2, pause_s=0)
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, limits)
    assert server.requests[1] == ("file", "bytes=1000-")


def test_server_that_always_stalls_is_given_up(server: Site, tmp_path: Path) -> None:
    server.faults["file"] = [stalls(after=0), stalls(after=0)]
    limits = Limits(stall_s=0.2, total_s=20, attempts=2, pause_s=0)
    with pytest.raises(TrainError, match=r"no answer in time \(attempt 2 of 2\)"):
        fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, limits)
    assert files_in(tmp_path) == []


def test_dripping_server_cannot_hold_a_job_beyond_the_total(server: Site, tmp_path: Path) -> None:
    server.faults["file"] = [drips] * 9
    limits = Limits(stall_s=5, total_s=0.5, attempts=9, pause_s=0)
    began = time.monotonic()
    with pytest.raises(TrainError, match=r"not complete after 0\.5 s"):
        fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, limits)
    assert time.monotonic() - began < 30


def test_the_last_wait_of_all_is_no_silence_of_the_server(server: Site, tmp_path: Path) -> None:
    server.faults["file"] = [stalls(after=0)] * 9
    limits = Limits(stall_s=20, total_s=0.3, attempts=9, pause_s=0)
    with pytest.raises(TrainError, match=r"not complete after 0\.3 s"):
        fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, limits)


def test_nobody_listens(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        TrainError, match=r"Connection refused \(attempt 4 of 4\); check the network"
    ):
        fetch(f"{url}/file", str(tmp_path / "file"), None, QUICK)


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
        ("file://elsewhere.invalid/file", "; correct "),
        ("file:///no/such/file", "No such file or directory; correct the path in the URL"),
        ("file:///", "Is a directory"),
    ],
)
def test_bad_url_is_refused_at_once(url: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(TrainError) as error:
        fetch(url, str(tmp_path / "file"), None, QUICK)
    assert url in str(error.value)
    assert reason in str(error.value)
    assert files_in(tmp_path) == []


def test_file_url(tmp_path: Path) -> None:
    (tmp_path / "source with space").write_bytes(BODY)
    fetch((tmp_path / "source with space").as_uri(), str(tmp_path / "file"), SHA256.upper(), QUICK)
    assert (tmp_path / "file").read_bytes() == BODY


def test_folder_that_cannot_be_made(server: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(TrainError, match=r"cannot store .*file/file': .*make .* writable"):
        fetch(f"{server.url}/file", str(tmp_path / "file" / "file"), None, QUICK)


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
    fetch(f"{server.url}/file", str(tmp_path / "file"), SHA256, QUICK)
    assert (tmp_path / "file").read_bytes() == BODY


def test_full_disk_is_said_once_and_leaves_nothing(server: Site, tmp_path: Path) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999)); {FETCH}"
    fetcher = start_fetcher(f"{server.url}/file", tmp_path / "file", limited)
    _, err = fetcher.communicate(timeout=60)
    assert "TrainError: cannot store" in err
    assert "File too large; make room there" in err
    assert len(server.requests) == 1
    assert files_in(tmp_path) == []
