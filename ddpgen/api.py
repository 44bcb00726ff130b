"""A job in Python, and the flow of the commands: read a spec, render it, launch it, follow it.

A command parses its options, calls this module and prints. Results are values; errors are the exceptions of errors.py.
Prints nothing: messages go to the logger `ddpgen`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpgen import job
from ddpgen.errors import (
    FileTroubleError,
    Finding,
    OptionRefusedError,
    SpecUnreadableError,
    report,
)
from ddpgen.site.layers import AS_WRITTEN, Chosen
from ddpgen.text import yamltext
from ddpgen.text.shell import as_argument
from ddpgen.tiers import sweep
from ddpgen.tiers.registry import TIERS

if TYPE_CHECKING:
    from ddpgen.monitor.record import Following
    from ddpgen.monitor.report import Status
    from ddpgen.render import Artefact
    from ddpgen.spec.job import JobSpec
    from ddpgen.spec.reader import Reading

_log = logging.getLogger(__name__)
MAPPING = "<mapping>"  # the file name in messages about a spec that is no file
StrPath = str | os.PathLike[str]


class Bundle(NamedTuple):
    """A bundle that was written.

    `artefacts`: the files that launch the job, with their text. `files`: the number of all files. `changed`: False if
    the directory held the same files already. `dropped`: the tiers of the earlier render that this render leaves out.
    `warnings`: doubts about the spec and about the files that it names.
    """

    directory: Path
    tiers: tuple[str, ...]
    artefacts: tuple[Artefact, ...]
    files: int
    changed: bool
    dropped: tuple[str, ...]
    warnings: tuple[Finding, ...]

    @property
    def starts(self) -> list[str]:
        """The commands that start the job, one for each tier."""
        bundle = shlex.quote(as_argument(str(self.directory)))
        return [each.start.format(bundle=bundle) for each in self.artefacts if each.start]


class Launch(NamedTuple):
    """A job that was submitted under the id `job`, or that ran in the foreground and ended with `exit_code`.

    If every point of a sweep is done or live already, nothing is submitted: `job` is "" and `exit_code` None.
    """

    tier: str
    bundle: Bundle
    job: str = ""
    exit_code: int | None = None


class Preview(NamedTuple):
    """All that a launch would do.

    `files`: the size in bytes of each file of the bundle. `changed`: False if the directory holds these files already.
    `secrets`: by each secret's name, the file that holds its value; "" if the environment holds the value.
    `commands`: one line for each copy, and one for each command. A command's line begins with `+ `.
    """

    directory: Path
    files: Mapping[str, int]
    changed: bool
    secrets: Mapping[str, str]
    commands: tuple[str, ...]


def load(
    spec: StrPath | Mapping[str, Any],
    *,
    profile: str | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 (the option's name)
) -> Spec:
    """Read a job spec: a YAML file, or a mapping with the same fields.

    The paths in a mapping start at the working directory. `profile`: the name of a site profile, or "" for none. `set`:
    values by field, like {"train.lr": 1e-4}. A spec that is wrong raises SpecInvalidError with all findings, and a file
    that cannot be read raises SpecUnreadableError. A value that YAML does not have raises TypeError or ValueError.
    """
    logger = logging.getLogger("ddpgen")
    if not logger.handlers:  # without a handler, Python itself would print the warnings
        logger.addHandler(logging.NullHandler())
    values = (set or {}).items()
    chosen = Chosen(profile, tuple(f"{name}={yamltext.flow(value)}" for name, value in values))
    if isinstance(spec, Mapping):
        lines = (
            f"{yamltext.scalar(name)}: {yamltext.flow(value)}\n" for name, value in spec.items()
        )
        return read(MAPPING, chosen, "".join(lines).encode())
    return read(os.fspath(spec), chosen)


def read(path: str, chosen: Chosen = AS_WRITTEN, raw: bytes | None = None) -> Spec:
    """Read a spec with the options of a command. `raw`: its text, instead of the file's."""
    return Spec(path, job.load(path, chosen, raw))


