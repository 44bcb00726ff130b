"""The commands that predict or measure a job's speed: predict, probe and bench."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddpgen import __version__
from ddpgen.cli.shared import (
    FILE,
    JSON,
    ONE_TIER,
    PLOT,
    Count,
    HostTime,
    Quantity,
    checked,
    cli,
    refusals,
    spec_argument,
    tier_option,
)
from ddpgen.errors import FileTroubleError

if TYPE_CHECKING:
    from ddpgen.measure.cost import Link
    from ddpgen.site.layers import Chosen

_log = logging.getLogger(__name__)


@cli.command()
@spec_argument
@tier_option("The tier.  [default: the first with several machines]")
@click.option(
    "--params", "parameters", type=Quantity("many"), metavar="NUMBER",
    help="Parameters that are trained, like 760M.  [default: counted, or of the newest run]",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]),
    help="The type in which gradients are sent.  [default: the spec's]",
)  # fmt: skip
@click.option(
    "--link", type=Quantity("link"), metavar="LINK",
    help='1GbE, 2.5GbE, 10GbE, 100G, 400G, NVLink or a rate like "300 Mbit/s".  [default: 1GbE; with GPUs 100G]',
)  # fmt: skip
@click.option(
    "--efficiency", type=Quantity("fraction"), default="0.85", show_default=True, metavar="PART",
    help="The part of a link's rate that gradients get.",
)  # fmt: skip
@click.option(
    "--step-time", "step_times", type=HostTime(), multiple=True, metavar="[HOST=]TIME",
    help="Computing time of a step, of the slowest process or of each host.  [default: the newest run's]",
)  # fmt: skip
@click.option(
    "--preempted-every", type=Quantity("seconds"), metavar="TIME",
    help="How often a machine is lost.  [default: the spec's]",
)  # fmt: skip
@click.option(
    "--checkpoint-time", type=Quantity("seconds"), metavar="TIME",
    help="How long a checkpoint takes until it is safe.",
)  # fmt: skip
@click.option(
    "--restart-time", type=Quantity("seconds"), default="5min", show_default=True, metavar="TIME",
    help="How long a start takes after a loss.",
)  # fmt: skip
@click.option("--price", type=Quantity("price"), help="Of an hour of all machines, on demand.")
@click.option("--spot-price", type=Quantity("price"), help="The same, as spot machines.")
@JSON
@PLOT
def predict(
    spec: str, chosen: Chosen, target: str | None, as_json: bool, plot: Path | None, **asked: Any
) -> None:
    """Estimate the cost of a step before you run it. Show each link, more nodes, and what would help.

    Nothing is run. The page uses and names the measurements of the job's newest run on this machine.

    \b
    Example:
      ddpgen predict examples/gpt.yaml --link 1GbE --step-time 100ms
    """
    from ddpgen import job
    from ddpgen.measure import measured, page, predict

    _refuse_other_pictures(plot)
    readings, tiers = checked(spec, target or "all", chosen)
    jobs = {tier: reading.job for tier, reading in readings.items()}
    run = measured.newest(jobs.values(), job.rendered_directory(readings, None))
    asked["step_times"] = _each_once(asked["step_times"])
    tier = target or predict.choose_tier({tier: jobs[tier] for tier in tiers})
    with refusals():
        prediction = predict.predict(jobs, tier, predict.PredictOptions(**asked), run)
    if plot is not None:
        from ddpgen.measure import plot as pictures

        pictures.prediction(prediction, plot)
        _log.info(f"wrote {plot}")
    click.echo(page.as_json(prediction) if as_json else page.as_text(prediction))


@cli.command()
@spec_argument
@ONE_TIER
@JSON
def probe(spec: str, chosen: Chosen, target: str, as_json: bool) -> None:
    """Measure network and collectives by the job's own launch. Nothing is trained.

    Says how much of the network an all-reduce and the job's own reduction take, which pair of hosts is slow, and
    which host computes other bits. The job is untouched: the probe has a name and a directory of its own. On slurm
    and sky it is submitted.

    \b
    Example:
      ddpgen probe examples/gpt.yaml --target local
    """
    from ddpgen import job
    from ddpgen.measure import probe
    from ddpgen.monitor import record
    from ddpgen.programs import Interrupts
    from ddpgen.text.shell import as_argument
    from ddpgen.tiers.registry import TIERS

    here = [name for name, tier in TIERS.items() if tier.start]
    if as_json and target not in here:
        raise click.UsageError(
            f"--json goes with {' and '.join(here)}; on {target} the figures stay there."
        )
    readings, tiers = checked(spec, target, chosen)
    probed = {target: probe.probed(readings[target])}
    how = job.Render()
    job.write_bundle(probed, tiers, Path(spec).parent, how)
    bundle = job.output_directory(probed, how)
    tier = TIERS[target]
    if not tier.start:
        launched = tier.submit(probed[target].job, bundle, ["--probe"])
        click.echo(launched.job)
        record.write_launch(bundle, launched)
        _log.info(f"next: ddpgen logs {bundle} --follow")
        return
    start = ["bash", as_argument(str(bundle / tier.start))]
    # --fetch brings the figures from the hosts.
    figures = record.checkpoints(probed[target].job, bundle.absolute().parent) / probe.PROBE
    with contextlib.suppress(OSError):
        figures.unlink()  # an earlier probe's, because this one may end without figures
    # Standard output is for the figures alone, if a program reads it.
    output = sys.stderr.fileno() if as_json else None
    with Interrupts() as interrupts:
        code = interrupts.run([*start, "--probe"], output)
        if tier.fetch_option and code in (0, 75):
            interrupts.run([*start, tier.fetch_option], output)
    # A launch that was refused has no figures, and its exit code says why.
    if as_json and (code == 0 or figures.exists()):
        click.echo(probe.read(figures), nl=False)
    sys.exit(code)


@cli.command()
@spec_argument
@click.option(
    "--shapes", type=Quantity("shapes"), metavar="LIST",
    help="Numbers of processes here on CPUs, gpu, hosts, slurm.  [default: 1,2,4 as far as they fit]",
)  # fmt: skip
@click.option(
    "--repeats",
    type=Count(1, 100),
    default=3,
    show_default=True,
    help="Runs of each shape.",
)
@click.option("--steps", type=Count(1, 1000), help="Of each run.  [default: 30, or the spec's]")
@click.option(
    "--link", type=Quantity("link"), metavar="LINK",
    help="Between hosts, as for predict: adds the predicted step. Needs the shape 1, too.",
)  # fmt: skip
@click.option(
    "--efficiency", type=Quantity("fraction"), default="0.85", show_default=True, metavar="PART",
    help="The part of that link's rate that gradients get.",
)  # fmt: skip
@JSON
@click.option("--markdown", "markdown_to", type=FILE, metavar="FILE", help="Also, as Markdown.")
@PLOT
def bench(
    spec: str, chosen: Chosen, shapes: tuple[str, ...] | None, repeats: int, steps: int | None, link: Link | None,
    efficiency: float, as_json: bool, markdown_to: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Run a job at several shapes, and compare the speed. Each run takes a few steps; waiting and losses are shown too.

    The job is untouched: each shape has a name and a directory of its own, NAME-bench-SHAPE, emptied before each run.
    The table goes to stdout, what the runs say to stderr. With --json the table goes to stderr, too. Ctrl-C stops it; the
    table is then of the runs so far. Exit code 1: a run failed, or the losses differ and must not.

    \b
    Example:
      ddpgen bench examples/gpt.yaml --shapes 1,2 --repeats 1
    """
    from ddpgen import job
    from ddpgen.measure import bench as benched
    from ddpgen.measure import bench_table
    from ddpgen.measure import plot as pictures
    from ddpgen.tiers.registry import DEFAULT_TIER

    _refuse_other_pictures(plot)
    if plot is not None:
        pictures.need()
    if shapes is None:
        readings = job.load(spec, chosen)
        job.resolve(DEFAULT_TIER, readings)
        shapes = benched.default_shapes(readings[DEFAULT_TIER].job)
    wanted = dict.fromkeys(map(benched.tier_of, shapes))
    tiers = {tier: checked(spec, tier, chosen)[0][tier] for tier in wanted}
    with refusals():
        made = {
            shape: benched.shaped(tiers[benched.tier_of(shape)], shape, steps) for shape in shapes
        }
    runs, code = benched.runs(made, repeats, Path(spec).parent)
    if not runs:
        sys.exit(code)
    jobs = {shape: (reading.tier, reading.job) for shape, reading in made.items()}
    machine = {"processors": os.cpu_count(), "ddpgen": __version__}
    name = next(iter(tiers.values())).job.name
    table = bench_table.make(jobs, runs, machine, name, link, efficiency)
    click.echo(bench_table.as_text(table), err=as_json)
    if as_json:
        click.echo(bench_table.as_json(table))
    if markdown_to is not None:
        _write(markdown_to, bench_table.as_markdown(table))
    if plot is not None:
        pictures.bench(table, plot)
        _log.info(f"wrote {plot}")
    sys.exit(code or (0 if table.agree else 1))


def _each_once(times: tuple[tuple[str, float], ...]) -> dict[str, float]:
    for name, _ in times:
        if [each for each, _ in times].count(name) > 1:
            which = f" of {name}" if name else ""
            raise click.UsageError(f"--step-time{which} is given twice; give it once.")
    return dict(times)


def _refuse_other_pictures(file: Path | None) -> None:
    if file is not None and file.suffix not in (".svg", ".png"):
        raise click.UsageError(f"--plot: {file} ends neither in .svg nor in .png; name it so.")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text.rstrip("\n") + "\n", "utf-8")
    except OSError as error:
        raise FileTroubleError(f"{file}: {error.strerror}; name another file") from None
    _log.info(f"wrote {file}")
