"""The options that change a spec on the command line."""

from __future__ import annotations

from typing import NamedTuple


class Chosen(NamedTuple):
    """The options of one command. `overrides`: texts like train.lr=1e-4, of which a later one wins."""

    overrides: tuple[str, ...] = ()


AS_WRITTEN = Chosen()
