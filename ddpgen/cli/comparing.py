"""The commands that compare runs: diff, verify and reproduce."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from ddpgen.cli.shared import (
    JOB,
    JSON,
    PROCS,
    Count,
    PathOption,
    cli,
    given,
    tier_option,
    visible,
)
from ddpgen.errors import DdpgenError, OptionRefusedError

_log = logging.getLogger(__name__)


@cli.command()
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@JSON
def diff(a: str, b: str, as_json: bool) -> None:
    """Name the step and the cause at which two runs part. Or show how two specs or bundles differ.

    A and B are two checkpoint directories, two checkpoints (step-000000200), two manifest.json, two specs or two
    bundles. Exit code as of diff: 0 the same, 1 different, 2 trouble.

    \b
    Example:
      ddpgen diff build/checkpoints/gpt build/checkpoints/gpt-again
    """
    from ddpgen.programs import become_module
    from ddpgen.reproduce import diff as differ

    for name in (a, b):
        if not Path(name).exists():
            raise click.UsageError(f"{name} is not there; give two paths of one kind.")
    kinds = [differ.kind(name) for name in (a, b)]
    if kinds[0] != kinds[1]:
        told = f"{a} is a {kinds[0]} and {b} is a {kinds[1]}; give two of the same kind."
        raise click.UsageError(told)
    if kinds[0] == differ.RUN:
        become_module("diff", Path(a), given(json=as_json), Path(b))
    try:
        differences = (differ.bundles if kinds[0] == differ.BUNDLE else differ.specs)(a, b)
    except DdpgenError as error:
        click.echo(f"{error}", err=True)
        sys.exit(2)
    import json

    click.echo(
        json.dumps(differ.as_json(differences), indent=1)
        if as_json
        else differ.as_text(differences)
    )
    sys.exit(0 if differences.equal else 1)


@cli.command()
@JOB
@click.option(
    "--from", "begin", type=Count(0), metavar="STEP",
    help="The step of a kept checkpoint, or 0.  [default: the one before the newest]",
)  # fmt: skip
@click.option(
    "--steps", type=Count(1), metavar="K",
    help="The number of steps; without --from after a random checkpoint.",
)  # fmt: skip
@PROCS
@click.option(
    "--keep",
    type=PathOption(path_type=Path),
    metavar="DIR",
    help="Replay there, and leave all of it.",
)
@JSON
def verify(
    job: str, begin: int | None, steps: int | None, procs: int | None, keep: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Compute some steps of a run again, and compare. Losses and tensors have to be those on record, to the bit.

    JOB is a spec, a bundle or a checkpoint directory, which has to be on this machine; it is only read. Any number of
    processes will do. Exit code 0: identical. 1: not identical. 69: it cannot be done here.

    \b
    Example:
      ddpgen verify build/checkpoints/gpt --procs 3
    """
    from ddpgen.programs import become_module

    place = keep.absolute() if keep else None
    options = given(**{"from": begin}, steps=steps, procs=procs, keep=place, json=as_json)
    become_module("verify", _run_directory(job), options)


@cli.command()
@JOB
@tier_option("Launch it there.  [default: compute it here]")
@PROCS
@click.option("--steps", type=Count(1), metavar="N", help="The first N.  [default: all]")
@click.option(
    "-o", "--output", type=PathOption(path_type=Path), metavar="DIR",
    help="Where.  [default: build/<name>-reproduced]",
)  # fmt: skip
@JSON
def reproduce(
    job: str, target: str | None, procs: int | None, steps: int | None, output: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Compute a run again from its first step, and compare. It runs from the bundle that the run keeps.

    JOB is a spec, a bundle or a checkpoint directory, which has to be on this machine; it is only read. DIR
    gets the bundle and checkpoints/. Exit code 0: identical. 1: not identical. 69: it cannot be done here.

    \b
    Example:
      ddpgen reproduce build/checkpoints/gpt --procs 3 -o again
    """
    import shutil

    from ddpgen.programs import Interrupts, become_module, output_of_module
    from ddpgen.reproduce import again
    from ddpgen.tiers.registry import TIERS

    if target is not None and (procs is not None or steps is not None):
        raise click.UsageError("--procs and --steps are for a run here; leave --target out.")
    if as_json and target is not None and not TIERS[target].start:
        raise click.UsageError(
            f"--json is for the verdict, and on {target} it comes later; leave it out."
        )
    directory = _run_directory(job)
    os.environ["DDPGEN_CALLED_AS"] = "ddpgen reproduce"
    place = again.new_directory(directory, output)
    code, said = output_of_module("verify", directory, ["--unpack", f"--keep={place}"])
    if code:
        sys.exit(code)
    bundle = Path(said.rstrip("\n"))
    if target is None:
        _log.info(f"{bundle}: {again.compared(bundle)}")
        options = given(**{"from": 0}, steps=steps, procs=procs, keep=place, json=as_json)
        become_module("verify", directory, options)
    try:
        made, checkpoints, point = again.launched(bundle, target, directory)
    except DdpgenError:
        shutil.rmtree(place)
        raise
    _log.info(f"{bundle}: {again.compared(bundle)}")
    tier = TIERS[target]
    if tier.start:
        with Interrupts() as interrupts:
            start = ["bash", str(bundle / tier.start), *(f"--point={name}" for name in point)]
            code = interrupts.run(start, sys.stderr.fileno() if as_json else None)
        if code:
            sys.exit(code)
        become_module("diff", directory, given(json=as_json), checkpoints)
    click.echo(tier.submit(made, bundle, [], point).job)
    _log.info(f"next, when it is done: ddpgen diff {directory} {checkpoints}")


def _run_directory(job: str) -> Path:
    """Return the checkpoint directory of the run. No option of these commands chooses its tier."""
    try:
        return visible(job, None)
    except OptionRefusedError as error:
        message, _, _ = str(error).partition("; ")
        raise OptionRefusedError(f"{message}; give the checkpoint directory of the run") from None
