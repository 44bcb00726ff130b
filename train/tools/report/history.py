"""The history of a run: its steps, starts, checkpoints and ranks, from the files of its directory.

Owns the choice of the row of a step that counts, and the count of lost steps. The last row of a step counts, because
after a crash the steps since the checkpoint are done again. Pure except for load().
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.base import typed
from train.base.files import open_text
from train.health.phase import FIRST_STEP, LAUNCHER, PROCESS, STAGES
from train.run.layout import step_directory, steps_on_disk
from train.run.provenance import MANIFEST, MOST_BYTES, key_of
from train.run.status import Status, read_status

_ENDS = ("done", "stopped", "left")
DETECTION, LAUNCH = "detection and clean-up", "launch"
RECOVERY = (DETECTION, LAUNCH, *STAGES, FIRST_STEP)
"""The stages of a recovery, in order: until the launcher begins, until its process begins, and those of the process."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """A step that counts.

    `time`: its end, in seconds since 1970. `seconds`: its duration, None for the first step of a start, because no row
    gives its beginning.
    """

    number: int
    loss: float
    time: float
    seconds: float | None


@dataclass(frozen=True)
class Start:
    """One start of the training. `end`: done, stopped, left, running, or lost (a crash or a kill). `lost_steps`: the
    number of steps that the next start did again. `repeated_s`: the seconds that these steps had taken. `recovery`: the
    seconds of each stage from the last row of the start before to the first step of this start. `recovery` is empty for
    the first start, and if the stages are not on record."""

    number: int
    attempt: str
    generation: int
    started: float
    ended: float
    first_step: int
    last_step: int
    world_size: int
    end: str
    reason: str = ""
    lost_steps: int = 0
    repeated_s: float = 0.0
    recovery: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranks:
    """The mean seconds of a step, over the steps since the last report: in total, and each rank's waits for other ranks
    and for batches."""

    step: int
    seconds: float
    waiting: Sequence[float]
    batches: Sequence[float]


@dataclass(frozen=True)
class CheckpointWrite:
    """A checkpoint: the seconds until it was durable, and the seconds for which the training waited for it."""

    step: int
    seconds: float
    stall: float


@dataclass(frozen=True)
class History:
    """Everything that is known about a run.

    `shares`: the steps after which micro-batches moved between ranks, each with the new number of every rank.
    `total_steps`: the length of the run, 0 if it is not on record. `checkpoint`: the file with the weights of the
    newest checkpoint, or "".
    """

    directory: Path
    steps: Sequence[Step]
    evaluations: Sequence[Row]
    starts: Sequence[Start]
    ranks: Sequence[Ranks]
    checkpoints: Sequence[CheckpointWrite]
    shares: Sequence[tuple[int, Sequence[int]]]
    status: Status | None
    total_steps: int = 0
    manifest: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: str = ""

    @property
    def wall_s(self) -> float:
        """Seconds from the first start to the last row."""
        return self.starts[-1].ended - self.starts[0].started if self.starts else 0.0

    @property
    def useful_s(self) -> float:
        """Seconds in steps that count, without the first step of each start and without waits for checkpoints."""
        steps = sum(step.seconds for step in self.steps if step.seconds is not None)
        return max(0.0, steps - sum(each.stall for each in self.checkpoints))

    @property
    def goodput(self) -> float:
        """`useful_s` as a part of the time from the first start to the last row."""
        return self.useful_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def lost_steps(self) -> int:
        """Steps that were computed and had to be done again."""
        return sum(start.lost_steps for start in self.starts)

    @property
    def step_s(self) -> float:
        """The median duration of a step in seconds; 0 if there is no step."""
        times = [step.seconds for step in self.steps if step.seconds is not None]
        return statistics.median(times) if times else 0.0


def load(directory: Path) -> History:
    """Read the history of the run in `directory`. Raises OSError if there are no metrics to read."""
    with open_text(directory / "metrics.jsonl") as lines:
        rows = list(read(lines))
    newest = max(steps_on_disk(directory), default=None)
    checkpoint = "" if newest is None else f"{step_directory(directory, newest).name}/model.pt"
    manifest = typed.read(dict, directory / MANIFEST, MOST_BYTES) or {}
    return history(rows, directory, read_status(directory), manifest, checkpoint)


def read(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the rows that are whole, because a crash may have cut off the last one."""
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if (
            isinstance(row, dict)
            and isinstance(row.get("kind"), str)
            and type(row.get("step")) is int
            and type(row.get("time")) in (int, float)
        ):
            yield row


def loss_of(row: Row) -> float | None:
    """Return the row's loss, to the bit, or None."""
    return value_of(row, "loss")


def value_of(row: Row, name: str) -> float | None:
    """Return the number that the row has under `name`, or None. JSON has no NaN, so the row holds it as text."""
    try:
        return float(row[name])
    except (KeyError, TypeError, ValueError):
        return None


