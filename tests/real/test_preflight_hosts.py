"""Before torch starts: what is wrong with a host by itself, or different from the others', named on all.

Versions, GPUs (as a made-up nvidia-smi tells of them), disks, clocks, limits, the interpreter. Every
fault is done to the hosts for real; see test_preflight.
"""

from __future__ import annotations

import re
import signal
import sys
import sysconfig
from collections.abc import Iterator

import pytest

from tests.real import fleet, preflight
from tests.real.preflight import NAMES, Launch, Stage, Terminal, as_root, edited
from tests.real.rig import Machine, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
OTHERS = ["desk", "tower"]
PACKAGES = sysconfig.get_path("purelib")
VERSION = f"{PACKAGES}/torch/version.py"
CUSTOM = f"{PACKAGES}/sitecustomize.py"
SMI = "/usr/local/bin/nvidia-smi"
CARD = "GPU-5a1e0000"


@pytest.fixture(autouse=True)
def packages(mended: Rig) -> Iterator[None]:
    """The packages of the hosts, mended as well."""
    torch = {each.name: each.path(VERSION).read_text() for each in mended}
    yield
    for each in mended:
        each.path(VERSION).write_text(torch[each.name])
        for made in (CUSTOM, SMI):
            each.path(made).unlink(missing_ok=True)
        for made in each.path(PACKAGES).glob("nvidia_nccl_*"):
            made.rmdir()


# What differs between hosts


def test_another_torch_on_one_host(stage: Stage) -> None:
    edited(stage.rig["laptop"].path(VERSION), lambda text: text.replace("2.13.0", "2.6.0"))
    launch = stage.launch()
    stage.ends(launch)
    launch.names("VER001", "laptop", "laptop has torch 2.6.0", "desk and tower have torch 2.13.0")
    launch.names_only("VER001")


@pytest.mark.nightly
def test_another_python_on_one_host(stage: Stage) -> None:
    custom(
        stage.rig["laptop"],
        "import collections, sys",
        "names = 'major minor micro releaselevel serial'",
        "sys.version_info = collections.namedtuple('V', names)(3, 9, 1, 'final', 0)",
    )
    launch = stage.launch()
    launch.ends(0)
    launch.names("VER002", "laptop", "laptop has Python 3.9.1", severity="warning")
    launch.names_only("VER002")


@pytest.mark.nightly
def test_torch_for_another_cuda_on_one_host(stage: Stage) -> None:
    for name in NAMES:
        give_gpus(stage.rig[name], cuda="12.4" if name == "laptop" else "12.6")
    launch = stage.launch(backend="nccl", gpus_per_node=1)
    launch.ends(0)
    launch.names("VER003", "laptop", "12.4", "12.6", severity="warning")
    launch.names_only("VER003")


@pytest.mark.nightly
def test_another_nccl_on_one_host(stage: Stage) -> None:
    for name in NAMES:
        give_gpus(stage.rig[name], nccl="2.20.5" if name == "laptop" else "2.27.3")
    launch = stage.launch(backend="nccl", gpus_per_node=1)
    stage.ends(launch)
    launch.names("VER004", "laptop", "2.20.5", "2.27.3")


def test_code_that_was_changed_on_one_host(stage: Stage) -> None:
    job = stage.job()
    edited(job.at("laptop", "train/training/optim.py"), lambda text: text + "# a quick fix\n")
    launch = job.start()
    stage.ends(launch)
    launch.names("VER005", "laptop")
    launch.names_only("VER005")


def test_the_bundle_of_an_older_spec_on_one_host(stage: Stage) -> None:
    stage.job(on=["laptop"], train={"lr": 0.2})
    launch = stage.job(on=OTHERS).start()
    stage.ends(launch)
    launch.names("VER006", "laptop")
    launch.names_only("VER006")


def test_a_processor_that_gives_other_bits(stage: Stage) -> None:
    laptop = stage.rig["laptop"]
    laptop.path("cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu sse sse2 avx\n")
    as_root(laptop, "mount", "--bind", f"{laptop.home}/cpuinfo", "/proc/cpuinfo")
    try:
        launch = stage.launch()
        launch.ends(0)
    finally:
        as_root(laptop, "umount", "/proc/cpuinfo")
    launch.names("VER007", "laptop", "laptop has processors for default", severity="warning")
    launch.names_only("VER007")


