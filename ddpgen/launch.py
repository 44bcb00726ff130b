"""Start a rendered artefact, its command echoed first. The only module that runs other programs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from ddpgen.errors import TargetUnavailableError


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process by `argv`, so that Ctrl-C and the exit code are the job's own.

    Raises TargetUnavailableError when the program is not there.
    """
    print("+", shlex.join(argv), file=sys.stderr, flush=True)
    sys.stdout.flush()
    try:
        os.execvp(argv[0], list(argv))
    except OSError as error:
        raise TargetUnavailableError(f"cannot start {argv[0]}: {error.strerror}") from None
