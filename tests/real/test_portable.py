"""train.determinism: portable on two kinds of host: the same weights, alone and as hosts of one job.

The older host is this one with its libraries told so; no other processor was at hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ports import free_port
from tests.real import jobs
from tests.real.nodes import TRAIN, Host, hosts, static
from tests.train.test_portable import OLDER, needs_avx2
from tests.train.workloads.idx_files import image_set

pytestmark = [pytest.mark.real, pytest.mark.timeout(240), needs_avx2]

PORTABLE = "--determinism=portable"


def trained(place: Path, *flags: str, **env: str) -> dict[str, torch.Tensor]:
    """The weights of one process in such an environment."""
    done = subprocess.run(
        [sys.executable, "-m", "train", "run", *flags, f"--checkpoint-dir={place}"],
        cwd=jobs.ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=jobs.PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return jobs.final_tensors(place)


def mnist(place: Path) -> tuple[str, ...]:
    """The flags of a small run; its images lie in `place`."""
    from sklearn.datasets import load_digits

    place.mkdir()
    digits = load_digits()
    files = image_set((digits.images * 15).astype("uint8"), digits.target, held_out=197)
    for name, data in files.items():
        (place / name).write_bytes(data)
    return (
        "--workload=mnist", "--steps=6", "--global-batch-size=24", "--micro-batch-size=12", "--lr=0.01",
        f"--arg=data_dir={json.dumps(str(place))}", f"--arg=sha256={json.dumps(dict.fromkeys(files))}",
        "--arg=batch_norm=true", "--arg=dropout=0.1",
    )  # fmt: skip


@pytest.mark.parametrize("workload", [pytest.param("gpt", marks=pytest.mark.nightly), "mnist"])
def test_two_kinds_of_host_end_in_the_same_weights(workload: str, tmp_path: Path) -> None:
    flags = TRAIN if workload == "gpt" else mnist(tmp_path / "images")
    portable = trained(tmp_path / "a", *flags, PORTABLE)
    jobs.assert_same_bits(trained(tmp_path / "b", *flags, PORTABLE, **OLDER), portable)


@pytest.mark.nightly
def test_two_kinds_of_host_are_one_job_in_which_no_bits_differ(tmp_path: Path) -> None:
    def started(*flags: str) -> tuple[Host, Host]:
        port = free_port()
        place = tmp_path / str(port)
        return (
            Host("desk", place / "a", static(port, 1, 2, 0), flags),
            Host("laptop", place / "b", static(port, 1, 2, 1), flags, **OLDER),
        )

    desk, laptop = started("--steps=3")
    with hosts(desk, laptop):
        assert (desk.end(), laptop.end()) == (0, 0)  # no restart would cure it
    assert "warning: the weights depend on which host computes what" in desk.output
    for host in (desk, laptop):
        assert host.status.startswith("failed")
        assert "set train.determinism: portable" in host.status

    desk, laptop = started("--steps=3", PORTABLE)
    with hosts(desk, laptop):
        assert (desk.end(), laptop.end()) == (0, 0), desk.output + laptop.output
    assert not [line for line in desk.lines if "warning" in line or "differ" in line]
    facts = json.loads((desk.directory / "manifest.json").read_text())["facts"]
    assert facts["library_flags"] == {
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE",
    }  # fmt: skip
    jobs.assert_same_bits(
        jobs.final_tensors(desk.directory),
        trained(tmp_path / "alone", *TRAIN, "--steps=3", PORTABLE),
    )
