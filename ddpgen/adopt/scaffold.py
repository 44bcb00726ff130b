"""The spec that `ddpgen init` writes: commented, short, and valid."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddpgen.errors import (
    BundleRefusedError,
    FileTroubleError,
    Finding,
    OptionRefusedError,
    SpecInvalidError,
)
from ddpgen.lint import own_script
from ddpgen.tiers.registry import read


class Question(NamedTuple):
    """One question of `ddpgen init`, with the most usual answer. `field`: the field of the spec that gets it."""

    name: str
    says: str
    default: Any
    field: str


QUESTIONS = (
    Question("name", "Name of the job", "my-job", "name"),
    Question(
        "workload", "What to train (gpt, mnist, toy, or FILE.py:FUNCTION)", "gpt", "train.workload"
    ),
    Question("procs", "Processes on this machine", 2, "procs_per_node"),
    Question("steps", "Optimizer steps", 200, "train.steps"),
)
_FLAGS = {question.field: f"--{question.name}" for question in QUESTIONS}

_SPEC = """\
# {name}: what to train, and on how many processes. Every field: docs/spec.md, or `ddpgen schema`.
name: {quoted_name}

procs_per_node: {procs}        # processes on each machine; the result does not depend on it
{code}
checkpoint:
  every: 1min            # a crash loses at most this much work
  keep: 3

train:
  workload: {workload}
  steps: {steps}
  global_batch_size: {batch}  # samples per step, over all processes
  micro_batch_size: {micro}    # samples per forward pass; {batch}/{micro} of them are shared out
  lr: 1e-3
  seed: 0                # same seed, same bits
"""

_SCRIPT_SPEC = """\
# {name}: a training script as it is. What holds for it: docs/own-script.md; every field: docs/spec.md.
name: {quoted_name}

procs_per_node: {procs}        # processes on each machine

code: {code}               # what travels with the job: all of this directory

train:
  script: {script}
  args: {{}}               # {options}
  # How it resumes after a kill, where it does not load its checkpoint by itself:
  # resume: {{exists: {saves}, args: {resume}}}
"""


def refuse_existing(path: Path) -> None:
    """Raise BundleRefusedError if `path` exists."""
    if os.path.lexists(path):
        raise BundleRefusedError(f"{path} exists already; remove it, or give another name with -o")


def write(path: Path, *, name: str, workload: str, procs: int, steps: int) -> None:
    """Write the spec. Raise OptionRefusedError for answers that a spec may not hold; FileTroubleError."""
    _write(path, _text(str(name), str(workload), int(procs), int(steps)))


def refuse_options(answers: Mapping[str, Any]) -> None:
    """Raise OptionRefusedError if an option has an answer that no spec may hold, before any question is asked."""
    given = [question for question in QUESTIONS if answers[question.name] is not None]
    refusals = [(f"--{each.name}", refusal(each, answers[each.name])) for each in given]
    if refused := [f"{option}: {why}" for option, why in refusals if why]:
        raise OptionRefusedError("\n".join(refused))


def refusal(question: Question, answer: Any) -> str:
    """Return why a spec may not hold this answer, independent of the other answers; "" if it may."""
    answers = {other_question.name: other_question.default for other_question in QUESTIONS} | {
        question.name: answer
    }
    try:
        read(_text(**answers).encode("utf-8", "surrogatepass"), "")
    except SpecInvalidError as error:
        findings = [finding for finding in error.findings if finding.path == question.field]
        return "; ".join(f"{finding.problem}; {finding.remedy}" for finding in findings)
    return ""


def write_for_script(path: Path, file: Path, *, name: str, procs: int) -> None:
    """Write a spec for the training script `file`. Raise FileTroubleError.

    Raises OptionRefusedError if the script is not a file, or does not lie below the spec's directory.
    """
    if not file.is_file():
        raise OptionRefusedError(f"--script: {file} is not there; give the path of a .py file")
    home, folder = path.resolve().parent, file.resolve().parent
    if not folder.is_relative_to(home):
        problem = f"--script: {file} does not lie below {home}, where the spec is"
        raise OptionRefusedError(f"{problem}; write it above the script: -o {folder}/job.yaml")
    outline = own_script.outline(file)
    text = _SCRIPT_SPEC.format(
        name=name.replace("\n", " "),
        quoted_name=json.dumps(name),
        procs=procs,
        code=json.dumps(str(folder.relative_to(home))),
        script=json.dumps(file.name),
        options=f"its options: {', '.join(outline.options)}"
        if outline.options
        else "NAME: VALUE becomes --NAME=VALUE",
        saves=json.dumps(outline.saves),
        resume=json.dumps(outline.resume),
    )
    _write(path, text)


def _write(path: Path, text: str) -> None:
    try:
        read(text.encode("utf-8", "surrogatepass"), str(path))
    except SpecInvalidError as error:
        raise OptionRefusedError("\n".join(map(_as_answer, error.findings))) from None
    write_new(path, text)


def write_new(path: Path, text: str) -> None:
    """Write a new file. Raise FileTroubleError, also if the file exists."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise FileTroubleError(f"{path}: {error.strerror}; give another place with -o") from None


def to_create(path: Path, workload: str) -> str:
    """Return what the user has to write before the spec at `path` is valid; "" if nothing."""
    file, _, function = workload.rpartition(":")
    if not file or (path.parent / file).is_file():
        return ""
    return f"create {path.parent / file} with a function {function}() that returns a workload"


def _as_answer(finding: Finding) -> str:
    """Return the finding with its flag in place of its position, because the file of the position is not written."""
    flag = _FLAGS.get(finding.path, finding.path)
    position = f":{finding.position.line}:{finding.position.column}"
    return finding._replace(path="").line(flag).replace(position, "", 1)


def _text(name: str, workload: str, procs: int, steps: int) -> str:
    micro = 4
    code = (
        "code: .                # the files that travel with the job\n" if ":" in workload else ""
    )
    return _SPEC.format(
        name=name.replace("\n", " "),
        quoted_name=json.dumps(name),
        procs=procs,
        code=code,
        workload=json.dumps(workload),
        steps=steps,
        batch=micro * procs * -(-4 // max(procs, 1)),  # the same number for each process
        micro=micro,
    )
