"""Specs with one mistake: each ends in a job that renders on its tiers, or in findings; never in a crash or a wait.

Every example is changed in one place: a value by one that people write by mistake, a key left out or misspelt.
`make nightly` tries all of them, `make test` a sample. `python -m tests.ddpgen.test_mutations` lists those that are accepted.
tests/data/wrong.yaml has values that nobody can mean. None of these is accepted.
"""

from __future__ import annotations

import copy
import random
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ddpgen import job
from ddpgen.errors import FileTroubleError, Finding, SpecInvalidError
from ddpgen.tiers.registry import read
from tests.ddpgen.conftest import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
WRONG_VALUES = ROOT / "tests/data/wrong.yaml"
SAMPLE = 600
_LIMIT_S = 5.0  # for one spec, on a busy machine
WRONG = [
    None, True, 0, -1, 1.5, 10**18, 10**30, float("inf"), "", " ", "a b", "a\nb", "x" * 200, "é", "~", "~you", "..", "/",
    "/dev/null", "$SCRATCH/x", "{x}", "0-", "7-0", "a=b", "--x", "s3://", "s3://k:s@b/x", "10.0.0.300", "me@", "1h", "1 steps",
    "3..2", "90", "fi", [], ["a", ["b"]], {}, {"a": {"b": 1}},
]  # fmt: skip
LEFT_OUT, MISSPELT = "left out", "misspelt"


class Mutation(NamedTuple):
    """One change of an example. `value`: the value in place of its own, or how the key is changed."""

    example: Path
    place: tuple[str | int, ...]
    value: Any

    @property
    def text(self) -> str:
        spec = copy.deepcopy(_loaded(self.example))
        *above, last = self.place
        group = spec
        for part in above:
            # An example may lack the group, or have its short form.
            if isinstance(part, str) and not isinstance(group.get(part), (dict, list)):
                group[part] = {}
            group = group[part]
        if self.value is LEFT_OUT:
            del group[last]
        elif self.value is MISSPELT:
            group[f"{last}x"] = group.pop(last)
        else:
            group[last] = self.value
        return yaml.safe_dump(spec, allow_unicode=True)


def mutations() -> Iterator[Mutation]:
    """Yield every mutation of every example."""
    for example in EXAMPLES:
        for place in _places(_loaded(example), ()):
            keys = [LEFT_OUT, MISSPELT] if isinstance(place[-1], str) else [LEFT_OUT]
            yield from (Mutation(example, place, value) for value in (*keys, *WRONG))


def outcome(mutation: Mutation) -> str:
    """Return "refused", "warned" or "accepted". A spec that is not refused is rendered. Raises for a fault of ddpgen."""
    home = mutation.example.parent
    try:
        readings = read(mutation.text.encode(), str(mutation.example))
        warnings = job.check([*readings.values()], home)
    except (SpecInvalidError, FileTroubleError):
        return "refused"
    job.artefacts(readings, job.resolve("all", readings), None)
    return "warned" if warnings else "accepted"


def test_one_mistake_never_ends_in_a_crash_or_a_wait() -> None:
    every = list(mutations())
    assert len(every) > 1500
    outcomes = outcomes_of(random.Random(0).sample(every, SAMPLE))
    assert len(outcomes["refused"]) > SAMPLE / 2
    assert outcomes["accepted"]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_of_all_mistakes_none_ends_in_a_crash_or_a_wait() -> None:
    outcomes_of(mutations())


def test_of_a_sample_of_wrong_values_each_is_named_at_its_field() -> None:
    every = list(wrong_values())
    assert len(every) > 1500
    assert unnamed(random.Random(0).sample(every, SAMPLE)) == []


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_each_wrong_value_is_named_at_its_field() -> None:
    assert unnamed(wrong_values()) == []


def wrong_values() -> Iterator[Mutation]:
    """Yield the mutations of tests/data/wrong.yaml."""
    for name, fields in yaml.safe_load(WRONG_VALUES.read_text(encoding="utf-8")).items():
        for field, values in fields.items():
            place = tuple(field.split("."))
            yield from (Mutation(ROOT / "examples" / f"{name}.yaml", place, v) for v in values)


def unnamed(mutations: Iterable[Mutation]) -> list[Mutation]:
    """Return the mutations without a finding at the changed place, above it or below it."""
    return [mutation for mutation in mutations if not any(_names(mutation, findings_of(mutation)))]


def findings_of(mutation: Mutation) -> list[Finding]:
    """Return the errors of a mutated spec, or the warnings of a sound one."""
    home = mutation.example.parent
    try:
        return job.check([*read(mutation.text.encode(), str(mutation.example)).values()], home)
    except SpecInvalidError as error:
        return error.findings


def _names(mutation: Mutation, findings: Iterable[Finding]) -> Iterator[bool]:
    """Yield True for each finding at the changed place, above it or below it."""
    place = ".".join(map(str, mutation.place))
    for path in (finding.path for finding in findings):
        yield (
            path == place
            or path.startswith((f"{place}.", f"{place}["))
            or place.startswith(f"{path}.")
        )


def outcomes_of(mutations: Iterable[Mutation]) -> dict[str, list[Mutation]]:
    """Return the mutations by their outcome. A crash or a wait is an AssertionError that lists all of them."""
    outcomes: dict[str, list[Mutation]] = {"refused": [], "warned": [], "accepted": []}
    faults = []
    for mutation in mutations:
        began = time.monotonic()
        try:
            outcomes[outcome(mutation)].append(mutation)
        except Exception as error:  # noqa: BLE001 (each is a fault to list)
            faults.append(f"{mutation}: {error!r}")
        if (took := time.monotonic() - began) > _LIMIT_S:
            faults.append(f"{mutation}: {took:.1f} s")
    assert not faults, "\n".join(faults)
    return outcomes


def _loaded(example: Path, read: dict[Path, Any] = {}) -> Any:  # noqa: B006 (it keeps what was read)
    if example not in read:
        read[example] = yaml.safe_load(example.read_text(encoding="utf-8"))
    return read[example]


def _places(value: Any, above: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value below `value`."""
    below = value.items() if isinstance(value, dict) else enumerate(value)
    for part, inner in below:
        yield (*above, part)
        if isinstance(inner, (dict, list)):
            yield from _places(inner, (*above, part))


if __name__ == "__main__":
    for accepted in outcomes_of(mutations())["accepted"]:
        sys.stdout.write(f"{accepted.example.name} {accepted.place} {accepted.value!r}\n")
