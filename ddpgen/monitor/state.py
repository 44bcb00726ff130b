"""What a checkpoint directory says of its job, as values and in words. Pure."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ddpgen.driver.pace import overdue

_LINE = re.compile(r"(running|done|stopped|failed) (\S+) (\d{1,18})(?: (.*))?")
_MOST_RANKS = 8  # of which each has its figure


@dataclass(frozen=True)
class JobState:
    """What the files say; None, "" or 0 for what they do not."""

    there: str = "no"  # yes, no, closed
    word: str = ""  # the status: running, done, stopped, failed
    attempt: str = ""
    at: int = 0  # the status's step
    reason: str = ""
    newest: int | None = None  # checkpoint
    saved: tuple[str, int] | None = None  # by a user's script: the path, of which step
    step: int | None = None  # of the newest row of the metrics
    last_step: int | None = None  # with which the training ends
    loss: float | None = None
    losses: Sequence[float] = ()  # of the newest steps, of each its last row; may be nan or inf
    evaluation: str = ""
    steps_per_s: float | None = None
    slow: tuple[str, float] | None = (
        None  # rank, and the part of a step that the others wait for it
    )
    waiting: Sequence[float] = ()  # by rank: the part of a step in which it waits for others
    batches: float = 0.0  # the largest part of a step in which a rank waits for a batch
    unit: str = ""  # what a step takes in: samples, tokens
    units_per_step: int = 0
    longest_step_s: float | None = None  # with what is done before the next one
    write_s: float | None = None  # of a checkpoint
    restarts: int = 0  # of its workers, in this attempt
    age_s: float | None = None  # of the newest row
    current: bool = False  # whether that row is of the attempt that holds the directory
    stop_asked: bool = False
    slurm_job: str = ""  # that holds the directory
    lock: Mapping[str, Any] | None = None
    starts: str = ""  # of a job of Slurm, in words

    @property
    def started_by(self) -> str:
        """The tier whose run the status is of, or ""; on sky the directory is in the bucket."""
        if self.of_slurm:
            return "slurm"
        if not self.attempt:
            return ""
        # run.sh names its launch by the time; hosts whose scripts were started by hand agree on 8 digits.
        by_hosts = re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]+|[0-9a-f]{8}", self.attempt)
        return "hosts" if by_hosts else "local"

    @property
    def of_slurm(self) -> str:
        """The Slurm job that the status is of, or ""."""
        found = re.fullmatch(r"slurm\.(\d+)(?:_\d+)?\.\d+", self.attempt)
        return found[1] if found else ""


def read(facts: Mapping[str, str]) -> JobState:
    """From what the text found out."""
    line = _LINE.fullmatch(facts.get("status", "").strip())
    rows = [mapping(row) for row in facts.get("row", "").split("\t")]
    # Of a start that has not taken a step yet, the one before says nothing.
    begun = {None, line[2]} if line and line[1] == "running" else None
    steps = [
        row
        for row in rows
        if row.get("kind") == "step" and (begun is None or row.get("attempt") in begun)
    ] or [{}]
    lock = mapping(facts.get("lock", "")) or None
    newest = facts.get("newest", "")
    number = re.fullmatch(r"([0-9]+(?:_[0-9]+)?)(?: .*)?", facts.get("slurm-job", ""))
    longest_step_s, write_s = _measured(rows)
    ranks, manifest = (mapping(facts.get(name, "")) for name in ("ranks", "manifest"))
    unit, last_step = manifest.get("unit"), facts.get("last-step", "")
    return JobState(
        there=facts.get("there", "no"),
        word=line[1] if line else "",
        attempt=line[2] if line else "",
        at=int(line[3]) if line else 0,
        reason=_printable(line[4] or "") if line else "",
        newest=int(newest) if newest.isdigit() else None,
        saved=_saved(mapping(facts.get("saved", ""))),
        step=_whole(steps[-1].get("step")),
        last_step=int(last_step) if re.fullmatch(r"[0-9]{1,18}", last_step) else None,
        loss=_number(steps[-1].get("loss")),
        losses=_losses(steps),
        evaluation=_evaluation(mapping(facts.get("eval", ""))),
        steps_per_s=_speed(steps),
        slow=_slow(ranks.get("slow")),
        waiting=_parts(ranks, "waiting"),
        batches=max(_parts(ranks, "batches"), default=0.0),
        unit=_printable(unit) if isinstance(unit, str) else "",
        units_per_step=_whole(manifest.get("units_per_step")) or 0,
        longest_step_s=longest_step_s,
        write_s=write_s,
        restarts=max(0, (_whole((lock or {}).get("generation")) or 0) - 1),
        age_s=_age(facts.get("now", ""), _number(steps[-1].get("time"))),
        current=lock is not None and steps[-1].get("attempt") == lock.get("attempt"),
        stop_asked="stop" in facts,
        slurm_job=number[1] if number else "",
        lock=lock,
        starts=_starts(mapping(facts.get("slurm-starts", ""))),
    )


class Report(NamedTuple):
    """What is said of one checkpoint directory, or place in a bucket. `place`: as people write it.
    `runs`: whether its processes are there; None where that is not known."""

    place: str
    found: JobState
    runs: bool | None

    @property
    def over(self) -> bool:
        """Whether the attempt has ended, as far as its files and its processes tell."""
        final = self.runs is None and self.found.word != "running"
        return bool(self.found.word) and (self.runs is False or final)

    @property
    def still_s(self) -> float | None:
        """For how long there has been no step, where the next one is long overdue; else None. Not of a bucket,
        which has no lock, and rows as old as its newest checkpoint."""
        found = self.found
        if not found.current or found.word != "running" or self.runs is False:
            return None
        usual = 1 / found.steps_per_s if found.steps_per_s else 0.0
        age = found.age_s
        return age if age is not None and overdue(age, usual) else None

    def facts(self) -> dict[str, Any]:
        """For programs; what is not known is left out. Times in seconds, speed in steps a second."""
        found = self.found
        if found.there != "yes":
            return {"directory": self.place, "there": found.there}
        going = found.word == "running" and self.runs is not False
        speed = found.steps_per_s if going else None
        left = None
        if speed and found.step is not None and found.last_step is not None:
            left = max(0, round((found.last_step - found.step) / speed))
        at = found.at if found.word in ("done", "stopped") else 0
        whole = found.newest is not None
        known = {
            "directory": self.place,
            "state": _job(found, self.runs),
            "step": at or found.step,
            "steps": found.last_step,
            "step_age_s": None if not going or found.age_s is None else round(found.age_s, 1),
            "loss": found.loss if at in (0, found.step) else None,
            "evaluation": found.evaluation or None,
            "speed": None if speed is None else round(speed, 4),
            "unit": found.unit if speed and found.units_per_step else None,
            "units_per_s": round(speed * found.units_per_step) or None if speed else None,
            "time_left_s": left,
            "slow_rank": {"name": found.slow[0], "cost": found.slow[1]}
            if going and found.slow
            else None,
            "waiting": [round(part, 3) for part in found.waiting] if going else None,
            "restarts": found.restarts or None,
            "newest_checkpoint": found.newest if whole else found.saved and found.saved[0],
            "weights": f"{self.place}/step-{found.newest:09}/model.pt" if whole else None,
            "slurm_starts": found.starts if found.of_slurm and found.starts else None,
            "stop_asked": True if found.stop_asked and self.runs is not False else None,
        }
        return {name: value for name, value in known.items() if value not in (None, [])}

    def rows(self) -> dict[str, str]:
        """What is known, by its name, for people."""
        if self.found.there != "yes":
            return {}
        known = self.facts()
        steps = f" of {known['steps']}" if "steps" in known else ""
        diverged = [str(loss) for loss in self.found.losses[-1:] if not math.isfinite(loss)]
        rows = {
            "step": f"{known['step']}{steps}" if "step" in known else None,
            "loss": f"{known['loss']:.4f}" if "loss" in known else next(iter(diverged), None),
            "evaluation": known.get("evaluation"),
            "speed": _speed_words(known),
            "time left": clock(known["time_left_s"]) if "time_left_s" in known else None,
            "waiting": _waiting_words(self.found) if "waiting" in known else None,
            "slow rank": _slow_words(known.get("slow_rank")),
            "restarts": known.get("restarts"),
            "newest checkpoint": _newest(self.found),
            "weights": known.get("weights"),
        }
        return {name: str(said) for name, said in rows.items() if said is not None}

    def remarks(self) -> list[str]:
        """What else there is to say, for people."""
        known = self.facts()
        asked = ["a stop has been asked for"] if "stop_asked" in known else []
        return [known["slurm_starts"], *asked] if "slurm_starts" in known else asked

    def state(self) -> str:
        """For people, in a line."""
        if self.found.there == "no":
            return "the checkpoint directory is not there yet"
        if self.found.there == "closed":
            return "the checkpoint directory may not be read by this user"
        return _job(self.found, self.runs)

    def words(self) -> list[str]:
        """Lines for people."""
        if self.found.there != "yes":
            return [self.state()]
        width, rows = len("newest checkpoint:"), self.rows()
        if age := self.facts().get("step_age_s"):
            rows["step"] += f", {ago(age)}"
        lines = [f"{f'{name}:':{width}} {said}" for name, said in rows.items()]
        return [self.state(), *lines, *self.remarks()]


class JobStatus(NamedTuple):
    """How a job stands at one moment. `over`: it has ended, and does not come back by itself. `jobs`: what its
    scheduler, or each of its hosts, says of it in a few words."""

    said: Sequence[str | Report]
    over: bool
    jobs: str = ""

    @property
    def reports(self) -> list[Report]:
        return [part for part in self.said if isinstance(part, Report)]


def as_text(said: Iterable[str | Report]) -> Iterator[str]:
    """Lines for people."""
    for part in said:
        if isinstance(part, Report):
            yield f"{part.place}:"
            yield from (f"  {line}" for line in part.words())
        else:
            yield part


def as_json(said: Iterable[str | Report]) -> dict[str, Any]:
    """`runs`: the facts of each directory; `said`: the other lines. The same as as_text says."""
    parts = list(said)
    return {
        "runs": [part.facts() for part in parts if isinstance(part, Report)],
        "said": [part for part in parts if isinstance(part, str)],
    }


def _job(found: JobState, runs: bool | None) -> str:
    if not found.word:
        return "no job has begun there"
    if found.word == "running":
        if runs is not False:
            return "running"
        killed = "it was running when it was killed"
        return f"ended after this: {found.reason}" if found.reason else killed
    at = f" at step {found.at}" if found.at else ""
    return f"{found.word}{at}" + (f": {found.reason}" if found.reason else "")


def _newest(found: JobState) -> str:
    if found.newest is not None:
        return f"step {found.newest}"
    return f"{found.saved[0]}, of step {found.saved[1]}" if found.saved else "none"


def _evaluation(row: Mapping[str, Any]) -> str:
    head = ("kind", "step", "attempt", "generation", "time")
    values = {name: _number(value) for name, value in row.items() if name not in head}
    told = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if value is not None)
    return f"{told} at step {row.get('step')}" if told else ""


def _speed(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Steps a second of the newest start, over the rows that are given."""
    last = rows[-1]
    if (said := _number(last.get("steps_per_s"))) is not None:
        return said
    start = (last.get("attempt"), last.get("generation"))
    first = next(row for row in rows if (row.get("attempt"), row.get("generation")) == start)
    ends = [(_whole(row.get("step")), _number(row.get("time"))) for row in (first, last)]
    (step, when), (last_step, last_when) = ends
    if step is None or when is None or last_step is None or last_when is None or last_when <= when:
        return None
    return (last_step - step) / (last_when - when)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _slow(found: Any) -> tuple[str, float] | None:
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str):
        return None
    cost = _number(found.get("cost"))
    return None if cost is None else (_printable(name), cost)


