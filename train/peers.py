"""Whether an exception is about another process, and how: it is gone, or it did not come in time.

By its type where there is one: ours, and torch's for the store. gloo raises a RuntimeError for everything,
so that there the text has to tell; all of that is in one table. Imports no torch.
"""

from __future__ import annotations

GONE, LATE = "gone", "late"
# What gloo's messages have in them, in torch 2.4.0, 2.13.0 and 2.15.0.
_GLOO = {
    "closed by peer": GONE,
    "Connection reset": GONE,
    "Connection refused": GONE,
    "Broken pipe": GONE,
    "Timed out waiting": LATE,
    "Application timeout": LATE,
}
_LATE = ("timeout", "timed out")


class PeerGoneError(RuntimeError):
    """The connection to another rank has ended."""


class PeerLateError(RuntimeError):
    """Another rank did not answer in time."""


def what_became_of_a_peer(error: BaseException) -> str:
    """GONE or LATE where the exception is about another process, else empty.

    A user's own TimeoutError or ConnectionError is not: it may be a file server's.
    """
    if isinstance(error, PeerGoneError):
        return GONE
    if isinstance(error, PeerLateError):
        return LATE
    text = str(error)
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):  # torch.distributed's
        return LATE if any(word in text.lower() for word in _LATE) else GONE
    if not isinstance(error, RuntimeError):
        return ""
    return next((meaning for sign, meaning in _GLOO.items() if sign in text), "")
