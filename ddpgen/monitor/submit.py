"""Hand a rendered bundle to Slurm: first what sbatch says of it, then the submission itself.

Owns sbatch's command line beyond the directives of the script. A refusal is shown as sbatch gave it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddpgen.errors import FileTroubleError, TargetUnavailableError
from ddpgen.monitor import jobs, pace, places, scripts, snapshot
from ddpgen.monitor.places import Here, Login, Place
from ddpgen.monitor.record import Launched
from ddpgen.plan import slurm
from ddpgen.spec.slurm import SlurmJob

_SCRIPT = "slurm.sbatch"
_LOGS = "logs"
# A busy controller lets sbatch wait, and it has tries of its own.
_SUBMIT_S = 180.0


def submit(job: SlurmJob, bundle: Path, arguments: Sequence[str]) -> Launched:
    """Submit a copy of `bundle`.

    Raises TargetUnavailableError when there is no way to sbatch, or it refuses; FileTroubleError.
    """
    copy = snapshot.take(bundle).path
    with places.reach(job, bundle.absolute().parent, dict(os.environ)) as place:
        directory = _bring(place, copy)
        words = [*_options(place, job), _SCRIPT, *arguments]
        _test(place, ["sbatch", "--test-only", *words], directory)
        number, cluster = _submit(place, ["sbatch", "--parsable", *words], directory)
        name = f"{job.name}-{number}_*.log" if job.array else f"{job.name}-{number}.log"
        log = f"{place.beside.rstrip('/')}/{_LOGS}/{name}"
    return Launched("slurm", number, cluster, log, place.name)


def _bring(place: Here | Login, copy: Path) -> str:
    """Have the copy, and a directory of logs, where sbatch is; returns the copy's place there."""
    beside = place.beside.rstrip("/")
    directory, logs = f"{beside}/{snapshot.PLACE}/{copy.name}", f"{beside}/{_LOGS}"
    if isinstance(place, Login):
        places.facts(place.ask(scripts.receive(directory, logs)))
        _say(f"sending {copy.name} to {place.name}:{directory.removeprefix('./')}")
        place.send(copy, directory)
        return directory
    try:
        Path(logs).mkdir(exist_ok=True)
    except OSError as error:
        message = f"{logs}: {error.strerror}; Slurm would have nowhere to put the job's output"
        raise FileTroubleError(message) from None
    return directory


def _options(place: Place, job: SlurmJob) -> list[str]:
    # Relative to the copy, so that no % or backslash of a directory's name is taken for a pattern.
    pattern = "%x-%A_%a.log" if job.array else "%x-%j.log"
    options = [f"--output=../../{_LOGS}/{pattern}"]
    warning = measured_warning(place, job)
    if warning is not None:
        options.append(f"--signal=B:USR1@{warning}")
    return options


def measured_warning(place: Place, job: SlurmJob) -> int | None:
    """Seconds before the time limit at which to stop, out of what earlier starts measured.

    None where the spec says it, or nothing is on record, or more than half of the limit would go.
    """
    if job.array or any(t is not None for t in (job.warning, job.step_time, job.write_time)):
        return None
    outcome = place.ask(scripts.rows(places.checkpoints(place, job)))
    found = pace.measured((scripts.said(outcome.output) or "").splitlines())
    if found is None:
        return None
    measured = replace(job, step_time=found.step_s, write_time=found.write_s)
    wanted = int(slurm.warning_s(measured))
    return None if job.time is not None and wanted > job.time / 2 else wanted


def _test(place: Place, argv: list[str], directory: str) -> None:
    _say(f"+ {place.typed(argv, directory)}")
    answer = places.run(place, argv, directory, _SUBMIT_S)
    _show(answer.said)
    if answer.code != 0:
        raise TargetUnavailableError("sbatch refuses the job, see above; nothing was submitted")


def _submit(place: Place, argv: list[str], directory: str) -> tuple[str, str]:
    _say(f"+ {place.typed(argv, directory)}")
    try:
        answer = places.run(place, argv, directory, _SUBMIT_S)
    except TargetUnavailableError as error:
        message = f"{error}\nwhether it was submitted all the same, squeue --me tells"
        raise TargetUnavailableError(message) from None
    found = jobs.submitted(answer.said)
    if answer.code != 0 or found is None:
        _show(answer.said)
        raise TargetUnavailableError("sbatch has not submitted the job, see above")
    _show("".join(line for line in answer.said.splitlines(True) if not jobs.submitted(line)))
    return found


def _show(said: str) -> None:
    if said.strip():
        _say(said.rstrip("\n"))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
