"""`ddpgen bench`: run the job at several shapes in turn, each in a fresh directory of its own.

Owns the changes of a shape to the job, the order of the runs, and the reading of a run's files. bench_table.py
evaluates the rows.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpgen import job
from ddpgen.errors import DdpgenError, TargetUnavailableError
from ddpgen.measure import probe
from ddpgen.measure.bench_table import BLOCK, WARM_UP, BenchRun, read
from ddpgen.monitor.places import Machine
from ddpgen.monitor.record import Following, write_launch
from ddpgen.programs import Interrupts
from ddpgen.spec.fields import Refused
from ddpgen.spec.job import JobSpec
from ddpgen.spec.reader import Reading
from ddpgen.spec.rules import conflicts
from ddpgen.spec.times import Period
from ddpgen.text.shell import as_argument
from ddpgen.tiers.registry import DEFAULT_TIER, TIERS

_log = logging.getLogger(__name__)
STEPS = 30
MIN_STEPS = WARM_UP + BLOCK
_STOPPED = 75
_STDERR = 2
_POLL_S = 3.0  # between two questions to a scheduler


class BrokenRunError(DdpgenError):
    """A run ended with exit code 0 and left nothing to measure."""


def default_shapes(job: JobSpec) -> tuple[str, ...]:
    """Return 1, 2 and 4 processes, as far as the job has micro-batches and the machine has processors for them."""
    limit = min(job.micro_batches, os.cpu_count() or 1)
    return tuple(str(count) for count in (1, 2, 4) if count <= limit)


def tier_of(shape: str) -> str:
    """Return the tier that a shape runs on."""
    return shape if shape in TIERS else DEFAULT_TIER


def shaped(reading: Reading, shape: str, steps: int | None) -> Reading:
    """Return the job at this shape, for so many steps. Raise Refused if the job cannot have the shape."""
    job = reading.job
    if job.train.program_field != "workload":
        raise Refused(
            f"train.{job.train.program_field} has a loop of its own, which cannot be cut to a few steps",
            "bench is for train.workload; ddpgen status tells the speed of a script",
        )
    steps = steps or min(STEPS, job.train.steps or STEPS)
    if steps < MIN_STEPS:
        problem = f"{steps} steps are too few to measure: the first {WARM_UP} do not count"
        raise Refused(problem, f"give at least --steps {MIN_STEPS}")
    changes: dict[str, Any] = {}
    if shape.isdigit():
        # gloo would compute on a GPU that it sees.
        env = {**job.env, "CUDA_VISIBLE_DEVICES": ""}
        procs = int(shape)
        changes = {"procs_per_node": procs, "gpus_per_node": None, "backend": "auto", "env": env}
    elif shape == "gpu" and not job.on_gpus:
        raise Refused(f"shape gpu: the job has no GPUs on {DEFAULT_TIER}", "write gpus_per_node: 1")
    train = replace(
        job.train, steps=steps, epochs=None, warmup_steps=min(job.train.warmup_steps, steps - 1),
        eval_every=0, best=None, early_stop=None, log_every=BLOCK, digest=False,
    )  # fmt: skip
    shaped_reading = probe.derived(reading, f"bench-{shape}", train=train, restarts=0, **changes)
    checkpoint = replace(shaped_reading.job.checkpoint, every=Period(None, 86400.0), keep=1)
    shaped_reading = shaped_reading._replace(
        job=replace(shaped_reading.job, checkpoint=checkpoint).single
    )
    for conflict in conflicts(shaped_reading.job):
        if conflict.fatal:
            raise Refused(f"shape {shape}: {conflict.problem}", conflict.remedy)
    return shaped_reading


def runs(
    shapes: Mapping[str, Reading], repeats: int, home: Path
) -> tuple[dict[str, list[BenchRun]], int]:
    """Run all shapes in turn, `repeats` times. Return the rows of each run by shape, and an exit code.

    The first run that fails ends the bench. So does Ctrl-C or SIGTERM, which the current run gets as well.
    """
    results: dict[str, list[BenchRun]] = {}
    with Interrupts() as interrupts:
        for number in range(repeats):
            for shape, reading in shapes.items():
                _log.info(f"bench: shape {shape}, run {number + 1} of {repeats}")
                try:
                    code, run = _run_once(reading, home, interrupts)
                except DdpgenError as error:
                    _log.error(f"bench: shape {shape}: {error}")
                    return results, error.exit_code
                if run is not None:
                    results.setdefault(shape, []).append(run)
                if interrupts.heard.is_set() or code:
                    note = "; the table is of the runs before" if results else ""
                    _log.info(f"bench: ended in shape {shape}{note}")
                    return results, _STOPPED if interrupts.heard.is_set() else code
    return results, 0


def _run_once(reading: Reading, home: Path, interrupts: Interrupts) -> tuple[int, BenchRun | None]:
    tier, job_spec = reading.tier, reading.job
    options = job.Render()
    job.write_bundle({tier: reading}, [tier], home, options)
    bundle = job.output_directory({tier: reading}, options)
    run = Following(job_spec, tier, bundle, None)
    with TIERS[tier].follow.checkpoint_locations(run) as machines:
        for machine, directory in machines:
            removal = machine.run(["rm", "-rf", "--", directory])
            if removal.code != 0:
                raise TargetUnavailableError(removal.output.strip())
    if interrupts.heard.is_set():
        return _STOPPED, None
    if TIERS[tier].start:
        start = as_argument(str(bundle / TIERS[tier].start))
        code = interrupts.run(["bash", start], stdout=_STDERR)
    else:
        code = _submitted(run, interrupts)
    if code:
        return code, None
    with TIERS[tier].follow.checkpoint_locations(run) as machines:
        result = _read(machines)
    if not result.done or not result.samples:
        raise BrokenRunError(
            f"{job_spec.name} has ended before its last step; ddpgen logs {bundle} says why"
        )
    return 0, result


def _submitted(run: Following, interrupts: Interrupts) -> int:
    """Submit the job and wait for its end, which comes within the job's time limit. Return the exit code."""
    tier = TIERS[run.tier]
    launch = tier.submit(run.job, run.bundle, [])
    write_launch(run.bundle, launch)
    run = run._replace(launched=launch)
    while tier.follow.is_live(run):
        if interrupts.heard.wait(_POLL_S):
            for line in tier.follow.stop(run, now=False):
                _log.info(line)
            return _STOPPED
    return 0


def _read(machines: Sequence[tuple[Machine, str]]) -> BenchRun:
    """Return the run, from the rows and the manifest on the host that had rank 0."""
    for machine, directory in machines:
        metrics, manifest = (
            machine.run(["cat", "--", f"{directory}/{name}"])
            for name in ("metrics.jsonl", "manifest.json")
        )
        if metrics.code == manifest.code == 0:
            return read(metrics.output, manifest.output)
    return read("", "")
