"""Times, tables, long lists and foreign text in a form for people, for driver and generator. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def first_names(names: Sequence[str], limit: int = 5) -> str:
    """Return the first `limit` names, and the count of the others."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds: 1:02:03 or 2:03."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def ago(seconds: float) -> str:
    """Return a past time as text: `90 s ago`, `5 min ago`, `3 h ago`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s ago"
    return f"{whole // 60} min ago" if whole < 7200 else f"{whole // 3600} h ago"


def printable(text: str) -> str:
    """Return foreign text with escapes for the characters that a terminal would obey or not show."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def table(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.ljust) -> list[str]:
    """Return the rows as lines with aligned columns. `align`: for all columns except the first."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(first), *map(align, row[1:], others)]).rstrip() for row in rows]
