"""Slurm's notations for lists of nodes, array indices and dependencies, as kinds of value. Pure.

Owns the characters that an `#SBATCH` line may have. Such a line is not bash: sbatch removes backslashes even between
single quotes, and takes `#` for a comment. Source: sbatch(1).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from ddpgen.spec.fields import Refused, Text, show
from ddpgen.spec.yamltree import Scalar

WORD = r"[A-Za-z0-9_@%+=:,./()\[\]&|*!^][A-Za-z0-9_@%+=:,./()\[\]&|*!^-]*"
_PLAIN = "letters, digits and any of _@%+=:,./()[]&|*!^-, without spaces"
_INDICES = "[0-9]+(-[0-9]+)?"
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
# A name, with ranges in brackets: rack[1-2]node[01-16]. `*4` behind it repeats the node.
_HOSTS = rf"(?![*-])[A-Za-z0-9_.-]*(\[{_INDICES}(,{_INDICES})*\][A-Za-z0-9_.-]*)*([*][0-9]+)?"
# sbatch takes a value with a slash for the name of a file that lists the nodes.
_HOST_FILE = r"[A-Za-z0-9_.][A-Za-z0-9_.-]*/[A-Za-z0-9_./-]*|/[A-Za-z0-9_./-]*"
# The id of a job has 32 bits. Those above 67,108,863 name the cluster of a federation as well.
_JOB = r"[1-9][0-9]{0,9}(_([0-9]+|[*]))?"
_CONDITION = (
    rf"(after(:{_JOB}([+][0-9]+)?)+|after(any|burstbuffer|corr|notok|ok)(:{_JOB})+|singleton)"
)
_MAX_LISTED = 10_000
_MAX_INDEX = 4_000_000  # MaxArraySize of slurm.conf is 4000001 at most


class Directive(Text):
    """A value that sbatch takes unchanged. The field's name is the option, so the field becomes an #SBATCH line."""

    def __init__(self, pattern: str = WORD, allowed: str = _PLAIN):
        super().__init__(pattern, allowed)


class NodeList(Directive):
    """Names of nodes, with ranges in brackets, or the path of a file that lists them."""

    def __init__(self) -> None:
        super().__init__(
            rf"({_HOSTS})(,({_HOSTS}))*|{_HOST_FILE}", "names of nodes, like node[1-3,7],login1"
        )

    def parse(self, raw: Scalar) -> str:
        text = super().parse(raw)
        if "/" not in text and not all(re.split(r",(?![^\[]*\])", text)):
            raise Refused(f"{show(text)} has an empty name", f"write {self.allowed}")
        _refuse_backwards(text)
        return text


class ArrayIndices(Directive):
    """The indices of an array job."""

    def __init__(self) -> None:
        item = "[0-9]+(-[0-9]+(:[0-9]+)?)?"
        super().__init__(
            rf"{item}(,{item})*(%[1-9][0-9]*)?", "indices like 0-7, 0-7%2 or 1,3,8-16:4"
        )

    def parse(self, raw: Scalar) -> str:
        text = super().parse(raw)
        indices = text.partition("%")[0]
        _refuse_backwards(indices)
        if re.search(":0+(,|$)", indices):
            raise Refused(f"{show(text)} has a step of 0", "write a step of 1 or more")
        for number in re.findall("[0-9]+", indices):
            if len(number) > 10 or int(number) > _MAX_INDEX:
                problem = f"{show(number)} is above the highest index that Slurm can have"
                raise Refused(
                    problem, f"write indices up to {_MAX_INDEX}; most clusters allow 1000"
                )
        return text


class Dependency(Directive):
    """The jobs that a job waits for. `,` between conditions means all of them, `?` any of them."""

    def __init__(self) -> None:
        any_of, all_of = (rf"({separator}{_CONDITION})*" for separator in ("[?]", ","))
        super().__init__(
            rf"{_CONDITION}({any_of}|{all_of})",
            "afterok:JOB, afterany:JOB:JOB, after:JOB+MINUTES, afternotok:JOB, aftercorr:JOB or singleton, "
            "with `,` between all or `?` between any of several",
        )

    def parse(self, raw: Scalar) -> str:
        text = super().parse(raw)
        conditions = [condition.split(":") for condition in text.split(",")]
        ok, failed = (
            {job for kind, *jobs in conditions if kind.lower() == name for job in jobs}
            for name in ("afterok", "afternotok")
        )
        if both := sorted(ok & failed):
            problem = f"{both[0]} cannot both succeed and fail, so the job would never start"
            raise Refused(problem, "keep one of the two, or write `?` between them for either")
        return text


class Constraint(Directive):
    """The features that nodes must have: a100&ib, [rack1|rack2]."""

    def parse(self, raw: Scalar) -> str:
        text = super().parse(raw)
        if re.search(r"(^|[&|,(\[])([&|,)\]]|$)", text):
            raise Refused(f"{show(text)} has an empty name", "write a name on each side of & and |")
        if "!" in text:
            problem = f"{show(text)} has a !, and Slurm can only ask for features"
            raise Refused(
                problem, "name the features that are wanted, like a100|h100, or write exclude"
            )
        if re.search(r"(^|[&|,(\[])[*]|[*](?!0*[1-9])", text):
            problem = (
                f"{show(text)} has a * without a name before it or a number of nodes behind it"
            )
            raise Refused(problem, "write NAME*NODES")
        rest = re.sub(r"[^()\[\]]", "", text)
        while (shorter := re.sub(r"\(\)|\[\]", "", rest)) != rest:
            rest = shorter
        if rest:
            raise Refused(f"{show(text)} has a bracket without its pair", "close each bracket")
        return text


class Licenses(Directive):
    """Licenses and how many of each: matlab:2,ansys@server:1."""

    def parse(self, raw: Scalar) -> str:
        text = super().parse(raw)
        for item in re.split("[,|]", text):
            if not re.fullmatch(r"[^:=]+(:[0-9]+)?", item):
                raise Refused(
                    f"{show(text)} does not fit", "write NAME or NAME:NUMBER, with `,` between them"
                )
        return text


def node_names(text: str) -> frozenset[str]:
    """Return the names in a list of nodes; none if it is a file, or names more than _MAX_LISTED."""
    names: set[str] = set()
    for item in re.split(r",(?![^\[]*\])", "" if "/" in text else text):
        parts = [part for part in re.split(r"\[|\]|[*][0-9]+$", item) if part]
        choices = [_numbers(part) if f"[{part}]" in item else [part] for part in parts]
        if math.prod(map(len, choices)) + len(names) > _MAX_LISTED:
            return frozenset()
        names |= set(map("".join, itertools.product(*choices))) if choices else set()
    return frozenset(names)


def _numbers(ranges: str) -> Sequence[str]:
    """Return the numbers of ranges like 01-16,20, with their leading zeros; too many are not listed."""
    numbers: list[str] = []
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        if len(numbers) > _MAX_LISTED or len(item) > 20:
            return [""] * (_MAX_LISTED + 1)
        count = range(int(first), int(last or first) + 1)[: _MAX_LISTED + 1]
        numbers += [f"{number:0{len(first)}}" for number in count]
    return numbers


def _refuse_backwards(text: str) -> None:
    for first, last in _RANGE.findall(text):
        if int(first[:20]) > int(last[:20]):
            raise Refused(f"{first}-{last} runs backwards", f"write {last}-{first}")