def test_a_clock_that_is_ahead(stage: Stage) -> None:
    custom(stage.rig["laptop"], "import time", "now = time.time", "time.time = lambda: now() + 60")
    launch = stage.launch()
    launch.ends(69)
    launch.names("CLK001", "laptop")
    launch.names_only("CLK001")
    for found in launch["laptop"].findings():
        ahead = re.search(r"(\d+) s ahead", found.text)
        assert ahead, found.text
        assert 50 <= int(ahead[1]) <= 60, found.text  # at least so much: the way takes its time


# GPUs


def test_fewer_gpus_than_processes(stage: Stage) -> None:
    for name in NAMES:
        give_gpus(stage.rig[name], cards=1 if name == "laptop" else 2)
    launch = stage.launch(backend="nccl", gpus_per_node=2, procs_per_node=2)
    stage.ends(launch)
    launch.names("GPU001", "laptop", "1 GPU", "2 processes")
    launch.names_only("GPU001")


@pytest.mark.nightly
def test_a_gpu_in_use(stage: Stage) -> None:
    for each in stage.rig:
        give_gpus(each)
    pid = occupy(stage.rig["laptop"])
    launch = stage.launch(backend="nccl", gpus_per_node=1)
    launch.ends(0)
    launch.names("GPU002", "laptop", str(pid), "sleep", severity="warning")
    launch.names_only("GPU002")


@pytest.mark.nightly
def test_a_gpu_that_an_earlier_run_holds(stage: Stage) -> None:
    for each in stage.rig:
        give_gpus(each)
    pid = occupy(stage.rig["laptop"], DDPGEN_JOB="job")
    launch = stage.launch(backend="nccl", gpus_per_node=1)
    launch.ends()
    launch.names("GPU003", "laptop", f"kill {pid}")
    launch.names_only("GPU003")


@pytest.mark.nightly
def test_a_driver_that_is_too_old(stage: Stage) -> None:
    for name in NAMES:
        give_gpus(stage.rig[name], driver="470.57.02" if name == "laptop" else "580.65.06")
    launch = stage.launch(backend="nccl", gpus_per_node=1)
    stage.ends(launch)
    launch.names("GPU004", "laptop", "470.57.02", "12.6")
    launch.names_only("GPU004")


@pytest.mark.nightly
def test_no_cuda_where_nccl_was_asked_for(stage: Stage) -> None:
    for name in OTHERS:
        give_gpus(stage.rig[name])
    launch = stage.launch(backend="nccl", gpus_per_node=1)
    stage.ends(launch)
    launch.names("GPU005", "laptop", "without CUDA")


def test_a_driver_that_hangs(stage: Stage) -> None:
    for each in stage.rig:
        give_gpus(each)
    smi = stage.rig["laptop"].path(SMI)
    smi.write_text("#!/bin/sh\nexec sleep 600\n")
    launch = stage.launch(backend="nccl", gpus_per_node=1)
    stage.ends(launch)
    launch.names("GPU006", "laptop", "no answer")


# The checkpoint directory


@pytest.mark.nightly
def test_a_directory_that_cannot_be_made(stage: Stage) -> None:
    as_root(stage.rig["laptop"], "chown", "root", preflight.SMALL_DISK)
    as_root(stage.rig["laptop"], "chmod", "755", preflight.SMALL_DISK)
    try:
        launch = stage.launch(checkpoint={"dir": f"{preflight.SMALL_DISK}/ckpt"})
        stage.ends(launch)
    finally:
        as_root(stage.rig["laptop"], "chmod", "1777", preflight.SMALL_DISK)
    launch.names("DIR001", "laptop", "/data/ckpt", "Permission denied")
    launch.names_only("DIR001")


