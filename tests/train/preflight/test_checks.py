"""One host examines itself: all of it, in bounded time, and without an alarm where all is well."""

from __future__ import annotations

import os
import resource
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from train.base import nic
from train.preflight import checks, command, directory, facts, limits
from train.preflight.limits import Limits
from train.preflight.report import Report
from train.preflight.settings import Settings

MIB = 1 << 20


@pytest.fixture
def job(tmp_path: Path) -> Settings:
    """One of two hosts that are both this machine."""
    return Settings(
        "job", "desk", tmp_path / "checkpoints", node_rank=1, nodes=2, min_nodes=2, world_size=2,
        head="127.0.0.1", port=29500, is_head=False,
        addresses={"slow": "127.0.0.1", "desk": "127.0.0.1"},
    )  # fmt: skip


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Set at the end, so that no thread of a test outlives it."""
    event = threading.Event()
    yield event
    event.set()


def test_a_healthy_host_reports_what_it_is_and_finds_nothing(job: Settings) -> None:
    report = checks.examine(job)
    assert report.findings == ()
    assert (report.host, report.node_rank, report.nodes, report.head) == ("desk", 1, 2, "127.0.0.1")
    assert (report.nic, report.address, report.prefix) == ("lo", "127.0.0.1", 8)
    assert report.resolved == "127.0.0.1"
    assert {"machine", "torch", "python", "isa"} <= set(report.facts)
    assert Report.from_json(asdict(report)) == report
    assert "filesystem" not in report.facts
    shared = checks.examine(replace(job, shared=True))
    assert shared.facts["filesystem"] == (job.checkpoint_dir / directory.TOKEN).read_text()


def test_a_healthy_host_is_examined_in_a_moment(job: Settings) -> None:
    took, passed = [], []
    for _ in range(9):
        # Its own work, as a busy machine lets it wait; but no look may wait by itself.
        began, worked = time.monotonic(), time.process_time()
        checks.examine(job)
        took.append(time.process_time() - worked)
        passed.append(time.monotonic() - began)
    assert statistics.median(took) < 0.1
    assert min(passed) < 1


def test_a_job_on_one_machine_has_no_network(job: Settings) -> None:
    report = checks.examine(Settings("job", "desk", job.checkpoint_dir))
    assert (report.findings, report.nic, report.address, report.resolved) == ((), "", "", "")
    (finding,) = checks.examine(Settings("job", "desk", job.checkpoint_dir, nic="none0")).findings
    assert finding.code == "NIC001"


def test_a_file_server_that_does_not_answer_is_a_finding_in_time(
    job: Settings, monkeypatch: pytest.MonkeyPatch, stuck: threading.Event
) -> None:
    def hang(_: Settings) -> Any:
        stuck.wait(60)

    monkeypatch.setattr(directory, "look", hang)
    monkeypatch.setattr(checks, "LIMIT_S", 3.0)  # it bounds the looks that answer, too
    began = time.monotonic()
    report = checks.examine(job)
    assert time.monotonic() - began < 30
    assert [finding.code for finding in report.findings] == ["DIR006"]
    # What else there is to know is known.
    assert report.nic == "lo"
    assert "torch" in report.facts


def test_a_disk_that_is_only_busy_is_no_file_server_that_is_gone(
    job: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, look = threading.Event(), directory.look

    def busy(settings: Settings) -> Any:
        seen.wait(2.0)
        return look(settings)

    monkeypatch.setattr(directory, "look", busy)
    monkeypatch.setattr(checks, "LIMIT_S", 0.0)
    assert checks.examine(Settings("job", "desk", job.checkpoint_dir)).findings == ()
    assert [finding.code for finding in checks.examine(job).findings] == ["DIR006"]
    # This process may have stood still until just now.
    monkeypatch.setattr(checks, "_LAST_S", 30.0)
    assert checks.examine(job).findings == ()


def test_a_name_server_that_does_not_answer_is_a_finding_in_time(
    job: Settings, monkeypatch: pytest.MonkeyPatch, stuck: threading.Event
) -> None:
    real = nic.resolve

    def resolve(name: str) -> str:
        if name == "head.example":
            stuck.wait(60)
        return real(name)

    monkeypatch.setattr(nic, "resolve", resolve)
    monkeypatch.setattr(checks, "NAMES_S", 3.0)  # it bounds the names that are known, too
    began = time.monotonic()
    report = checks.examine(replace(job, head="head.example"))
    assert time.monotonic() - began < 30
    (finding,) = report.findings
    assert finding.code == "NAME001"
    assert "'head.example'" in finding.cause
    assert "/etc/resolv.conf" in finding.remedy
    assert report.resolved == ""


def test_all_limits_together_leave_examine_within_its_six_seconds() -> None:
    assert checks.NAMES_S <= checks.LIMIT_S < 6
    assert directory.WATCH_S < checks.LIMIT_S
    assert checks.gpus.LIMIT_S < checks.LIMIT_S < checks.ALONE_S
    # The look for an earlier run, which is about to end, comes before it.
    assert command._LOOK_S + checks.ALONE_S + checks._LAST_S < 10 - 1


def test_an_error_of_ours_is_not_swallowed(job: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(_: Settings) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(directory, "look", break_down)
    with pytest.raises(ZeroDivisionError):
        checks.examine(job)


def test_a_missing_torch_is_told_with_the_interpreter_that_lacks_it(
    job: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "torch", lambda: None)
    (finding,) = checks.examine(job).findings
    assert finding.code == "PY002"
    assert f" {checks.sys.executable} of desk" in finding.cause


def told(job: Settings, seen: Limits) -> list[tuple[str, str, str]]:
    found = limits.judge(job, seen)
    return [(finding.code, finding.cause, finding.remedy) for finding in found]


@pytest.mark.parametrize(
    ("files", "world", "remedy"),
    [
        ((1024, 4096), 2, None),
        ((256, None), 8, None),  # a Mac as it comes
        ((1024, None), 208, None),
        ((1024, 4096), 209, "put `ulimit -n 1028` into the shell"),
        ((1024, 1027), 209, "raise the limit there to 1028 or more"),
        ((128, None), 2, "put `ulimit -n 200`"),
        ((None, None), 100_000, None),
    ],
)
def test_open_files_have_to_do_for_a_full_mesh(
    job: Settings, files: tuple[int | None, int | None], world: int, remedy: str | None
) -> None:
    found = told(replace(job, world_size=world), Limits(files))
    assert [code for code, *_ in found] == ["LIM001"] * (remedy is not None)
    assert remedy is None or (f"may open {files[0]} files" in found[0][1] and remedy in found[0][2])


@pytest.mark.parametrize(
    ("backend", "locked", "infiniband", "count"),
    [("nccl", 65536, True, 1), ("nccl", None, True, 0), ("nccl", 65536, False, 0), ("gloo", 65536, True, 0)],
)  # fmt: skip
def test_locked_memory_matters_to_nccl_over_infiniband(
    job: Settings, backend: str, locked: int | None, infiniband: bool, count: int
) -> None:
    found = told(replace(job, backend=backend), Limits(locked=locked, infiniband=infiniband))
    assert [code for code, *_ in found] == ["LIM002"] * count
    assert not count or "may lock only 64 KiB" in found[0][1]


@pytest.mark.parametrize(
    ("shared", "cause"),
    [(64 * MIB, "has 64 MiB"), (0, "is missing"), (65 * MIB, None), (None, None)],
)
def test_shared_memory_of_a_container_as_it_comes_is_small(
    job: Settings, shared: int | None, cause: str | None
) -> None:
    found = told(job, Limits(shared=shared))
    assert [code for code, *_ in found] == ["LIM003"] * (cause is not None)
    assert cause is None or f"/dev/shm of desk {cause}" in found[0][1]


def test_the_limits_are_those_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 777), hard))
        assert limits.read_limits().files[0] == min(soft, 777)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if os.path.ismount("/dev/shm"):
        found = os.statvfs("/dev/shm")
        assert limits.read_limits().shared == found.f_blocks * found.f_frsize
