"""Submit a rendered bundle to Slurm: `sbatch --test-only` first, then the submission itself.

Owns sbatch's command line beyond the directives of the script. The error has sbatch's refusal unchanged.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddpgen.driver import secret_values, state
from ddpgen.errors import FileTroubleError, TargetUnavailableError
from ddpgen.monitor import scripts, snapshot
from ddpgen.monitor.places import NOTHING, LoginNode, Machine, ProgramResult, short
from ddpgen.monitor.record import Launch
from ddpgen.tiers.slurm import directives, jobs
from ddpgen.tiers.slurm.fields import SlurmJob
from ddpgen.tiers.slurm.place import control_machine

_log = logging.getLogger(__name__)
_SCRIPT = "slurm.sbatch"
_LOGS = "logs"
# A busy controller makes sbatch wait, and sbatch retries by itself.
_SUBMIT_S = 180.0


def submit(
    job: SlurmJob, bundle: Path, arguments: Sequence[str], points: Sequence[str] = ()
) -> Launch:
    """Submit a copy of `bundle`. `points`: the points of a sweep whose tasks are submitted.

    Raises TargetUnavailableError if sbatch cannot be reached or refuses the job; FileTroubleError.
    """
    named = {secret.name: "" for secret in job.secrets if not secret.file}
    values, missing = secret_values.read(named, os.environ)
    if missing:
        raise TargetUnavailableError("\n".join(missing))
    copy = snapshot.copy_bundle(bundle)
    with control_machine(job, bundle.absolute().parent) as machine:
        if files := {secret.name: secret.file for secret in job.secrets if secret.file}:
            machine.facts(scripts.check_secret_files(files), "check the files of secrets")
        directory = _copy_to_machine(machine, copy)
        tasks = _tasks(job, points)
        warning = _measured_warning(machine, job)
        words = [*_options(job, warning, tasks), _SCRIPT, *arguments]
        code, output = _sbatch(machine, ["sbatch", "--test-only", *words], directory)
        if code != 0:
            raise _refused(output, "sbatch refuses the job; nothing was submitted")
        if output.strip():
            _log.info(output.rstrip("\n"))
        try:
            submission = ["sbatch", "--parsable", *words]
            code, output = _sbatch(machine, submission, directory, values)
        except TargetUnavailableError as error:
            message = f"{error}\nwhether it was submitted all the same, squeue --me tells"
            raise TargetUnavailableError(message) from None
        submitted = jobs.submitted(output)
        if code != 0 or submitted is None:
            raise _refused(output, "sbatch has not submitted the job")
        if messages := [line for line in output.splitlines() if not jobs.submitted(line)]:
            _log.info("\n".join(messages))
        number, cluster = submitted
    ids = {name: f"{number}_{i}" for name, i in tasks.items()}
    log = _log_file(machine, job, number)
    return Launch("slurm", number, cluster, log, machine.name, points=ids)


def _log_file(machine: Machine, job: SlurmJob, number: str) -> str:
    """Return the path of the job's output, with `*` for the task of an array; "" if only Slurm can tell."""
    pattern = directives.output(job)
    if pattern is None:
        name = f"{job.name}-{number}_*.log" if job.indices else f"{job.name}-{number}.log"
        return f"{machine.base}/{_LOGS}/{name}"
    known = {"x": job.name, "A": number, "%": "%"} | ({} if job.indices else {"j": number})
    path = re.sub(r"%([0-9]*[a-zA-Z%])", lambda match: known.get(match[1], "*"), pattern)
    return "" if "*" in path.rpartition("/")[0] else path


def _copy_to_machine(machine: Machine, copy: Path) -> str:
    """Put the copy and a directory for logs on sbatch's machine, and return the copy's path there."""
    directory, logs = f"{machine.base}/{snapshot.DIRECTORY}/{copy.name}", f"{machine.base}/{_LOGS}"
    if isinstance(machine, LoginNode):
        machine.facts(scripts.receive(directory, logs), f"make {directory} and {logs}")
        _log.info(f"sending {copy.name} to {machine.shown(directory)}")
        machine.send(copy, directory)
        return directory
    try:
        Path(logs).mkdir(exist_ok=True)
    except OSError as error:
        message = f"{logs}: {error.strerror}; Slurm would have nowhere to put the job's output"
        raise FileTroubleError(message) from None
    return directory


def preview(
    job: SlurmJob, bundle: Path, copy: Path, arguments: Sequence[str], points: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each copy and each command of submit(). Asks neither Slurm nor a login node.

    The warning that earlier starts have measured is known only if their directory is on this machine.
    """
    yield f"copy {bundle} to {short(str(copy))}"
    with control_machine(job, bundle.absolute().parent) as machine:
        directory = f"{machine.base}/{snapshot.DIRECTORY}/{copy.name}"
        if isinstance(machine, LoginNode):
            yield f"send {short(str(copy))} to {machine.shown(directory)}"
        warning = None if isinstance(machine, LoginNode) else _measured_warning(machine, job)
        words = [*_options(job, warning, _tasks(job, points)), _SCRIPT, *arguments]
        for action in ("--test-only", "--parsable"):
            yield f"+ {machine.shell_line(['sbatch', action, *words], directory)}"


def _tasks(job: SlurmJob, points: Sequence[str]) -> dict[str, int]:
    """Return the index of each of these points in the job's array."""
    return {name: i for i, name in enumerate(job.points) if name in points}


def _options(job: SlurmJob, warning: int | None, tasks: Mapping[str, int]) -> list[str]:
    # Relative to the copy, so that sbatch takes no % or backslash of a directory's name for a pattern.
    pattern = "%x-%A_%a.log" if job.indices else "%x-%j.log"
    signal = [] if warning is None else [f"--signal=B:USR1@{warning}"]
    own_log = directives.output(job) is not None
    array = [f"--array={','.join(map(str, tasks.values()))}{job.at_once}"] if tasks else []
    return [*([] if own_log else [f"--output=../../{_LOGS}/{pattern}"]), *signal, *array]


def _measured_warning(machine: Machine, job: SlurmJob) -> int | None:
    """Return the seconds before the time limit at which to stop, from the times of earlier starts.

    Returns None for an array, and if the spec sets the warning or its times. Returns None, too, if no times are on
    record, or if the warning would be more than half of the time limit.
    """
    if job.indices or any(t is not None for t in (job.warning, job.step_time, job.write_time)):
        return None
    directory = machine.checkpoints(job)
    job_state = state.read(machine.facts(scripts.checkpoint_facts(directory), f"read {directory}"))
    if job_state.longest_step_s is None or job_state.checkpoint_write_s is None:
        return None
    measured = replace(
        job, step_time=job_state.longest_step_s, write_time=job_state.checkpoint_write_s
    )
    warning = int(directives.warning_s(measured))
    return None if job.time is not None and warning > job.time / 2 else warning


def _sbatch(
    machine: Machine, argv: list[str], directory: str, variables: Mapping[str, str] = NOTHING
) -> ProgramResult:
    """Show the command and run it. Raise TargetUnavailableError if it gives no answer."""
    _log.info(f"+ {machine.shell_line(argv, directory)}")
    return machine.run(argv, directory, _SUBMIT_S, variables=variables)


def _refused(output: str, problem: str) -> TargetUnavailableError:
    return TargetUnavailableError("\n".join(filter(None, [output.rstrip("\n"), problem])))
