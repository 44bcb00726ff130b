"""A store for heartbeats without processes, that knows how much it has moved."""

from __future__ import annotations

from collections.abc import Sequence


class Store:
    """What a TCPStore does, in a dictionary; counts what goes in and out."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.moved = 0

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value.encode()
        self.moved += len(value)

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.kept for key in keys)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        found = [self.kept[key] for key in keys]
        self.moved += sum(map(len, found))
        return found
