"""The commands: parse, call, print. Results go to stdout, everything said about them to stderr.

Whatever only one command needs is imported inside it: `ddpgen render` has to start in a blink.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddpgen import __version__
from ddpgen.errors import BugError, DdpgenError, FileTroubleError
from ddpgen.errors import report as lines_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddpgen.job import Render
    from ddpgen.monitor.record import Following, Launched
    from ddpgen.plan.cost import Link
    from ddpgen.spec.job import JobSpec
    from ddpgen.spec.reader import Reading


class _Place(click.Path):
    """A path to write to; the empty one, from a variable that is not set, means no place."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not str(value):
            self.fail("it is empty; give a directory.", param, ctx)
        return super().convert(value, param, ctx)


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A number with its unit, as the function of this name in plan/quantities.py reads it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from ddpgen.plan import quantities
        from ddpgen.spec.fields import Refused

        try:
            return getattr(quantities, self.name)(value) if isinstance(value, str) else value
        except Refused as refused:
            self.fail(f"{refused.what}; {refused.remedy}.", param, ctx)


_SPEC = click.argument("spec", metavar="SPEC")
_FILE = _Place(path_type=Path, dir_okay=False)
_OUTPUT = click.option(
    "-o", "--output", type=_Place(path_type=Path), metavar="DIR",
    help="The bundle's directory.  [default: build/<name>]",
)  # fmt: skip
_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_HELP)
@click.version_option(__version__, prog_name="ddpgen", message="%(prog)s %(version)s")
def cli() -> None:
    """One YAML job spec in, launch artefacts for every tier out.

    \b
    Example:
      ddpgen init -o job.yaml && ddpgen launch job.yaml --target local
    """


def main() -> None:
    """The console script: run the command line and end the process at once.

    A command lives for a tenth of a second: collecting garbage and taking the interpreter apart
    piece by piece at the end would cost a fifth of that and free nothing that exit does not.
    """
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # what the terminal cannot show is no reason to end
            stream.reconfigure(errors="backslashreplace")
    code = run()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = FileTroubleError.exit_code
    os._exit(code)


