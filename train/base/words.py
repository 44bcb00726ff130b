"""Phrases that the messages of all packages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def first_few(names: Sequence[str], limit: int = 8, separator: str = ", ") -> str:
    """Return the first `limit` names, and the count of the others."""
    remaining = len(names) - limit
    return separator.join(names[:limit]) + (f" and {remaining} more" if remaining > 0 else "")


def did_you_mean(word: str, known_words: Iterable[str]) -> str:
    """Return a hint for a misspelt word, to be added to a message; "" if no known word is close."""
    import difflib  # not at the top, because the supervisor does not need it

    close = difflib.get_close_matches(word, list(known_words), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