def _losses(rows: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """After a crash steps are done again: the last row of each counts, up to the newest step."""
    last, losses = _whole(rows[-1].get("step")), dict[int, float]()
    for row in rows:
        step, loss = _whole(row.get("step")), row.get("loss")
        known = float(loss) if loss in ("nan", "inf", "-inf") else _number(loss)
        if last is not None and step is not None and step <= last and known is not None:
            losses[step] = known
    return tuple(losses[step] for step in sorted(losses))


def _parts(row: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """Seconds by rank, each as a part of the step."""
    step_s, each = _number(row.get("seconds")), row.get(name)
    known = [_number(value) for value in each] if isinstance(each, list) else []
    if not step_s or None in known:
        return ()
    return tuple(min(1.0, value / step_s) for value in known if value is not None)


def _speed_words(known: Mapping[str, Any]) -> str | None:
    if "speed" not in known:
        return None
    units = f", {known['units_per_s']:,} {known['unit']}/s" if "units_per_s" in known else ""
    return f"{known['speed']:.3g} steps/s{units}"


def _waiting_words(found: JobState) -> str | None:
    """Of how many ranks, and how much; each for itself as long as they fit a line."""
    parts = [f"{part:.0%}" for part in found.waiting]
    if len(parts) < 2 and found.batches < 0.01:
        return None
    said = " ".join(parts)
    if len(parts) > _MOST_RANKS:
        least, most = min(found.waiting), max(found.waiting)
        said = f"{least:.0%} to {most:.0%}"
    ranks = f"ranks 0 to {len(parts) - 1}" if len(parts) > 1 else "rank 0"
    batches = f"; for batches up to {found.batches:.0%}" if found.batches >= 0.01 else ""
    return f"{said} of a step for others ({ranks}){batches}"


def _slow_words(slow: Mapping[str, Any] | None) -> str | None:
    if slow is None:
        return None
    return f"{slow['name']}; the others wait {slow['cost']:.0%} of each step for it"


def _measured(rows: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """The longest step and the last write of a checkpoint, in seconds.

    What a run writes when it ends comes after its last checkpoint, so the time since the row before
    is that of the write.
    """
    steps, writes = list[float](), list[float]()
    for before, row in itertools.pairwise(rows):
        then, now = _number(before.get("time")), _number(row.get("time"))
        same = all(before.get(key) == row.get(key) for key in ("attempt", "generation"))
        if same and then is not None and now is not None:
            ends = row.get("kind") in ("stopped", "done")
            (writes if ends else steps).append(max(0.0, now - then))
    return max(steps, default=None), writes[-1] if writes else None


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03 or 2:03."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def ago(seconds: float) -> str:
    """A time that has passed, for people."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s ago"
    return f"{whole // 60} min ago" if whole < 7200 else f"{whole // 3600} h ago"


def _age(now: str, then: float | None) -> float | None:
    return None if then is None or not now.isdigit() else int(now) - then


def _saved(row: Mapping[str, Any]) -> tuple[str, int] | None:
    path, step = row.get("path"), row.get("step")
    if row.get("whole") is not True or not isinstance(path, str) or not isinstance(step, int):
        return None
    return _printable(path), step


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def mapping(text: str) -> dict[str, Any]:
    """A JSON object that somebody else may have written; {} for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _starts(kept: Mapping[str, Any]) -> str:
    """How often a job of Slurm has come back, and why; "" for one that has not. Anybody may have written it."""
    try:
        crashes = sum(ended == "crash" for _, _, ended in kept["starts"])
        requeues = int(kept["starts"][-1][0]) - crashes
        most, most_crashes = int(kept["requeues"]), int(kept["restarts"])
    except (KeyError, IndexError, TypeError, ValueError):
        return ""
    if requeues < 0 or not requeues + crashes:
        return ""
    return (
        f"come back {requeues} of at most {most} times because of Slurm, "
        f"{crashes} of at most {most_crashes} times after a crash"
    )