def run() -> int:
    """Run the command that sys.argv names; whatever goes wrong becomes words and an exit code."""
    try:
        code = cli.main(prog_name="ddpgen", standalone_mode=False)
    except SystemExit as ended:  # how click ends a completion
        code = ended.code
    except click.exceptions.Abort:
        click.echo("aborted", err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except DdpgenError as error:
        click.echo(f"{error}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        code = FileTroubleError.exit_code
    except Exception as error:  # noqa: BLE001 (no traceback ever reaches the user)
        code = _explain_bug(error)
    return code if isinstance(code, int) else 0


def _explain_bug(error: Exception) -> int:
    if os.environ.get("DDPGEN_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    click.echo(
        f"this is a bug in ddpgen {__version__}, not in your spec: "
        f"{type(error).__name__}: {error}\n"
        "please report it with the spec and what DDPGEN_TRACEBACK=1 prints",
        err=True,
    )
    return BugError.exit_code


def _target_option(command: Any) -> Any:
    says = "The tier to render for: local, hosts, slurm, sky, or all the spec has."
    return click.option("--target", required=True, metavar="TIER", help=says)(command)


def _render_options(command: Any) -> Any:
    for option in (
        click.option(
            "--max-code-mib", "limit_mib", default=100, show_default=True,
            help="Refuse to copy more code than this.",
        ),
        click.option("--force", is_flag=True, help="Give up edits made by hand in the bundle."),
        click.option(
            "--templates", type=click.Path(path_type=Path, exists=True, file_okay=False),
            metavar="DIR", help="Templates that replace ours by name, or extend them by block.",
        ),
        _OUTPUT,
    ):  # fmt: skip
        command = option(command)
    return command


@cli.command()
@_SPEC
@_target_option
@_render_options
@click.option("--stdout", is_flag=True, help="Print the one artefact; write nothing.")
def render(spec: str, target: str, stdout: bool, **options: Any) -> None:
    """Write the bundle that launches a job: scripts, training module, your code.

    \b
    Example:
      ddpgen render examples/gpt.yaml --target local
    """
    from ddpgen import job

    how = job.Render(**options)
    if stdout:
        if target == "all":
            raise click.UsageError("--stdout prints one artefact: name one tier, not all.")
        readings, tiers = _checked(spec, target)
        click.echo(job.artefacts(readings, tiers, how.templates)[0].text.encode(), nl=False)
        return
    _, directory, starts = _render(spec, target, how)
    click.echo(directory)
    for start in starts:
        click.echo(f"next: {start}", err=True)


def _render(spec: str, target: str, how: Render) -> tuple[Mapping[str, Reading], Path, list[str]]:
    """Write the bundle and say so; returns the spec, its directory and the commands that start it."""
    import shlex

    from ddpgen import job

    readings, tiers = _checked(spec, target)
    rendered, written = job.write_bundle(readings, tiers, Path(spec).parent, how)
    directory = job.output_directory(readings, how)
    verb = "wrote" if written.changed else "unchanged:"
    click.echo(f"{verb} {directory} ({written.files} files)", err=True)
    if written.dropped:
        gone = ", ".join(written.dropped)
        told = f"it no longer holds what was rendered for {gone}; --target all renders every tier"
        click.echo(told, err=True)
    bundle = shlex.quote(_as_argument(directory))
    starts = [artefact.start.format(bundle=bundle) for artefact in rendered if artefact.start]
    return readings, directory, starts


def _as_argument(path: Path) -> str:
    """A path that no program takes for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def _checked(spec: str, target: str) -> tuple[Mapping[str, Reading], list[str]]:
    """The spec, and the tiers that are meant; what is doubtful about it for them is said."""
    from ddpgen import job

    readings = job.load(spec)
    tiers = job.resolve(target, readings)
    for line in lines_of(spec, job.check([readings[tier] for tier in tiers], Path(spec).parent)):
        click.echo(line, err=True)
    return readings, tiers


@cli.command()
@_SPEC
@_target_option
@_render_options
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(spec: str, target: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Render a job and run it; each command is echoed with a + before it runs.

    Arguments after -- are added to the training command. The exit code is the job's: 0 done,
    1 failed, 75 stopped cleanly (the same command goes on from what is saved). On slurm and sky the job is submitted,
    as a copy that rendering again does not touch, and its id is printed.

    \b
    Example:
      ddpgen launch examples/gpt.yaml --target local -- --steps=50
    """
    from ddpgen import job
    from ddpgen.launch import START, become
    from ddpgen.monitor import record

    if target == "all":
        raise click.UsageError("launch runs one tier: name it.")
    readings, directory, _ = _render(spec, target, job.Render(**options))
    if target in START:
        record.remember(directory, record.Launched(target))
        become(["bash", _as_argument(directory / START[target]), *arguments])
    launched = _submit(readings[target].job, directory, arguments)
    click.echo(launched.job)
    record.remember(directory, launched)
    for following in ("status", "logs --follow", "stop"):
        click.echo(f"next: ddpgen {following} {_named(spec, options['output'])}", err=True)


def _submit(job: JobSpec, directory: Path, arguments: Sequence[str]) -> Launched:
    from ddpgen.monitor import submit_sky, submit_slurm
    from ddpgen.spec.sky import SkyJob
    from ddpgen.spec.slurm import SlurmJob

    if isinstance(job, SkyJob):
        return submit_sky.submit(job, directory, arguments)
    assert isinstance(job, SlurmJob)
    return submit_slurm.submit(job, directory, arguments)


def _named(spec: str, output: Path | None) -> str:
    """The spec and, where it lies elsewhere, the bundle, as words for a shell."""
    import shlex

    words = [_as_argument(Path(spec)), *(["-o", str(output)] if output else [])]
    return shlex.join(words)


_JOB = click.argument("job", metavar="JOB")


def _follow_options(command: Any) -> Any:
    says = "The tier.  [default: the one where it runs, else of the newest run]"
    return _OUTPUT(click.option("--target", metavar="TIER", help=says)(command))


def _following(name: str, target: str | None, output: Path | None) -> Following | Path:
    """Which job is meant, on which tier; a checkpoint directory as it is."""
    from ddpgen import job
    from ddpgen.bundle.write import LISTING
    from ddpgen.monitor import commands

    if target == "all":
        raise click.UsageError("name one tier, not all.")
    if not os.path.isdir(name):
        readings = job.load(name)
        bundle = job.output_directory(readings, job.Render(output=output))
        jobs = {tier: reading.job for tier, reading in readings.items()}
        if target is not None:
            job.resolve(target, readings)
    elif output is not None:
        raise click.UsageError("-o goes with a spec, not with a directory.")
    elif os.path.exists(os.path.join(name, LISTING)):
        bundle = Path(name)
        jobs = job.of_bundle(bundle)
        if target is not None and target not in jobs:
            raise click.UsageError(f"{name} was rendered for {', '.join(jobs)}, not for {target}.")
    elif target is not None:
        raise click.UsageError("--target goes with a spec or a bundle.")
    else:
        return commands.checkpoint_directory(Path(name))
    return commands.choose(jobs, bundle, target)


@cli.command()
@_JOB
@_follow_options
@click.option("--json", "as_json", is_flag=True, help="For programs instead of people.")
@click.option(
    "-w", "--watch", is_flag=True, help="Go on showing it until the job has ended, or Ctrl-C."
)
@click.option(
    "--interval", type=click.IntRange(1), metavar="SECONDS",
    help="How often --watch looks.  [default: 1 on local, 5 on hosts, 10 on slurm, 30 on sky]",
)  # fmt: skip
def status(
    job: str,
    target: str | None,
    output: Path | None,
    as_json: bool,
    watch: bool,
    interval: int | None,
) -> None:
    """Say how a job stands: step, loss, speed, time left, restarts, where the weights are.

    JOB is a spec, a bundle or a checkpoint directory. Without --target the run that lives is found, else the newest.
    --watch draws a screen on a terminal (pip install 'ddpgen[watch]'), and prints a line for each change elsewhere.

    \b
    Example:
      ddpgen status examples/gpt.yaml --watch
    """
    from ddpgen.monitor import commands
    from ddpgen.monitor import report as reports

    if watch and as_json:
        raise click.UsageError(
            "--watch is for people; for programs, ask with --json again and again."
        )
    if interval and not watch:
        raise click.UsageError("--interval goes with --watch.")
    following = _following(job, target, output)
    if watch:
        _watch(following, interval)
        return
    said = commands.status(following, captured=as_json).said
    if as_json:
        import json

        tier = None if isinstance(following, Path) else following.tier
        click.echo(json.dumps({"tier": tier, **reports.as_json(said)}, indent=1))
        return
    for line in reports.as_text(said):
        click.echo(line)


def _watch(following: Following | Path, interval: int | None) -> None:
    from ddpgen.monitor import commands, watch

    tier, title = "local", str(following)
    if not isinstance(following, Path):
        tier, title = following.tier, f"{following.job.name} on {following.tier}"
    try:
        with commands.asking(following) as ask:
            watch.watch(ask, title, interval or watch.INTERVAL_S[tier])
    except KeyboardInterrupt:
        sys.exit(130)


@cli.command()
@_JOB
@_follow_options
@click.option("-f", "--follow", is_flag=True, help="Go on showing what comes, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=100, show_default=True, metavar="N",
    help="How many lines of the end; on hosts only together with --follow.",
)  # fmt: skip
def logs(job: str, target: str | None, output: Path | None, follow: bool, lines: int) -> None:
    """Show the end of what a job has said, and where that is kept.

    JOB is a spec, a bundle or a checkpoint directory. On local it went to the terminal; its metrics are shown instead.

    \b
    Example:
      ddpgen logs examples/gpt.yaml
    """
    from ddpgen.monitor import commands

    sys.exit(commands.logs(_following(job, target, output), lines, follow))


@cli.command()
@_JOB
@_follow_options
@click.option(
    "--now", is_flag=True,
    help="On sky: give the machines back at once; without a checkpoint first.",
)  # fmt: skip
def stop(job: str, target: str | None, output: Path | None, now: bool) -> None:
    """Ask a job for a clean stop; one that waits in a queue is taken out.

    JOB is a spec, a bundle or a checkpoint directory. The same launch goes on from what is saved.

    \b
    Example:
      ddpgen stop examples/gpt.yaml
    """
    from ddpgen.monitor import commands

    for line in commands.stop(_following(job, target, output), now):
        click.echo(line)


@cli.command()
@_SPEC
@click.option("--target", default="all", metavar="TIER", help="Only for this tier.")
def validate(spec: str, target: str) -> None:
    """Check a spec and say everything that is wrong with it at once.

    \b
    Example:
      ddpgen validate examples/gpt.yaml
    """
    _, tiers = _checked(spec, target)
    click.echo(f"{spec}: valid for {', '.join(tiers)}")


@cli.command()
@_SPEC
@click.option("--target", default="local", show_default=True, metavar="TIER", help="The tier.")
@click.option("--json", "as_json", is_flag=True, help="For programs instead of people.")
def plan(spec: str, target: str, as_json: bool) -> None:
    """Show who does what: nodes, ranks, micro-batches, rendezvous, the command.

    \b
    Example:
      ddpgen plan examples/gpt.yaml
    """
    from ddpgen.plan import tables

    readings, tiers = _checked(spec, target)
    show = tables.as_json if as_json else tables.as_text
    click.echo("\n".join(show(readings[tier].job, tier) for tier in tiers))


@cli.command()
@_SPEC
@click.option(
    "--target", metavar="TIER", help="The tier.  [default: the first with several machines]"
)
@click.option(
    "--params",
    "parameters",
    type=_Quantity("many"),
    metavar="NUMBER",
    help="Parameters that are trained, like 760M.  [default: counted, or of the newest run]",
)
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "bf16", "fp16"]),
    help="How gradients are sent.  [default: as the spec has them sent]",
)
@click.option(
    "--link",
    type=_Quantity("link"),
    metavar="LINK",
    help='1GbE, 2.5GbE, 10GbE, 100G, 400G, NVLink or a rate like "300 Mbit/s".  [default: 1GbE; with GPUs 100G]',
)
@click.option(
    "--efficiency",
    type=_Quantity("fraction"),
    default="0.85",
    show_default=True,
    metavar="PART",
    help="What gradients get of a link's rate.",
)
@click.option(
    "--step-time",
    "step_times",
    type=_Quantity("step_time"),
    multiple=True,
    metavar="[HOST=]TIME",
    help="What the slowest process computes for in a step, or each host.  [default: the newest run's]",
)
@click.option(
    "--preempted-every",
    type=_Quantity("seconds"),
    metavar="TIME",
    help="How often a machine is lost.  [default: the spec's]",
)
@click.option(
    "--checkpoint-time",
    type=_Quantity("seconds"),
    metavar="TIME",
    help="How long a checkpoint takes until it is safe.",
)
@click.option(
    "--restart-time",
    type=_Quantity("seconds"),
    default="5min",
    show_default=True,
    metavar="TIME",
    help="How long a start takes after a loss.",
)
@click.option("--price", type=_Quantity("price"), help="Of an hour of all machines, on demand.")
@click.option("--spot-price", type=_Quantity("price"), help="The same, as spot machines.")
@click.option("--json", "as_json", is_flag=True, help="For programs instead of people.")
@click.option(
    "--plot", type=_FILE, metavar="FILE",
    help="Draw it, too: FILE.svg or FILE.png (needs matplotlib).",
)  # fmt: skip
def predict(spec: str, target: str | None, as_json: bool, plot: Path | None, **asked: Any) -> None:
    """Say what a step will cost: communication on each link, scaling over nodes, what would help.

    Nothing is run. What the newest run of the job on this machine has measured is used, and named.

    \b
    Example:
      ddpgen predict examples/gpt.yaml --link 1GbE --step-time 100ms
    """
    from ddpgen import job, measured, predict, predict_page
    from ddpgen.spec.fields import Refused

    if target == "all":
        raise click.UsageError("predict is for one tier: name it.")
    _refuse_other_pictures(plot)
    readings, tiers = _checked(spec, target or "all")
    jobs = {tier: reading.job for tier, reading in readings.items()}
    run = measured.newest(jobs.values(), job.output_directory(readings, job.Render()))
    asked["step_times"] = dict(asked["step_times"])
    tier = target or predict.choose_tier({tier: jobs[tier] for tier in tiers})
    try:
        found = predict.predict(jobs, tier, predict.Asked(**asked), run)
    except Refused as refused:
        raise click.UsageError(f"{refused.what}; {refused.remedy}.") from None
    if plot is not None:
        from ddpgen import plot as pictures

        pictures.prediction(found, plot)
        click.echo(f"wrote {plot}", err=True)
    click.echo(predict_page.as_json(found) if as_json else predict_page.as_text(found))


