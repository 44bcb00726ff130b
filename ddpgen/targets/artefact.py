"""A file that a target renders. Knows its name in the bundle, not where the bundle lies."""

from __future__ import annotations

from typing import NamedTuple


class Artefact(NamedTuple):
    """One rendered file of a bundle, and what to type to start it, if that is what it is for."""

    path: str
    text: str
    start: str = ""
    executable: bool = True
