"""Hashes over a model's state: one over all of it, and one of each tensor.

Two runs that ended in the same weights have the same hashes. Owns the choice of a tensor's bytes that are hashed.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from train.run.chain import TENSOR_HASH_BYTES, Digest


def weights_sha256(state: Mapping[str, Any]) -> str:
    """Return the sha256 over a `state_dict()`, as a hex string.

    Each tensor, in the dict's order, adds its name, NUL, its dtype ("float32"), NUL, its shape ("2,3"), NUL, and its
    contiguous bytes in little-endian order. A module's extra state, which may be anything, is left out.
    """
    digest = hashlib.sha256()
    for parts in _tensors(state):
        for part in parts:
            digest.update(part)
    return digest.hexdigest()


def digest_of(step: int, state: Mapping[str, Any]) -> Digest:
    """Return the hash tree over a `state_dict()`. Its leaves are the sha256 of each tensor, over the same bytes as in
    weights_sha256(); its root is the sha256 over the leaves."""
    root, prefixes = hashlib.sha256(), ""
    for parts in _tensors(state):
        tensor = hashlib.sha256()
        for part in parts:
            tensor.update(part)
        root.update(tensor.digest())
        prefixes += tensor.digest()[:TENSOR_HASH_BYTES].hex()
    return Digest(step, root.hexdigest(), prefixes)


def _tensors(state: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each tensor's description and its bytes."""
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        kind, shape = str(tensor.dtype).removeprefix("torch."), ",".join(map(str, tensor.shape))
        flat = tensor.detach().to("cpu").contiguous()
        size = flat.numel() * flat.element_size()
        # Read the memory in place. The usual way to a tensor's bytes is numpy, which may not be installed.
        content = (ctypes.c_char * size).from_address(flat.data_ptr()) if size else b""
        yield f"{name}\0{kind}\0{shape}\0".encode(), content