@cli.command()
@_SPEC
@_target_option
@click.option(
    "--json", "to", type=_FILE, metavar="FILE",
    help="Also copy the figures there.",
)  # fmt: skip
def probe(spec: str, target: str, to: Path | None) -> None:
    """Measure the network and the collectives of a job before it trains, in the same launch.

    Says how much of the network an all-reduce and the job's own reduction take, which pair of hosts is slow, and
    which host computes other bits. The job is untouched: the probe has a name and a directory of its own. On slurm
    and sky it is submitted.

    \b
    Example:
      ddpgen probe examples/gpt.yaml --target local
    """
    from ddpgen import job, probe
    from ddpgen.launch import START, Interrupts
    from ddpgen.monitor import record

    if target == "all":
        raise click.UsageError("a probe runs on one tier: name it.")
    if to is not None and target not in START:
        raise click.UsageError(
            f"--json goes with {' and '.join(START)}; on {target} the figures stay there."
        )
    readings, tiers = _checked(spec, target)
    probed = {target: probe.probed(readings[target])}
    how = job.Render()
    job.write_bundle(probed, tiers, Path(spec).parent, how)
    bundle = job.output_directory(probed, how)
    if target not in START:
        launched = _submit(probed[target].job, bundle, ["--probe"])
        click.echo(launched.job)
        record.remember(bundle, launched)
        click.echo(f"next: ddpgen logs {bundle} --follow", err=True)
        return
    start = ["bash", _as_argument(bundle / START[target])]
    figures = probe.results(probed[target].job, bundle) / probe.PROBE
    with contextlib.suppress(OSError):
        figures.unlink()  # of an earlier probe, should this one end before it has any
    with Interrupts() as interrupts:
        code = interrupts.run([*start, "--probe"])
        if target == "hosts" and code in (0, 75):
            interrupts.run([*start, "--fetch"])
    if to is not None:
        probe.copy(figures, to)
    sys.exit(code)


