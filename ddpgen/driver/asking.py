"""--status, --stop and --logs: ask every host at once, and show the answers."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import bad_nodes, logs, remote
from .ends import DONE, END_MARK, FAILED, USAGE
from .fault_list import FaultList
from .pace import Pace
from .plan import Plan, PlannedHost
from .screen import Screen, folded, shown
from .session import Context, Trouble, ask, failure_reason
from .ssh import Ssh
from .state import JobState, read
from .wording import ago, clock, table

_REPORT = re.compile(rb"%s\S+ \{" % END_MARK.encode())
_LINES_PER_HOST = 10


async def ask_all(
    plan: Plan, ssh: Ssh, text: Callable[[Plan, PlannedHost], bytes], timeout_s: float
) -> tuple[dict[PlannedHost, dict[str, str]], dict[str, str]]:
    """Run a text on every host. Return the facts by host, and by name the reason of each host that gave none."""
    troubles: dict[str, str] = {}

    async def ask_host(host: PlannedHost) -> dict[str, str]:
        try:
            outcome = await ask(ssh, host, text(plan, host), timeout_s)
            if outcome.code != 0:
                raise Trouble(failure_reason(outcome, ssh, host, timeout_s))
        except Trouble as trouble:
            troubles[host.name] = str(trouble)
            return {}
        return remote.facts(outcome.output)

    answers = await asyncio.gather(*(ask_host(host) for host in plan.hosts))
    pairs = zip(plan.hosts, answers, strict=True)
    facts = {host: answer for host, answer in pairs if host.name not in troubles}
    return facts, {name: troubles[name] for name in plan.names if name in troubles}


def show_messages(context: Context, messages: Mapping[str, str]) -> None:
    """Print messages about hosts, which `messages` has by the host's name."""
    for line in folded(messages):
        context.screen.say(line)


async def status(context: Context) -> int:
    """Print the table of --status. Return 0 if every host answered."""
    answers, troubles = await ask_all(context.plan, context.ssh, remote.status, context.pace.check)
    rows, steps = table_of(context.plan, answers, troubles)
    job_line = [f"the job: {_words(max(steps.values(), key=_step))}"] if steps else []
    bad = bad_hosts(context.plan, context.logs.directory.parent)
    print_out("\n".join([*table(rows), *job_line, *bad]) + "\n")
    show_messages(context, {
        host.name: f"no step for {state.age_s:.0f} s; why: ddpgen doctor {context.plan.checkpoints(host)}, there"
        for host, state in steps.items() if state.stalled
    })  # fmt: skip
    show_messages(context, troubles)
    return FAILED if troubles else DONE


def bad_hosts(plan: Plan, logs_directory: Path) -> list[str]:
    """Return a line about each bad host of the job, whose launches have their logs in `logs_directory`."""
    faults = FaultList(logs_directory / bad_nodes.FILE).read()
    return [fault.words for fault in bad_nodes.bad(faults) if plan.exclude_bad_nodes]


def table_of(
    plan: Plan, answers: Mapping[PlannedHost, Mapping[str, str]], troubles: Mapping[str, str]
) -> tuple[list[tuple[str, ...]], dict[PlannedHost, JobState]]:
    """Return the rows of the table, the heading first, and the state on each host that runs and has taken a step."""
    steps = dict[PlannedHost, JobState]()
    rows: list[tuple[str, ...]] = [
        ("host", "script runs", "this host", "the job (rank 0 writes it)", "newest checkpoint")
    ]
    # Hosts may share the directory, so the job is gone only if none of them can still run it.
    all_gone = not troubles and all(answer.get("runs") == "no" for answer in answers.values())
    states = {host: read(answer) for host, answer in answers.items()}
    # At the end of an elastic job, rank 0 may be on another host than before.
    ended_on = {
        state.attempt: host.name for host, state in states.items() if state.status != "running"
    }
    for host in plan.hosts:
        answer = answers.get(host)
        if answer is None:
            rows.append((host.name, "unreachable", "", "", ""))
            continue
        runs, state = answer.get("runs", ""), states[host]
        node = read({"status": answer.get("node", "")}).words(runs != "no") or "none"
        job = state.words(not all_gone) or "none"
        if runs == "yes" and state.status == "running" and state.age_s is not None:
            steps[host] = state
            job += f": step {state.step}, {ago(state.age_s)}"
        elif state.status == "running" and state.attempt in ended_on:
            job = f"rank 0 moved to {ended_on[state.attempt]}"
        rows.append((host.name, runs, node, job, state.saved))
    return rows, steps


