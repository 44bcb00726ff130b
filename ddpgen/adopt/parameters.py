"""The number of parameters of the built-in workloads, from their arguments. Pure.

A test builds the models of train/workloads/ and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_VOCABULARY = 256  # of gpt: bytes
_PICTURE_SIDE = 28  # of mnist's pictures, in pixels


def counted(workload: str | None, args: Mapping[str, Any]) -> int | None:
    """Return the number of parameters of a built-in workload; None if the arguments do not determine it."""
    if workload is None or workload not in _WORKLOADS:
        return None
    if workload == "mnist" and "data_dir" in args:
        return None  # other pictures than MNIST's may have another size
    count, defaults = _WORKLOADS[workload]
    values = {name: args.get(name, value) for name, value in defaults.items()}
    if any(
        type(values[name]) is not type(value) or values[name] < 0
        for name, value in defaults.items()
    ):
        return None  # the workload refuses it
    return count(**values)


def _gpt(depth: int, width: int, seq_len: int, tie_weights: bool) -> int:
    norm = 2 * width
    block = 2 * norm + 4 * width**2 + 8 * width**2  # attention; an MLP of four times the width
    embeddings = (_VOCABULARY + seq_len) * width
    head = 0 if tie_weights else _VOCABULARY * width
    return embeddings + depth * block + norm + head


def _mnist(channels: int, hidden: int, classes: int, batch_norm: bool) -> int:
    side = -(-_PICTURE_SIDE // 4)
    norms = 2 * channels + 4 * channels if batch_norm else 0
    convolutions = (9 + 1) * channels + (9 * channels + 1) * 2 * channels
    layers = (2 * channels * side**2 + 1) * hidden + (hidden + 1) * classes
    return convolutions + norms + layers


def _toy(features: int, classes: int, hidden: int, batch_norm: bool) -> int:
    norm = 2 * hidden if batch_norm else 0
    return (features + 1) * hidden + norm + (hidden + 1) * classes


# With the workloads' defaults of the arguments that decide a shape.
_WORKLOADS: Mapping[str, tuple[Callable[..., int], Mapping[str, Any]]] = {
    "gpt": (_gpt, {"depth": 4, "width": 128, "seq_len": 128, "tie_weights": True}),
    "mnist": (_mnist, {"channels": 16, "hidden": 64, "classes": 10, "batch_norm": False}),
    "toy": (_toy, {"features": 16, "classes": 4, "hidden": 64, "batch_norm": False}),
}
