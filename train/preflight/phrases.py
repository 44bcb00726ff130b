"""How a list of hosts, a rate or an address is said in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from train.preflight.report import Report

_MOST = 6  # names in a sentence


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; of very many the first ones and how many more."""
    if len(names) > _MOST:
        names = [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"]
    *front, last = names or ("nobody",)
    return f"{', '.join(front)} and {last}" if front else last


def located(host: Report) -> str:
    """A host with the address by which it takes part: `b (192.168.7.2)`."""
    return f"{host.host} ({host.address})" if host.address else host.host


def rated(rate: float) -> str:
    """A rate, given in bytes a second, with two digits that count: `1.2 MB/s`, `110 MB/s`."""
    megabytes = rate / 1e6
    return f"{megabytes:.0f} MB/s" if megabytes >= 10 else f"{megabytes:.2g} MB/s"
