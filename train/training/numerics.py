"""The facts that the bits of a run depend on in addition to its settings: hardware, libraries, threads.

Owns the list of these facts, and pins some of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from typing import Any

import torch

from train.distributed import bits
from train.run.bundle import LISTING, PACKAGE_ROOT
from train.run.config import RunConfig
from train.run.provenance import LIBRARY_FLAGS

# The settings that may change between two starts of a run without a change of the computed steps.
_FREE = {
    "world_size", "shares", "weight", "balance", "shard", "elastic", "backend", "data_workers", "rendezvous_timeout", "collective_timeout",
    "eval_every", "best_metric", "best_mode", "patience", "min_delta", "log_every", "digest", "trackers", "profile", "checkpoint_dir", "checkpoint_store", "checkpoint_every", "checkpoint_keep",
    "code_dir", "until", "accept_changes", "probe", "steps", "epochs",
}  # fmt: skip


def pin(threads: int) -> None:
    """Fix the choices that torch would otherwise make by machine or by timing."""
    # MKL chooses its kernels in its first call. If two threads make this call at once, one of them may compute square
    # roots by another kernel, which gives other bits.
    torch.set_num_threads(1)
    torch.ones(1).sqrt()
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = False
    # Only warn, because on a GPU repeats.check decides if the model can train in the mode "error". This call and the
    # variable avoid an import of the compiler, which costs as much as torch itself.
    torch.set_deterministic_debug_mode("warn")
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    # Do not fill new tensors, because that would hide reads of uninitialised memory, and cost a pass over each tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def facts(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """Return the facts that the bits depend on in addition to the settings."""
    on_gpu = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "cuda": torch.version.cuda if on_gpu else None,
        "threads": config.threads,
        "library_flags": {name: os.environ[name] for name in LIBRARY_FLAGS if name in os.environ},
        "bits": dict(bits.probe(device, config.determinism)),
    }


def code() -> str:
    """Return a hash over the hashes of the user's files in this bundle; "" if it has no such files.

    Reads bundle.json from the directory of this package, so that the working directory does not matter.
    """
    try:
        bundle = json.loads((PACKAGE_ROOT / LISTING).read_text("utf-8"))
        files = {str(k): str(v) for k, v in bundle["files"].items() if k.startswith("code/")}
    except (OSError, ValueError, KeyError, AttributeError):
        return ""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() if files else ""


def settings(config: RunConfig, last_step: int, own_schedule: bool = False) -> dict[str, Any]:
    """Return the settings that decide what is computed. The length of the run is one of them only if the learning
    rate depends on it."""
    chosen = {k: v for k, v in vars(config).items() if k not in _FREE}
    if own_schedule or config.schedule != "constant":
        chosen["last_step"] = last_step
    return chosen
