"""`python -m train doctor CHECKPOINT_DIR`: which rank is missing, where each stands, and the network.

Owns the page that is printed and the exit code: 0 all is well or has ended well, 1 something is
wrong, 2 there is nothing to look at. Changes nothing anywhere. What it reads was written by others
and is shown with its control characters spelled out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from train import processes
from train.files import read_file
from train.health import heartbeats, network, view
from train.health.diagnosis import GOES_ON, TO_COME, WAITS, Diagnosis, RankState, duration, ranks
from train.health.heartbeats import plain
from train.health.view import Launch, Preflight
from train.layout import steps_on_disk
from train.status import Status, read_status

EXIT_WELL, EXIT_WRONG, EXIT_USAGE = 0, 1, 2
_SIGNS = ("status", "lock", "nodes", heartbeats.NAME, "metrics.jsonl", "preflight.json")
_MOST_ROWS = 64
_MOST_STACKS = 4
_MOST_HOSTS = 32
_MOST_UNREADABLE = 8
# How long a late heartbeat is waited for.
NEWS_S = 4.0


@dataclass(frozen=True)
class Page:
    """Everything the doctor has found. `statuses`: by the host's name, "" for the job's own; `said`:
    by host, the lines a process said before it ended; `network`: (is it well, what to say);
    `newest`: the step of the newest checkpoint here; `launches`: who holds the job and its parts;
    `unreadable`: what cannot be read here, and why."""

    directory: Path
    statuses: dict[str, Status]
    found: Diagnosis
    said: dict[str, list[str]]
    network: list[tuple[bool, str]]
    newest: int | None = None
    launches: tuple[Launch, ...] = ()
    preflight: Preflight | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def over(self) -> Status | None:
        """The end, where there is one: what the heartbeats say is then of the past."""
        words = [s for name, s in self.statuses.items() if name] or list(self.statuses.values())
        job = self.statuses.get("")
        ends = [job] if job is not None and job.word != "running" else words
        return ends[0] if ends and all(s.word != "running" for s in ends) else None

    @property
    def refused(self) -> Preflight | None:
        """The preflight, where the job never came further."""
        check = self.preflight
        further = self.statuses or self.found.members
        return check if check is not None and not check.ok and not further else None

    @property
    def wrong(self) -> bool:
        """Whether there is something to do."""
        if self.over is not None:
            return self.over.word == "failed"
        found = self.found.wrong or self.unwell or bool(self.unreadable)
        return found or self.refused is not None

    @property
    def unwell(self) -> bool:
        """Whether it is the network."""
        return any(not well for well, _ in self.network)


def main(argv: Sequence[str]) -> int:
    """Look, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog=os.environ.get("DDPGEN_CALLED_AS") or "python -m train doctor",
        description="Say which rank holds a training up, where each stands, and what the network says.",
        epilog="exit code: 0 all is well, or has ended well; 1 something is wrong; 2 wrong usage",
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint_dir", metavar="CHECKPOINT_DIR")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    options = parser.parse_args(argv)
    directory = Path(options.checkpoint_dir).absolute()
    why = _not_one_of_ours(directory)
    if why:
        parser.exit(EXIT_USAGE, f"{parser.prog}: {plain(why, 2000)}\n")
    page = look(directory)
    if options.json:
        print(json.dumps(as_json(page), indent=1, ensure_ascii=True))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        print("\n".join(as_text(page, max(60, width))))
    return EXIT_WRONG if page.wrong else EXIT_WELL


def _not_one_of_ours(directory: Path) -> str:
    which = "give the one that the launch script names at its end (checkpoint.dir in the spec)"
    try:
        if not directory.is_dir():
            return f"{directory} is not a directory; {which}"
        if any((directory / name).exists() for name in _SIGNS) or steps_on_disk(directory):
            return ""
    except OSError as error:
        return f"{directory} cannot be read: {error.strerror}; run this as the job's user"
    return f"{directory} is no checkpoint directory: no job has been started in it; {which}"


