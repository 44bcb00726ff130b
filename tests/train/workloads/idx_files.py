"""Image sets in IDX form, made in memory: the format as its authors describe it, written afresh."""

from __future__ import annotations

import gzip
import struct

import numpy

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx(values: numpy.ndarray) -> bytes:
    """Magic number, big-endian sizes, then the bytes."""
    header = struct.pack(">HBB", 0, 0x08, values.ndim) + struct.pack(
        f">{values.ndim}I", *values.shape
    )
    return header + values.astype(numpy.uint8).tobytes()


def image_set(
    images: numpy.ndarray, labels: numpy.ndarray, held_out: int, packed: bool = True
) -> dict[str, bytes]:
    """The four files by name; the last `held_out` images are the t10k set."""
    split = len(images) - held_out
    parts = (images[:split], labels[:split], images[split:], labels[split:])
    plain = {name: idx(part) for name, part in zip(NAMES, parts, strict=True)}
    if not packed:
        return plain
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in plain.items()}