@dataclass(frozen=True)
class Spec:
    """A spec whose fields have no errors, read for every tier that it fits. `filename`: its name in messages."""

    filename: str
    readings: Mapping[str, Reading] = field(repr=False)

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers that the spec fits."""
        return tuple(self.readings)

    @property
    def home(self) -> Path:
        """The directory at which the spec's paths start."""
        return Path(self.filename).parent

    def job(self, target: str) -> JobSpec:
        """Return the job on one tier, with every field. Raise TargetUnavailableError, OptionRefusedError."""
        if target == "all":
            raise OptionRefusedError(f"it takes one tier; write one of {', '.join(TIERS)}")
        self.resolve(target)
        return self.readings[target].job

    def resolve(self, target: str) -> list[str]:
        """Return the tiers that `target` means. Raise TargetUnavailableError, OptionRefusedError."""
        if target not in (names := [*TIERS, "all"]):
            raise OptionRefusedError(f"there is no tier {target}; write one of {', '.join(names)}")
        return job.resolve(target, self.readings)

    def validate(self, target: str = "all") -> list[Finding]:
        """Return the warnings about the spec and the files that it names. Raise SpecInvalidError."""
        return job.check([self.readings[tier] for tier in self.resolve(target)], self.home)

    def render(
        self,
        target: str = "all",
        *,
        output: StrPath | None = None,
        templates: StrPath | None = None,
        force: bool = False,
        limit_mib: int = 100,
    ) -> Bundle:
        """Write the bundle for one tier, or for all tiers that the spec fits.

        `output`: its directory, instead of build/<name>. `templates`: a directory with templates of your own. `force`:
        overwrite edits made by hand. `limit_mib`: the most code to copy. Raises SpecInvalidError, BundleRefusedError,
        FileTroubleError, TargetUnavailableError, OptionRefusedError.
        """
        warnings = self.validate(target)
        self.log(warnings)
        tiers = self.resolve(target)
        how = job.Render(_path(output), _path(templates), force, limit_mib)
        rendered = job.write_bundle(self.readings, tiers, self.home, how)
        self.log(rendered.warnings)
        directory, written = job.output_directory(self.readings, how), rendered.written
        verb = "wrote" if written.changed else "unchanged:"
        _log.info(f"{verb} {directory} ({written.files} files)")
        if written.dropped:
            gone = ", ".join(written.dropped)
            message = (
                f"it no longer holds what was rendered for {gone}; --target all renders every tier"
            )
            _log.warning(message)
        return Bundle(
            directory, tuple(tiers), tuple(rendered.artefacts), written.files, written.changed,
            tuple(written.dropped), (*warnings, *rendered.warnings),
        )  # fmt: skip

    def launch(
        self,
        target: str,
        arguments: Sequence[str] = (),
        *,
        only: Sequence[str] = (),
        output: StrPath | None = None,
        templates: StrPath | None = None,
        force: bool = False,
        limit_mib: int = 100,
        run: Callable[[Sequence[str]], int] | None = None,
    ) -> Launch:
        """Render the job, then submit it (slurm, sky), or run it in the foreground and wait for its end (local, hosts).

        `arguments` are added to the training command. `only`: parts of the names of a sweep's points, like lr=1e-3;
        points that are done or live are not started. The other options are those of render(). Ctrl-C stops a job in
        the foreground cleanly, and is raised as KeyboardInterrupt afterwards. `run`: a function that runs the command
        of a job in the foreground and returns its exit code; None for ours. Raises the errors of render(), and
        OptionRefusedError if no point has all of `only`. TargetUnavailableError may also mean that the scheduler
        refuses the job.
        """
        from ddpgen import programs
        from ddpgen.monitor import record

        chosen_job = self.job(target)
        points = sweep.chosen(chosen_job, only)
        bundle = self.render(
            target, output=output, templates=templates, force=force, limit_mib=limit_mib
        )
        tier = TIERS[target]
        if tier.start:
            record.write_launch(bundle.directory, record.Launch(target))
            options = [f"--point={name}" for name in points] if only else []
            script = as_argument(str(bundle.directory / tier.start))
            command = ["bash", script, *options, *arguments]
            return Launch(target, bundle, exit_code=(run or programs.in_foreground)(command))
        if points and not (points := self._not_done(target, bundle, points, arguments)):
            _log.info("nothing to start: every point is done, waits or runs")
            return Launch(target, bundle)
        launched = tier.submit(chosen_job, bundle.directory, arguments, points)
        try:
            record.write_launch(bundle.directory, launched)
        except FileTroubleError as error:
            message = f"{error}; {launched.job} was submitted all the same"
            raise FileTroubleError(message) from None
        return Launch(target, bundle, launched.job)

    def _not_done(
        self, target: str, bundle: Bundle, points: Sequence[str], arguments: Sequence[str]
    ) -> list[str]:
        """Return the points that are neither done nor live. Raise TargetUnavailableError."""
        from ddpgen.tiers import points as runs

        programs = sweep.programmed(self.readings[target]).points
        following = self.following(target, bundle.directory).narrowed(points)
        waiting = []
        for name, status in runs.statuses(following).items():
            states = [report.state for report in status.reports]
            if any(state.has_done(programs[name].id, arguments) for state in states):
                _log.info(f"{name} is done")
            elif status.jobs and not status.ended:
                _log.info(f"{name} is live: {status.jobs}")
            else:
                waiting.append(name)
        return waiting

    def preview(
        self,
        target: str,
        arguments: Sequence[str] = (),
        *,
        only: Sequence[str] = (),
        output: StrPath | None = None,
        templates: StrPath | None = None,
        force: bool = False,
        limit_mib: int = 100,
    ) -> Preview:
        """Return all that launch() with these arguments would write, send and run, and do none of it.

        No machine is asked if a point is done or live, so the commands start all chosen points of a sweep. Raises the
        errors of render(), and OptionRefusedError if no point has all of `only`.
        """
        from ddpgen.monitor import snapshot

        chosen_job, tier = self.job(target), TIERS[target]
        points = sweep.chosen(chosen_job, only)
        self.log(self.validate(target))
        how = job.Render(_path(output), _path(templates), force, limit_mib, preview=True)
        rendered = job.write_bundle(self.readings, [target], self.home, how)
        self.log(rendered.warnings)
        directory, written = job.output_directory(self.readings, how), rendered.written
        commands = []
        if tier.start:
            arguments = [*(f"--point={name}" for name in points if only), *arguments]
            words = ["bash", as_argument(str(directory / tier.start)), *arguments]
            commands.append(f"+ {shlex.join(words)}")
        copy = snapshot.path(directory.absolute(), written.listing)
        commands += tier.preview(chosen_job, directory, copy, arguments, points)
        secrets = {each.name: each.file for each in chosen_job.secrets}
        return Preview(directory, written.sizes, written.changed, secrets, tuple(commands))

    def status(self, target: str | None = None, *, output: StrPath | None = None) -> Status:
        """Return the status of the job, as `ddpgen status --json` prints it.

        `target`: the tier. If it is None, the tier on which the job runs now, or the tier of the newest run if the job
        runs nowhere. `output`: as in render(). Raises TargetUnavailableError if nothing answers, and
        OptionRefusedError if several tiers are possible.
        """
        return status(self.following(target, _path(output)))

    def stop(
        self, target: str | None = None, *, output: StrPath | None = None, now: bool = False
    ) -> list[str]:
        """Ask the job for a clean stop, and return lines that tell the outcome. A waiting job leaves its queue.

        `now`: on sky, end it at once. The other options and the errors are those of status().
        """
        from ddpgen.tiers import commands

        return list(commands.stop(self.following(target, _path(output)), now))

    def following(self, target: str | None, output: Path | None) -> Following:
        """Return the run on `target`, or on the tier that commands.choose finds."""
        bundle = job.rendered_directory(self.readings, output)
        jobs = {tier: reading.job for tier, reading in self.readings.items()}
        # Options may have given the bundle a tier that the spec alone does not have.
        with contextlib.suppress(SpecUnreadableError):
            jobs |= {tier: j for tier, j in job.bundle_jobs(bundle).items() if tier not in jobs}
        if target is not None and target not in jobs:
            self.job(target)
        return _choose(jobs, bundle, target)

    def log(self, warnings: Sequence[Finding]) -> None:
        """Send the warnings to the log, a line for each."""
        for line in report(self.filename, warnings):
            _log.warning(line)


