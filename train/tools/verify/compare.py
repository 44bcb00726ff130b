"""Two runs compared: their origins, the bits of their losses, their tensors.

Owns the judgement whether a difference can change bits, and the order in which differences are named as the cause.
Only tensor_differences opens files, and only it needs torch.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MOST_ROWS = 12  # the most rows of each Rank in a table
_WIDTH = 40  # the most characters of a value in a table
_MISSING = "-"
_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)


class Rank(enum.IntEnum):
    """The three answers to: can this difference be the reason of other bits?"""

    BITS = 0
    MAY = 1
    NO = 2


LABELS = {Rank.BITS: "changes bits", Rank.MAY: "may", Rank.NO: "does not"}


class Difference(NamedTuple):
    """One thing that differs.

    `first`, `second`: the values for people, "-" for none. `cause`: the words that name it as the cause, if these are not
    `name: was -> now`.
    """

    rank: Rank
    name: str
    first: str
    second: str
    cause: str = ""

    def __str__(self) -> str:
        return self.cause or f"{self.name}: {_short(self.first, 80)} -> {_short(self.second, 80)}"


@dataclass(frozen=True)
class Origin:
    """The origin of a run.

    `start`: an entry of `starts` in a manifest. `environments`: the manifest's. `files`: the files of its bundle by
    path (code/ and train/ count), empty if the bundle was not kept.
    """

    start: Mapping[str, Any]
    environments: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, bytes] = field(default_factory=dict)


class TensorDifference(NamedTuple):
    """The first tensor that differs.

    `elements`: how many of its `total` elements have other bits. `largest`: the largest absolute difference of two
    elements, nan if one of them is nan. `what`: why elements cannot be compared, else "". `tensors`: how many tensors
    differ at all.
    """

    name: str
    elements: int
    total: int
    largest: float
    what: str
    tensors: int

    def __str__(self) -> str:
        more = f" (and {self.tensors - 1} more)" if self.tensors > 1 else ""
        if self.what:
            return f"{self.name}: {self.what}{more}"
        parts = f"{self.elements} of {self.total} elements, by at most {self.largest:.3g}"
        return f"{self.name}: {parts}{more}"


def environment_differences(first: Origin, second: Origin) -> list[Difference]:
    """Return all differences: first the ones that change bits, and in each Rank the likeliest cause first.

    It does not match hosts with each other. For each fact, it compares the sets of values on all hosts.
    """
    found = [
        *_settings(first.start, second.start),
        *_data(first.start, second.start),
        *_code(first, second),
        *_environments(first, second),
        *_placement(first.start, second.start),
    ]
    once: dict[str, Difference] = {}
    for each in found:
        once.setdefault(each.name, each)  # some are found twice: threads are a setting and a fact
    return sorted(once.values(), key=lambda each: each.rank)


def first_loss_difference(first: Mapping[int, float], second: Mapping[int, float]) -> int | None:
    """Return the first step that both have and whose losses have other bits, or None."""
    return next(iter(loss_differences(first, second)), None)


def loss_differences(first: Mapping[int, float], second: Mapping[int, float]) -> list[int]:
    """Return the steps that both have and whose losses have other bits."""
    return [
        step for step in sorted({*first} & {*second}) if first[step].hex() != second[step].hex()
    ]


def tensor_differences(first: Path, second: Path) -> TensorDifference | None:
    """Compare two model.pt or optimizer.pt by the bits of their tensors. Returns None if all are the same.

    Raises ImportError without torch, OSError, and torch's errors for a file that it cannot load.
    """
    from train.checkpoint.disk import unpickle

    left, right = (dict(_leaves(unpickle(each, mapped=True))) for each in (first, second))
    names = [*left, *(name for name in right if name not in left)]
    found = [each for name in names if (each := _tensor(name, left, right)) is not None]
    return found[0]._replace(tensors=len(found)) if found else None


def verdict(
    fact: str, differences: Sequence[Difference], sides: Sequence[str] = ("A", "B")
) -> list[str]:
    """Return lines: `fact` with its likeliest cause, then the differences as a table with the columns `sides`."""
    rows = table(differences, sides)
    return [f"{fact}{_cause(differences)}", *(["", *rows] if rows else [])]


def table(differences: Sequence[Difference], sides: Sequence[str] = ("A", "B")) -> list[str]:
    """Return the lines of a table of the differences, at most MOST_ROWS of each Rank; [] without differences."""
    cells = [("bits", "what", *sides)]
    for rank in Rank:
        ranked = [each for each in differences if each.rank is rank]
        cells += [
            (LABELS[rank], each.name, _short(each.first), _short(each.second))
            for each in ranked[:MOST_ROWS]
        ]
        if len(ranked) > MOST_ROWS:
            cells.append((LABELS[rank], f"and {len(ranked) - MOST_ROWS} more", "", ""))
    if not differences:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return list(padded)


def _cause(differences: Sequence[Difference]) -> str:
    for rank, adds in ((Rank.BITS, ""), (Rank.MAY, ", which may change bits")):
        ranked = [each for each in differences if each.rank is rank]
        if ranked:
            more = f" (and {len(ranked) - 1} more, below)" if len(ranked) > 1 else ""
            return f": {ranked[0]}{adds}{more}"
    return "; nothing on record explains it"


# The start entry: settings, data, code, who took part.


def _settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    left, right = _flat(first.get("settings")), _flat(second.get("settings"))
    names = sorted({*left, *right}, key=lambda name: (name != "seed", name))
    yield from _pairs(Rank.BITS, names, left, right)


def _data(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    left, right = _mapping(first.get("data")), _mapping(second.get("data"))
    if not left or not right:
        return  # a start that ended before its data files were hashed
    before, after = _data_files(left), _data_files(right)
    moved = {_content(each) for each in before.values()} & {
        _content(each) for each in after.values()
    }
    for name in sorted({*before, *after}):
        pair = before.get(name, {}), after.get(name, {})
        if all(pair) or _content(pair[0] or pair[1]) not in moved:
            yield from _data_file(name, *pair)
    yield from _pairs(Rank.BITS, ["fingerprint"], left, right, "fingerprint of the data")


def _data_file(
    name: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[Difference]:
    """Yield the difference of one data file. Only the ends of a large file were hashed, so if its time differs, its
    content may differ."""
    for key in ("sha256", "size"):
        if first.get(key) != second.get(key):
            before, after = (
                f"{key} {str(each.get(key, _MISSING))[:12]}" for each in (first, second)
            )
            yield Difference(Rank.BITS, name, before, after, f"{name} has another {key}")
            return
    if first.get("partial") and first.get("mtime") != second.get("mtime"):
        said = f"{name} has another time, and only its ends were hashed"
        yield Difference(Rank.MAY, name, str(first.get("mtime")), str(second.get("mtime")), said)


def _content(facts: Mapping[str, Any]) -> tuple[Any, Any]:
    return facts.get("sha256"), facts.get("size")


def _data_files(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the files by their names below their common directory, which has another path on another machine."""
    files = _mapping(data.get("files"))
    if not files:
        return {}
    top = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files])
    return {os.path.relpath(path, top): _mapping(facts) for path, facts in files.items()}


