"""How a host, a list of them or a rate is said in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MOST = 6  # names in a sentence


class Host(NamedTuple):
    """A host with the address by which it is known, "" for none: `b (192.168.7.2)`."""

    name: str
    address: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.address not in ("", self.name) else self.name


def listed(names: Sequence[object]) -> str:
    """`a`, `a and b`, `a, b and c`; of very many the first ones and how many more."""
    said = [str(name) for name in names]
    if len(said) > _MOST:
        said = [*said[: _MOST - 1], f"{len(said) - _MOST + 1} more"]
    *front, last = said or ["nobody"]
    return f"{', '.join(front)} and {last}" if front else last


def rated(rate: float) -> str:
    """A rate, given in bytes a second, with two digits that count: `1.2 MB/s`, `110 MB/s`."""
    megabytes = rate / 1e6
    return f"{megabytes:.0f} MB/s" if megabytes >= 10 else f"{megabytes:.2g} MB/s"
