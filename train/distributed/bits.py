"""The bit probe: the results of eight operations on this device, as hashes.

Owns the operations, their inputs, and the usual cause of a difference in each. Two hosts whose hashes differ will
train different weights. Takes some 10 ms, after torch is imported and the threads are set.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from train.run.portable import PORTABLE

# Observed with torch 2.13 on x86, with one setting changed at a time. One of the settings was the processor's maker, by
# which MKL chooses.
_CAUSES = {
    "gemm": "MKL's kernels (MKL_CBWR, MKL_ENABLE_INSTRUCTIONS)",
    "adamw": "MKL's square root, another on Intel's processors than on AMD's",
    "convolution": "oneDNN's instruction set (ONEDNN_MAX_CPU_ISA)",
    "gelu": "oneDNN's instruction set (ONEDNN_MAX_CPU_ISA)",
    "softmax": "ATen's instruction set (ATEN_CPU_CAPABILITY)",
    "layer_norm": "ATen's instruction set (ATEN_CPU_CAPABILITY)",
    "randn": "ATen's instruction set (ATEN_CPU_CAPABILITY)",
    "sum": "the number of threads, train.threads",
}


@functools.cache
def probe(device: torch.device, determinism: str = "default") -> Mapping[str, str]:
    """Return the hash of each operation's result, by the operation's name; computed once for each device.

    `determinism`: with "portable", the fused AdamW update takes the place of the plain one, as in
    train.training.optim, because its square root is not MKL's.
    """
    with torch.no_grad():
        results = _compute(device)
        if determinism == PORTABLE:
            results["adamw"] = _fused_adamw(device)
    return {name: _digest(tensor) for name, tensor in results.items()}


def differing_operations(reference: Mapping[str, str], results: Mapping[str, str]) -> list[str]:
    """Return the operations that are in both mappings and gave different bits."""
    return [name for name in reference if name in results and reference[name] != results[name]]


def describe(operations: Sequence[str]) -> str:
    """Return the operations that gave other bits, as text, with the usual cause."""
    causes = dict.fromkeys(_CAUSES[name] for name in operations if name in _CAUSES)
    cause = f" (usual cause: {' and '.join(causes)})" if causes else ""
    return ", ".join(operations) + cause


def _compute(device: torch.device) -> dict[str, torch.Tensor]:
    rows = _pseudo_random(1, 128, 256).to(device)
    image = _pseudo_random(2, 4, 8, 20, 20).to(device)
    kernel = _pseudo_random(3, 16, 8, 3, 3).to(device)
    parameter, gradient = _pseudo_random(4, 4099).to(device), _pseudo_random(5, 4099).to(device)
    mean, square = gradient * 0.1, (gradient * gradient).mul_(0.001)
    random = torch.Generator(device=device).manual_seed(1)
    return {
        "gemm": rows @ _pseudo_random(6, 256, 192).to(device),
        "convolution": functional.conv2d(image, kernel, padding=1),
        "softmax": torch.softmax(rows * 8, dim=1),
        "layer_norm": functional.layer_norm(rows, (256,)),
        "gelu": functional.gelu(rows),
        "sum": _pseudo_random(7, 100_003).to(device).sum(),
        "adamw": parameter.mul(1 - 1e-5).addcdiv(mean, square.sqrt().add_(1e-8), value=-1e-3),
        "randn": torch.randn(4099, generator=random, device=device),
    }


def _fused_adamw(device: torch.device) -> torch.Tensor:
    parameter, gradient = _pseudo_random(4, 4099).to(device), _pseudo_random(5, 4099).to(device)
    mean, square, step = gradient * 0.1, gradient * gradient, torch.ones((), device=device)
    torch._fused_adamw_(
        [parameter], [gradient], [mean], [square], [], [step],
        lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return parameter


def _pseudo_random(salt: int, *shape: int) -> torch.Tensor:
    """Return numbers in [-0.5, 0.5) that are the same on every machine: integers, and one exact division."""
    count = torch.Size(shape).numel()
    mixed = torch.arange(count, dtype=torch.int64).mul_(2654435761).add_(salt * 40503) % 2**32
    return (mixed.to(torch.float64) / 2**32 - 0.5).to(torch.float32).reshape(shape)


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.cpu().contiguous()
    data = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
    return hashlib.sha256(data).hexdigest()[:16]
