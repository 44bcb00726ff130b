"""The interface of a tier. Tiers never import each other; registry.py lists them."""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.plan import Plan, build_plan

if TYPE_CHECKING:
    from ddpgen.monitor.places import Machine
    from ddpgen.monitor.record import Following, Launch
    from ddpgen.monitor.report import JobStatus

Job = TypeVar("Job", bound=JobSpec)
Texts = Sequence[str]


class Follow(Protocol):
    """The module `follow` in a tier's folder. Its functions raise TargetUnavailableError."""

    KILL_ADVICE: str
    """The user's own way to end a job at once, on a tier without `stop --now`; else ""."""

    INTERVAL_S: int
    """Seconds between two questions of `status --watch`: a question may load a shared server."""

    def has_local_checkpoints(self, following: Following) -> bool:
        """True if the checkpoint directory is on this machine."""

    def checkpoint_locations(
        self, following: Following
    ) -> contextlib.AbstractContextManager[Sequence[tuple[Machine, str]]]:
        """Return every place that may hold the checkpoint directory of a run, with the directory there."""

    def launched_at(self, following: Following) -> float | None:
        """Return when the newest launch began, if the tier has a source other than the record of launches."""

    def is_live(self, following: Following) -> bool:
        """True if a run lives. Called only if the checkpoint directory on this machine does not tell."""

    def status(self, following: Following) -> JobStatus:
        """Return the status, or replace this process by a program that shows it."""

    def asking(
        self, following: Following
    ) -> contextlib.AbstractContextManager[Callable[[], JobStatus]]:
        """Return a context with a function that asks for the status at each call; connections stay open."""

    def stop(self, following: Following, now: bool) -> Iterator[str]:
        """Ask for a clean stop, or end the job `now`; yield lines that tell the outcome."""

    def logs(self, following: Following, lines: int, follow: bool) -> int:
        """Show the end of the output and return the exit code. Raise SpecUnreadableError if nothing was printed."""


class Tier(ABC, Generic[Job]):
    """One tier; the module `tier` in its folder has the subclass. The defaults hold for one machine."""

    model: type[Job]
    """The class of its jobs, with the fields that only this tier has."""

    start = ""
    """The script in the bundle that runs the job in the foreground; "" if submit() hands the job to a scheduler."""

    fetch_option = ""
    """The option of `start` that copies the results of a run to this machine; "" if they are here already."""

    can_bench = True
    """True if `bench` can run the job on this tier and read the directory that a run has left."""

    def check(self, job: Job) -> Iterable[Conflict]:
        """Return a conflict for each wish of the job that this tier cannot meet."""
        return ()

    def files(self, job: Job, home: Path) -> Mapping[str, str]:
        """Return the user's files that the tier's own fields name, relative to `home` or in `code`, and their fields."""
        return {}

    def check_files(self, job: Job, home: Path) -> Iterable[Conflict]:
        """Return a conflict for each fault in the content of files(). `home`: the spec's directory."""
        return ()

    def plan(self, job: Job) -> Plan:
        """Return the values of the job's launch script, its supervisor's command among them."""
        return build_plan(job)

    @abstractmethod
    def render(self, job: Job, renderer: Renderer) -> list[Artefact]:
        """Return the files that launch the job; the first one is the artefact that a user starts."""

    def contained(self, job: Job, image: str) -> Job:
        """Return the job in the container `image` that its lock names; unchanged if the tier starts no containers."""
        return job

    def submit(self, job: Job, bundle: Path, arguments: Texts, points: Texts = ()) -> Launch:
        """Without `start`: submit a bundle, or `points` of its sweep. Raise TargetUnavailableError, FileTroubleError."""
        return cast("Launch", self._module("submit").submit(job, bundle, arguments, points))

    def preview(self, job: Job, bundle: Path, copy: Path, words: Texts, points: Texts) -> Texts:
        """Return a line for each copy and command that follows `start` in a launch. `copy`: the bundle's copy to submit."""
        if self.start:
            return ()
        return list(self._module("submit").preview(job, bundle, copy, words, points))

    @property
    def follow(self) -> Follow:
        """The module for status, stop and logs of this tier's jobs."""
        return cast(Follow, self._module("follow"))

    def _module(self, name: str) -> Any:
        """Return a module of the tier's folder. Only a launch or a question imports it, never a render."""
        return importlib.import_module(f"..{name}", type(self).__module__)
