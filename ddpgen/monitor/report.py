"""The status of a job, for people and for programs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ddpgen.driver.state import JobState
from ddpgen.driver.wording import ago, clock

_MOST_RANKS = 8  # up to so many ranks, each has its own figure


class Report(NamedTuple):
    """The status of one checkpoint directory, or of a place in a bucket.

    `place`: its path as people write it. `runs`: True if its processes run; None if that is not known.
    """

    place: str
    found: JobState
    runs: bool | None

    @property
    def over(self) -> bool:
        """True if the attempt has ended, as far as its files and its processes tell."""
        final = self.runs is None and self.found.word != "running"
        return bool(self.found.word) and (self.runs is False or final)

    @property
    def still_s(self) -> float | None:
        """The seconds since the last step if the next one is long overdue; else None.

        Always None for a bucket: it has no lock, and its rows are as old as its newest checkpoint.
        """
        found = self.found
        still = found.current and found.stands_still and self.runs is not False
        return found.age_s if still else None

    def facts(self) -> dict[str, Any]:
        """Return the status for programs, without unknown values. Times are in seconds, speed in steps a second."""
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
        """Return the known values for people, by their names."""
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
        """Return the lines for people that belong to no row: the starts by Slurm, and a stop request."""
        known = self.facts()
        asked = ["a stop has been asked for"] if "stop_asked" in known else []
        return [known["slurm_starts"], *asked] if "slurm_starts" in known else asked

    def state(self) -> str:
        """Return the state in one line for people."""
        if self.found.there == "no":
            return "the checkpoint directory is not there yet"
        if self.found.there == "closed":
            return "the checkpoint directory may not be read by this user"
        return _job(self.found, self.runs)

    def words(self) -> list[str]:
        if self.found.there != "yes":
            return [self.state()]
        width, rows = len("newest checkpoint:"), self.rows()
        if age := self.facts().get("step_age_s"):
            rows["step"] += f", {ago(age)}"
        lines = [f"{f'{name}:':{width}} {said}" for name, said in rows.items()]
        return [self.state(), *lines, *self.remarks()]


class JobStatus(NamedTuple):
    """The status of a job at one moment.

    `over`: it has ended, and does not come back by itself. `jobs`: the state in its scheduler, or on each of its
    hosts, in a few words.
    """

    said: Sequence[str | Report]
    over: bool
    jobs: str = ""

    @property
    def reports(self) -> list[Report]:
        return [part for part in self.said if isinstance(part, Report)]


def as_text(said: Iterable[str | Report]) -> Iterator[str]:
    """Yield the status as lines for people."""
    for part in said:
        if isinstance(part, Report):
            yield f"{part.place}:"
            yield from (f"  {line}" for line in part.words())
        else:
            yield part


def as_json(said: Iterable[str | Report]) -> dict[str, Any]:
    """Return the same status as as_text(). `runs`: the facts of each directory; `said`: the other lines."""
    parts = list(said)
    return {
        "runs": [part.facts() for part in parts if isinstance(part, Report)],
        "said": [part for part in parts if isinstance(part, str)],
    }


def telling(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows and their heading without columns that are empty in every row."""
    columns = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    return [tuple(row[column] for column in columns) for row in rows]


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


def _speed_words(known: Mapping[str, Any]) -> str | None:
    if "speed" not in known:
        return None
    units = f", {known['units_per_s']:,} {known['unit']}/s" if "units_per_s" in known else ""
    return f"{known['speed']:.3g} steps/s{units}"


def _waiting_words(found: JobState) -> str | None:
    """Return the part of a step that each rank waits, or the smallest and largest part of more than _MOST_RANKS."""
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
