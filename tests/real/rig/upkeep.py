"""What is brought up for the length of a with statement: rigs, clusters, SkyPilot.

Owns nothing but that rule.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

_Own = TypeVar("_Own", bound="Upkeep")


class Upkeep:
    """`with each as up:` is start(), and close() at the end, however that comes."""

    def start(self: _Own) -> _Own:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Own) -> _Own:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
