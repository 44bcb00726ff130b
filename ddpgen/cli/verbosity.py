"""-v and -q, before and after a command's name: the messages that stderr shows, and those that a bug's report keeps.

Every module logs under its own name. WARNING is for doubts about a spec, INFO for progress and hints, DEBUG for programs
that are run, files, and decisions. Errors are exceptions: cli.run() prints them at every level.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from collections import deque
from collections.abc import Iterable
from typing import Any

import click

from ddpgen.driver.trace import VARIABLE

_MAX_KEPT = 1000  # messages, because `status --watch` may run for days


class Messages(logging.Handler):
    """Prints messages to stderr from `shown` upwards, and keeps the last ones of every level.

    `secret_names`: the secrets of the spec.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown = logging.INFO
        self.secret_names: set[str] = set()
        self._last: deque[str] = deque(maxlen=_MAX_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message. Raise OSError if stderr cannot be written, unless the message is for debugging."""
        text = record.getMessage()
        if record.levelno == logging.DEBUG:
            text = f"debug: {text}"
        self._last.append(text)
        if record.levelno < self.shown:
            return
        with contextlib.suppress(*([OSError] if record.levelno == logging.DEBUG else [])):
            click.echo(without_secrets(text) if self.shown == logging.DEBUG else text, err=True)

    def log(self) -> str:
        """Return the messages so far as lines, secrets included."""
        return "".join(f"{text}\n" for text in self._last)


def begin() -> Messages:
    """Show messages at the level that holds without an option, and return their handler."""
    os.environ.pop(VARIABLE, None)
    logger = logging.getLogger("ddpgen")
    logger.handlers = [Messages()]
    logger.propagate = False  # a library's own set-up of logging must not show them twice
    logger.setLevel(logging.DEBUG)
    return messages()


def messages() -> Messages:
    """Return the handler of this command."""
    (handler,) = logging.getLogger("ddpgen").handlers
    assert isinstance(handler, Messages)
    return handler


def hide(names: Iterable[str]) -> None:
    """Let without_secrets() replace the values of these variables as well."""
    for each in _handlers():
        each.secret_names.update(names)


def tell(text: str) -> None:
    """Print to stderr, if that can be written to."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def without_secrets(text: str) -> str:
    """Return `text` with $NAME for the value of each environment variable that is a secret."""
    from ddpgen.spec import secrets

    named = {name for each in _handlers() for name in each.secret_names}
    # The longest come first, because one value may begin with another.
    for name, value in sorted(os.environ.items(), key=lambda item: -len(item[1])):
        hidden = name in named or secrets.is_secret(name, value)
        if hidden and len(value) >= secrets.SHORTEST:
            text = text.replace(shlex.quote(value), f"${name}").replace(value, f"${name}")
    return secrets.TOKEN_FORMS.sub("***", text)


def _handlers() -> list[Messages]:
    """Return the handler of this command; none in a process that has not called begin()."""
    handlers = logging.getLogger("ddpgen").handlers
    return [each for each in handlers if isinstance(each, Messages)]


def _show_from(level: int) -> Any:
    """Return the callback of an option that shows messages from `level` upwards."""

    def chosen(context: click.Context, option: click.Parameter, given: bool) -> None:
        if not given:
            return
        handler = messages()
        if handler.shown not in (logging.INFO, level):
            raise click.UsageError("give -v or -q, not both.", context)
        handler.shown = level
        os.environ[VARIABLE] = logging.getLevelName(level)

    return chosen


def _options() -> list[click.Parameter]:
    always = {"is_flag": True, "expose_value": False, "is_eager": True}
    return [
        click.Option(
            ["-v", "--verbose"], callback=_show_from(logging.DEBUG), **always,
            help="Also show the programs that are run, files and decisions.",
        ),
        click.Option(
            ["-q", "--quiet"], callback=_show_from(logging.ERROR), **always,
            help="Show only errors and the result.",
        ),
    ]  # fmt: skip


class Commands(click.Group):
    """A group that takes -v and -q, as does each of its commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.params += _options()

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, with the two options behind its own."""
        cmd.params += _options()
        super().add_command(cmd, name)
