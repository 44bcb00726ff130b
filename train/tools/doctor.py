"""`python -m train doctor CHECKPOINT_DIR`: the rank that is missing, the position of each rank, and the network.

Owns the printed page and the exit code: 0 if all is well or has ended well, 1 if something is wrong, 2 for wrong usage,
such as a directory without a job. Changes nothing. Spells out control characters, because a path or the text of an
exception may have some.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from train.base import processes
from train.base.console import plain
from train.base.files import open_file, read_file
from train.health import heartbeats, network, view
from train.health.diagnosis import GOES_ON, TO_COME, WAITS, Diagnosis, RankState, duration, ranks
from train.health.view import Preflight
from train.run import lock
from train.run.layout import steps_on_disk
from train.run.lock import Holder
from train.run.status import Status, read_status

EXIT_WELL, EXIT_WRONG, EXIT_USAGE = 0, 1, 2
_SIGNS = ("status", "lock", "nodes", heartbeats.NAME, "metrics.jsonl", "preflight.json")
_MOST_ROWS = 64
_MOST_STACKS = 4
_MOST_HOSTS = 32
_MOST_UNREADABLE = 8
_TAIL = 1 << 18  # the last bytes of metrics.jsonl, which are read
_NETWORK_BOUND = 0.5  # the part of a step that every rank waits if the network is the limit


@dataclass(frozen=True)
class Page:
    """Everything that the doctor has found.

    `statuses`: by the host's name; "" is the job's own status.
    `newest`: the step of the newest checkpoint here.
    `holders`: the holders of the job's directory and of the hosts' directories, each with true if the holder is alive,
    or None if it belongs to another host and is not visible here.
    `unreadable`: the files that cannot be read here, and why.
    `pace`: a sentence on the cause of long steps, or "".
    """

    directory: Path
    statuses: dict[str, Status]
    diagnosis: Diagnosis
    network: list[network.Answer]
    newest: int | None
    holders: list[tuple[Holder, bool | None]]
    preflight: Preflight
    unreadable: tuple[str, ...]
    pace: str

    @property
    def final_status(self) -> Status | None:
        """The final status, or None without one. After the end, the heartbeats only show the past."""
        job = self.statuses.get("")
        of_hosts = [s for name, s in self.statuses.items() if name]
        ends = [job] if job is not None and (job.word != "running" or not of_hosts) else of_hosts
        return ends[0] if ends and all(s.word != "running" for s in ends) else None

    @property
    def refused(self) -> bool:
        """True if the preflight refused the last launch, and the job never came further."""
        return self.preflight.ok is False and not self.statuses and not self.diagnosis.members

    @property
    def wrong(self) -> bool:
        """True if the user has something to do."""
        if self.final_status is not None:
            return self.final_status.word == "failed"
        return self.diagnosis.wrong or self.unwell or bool(self.unreadable) or self.refused

    @property
    def unwell(self) -> bool:
        """True if a test of the network found a fault."""
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
    why = _directory_error(directory)
    if why:
        parser.exit(EXIT_USAGE, f"{parser.prog}: {plain(why, 2000)}\n")
    page = examine_run(directory)
    if options.json:
        print(json.dumps(as_json(page), indent=1, ensure_ascii=True))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        print("\n".join(plain(line, len(line)) for line in as_text(page, max(60, width))))
    return EXIT_WRONG if page.wrong else EXIT_WELL


def _directory_error(directory: Path) -> str:
    which = "give the one that the launch script names at its end (checkpoint.dir in the spec)"
    try:
        if not directory.is_dir():
            return f"{directory} is not a directory; {which}"
        if any((directory / name).exists() for name in _SIGNS) or steps_on_disk(directory):
            return ""
    except OSError as error:
        return f"{directory} cannot be read: {error.strerror}; run this as the job's user"
    return f"{directory} is no checkpoint directory: no job has been started in it; {which}"


def examine_run(directory: Path) -> Page:
    """Read all files, and test the network if the job runs on several hosts, which takes about two seconds."""
    diagnosis = view.diagnose(directory)
    directories = _lock_directories(directory)
    beats = [p.beat for p in diagnosis.members if p.beat is not None]
    page = Page(
        directory,
        {name: status for name, path in directories.items() if (status := read_status(path))},
        diagnosis,
        network=[],
        newest=_newest_checkpoint(directory),
        holders=list(_holders(directories.values())),
        preflight=view.read_preflight(directory),
        unreadable=tuple(islice(_unreadable(directory, directories), _MOST_UNREADABLE)),
        pace=_pace(directory),
    )
    if not beats or page.final_status is not None:
        return page
    this_machine = processes.machine()
    own_beat = next((beat for beat in beats if beat.machine == this_machine), None)
    others = view.addresses(diagnosis, own_beat.host if own_beat else "", page.preflight)
    if not others and len({beat.host for beat in beats}) == 1:
        return page  # one host: no network takes part
    near = (own_beat.head, own_beat.nic, own_beat.address) if own_beat else ()
    return replace(page, network=network.check_connections(others, *near))


def _newest_checkpoint(directory: Path) -> int | None:
    try:
        return max(steps_on_disk(directory), default=None)
    except OSError:
        return None


def _pace(directory: Path) -> str:
    """Return a sentence if the newest times of the ranks show an uneven split, a rank that the others wait for, or a
    slow network; else "".
    """
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        with open_file(directory / "metrics.jsonl") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = [line for line in file.read().splitlines() if b'"kind": "ranks"' in line]
        row = json.loads(lines[-1]) if lines else {}
        counts, split = row.get("shares") or [0], ""
        if len(set(counts)) > 1:
            split = f"The ranks compute {', '.join(map(str, counts))} micro-batches of a step. "
        if slow := row.get("slow"):
            return f"{split}The others wait {slow['cost']:.0%} of each step for {slow['name']}."
        if row and (part := min(row["waiting"]) / row["seconds"]) > _NETWORK_BOUND:
            return (
                f"{split}Every rank waits {part:.0%} of each step for the exchange with the others: the network is the limit "
                "(ddpgen probe measures it)."
            )
        return split.strip()
    return ""


def _lock_directories(directory: Path) -> dict[str, Path]:
    """The directories with the locks and statuses: of the job under "", and of each host under its name."""
    directories = {"": directory}
    try:
        found = sorted(path for path in (directory / "nodes").iterdir() if os.path.isdir(path))
    except OSError:
        return directories  # _unreadable() reports it
    return directories | {path.name: path for path in found[:_MOST_HOSTS]}


def _holders(directories: Iterable[Path]) -> Iterator[tuple[Holder, bool | None]]:
    for path in directories:
        with contextlib.suppress(OSError):
            read_file(path / "lock")  # raises for a pipe, and for a file that is too large
            holder = lock.read_lock(path)
            if holder is not None:
                here = holder.is_here
                yield holder, lock.look(path, holder, 0.0) != "over" if here else None


def _unreadable(directory: Path, directories: Mapping[str, Path]) -> Iterator[str]:
    """Yield the paths that this user may not read, or that have one of our names but are no ordinary files, and why."""
    folders = [directory / "nodes", directory / heartbeats.NAME]
    files = [place / name for place in directories.values() for name in ("lock", "status")]
    files += [directory / "preflight.json", *heartbeats.files(directory)]
    for path in [*folders, *files]:
        try:
            if path in folders:
                os.listdir(path)
            else:
                read_file(path, view.MAX_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield f"{path.relative_to(directory)}: {error.strerror}"


def as_text(page: Page, width: int = 100) -> list[str]:
    """The page as lines for people."""
    lines = [f"{page.directory}, seen from {socket.gethostname()}"]
    for name, status in page.statuses.items():
        whose = f"status of {name}" if name else "status"
        lines.append(f"{whose}: {_describe_status(status, page.newest, name)}")
    lines += [f"cannot be read: {which}" for which in page.unreadable]
    if page.diagnosis.members and page.final_status is None:
        lines += ["", *_table(page.diagnosis.members, width)]
    lines += ["", *_verdict(page)]
    if page.refused:
        found = page.preflight.findings
        lines += [f"  {f.code}  {f.host}: {f.cause}; {f.remedy}" for f in found]
    if page.final_status is None:
        lines += _stacks(page.diagnosis)
        if page.network:
            lines += ["", "the network now:"]
            lines += [f"  {'ok   ' if well else 'WRONG'} {says}" for well, says in page.network]
    return lines


def _describe_status(status: Status, newest: int | None, host: str) -> str:
    """A status as text. The step of a running job is left out, because it is the step of its start."""
    reason = f": {status.reason}" if status.reason else ""
    if status.word != "running":
        return f"{status.word}{_at_step(status)}{reason}"
    kept = "" if host or newest is None else f"; newest checkpoint: step {newest}"
    return f"running{reason}{kept}"


def _at_step(status: Status) -> str:
    """` at step N`, or "" for a user's script, which counts no steps."""
    return f" at step {status.step}" if status.step else ""


