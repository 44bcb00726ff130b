"""The status of a job, for people and for programs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, cast

from ddpgen.driver.state import MAX_RANKS, JobState
from ddpgen.driver.wording import ago, clock


class SlowRank(TypedDict):
    """A rank that the others wait for. `cost`: the part of each step that they wait."""

    name: str
    cost: float


class BadNode(TypedDict):
    """A node whose own fault has ended two starts, and the last of these faults."""

    node: str
    when: str
    why: str


class RunFacts(TypedDict, total=False):
    """The status of one checkpoint directory for programs, without unknown values.

    Times are in seconds, speed in steps a second. `there`: "no", or "closed" to this user; without it the directory
    was read. `point`: the name of a sweep's point, and `job` its state in the scheduler.
    """

    point: str
    job: str
    directory: str
    there: str
    state: str
    step: int
    steps: int
    step_age_s: float
    loss: float
    evaluation: str
    speed: float
    unit: str
    units_per_s: int
    time_left_s: int
    slow_rank: SlowRank
    waiting: list[float]
    micro_batches: list[int]
    restarts: int
    newest_checkpoint: int | str
    weights: str
    slurm_starts: str
    bad_nodes: list[BadNode]
    stop_asked: bool


class Status(NamedTuple):
    """The status of a job for programs.

    `tier`: None for a checkpoint directory. `said`: other lines, such as Slurm's table or a host that does not answer.
    `ended`: True if the job has ended, and does not come back by itself.
    """

    tier: str | None
    runs: list[RunFacts]
    said: list[str]
    ended: bool


class Report(NamedTuple):
    """The status of one checkpoint directory, or of a place in a bucket.

    `location`: its path as people write it. `running`: None if nobody knows whether its processes run.
    """

    location: str
    state: JobState
    running: bool | None

    @property
    def ended(self) -> bool:
        """True if the attempt has ended, as far as its files and its processes tell."""
        final = self.running is None and self.state.status != "running"
        return bool(self.state.status) and (self.running is False or final)

    @property
    def stalled_s(self) -> float | None:
        """The seconds since the last step if the next one is long overdue; else None.

        Always None for a bucket: it has no lock, and its rows are as old as its newest checkpoint.
        """
        state = self.state
        stalled = state.current and state.stalled and self.running is not False
        return state.age_s if stalled else None

    def facts(self) -> RunFacts:
        """Return the status for programs."""
        state = self.state
        if state.directory_state != "yes":
            return {"directory": self.location, "there": state.directory_state}
        running = state.status == "running" and self.running is not False
        speed = state.steps_per_s if running else None
        left = None
        if speed and state.step is not None and state.last_step is not None:
            left = max(0, round((state.last_step - state.step) / speed))
        final_step = state.status_step if state.status in ("done", "stopped") else 0
        saved: int | str | None = state.last_save and state.last_save[0]
        weights = None
        if state.newest_checkpoint is not None:
            saved = state.newest_checkpoint
            weights = f"{self.location}/step-{saved:09}/model.pt"
        values = {
            "directory": self.location,
            "state": self._words(),
            "step": final_step or state.step,
            "steps": state.last_step,
            "step_age_s": None if not running or state.age_s is None else round(state.age_s, 1),
            "loss": state.loss if final_step in (0, state.step) else None,
            "evaluation": state.evaluation or None,
            "speed": None if speed is None else round(speed, 4),
            "unit": state.unit if speed and state.units_per_step else None,
            "units_per_s": round(speed * state.units_per_step) or None if speed else None,
            "time_left_s": left,
            "slow_rank": {"name": state.slow[0], "cost": state.slow[1]}
            if running and state.slow
            else None,
            "waiting": [round(part, 3) for part in state.waiting] if running else None,
            "micro_batches": list(state.shares) if running else None,
            "restarts": state.restarts or None,
            "newest_checkpoint": saved,
            "weights": weights,
            "slurm_starts": (state.slurm_starts or None) if state.status_slurm_job else None,
            "bad_nodes": [vars(fault) for fault in state.bad_nodes],
            "stop_asked": True if state.stop_asked and self.running is not False else None,
        }
        known = {name: value for name, value in values.items() if value not in (None, [])}
        return cast(RunFacts, known)

    def rows(self) -> dict[str, str]:
        """Return the known values for people, by their names."""
        if self.state.directory_state != "yes":
            return {}
        facts = self.facts()
        steps = f" of {facts['steps']}" if "steps" in facts else ""
        diverged = [str(loss) for loss in self.state.losses[-1:] if not math.isfinite(loss)]
        rows = {
            "step": f"{facts['step']}{steps}" if "step" in facts else None,
            "loss": f"{facts['loss']:.4f}" if "loss" in facts else next(iter(diverged), None),
            "evaluation": facts.get("evaluation"),
            "speed": _speed_words(facts),
            "time left": clock(facts["time_left_s"]) if "time_left_s" in facts else None,
            "waiting": _waiting_words(self.state) if "waiting" in facts else None,
            "micro-batches": _split_words(self.state) if "micro_batches" in facts else None,
            "slow rank": _slow_words(facts.get("slow_rank")),
            "restarts": facts.get("restarts"),
            "newest checkpoint": self.state.saved,
            "weights": facts.get("weights"),
        }
        return {name: str(text) for name, text in rows.items() if text is not None}

    def remarks(self) -> list[str]:
        """Return the lines for people that belong to no row: the starts by Slurm, bad nodes and a stop request."""
        facts = self.facts()
        remarks = [facts["slurm_starts"]] if "slurm_starts" in facts else []
        if "bad_nodes" in facts:
            remarks += [fault.words for fault in self.state.bad_nodes]
        return [*remarks, "a stop has been asked for"] if "stop_asked" in facts else remarks

    def headline(self) -> str:
        """Return the state in one line for people."""
        if self.state.directory_state == "no":
            return "the checkpoint directory is not there yet"
        if self.state.directory_state == "closed":
            return "the checkpoint directory may not be read by this user"
        return self._words()

    def _words(self) -> str:
        return self.state.words(self.running) or "no job has begun there"

    def words(self) -> list[str]:
        if self.state.directory_state != "yes":
            return [self.headline()]
        width, rows = len("newest checkpoint:"), self.rows()
        if age := self.facts().get("step_age_s"):
            rows["step"] += f", {ago(age)}"
        lines = [f"{f'{name}:':{width}} {text}" for name, text in rows.items()]
        return [self.headline(), *lines, *self.remarks()]


class JobStatus(NamedTuple):
    """The status of a job at one moment.

    `ended`: True if the job has ended, and does not come back by itself. `jobs`: the state in its scheduler, or on each
    of its hosts, in a few words. `points`: the status of each point of a sweep, by its name.
    """

    parts: Sequence[str | Report]
    ended: bool
    jobs: str = ""
    points: Mapping[str, JobStatus] = {}

    @property
    def reports(self) -> list[Report]:
        return [part for part in self.parts if isinstance(part, Report)]


def as_text(parts: Iterable[str | Report]) -> Iterator[str]:
    """Yield the status as lines for people."""
    for part in parts:
        if isinstance(part, Report):
            yield f"{part.location}:"
            yield from (f"  {line}" for line in part.words())
        else:
            yield part


def facts(tier: str | None, status: JobStatus) -> Status:
    """Return the same status as as_text(), for programs."""
    said = [part for part in status.parts if isinstance(part, str)]
    runs = [run.facts() for run in status.reports]
    for name, point in status.points.items():
        job = {"job": point.jobs} if point.jobs else {}
        runs += [cast(RunFacts, {"point": name, **job, **run.facts()}) for run in point.reports]
    return Status(tier, runs, [] if status.points else said, status.ended)


def without_empty_columns(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows and their heading without columns that are empty in every row."""
    columns = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    return [tuple(row[column] for column in columns) for row in rows]


