"""Phrases that the messages of all packages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def some(names: Sequence[str], most: int = 8, between: str = ", ") -> str:
    """Return the first `most` names, and the count of the others."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt word, to be added to a message; "" if no known word is close."""
    import difflib  # not at the top, because the supervisor does not need it

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