def _verdict(page: Page) -> list[str]:
    over = page.final_status
    if over is not None:
        how = {"done": "is done", "stopped": "was stopped cleanly"}.get(over.word, "has failed")
        step = f",{_at_step(over)}" if over.step else ""
        return [f"The job {how}{step}{': ' if over.reason else ''}{over.reason}."]
    if not page.diagnosis.members:
        return [_without_heartbeats(page)]
    said = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in page.diagnosis.sentences]
    if page.diagnosis.wrong:
        return said
    coming = [p.rank for p in page.diagnosis.members if p.condition == TO_COME]
    if coming:
        said = [f"The job is starting; {ranks(coming)} cannot be heard of here yet.", *said]
    else:
        said = [*_going(page.diagnosis.members), *said]
    if page.pace:
        said.append(page.pace)
    return [*said, "But the network is not well: see below."] if page.unwell else said


def _without_heartbeats(page: Page) -> str:
    if page.refused:
        return "The last launch was refused by the preflight, and nothing was started:"
    for holder, lives in page.holders:
        if lives:
            which = f"{holder.scheduled.name}, " if holder.scheduled else ""
            return (
                f"The job is alive ({which}process {holder.launcher[0]} on {holder.host}), but nothing "
                "of it has a heartbeat here: a command (train.command) never has one, and other jobs have "
                "none while they start."
            )
    if not page.statuses and page.preflight.ok is not None:
        return "Nothing has begun: there was a preflight, which found no reason against a launch."
    away = [holder for holder, lives in page.holders if lives is None]
    if away:
        jobs = [holder.scheduled for holder in away]
        ask = next(
            (f", or by '{job.query_command}'" for job in jobs if job and job.query_command), ""
        )
        return (
            "No process of this job has a heartbeat here; whether it is alive can be seen on "
            f"{', '.join(sorted({holder.host for holder in away}))}{ask}."
        )
    return "No process of this job has a heartbeat here: it has not begun, or has ended."