@cli.command()
@_SPEC
@click.option(
    "--shapes", type=_Quantity("shapes"), metavar="LIST",
    help="Numbers of processes here on CPUs, gpu, hosts, slurm.  [default: 1,2,4 as far as they fit]",
)  # fmt: skip
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Runs of each shape.",
)
@click.option(
    "--steps", type=click.IntRange(1, 1000), help="Of each run.  [default: 30, or the spec's]"
)
@click.option(
    "--link", type=_Quantity("link"), metavar="LINK",
    help="Between hosts, as for predict: adds what is predicted; takes the shape 1, too.",
)  # fmt: skip
@click.option(
    "--efficiency", type=_Quantity("fraction"), default="0.85", show_default=True, metavar="PART",
    help="What gradients get of that link's rate.",
)  # fmt: skip
@click.option("--json", "json_to", type=_FILE, metavar="FILE", help="Also write it for programs.")
@click.option("--markdown", "markdown_to", type=_FILE, metavar="FILE", help="Also, as Markdown.")
@click.option(
    "--plot", type=_FILE, metavar="FILE",
    help="Draw it, too: FILE.svg or FILE.png (needs matplotlib).",
)  # fmt: skip
def bench(
    spec: str, shapes: tuple[str, ...] | None, repeats: int, steps: int | None, link: Link | None,
    efficiency: float, json_to: Path | None, markdown_to: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Run a job at several shapes for a few steps each, and compare: speed, waiting, efficiency, losses.

    The job is untouched: each shape has a name and a directory of its own, NAME-bench-SHAPE, emptied before each run.
    The table goes to stdout, what the runs say to stderr. Ctrl-C stops it; the table is then of the runs so far. Exit
    code 1: a run failed, or the losses differ and must not.

    \b
    Example:
      ddpgen bench examples/gpt.yaml --shapes 1,2 --repeats 1
    """
    from ddpgen import bench as benched
    from ddpgen import bench_table, job
    from ddpgen import plot as pictures
    from ddpgen.spec.fields import Refused

    _refuse_other_pictures(plot)
    if plot is not None:
        pictures.need()
    if shapes is None:
        readings = job.load(spec)
        job.resolve("local", readings)
        shapes = benched.default_shapes(readings["local"].job)
    wanted = dict.fromkeys(map(benched.tier_of, shapes))
    tiers = {tier: _checked(spec, tier)[0][tier] for tier in wanted}
    try:
        made = {
            shape: benched.shaped(tiers[benched.tier_of(shape)], shape, steps) for shape in shapes
        }
    except Refused as refused:
        raise click.UsageError(f"{refused.what}; {refused.remedy}.") from None
    runs, code = benched.runs(made, repeats, Path(spec).parent)
    if not runs:
        sys.exit(code)
    jobs = {shape: (reading.tier, reading.job) for shape, reading in made.items()}
    machine = {"processors": os.cpu_count(), "ddpgen": __version__}
    name = next(iter(tiers.values())).job.name
    found = bench_table.make(jobs, runs, machine, name, link, efficiency)
    click.echo(bench_table.as_text(found))
    for place, text in (
        (json_to, bench_table.as_json(found)),
        (markdown_to, bench_table.as_markdown(found)),
    ):
        if place is not None:
            _write(place, text)
    if plot is not None:
        pictures.bench(found, plot)
        click.echo(f"wrote {plot}", err=True)
    sys.exit(code or (0 if found.agree else 1))


def _refuse_other_pictures(file: Path | None) -> None:
    if file is not None and file.suffix not in (".svg", ".png"):
        raise click.UsageError(f"--plot: {file} ends neither in .svg nor in .png; name it so.")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text.rstrip("\n") + "\n", "utf-8")
    except OSError as error:
        raise FileTroubleError(f"{file}: {error.strerror}; name another file") from None
    click.echo(f"wrote {file}", err=True)


@cli.command()
@_SPEC
@click.option(
    "-r", "--requirement", "requirements", type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE", help="Lock what this file asks for.  [default: what the job's Python has here]",
)  # fmt: skip
@click.option("--container", metavar="IMAGE", help="Lock a container, NAME@sha256:DIGEST, instead.")
@click.option(
    "-o", "--output", type=_FILE, metavar="FILE",
    help="The file to write.  [default: NAME.lock beside the spec NAME.yaml]",
)  # fmt: skip
def lock(spec: str, requirements: Path | None, container: str | None, output: Path | None) -> None:
    """Write down what a job runs with: each package with its version and hashes, or a container.

    Without -r it is what `python` of the spec has on this machine: python3 on the PATH, if the spec names none. uv
    resolves it where that is installed, else pip. With `environment: locked` in the spec the bundle brings the lock
    along, and each host installs from it once.

    \b
    Example:
      ddpgen lock examples/gpt.yaml --container \
        torch@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
    """
    from ddpgen import job
    from ddpgen import lock as locks
    from ddpgen.bundle import lock as form
    from ddpgen.spec.fields import Refused

    if container is not None and requirements is not None:
        raise click.UsageError(
            "a lock is of packages or of a container: leave out -r or --container."
        )
    of = next(iter(job.load(spec).values())).job
    file = output or form.place(spec)
    if container is not None:
        try:
            facts, lines = locks.container(container), list[str]()
        except Refused as refused:
            raise click.UsageError(f"{refused.what}; {refused.remedy}.") from None
    else:
        facts, lines = locks.packages(of, requirements, file.parent)
        if not any(line.startswith("torch==") for line in lines):
            click.echo("torch is not among them, and the job needs it", err=True)
    locks.write(file, spec, facts, lines)
    click.echo(file)
    click.echo(f"with environment: locked in {spec} a job installs from it", err=True)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors.

    \b
    Example:
      ddpgen schema > ddpgen.schema.json
    """
    import json

    from ddpgen.resources import document
    from ddpgen.spec.schema import REFERENCE, json_schema

    click.echo(json.dumps(json_schema(document(REFERENCE)), indent=2, ensure_ascii=False))


@cli.command()
@click.option("--name", help="The job's name.")
@click.option("--workload", help="gpt, mnist, toy, or FILE.py:FUNCTION of your own.")
@click.option(
    "--script", type=click.Path(path_type=Path), help="A training script of your own, as it is."
)
@click.option("--procs", type=click.IntRange(1, 1024), help="Processes on this machine.")
@click.option("--steps", type=click.IntRange(1), help="Optimizer steps to train.")
@click.option(
    "-o", "--output", default="job.yaml", show_default=True, metavar="FILE",
    type=click.Path(path_type=Path), help="The file to write; never one that exists.",
)  # fmt: skip
def init(output: Path, script: Path | None, **answers: Any) -> None:
    """Write a commented spec that validates; asks on a terminal for what no flag gives.

    \b
    Example:
      ddpgen init --name demo --workload gpt --procs 2 --steps 200 -o demo.yaml
      ddpgen init --script nanoGPT/train.py -o nanogpt.yaml
    """
    import shlex

    from ddpgen import scaffold

    scaffold.refuse_existing(output)
    if script is not None:
        _init_for_script(output, script, answers)
        return
    for question in scaffold.QUESTIONS:
        if answers[question.name] is None:
            answers[question.name] = _answer(question.says, question.default)
    scaffold.write(output, **answers)
    click.echo(output)
    if missing := scaffold.to_create(output, str(answers["workload"])):
        click.echo(f"next: {missing}", err=True)
    spec = shlex.quote(_as_argument(output))
    click.echo(f"next: ddpgen launch {spec} --target local", err=True)


def _init_for_script(output: Path, script: Path, answers: dict[str, Any]) -> None:
    import re
    import shlex

    from ddpgen import scaffold

    for name in ("workload", "steps"):
        if answers[name] is not None:
            raise click.UsageError(f"--{name} is not for a script, which has its own loop")
    # Jobs of one name share their checkpoints, and half of all scripts are called train.py.
    found = (
        script.absolute().parent.name if script.stem in ("train", "main", "run") else script.stem
    )
    name = answers["name"] or re.sub(r"[^A-Za-z0-9._-]+", "-", found).strip("-._") or "my-job"
    scaffold.write_for_script(output, script, name=name, procs=answers["procs"] or 2)
    click.echo(output)
    click.echo(f"next: ddpgen validate {shlex.quote(_as_argument(output))}", err=True)


@cli.command()
@click.argument("script", metavar="SCRIPT", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=_Place(path_type=Path), metavar="FILE",
    help="The file to write; never one that exists.  [default: stdout]",
)  # fmt: skip
def adopt(script: Path, output: Path | None) -> None:
    """Turn a launch script of yours into a spec: for sbatch, a SkyPilot YAML, or bash with torchrun.

    What the spec does not say, and the traps found in the script, are listed by line. Nothing is run.

    \b
    Example:
      ddpgen adopt train.sbatch -o job.yaml
    """
    import shlex

    from ddpgen import scaffold
    from ddpgen.adopt import file

    if output is not None:
        scaffold.refuse_existing(output)
    text, draft = file.adopt(script, output.parent if output else Path())
    if output is None:
        click.echo(text, nl=False)
    else:
        scaffold.write_new(output, text)
        click.echo(output)
    for line in draft.report():
        click.echo(line, err=True)
    if output is not None:
        click.echo(f"next: ddpgen validate {shlex.quote(_as_argument(output))}", err=True)


def _answer(says: str, default: Any) -> Any:
    return click.prompt(says, default, err=True) if sys.stdin.isatty() else default


@cli.command()
@click.argument("codes", nargs=-1, metavar="[CODE]...")
def explain(codes: tuple[str, ...]) -> None:
    """Tell cause, proof and remedy of what the preflight found; without a code, list all codes.

    \b
    Example:
      ddpgen explain NIC001
    """
    import shutil

    from ddpgen import explain as guides
    from ddpgen.resources import document
    from ddpgen.spec.fields import Refused

    guide = document(guides.GUIDE)
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, 100))
    try:
        click.echo(guides.explained(guide, codes, width) if codes else guides.listing(guide))
    except Refused as refused:
        raise click.UsageError(f"{refused.what}; {refused.remedy}") from None


