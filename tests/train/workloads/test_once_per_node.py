"""Several real processes need the same absent files: one of them fetches, the others wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.workloads.http_files import Site
from tests.train.workloads.test_mnist import hashes

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]
TORCHRUN = "-m torch.distributed.run --standalone --local-addr=127.0.0.1"
SETTINGS = (
    "--workload=mnist --steps=2 --global-batch-size=12 --micro-batch-size=4 --backend=gloo "
    "--arg=channels=2 --arg=hidden=4"
)


def run(
    processes: int, site: Site, tmp_path: Path, sha256: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    arguments = {
        "data_dir": str(tmp_path / "digits"),
        "url": site.url,
        "sha256": sha256,
        "download_timeout": 20,
    }
    return subprocess.run(
        [
            *(
                sys.executable,
                *TORCHRUN.split(),
                f"--nproc-per-node={processes}",
                "-m",
                "train",
                "run",
                *SETTINGS.split(),
            ),
            f"--checkpoint-dir={tmp_path / 'checkpoints'}",
            *(f"--arg={name}={json.dumps(value)}" for name, value in arguments.items()),
        ],
        cwd=ROOT,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.nightly
def test_three_processes_ask_the_server_once_for_each_file(site: Site, tmp_path: Path) -> None:
    ended = run(3, site, tmp_path, hashes(site.files))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "checkpoints" / "status").read_text().startswith("done ")
    assert sorted(site.requests) == sorted(site.files)
    assert sorted(os.listdir(tmp_path / "digits")) == sorted(site.files)


def test_failure_of_the_one_ends_them_all_with_its_message(site: Site, tmp_path: Path) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    wanted = hashes(site.files)
    site.files[name] = b"<html>please log in</html>"
    ended = run(2, site, tmp_path, wanted)
    assert f"{site.url}/{name} is not the file it should be" in ended.stderr
    assert wanted[name] in ended.stderr
    assert "Traceback" not in ended.stderr.split(name)[0], "a fault for people, not for programmers"
    assert name not in os.listdir(tmp_path / "digits")