def _going(members: Sequence[RankState]) -> list[str]:
    going = {p.rank: p.beat.step for p in members if p.condition == GOES_ON and p.beat}
    if not going:
        return []
    step = max(going.values())
    where = f"at step {step + 1}" if step >= 0 else "the first step has not begun"
    if len(going) == max(p.beat.world_size for p in members if p.beat):
        return [f"All ranks beat and go on, {where}."]
    return [f"These go on, {where}: {ranks(list(going))}."]


def _table(members: Sequence[RankState], width: int) -> Iterator[str]:
    """Yield the table of the ranks. If there are too many ranks, it leaves out ranks in good condition first."""
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


def _stacks(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the stacks of the first four blamed ranks, innermost line first."""
    blamed = set(diagnosis.blamed)
    stacks = [(p.name, p.beat.stack) for p in diagnosis.members if p.rank in blamed and p.beat]
    for name, stack in stacks[:_MOST_STACKS]:
        if stack:
            yield from ("", f"{name}, innermost line first:", *(f"  {line}" for line in stack))


def as_json(page: Page) -> dict[str, Any]:
    """The page as JSON for programs."""
    check = page.preflight
    return {
        "directory": str(page.directory),
        "seen_from": socket.gethostname(),
        "wrong": page.wrong,
        "status": {name: vars(status) for name, status in page.statuses.items()},
        "newest_checkpoint": page.newest,
        "preflight": None
        if check.ok is None
        else {"ok": check.ok, "findings": list(map(vars, check.findings))},
        "unreadable": list(page.unreadable),
        "verdict": _verdict(page),
        "blamed": list(page.diagnosis.blamed),
        "ranks": [asdict(member) for member in page.diagnosis.members],
        "network": [{"well": well, "says": says} for well, says in page.network],
    }
