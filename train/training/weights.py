"""One hash over a model's state: what two runs that ended in the same weights have in common."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def weights_sha256(state: Mapping[str, Any]) -> str:
    """sha256 over a `state_dict()`: of each tensor, in its order, the name, NUL, the dtype ("float32"), NUL, the shape
    ("2,3"), NUL, and the contiguous bytes, of which the least significant comes first. A module's extra
    state, which may be anything, is left out."""
    digest = hashlib.sha256()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        kind, shape = str(tensor.dtype).removeprefix("torch."), ",".join(map(str, tensor.shape))
        digest.update(f"{name}\0{kind}\0{shape}\0".encode())
        flat = tensor.detach().to("cpu").contiguous()
        size = flat.numel() * flat.element_size()
        # Read in place: numpy, which tensors usually pass through, may not be installed.
        digest.update((ctypes.c_char * size).from_address(flat.data_ptr()) if size else b"")
    return digest.hexdigest()
