"""train.determinism: portable: hosts that compute other bits by default compute the same.

Other hosts are this one with its libraries told otherwise: what an older processor has, and another maker's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.train.test_hosts import assembly, with_member
from tests.train.workers import run
from train.distributed.agreement import introduce
from train.run import portable

OLDER = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
}
# Each probe is a fork of one process with torch loaded. That process has computed nothing, so that the libraries have
# not read their variables yet. MKL asks a function of its own whose processor it runs on.
_PROBES = """
import ctypes, json, os, sys
from pathlib import Path
import torch
from train.run import portable
from train.distributed import bits
def probe(determinism, intel, env):
    os.environ.update(env)
    if determinism == "portable":
        portable.pin(os.environ)
    if intel:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
        place = ctypes.cast(library.mkl_serv_intel_cpu_true, ctypes.c_void_p).value
        writable = ctypes.CDLL(None).mprotect(ctypes.c_void_p(place & -4096), ctypes.c_size_t(8192), 7)
        assert writable == 0
        ctypes.memmove(place, b"\\xb8" + int(intel).to_bytes(4, "little") + b"\\xc3", 6)  # mov eax, …; ret
    torch.set_num_threads(1)
    print(json.dumps(dict(bits.probe(torch.device("cpu"), determinism))), flush=True)
for wanted in json.loads(sys.argv[1]):
    if not os.fork():
        probe(*wanted)
        os._exit(0)
    assert os.wait()[1] == 0
"""
needs_avx2 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="needs x86 with AVX2"
)


class Wanted(NamedTuple):
    """A probe. `intel`: 1 or 0, the maker that MKL sees; `env`: what the libraries are told."""

    determinism: str
    intel: str = ""
    env: Mapping[str, str] = {}


def probed(*wanted: Wanted) -> list[dict[str, str]]:
    """Run these probes. Returns the result of each."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBES, json.dumps(wanted)],
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@needs_avx2
def test_an_older_host_and_one_of_another_maker_give_the_same_bits_only_with_portable() -> None:
    intel, amd, older, expected, *others = probed(
        Wanted("default", "1"),
        Wanted("default", "0"),
        Wanted("default", env=OLDER),
        Wanted("portable"),
        Wanted("portable", env=OLDER),
        Wanted("portable", "1"),
        Wanted("portable", "0"),
    )
    assert {name for name in intel if intel[name] != amd[name]} == {"gemm", "adamw"}
    # MKL's part, gemm and adamw, is the same on some processors.
    changed = {"convolution", "gelu", "softmax", "layer_norm", "randn"}
    assert {name for name in amd if amd[name] != older[name]} - {"gemm", "adamw"} == changed
    assert others == [expected] * 3


@needs_avx2
def test_no_level_is_asked_of_a_processor_that_has_not_got_it(tmp_path: Path) -> None:
    found = {}
    for flags in ("fpu sse2 avx", "fpu sse2 avx2 fma", "avx2 fma avx512vl avx512bw avx512dq"):
        (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
        found[flags] = {"MKL_CBWR": "AVX", "DNNL_MAX_CPU_ISA": "SSE41", "PATH": "/bin"}
        portable.pin(found[flags], tmp_path)
    old, avx2, avx512 = found.values()
    assert old == {"MKL_CBWR": "AVX", "DNNL_MAX_CPU_ISA": "SSE41", "PATH": "/bin"}
    assert avx2 == avx512 == {
        "PATH": "/bin", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE",
    }  # fmt: skip


def test_a_host_without_avx2_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"machine": "x86_64", "cpu_capability": "AVX2"}
    hosts = assembly(("desk", 1), ("pi", 1), facts=facts)
    introduce(hosts, "gloo", [range(1), range(1, 2)], "portable")
    assert "portable" not in capsys.readouterr().err
    hosts = with_member(hosts, 1, facts={"machine": "aarch64", "cpu_capability": "DEFAULT"})
    introduce(hosts, "gloo", [range(1), range(1, 2)], "portable")
    warning = "warning: determinism: portable needs an x86 processor with AVX2, unlike pi (aarch64, kernels DEFAULT)"
    assert warning in capsys.readouterr().err


@pytest.mark.slow
def test_going_on_with_portable_is_another_run_unless_that_is_accepted(tmp_path: Path) -> None:
    flags = ("--optimizer=adamw", "--log-every=1")
    assert run(tmp_path, "toy", 1, *flags).codes == [0]
    refused = run(tmp_path, "toy", 1, *flags, "--steps=8", "--determinism=portable")
    assert refused.codes == [1]
    assert "other settings: determinism: 'default' -> 'portable'" in refused.output
    went_on = run(
        tmp_path, "toy", 1, *flags, "--steps=8", "--determinism=portable", "--accept-changes"
    )
    assert went_on.codes == [0], went_on.output
    optimizer = torch.load(tmp_path / "step-000000008" / "optimizer.pt")["optimizer"]
    assert optimizer["param_groups"][0]["fused"] is True