def find_run(
    name: str, target: str | None, output: Path | None, only: Sequence[str] = ()
) -> Following | Path:
    """Return the run of a spec or a bundle on `target`, or on the tier that commands.choose finds.

    For a checkpoint directory, return its path. `only`: parts of the names of a sweep's points. Raises
    SpecUnreadableError, SpecInvalidError, OptionRefusedError, TargetUnavailableError.
    """
    from ddpgen.bundle.write import LISTING
    from ddpgen.tiers import commands

    if not os.path.exists(name):
        raise SpecUnreadableError(
            f"{name}: No such file or directory; give a spec, a bundle or a checkpoint directory"
        )
    if not os.path.isdir(name):
        return _narrowed(read(name).following(target, output), only)
    if output is not None:
        raise OptionRefusedError("-o goes with a spec, not with a directory; leave it out")
    if os.path.exists(os.path.join(name, LISTING)):
        jobs = job.bundle_jobs(Path(name))
        if target is not None and target not in jobs:
            raise OptionRefusedError(
                f"{name} was rendered for {', '.join(jobs)}, not for {target}; name one of these, or give the spec"
            )
        return _narrowed(_choose(jobs, Path(name), target), only)
    if target is not None:
        raise OptionRefusedError("--target goes with a spec or a bundle; leave it out")
    if only:
        raise OptionRefusedError("--only goes with a spec or a bundle; leave it out")
    return commands.checkpoint_directory(Path(name))


def _narrowed(following: Following, only: Sequence[str]) -> Following:
    """Return the run with only the points that `only` selects. A single point becomes a run of its own."""
    names = sweep.chosen(following.job, only)
    if len(names) == 1:
        return following.points[names[0]]
    return following.narrowed(names) if only else following


def status(run: Following | Path) -> Status:
    """Return the status of a run as a value. Raise TargetUnavailableError."""
    from ddpgen.monitor import report as reports
    from ddpgen.tiers import commands

    tier = None if isinstance(run, Path) else run.tier
    return reports.facts(tier, commands.status(run, captured=True))


def _choose(jobs: Mapping[str, JobSpec], bundle: Path, target: str | None) -> Following:
    from ddpgen.tiers import commands

    following = commands.choose(jobs, bundle, target)
    launched = following.launched
    last = f"launched as {launched.job or 'a process'}" if launched else "no launch on record"
    _log.debug(f"tier {following.tier}, {last}")
    return following


def _path(path: StrPath | None) -> Path | None:
    return None if path is None else Path(path)
