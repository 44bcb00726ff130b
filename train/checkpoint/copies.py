"""Copies of a state on the CPU, which the training does not change.

Owns the memory of the copies. It is kept for the next copy, because new memory costs more than the copy itself: the
system fills it with zeros, and CUDA has to pin it.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from train.distributed.sharding import Collected

# Every copy begins at a multiple of this, which suits every dtype.
_ALIGNMENT = 64


class Copies:
    """Copies of one state after another. A copy is valid until the next one begins."""

    def __init__(self, device: torch.device) -> None:
        """`device`: the device of the state."""
        self._memory = mmap.mmap(-1, _ALIGNMENT)
        self._is_pinned, self._end = False, 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._changed: torch.cuda.Event | None = None

    def follow(self) -> None:
        """Note that the work that is queued now completes the state. On a GPU, the next `take` waits for that work."""
        if self._stream is not None:
            self._changed = torch.cuda.current_stream(self._stream.device).record_event()

    def take(self, tree: Any) -> Any:
        """Return a copy of nested dicts and lists. A GPU does not wait for the work that was queued after `follow`."""
        self._make_room(tree)
        if self._stream is None or self._changed is None:
            return _copy_tensors(tree, self._copy)
        self._stream.wait_event(self._changed)
        with torch.cuda.stream(self._stream):
            copied = _copy_tensors(tree, self._copy)
        self._stream.synchronize()
        return copied

    def _make_room(self, tree: Any) -> None:
        """Have memory for the whole copy, and begin at its start."""
        self._end = 0
        _copy_tensors(tree, self._place)
        if self._end > len(self._memory):
            if self._is_pinned:
                torch.cuda.cudart().cudaHostUnregister(_address(self._memory))
            # The memory is shared with a child: after a fork, a GPU would go on to write to private memory of the child.
            self._memory = mmap.mmap(-1, self._end)
            self._is_pinned = self._stream is not None and _pin(self._memory, self._stream.device)
        self._end = 0

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move the end behind a place for this tensor."""
        if _is_plain(tensor):
            self._end = -(-(self._end + tensor.nbytes) // _ALIGNMENT) * _ALIGNMENT
        return tensor

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _is_plain(tensor):
            return tensor.to("cpu", copy=True)
        begin = self._end
        self._place(tensor)
        flat = torch.frombuffer(
            self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=begin
        )
        return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor, non_blocking=True)


def _is_plain(tensor: torch.Tensor) -> bool:
    """True if the tensor's values are as many bytes as its numbers have, one behind the other."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.numel() > 0
        and bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
    )


def _address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def _pin(memory: mmap.mmap, device: torch.device) -> bool:
    """Let CUDA write to this memory directly. Returns false if CUDA cannot; then a copy only takes longer."""
    cudart = torch.cuda.cudart()
    if cudart.cudaHostRegister(_address(memory), len(memory), 0) == cudart.cudaError.success:
        return True
    with suppress(RuntimeError):
        torch.zeros((), device=device)  # CUDA reports the failure again to the next kernel
    return False


def _copy_tensors(tree: Any, copy_one: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of nested dicts and lists in which `copy_one` has copied every tensor.

    Equal views of the same memory (tied weights) share it in the copy as well, so that the file holds them once. A
    named tuple stays a named tuple, and a module's state keeps the versions of its modules. Collected state is a copy
    already.
    """
    seen: dict[tuple[Any, ...], torch.Tensor] = {}

    def copy(node: Any) -> Any:
        if isinstance(node, Collected):
            return dict(node)
        if isinstance(node, torch.Tensor):
            key = (node.data_ptr(), node.shape, node.stride(), node.dtype, node.device)
            if node.numel() == 0 or key not in seen:
                seen[key] = copy_one(node.detach())
            return seen[key]
        if isinstance(node, OrderedDict):
            ordered = OrderedDict((k, copy(v)) for k, v in node.items())
            ordered.__dict__.update(node.__dict__)  # _metadata, of torch.nn.Module.state_dict
            return ordered
        if isinstance(node, Mapping):
            return {k: copy(v) for k, v in node.items()}
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*map(copy, node))
        if isinstance(node, (list, tuple)):
            return type(node)(copy(v) for v in node)
        return node

    return copy(tree)
