"""main(): from what was typed to an exit code. Puts the parts together and decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import asking, plan
from .argv import USAGE, UsageError, Wanted, parse
from .child import run
from .ends import FAILED, NO_START, STOPPED
from .ends import USAGE as WRONG_ARGUMENT
from .fetch import fetch
from .job import Job
from .logs import Logs
from .pace import Pace
from .plan import Plan
from .screen import Screen
from .session import Home
from .ssh import Ssh, ready

_HANG_UP_S = 5.0
_MARGIN_KIB = 10 * 1024
_FILES = 4096


class PlanError(Exception):
    """hosts.json is not what ddpgen writes."""


def main(words: Sequence[str], bundle: str, pace: Pace | None = None) -> int:
    """Do what `words` ask for with the bundle at `bundle`; the exit code."""
    try:
        wanted = parse(words)
        if wanted.what == "help":
            asking.print_out(USAGE)
            return 0
        ours = _plan(Path(bundle))
    except UsageError as error:
        return _complain(str(error), WRONG_ARGUMENT)
    except PlanError as error:
        return _complain(str(error), NO_START)
    _be_ready()
    try:
        with ready(ours, os.environ) as ssh:
            return asyncio.run(_do(wanted, Path(bundle), ours, ssh, pace or Pace()))
    except ValueError as error:
        return _complain(str(error), WRONG_ARGUMENT)
    except KeyboardInterrupt:
        return STOPPED if wanted.what == "run" else FAILED


def _complain(message: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"ddpgen: {message}", file=sys.stderr)
    return code


def _plan(bundle: Path) -> Plan:
    """Raises PlanError."""
    path = bundle / "hosts" / "hosts.json"
    try:
        return plan.read(path.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        why = f"{type(error).__name__}: {error}"
        raise PlanError(
            f"{path} cannot be read ({why}); copy the whole bundle, or render again"
        ) from None


def _be_ready() -> None:
    # Three pipes and a file for each host: macOS begins with 256 in all.
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < enough:
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    # In the background of a terminal that minds, we write all the same.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)


async def _do(wanted: Wanted, bundle: Path, ours: Plan, ssh: Ssh, pace: Pace) -> int:
    launch = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    kept = bundle.parent / "logs" / ours.name
    screen = Screen(ours.names, os.environ, logs=str(kept / launch))
    try:
        if wanted.what == "run":
            logs = Logs(kept / launch, screen.say)
            need = _size_kib(bundle) + _MARGIN_KIB
            home = Home(ours, ssh, bundle, need, pace, screen, logs)
            with contextlib.closing(logs):
                return await Job(home, launch, wanted.arguments).run()
        if wanted.what == "logs":
            return asking.show_logs(ours, kept, wanted.operand, screen)
        if wanted.what == "fetch":
            target = Path(wanted.operand or bundle.parent / "checkpoints" / ours.name)
            return await fetch(ours, ssh, pace, screen, target.absolute())
        ask = asking.status if wanted.what == "status" else asking.stop
        return await ask(ours, ssh, pace, screen)
    finally:
        await _hang_up(ours, ssh)
        screen.close(pace.flush)


async def _hang_up(ours: Plan, ssh: Ssh) -> None:
    """End the shared connections, all at once; those that do not answer end by themselves."""
    open_ones = [host for host in ours.hosts if ssh.socket(host).exists()]
    commands = (run(ssh.hang_up(host), b"", _HANG_UP_S) for host in open_ones)
    await asyncio.gather(*commands, return_exceptions=True)


def _size_kib(bundle: Path) -> int:
    blocks = 0
    for root, names, files in os.walk(bundle):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in files:
            with contextlib.suppress(OSError):
                blocks += os.lstat(os.path.join(root, name)).st_size // 4096 + 1
        blocks += 1
    return blocks * 4
