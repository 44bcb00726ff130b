"""What a host says of itself: read without importing torch, and the same as torch would say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from train.base.processor import isa
from train.preflight import facts
from train.preflight.facts import Torch

VERSION = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda}
git_version = 'cf30153'
hip: Optional[str] = {hip}
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle as ddpgen writes it, in short."""
    for name, text in {
        "train/trainer.py": "train",
        "code/model.py": "model",
        "local.sh": "sh",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    files = {"train/trainer.py": "", "code/model.py": "", "local.sh": ""}
    listing = {"spec": {"local": {"name": "job"}}, "files": files}
    (tmp_path / "bundle.json").write_text(json.dumps(listing))
    return tmp_path


def installed(place: Path, version: str, cuda: str = "None", hip: str = "None") -> Path:
    package = place / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    text = VERSION.format(version=version, cuda=cuda, hip=hip)
    (package / "version.py").write_text(text)
    return package


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a torch of one's own may be put; no other is to be found."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "expected"),
    [
        ("2.13.0+cpu", "None", "None", Torch("2.13.0+cpu")),
        ("2.13.0+cu130", "'13.0'", "None", Torch("2.13.0+cu130", "13.0")),
        ("2.6.0+cu124", "None", "None", Torch("2.6.0+cu124", "12.4")),
        ("2.13.0+rocm7.0", "None", "'7.0.5'", Torch("2.13.0+rocm7.0", hip="7.0.5")),
    ],
)
def test_torch_is_read_and_not_imported(
    alone: Path, version: str, cuda: str, hip: str, expected: Torch
) -> None:
    installed(alone, version, cuda, hip)
    assert facts.torch() == expected


def test_nccl_is_what_lies_beside_torch(alone: Path) -> None:
    installed(alone, "2.13.0+cu130", "'13.0'")
    (alone / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir()
    (alone / "nvidia_cublas-13.1.0.dist-info").mkdir()
    found = facts.torch()
    assert found is not None
    assert found.nccl == "2.28.9"
    assert facts.gather(found, alone)["nccl"] == "2.28.9"


def test_a_torch_that_is_not_there_or_only_half_there_is_none(alone: Path) -> None:
    assert facts.torch() is None
    (alone / "torch" / "lib").mkdir(parents=True)  # what an uninstall may leave
    assert facts.torch() is None


@pytest.mark.nightly
def test_the_torch_of_this_interpreter_says_the_same_of_itself() -> None:
    say = (
        "import torch; c = torch.backends.cpu.get_cpu_capability(); "
        "print(torch.__version__, torch.version.cuda or '-', c.lower())"
    )
    for level in (None, "default", "avx2"):
        env = {**os.environ, **({"ATEN_CPU_CAPABILITY": level} if level else {})}
        done = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, env=env)
        version, cuda, capability = done.stdout.split()
        found = facts.torch()
        assert found is not None
        assert (found.version, found.cuda or "-") == (version, cuda)
        if os.uname().machine == "x86_64":
            assert isa(Path("/proc"), env) in (capability, "x86_64")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the levels are x86's")
@pytest.mark.parametrize(
    ("flags", "wanted", "expected"),
    [
        ("sse4_2 avx", None, "default"),
        ("avx2 fma", None, "avx2"),
        ("avx2 fma avx512f", None, "avx2"),  # Knights Landing, which ATen takes no AVX-512 from
        ("avx2 fma avx512vl avx512bw avx512dq", None, "avx512"),
        ("avx2 fma avx512vl avx512bw avx512dq", "avx2", "avx2"),
        ("avx2 fma", "default", "default"),
        ("avx2 fma", "avx512", "avx2"),
        ("avx2 fma", "nonsense", "avx2"),
    ],
)
def test_the_level_is_the_processors_or_a_lower_one_that_was_asked_for(
    tmp_path: Path, flags: str, wanted: str | None, expected: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    env = {"ATEN_CPU_CAPABILITY": wanted} if wanted else {}
    assert isa(tmp_path, env) == expected


def test_a_host_without_proc_has_its_architecture_and_no_machine(tmp_path: Path) -> None:
    assert isa(tmp_path, {}) == os.uname().machine
    assert "machine" not in facts.gather(None, tmp_path, tmp_path)


def test_the_code_is_what_the_bundle_lists_as_it_is_now(bundle: Path) -> None:
    before = facts.gather(None, bundle)
    # What Python and the run itself write there is no difference between two hosts.
    (bundle / "train/__pycache__").mkdir()
    (bundle / "train/__pycache__/loop.pyc").write_text("cache")
    (bundle / "code/output.txt").write_text("of a run")
    (bundle / "local.sh").write_text("of no concern to the ranks")
    assert facts.gather(None, bundle) == before
    (bundle / "code/model.py").write_text("edited")
    edited = facts.gather(None, bundle)
    assert edited["code"] != before["code"]
    assert edited["spec"] == before["spec"]
    (bundle / "code/model.py").unlink()
    assert facts.gather(None, bundle)["code"] not in (before["code"], edited["code"])


def test_the_spec_is_the_same_however_its_keys_are_ordered(bundle: Path) -> None:
    before = facts.gather(None, bundle)["spec"]
    listing = json.loads((bundle / "bundle.json").read_text())
    listing["spec"]["local"] = {"steps": 5, "name": "job"}
    (bundle / "bundle.json").write_text(json.dumps(listing))
    longer = facts.gather(None, bundle)["spec"]
    listing["spec"]["local"] = {"name": "job", "steps": 5}
    (bundle / "bundle.json").write_text(json.dumps(listing))
    assert facts.gather(None, bundle)["spec"] == longer != before


@pytest.mark.parametrize("listing", [None, "", "[]", "[" * 100_000, '{"files": 3}'])
def test_without_a_list_there_is_no_bundle_to_compare(bundle: Path, listing: str | None) -> None:
    (bundle / "bundle.json").unlink()
    if listing is not None:
        (bundle / "bundle.json").write_text(listing)
    assert not {"code", "spec"} & facts.gather(None, bundle).keys()


def test_a_machine_is_its_boot_and_its_network() -> None:
    boot, network = facts.machine().split()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() == boot
    assert os.readlink("/proc/self/ns/net") == f"net:[{network}]"