def _speed_words(facts: Mapping[str, Any]) -> str | None:
    if "speed" not in facts:
        return None
    units = f", {facts['units_per_s']:,} {facts['unit']}/s" if "units_per_s" in facts else ""
    return f"{facts['speed']:.3g} steps/s{units}"


def _waiting_words(state: JobState) -> str | None:
    """Return the part of a step that each rank waits, or the smallest and largest part of more than MAX_RANKS."""
    parts = [f"{part:.0%}" for part in state.waiting]
    if len(parts) < 2 and state.batch_wait < 0.01:
        return None
    waits = " ".join(parts)
    if len(parts) > MAX_RANKS:
        lowest, highest = min(state.waiting), max(state.waiting)
        waits = f"{lowest:.0%} to {highest:.0%}"
    ranks = f"ranks 0 to {len(parts) - 1}" if len(parts) > 1 else "rank 0"
    batches = f"; for batches up to {state.batch_wait:.0%}" if state.batch_wait >= 0.01 else ""
    return f"{waits} of a step for others ({ranks}){batches}"


def _split_words(state: JobState) -> str | None:
    return f"{state.split} a step (ranks 0 to {len(state.shares) - 1})" if state.split else None


def _slow_words(slow: Mapping[str, Any] | None) -> str | None:
    if slow is None:
        return None
    return f"{slow['name']}; the others wait {slow['cost']:.0%} of each step for it"
