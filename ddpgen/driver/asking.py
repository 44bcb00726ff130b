"""--status, --stop and --logs: ask every host at once, and say what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from . import logs, remote
from .ends import DONE, FAILED, USAGE
from .pace import overdue
from .plan import Host, Plan
from .screen import Screen, folded, shown, table
from .session import Home, Trouble, ask, why_not
from .ssh import Ssh

_LINES_EACH = 10
_STEP = '{"kind": "step"'


class Step(NamedTuple):
    """The last step in a host's metrics: `age` seconds ago, `usual` after the row before it (0: none). `last`: the
    one with which the training ends, 0 where that is not known. `speed`: in steps a second."""

    number: int
    age: float
    usual: float
    last: int = 0
    speed: float = 0.0
    loss: float | None = None

    @classmethod
    def of(cls, answer: Mapping[str, str]) -> Step | None:
        """Out of what a host answered; None where the running attempt has no step yet, or an odd one."""
        try:
            steps = [row for row in answer["row"].split("\t") if row.startswith(_STEP)]
            before, last = json.loads(steps[-2:][0]), json.loads(steps[-1])
            word, attempt, *_ = answer["status"].split()
            if (word, attempt) != ("running", last["attempt"]):
                return None  # of an earlier attempt: how old that is says nothing
            usual, number = float(last["time"]) - float(before["time"]), int(last["step"])
            age = max(0.0, int(answer["now"]) - float(last["time"]))
            # A row of a user's script says its speed, as it is of many steps.
            of_rows = (number - int(before["step"])) / usual if usual > 0 else 0.0
            speed = float(last.get("steps_per_s", of_rows))
            end = int(answer.get("last-step") or 0)
            return cls(number, age, usual, end, speed, last.get("loss"))
        except (LookupError, TypeError, ValueError, RecursionError):
            return None

    @property
    def stands_still(self) -> bool:
        """Whether the next row is long overdue."""
        return overdue(self.age, self.usual)

    def __str__(self) -> str:
        return f"step {self.number}, {self.age:.0f} s ago"

    @property
    def words(self) -> str:
        """What else is known of the job: loss, speed and time left."""
        known = [f"step {self.number}" + (f" of {self.last}" if self.last else "")]
        if isinstance(self.loss, float):
            known.append(f"loss {self.loss:.4f}")
        if self.speed > 0:
            known.append(f"{self.speed:.3g} steps/s")
        if self.speed > 0 and self.last:
            left = timedelta(seconds=round(max(0, self.last - self.number) / self.speed))
            known.append(f"{left} left")
        return ", ".join(known)


async def ask_all(
    plan: Plan, ssh: Ssh, text: Callable[[Plan, Host], bytes], within: float
) -> tuple[dict[Host, dict[str, str]], dict[str, str]]:
    """One text to every host: the facts that it found on each; and by name why the others could not be asked."""
    troubles: dict[str, str] = {}

    async def one(host: Host) -> dict[str, str]:
        try:
            outcome = await ask(ssh, host, text(plan, host), within)
            if outcome.code != 0:
                raise Trouble(why_not(outcome, ssh, host, within))
        except Trouble as trouble:
            troubles[host.name] = str(trouble)
            return {}
        return remote.facts(outcome.output)

    answers = await asyncio.gather(*(one(host) for host in plan.hosts))
    each = zip(plan.hosts, answers, strict=True)
    found = {host: answer for host, answer in each if host.name not in troubles}
    return found, {name: troubles[name] for name in plan.names if name in troubles}


def say_of_hosts(home: Home, said: Mapping[str, str]) -> None:
    """What is to be said of some hosts, by their names."""
    for line in folded(said):
        home.screen.say(line)


async def status(home: Home) -> int:
    """The table of --status: 0 when every host could be asked."""
    answers, troubles = await ask_all(home.plan, home.ssh, remote.status, home.pace.check)
    rows, steps = table_of(home.plan, answers, troubles)
    of_job = [f"the job: {max(steps.values()).words}"] if steps else []
    print_out("\n".join([*table(rows), *of_job]) + "\n")
    say_of_hosts(home, {
        host.name: f"no step for {step.age:.0f} s; why: ddpgen doctor {home.plan.checkpoints(host)}, there"
        for host, step in steps.items() if step.stands_still
    })  # fmt: skip
    say_of_hosts(home, troubles)
    return FAILED if troubles else DONE


def table_of(
    plan: Plan, answers: Mapping[Host, Mapping[str, str]], troubles: Mapping[str, str]
) -> tuple[list[tuple[str, ...]], dict[Host, Step]]:
    """Rows for people, the heading first; and the last step of each host whose script runs."""
    steps = dict[Host, Step]()
    rows: list[tuple[str, ...]] = [
        ("host", "script runs", "this host", "the job (rank 0 writes it)", "newest checkpoint")
    ]
    # Hosts may share the directory: the job is gone only when none of them can still run it.
    all_gone = not troubles and all(answer.get("runs") == "no" for answer in answers.values())
    for host in plan.hosts:
        answer = answers.get(host)
        if answer is None:
            rows.append((host.name, "unreachable", "", "", ""))
            continue
        runs = answer.get("runs", "")
        step = Step.of(answer) if runs == "yes" else None
        if step is not None:
            steps[host] = step
        node = _readable(answer.get("node", ""), runs == "no")
        job = _readable(answer.get("status", ""), all_gone) + (f": {step}" if step else "")
        rows.append((host.name, runs, node, job, _newest(answer)))
    return rows, steps


async def stop(home: Home) -> int:
    """Ask for a clean stop everywhere: 0 when every host could be asked."""
    answers, troubles = await ask_all(home.plan, home.ssh, remote.stop, home.pace.check)
    said = {}
    for host, answer in answers.items():
        if answer.get("stop") == "nothing":
            said[host.name] = "nothing to stop: no job has run there"
        elif answer.get("runs") == "no":
            said[host.name] = "nothing runs there; the next start removes this request"
        else:
            said[host.name] = "asked for a clean stop"
    say_of_hosts(home, said)
    say_of_hosts(home, troubles)
    return FAILED if troubles else DONE


def show_logs(home: Home, host: str | None) -> int:
    """The newest launch's files and their last lines; with a host, the whole of its file."""
    names, directory = home.plan.names, home.logs.directory.parent
    if host is not None and host not in names:
        home.screen.say(f"{host} is none of the hosts: {', '.join(names)}")
        return USAGE
    launch = logs.newest(directory)
    if launch is None:
        home.screen.say(_nothing_kept(directory))
        return FAILED
    if host is not None:
        return _whole(launch / f"{host}.log", home.screen)
    for name in names:
        path = launch / f"{name}.log"
        lines = [shown(line) for line in logs.tail(path, _LINES_EACH)]
        print_out("\n".join([f"==> {path} <==", *(lines or ["(nothing)"]), ""]) + "\n")
    return DONE


