"""The log of the programs that are run: the command line at the start, the exit code and the seconds at the end.

Owns the form of both lines. Knows nothing of the log's readers.
"""

from __future__ import annotations

import itertools
import logging
import os
import shlex
import time
from collections.abc import Callable, Sequence

VARIABLE = "DDPGEN_LOG"  # DEBUG or ERROR, as -v and -q of ddpgen set it for the driver

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)


def quiet() -> bool:
    """True if only errors are shown."""
    return os.environ.get(VARIABLE) == "ERROR"


def begin(
    argv: Sequence[str], where: str | os.PathLike[str] | None = None, line: str = ""
) -> Callable[[int], None]:
    """Log the start of a program, and return the function that logs its end with the exit code.

    `where`: the program's working directory, if it is not ours. `line`: the command that a user would type, if it is
    not `argv`.
    """
    number, began = next(_numbers), time.monotonic()
    line = line or shlex.join(argv)
    if where is not None:
        line = f"(cd {shlex.quote(os.fspath(where))} && {line})"
    _log.debug(f"[{number}] + {line}")

    def end(code: int) -> None:
        how = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
        _log.debug(f"[{number}] {how} after {time.monotonic() - began:.2f} s")

    return end