@cli.command()
@_JOB
@_follow_options
@click.option("--json", "as_json", is_flag=True, help="For programs instead of people.")
def doctor(job: str, target: str | None, output: Path | None, as_json: bool) -> None:
    """Say which rank holds a training up, where each rank stands, and what the network says now.

    JOB is a spec, a bundle or a checkpoint directory, which has to be on this machine. Exit code 0: all is well, or has
    ended well; 1: something is wrong.

    \b
    Example:
      ddpgen doctor checkpoints/gpt
    """
    from ddpgen.launch import become_module

    become_module("doctor", _visible(job, target, output), ["--json"] if as_json else [])


def _visible(job: str, target: str | None, output: Path | None = None) -> Path:
    """The checkpoint directory that is meant, on this machine."""
    from ddpgen.monitor import commands

    if not os.path.isfile(job) and not os.path.exists(os.path.join(job, "bundle.json")):
        return Path(job)
    following = _following(job, target, output)
    assert not isinstance(following, Path)
    return commands.visible(following)


@cli.command()
@_JOB
@click.option("--target", metavar="TIER", help="The tier.  [default: that of the newest run]")
@click.option(
    "-o", "--output", type=_FILE, metavar="FILE",
    help="The page to write.  [default: report.html in the checkpoint directory]",
)  # fmt: skip
def report(job: str, target: str | None, output: Path | None) -> None:
    """Write what happened in a run as one page: curves, ranks, checkpoints, every start and its end.

    JOB is a spec, a bundle or a checkpoint directory, which has to be on this machine. The curves need matplotlib
    (pip install 'ddpgen[plot]').

    \b
    Example:
      ddpgen report examples/gpt.yaml -o report.html
    """
    from ddpgen.launch import become_module

    options = [f"--output={output.absolute()}"] if output else []
    become_module("report", _visible(job, target), options)