def _step(state: JobState) -> int:
    return state.step or 0


def _words(state: JobState) -> str:
    words = [f"step {state.step}" + (f" of {state.last_step}" if state.last_step else "")]
    if state.loss is not None:
        words.append(f"loss {state.loss:.4f}")
    if state.steps_per_s:
        words.append(f"{state.steps_per_s:.3g} steps/s")
    if state.split:
        words.append(f"micro-batches {state.split}")
    if state.steps_per_s and state.last_step:
        left = max(0, state.last_step - _step(state)) / state.steps_per_s
        words.append(f"{clock(left)} left")
    return ", ".join(words)


async def is_done(
    ssh: Ssh, pace: Pace, arguments: Sequence[str], plan: Plan, point_id: str
) -> bool:
    """True if a host has recorded that this point of a sweep is done. A host that is silent has recorded nothing."""
    answers, _ = await ask_all(plan, ssh, remote.status, pace.check)
    return any(read(answer).has_done(point_id, arguments) for answer in answers.values())


async def stop(context: Context) -> int:
    """Ask every host for a clean stop. Return 0 if every host answered."""
    answers, troubles = await ask_all(context.plan, context.ssh, remote.stop, context.pace.check)
    show_messages(context, stop_messages(answers))
    show_messages(context, troubles)
    return FAILED if troubles else DONE


def stop_messages(answers: Mapping[PlannedHost, Mapping[str, str]]) -> dict[str, str]:
    """Return the outcome of a stop request by the host's name."""
    messages = {}
    for host, answer in answers.items():
        if answer.get("stop") == "nothing":
            messages[host.name] = "nothing to stop: no job has run there"
        elif answer.get("runs") == "no":
            messages[host.name] = "nothing runs there; the next start removes this request"
        else:
            messages[host.name] = "asked for a clean stop"
    return messages


def show_logs(context: Context, host: str | None) -> int:
    """Print the end of each file of the newest launch; with `host`, the whole of its file. Return the exit code."""
    names, directory = context.plan.names, context.logs.directory.parent
    if host is not None and host not in names:
        context.screen.say(f"{host} is not one of the hosts: {', '.join(names)}")
        return USAGE
    launch = logs.newest(directory)
    if launch is None:
        context.screen.say(_no_logs(directory))
        return FAILED
    if host is not None:
        return _print_log(launch / f"{host}.log", context.screen)
    for name in names:
        path = launch / f"{name}.log"
        lines = [shown(line) for line in logs.tail(path, _LINES_PER_HOST) if not _is_report(line)]
        print_out("\n".join([f"==> {path} <==", *(lines or ["(nothing)"]), ""]) + "\n")
    return DONE


def _is_report(line: bytes) -> bool:
    """True if the line is a host's report of its end to the driver."""
    return _REPORT.search(line) is not None


def _no_logs(directory: Path) -> str:
    launches = logs.launches(directory)
    if not launches:
        return (
            f"nothing is kept in {directory}: a launch keeps what the hosts say on the machine that it was "
            "started from, and none was started from this bundle here; --status asks the hosts"
        )
    return f"no host has said anything yet; why is in {launches[0] / 'driver.txt'}"


def print_out(text: str) -> None:
    """Print to stdout, whose reader may be gone."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python complains when it exits


def _print_log(path: Path, screen: Screen) -> int:
    """Print a host's whole file, made safe for a terminal; programs can read the file itself. Return the exit code."""
    try:
        with open(path, "rb") as file:
            for line in file:
                if not _is_report(line):
                    print_out(shown(line.rstrip(b"\n")) + "\n")
    except OSError as error:
        screen.say(f"{path}: {error.strerror}: the host has said nothing that could be kept")
        return FAILED
    return DONE
