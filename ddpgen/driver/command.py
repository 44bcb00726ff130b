"""main(): the driver's command line → an exit code. Puts the parts together and decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import asking, plan, trace
from .argv import USAGE, UsageError, Wanted, parse
from .child import run
from .ends import FAILED, NO_START, STOPPED
from .ends import USAGE as WRONG_ARGUMENT
from .fetch import fetch
from .job import DriverRun
from .logs import Logs
from .pace import Pace
from .plan import Plan
from .screen import Screen
from .session import Home
from .ssh import Ssh, ready

_HANG_UP_S = 5.0
_FILES = 4096


def main(words: Sequence[str], bundle: str, pace: Pace | None = None) -> int:
    """Carry out the command in `words` with the bundle at `bundle`, and return the exit code."""
    try:
        wanted = parse(words)
    except UsageError as error:
        return _complain(str(error), WRONG_ARGUMENT)
    if wanted.what == "help":
        asking.print_out(USAGE)
        return 0
    listing = Path(bundle, "hosts", "hosts.json")
    try:
        ours = plan.read(listing.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        message = f"{listing} cannot be read ({why}); copy the whole bundle, or render again"
        return _complain(message, NO_START)
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


def _be_ready() -> None:
    # Each host takes three pipes and a file; macOS allows 256 of them by default.
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < enough:
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    # A background job keeps writing, even if the terminal would stop it for that (stty tostop).
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)


async def _do(wanted: Wanted, bundle: Path, ours: Plan, ssh: Ssh, pace: Pace) -> int:
    launch = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    kept = bundle.parent / "logs" / ours.name / launch
    screen = Screen(ours.names, os.environ, str(kept))
    home = Home(ours, ssh, bundle, pace, screen, Logs(kept, screen.say))
    _log_to(screen)
    try:
        if wanted.what == "run":
            return await DriverRun(home, wanted.arguments).run()
        if wanted.what == "logs":
            return asking.show_logs(home, wanted.operand)
        if wanted.what == "fetch":
            return await fetch(home, wanted.operand)
        return await (asking.status if wanted.what == "status" else asking.stop)(home)
    finally:
        await _hang_up(ours, ssh)
        screen.close(pace.flush)


def _log_to(screen: Screen) -> None:
    """Show the programs that the driver runs, if DDPGEN_LOG=DEBUG asks for them."""
    if os.environ.get(trace.VARIABLE) != "DEBUG":
        return
    handler = logging.Handler()
    handler.emit = lambda record: screen.say(f"debug: {record.getMessage()}")  # type: ignore[method-assign]
    ours = logging.getLogger(__package__)
    ours.setLevel(logging.DEBUG)
    ours.handlers = [handler]


async def _hang_up(ours: Plan, ssh: Ssh) -> None:
    """End the shared connections, all at once. One that does not answer ends by itself later."""
    open_ones = [host for host in ours.hosts if ssh.socket(host).exists()]
    commands = (run(ssh.hang_up(host), b"", _HANG_UP_S) for host in open_ones)
    await asyncio.gather(*commands, return_exceptions=True)