def history(
    rows: Sequence[Row],
    directory: Path = Path(),
    status: Status | None = None,
    manifest: Mapping[str, Any] | None = None,
    checkpoint: str = "",
) -> History:
    """Return the history that these rows give, with the other arguments added."""
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], []).append(row)
    starts = list(_starts(rows, status, _recorded_stages(manifest or {})))
    return History(
        directory,
        _steps(rows),
        list({row["step"]: row for row in by_kind.get("eval", ())}.values()),
        starts,
        _reports(by_kind.get("ranks", ())),
        [CheckpointWrite(r["step"], _number(r, "seconds"), _number(r, "stall")) for r in by_kind.get("checkpoint", ())],
        list(_shares(by_kind.get("shares", ()))),
        status,
        max((_integer(row, "last_step") for row in by_kind.get("start", ())), default=0),
        manifest or {},
        checkpoint,
    )  # fmt: skip


def _steps(rows: Sequence[Row]) -> list[Step]:
    """Return the steps, by the last row of each. A step begins at the row of the step or evaluation before it in the
    same start.

    Other rows mark no beginning, because the row of a checkpoint is written together with the row of the next step.
    """
    found: dict[int, Step] = {}
    before: Row | None = None
    for row in rows:
        if row["kind"] == "step":
            took = None
            if before is not None and key_of(before) == key_of(row):
                took = max(0.0, row["time"] - before["time"])
            found.pop(row["step"], None)
            loss = loss_of(row)
            value = float("nan") if loss is None else loss
            found[row["step"]] = Step(row["step"], value, row["time"], took)
        if row["kind"] in ("step", "eval"):
            before = row
    return [found[number] for number in sorted(found)]


def _recorded_stages(manifest: Mapping[str, Any]) -> dict[tuple[Any, Any], Row]:
    starts = manifest.get("starts")
    known = [each for each in starts if isinstance(each, dict)] if isinstance(starts, list) else []
    return {key_of(each): each["stages"] for each in known if isinstance(each.get("stages"), dict)}


def _recovery(stages: Row, lost_at: float) -> dict[str, float]:
    """Return the seconds of each stage of a recovery that began at `lost_at`. `stages`: see phase.stages.

    A launcher that is older than the loss restarts its workers in place. The first stage then lasts until the process
    begins, because nothing on record tells when the loss was detected.
    """
    named = {LAUNCHER: DETECTION, PROCESS: LAUNCH}
    recovery: dict[str, float] = {}
    known = (LAUNCHER, PROCESS, *STAGES, FIRST_STEP)
    for end, name in sorted((_number(stages, name), name) for name in known):
        if end > lost_at:
            recovery[named.get(name, name) if recovery else DETECTION] = end - lost_at
            lost_at = end
    return recovery


def _starts(
    rows: Sequence[Row], status: Status | None, stages: Mapping[tuple[Any, Any], Row]
) -> Iterator[Start]:
    groups: list[list[Row]] = []
    for row in rows:
        if row["kind"] == "start" or not groups:
            groups.append([])
        groups[-1].append(row)
    for number, group in enumerate(groups):
        first, last = group[0], group[-1]
        reached = max((row["step"] for row in group), default=first["step"])
        following = groups[number + 1][0]["step"] if number + 1 < len(groups) else None
        end, reason = last["kind"], str(last.get("reason", ""))
        if end not in _ENDS:
            end, reason = "lost", ""
            if following is not None:
                reason = str(groups[number + 1][0].get("after", ""))
            elif status is not None and status.attempt == last.get("attempt"):
                reason = status.reason
                end = "running" if status.word == "running" and not reason else "lost"
        lost = max(0, reached - following) if following is not None else 0
        kept = [r for r in group if r["kind"] == "step" and r["step"] <= (following or 0)]
        repeated_s = max(0.0, last["time"] - [first, *kept][-1]["time"]) if lost else 0.0
        recovery: dict[str, float] = {}
        if number:
            recovery = _recovery(stages.get(key_of(first), {}), groups[number - 1][-1]["time"])
        yield Start(
            number + 1, str(first.get("attempt", "")), _integer(first, "generation"), first["time"],
            last["time"], first["step"], reached, _integer(first, "world_size"), end, reason, lost, repeated_s,
            recovery,
        )  # fmt: skip


def _reports(rows: Sequence[Row]) -> list[Ranks]:
    """Return the last report of each step."""
    found = {row["step"]: made for row in rows if (made := _ranks(row)) is not None}
    return [found[step] for step in sorted(found)]


def _ranks(row: Row) -> Ranks | None:
    waiting, batches = row.get("waiting"), row.get("batches")
    if not isinstance(waiting, list) or not isinstance(batches, list):
        return None
    if not all(type(each) in (int, float) for each in (*waiting, *batches)):
        return None
    return Ranks(row["step"], _number(row, "seconds"), waiting, batches)


def _shares(rows: Sequence[Row]) -> Iterator[tuple[int, Sequence[int]]]:
    for row in rows:
        counts = row.get("shares")
        if isinstance(counts, list) and all(type(each) is int for each in counts):
            yield row["step"], counts


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    return float(value) if type(value) in (int, float) else 0.0  # type: ignore[arg-type]


def _integer(row: Row, name: str) -> int:
    value = row.get(name)
    return value if type(value) is int else 0