def test_a_directory_that_cannot_be_written_to(stage: Stage) -> None:
    as_root(stage.rig["laptop"], "mkdir", "/data/owned")
    try:
        launch = stage.launch(checkpoint={"dir": "/data/owned"})
        stage.ends(launch)
    finally:
        as_root(stage.rig["laptop"], "rmdir", "/data/owned")
    launch.names("DIR002", "laptop", "/data/owned", "Permission denied")
    launch.names_only("DIR002")


def test_a_disk_without_room(stage: Stage) -> None:
    stage.rig["laptop"].fill(preflight.SMALL_DISK)
    launch = stage.launch(checkpoint={"dir": "/data/full"})
    stage.ends(launch)
    launch.names("DIR003", "laptop", "/data/full")
    launch.names_only("DIR003")


@pytest.mark.nightly
def test_a_check_beside_the_running_job(stage: Stage) -> None:
    job = stage.job(train={"steps": 100_000})
    driver = fleet.Driver(stage.rig, job.place)
    driver.until_step(5)
    launch = job.start()
    launch.ends(0)
    for name in NAMES:
        launch.names("DIR004", name, "in use by job 'job'", on=["desk"], severity="note")
    launch.names("PORT002", "desk", "29500", on=["desk"], severity="note")
    launch.names_only()
    assert "3 hosts can start the job when the live one has ended" in launch["desk"].text
    driver.process.send_signal(signal.SIGINT)
    assert driver.end() == 75, driver.output
    assert stage.rig.strays(within=30) == []


def test_a_directory_that_a_live_job_holds(stage: Stage) -> None:
    job = stage.job()
    held = f"{Machine.home}/ddpgen/checkpoints/job"
    claims = (
        "import sys, pathlib; from train.run.lock import claim; "
        f"claim(pathlib.Path('{held}/nodes/laptop'), 'other', int(sys.argv[1]))"
    )
    words = f'sleep 600 & {sys.executable} -c "{claims}" $! && echo held; wait'
    holder = Terminal(stage.rig["laptop"], ["bash", "-c", words], cwd=job.directory)
    holder.until("held")
    launch = job.start()
    launch.ends()
    launch.names("DIR004", "laptop", "other")
    launch.names_only("DIR004")
    stage.rig["laptop"].kill_all()
    holder.end()


def test_a_directory_that_is_not_shared_where_the_spec_says_so(stage: Stage) -> None:
    shared = {"dir": "/shared/ckpt", "shared": True}
    launch = stage.launch(checkpoint=shared)
    launch.ends(0)
    launch.names_only()
    as_root(stage.rig["laptop"], "mount", "-t", "tmpfs", "-o", "mode=1777", "none", "/shared")
    try:
        launch = stage.launch(checkpoint=shared)
        stage.ends(launch)
    finally:
        as_root(stage.rig["laptop"], "umount", "/shared")
    launch.names("DIR005", "laptop", "/shared/ckpt", "desk and tower")
    launch.names_only("DIR005")


# Limits


@pytest.mark.parametrize(
    ("files", "severity", "code"), [(56, "error", preflight.REFUSED), (64, "warning", 0)]
)
def test_too_few_open_files(stage: Stage, files: int, severity: str, code: int) -> None:
    job = stage.job()
    launch = Launch([*(job.terminal(name) for name in OTHERS),
                     job.terminal("laptop", before=f"ulimit -n {files}; ")])  # fmt: skip
    launch.ends(code)
    launch.names("LIM001", "laptop", f"{files} files", severity=severity)
    launch.names_only("LIM001")


@pytest.mark.nightly
def test_too_little_memory_to_lock(stage: Stage) -> None:
    """InfiniBand, as far as /sys tells of it, and a limit as distributions set it."""
    for each in stage.rig:
        give_gpus(each)
    laptop = stage.rig["laptop"]
    as_root(laptop, "mkdir", "-p", "/tmp/class/infiniband/mlx5_0")
    as_root(laptop, "cp", "-a", "/sys/class/net", "/tmp/class/net")
    as_root(laptop, "mount", "--bind", "/tmp/class", "/sys/class")
    try:
        job = stage.job(backend="nccl", gpus_per_node=1)
        launch = Launch([*(job.terminal(name) for name in OTHERS),
                         job.terminal("laptop", before="ulimit -l 64; ")])  # fmt: skip
        launch.ends(0)
    finally:
        as_root(laptop, "umount", "/sys/class")
        as_root(laptop, "rm", "-r", "/tmp/class")
    launch.names("LIM002", "laptop", "64 KiB", severity="warning")


