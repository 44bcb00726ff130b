"""The commands that print a reference: explain, schema and completion."""

from __future__ import annotations

import click

from ddpgen.cli.completion import SHELLS, Code
from ddpgen.cli.shared import cli, refusals


@cli.command()
@click.argument("codes", nargs=-1, metavar="[CODE]...", type=Code())
def explain(codes: tuple[str, ...]) -> None:
    """Explain an error code of the preflight. Show cause, proof and remedy; without a code, list all codes.

    \b
    Example:
      ddpgen explain NIC001
    """
    import shutil

    from ddpgen import guide as guides
    from ddpgen.resources import document

    guide = document(guides.GUIDE)
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, 100))
    with refusals():
        click.echo(guides.explained(guide, codes, width) if codes else guides.listing(guide))


@cli.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors.

    \b
    Example:
      ddpgen schema > ddpgen.schema.json
    """
    from ddpgen.resources import document
    from ddpgen.spec.schema import REFERENCE, as_text, json_schema
    from ddpgen.tiers.registry import MODELS

    click.echo(as_text(json_schema(document(REFERENCE), MODELS)))


@cli.command()
@click.argument("shell", type=click.Choice([*SHELLS]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Example:
      eval "$(ddpgen completion bash)"
    """
    click.echo(SHELLS[shell](cli, {}, "ddpgen", "_DDPGEN_COMPLETE").source(), nl=False)
