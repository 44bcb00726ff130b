"""The commands for launched jobs: status, logs, stop, doctor and report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddpgen.cli.shared import (
    FILE,
    JOB,
    JSON,
    ONLY,
    Count,
    cli,
    follow_options,
    given,
    tier_option,
    visible,
)
from ddpgen.errors import SpecUnreadableError

if TYPE_CHECKING:
    from ddpgen.monitor.record import Following


@cli.command()
@click.argument("job", metavar="[JOB]", required=False, type=click.Path())
@follow_options
@ONLY
@JSON
@click.option(
    "-w", "--watch", is_flag=True, help="Go on showing it until the job has ended, or Ctrl-C."
)
@click.option(
    "--interval", type=Count(1), metavar="SECONDS",
    help="How often --watch looks.  [default: 1 on local, 5 on hosts, 10 on slurm, 30 on sky]",
)  # fmt: skip
def status(
    job: str | None,
    target: str | None,
    output: Path | None,
    only: tuple[str, ...],
    as_json: bool,
    watch: bool,
    interval: int | None,
) -> None:
    """Show step, loss, speed, time left and newest checkpoint. Also show restarts, and where the weights are.

    JOB is a spec, a bundle or a checkpoint directory. Without --target the run that lives is found, else the newest.
    Without JOB, a table shows all jobs that were launched from here, those of the bundles in build/.
    --watch draws a screen on a terminal (pip install 'ddpgen[watch]'), and prints a line for each change elsewhere.

    \b
    Example:
      ddpgen status examples/gpt.yaml --watch
    """
    from ddpgen import api
    from ddpgen.monitor import report as reports
    from ddpgen.tiers import commands

    if watch and as_json:
        raise click.UsageError(
            "--watch is for people; for programs, ask with --json again and again."
        )
    if interval and not watch:
        raise click.UsageError("--interval goes with --watch; add that, or leave it out.")
    if job is None:
        if target or output or watch or only:
            raise click.UsageError(
                "--target, -o, --only and --watch go with a job; name it, or leave them out."
            )
        _all_launches(as_json)
        return
    meant = api.find_run(job, target, output, only)
    if watch:
        _watch(meant, interval)
        return
    if as_json:
        import json

        click.echo(json.dumps(api.status(meant)._asdict(), indent=1))
        return
    for line in reports.as_text(commands.status(meant).parts):
        click.echo(line)


def _all_launches(as_json: bool) -> None:
    from ddpgen import job
    from ddpgen.tiers import launches

    launched_jobs = list(launches.rows(Path(job.BUILD), job.bundle_jobs))
    if as_json:
        import json

        click.echo(json.dumps([launches.as_facts(row) for row in launched_jobs], indent=1))
        return
    if not launched_jobs:
        raise SpecUnreadableError(
            f"no job was launched from here, as {job.BUILD}/ has no record of one; name a spec, a bundle or a checkpoint directory"
        )
    for line in launches.as_text(launched_jobs):
        click.echo(line)


def _watch(meant: Following | Path, interval: int | None) -> None:
    from ddpgen.monitor import watch
    from ddpgen.tiers import commands

    title = str(meant) if isinstance(meant, Path) else f"{meant.job.name} on {meant.tier}"
    try:
        with commands.asking(meant) as ask:
            watch.watch(ask, title, interval or commands.interval_s(meant))
    except KeyboardInterrupt:
        sys.exit(130)


@cli.command()
@JOB
@follow_options
@ONLY
@click.option("-f", "--follow", is_flag=True, help="Go on showing what comes, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=Count(0), default=100, show_default=True, metavar="N",
    help="How many lines of the end; on hosts only together with --follow.",
)  # fmt: skip
def logs(
    job: str, target: str | None, output: Path | None, only: tuple[str, ...], follow: bool, lines: int
) -> None:  # fmt: skip
    """Show the end of a job's output. Also name the file that holds it.

    JOB is a spec, a bundle or a checkpoint directory. On local the output went to the terminal, so logs shows metrics.

    \b
    Example:
      ddpgen logs examples/gpt.yaml
    """
    from ddpgen import api
    from ddpgen.tiers import commands

    sys.exit(commands.logs(api.find_run(job, target, output, only), lines, follow))


@cli.command()
@JOB
@follow_options
@ONLY
@click.option(
    "--now", is_flag=True,
    help="On sky: give the machines back at once; without a checkpoint first.",
)  # fmt: skip
def stop(
    job: str, target: str | None, output: Path | None, only: tuple[str, ...], now: bool
) -> None:
    """Ask a job for a clean stop. A job that waits in a queue is taken out.

    JOB is a spec, a bundle or a checkpoint directory. The same launch resumes it.

    \b
    Example:
      ddpgen stop examples/gpt.yaml
    """
    from ddpgen import api
    from ddpgen.tiers import commands

    for line in commands.stop(api.find_run(job, target, output, only), now):
        click.echo(line)


@cli.command()
@JOB
@follow_options
@JSON
def doctor(job: str, target: str | None, output: Path | None, as_json: bool) -> None:
    """Find why a job hangs: the rank that the others wait for. Also show where each rank stands, and the network.

    JOB is a spec, a bundle or a checkpoint directory, which has to be on this machine. Exit code 0: all is well, or has
    ended well; 1: something is wrong.

    \b
    Example:
      ddpgen doctor build/checkpoints/gpt
    """
    from ddpgen.programs import become_module

    become_module("doctor", visible(job, target, output), given(json=as_json))


@cli.command()
@JOB
@tier_option("The tier.  [default: that of the newest run]")
@ONLY
@click.option(
    "-o", "--output", type=FILE, metavar="FILE",
    help="The page to write.  [default: report.html in the checkpoint directory]",
)  # fmt: skip
def report(job: str, target: str | None, only: tuple[str, ...], output: Path | None) -> None:
    """Write a run as one page: curves, ranks, starts. It also has the checkpoints, and how each start ended.

    For a sweep, the page has a table of the points, the best first, and their curves laid over each other.

    JOB is a spec, a bundle or a checkpoint directory, which has to be on this machine. The curves need matplotlib
    (pip install 'ddpgen[plot]').

    \b
    Example:
      ddpgen report examples/gpt.yaml -o report.html
    """
    from ddpgen import api
    from ddpgen.programs import become_module
    from ddpgen.tiers import commands

    place = output.absolute() if output else None
    first, *more = commands.directories(api.find_run(job, target, None, only))
    become_module("report", first, given(output=place), *more)
