"""What every test shares: the checkout's root, hypothesis' profiles, and two rules of the house.

The rules: a test leaves no process behind, and in CI a test marked `real` is never skipped. Knows
nothing of what ddpgen or train do.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
PROC = Path("/proc")
TEST_ID = "DDPGEN_TEST_ID"
# What was killed a moment ago may still be dying when its test ends: a worker whose agent was killed
# gets its own signal only then.
GRACE_S = 10.0
# Each file is run by one process, so that it brings up its hosts once. These take minutes.
LONGEST = (
    "test_script_kills.py", "test_script_hosts.py", "test_sky_jobs.py", "test_slurm_faults.py", "test_slurm_jobs.py", "test_hosts.py",
    "test_hosts_faults.py", "test_nodes.py", "test_run.py", "test_kills.py", "test_own_scripts.py",
    "test_docs.py", "test_checkin.py", "test_checkin_strangers.py", "test_checkin_absent.py",
    "test_follow_slurm.py", "test_doctor.py", "test_examples.py", "test_local_sh.py",
    "test_own_parts.py", "test_sharding.py", "test_store_runs.py", "test_odd_models.py", "test_notice.py",
)  # fmt: skip
# How long execve may leave a process without arguments and environment.
EXEC_S = 1.0

# Bundles are small files by the hundred thousand: on some disks they cost more than all the rest.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30

# Otherwise each of some thousand processes compiles the training module again, which no user's does, and each
# process of pytest-xdist the tests themselves.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None

# CI asks every time the same; at a desk hypothesis goes on looking for new cases.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")

gc.disable()  # until the tests are collected


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing with them; refused when CI is set",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden: CI compares golden files, it never writes them")


def pytest_collection_finish() -> None:
    """Leave the modules and 6,000 tests, which live to the end, out of each later collection of garbage."""
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, then the other long ones: what is left to do at the end is short."""

    def place(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.name
        at = LONGEST.index(name) if name in LONGEST else len(LONGEST)
        return at, item.get_closest_marker("real") is None

    items.sort(key=place)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def update_golden(pytestconfig: pytest.Config) -> bool:
    """Whether the golden files are to be written (make golden) and not compared."""
    return bool(pytestconfig.getoption("--update-golden"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI nothing real is skipped: a skip there means that the machine lacks what the test needs."""
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if skipped and os.environ.get("CI") and item.get_closest_marker("real"):
        report.outcome = "failed"
        report.longrepr = f"a real test was skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_session() -> Iterator[None]:
    """As below, for what session-wide and module-wide fixtures start."""
    yield from leave_no_process(f"{os.getpid()}.session")


@pytest.fixture(autouse=True)
def no_process_outlives_its_test(
    request: pytest.FixtureRequest, no_process_outlives_the_session: None
) -> Iterator[None]:
    """Fail a test that leaves a process running; name it, and kill it. The same for another working directory."""
    before = Path.cwd()
    yield from leave_no_process(f"{os.getpid()}.{request.node.nodeid}")
    after = os.readlink("/proc/self/cwd")
    os.chdir(before)
    assert after == str(before), f"the test has left the working directory for {after}"


STARTS = frozenset(
    ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system")
)
started = 0  # how often this process has started another one
seen: tuple[int, set[int]] = (-1, set())  # its children, when so many had been started


def _count_starts(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS:
        global started
        started += 1


sys.addaudithook(_count_starts)


def leave_no_process(test_id: str) -> Iterator[None]:
    """Mark what is started from here on; afterwards look for the mark and for children of ours.

    The mark is an environment variable: it is inherited over any number of generations, daemons and
    new sessions, and a process cannot lose it by accident. A child that pytest forked without exec
    does not show it, hence the second look.
    """
    outer = os.environ.get(TEST_ID)
    global seen
    if seen[0] != started:
        seen = started, set(processes(children_of_pytest))
    before, children = seen
    os.environ[TEST_ID] = test_id
    try:
        yield
    finally:
        if outer is None:
            del os.environ[TEST_ID]
        else:
            os.environ[TEST_ID] = outer
    if started == before and not multiprocessing.active_children():  # which spawns unseen
        return  # most tests: to look at every process of the machine would take longer than they do
    mark = f"{TEST_ID}={test_id}".encode()
    left = set(processes(lambda pid: mark in shown(pid, "environ").split(b"\0")))
    left |= set(processes(children_of_pytest)) - children
    named = [f"{pid}: {line}" for pid in sorted(left) if (line := outlives_its_grace(pid))]
    if named:
        pytest.fail("left running (killed now):\n  " + "\n  ".join(named), pytrace=False)


def processes(chosen: Callable[[str], bool]) -> Iterator[int]:
    """Live processes of this machine that `chosen` picks; none where there is no /proc (macOS)."""
    for pid in (entry.name for entry in PROC.glob("[0-9]*")):
        try:
            if int(pid) != os.getpid() and chosen(pid):
                yield int(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def shown(pid: str, name: str) -> bytes:
    """A process's `environ` or `cmdline`. In the middle of execve both are empty: look until they are not.

    Raises:
        FileNotFoundError: it is a zombie or a kernel thread, and will show nothing.
    """
    end = time.monotonic() + EXEC_S
    while not (held := (PROC / pid / name).read_bytes()) and time.monotonic() < end:
        (PROC / pid / "exe").readlink()
        os.sched_yield()
    return held


def children_of_pytest(pid: str) -> bool:
    # The name, in parentheses, may hold anything; what follows the last one is state and parent.
    state, parent = (PROC / pid / "stat").read_text().rpartition(")")[2].split()[:2]
    return state != "Z" and int(parent) == os.getpid()


def outlives_its_grace(pid: int) -> str:
    """The command line of a process that had to be killed; empty when it ended by itself."""
    try:
        # A zombie that its parent has yet to reap is gone already.
        line = shown(str(pid), "cmdline").replace(b"\0", b" ").decode(errors="replace")
        if is_resource_tracker(line):
            return ""  # a helper that ends with pytest
        handle = os.pidfd_open(pid)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    try:
        if select.select([handle], [], [], GRACE_S)[0]:
            return ""
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], GRACE_S)
    finally:
        os.close(handle)
    return line.strip()


def is_resource_tracker(line: str) -> bool:
    """multiprocessing keeps one for the life of the interpreter that first needs it."""
    return "multiprocessing.resource_tracker" in line