def _code(first: Origin, second: Origin) -> Iterator[Difference]:
    if not first.files or not second.files:
        before, after = (str(each.start.get("code") or _MISSING)[:12] for each in (first, second))
        if before != after:
            yield Difference(Rank.BITS, "code", before, after, "the user's code differs")
        return
    differing = [
        path
        for path in sorted({*first.files, *second.files})
        if first.files.get(path) != second.files.get(path)
    ]
    for path in differing:
        if path.startswith("code/"):
            name = path.removeprefix("code/")
            yield _code_line(name, first.files.get(path), second.files.get(path))
    ours = [path for path in differing if path.startswith("train/")]
    if ours:
        said = f"ddpgen's own training module differs in {', '.join(ours[:3])}"
        yield Difference(Rank.BITS, "train/", _MISSING, f"{len(ours)} other files", said)


def _code_line(name: str, first: bytes | None, second: bytes | None) -> Difference:
    """Return the difference of one file of the user's code: its first line that differs."""
    if first is None or second is None:
        return Difference(
            Rank.BITS, name, *(_MISSING if each is None else "there" for each in (first, second))
        )
    if b"\0" in first + second:
        said = f"{name} has other content"
        return Difference(Rank.BITS, name, f"{len(first)} bytes", f"{len(second)} bytes", said)
    lines = [content.decode("utf-8", "replace").splitlines() for content in (first, second)]
    number = next(
        (i for i, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1]),
        min(map(len, lines)),
    )
    before, after = (each[number].strip() if number < len(each) else _MISSING for each in lines)
    return Difference(Rank.BITS, f"{name}:{number + 1}", before, after)


