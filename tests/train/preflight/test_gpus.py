"""The GPUs, by an nvidia-smi that answers as the real one does, lies broken, or hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from train.preflight import gpus
from train.preflight.facts import Torch
from train.preflight.finding import Finding
from train.preflight.settings import Settings

TWO = "0, GPU-aaa, NVIDIA H100 80GB HBM3, 580.95.05\n1, GPU-bbb, NVIDIA H100 80GB HBM3, 580.95.05"
CUDA = Torch("2.13.0+cu130", "13.0")
Fake = Callable[..., None]

SCRIPT = """#!/bin/sh
case $1 in
  --query-gpu=*) {cards} ;;
  --query-compute-apps=*) {users} ;;
  *) echo "what is $1?"; exit 2 ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts an nvidia-smi on PATH that prints this, or runs what it is given."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(cards: str = TWO, users: str = "", command: str = "") -> None:
        said = {"cards": f"cat {tmp_path}/cards", "users": f"cat {tmp_path}/users"}
        (tmp_path / "cards").write_text(cards + "\n")
        (tmp_path / "users").write_text(users + "\n" if users else "")
        if command:
            said["cards"] = command
        (tmp_path / "nvidia-smi").write_text(SCRIPT.format(**said))
        (tmp_path / "nvidia-smi").chmod(0o755)

    return make


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without nvidia-smi."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_DEVICES", (str(tmp_path / "nvidiactl"),))


@pytest.fixture
def computing() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that is said to compute on a GPU."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, **env: str) -> subprocess.Popen[bytes]:
        # Its environment and command are its own only when it has begun.
        process = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **env},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=10)


JOB = Settings("job", "desk", Path("/nowhere"), procs=2, gpus=2, backend="nccl")


def found(settings: Settings = JOB, torch: Torch | None = CUDA) -> list[Finding]:
    wanted = gpus.needs_gpus(settings, torch)
    return list(gpus.judge(settings, gpus.start_query()(), torch)) if wanted else []


def test_enough_free_gpus_and_a_new_driver_are_not_spoken_of(smi: Fake) -> None:
    smi()
    assert found() == []
    assert found(torch=Torch("2.4.0+cu118", "11.8")) == []
    assert gpus.start_query()().driver == "580.95.05"


@pytest.mark.parametrize(
    ("cards", "shown", "cause"),
    [
        (TWO.splitlines()[0], None, "desk has 1 GPU, and 2 processes want one each"),
        (TWO, "1", "desk has 2 GPUs, of which CUDA_VISIBLE_DEVICES='1' shows 1, and 2"),
        (TWO, "", "of which CUDA_VISIBLE_DEVICES='' shows none"),
        (TWO, "-1", "CUDA_VISIBLE_DEVICES='-1' shows none"),
        (TWO, "0,7,1", "CUDA_VISIBLE_DEVICES='0,7,1' shows 1"),
        (TWO, "GPU-bbb", "CUDA_VISIBLE_DEVICES='GPU-bbb' shows 1"),
        (TWO, "0,1", None),
        (TWO, "GPU-b, GPU-a", None),
        (TWO, "MIG-1,MIG-2", None),
    ],
)
def test_fewer_gpus_than_processes(
    smi: Fake, monkeypatch: pytest.MonkeyPatch, cards: str, shown: str | None, cause: str | None
) -> None:
    smi(cards)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    findings = found()
    assert [finding.code for finding in findings] == ["GPU001"] * (cause is not None)
    assert cause is None or cause in findings[0].cause


def test_a_driver_without_a_gpu_has_none_and_is_not_broken(smi: Fake) -> None:
    smi(command="echo 'No devices were found'; exit 6")
    (finding,) = found()
    assert finding.code == "GPU001"
    assert "desk has no GPUs, " in finding.cause


