"""Numbers with units, as people write them on a command line and read them in a table. Pure."""

from __future__ import annotations

import math
import re

from ddpgen.measure.cost import Link
from ddpgen.spec.fields import Refused, decimal, show
from ddpgen.spec.times import Duration
from ddpgen.tiers.registry import DEFAULT_TIER, TIERS

# Line rates. NVLink is an H100's, with 450 GB/s in each direction (NVIDIA H100 Tensor Core GPU data sheet).
LINKS = (
    Link("1GbE", 1e9),
    Link("2.5GbE", 2.5e9),
    Link("10GbE", 10e9),
    Link("100G", 100e9),
    Link("400G", 400e9),
    Link("NVLink", 3600e9),
)
_RATE = re.compile(r"(.+?)\s*(GbE|G|Gbit/s|Gbps|Gb/s|Mbit/s|Mbps|Mb/s)", re.IGNORECASE)
_SUFFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_LINK_REMEDY = 'write 1GbE, 2.5GbE, 10GbE, 100G, 400G, NVLink or a rate like "300 Mbit/s"'


def link(text: str) -> Link:
    """Return a link by its name, or by its rate in bits per second. Raise Refused."""
    for named in LINKS:
        if text.lower() == named.name.lower():
            return named
    if re.search(r"[MG]i?B(/s|ps)?$", text):
        raise Refused(f"{show(text)} counts bytes, and links are rated in bits", _LINK_REMEDY)
    match = _RATE.fullmatch(text)
    rate = decimal(match[1]) if match else None
    if match is None or rate is None or not 0 < rate < math.inf:
        raise Refused(f"{show(text)} is no link", _LINK_REMEDY)
    return Link(text, rate * (1e6 if match[2][0] in "mM" else 1e9))


def many(text: str) -> int:
    """Return a count like 760M, 1.3B or 124000000. Raise Refused."""
    match = re.fullmatch(r"(.+?)\s*([kMBGT]?)", text)
    value = decimal(match[1]) if match else None
    if match is None or value is None or not 1 <= value * _SUFFIXES[match[2]] <= 1e15:
        remedy = "write a number with k, M, B or T behind it, like 760M"
        raise Refused(f"{show(text)} is no number of parameters", remedy)
    return round(value * _SUFFIXES[match[2]])


def seconds(text: str) -> float:
    """Return the seconds of a duration with its unit, in the form of a spec. Raise Refused."""
    return float(Duration().parse_text(text))


def step_time(text: str) -> tuple[str, float]:
    """Return host and seconds of HOST=TIME; the host is "" for a time alone, which is for all hosts. Raise Refused."""
    host, equals, duration = text.rpartition("=")
    if equals and not host:
        raise Refused(f"{show(text)} names no host", "write HOST=TIME, or a time alone, like 1.5s")
    return host, seconds(duration)


def fraction(text: str) -> float:
    """Return a number above 0, and at most 1. Raise Refused."""
    value = decimal(text)
    if value is None or not 0 < value <= 1:
        raise Refused(f"{show(text)} is no part of a whole", "write a number like 0.85, at most 1")
    return value


def price(text: str) -> float:
    """Return an amount of money in any currency. Raise Refused."""
    value = decimal(text)
    if value is None or not 0 < value < math.inf:
        raise Refused(f"{show(text)} is no price", "write a number above 0, like 18.50")
    return value


def shapes(text: str) -> tuple[str, ...]:
    """Return the shapes in a list like 1,2,hosts: numbers of processes, gpu, and names of tiers. Raise Refused."""
    named = [
        "gpu",
        *(name for name, tier in TIERS.items() if tier.can_bench and name != DEFAULT_TIER),
    ]
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in named and not re.fullmatch("[1-9][0-9]{0,3}", word):
            names = f"{', '.join(named[:-1])} or {named[-1]}"
            remedy = f"write numbers of processes, {names}, like 1,2,{named[1]}"
            raise Refused(f"{show(word)} is no shape", remedy)
    return words


def time(value_s: float) -> str:
    """Return a time for people: 36 ms, 14.3 s, 12.6 min, 2 h, 3.1 d; "none" for 0."""
    if not value_s:
        return "none"
    for limit, unit, size in ((1e-3, "µs", 1e-6), (1.0, "ms", 1e-3), (120.0, "s", 1.0)):
        if value_s < limit:
            return f"{_short(value_s / size)} {unit}"
    for limit, unit, size in ((7200.0, "min", 60.0), (172800.0, "h", 3600.0)):
        if value_s < limit:
            return f"{_short(value_s / size)} {unit}"
    return f"{_short(value_s / 86400)} d"


def count(value: float, unit: str = "") -> str:
    """Return a count or a size for people: 760M, 1.52 GB."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            letter = "B" if letter == "G" and not unit else letter
            return f"{_short(value / size)}{' ' if unit else ''}{letter}{unit}"
    return f"{value:.0f}{' ' if unit else ''}{unit}"


def _short(value: float) -> str:
    """Return three digits, and all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
