"""All jobs that were launched from one directory, with the state of each: `ddpgen status` without a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddpgen.driver.wording import ago, table
from ddpgen.errors import DdpgenError
from ddpgen.monitor import record
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import RunFacts, Status, facts, without_empty_columns
from ddpgen.spec.job import JobSpec
from ddpgen.tiers import commands

_HEADINGS = ("job", "tier", "id", "state", "step", "loss", "launched")


class Row(NamedTuple):
    """One launch. `job`: the scheduler's id. `status`: None if nobody answers."""

    bundle: str
    tier: str
    job: str
    state: str
    launched: float
    status: Status | None

    @property
    def run(self) -> RunFacts:
        """The facts of the directory; no facts for a sweep, which has several."""
        if self.status and len(self.status.runs) > 1:
            return RunFacts()
        return next(iter(self.status.runs if self.status else []), RunFacts())

    def cells(self, now: float) -> tuple[str, ...]:
        step = f"{self.run['step']}/{self.run.get('steps', '?')}" if "step" in self.run else ""
        loss = f"{self.run['loss']:.4f}" if "loss" in self.run else ""
        launched = ago(max(0.0, now - self.launched))
        return self.bundle, self.tier, self.job, self.state, step, loss, launched


def rows(parent: Path, read_jobs: Callable[[Path], Mapping[str, JobSpec]]) -> Iterator[Row]:
    """Yield the launches from bundles in `parent`, the newest first. `read_jobs` returns a bundle's jobs by tier."""
    launches = [
        (bundle, launch)
        for bundle in record.bundles(parent)
        for launch in record.read_launches(bundle).values()
    ]
    for bundle, launch in sorted(launches, key=lambda pair: -pair[1].time):
        status: Status | None = None
        state = "the bundle was rendered again without this tier"
        try:
            if job := read_jobs(bundle).get(launch.tier):
                answer = commands.status(Following(job, launch.tier, bundle, launch), captured=True)
                status = facts(launch.tier, answer)
                state = answer.jobs or next((part.headline() for part in answer.reports), "unknown")
        except DdpgenError as error:
            state = str(error).splitlines()[0]
        yield Row(str(bundle), launch.tier, launch.job, state, launch.time, status)


def as_facts(row: Row) -> dict[str, Any]:
    """Return a row for programs: the launch, and the keys of `ddpgen status JOB --json`."""
    launch = {"bundle": row.bundle, "tier": row.tier, "job": row.job, "launched": row.launched}
    return {**launch, "state": row.state, **(row.status._asdict() if row.status else {})}


def as_text(launched_jobs: list[Row]) -> list[str]:
    """Return a table for people, as lines."""
    now = time.time()
    return table(without_empty_columns([_HEADINGS, *(row.cells(now) for row in launched_jobs)]))
