"""Submit a rendered bundle to Slurm: `sbatch --test-only` first, then the submission itself.

Owns sbatch's command line beyond the directives of the script. Shows sbatch's refusal unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddpgen.driver import state
from ddpgen.errors import FileTroubleError, TargetUnavailableError
from ddpgen.monitor import scripts, snapshot
from ddpgen.monitor.places import Login, Place, Ran
from ddpgen.monitor.record import Launched
from ddpgen.tiers.slurm import directives, jobs
from ddpgen.tiers.slurm.fields import SlurmJob
from ddpgen.tiers.slurm.place import reach

_log = logging.getLogger(__name__)
_SCRIPT = "slurm.sbatch"
_LOGS = "logs"
# A busy controller makes sbatch wait, and sbatch retries by itself.
_SUBMIT_S = 180.0


def submit(job: SlurmJob, bundle: Path, arguments: Sequence[str]) -> Launched:
    """Submit a copy of `bundle`.

    Raises TargetUnavailableError if sbatch cannot be reached or refuses the job; FileTroubleError.
    """
    copy = snapshot.take(bundle)
    with reach(job, bundle.absolute().parent) as place:
        directory = _bring(place, copy)
        words = [*_options(place, job), _SCRIPT, *arguments]
        code, said = _sbatch(place, ["sbatch", "--test-only", *words], directory)
        if code != 0:
            raise TargetUnavailableError("sbatch refuses the job, see above; nothing was submitted")
        try:
            code, said = _sbatch(place, ["sbatch", "--parsable", *words], directory)
        except TargetUnavailableError as error:
            message = f"{error}\nwhether it was submitted all the same, squeue --me tells"
            raise TargetUnavailableError(message) from None
        found = jobs.submitted(said)
        if code != 0 or found is None:
            raise TargetUnavailableError("sbatch has not submitted the job, see above")
        number, cluster = found
        name = f"{job.name}-{number}_*.log" if job.array else f"{job.name}-{number}.log"
    return Launched("slurm", number, cluster, f"{place.beside}/{_LOGS}/{name}", place.name)


def _bring(place: Place, copy: Path) -> str:
    """Put the copy and a directory for logs on sbatch's machine, and return the copy's path there."""
    directory, logs = f"{place.beside}/{snapshot.PLACE}/{copy.name}", f"{place.beside}/{_LOGS}"
    if isinstance(place, Login):
        place.facts(scripts.receive(directory, logs), f"make {directory} and {logs}")
        _log.info(f"sending {copy.name} to {place.shown(directory)}")
        place.send(copy, directory)
        return directory
    try:
        Path(logs).mkdir(exist_ok=True)
    except OSError as error:
        message = f"{logs}: {error.strerror}; Slurm would have nowhere to put the job's output"
        raise FileTroubleError(message) from None
    return directory


def _options(place: Place, job: SlurmJob) -> list[str]:
    # Relative to the copy, so that sbatch takes no % or backslash of a directory's name for a pattern.
    pattern = "%x-%A_%a.log" if job.array else "%x-%j.log"
    warning = _measured_warning(place, job)
    signal = [] if warning is None else [f"--signal=B:USR1@{warning}"]
    return [f"--output=../../{_LOGS}/{pattern}", *signal]


def _measured_warning(place: Place, job: SlurmJob) -> int | None:
    """Return the seconds before the time limit at which to stop, from the times of earlier starts.

    None if the spec sets them, if no times are on record, or if they are more than half of the limit.
    """
    if job.array or any(t is not None for t in (job.warning, job.step_time, job.write_time)):
        return None
    directory = place.checkpoints(job)
    found = state.read(place.facts(scripts.look(directory), f"read {directory}"))
    if found.longest_step_s is None or found.write_s is None:
        return None
    measured = replace(job, step_time=found.longest_step_s, write_time=found.write_s)
    wanted = int(directives.warning_s(measured))
    return None if job.time is not None and wanted > job.time / 2 else wanted


def _sbatch(place: Place, argv: list[str], directory: str) -> Ran:
    """Run sbatch and show its output without the job's id. Raise TargetUnavailableError."""
    _log.info(f"+ {place.typed(argv, directory)}")
    answer = place.run(argv, directory, _SUBMIT_S)
    shown = "".join(line for line in answer.said.splitlines(True) if not jobs.submitted(line))
    if shown.strip():
        failed = answer.code != 0 or not (jobs.submitted(answer.said) or "--test-only" in argv)
        _log.log(logging.ERROR if failed else logging.INFO, shown.rstrip("\n"))
    return answer
