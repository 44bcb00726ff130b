"""Finished values → text, by jinja2: strict, with the few filters a value may enter through.

The only user of jinja2. Templates place values and decide nothing; every value passes exactly one
of the filters below (a test walks the templates for that).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from ddpgen import shell
from ddpgen.errors import FileTroubleError
from ddpgen.resources import resource

BUILT_IN = "ddpgen/"  # `{% extends "ddpgen/local.sh.j2" %}` in a template of the user's


class Renderer:
    """Renders templates by name, the user's directory before our own."""

    def __init__(self, overrides: Path | None = None):
        ours = jinja2.FileSystemLoader(resource("templates"))
        theirs = jinja2.FileSystemLoader(overrides) if overrides else None
        self._overrides = overrides
        self._environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(lambda name: _find(name, ours, theirs)),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            auto_reload=False,
            autoescape=False,
        )
        self._environment.filters = {**FILTERS}

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """The text of `template`; raises FileTroubleError when a user's template is broken."""
        try:
            return self._environment.get_template(template).render(values)
        except jinja2.TemplateError as error:
            if self._overrides is None:
                raise
            line = getattr(error, "lineno", None)
            place = f"{getattr(error, 'name', None) or template}{f':{line}' if line else ''}"
            message = f"{self._overrides}: template {place}: {error.message}; correct the template"
            raise FileTroubleError(message) from None
        except UnicodeDecodeError:
            raise FileTroubleError(f"{self._overrides}: a template is not UTF-8") from None


def _find(
    name: str, ours: jinja2.BaseLoader, theirs: jinja2.BaseLoader | None
) -> tuple[str, str | None, None] | None:
    loaders = [ours] if theirs is None or name.startswith(BUILT_IN) else [theirs, ours]
    for loader in loaders:
        try:
            source, filename, _ = loader.get_source(_NO_ENVIRONMENT, name.removeprefix(BUILT_IN))
        except jinja2.TemplateNotFound:
            continue
        return source, filename, None
    return None


_NO_ENVIRONMENT: Any = None  # FileSystemLoader never looks at it


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


FILTERS = {
    "sh": shell.quote,  # one word of a command
    "argv": shell.continued,  # a whole command, a word a line
    "comment": shell.speakable,  # text inside a comment
    "bash": _lines,  # lines of bash the user wrote to be run as they are
    "name": str,  # an identifier or number that the spec's own rules hold harmless
}
