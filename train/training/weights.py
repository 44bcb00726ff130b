"""One hash over a model's state: two runs that ended in the same weights have the same hash."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def weights_sha256(state: Mapping[str, Any]) -> str:
    """Return the sha256 over a `state_dict()`, as a hex string.

    Each tensor, in the dict's order, adds its name, NUL, its dtype ("float32"), NUL, its shape ("2,3"), NUL, and its
    contiguous bytes in little-endian order. A module's extra state, which may be anything, is left out.
    """
    digest = hashlib.sha256()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        kind, shape = str(tensor.dtype).removeprefix("torch."), ",".join(map(str, tensor.shape))
        digest.update(f"{name}\0{kind}\0{shape}\0".encode())
        flat = tensor.detach().to("cpu").contiguous()
        size = flat.numel() * flat.element_size()
        # Read the memory in place. The usual way to a tensor's bytes is numpy, which may not be installed.
        digest.update((ctypes.c_char * size).from_address(flat.data_ptr()) if size else b"")
    return digest.hexdigest()