def _nothing_kept(directory: Path) -> str:
    launches = logs.launches(directory)
    if not launches:
        return (
            f"nothing is kept in {directory}: a launch keeps what the hosts say on the machine that it was "
            "started from, and none was started from this bundle here; --status asks the hosts"
        )
    return f"no host has said anything yet; why is in {launches[0] / 'driver.txt'}"


def print_out(text: str) -> None:
    """Print to somebody who may have stopped reading."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains at its end


def _whole(path: Path, screen: Screen) -> int:
    """A host's file, harmless for a terminal; as it is, it lies there for programs."""
    try:
        with open(path, "rb") as file:
            for line in file:
                print_out(shown(line.rstrip(b"\n")) + "\n")
    except OSError as error:
        screen.say(f"{path}: {error.strerror}: the host has said nothing that could be kept")
        return FAILED
    return DONE


def _newest(answer: Mapping[str, str]) -> str:
    """The newest checkpoint of a host; of a user's script, the step of what it has saved last."""
    if newest := answer.get("newest"):
        return f"step {newest}"
    try:
        return f"of step {int(json.loads(answer['saved'])['step'])}"
    except (KeyError, TypeError, ValueError, RecursionError):
        return "none"


def _readable(line: str, gone: bool) -> str:
    """`failed 1f3a… 40 why` without the attempt's id, which is for programs.

    `running` names the step that it started from: without it, or it is read as stuck there. Who is
    gone, and left that word, had no time for another.
    """
    match = re.fullmatch(r"(\w+) \S+ (\d+)(?: (.*))?", shown(line.encode()).strip())
    if match is None:
        return "none" if not line.strip() else "?"
    if match[1] == "running":
        return "running when it was killed" if gone else "running"
    return f"{match[1]} at step {match[2]}" + (f": {match[3]}" if match[3] else "")