def _placement(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences of the hosts and processes. They change bits only if gradients are added in the order of
    the ranks."""
    free = all(
        _mapping(each.get("settings")).get("reduction", "tree") == "tree"
        for each in (first, second)
    )
    rank = Rank.NO if free else Rank.BITS
    yield from _pairs(rank, ["world_size", "shares"], first, second)
    yield from _pairs(Rank.NO, ["tier"], first, second)
    left, right = ({"hosts": sorted(_hosts(each)), "nic": _nics(each)} for each in (first, second))
    yield from _pairs(Rank.NO, ["hosts", "nic"], left, right)


# Environments.

# The facts that decide bits, the likeliest cause first. All other facts of an environment may decide them.
_DECIDES = (
    "library_flags", "determinism", "torch", "machine", "cpu_capability", "flags", "threads", "device", "cuda", "cudnn",
    "nccl",
)  # fmt: skip


def _environments(first: Origin, second: Origin) -> Iterator[Difference]:
    left, right = _facts(first), _facts(second)
    used = _imported(first) | _imported(second)
    tops = {name: name.partition(".")[0] for name in sorted({*left, *right})}
    for top in _DECIDES:
        for name in (name for name in tops if tops[name] == top):
            yield from _pairs(Rank.BITS, [name], left, right, name.removeprefix("library_flags."))
    for name in (name for name in tops if tops[name] not in (*_DECIDES, "bits")):
        shown = name.removeprefix("distributions.")
        in_use = name != shown and shown.replace("-", "_").lower() in used
        yield from _pairs(Rank.BITS if in_use else Rank.MAY, [name], left, right, shown)
    probed = [name for name in left if tops[name] == "bits" and name in right]
    operations = [name for name in probed if left[name] != right[name]]
    if operations:
        names = ", ".join(name.removeprefix("bits.") for name in operations)
        yield Difference(
            Rank.BITS, "bit probe", _MISSING, names, f"the hosts compute other bits in {names}"
        )


def _facts(origin: Origin) -> dict[str, Any]:
    """Return each fact's value; if hosts differ in it, all values as text."""
    values: dict[str, list[Any]] = {}
    for host in _hosts(origin.start).values():
        facts = _mapping(origin.environments).get(str(_mapping(host).get("environment")))
        for name, value in _flat(facts).items():
            if value not in values.setdefault(name, []):
                values[name].append(value)
    return {
        name: found[0] if len(found) == 1 else " | ".join(sorted(map(_shown, found)))
        for name, found in values.items()
    }


def _imported(origin: Origin) -> set[str]:
    """Return the names that the user's code imports: the version of a distribution with such a name counts."""
    code = b"\n".join(each for path, each in origin.files.items() if path.startswith("code/"))
    return {name.decode().lower() for name in _IMPORT.findall(code)}


def _hosts(start: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(start.get("hosts"))


def _nics(start: Mapping[str, Any]) -> list[str]:
    return sorted({str(_mapping(host).get("nic") or "") for host in _hosts(start).values()} - {""})


# Values.


def _pairs(
    rank: Rank,
    names: Iterable[str],
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    shown: str = "",
) -> Iterator[Difference]:
    for name in names:
        before, after = first.get(name), second.get(name)
        if before != after:
            yield Difference(rank, shown or name, _shown(before, after), _shown(after, before))


def _shown(value: Any, other: Any = None) -> str:
    """Return the value for people. A list of words is shown without the words that `other` has as well."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        known = other if isinstance(other, list) else []
        value = " ".join(each for each in value if each not in known)
    return (
        _MISSING
        if value is None or value == ""
        else value
        if isinstance(value, str)
        else repr(value)
    )


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with dotted names."""
    if isinstance(value, Mapping):
        below = (
            _flat(each, f"{path}.{name}" if path else str(name)) for name, each in value.items()
        )
        return {name: each for found in below for name, each in found.items()}
    return {} if value is None else {path: value}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _short(text: str, limit: int = _WIDTH) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


# Tensors.


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value inside nested dicts, lists and tuples, with its dotted name."""
    if isinstance(value, Mapping):
        children: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple)):
        children = enumerate(value)
    else:
        yield path, value
        return
    for name, child in children:
        yield from _leaves(child, f"{path}.{name}" if path else str(name))


def _tensor(
    name: str, left: Mapping[str, Any], right: Mapping[str, Any]
) -> TensorDifference | None:
    import torch

    def differs(reason: str) -> TensorDifference:
        return TensorDifference(name, 0, 0, 0.0, reason, 1)

    if name not in left or name not in right:
        return differs("is in the first only" if name in left else "is in the second only")
    was, now = left[name], right[name]
    if not isinstance(was, torch.Tensor) or not isinstance(now, torch.Tensor):
        return None if repr(was) == repr(now) else differs(f"{was!r} and {now!r}")
    if (was.dtype, was.shape) != (now.dtype, now.shape):
        kinds = (f"{each.dtype} {list(each.shape)}" for each in (was, now))
        return differs(" and ".join(kinds))
    size = was.element_size()
    pair = [each.detach().contiguous().reshape(-1) for each in (was, now)]
    bits = [each.view(torch.uint8).reshape(-1, size) for each in pair]
    other = (bits[0] != bits[1]).any(dim=1)
    count = int(other.sum())
    if count == 0:
        return None
    wide = [
        each[other].to(torch.complex128 if each.is_complex() else torch.float64) for each in pair
    ]
    largest = float((wide[0] - wide[1]).abs().max())
    return TensorDifference(name, count, was.numel(), largest, "", 1)
