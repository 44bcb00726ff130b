"""The reader of JSON returns the value that was written, and None for anything else."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from train.base import typed
from train.health import view


class Point(NamedTuple):
    x: int
    name: str = ""


@dataclass(frozen=True)
class Record:
    count: int
    share: float
    points: tuple[Point, ...]
    by_name: dict[str, bool]
    pair: tuple[int, int] | None = None
    free: tuple[Any, ...] = ()


WHOLE = Record(1, 2.5, (Point(3, "a"), Point(4)), {"b": True}, (5, 6), ([7], "c"))
CONTENT = asdict(WHOLE)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**CONTENT, "another": 1}))
    assert typed.read(Record, path) == WHOLE
    assert typed.read(Record, tmp_path / "nothing") is None
    few = {"count": 1, "share": 2, "points": [[3]], "by_name": {}, "pair": None}
    assert typed.parse(Record, json.dumps(few)) == Record(1, 2.0, (Point(3),), {})
    assert typed.parse(dict, b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b"[" * 100_000, b'{"count": 1}']
)
def test_what_is_no_record_is_none(content: bytes) -> None:
    assert typed.parse(Record, content) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"count": True}, {"count": 1.0}, {"count": "1"}, {"count": None}, {"share": 10**400}, {"points": [3]},
        {"points": [[]]}, {"points": [[1, "a", 2]]}, {"points": {}}, {"by_name": {"b": 1}}, {"by_name": []},
        {"pair": [1]}, {"pair": [1, 2, 3]},
    ],
)  # fmt: skip
def test_a_field_of_another_type_makes_it_none(odd: dict[str, Any]) -> None:
    assert typed.convert(Record, {**CONTENT, "points": [[1]], "pair": [1, 2], "free": []})
    changed = {**CONTENT, "points": [[1]], "pair": [1, 2], "free": [], **odd}
    assert typed.convert(Record, changed) is None


def test_a_class_of_a_module_that_a_script_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may have a `train` of its own. The classes that ddpgen reads after that still have the names of its own modules."""
    name = view.__name__
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(typed.HIDDEN, name, view)
    typed._hints.cache_clear()
    assert typed.convert(view.Preflight, {"ok": True, "hosts": []}) == view.Preflight(ok=True)
