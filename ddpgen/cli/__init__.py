"""The commands: parse, call, print. Results go to stdout, all messages about them to stderr.

A command imports inside its function whatever only it needs, so that `ddpgen render` starts quickly.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys

import click

from ddpgen import __version__
from ddpgen.cli import (  # noqa: F401 (it makes their commands known)
    comparing,
    following,
    launching,
    measuring,
    reference,
    specs,
    verbosity,
)
from ddpgen.cli.shared import cli
from ddpgen.errors import BugError, DdpgenError, FileTroubleError


def main() -> None:
    """The console script: run the command line and end the process at once.

    A command lives for a tenth of a second. Garbage collection and the interpreter's own shutdown would take a
    fifth of that, and free nothing that the exit does not free.
    """
    gc.disable()
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = run()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # run() has reported it, or no reader is left
            code = code or FileTroubleError.exit_code
    os._exit(code)


def _open_what_is_closed() -> None:
    """Open /dev/null for each standard stream that the caller has closed (`>&-`).

    Otherwise the next opened file would take the stream's number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def run() -> int:
    """Run the command that sys.argv names, and return the exit code. Every error becomes a message."""
    messages = verbosity.begin()
    try:
        code = cli.main(prog_name="ddpgen", standalone_mode=False)
    except SystemExit as ended:  # how click ends a completion
        code = ended.code
    except click.exceptions.Abort:
        verbosity.tell("aborted")
        code = 130
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        code = error.exit_code
    except DdpgenError as error:
        verbosity.tell(f"{error}")
        code = error.exit_code
    except OSError as error:
        verbosity.tell(f"{error.filename or 'the output cannot be written'}: {error.strerror}")
        code = FileTroubleError.exit_code
    except Exception as error:  # noqa: BLE001 (no traceback ever reaches the user)
        code = _explain_bug(error, messages.log())
    return code if isinstance(code, int) else 0


def _explain_bug(error: Exception, messages: str) -> int:
    """Tell the user that it is a bug of ddpgen, and write a file to attach to its report. Return the exit code.

    `messages`: all messages up to the bug, also those that were not shown.
    """
    import platform
    import shlex
    import traceback
    from pathlib import Path

    text = verbosity.without_secrets(
        f"ddpgen {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"{shlex.join(['ddpgen', *sys.argv[1:]])}\n\n{messages}\n"
        + "".join(traceback.format_exception(error))
    )
    log = Path(
        os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "ddpgen/error.log"
    )
    attach = f"please report it with the spec and the file {log}"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(mode=0o600)
        log.write_text(text, "utf-8", "backslashreplace")
    except OSError:
        attach = f"please report it with the spec and these lines:\n{text}"
    what = verbosity.without_secrets(f"{type(error).__name__}: {error}")
    verbosity.tell(f"this is a bug in ddpgen {__version__}, not in your spec: {what}\n{attach}")
    return BugError.exit_code
