"""The commands render and launch."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ddpgen.cli.shared import (
    ONE_TIER,
    ONLY,
    checked,
    cli,
    loaded,
    named,
    render_options,
    spec_argument,
    tier_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddpgen.api import Preview
    from ddpgen.site.layers import Chosen

_log = logging.getLogger(__name__)
# The folders of a bundle that have the same files for every job.
_OWN_FOLDERS = ("hosts/driver/", "train/")
_MISSPELT = 0.8  # the least likeness to an option of launch; --steps and --set have 0.67


@cli.command()
@spec_argument
@tier_option(
    "The tier: local, hosts, slurm, sky, or all that the spec has.", several=True, required=True
)
@render_options
@click.option("--stdout", is_flag=True, help="Print the one artefact; write nothing.")
def render(spec: str, chosen: Chosen, target: str, stdout: bool, **options: Any) -> None:
    """Write the bundle that launches a job. It holds the scripts, the training module and your code.

    \b
    Example:
      ddpgen render examples/gpt.yaml --target local
    """
    if stdout:
        from ddpgen import job

        if target == "all":
            raise click.UsageError(
                "--stdout prints one artefact; name one tier with --target, not all."
            )
        readings, tiers = checked(spec, target, chosen)
        artefacts = job.artefacts(readings, tiers, options["templates"])
        click.echo(artefacts[0].text.encode(), nl=False)
        return
    bundle = loaded(spec, target, chosen).render(target, **options)
    click.echo(bundle.directory)
    for start in bundle.starts:
        _log.info(f"next: {start}")


class _Launch(click.Command):
    """A command that knows where the options of the training belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from difflib import get_close_matches

            if get_close_matches(error.option_name, error.possibilities or (), 1, _MISSPELT):
                raise
            message = (
                f"{error.message} An option of the training stands behind --, like -- --steps=50."
            )
            raise click.UsageError(message, ctx) from None


@cli.command(cls=_Launch)
@spec_argument
@ONE_TIER
@ONLY
@render_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show each file and each command of the launch, and do nothing.",
)
# A path, so that a shell completes files. Any word may stand there.
@click.argument("arguments", nargs=-1, type=click.Path(readable=False))
def launch(
    spec: str, chosen: Chosen, target: str, dry_run: bool, arguments: tuple[str, ...], **options: Any
) -> None:  # fmt: skip
    """Render a job, and start or submit it. Each command is echoed with a + before it runs.

    Arguments after -- are added to the training command. The exit code is the job's: 0 done,
    1 failed, 75 stopped cleanly (the same command resumes it). On slurm and sky the job is submitted,
    as a copy, so that you may render again, and its id is printed.

    \b
    Example:
      ddpgen launch examples/gpt.yaml --target local -- --steps=50
    """
    from ddpgen.programs import become

    read = loaded(spec, target, chosen)
    if dry_run:
        for line in _lines(read.preview(target, arguments, **options)):
            click.echo(line)
        _log.info("nothing was written, sent or started")
        return
    launched = read.launch(target, arguments, run=become, **options)
    if launched.job:
        click.echo(launched.job)
    one_point = " --only FIELD=VALUE" if read.job(target).points else ""
    for following in ("status", f"logs --follow{one_point}", "stop"):
        # Name the bundle, because the spec alone, without this command's options and environment, may be another job.
        _log.info(f"next: ddpgen {following} {named(launched.bundle.directory)}")


def _lines(preview: Preview) -> Iterator[str]:
    """Yield the lines of a dry run: the bundle with its files, the secrets by name, and the commands."""
    state = "to be written" if preview.changed else "as it is there"
    size = sum(preview.files.values()) / 1024
    yield f"{preview.directory}: {len(preview.files)} files, {size:.0f} KiB, {state}"
    folded = Counter[str]()
    for name in preview.files:
        folder = next(filter(name.startswith, _OWN_FOLDERS), "")
        folded[folder] += 1
        if folder:
            _log.debug(f"  {name}")
        else:
            yield f"  {name}"
    for folder in filter(folded.get, _OWN_FOLDERS):
        yield f"  {folder} ({folded[folder]} files of ddpgen; -v names them)"
    for name, file in preview.secrets.items():
        yield f"secret {name}: from {file or 'your environment'}"
    yield from preview.commands
