"""The secrets of a job: variables whose values the supervisor finds before anything starts.

Owns the rules for a file that holds a secret; ddpgen/driver/secret_values.py has the same. A value gets into the
environment of this process, which its children inherit, and nowhere else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import MutableMapping, Sequence

from train.base.console import SECRETS
from train.base.errors import EXIT_UNAVAILABLE, Refusal


def load(
    secrets: Sequence[tuple[str, str]],
    environment: MutableMapping[str, str],
    remedy: str,
    handed_on: bool = False,
) -> None:
    """Put the secrets that are in files into `environment`, and check that no secret is missing. Raises Refusal, which
    names each missing one.

    `remedy`: the remedy for a secret that is not in the environment; {name} is its name. `handed_on`: another process
    of this launch has read the files already.
    """
    if secrets:
        environment[SECRETS] = ",".join(name for name, _ in secrets)
    missing = []
    for name, file in secrets:
        problem = ""
        if file and not handed_on:
            environment[name], problem = _content(file)
        if not environment.get(name):
            problem = problem or f"is not set, or is empty; {remedy.format(name=name)}"
            missing.append(f"the secret {name} {problem}")
    if missing:
        raise Refusal(EXIT_UNAVAILABLE, "; ".join(missing))


def _content(file: str) -> tuple[str, str]:
    """Return the content of a file without the newlines at its end. If that is "", the second text says why."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for ever.
        descriptor = os.open(os.path.expanduser(file), os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8", errors="surrogateescape", newline="") as opened:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                return "", f"cannot be read from {file}: it is no regular file"
            if mode & 0o077:
                return "", f"is in a file that others may read; chmod 600 {file}"
            return opened.read().rstrip("\r\n").replace("\0", ""), f"is missing: {file} is empty"
    except OSError as error:
        return "", f"cannot be read from {file}: {error.strerror}"