@cli.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="For programs instead of people.")
def diff(a: str, b: str, as_json: bool) -> None:
    """Say where two runs part and what differed there; or in what two specs or bundles differ.

    A and B are two checkpoint directories, two checkpoints (step-000000200), two manifest.json, two specs or two
    bundles. Exit code as of diff: 0 the same, 1 different, 2 trouble.

    \b
    Example:
      ddpgen diff build/checkpoints/gpt build/checkpoints/gpt-again
    """
    from ddpgen import diff as differ
    from ddpgen.launch import become_module

    kinds = [differ.kind(name) for name in (a, b)]
    if kinds[0] != kinds[1]:
        told = f"{a} is a {kinds[0]} and {b} is a {kinds[1]}; give two of the same kind."
        raise click.UsageError(told)
    if kinds[0] == differ.RUN:
        become_module("diff", Path(a), ["--json"] if as_json else [], Path(b))
    try:
        found = (differ.bundles if kinds[0] == differ.BUNDLE else differ.specs)(a, b)
    except DdpgenError as error:
        click.echo(f"{error}", err=True)
        sys.exit(2)
    import json

    click.echo(json.dumps(differ.as_json(found), indent=1) if as_json else differ.as_text(found))
    sys.exit(0 if found.same else 1)


_PROCS = click.option(
    "--procs", type=click.IntRange(1), metavar="N", help="Processes.  [default: what fits here]"
)  # fmt: skip


