"""Finished values → text, by jinja2.

The only user of jinja2. Templates place values and decide nothing. Every value passes exactly one
of the filters below, which a test checks in all templates. An undefined value is an error.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpgen.errors import FileTroubleError
from ddpgen.resources import resource
from ddpgen.spec.fields import did_you_mean
from ddpgen.text import shell, yamltext

if TYPE_CHECKING:
    import jinja2  # loaded by the first Renderer: most commands render nothing

BUILT_IN = "ddpgen"  # `{% extends "ddpgen/local.sh.j2" %}` in a user's template


class Artefact(NamedTuple):
    """One rendered file of a bundle. `start`: the command that starts it; "" if users do not start this file."""

    path: str
    text: str
    start: str = ""
    executable: bool = True


class Renderer:
    """Renders templates by name. A template in the user's directory replaces the built-in one of the same name."""

    def __init__(self, overrides: Path | None = None):
        import jinja2

        built_in = jinja2.FileSystemLoader(resource("templates"))
        overriding = [jinja2.FileSystemLoader(overrides)] if overrides else []
        if overrides:
            _refuse_unknown_names(overrides, built_in.list_templates())
        self._overrides = overrides
        self._environment = jinja2.Environment(
            loader=jinja2.ChoiceLoader(
                [jinja2.PrefixLoader({BUILT_IN: built_in}), *overriding, built_in]
            ),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            auto_reload=False,
            autoescape=False,
            bytecode_cache=None if overrides else _compiled(),
        )
        self._environment.filters = {**FILTERS}

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the text of `template`. Raise FileTroubleError if a user's template is broken."""
        try:
            return self._environment.get_template(template).render(values)
        except Exception as error:  # a template is a program: 1/0, or one that includes itself
            import jinja2

            if self._overrides is None:
                raise
            location, problem = template, f"{type(error).__name__}: {error}"
            if isinstance(error, jinja2.TemplateError):
                line = getattr(error, "lineno", None)
                location = f"{getattr(error, 'name', None) or template}{f':{line}' if line else ''}"
                problem = error.message or str(error)
            message = f"{self._overrides}: template {location}: {problem}; correct the template"
            raise FileTroubleError(message) from None

    def activation(self, values: Mapping[str, Any]) -> list[Artefact]:
        """Return the file with the activation lines that a launch script sources; [] without such lines."""
        if not values["activate"]:
            return []
        text = self.render("activate.sh.j2", values)
        return [Artefact(values["activation"], text, executable=False)]


def _refuse_unknown_names(overrides: Path, built_in: Sequence[str]) -> None:
    """Raise FileTroubleError if a user's template neither replaces a built-in one nor is named in one of the user's."""
    texts = {
        each.name: each.read_text("utf-8", "replace") for each in sorted(overrides.glob("*.j2"))
    }
    for name in texts:
        if name not in built_in and not any(name in text for text in texts.values()):
            remedy = did_you_mean(name, built_in, f"the names are {', '.join(built_in)}")
            raise FileTroubleError(f"{overrides}: {name} replaces no template of ddpgen; {remedy}")


def _compiled() -> jinja2.BytecodeCache | None:
    """Return a cache of compiled templates in Python's own cache directory; None if that cannot be written."""
    import jinja2

    directory = Path(importlib.util.cache_from_source(__file__)).parent
    if sys.dont_write_bytecode or not os.access(directory, os.W_OK):
        return None
    return jinja2.FileSystemBytecodeCache(str(directory), "ddpgen-%s.template")


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _literal(text: str) -> str:
    """Return the lines of a literal block of YAML, indented by two spaces."""
    return textwrap.indent(text.rstrip("\n"), "  ")


def _defined(convert: Callable[..., str]) -> Callable[..., str]:
    """Return `convert` as a filter. An undefined value raises jinja2's error, which names it."""

    def converted(value: Any, *arguments: Any) -> str:
        from jinja2 import Undefined

        return str(value) if isinstance(value, Undefined) else convert(value, *arguments)

    return converted


FILTERS = {
    "sh": _defined(shell.quote),  # one word of a command
    "sections": _defined(shell.sections),  # a supervisor's command
    "sbatch": _defined(shell.directive),  # an option behind #SBATCH
    "yaml": _defined(yamltext.scalar),  # a value or a key of YAML
    "block": _defined(yamltext.block),  # the entries of a mapping of YAML
    "literal": _defined(_literal),  # a script in a block of YAML
    "comment": _defined(shell.comment_text),  # text inside a comment
    "bash": _defined(_lines),  # the user's own lines of bash, which run unchanged
    "name": str,  # an identifier or number, harmless because the spec's rules restrict it
}
