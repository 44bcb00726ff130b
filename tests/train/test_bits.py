"""The bit probe: equal where the bits are, and each cause shows in its own operations."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest
import torch

from tests.train.test_hosts import assembly, with_member
from train.distributed import bits
from train.run import provenance

CPU = torch.device("cpu")
_PROBE = """
import json, sys, torch
from train.distributed import bits
from train.training import numerics
numerics.pin(int(sys.argv[1]))
print(json.dumps(dict(bits.probe(torch.device("cpu")))))
"""
IS_X86 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@functools.cache
def elsewhere(threads: int = 1, **env: str) -> dict[str, str]:
    """What the probe gives in another process."""
    argv = [sys.executable, "-c", _PROBE, str(threads)]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, timeout=60)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_two_processes_with_the_same_settings_give_the_same_bits() -> None:
    assert elsewhere() == elsewhere(OMP_NUM_THREADS="3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "env", "seen", "cause"),
    [
        (1, {"ATEN_CPU_CAPABILITY": "default"}, {"softmax", "layer_norm", "randn"}, "ATEN_CPU_"),
        pytest.param(
            1,
            {"ONEDNN_MAX_CPU_ISA": "SSE41"},
            {"convolution", "gelu"},
            "ONEDNN_MAX_CPU_ISA",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            1, {"MKL_CBWR": "COMPATIBLE"}, {"gemm"}, "MKL_CBWR", marks=pytest.mark.nightly
        ),
        (2, {}, {"sum"}, "train.threads"),
    ],
)
def test_each_cause_shows_in_its_own_operations(
    threads: int, env: dict[str, str], seen: set[str], cause: str
) -> None:
    if not IS_X86:
        pytest.skip("the causes were measured on x86 processors with AVX2")
    changed = bits.differing_operations(elsewhere(), elsewhere(threads, **env))
    # MKL computes the square root of adamw as well, on some processors and in torch 2.4.
    assert set(changed) - ({"adamw"} if cause == "MKL_CBWR" else set()) == seen
    assert cause in bits.describe(changed)
    assert "MKL" not in bits.describe(["sum"])


@pytest.mark.slow
def test_the_manifest_has_the_probe_of_the_pinned_threads() -> None:
    torch.set_num_threads(1)
    assert dict(bits.probe(CPU)) == elsewhere()
    assert provenance.differences({"bits": 1, "torch": "a"}, {"bits": 2, "torch": "a"}) == []


def test_the_host_that_computes_other_bits_is_named_with_the_operations() -> None:
    same = {"gemm": "1", "sum": "2"}
    trio = assembly(("a", 1), ("b", 2), ("c", 1), facts={"bits": same})
    assert trio.other_bits() == []
    odd = with_member(trio, 1, facts={"bits": {"gemm": "1", "sum": "9"}})
    assert odd.other_bits() == [
        "other bits on b than on a in sum (usual cause: the number of threads, train.threads)"
    ]
    # Most hosts are right, also if the first one is not among them.
    first = with_member(trio, 0, facts={"bits": {"gemm": "7", "sum": "2"}})
    assert [said.partition(" (")[0] for said in first.other_bits()] == [
        "other bits on a than on b in gemm"
    ]
    # A host of an older bundle has no such fact: nothing is said of what is not known.
    assert with_member(trio, 1, facts={}).other_bits() == []