def look(directory: Path) -> Page:
    """Find out everything. Takes some seconds where a heartbeat is late or the network is asked."""
    found = view.settled(directory, NEWS_S)
    places = _places(directory)
    statuses = dict(_statuses(places))
    beats = [p.beat for p in found.members if p.beat is not None]
    said = heartbeats.read_said(directory, beats[0].world) if beats else {}
    launches = [view.launch(place) for place in places.values()]
    page = Page(
        directory,
        statuses,
        found,
        said,
        network=[],
        newest=_newest_checkpoint(directory),
        launches=tuple(launch for launch in launches if launch is not None),
        preflight=view.preflight(directory),
        unreadable=tuple(islice(_unreadable(directory, places), _MOST_UNREADABLE)),
    )
    if not beats or page.over is not None:
        return page
    here = processes.machine()
    own = next((beat for beat in beats if beat.machine == here), None)
    others = view.addresses(found, own.host if own else "", directory)
    if not others and len({beat.host for beat in beats}) == 1:
        return page  # one host: no network takes part
    ways = network.look(
        others, own.head if own else "", own.nic if own else "", own.address if own else ""
    )
    return replace(page, network=ways)


def _newest_checkpoint(directory: Path) -> int | None:
    try:
        return max(steps_on_disk(directory), default=None)
    except OSError:
        return None


def _places(directory: Path) -> dict[str, Path]:
    """Where the job, "", and each host of it have their locks and statuses."""
    places = {"": directory}
    try:
        found = sorted(path for path in (directory / "nodes").iterdir() if os.path.isdir(path))
    except OSError:
        return places  # see _unreadable
    return places | {path.name: path for path in found[:_MOST_HOSTS]}


def _unreadable(directory: Path, places: Mapping[str, Path]) -> Iterator[str]:
    """What is closed to this user, or no file of ours although it is called so."""
    folders = [directory / "nodes", directory / heartbeats.NAME]
    files = [place / name for place in places.values() for name in ("lock", "status")]
    files += [directory / "preflight.json", *heartbeats.files(directory)]
    for path in [*folders, *files]:
        try:
            if path in folders:
                os.listdir(path)
            else:
                read_file(path, view.MOST_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield plain(f"{path.relative_to(directory)}: {error.strerror}")


def _statuses(places: Mapping[str, Path]) -> Iterator[tuple[str, Status]]:
    for name, place in places.items():
        status = read_status(place)
        if status is not None:
            reason = plain(status.reason, 1000)
            yield (
                plain(name, 80),
                Status(status.word, plain(status.attempt, 40), status.step, reason),
            )


def as_text(page: Page, width: int = 100) -> list[str]:
    """The page for people."""
    lines = [f"{plain(str(page.directory), 2000)}, seen from {socket.gethostname()}"]
    for name, status in page.statuses.items():
        lines.append(f"status of {name}" if name else "status")
        lines[-1] += f": {_how(status, page.newest, name)}"
    lines += [f"cannot be read: {which}" for which in page.unreadable]
    if page.found.members and page.over is None:
        lines += ["", *_table(page.found.members, width)]
    lines += ["", *_verdict(page)]
    if page.refused is not None:
        found = page.refused.findings
        lines += [f"  {f['code']}  {f['host']}: {f['cause']}; {f['remedy']}" for f in found]
    for host, said in sorted(page.said.items()):
        if any(said):
            lines += ["", f"what {host} said before it ended:", *(f"  {line}" for line in said)]
    if page.over is None:
        lines += _stacks(page.found)
        if page.network:
            lines += ["", "the network now:"]
            lines += [f"  {'ok   ' if well else 'WRONG'} {says}" for well, says in page.network]
    return lines


def _how(status: Status, newest: int | None, host: str) -> str:
    """What a status file says. The step of one that is running is that of its start."""
    reason = f": {status.reason}" if status.reason else ""
    if status.word != "running":
        return f"{status.word}{_at_step(status)}{reason}"
    kept = "" if host or newest is None else f"; newest checkpoint: step {newest}"
    return f"running{reason}{kept}"


def _at_step(status: Status) -> str:
    """A script of one's own counts none."""
    return f" at step {status.step}" if status.step else ""


def _verdict(page: Page) -> list[str]:
    over = page.over
    if over is not None:
        how = {"done": "is done", "stopped": "was stopped cleanly"}.get(over.word, "has failed")
        step = f",{_at_step(over)}" if over.step else ""
        return [f"The job {how}{step}{': ' if over.reason else ''}{over.reason}."]
    if not page.found.members:
        return [_without_heartbeats(page)]
    said = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in page.found.sentences]
    if page.found.wrong:
        return said
    coming = [p.rank for p in page.found.members if p.condition == TO_COME]
    if coming:
        said = [f"The job is starting; {ranks(coming)} cannot be heard of here yet.", *said]
    else:
        said = [*_going(page.found.members), *said]
    return [*said, "But the network is not well: see below."] if page.unwell else said


