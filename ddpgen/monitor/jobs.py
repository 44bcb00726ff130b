"""What Slurm says of a job: the questions as argv, the answers as values. Pure.

Owns the formats of squeue, sacct and scontrol. Sources: squeue(1), sacct(1), scontrol(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_SQUEUE = "%i|%T|%r|%N|%M|%l|%S"
_SACCT = "JobID,State,ExitCode,NodeList,Elapsed,Timelimit"
_NOTHING = ("", "None", "(null)", "N/A", "Unknown", "None assigned", "0:0")
# Of what is in the queue. Everything else has no process any more, or none yet.
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
_OVER = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
_MEANINGS = {
    "69:0": "it could not start",
    "75:0": "it was stopped",
}  # of an exit code of our script


class Job(NamedTuple):
    """One job as Slurm sees it, or one task of an array; "" for what is not told."""

    id: str
    state: str
    why: str = ""
    nodes: str = ""
    runs: str = ""
    limit: str = ""
    starts: str = ""
    log: str = ""

    @property
    def waits(self) -> bool:
        """It has not begun, or is to begin again."""
        return self.state in _WAITING

    @property
    def over(self) -> bool:
        """It has ended, and does not come back."""
        return self.state in _OVER

    @property
    def task(self) -> str:
        """The index in its array, or ""; also where several tasks share a line."""
        index = self.id.partition("_")[2]
        return index if index.isdigit() else ""


def in_queue(ids: Sequence[str], cluster: str) -> list[str]:
    """Ask for what waits or runs, of these jobs."""
    return ["squeue", *_on(cluster), "--noheader", f"--jobs={','.join(ids)}", f"--format={_SQUEUE}"]


def by_name(name: str) -> list[str]:
    """Ask for what waits or runs under this name, of this user."""
    return ["squeue", "--noheader", "--me", f"--name={name}", f"--format={_SQUEUE}"]


def in_the_books(ids: Sequence[str], cluster: str) -> list[str]:
    """Ask the accounting, which a cluster may not have."""
    asked = [f"--jobs={','.join(ids)}", f"--format={_SACCT}"]
    return ["sacct", *_on(cluster), "--noheader", "--parsable2", "--allocations", *asked]


def in_memory(number: str, cluster: str) -> list[str]:
    """Ask the controller, which forgets a job some minutes after its end."""
    return ["scontrol", *_on(cluster), "--oneliner", "show", "job", number]


def cancel_waiting(ids: Sequence[str], cluster: str) -> list[str]:
    """Take out of the queue what has not begun; what runs is left alone.

    squeue writes `59_[0-7%2]` for what waits of an array; scancel knows that by the array's number.
    """
    known = dict.fromkeys(number.partition("_[")[0] for number in ids)
    return ["scancel", *_on(cluster), "--state=PENDING", *known]


def from_squeue(said: str) -> list[Job]:
    """The jobs of an answer of squeue; other lines are passed over."""
    jobs = []
    for cells in _cells(said, 7):
        number, state, why, nodes, runs, limit, starts = map(_plain, cells)
        running = state not in _WAITING
        jobs.append(
            Job(
                number, state, why, nodes, runs if running else "", limit, "" if running else starts
            )
        )
    return jobs


def from_sacct(said: str) -> list[Job]:
    """The jobs of an answer of sacct; the last line of a job is its last start."""
    found: dict[str, Job] = {}
    for cells in _cells(said, 6):
        number, state, code, nodes, runs, limit = map(_plain, cells)
        found[number] = Job(number, state.partition(" ")[0], _ended(code), nodes, runs, limit)
    return list(found.values())


def from_scontrol(said: str) -> list[Job]:
    """The jobs of an answer of scontrol, one on each line."""
    jobs = []
    for line in said.splitlines():
        if not re.match(r"JobId=\d", line):
            continue
        task = _value(line, "ArrayTaskId")
        number = f"{_value(line, 'ArrayJobId')}_{task}" if task else _value(line, "JobId")
        why = _ended(_value(line, "ExitCode")) or _value(line, "Reason")
        names = ("NodeList", "RunTime", "TimeLimit")
        nodes, runs, limit = (_value(line, name) for name in names)
        log = re.search(r" StdOut=(.*?)(?: [A-Z]\w*=|\s*$)", line)
        state = _value(line, "JobState")
        jobs.append(Job(number, state, why, nodes, runs, limit, log=log[1] if log else ""))
    return jobs


def unknown(said: str) -> bool:
    """Whether Slurm says that it does not know the job (any more)."""
    return "Invalid job id" in said


def submitted(said: str) -> tuple[str, str] | None:
    """Id and cluster in what `sbatch --parsable` said; None when there is none."""
    found = re.findall(r"^(\d+)(?:;(\S+))?$", said, re.MULTILINE)
    return found[-1] if found else None


def table(jobs: Iterable[Job]) -> list[tuple[str, ...]]:
    """Rows for people, the heading first; columns that say nothing are left out."""
    heads = ("job", "state", "nodes", "runs", "limit", "starts", "why")
    rows = [(j.id, j.state, j.nodes, j.runs, j.limit, j.starts, j.why) for j in jobs]
    told = [column for column in range(len(heads)) if any(row[column] for row in rows)]
    return [tuple(row[column] for column in told) for row in (heads, *rows)]


def _on(cluster: str) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []


def _cells(said: str, count: int) -> Iterable[list[str]]:
    for line in said.splitlines():
        cells = line.strip().split("|")
        if len(cells) == count and re.match(r"\d+(?:_|$)", cells[0]):
            yield cells


def _plain(cell: str) -> str:
    return "" if cell.strip() in _NOTHING else cell.strip()


def _value(line: str, name: str) -> str:
    found = re.search(rf"(?:^| ){name}=(\S*)", line)
    return _plain(found[1]) if found else ""


def _ended(code: str) -> str:
    """`1:0` in words: the exit code, or after the colon the signal."""
    if not code or code == "0:0":
        return ""
    status, _, signal = code.partition(":")
    if signal == "53":  # Slurm's own
        return "signal 53: the node could not write the log, or enter the directory; do all nodes see it?"
    if signal not in ("", "0"):
        return f"signal {signal}"
    meaning = _MEANINGS.get(code)
    return f"exit code {status}" + (f": {meaning}" if meaning else "")
