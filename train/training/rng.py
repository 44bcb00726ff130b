"""Random state as a function of the micro-batch that is computed, never of the rank that computes it.

Owns the derivation of seeds from (seed, purpose, step, micro-batch), and sets every global generator from one of
them. Knows nothing of ranks: a rank in a key would make the weights depend on the number of processes.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys

import torch

_CPU = torch.device("cpu")
INIT, MODEL, DATA, EVAL, ORDER = range(5)


def derive(seed: int, purpose: int, *position: int) -> int:
    """Return a 63-bit seed for one `purpose` (one of this module's constants) at one `position`.

    The seed is a hash, so that neighbouring positions get unrelated streams with any generator.
    """
    words = (seed & 0xFFFFFFFFFFFFFFFF, purpose, *position)
    digest = hashlib.blake2b(struct.pack(f"<{len(words)}Q", *words), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def set_global(seed: int, device: torch.device) -> None:
    """Put every global generator that a model may draw from into one known state.

    Seeds the generators directly, which takes a few µs. `torch.manual_seed` takes about 150 µs, because it visits
    every backend.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    random.seed(seed)


def set_global_for_data(seed: int, device: torch.device = _CPU) -> None:
    """Like set_global(), for all generators that a dataset or a transform may draw from, numpy's included."""
    set_global(seed, device)
    # Seed numpy only if the user's code has imported it, because training itself does not need numpy.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
