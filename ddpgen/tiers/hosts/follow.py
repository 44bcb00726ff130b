"""status, logs and stop of a job on several hosts. For people, hosts/run.sh shows status and logs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from ddpgen.driver import plan, remote, state
from ddpgen.driver.asking import ask_all, bad_hosts, stop_messages, table_of
from ddpgen.driver.logs import newest as newest_logs
from ddpgen.driver.plan import Plan
from ddpgen.driver.screen import folded
from ddpgen.driver.ssh import Ssh
from ddpgen.driver.wording import table
from ddpgen.errors import SpecUnreadableError, TargetUnavailableError
from ddpgen.monitor import places
from ddpgen.monitor.places import Machine
from ddpgen.monitor.record import Following
from ddpgen.monitor.report import JobStatus, Report
from ddpgen.programs import become
from ddpgen.text.shell import as_argument
from ddpgen.tiers.hosts.render import DRIVER

# A host's script, in words.
_STATE_WORDS = {"yes": "runs", "no": "does not run", "unknown": "may run"}


KILL_ADVICE = "press Ctrl-C twice where it runs"
INTERVAL_S = 5  # a look costs an ssh to each host


def status(following: Following) -> NoReturn:
    """Replace this process by run.sh, which shows a table of the hosts."""
    become(_run_sh(following, "--status"))


@contextlib.contextmanager
def asking(following: Following) -> Iterator[Callable[[], JobStatus]]:
    """Yield a function that asks all hosts for the status at each call, over connections that stay open.

    Raises TargetUnavailableError; so does the function, if no host answers.
    """
    hosts = _hosts_plan(following)
    with places.connections(hosts) as ssh:
        yield functools.partial(_ask, hosts, ssh, following.bundle_parent / "logs" / hosts.name)


def _ask(hosts: Plan, ssh: Ssh, logs_directory: Path) -> JobStatus:
    answers, troubles = places.finish(ask_all(hosts, ssh, remote.status, places.ANSWER_S))
    if not answers:
        raise TargetUnavailableError("; ".join(folded(troubles)))
    # If each host has a directory of its own, the host of rank 0 has the newest rows; that may be any host.
    states = {host: state.read(answer) for host, answer in answers.items()}
    newest = min(states, key=lambda h: (states[h].age_s is None, states[h].age_s or 0.0))
    scripts = {host.name: answer.get("runs", "") for host, answer in answers.items()}
    all_ended = not troubles and set(scripts.values()) == {"no"}
    runs = True if "yes" in scripts.values() else False if all_ended else None
    location = f"{newest.name}:{hosts.checkpoints(newest).removeprefix('./')}"
    report = Report(location, states[newest], runs)
    words = [
        f"{name} {_STATE_WORDS.get(scripts.get(name, ''), 'unreachable')}" for name in hosts.names
    ]
    rows = table(table_of(hosts, answers, troubles)[0])
    rows += bad_hosts(hosts, logs_directory)
    return JobStatus([*rows, *folded(troubles), report], report.ended, ", ".join(words))


def stop(following: Following, now: bool) -> Iterator[str]:
    """Ask every host for a clean stop. Raise TargetUnavailableError, also if only some hosts answer."""
    hosts = _hosts_plan(following)
    with places.connections(hosts) as ssh:
        answers, troubles = places.finish(ask_all(hosts, ssh, remote.stop, places.ANSWER_S))
    yield from folded(stop_messages(answers))
    if troubles:
        raise TargetUnavailableError("\n".join(folded(troubles)))


def logs(following: Following, lines: int, follow: bool) -> NoReturn:
    """Replace this process by run.sh; with `follow`, by `tail -F` of all hosts' logs of the newest launch."""
    command = [] if follow else _run_sh(following, "--logs")
    launch = _newest_launch(following)
    if launch is None:
        directory = following.bundle_parent / "logs" / following.job.name
        raise SpecUnreadableError(
            f"no host has said anything yet: {places.short(str(directory))} has no line of a launch"
        )
    become(command or places.tail(sorted(map(str, launch.glob("*.log"))), lines, follow))


def is_live(following: Following) -> bool:
    """True if a host's script runs. Raises TargetUnavailableError."""
    with asking(following) as ask:
        return any(report.running for report in ask().reports)


def launched_at(following: Following) -> float | None:
    """Return when the newest launch with a line from a host began; None without one."""
    launch = _newest_launch(following)
    return launch.stat().st_mtime if launch is not None else None


def has_local_checkpoints(following: Following) -> bool:
    """True if the checkpoint directory is on this machine."""
    return following.checkpoints.is_dir()


@contextlib.contextmanager
def checkpoint_locations(following: Following) -> Iterator[Sequence[tuple[Machine, str]]]:
    """Yield every host with the checkpoint directory on it. Raise TargetUnavailableError."""
    hosts_plan = _hosts_plan(following)
    with places.logins(hosts_plan) as logins:
        hosts = zip(logins, hosts_plan.hosts, strict=True)
        yield [(login, hosts_plan.checkpoints(host)) for login, host in hosts]


def _hosts_plan(following: Following) -> Plan:
    """Return the bundle's hosts.json. Raise TargetUnavailableError."""
    listing = Path(_run_sh(following, "--status")[1]).with_name("hosts.json")
    try:
        hosts = plan.read(listing.read_text("utf-8"))
        return hosts.at_point(following.point) if following.point else hosts
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetUnavailableError(f"{listing} cannot be read: {error}; render again") from None


def _newest_launch(following: Following) -> Path | None:
    """Return the log directory of the newest launch with a line from a host; None without one."""
    return newest_logs(following.bundle_parent / "logs" / following.job.name)


def _run_sh(following: Following, option: str) -> list[str]:
    """Return the command that runs the driver. Raise TargetUnavailableError."""
    script = following.bundle / DRIVER
    if not script.is_file():
        raise TargetUnavailableError(
            f"{script} is not there; render the job for hosts first, or name its bundle with -o"
        )
    point = [f"--point={following.point}"] if following.point else []
    return ["bash", as_argument(str(script)), *point, option]
