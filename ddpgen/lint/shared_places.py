"""A place in the arguments that the tasks of an array, or the points of a sweep, would all save to."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from itertools import accumulate
from pathlib import Path

from ddpgen.lint import source
from ddpgen.lint.arguments import given_words, option_values
from ddpgen.lint.calls import Script, constant, name_of, warning
from ddpgen.lint.saves import parts_of, saved_path
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# A source with one of these may give each task or point a directory of its own.
_APART = re.compile(
    rb"ARRAY|SLURM|DDPGEN|exec\(|getpid|\bdate\b|now\(|today\(|strftime|subprocess|time\(|uuid"
)
_ONE_AT_A_TIME = re.compile(r"(\d+)(-\1)?(%\d+)?|.*%1")


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the absolute paths that are one place for several trainings. `home`: the spec's directory."""
    indices = getattr(job, "indices", None) or "0"
    if not job.points and _ONE_AT_A_TIME.fullmatch(indices):
        return
    swept = {re.split("[ =]", word)[0].strip("-").replace("-", "_")
             for point in job.points.values() for word in point.args}  # fmt: skip
    path = source.python_file(job, home)
    tree = source.parsed(path, "") if path else None
    if path is None or not isinstance(tree, ast.Module):
        return
    script = Script(path.name, tree)
    if _APART.search(_without_defaults(path.read_bytes(), script, option_values(job.train).keys())):
        return
    shown = _saved_below(script)
    for field, option, value, _ in given_words(job.train):
        name, value = option.replace("-", "_"), value or ""
        if not value.startswith(("/", "~")) or "{array_index}" in value:
            continue
        if name in shown and name not in swept:
            tasks, remedy = "tasks of the array", "write {array_index} in it"
            if job.points:
                tasks, remedy = "points of the sweep", "have the script save to {checkpoint_dir}"
            problem = f"{value} is one place for all {tasks}, which take each other's checkpoints"
            yield warning(field, problem, f"{remedy}, which each has for itself")


def _without_defaults(text: bytes, script: Script, options: Collection[str]) -> bytes:
    """Return a source without the defaults of these options, which the job gives."""
    spans: list[tuple[int, int]] = []
    begins = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    for call in script.calls:
        names = {constant(each).lstrip("-").replace("-", "_") for each in call.args}
        for keyword in call.keywords if name_of(call.func) == "add_argument" else ():
            value = keyword.value
            if keyword.arg == "default" and names & set(options) and value.end_lineno:
                begin = begins[value.lineno - 1] + value.col_offset
                spans.append((begin, begins[value.end_lineno - 1] + (value.end_col_offset or 0)))
    for begin, end in sorted(spans, reverse=True):
        text = text[:begin] + text[end:]
    return text


def _saved_below(script: Script) -> set[str]:
    """Return the arguments below which the script saves files with constant names."""
    paths = [script.value_of(p) for call in script.calls if (p := saved_path(call)) is not None]
    below = {
        name_of(first)
        for first, *rest in map(parts_of, paths)
        if isinstance(first, ast.Attribute) and all(isinstance(p, ast.Constant) for p in rest)
    }
    return below - script.changed