def _given(**options: Any) -> list[str]:
    """As words for a command of the training module."""
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


@cli.command()
@_JOB
@click.option(
    "--from", "begin", type=click.IntRange(0), metavar="STEP",
    help="Of a kept checkpoint, or 0.  [default: the one before the newest]",
)  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(1), metavar="K",
    help="So many steps; without --from after a random checkpoint.",
)  # fmt: skip
@_PROCS
@click.option(
    "--keep", type=_Place(path_type=Path), metavar="DIR", help="Replay there, and leave all of it."
)
@click.option("--json", "as_json", is_flag=True, help="For programs instead of people.")
def verify(
    job: str, begin: int | None, steps: int | None, procs: int | None, keep: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Compute steps of a run again, and say whether losses and tensors are those on record, to the bit.

    JOB is a spec, a bundle or a checkpoint directory, which has to be on this machine; it is only read. Any number of
    processes will do. Exit code 0: identical; 1: not; 69: it cannot be done here.

    \b
    Example:
      ddpgen verify checkpoints/gpt --procs 3
    """
    from ddpgen.launch import become_module

    place = keep.absolute() if keep else None
    options = _given(**{"from": begin}, steps=steps, procs=procs, keep=place)
    become_module("verify", _visible(job, None), [*options, *(["--json"] if as_json else [])])


@cli.command()
@_JOB
@click.option("--target", metavar="TIER", help="Launch it there.  [default: compute it here]")
@_PROCS
@click.option("--steps", type=click.IntRange(1), metavar="N", help="The first N.  [default: all]")
@click.option(
    "-o", "--output", type=_Place(path_type=Path), metavar="DIR",
    help="Where.  [default: build/<name>-reproduced]",
)  # fmt: skip
def reproduce(
    job: str, target: str | None, procs: int | None, steps: int | None, output: Path | None
) -> None:
    """Do a run again from its first step, from the bundle it keeps, and compare losses and weights.

    JOB is a spec, a bundle or a checkpoint directory, which has to be on this machine; it is only read. What is made
    lies in DIR: the bundle, and checkpoints/. Exit code 0: identical; 1: not; 69: it cannot be done here.

    \b
    Example:
      ddpgen reproduce checkpoints/gpt --procs 3 -o again
    """
    import shutil

    from ddpgen import reproduce as again
    from ddpgen.launch import START, Interrupts, become_module, output_of_module

    if target is not None and (procs is not None or steps is not None):
        raise click.UsageError("--procs and --steps are for a run here; leave --target out.")
    directory = _visible(job, None)
    os.environ["DDPGEN_CALLED_AS"] = "ddpgen reproduce"
    place = again.place(directory, output)
    code, said = output_of_module("verify", directory, ["--unpack", f"--keep={place}"])
    if code:
        sys.exit(code)
    bundle = Path(said.rstrip("\n"))
    if target is None:
        click.echo(f"{bundle}: {again.compared(bundle)}", err=True)
        options = _given(**{"from": 0}, steps=steps, procs=procs, keep=place)
        become_module("verify", directory, options)
    try:
        made, checkpoints = again.launched(bundle, target)
    except DdpgenError:
        shutil.rmtree(place)
        raise
    click.echo(f"{bundle}: {again.compared(bundle)}", err=True)
    if target in START:
        with Interrupts() as interrupts:
            code = interrupts.run(["bash", str(bundle / START[target])])
        if code:
            sys.exit(code)
        become_module("diff", directory, [], checkpoints)
    click.echo(_submit(made, bundle, []).job)
    click.echo(f"next, when it is done: ddpgen diff {directory} {checkpoints}", err=True)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Example:
      eval "$(ddpgen completion bash)"
    """
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(cli, {}, "ddpgen", "_DDPGEN_COMPLETE").source())
