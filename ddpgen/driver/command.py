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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from . import asking, plan, secret_values, trace
from .argv import USAGE, DriverCommand, UsageError, parse
from .child import run
from .ends import DONE, FAILED, NO_START, STOPPED
from .ends import USAGE as WRONG_ARGUMENT
from .fetch import fetch
from .job import DriverRun
from .logs import Logs
from .pace import Pace
from .plan import Plan
from .screen import Screen
from .session import Context
from .ssh import Ssh, ready

_HANG_UP_S = 5.0
_FILES = 4096


def main(words: Sequence[str], bundle: str, pace: Pace | None = None) -> int:
    """Carry out the command in `words` with the bundle at `bundle`, and return the exit code."""
    try:
        command = parse(words)
    except UsageError as error:
        return _complain(str(error), WRONG_ARGUMENT)
    if command.action == "help":
        asking.print_out(USAGE)
        return 0
    listing = Path(bundle, "hosts", "hosts.json")
    try:
        hosts_plan = plan.read(listing.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = f"{type(error).__name__}: {error}"
        message = f"{listing} cannot be read ({fault}); copy the whole bundle, or render again"
        return _complain(message, NO_START)
    values: Mapping[str, str] = {}
    if command.action == "run":
        values, missing = secret_values.read(hosts_plan.secrets, os.environ)
        if missing:
            return _complain("\nddpgen: ".join([*missing, "nothing was started"]), NO_START)
    if unknown := [name for name in command.points if name not in hosts_plan.points]:
        known = ", ".join(hosts_plan.points) or "none, as the job is no sweep"
        return _complain(f"there is no point {unknown[0]}; the points are {known}", WRONG_ARGUMENT)
    _prepare_process()
    try:
        with ready(hosts_plan, os.environ) as ssh:
            carry_out = partial(_carry_out, Path(bundle), ssh, pace or Pace(), values)
            if not hosts_plan.points or command.action == "logs":
                return asyncio.run(carry_out(hosts_plan, command))
            is_done = partial(asking.is_done, ssh, pace or Pace(), command.arguments)
            return _each_point(command, Path(bundle), hosts_plan, carry_out, is_done)
    except ValueError as error:
        return _complain(str(error), WRONG_ARGUMENT)
    except KeyboardInterrupt:
        return STOPPED if command.action == "run" else FAILED


def _complain(message: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"ddpgen: {message}", file=sys.stderr)
    return code


def _prepare_process() -> None:
    # Each host takes three pipes and a file; macOS allows 256 of them by default.
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    # A driver in the background keeps writing, although a terminal with `stty tostop` would stop it for that.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)


def _each_point(
    command: DriverCommand,
    bundle: Path,
    hosts_plan: Plan,
    carry_out: Callable[[Plan, DriverCommand], Coroutine[Any, Any, int]],
    is_done: Callable[[Plan, str], Coroutine[Any, Any, bool]],
) -> int:
    """Carry out the command for one point of a sweep after the other. `is_done`: takes a point's plan and id.

    A point that has failed does not end the sweep. A point that was stopped or could not start ends it. --preflight
    looks only at the first point that is not done, because all points run on the same hosts.
    """
    codes = {}
    for name in command.points or hosts_plan.points:
        at_point, chosen = hosts_plan.at_point(name), command
        if command.action == "run":
            if asyncio.run(is_done(at_point, hosts_plan.points[name])):
                print(f"ddpgen: {name} is done", file=sys.stderr)
                continue
            chosen = replace(command, arguments=(f"--point={name}", *command.arguments))
        elif command.action == "fetch":
            whole = command.operand or str(bundle.parent / "checkpoints" / hosts_plan.name)
            chosen = replace(command, operand=os.path.join(whole, name))
        print(f"ddpgen: {name}:", file=sys.stderr)
        codes[name] = asyncio.run(carry_out(at_point, chosen))
        only_check = command.arguments[:1] == ("--preflight",)
        if command.action == "run" and (codes[name] not in (DONE, FAILED) or only_check):
            return codes[name]
    if failed := [name for name, code in codes.items() if code]:
        return _complain(f"failed: {', '.join(failed)}; the reasons stand above", FAILED)
    return DONE


async def _carry_out(
    bundle: Path,
    ssh: Ssh,
    pace: Pace,
    values: Mapping[str, str],
    hosts_plan: Plan,
    command: DriverCommand,
) -> int:
    launch = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    log_directory = bundle.parent / "logs" / hosts_plan.name / launch
    screen = Screen(hosts_plan.names, os.environ, str(log_directory))
    logs = Logs(log_directory, screen.say)
    context = Context(hosts_plan, ssh, bundle, pace, screen, logs, values)
    _log_to(screen)
    try:
        if command.action == "run":
            return await DriverRun(context, command.arguments).run()
        if command.action == "logs":
            return asking.show_logs(context, command.operand)
        if command.action == "fetch":
            return await fetch(context, command.operand)
        return await (asking.status if command.action == "status" else asking.stop)(context)
    finally:
        await _hang_up(hosts_plan, ssh)
        screen.close(pace.flush)


def _log_to(screen: Screen) -> None:
    """Show the programs that the driver runs, if DDPGEN_LOG=DEBUG asks for them."""
    if os.environ.get(trace.VARIABLE) != "DEBUG":
        return
    handler = logging.Handler()
    handler.emit = lambda record: screen.say(f"debug: {record.getMessage()}")  # type: ignore[method-assign]
    driver_log = logging.getLogger(__package__)
    driver_log.setLevel(logging.DEBUG)
    driver_log.handlers = [handler]


async def _hang_up(hosts_plan: Plan, ssh: Ssh) -> None:
    """End the shared connections, all at once. A connection that does not answer ends by itself later."""
    open_ones = [host for host in hosts_plan.hosts if ssh.socket(host).exists()]
    commands = (run(ssh.hang_up(host), b"", _HANG_UP_S) for host in open_ones)
    await asyncio.gather(*commands, return_exceptions=True)