@pytest.mark.nightly
def test_little_shared_memory(stage: Stage) -> None:
    laptop = stage.rig["laptop"]
    as_root(laptop, "mount", "-o", "remount,size=1m", "/dev/shm")
    try:
        launch = stage.launch()
        launch.ends(0)
    finally:
        as_root(laptop, "mount", "-o", "remount,size=50%", "/dev/shm")
    launch.names("LIM003", "laptop", "1 MiB", severity="warning")
    launch.names_only("LIM003")


# The interpreter


def test_a_python_that_is_missing(stage: Stage) -> None:
    # Its own terminal says why. To the others it is a host that has not come: nothing runs there that could
    # tell them.
    wrong = {"name": "laptop", "python": "/nowhere/python3"}
    launch = stage.job(["desk", wrong, "tower"], patience=preflight.MISSING_S).start()
    stage.ends(launch)
    assert "there is no Python called /nowhere/python3 here" in launch["laptop"].text
    assert "(PY001)" in launch["laptop"].text
    launch.waits_for("laptop", on=OTHERS)
    for name in OTHERS:
        shown = [(one.code, one.host) for one in launch[name].findings()]
        assert shown == [("HOST001", "laptop")], launch.output


def test_a_python_without_torch(stage: Stage) -> None:
    wrong = {"name": "laptop", "python": "/usr/bin/python3"}
    launch = stage.launch(["desk", wrong, "tower"])
    stage.ends(launch)
    launch.names("PY002", "laptop", "/usr/bin/python3")


# What the stories say it with


def custom(machine: Machine, *lines: str) -> None:
    """Lines that every Python of that host runs first."""
    machine.path(CUSTOM).write_text("\n".join(lines) + "\n")


def give_gpus(
    machine: Machine, cards: int = 1, driver: str = "580.65.06", cuda: str = "12.6", nccl: str = ""
) -> None:
    """GPUs as far as nvidia-smi, and a torch as far as its version, tell of them."""
    rows = "".join(f"{i}, {CARD}{i}, Made-up 90, {driver}\\n" for i in range(cards))
    smi = machine.path(SMI)
    smi.write_text(
        f"#!/bin/sh\ncase $* in\n*query-gpu*) printf '{rows}' ;;\n"
        f"*compute-apps*) cat {machine.home}/users 2>/dev/null ;;\nesac\n"
    )
    smi.chmod(0o755)
    machine.path("users").unlink(missing_ok=True)
    edited(machine.path(VERSION), lambda text: text.replace("str] = None", f"str] = '{cuda}'", 1))
    if nccl:
        machine.path(f"{PACKAGES}/nvidia_nccl_cu12-{nccl}.dist-info").mkdir()


def occupy(machine: Machine, **env: str) -> int:
    """A process that nvidia-smi there shows on the first GPU; its number on that host."""
    held = Terminal(machine, ["sh", "-c", "echo pid $$; exec sleep 600"], env=env)
    held.until("pid")
    pid = int(held.text.split()[1])
    machine.path("users").write_text(f"{CARD}0, {pid}, 1234, /usr/bin/sleep\n")
    return pid


@pytest.mark.nightly
def test_a_file_system_that_is_mounted_read_only(stage: Stage) -> None:
    laptop = stage.rig["laptop"]
    as_root(laptop, "mkdir", "-m", "1777", "/data/mounted")
    as_root(laptop, "mount", "-t", "tmpfs", "-o", "ro", "none", "/data/mounted")
    try:
        launch = stage.launch(checkpoint={"dir": "/data/mounted"})
        stage.ends(launch)
    finally:
        as_root(laptop, "umount", "/data/mounted")
        as_root(laptop, "rm", "-r", "/data/mounted")
    launch.names("DIR002", "laptop", "/data/mounted", "Read-only")
    launch.names_only("DIR002")