def _without_heartbeats(page: Page) -> str:
    if page.refused is not None:
        return "The last launch was refused by the preflight, and nothing was started:"
    for launch in page.launches:
        if launch.lives:
            which = f"{launch.scheduled.name}, " if launch.scheduled else ""
            return (
                f"The job is alive ({which}process {launch.pid} on {launch.host}), but nothing of it has a "
                "heartbeat here: a command (train.command) never has one, and other jobs have none while "
                "they start."
            )
    if not page.statuses and page.preflight is not None:
        return "Nothing has begun: there was a preflight, which found no reason against a launch."
    away = sorted({launch.host for launch in page.launches if launch.lives is None})
    if away:
        asks = (launch.scheduled.ask for launch in page.launches if launch.scheduled)
        ask = next((f", or by '{command}'" for command in asks if command), "")
        return (
            "No process of this job has a heartbeat here; whether it is alive can be seen on "
            f"{', '.join(away)}{ask}."
        )
    return "No process of this job has a heartbeat here: it has not begun, or has ended."


def _going(members: Sequence[RankState]) -> list[str]:
    """Of those only whose heartbeats are young."""
    going = {p.rank: p.beat.step for p in members if p.condition == GOES_ON and p.beat}
    if not going:
        return []
    step = max(going.values())
    where = f"at step {step + 1}" if step >= 0 else "the first step has not begun"
    if len(going) == len(members):
        return [f"All ranks beat and go on, {where}."]
    return [f"These go on, {where}: {ranks(list(going))}."]


def _table(members: Sequence[RankState], width: int) -> Iterator[str]:
    """The odd ones first where not all can be shown."""
    well = (GOES_ON, WAITS)
    ordered = sorted(members, key=lambda p: (p.condition in well, p.rank))
    shown, rest = ordered[:_MOST_ROWS], ordered[_MOST_ROWS:]
    rows: list[tuple[str, ...]] = [
        ("rank", "host", "process", "is", "heartbeat", "step", "phase", "where")
    ]
    rows += [_row(member) for member in sorted(shown, key=lambda p: p.rank)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(size) for cell, size in zip(row[:-1], widths)]
        yield "  ".join([*cells, row[-1]])[:width].rstrip()
    if rest:
        yield f"… and {len(rest)} more (--json shows all)"


def _row(member: RankState) -> tuple[str, ...]:
    beat = member.beat
    if beat is None:
        return (str(member.rank), "?", "?", member.condition, "never", "?", "", "")
    pid = str(beat.pid) if member.state in (None, "", "?") else f"{beat.pid} ({member.state})"
    step = str(beat.step + 1) if beat.step >= 0 else "-"
    ago = f"{duration(member.age)} ago"
    return str(beat.rank), beat.host, pid, member.condition, ago, step, beat.phase, beat.where


def _stacks(found: Diagnosis) -> Iterator[str]:
    """Of those the verdict is about: all their lines, innermost first."""
    blamed = set(found.blamed)
    stacks = [(p.name, p.beat.stack) for p in found.members if p.rank in blamed and p.beat]
    for name, stack in stacks[:_MOST_STACKS]:
        if stack:
            yield from ("", f"{name}, innermost line first:", *(f"  {line}" for line in stack))


def as_json(page: Page) -> dict[str, Any]:
    """The page for programs."""
    return {
        "directory": str(page.directory),
        "seen_from": socket.gethostname(),
        "wrong": page.wrong,
        "status": {name: vars(status) for name, status in page.statuses.items()},
        "newest_checkpoint": page.newest,
        "preflight": vars(page.preflight) if page.preflight is not None else None,
        "unreadable": list(page.unreadable),
        "verdict": _verdict(page),
        "blamed": list(page.found.blamed),
        "ranks": [
            {
                "rank": p.rank,
                "condition": p.condition,
                "age_s": round(p.age, 1),
                "process_state": p.state,
                "beat": p.beat.as_json() if p.beat is not None else None,
            }
            for p in page.found.members
        ],
        "said": page.said,
        "network": [{"well": well, "says": says} for well, says in page.network],
    }
