"""The options that change a spec on the command line."""

from __future__ import annotations

from typing import NamedTuple


class Chosen(NamedTuple):
    """The options of one command.

    `profile`: its name, or "" for none. `overrides`: texts like train.lr=1e-4; the last one for a field wins.
    """

    profile: str | None = None
    overrides: tuple[str, ...] = ()


AS_WRITTEN = Chosen()