def test_a_gpu_that_another_program_computes_on_is_a_warning_with_its_name(
    smi: Fake, computing: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = computing(DDPGEN_JOB="other")
    smi(users=f"GPU-bbb, {process.pid}, 61234, {sys.executable}")
    (finding,) = found()
    assert (finding.code, finding.is_error) == ("GPU002", False)
    assert finding.cause.startswith("GPU 1 (NVIDIA H100 80GB HBM3) of desk ")
    assert f"process {process.pid} ({sys.executable}" in finding.cause
    assert "with 61234 MiB" in finding.cause


def test_a_training_that_names_no_job_may_be_of_another_one(
    smi: Fake, computing: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = computing("-m", "train")
    smi(users=f"GPU-aaa, {process.pid}, 61234, {sys.executable}")
    (finding,) = found()
    assert (finding.code, finding.is_error) == ("GPU002", False)
    assert f"process {process.pid} ({sys.executable}" in finding.cause


def test_a_gpu_that_an_earlier_run_still_holds_is_an_error(
    smi: Fake, computing: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = computing(DDPGEN_JOB="job")
    smi(users=f"GPU-aaa, {process.pid}, [N/A], {sys.executable}")
    (finding,) = found()
    assert (finding.code, finding.is_error) == ("GPU003", True)
    assert "GPU 0 (NVIDIA H100 80GB HBM3) of desk is still held " in finding.cause
    assert "MiB" not in finding.cause
    assert f"`kill {process.pid}`" in finding.remedy


def test_a_process_outside_of_this_container_is_not_mistaken_for_one_inside(
    smi: Fake, computing: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = computing(DDPGEN_JOB="job")
    smi(users=f"GPU-aaa, {process.pid}, 10, /opt/some/other, with a comma")
    (finding,) = found()
    assert finding.code == "GPU002"
    assert f"process {process.pid} (/opt/some/other, with a comma)" in finding.cause


def test_a_gpu_that_this_job_does_not_use_may_be_in_use(
    smi: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(users="GPU-bbb, 1, 10, /opt/other")
    assert found(replace(JOB, procs=1)) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert [finding.code for finding in found(replace(JOB, procs=1))] == ["GPU002"]


@pytest.mark.parametrize(
    ("driver", "cuda", "oldest"),
    [
        ("580.65.05", "13.0", "580.65.06"),
        ("580.65.06", "13.0", None),
        ("525.60.12", "12.8", "525.60.13"),
        ("525.105.17", "12.8", None),
        ("450.51.05", "11.8", "450.80.02"),
        ("390.1", "17.0", None),  # nobody knows yet what that will want
    ],
)
def test_a_driver_that_is_too_old_for_the_cuda_of_torch(
    smi: Fake, driver: str, cuda: str, oldest: str | None
) -> None:
    smi(TWO.replace("580.95.05", driver))
    findings = found(torch=Torch("2.13.0", cuda))
    assert [finding.code for finding in findings] == ["GPU004"] * (oldest is not None)
    assert oldest is None or f"takes {oldest} or newer" in findings[0].cause
    assert oldest is None or driver in findings[0].cause


def test_an_old_driver_will_do_with_nvidias_compatibility_package(
    smi: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(TWO.replace("580.95.05", "535.1"))
    assert [finding.code for finding in found()] == ["GPU004"]
    (tmp_path / "compat").mkdir()
    (tmp_path / "compat/libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{tmp_path}/compat")
    assert found() == []


def test_nccl_with_a_torch_that_has_no_cuda(smi: Fake) -> None:
    smi()
    (finding,) = found(torch=Torch("2.13.0+cpu"))
    assert finding.code == "GPU005"
    assert "torch 2.13.0+cpu of desk " in finding.cause


@pytest.mark.usefixtures("bare")
def test_a_host_without_a_driver(tmp_path: Path) -> None:
    assert [finding.code for finding in found()] == ["GPU005"]
    gloo = replace(JOB, backend="gloo")
    (finding,) = found(gloo)
    assert finding.code == "GPU001"
    assert "desk has no GPUs" in finding.cause
    # There is a driver, only its tool is not on PATH: that says nothing.
    (tmp_path / "nvidiactl").touch()
    assert found() == found(gloo) == []


@pytest.mark.usefixtures("bare")
def test_who_wants_no_gpu_is_not_asked_for_one() -> None:
    assert found(replace(JOB, backend="gloo", gpus=0)) == []
    assert found(torch=Torch("2.13.0+rocm7.0", hip="7.0.5")) == []


def test_a_driver_that_is_not_loaded_is_told_in_its_own_words(smi: Fake) -> None:
    smi(command="echo 'NVIDIA-SMI has failed because it could not talk'; echo More.; exit 9")
    (finding,) = found()
    assert finding.code == "GPU006"
    assert "nvidia-smi on desk failed: NVIDIA-SMI has " in finding.cause
    smi(command="exit 4")
    (finding,) = found()
    assert "failed: exit status 4" in finding.cause


def test_an_answer_that_nobody_had_time_to_read_counts(
    smi: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi()
    monkeypatch.setattr(gpus, "_LAST_S", 30.0)
    monkeypatch.setattr(gpus, "LIMIT_S", 0.0)
    assert not gpus.start_query()().trouble


def test_a_driver_that_hangs_is_a_finding_in_time(
    smi: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A child that ignores what ends its parent goes with it.
    smi(command="trap '' TERM; sleep 600 & wait")
    monkeypatch.setattr(gpus, "LIMIT_S", 0.3)
    began = time.monotonic()
    (finding,) = found()
    assert time.monotonic() - began < 30
    assert finding.code == "GPU006"
    assert "gave no answer" in finding.cause
    assert "persistence mode" in finding.remedy
