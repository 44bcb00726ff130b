"""Questions to Slurm about a job, as argv, and its answers, as values. Pure.

Owns the formats of scontrol and sacct. Sources: scontrol(1), sacct(1), squeue(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddpgen.monitor.report import telling

_SACCT = "JobID,State,ExitCode,NodeList,Elapsed,Timelimit"
_NOTHING = ("", "None", "(null)", "N/A", "Unknown", "None assigned", "0:0")
# Every state of squeue(1), JOB STATE CODES, up to Slurm 25.11: in the queue, with processes, ended for good.
WAITING = frozenset(
    ["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"]
)
RUNNING = frozenset([
    "COMPLETING", "CONFIGURING", "EXPEDITING", "POWER_UP_NODE", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT",
    "STOPPED", "SUSPENDED", "UPDATE_DB",
])  # fmt: skip
# train/launch/slurm/job.py has the same.
OVER = frozenset([
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
])  # fmt: skip
_MEANINGS = {"69:0": "it could not start", "75:0": "it was stopped"}  # exit codes of our script


class QueuedJob(NamedTuple):
    """One job in Slurm, or one task of an array. A field is "" if Slurm's answer lacks it."""

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
        """True if the job has not begun, or will begin again."""
        return self.state in WAITING

    @property
    def live(self) -> bool:
        """True if the job waits or runs; False in an unknown state, because its end might not be recognized."""
        return self.state in WAITING | RUNNING

    @property
    def over(self) -> bool:
        """True if the job has ended for good."""
        return self.state in OVER

    @property
    def known(self) -> bool:
        """True if the state is one of WAITING, RUNNING and OVER."""
        return self.state in WAITING | RUNNING | OVER

    @property
    def task(self) -> str:
        """The index in its array; "" without an array, or if several tasks share a line."""
        index = self.id.partition("_")[2]
        return index if index.isdigit() else ""


def by_name(name: str) -> list[str]:
    """Ask for the numbers of this user's jobs of this name that wait or run."""
    return ["squeue", "--noheader", "--me", f"--name={name}", "--format=%F"]


def in_memory(number: str, cluster: str) -> list[str]:
    """Ask the controller, which forgets a job some minutes after its end."""
    return ["scontrol", *_on(cluster), "show", "job", number]


def in_the_books(number: str, cluster: str) -> list[str]:
    """Ask the accounting, which a cluster may not have."""
    asked = ["--noheader", "--parsable2", "--allocations", f"--jobs={number}", f"--format={_SACCT}"]
    return ["sacct", *_on(cluster), *asked]


def cancel_waiting(ids: Sequence[str], cluster: str) -> list[str]:
    """Take jobs that have not begun out of the queue, and leave running ones alone.

    The waiting tasks of an array have the id `59_0-7%2`; scancel takes the array's number for them.
    """
    known = dict.fromkeys(n if n.partition("_")[2].isdigit() else n.partition("_")[0] for n in ids)
    return ["scancel", *_on(cluster), "--state=PENDING", *known]


def numbers(said: str) -> list[str]:
    """Return the job numbers in an answer of squeue, without other lines."""
    return list(dict.fromkeys(word for word in said.split() if word.isdigit()))


def from_sacct(said: str) -> list[QueuedJob]:
    """Return the jobs in an answer of sacct. The last line of a job is its last start."""
    found: dict[str, QueuedJob] = {}
    for line in said.splitlines():
        cells = line.strip().split("|")
        if len(cells) == 6 and re.match(r"\d+(?:_|$)", cells[0]):
            number, state, code, nodes, runs, limit = map(_plain, cells)
            found[number] = QueuedJob(
                number, state.partition(" ")[0], _ended(code), nodes, runs, limit
            )
    return list(found.values())


def from_scontrol(said: str) -> list[QueuedJob]:
    """Return the jobs in an answer of `scontrol show job`."""
    records = re.split(r"^(?=JobId=\d)", said, flags=re.MULTILINE)
    return [_job(record) for record in records if record.startswith("JobId=")]


def _job(record: str) -> QueuedJob:
    # The user chooses the job's name, which fills the rest of the first line, and the text behind Command=. Both may
    # look like any field.
    first, _, rest = record.partition("\n")
    slurms = first.partition(" JobName=")[0], rest.partition("   Command=")[0]
    fields = re.findall(r"(?:^|\s)([A-Z]\w*)=(\S*)", "\n".join(slurms))
    value = {name: _plain(text) for name, text in reversed(fields)}
    task = value.get("ArrayTaskId", "")
    log = re.search(r"^   StdOut=(.*)$", record, re.MULTILINE)
    job = QueuedJob(
        id=f"{value.get('ArrayJobId')}_{task}" if task else value["JobId"],
        state=value.get("JobState", ""),
        why=value.get("Reason", ""),
        nodes=value.get("NodeList", ""),
        limit=value.get("TimeLimit", ""),
        log=log[1] if log else "",
    )
    if job.waits:
        return job._replace(starts=value.get("StartTime", ""))
    ended = _ended(value.get("ExitCode", "")) if job.over else ""
    return job._replace(why=ended or job.why, runs=value.get("RunTime", ""))


def unknown(said: str) -> bool:
    """True if the answer says that Slurm does not know the job (any more)."""
    return "Invalid job id" in said


def submitted(said: str) -> tuple[str, str] | None:
    """Return the id and the cluster in the output of `sbatch --parsable`; None if it names no job."""
    found = re.findall(r"^(\d+)(?:;(\S+))?$", said, re.MULTILINE)
    return found[-1] if found else None


def table(jobs: Iterable[QueuedJob]) -> list[tuple[str, ...]]:
    """Return the rows of a table for people, the heading first."""
    heads = ("job", "state", "nodes", "runs", "limit", "starts", "why")
    rows = [(j.id, j.state, j.nodes, j.runs, j.limit, j.starts, j.why) for j in jobs]
    return telling([heads, *rows])


def _on(cluster: str) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []


def _plain(cell: str) -> str:
    return "" if cell.strip() in _NOTHING else cell.strip()


def _ended(code: str) -> str:
    """Return `1:0` in words. The exit code is before the colon, a signal behind it."""
    if not code or code == "0:0":
        return ""
    status, _, signal = code.partition(":")
    if signal == "53":  # Slurm's own
        return "signal 53: the node could not write the log, or enter the directory; do all nodes see it?"
    if signal not in ("", "0"):
        return f"signal {signal}"
    meaning = _MEANINGS.get(code)
    return f"exit code {status}" + (f": {meaning}" if meaning else "")
