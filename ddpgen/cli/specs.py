"""The commands for a spec before its render: init, adopt, validate, plan and lock."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddpgen.cli import verbosity
from ddpgen.cli.completion import LoginHost
from ddpgen.cli.shared import (
    FILE,
    JSON,
    Count,
    PathOption,
    checked,
    cli,
    layer_options,
    named,
    refusals,
    spec_argument,
    tier_option,
)

if TYPE_CHECKING:
    from ddpgen.adopt.scaffold import Question
    from ddpgen.site.layers import Chosen

_log = logging.getLogger(__name__)


@cli.command()
@click.option("--name", help="The job's name.")
@click.option("--workload", help="gpt, mnist, toy, or FILE.py:FUNCTION of your own.")
@click.option(
    "--script", type=click.Path(path_type=Path), help="A training script of your own, as it is."
)
@click.option("--procs", type=Count(1, 1024), help="Processes on this machine.")
@click.option("--steps", type=Count(1), help="Optimizer steps to train.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take the default of each question.")
@click.option(
    "-o", "--output", default="job.yaml", show_default=True, metavar="FILE",
    type=FILE, help="The file to write; never one that exists.",
)  # fmt: skip
def init(output: Path, script: Path | None, yes: bool, **answers: Any) -> None:
    """Write a commented spec to start from. It validates; a terminal is asked for what no option gives.

    \b
    Example:
      ddpgen init --yes
      ddpgen init --name demo --workload gpt --procs 2 --steps 200 -o demo.yaml
      ddpgen init --script nanoGPT/train.py -o nanogpt.yaml
    """
    from ddpgen.adopt import scaffold

    scaffold.refuse_existing(output)
    if script is not None:
        _init_for_script(output, script, answers)
        return
    scaffold.refuse_options(answers)
    for question in scaffold.QUESTIONS:
        if answers[question.name] is None:
            answers[question.name] = question.default if yes else _answer(question)
    scaffold.write(output, **answers)
    click.echo(output)
    if missing := scaffold.to_create(output, str(answers["workload"])):
        _log.info(f"next: {missing}")
    _log.info(f"next: ddpgen launch {named(output)} --target local")


def _init_for_script(output: Path, script: Path, answers: dict[str, Any]) -> None:
    import re

    from ddpgen.adopt import scaffold

    for name in ("workload", "steps"):
        if answers[name] is not None:
            raise click.UsageError(
                f"--{name} is not for a script, which has its own loop; leave it out."
            )
    # Jobs of the same name share their checkpoints, and half of all scripts are called train.py.
    found = (
        script.absolute().parent.name if script.stem in ("train", "main", "run") else script.stem
    )
    name = answers["name"] or re.sub(r"[^A-Za-z0-9._-]+", "-", found).strip("-._") or "my-job"
    scaffold.write_for_script(output, script, name=name, procs=answers["procs"] or 2)
    click.echo(output)
    _log.info(f"next: ddpgen validate {named(output)}")


def _answer(question: Question) -> Any:
    """Return the answer of the user on a terminal, asked until a spec may hold it; without a terminal, the default."""
    from ddpgen.adopt import scaffold

    if not sys.stdin.isatty():
        return question.default
    while True:
        answer = click.prompt(question.says, question.default, err=True)
        refused = scaffold.refusal(question, answer)
        if not refused:
            return answer
        click.echo(refused, err=True)


@cli.command()
@click.argument("script", metavar="SCRIPT", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=FILE, metavar="FILE",
    help="The file to write; never one that exists.  [default: stdout]",
)  # fmt: skip
def adopt(script: Path, output: Path | None) -> None:
    """Turn a launch script that you have into a spec. It may be for sbatch, a SkyPilot YAML, or bash with torchrun.

    Lists by line the parts that the spec leaves out, and the traps in the script. Nothing is run.
    Needs tree-sitter (pip install 'ddpgen[adopt]').

    \b
    Example:
      ddpgen adopt train.sbatch -o job.yaml
    """
    from ddpgen.adopt import file, scaffold

    if output is not None:
        scaffold.refuse_existing(output)
    text, draft = file.adopt(script, output.parent if output else Path())
    if output is None:
        click.echo(text, nl=False)
    else:
        scaffold.write_new(output, text)
        click.echo(output)
    for line in draft.report():
        _log.warning(line)
    if output is not None:
        _log.info(f"next: ddpgen validate {named(output)}")


@cli.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--login",
    type=LoginHost(),
    metavar="HOST",
    help="Ask on this login node, by ssh.  [default: here]",
)
@click.option(
    "-o", "--output", type=FILE, metavar="FILE",
    help="The file to write.  [default: ~/.config/ddpgen/NAME.yaml]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def site(name: str | None, login: str | None, output: Path | None, force: bool) -> None:
    """Write the profile of a Slurm cluster. It has the partitions and their limits, your accounts and QoS.

    Asks sinfo, scontrol and sacctmgr, and starts nothing. With --profile NAME, validate then refuses a job that the
    cluster would never start.

    \b
    Example:
      ddpgen site lab --login me@gate
      ddpgen validate job.yaml --profile lab
    """
    from ddpgen.site import profiles
    from ddpgen.spec.job import NAME
    from ddpgen.spec.ssh import Destination
    from ddpgen.tiers.slurm import site as sites

    if (name is None) == (output is None):
        raise click.UsageError("give a NAME for the profile, or a file with -o FILE.")
    with refusals():
        login = None if login is None else Destination().parse_text(login)
        file = output or profiles.user_file(NAME.parse_text(name or ""))
    if not force:
        profiles.refuse_existing(file)
    profile = sites.describe(login)
    profiles.write(file, profile.text)
    click.echo(file)
    for line in profile.unknown:
        _log.warning(f"not known: {line}")
    chosen = name or file.stem
    _log.info(f"next: ddpgen validate SPEC --profile {chosen}")


@cli.command()
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True, type=click.Path())
@layer_options
@tier_option("Only for this tier.", several=True, default="all")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@JSON
@click.option(
    "--format", "form", type=click.Choice(["text", "github"]), default="text", show_default=True,
    help="github: as annotations of a pull request.",
)  # fmt: skip
@click.pass_context
def validate(
    ctx: click.Context, specs: tuple[str, ...], chosen: Chosen, target: str, strict: bool, as_json: bool, form: str
) -> None:  # fmt: skip
    """Report every error of one or more specs. The spec - is the standard input.

    The exit code names the first error, and is 0 without one.

    \b
    Example:
      ddpgen validate examples/gpt.yaml
      ddpgen validate --strict --format github jobs/*.yaml
    """
    from ddpgen.cli import validation
    from ddpgen.site.layers import STDIN

    if specs.count(STDIN) > 1:
        raise click.UsageError(
            "- is the standard input, which is read once; leave the second one out."
        )
    if as_json and form != "text":
        raise click.UsageError("--json and --format exclude each other; leave one of them out.")
    results = [validation.validate(spec, target, chosen, strict) for spec in specs]
    if as_json:
        click.echo(validation.as_json(results))
    for result in () if as_json else results:
        for line in validation.github_annotations(result) if form == "github" else ():
            click.echo(line)
        for line in validation.warnings(result) if form == "text" else ():
            _log.warning(line)
        if result.error is None:
            click.echo(f"{result.spec}: valid for {', '.join(result.tiers)}")
        elif form == "text":
            verbosity.tell(f"{result.error}")
    ctx.exit(next((result.error.exit_code for result in results if result.error), 0))


@cli.command()
@spec_argument
@tier_option("The tier.  [default: local]", several=True)
@JSON
@click.option(
    "--resolved", is_flag=True,
    help="Show the spec instead, with its profile, files and options, and the origin of each value.",
)  # fmt: skip
def plan(spec: str, chosen: Chosen, target: str | None, as_json: bool, resolved: bool) -> None:
    """Show nodes, ranks, micro-batches and the command. Also show where the processes meet.

    \b
    Example:
      ddpgen plan examples/gpt.yaml
    """
    from ddpgen.tiers import tables
    from ddpgen.tiers.registry import DEFAULT_TIER, MODELS

    if resolved:
        from ddpgen.site import show

        if as_json:
            raise click.UsageError("--resolved prints YAML; leave out --json.")
        readings, tiers = checked(spec, target or "all", chosen)
        click.echo(show.as_yaml(readings[tiers[0]].whole, MODELS))
        return
    readings, tiers = checked(spec, target or DEFAULT_TIER, chosen)
    if not as_json:
        click.echo("\n".join(tables.as_text(readings[tier].job, tier) for tier in tiers))
        return
    import json

    plans = [tables.facts(readings[tier].job, tier) for tier in tiers]
    told = plans if target == "all" else plans[0]
    click.echo(json.dumps(told, indent=2, ensure_ascii=False))


@cli.command()
@spec_argument
@click.option(
    "-r", "--requirement", "requirements", type=PathOption(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE", help="Lock what this file asks for.  [default: what the job's Python has here]",
)  # fmt: skip
@click.option("--container", metavar="IMAGE", help="Lock a container, NAME@sha256:DIGEST, instead.")
@click.option(
    "-o", "--output", type=FILE, metavar="FILE",
    help="The file to write.  [default: NAME.lock beside the spec NAME.yaml]",
)  # fmt: skip
def lock(
    spec: str, chosen: Chosen, requirements: Path | None, container: str | None, output: Path | None
) -> None:
    """Write the exact packages of a job to a file. Each has its version and hashes; or the file names a container.

    Without -r the packages are those that the spec's `python` has on this machine. The default is python3 on the PATH.
    uv resolves them, or pip if uv is not installed. With `environment: locked` in the spec the bundle brings the lock
    along, and each host installs from it once.

    \b
    Example:
      ddpgen lock examples/gpt.yaml --container \
        torch@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
    """
    from ddpgen import job
    from ddpgen.bundle import lock as form
    from ddpgen.reproduce import resolve as locks
    from ddpgen.site.layers import STDIN

    if container is not None and requirements is not None:
        raise click.UsageError(
            "a version lock is of packages or of a container: leave out -r or --container."
        )
    if spec == STDIN and output is None:
        raise click.UsageError(
            "a spec from the standard input has no file beside which to write; add -o FILE."
        )
    of = next(iter(job.load(spec, chosen).values())).job
    file = output or form.path(spec)
    if container is not None:
        with refusals():
            facts, lines = locks.container(container), list[str]()
    else:
        facts, lines = locks.packages(of, requirements, file.parent)
        if not any(line.startswith("torch==") for line in lines):
            _log.warning("torch is not among them, and the job needs it")
    locks.write(file, spec, facts, lines)
    click.echo(file)
    _log.info(f"with environment: locked in {spec} a job installs from it")
