"""status and stop of a sweep. Each point is a job of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from ddpgen.driver.wording import table
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import JobStatus, without_empty_columns
from ddpgen.tiers.registry import TIERS

_AT_ONCE = 8  # questions, because each may cost an ssh
# A reason may be as long as a message; status --only=POINT shows all of it.
_WIDEST_STATE = 60
_HEADS = ("point", "state", "step", "loss", "evaluation", "speed", "time left", "job")

# The status of a point, or the error that hides it.
Answer = JobStatus | TargetUnavailableError
# The type that commands.asking returns.
Question = AbstractContextManager[Callable[[], JobStatus]]


@contextlib.contextmanager
def asking(questions: Mapping[str, Question]) -> Iterator[Callable[[], JobStatus]]:
    """Yield a function that asks for the status of every point, and returns it as a table.

    Entering the context raises TargetUnavailableError. The function raises it if no point gives an answer.
    """
    with _asking_each(questions) as ask:
        yield lambda: together(ask())


def statuses(sweep: Following) -> dict[str, JobStatus]:
    """Return the status of every point. Raise TargetUnavailableError if one gives no answer."""
    answers, follow = {}, TIERS[sweep.tier].follow
    questions = {name: follow.asking(run) for name, run in sweep.points.items()}
    with _asking_each(questions) as ask:
        for name, answer in ask().items():
            if isinstance(answer, TargetUnavailableError):
                raise answer
            answers[name] = answer
    return answers


@contextlib.contextmanager
def _asking_each(
    questions: Mapping[str, Question],
) -> Iterator[Callable[[], dict[str, Answer]]]:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(_AT_ONCE) as pool:
        asks = [stack.enter_context(question) for question in questions.values()]
        yield lambda: dict(zip(questions, pool.map(_answer, asks), strict=True))


def _answer(ask: Callable[[], JobStatus]) -> Answer:
    try:
        return ask()
    except TargetUnavailableError as error:
        return error


def together(answers: Mapping[str, Answer]) -> JobStatus:
    """Return the status of a sweep: a table with a row for each point.

    Raises TargetUnavailableError if no point gives an answer.
    """
    errors = [each for each in answers.values() if isinstance(each, TargetUnavailableError)]
    if errors and len(errors) == len(answers):
        raise errors[0]
    rows = [_row(name, answer) for name, answer in answers.items()]
    ended = all(isinstance(each, JobStatus) and each.ended for each in answers.values())
    counts: dict[str, int] = {}
    for row in rows:
        word = "not begun" if row[1] == "not begun" else row[1].partition(" ")[0].rstrip(":")
        counts[word] = counts.get(word, 0) + 1
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    lines = table(without_empty_columns([_HEADS, *rows]))
    points = {name: each for name, each in answers.items() if isinstance(each, JobStatus)}
    return JobStatus(
        [*lines, f"{len(rows)} point{'s' if len(rows) > 1 else ''}: {summary}"],
        ended,
        summary,
        points,
    )


def _row(name: str, answer: Answer) -> tuple[str, ...]:
    if isinstance(answer, TargetUnavailableError):
        return (name, f"unknown: {answer}".partition("\n")[0], *[""] * (len(_HEADS) - 2))
    report = answer.reports[0] if answer.reports else None
    values = report.rows() if report else {}
    begun = report is not None and report.state.directory_state == "yes" and report.state.status
    idle = "waiting" if answer.jobs else "not begun"
    state = report.headline() if report and begun else idle
    # The step and its time stand in columns of their own.
    state = state.partition(" at step ")[0] if ": " not in state else state
    state = state if len(state) <= _WIDEST_STATE else f"{state[: _WIDEST_STATE - 1]}…"
    cells = (values.get(head, "") for head in _HEADS[2:-1])
    return (name, state, *cells, answer.jobs)


def stop(stops: dict[str, Iterator[str]]) -> Iterator[str]:
    """Ask every point that waits or runs for a clean stop, and yield lines that tell the outcome.

    `stops`: the lines of the stop of each point. The last point comes first, so that a place that becomes free is not
    taken by a point that is stopped next. Raises TargetUnavailableError.
    """
    asked = False
    for name, lines in reversed(stops.items()):
        for line in lines:
            if not line.startswith("nothing to stop"):
                asked = True
                yield f"{name}: {line}"
    if not asked:
        yield "nothing to stop: no point waits or runs"
