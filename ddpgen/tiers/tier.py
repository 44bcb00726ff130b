"""The interface of a tier. Tiers never import each other; registry.py lists them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ddpgen.errors import TargetUnavailableError
from ddpgen.render import Artefact, Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.tiers import plan
from ddpgen.tiers.plan import Plan

if TYPE_CHECKING:
    from ddpgen.monitor.places import Place
    from ddpgen.monitor.record import Following, Launched
    from ddpgen.monitor.report import JobStatus

Job = TypeVar("Job", bound=JobSpec)


class Follow(Protocol):
    """The module `follow` in a tier's folder. Its functions raise TargetUnavailableError."""

    AT_ONCE: str
    """How to end a job at once, for a tier that leaves --now to its own tools; else ""."""

    INTERVAL_S: int
    """How often `status --watch` asks: a question may cost others something."""

    def keeps_here(self, following: Following) -> bool:
        """True if the checkpoint directory is on this machine."""

    def kept(
        self, following: Following
    ) -> contextlib.AbstractContextManager[Sequence[tuple[Place, str]]]:
        """Every place that may hold the checkpoint directory of a run, and the directory there."""

    def launched_at(self, following: Following) -> float | None:
        """When the newest launch began, if something besides the record of launches knows."""

    def lives(self, following: Following) -> bool:
        """True if a run lives. Asked where the checkpoint directory on this machine does not tell."""

    def status(self, following: Following) -> JobStatus:
        """How it stands; or this process becomes one that shows it."""

    def asking(
        self, following: Following
    ) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
        """The function that tells how it stands, as often as it is called; connections stay."""

    def stop(self, following: Following, now: bool) -> Iterator[str]:
        """Ask for a clean stop, or end it `now`; lines that say what came of it."""

    def logs(self, following: Following, lines: int, follow: bool) -> int:
        """Show the end of the output; the exit code. Raises DdpgenError where there is nothing yet."""


class Tier(ABC, Generic[Job]):
    """One tier; the module `tier` in its folder has the subclass. The defaults hold for one machine."""

    model: type[Job]
    """The class of its jobs, with the fields that only this tier has."""

    start = ""
    """The script in the bundle that runs the job in the foreground; "" if submit() hands it to a scheduler."""

    brings = ""
    """The option of `start` that brings the results of a run here; "" if they are here."""

    benches = True
    """True if `bench` can run on it, and read the directory that a run has left."""

    def check(self, job: Job) -> Iterable[Conflict]:
        """What this tier cannot do of what the job asks."""
        return ()

    def plan(self, job: Job) -> Plan:
        """The command of its supervisor, and what else its launch script needs."""
        return plan.of(job)

    @abstractmethod
    def render(self, job: Job, renderer: Renderer) -> list[Artefact]:
        """The files that launch the job, the one to start first."""

    def contained(self, job: Job, image: str) -> Job:
        """The job in the container `image` that its lock names; as it is where the tier starts none."""
        return job

    def submit(self, job: Job, bundle: Path, arguments: Sequence[str]) -> Launched:
        """Hand a bundle to the scheduler. Raises TargetUnavailableError, FileTroubleError."""
        raise TargetUnavailableError(f"no scheduler takes this job; run {self.start} in {bundle}")

    @property
    @abstractmethod
    def follow(self) -> Follow:
        """Status, stop and logs."""
