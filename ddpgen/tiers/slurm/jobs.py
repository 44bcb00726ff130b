"""Questions to Slurm about a job, as argv, and its answers, as values. Pure.

Owns the formats of scontrol and sacct. Sources: scontrol(1), sacct(1), squeue(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddpgen.monitor.report import without_empty_columns

_SACCT = "JobID,State,ExitCode,NodeList,Elapsed,Timelimit"
_EMPTY = ("", "None", "(null)", "N/A", "Unknown", "None assigned", "0:0")
# Every state of squeue(1), JOB STATE CODES, up to Slurm 25.11: in the queue, with processes, ended for good.
WAITING = frozenset(
    ["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"]
)
RUNNING = frozenset([
    "COMPLETING", "CONFIGURING", "EXPEDITING", "POWER_UP_NODE", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT",
    "STOPPED", "SUSPENDED", "UPDATE_DB",
])  # fmt: skip
# train/launch/slurm/job.py has the same set.
ENDED = frozenset([
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
])  # fmt: skip
_MEANINGS = {"69:0": "it could not start", "75:0": "it was stopped"}  # exit codes of our script


class QueuedJob(NamedTuple):
    """One job in Slurm, or one task of an array. A field is "" if Slurm's answer lacks it."""

    id: str
    state: str
    reason: str = ""
    nodes: str = ""
    elapsed: str = ""
    limit: str = ""
    start_time: str = ""
    log: str = ""

    @property
    def waiting(self) -> bool:
        """True if the job has not begun, or will begin again."""
        return self.state in WAITING

    @property
    def live(self) -> bool:
        """True if the job waits or runs; False in an unknown state, because its end might not be recognized."""
        return self.state in WAITING | RUNNING

    @property
    def ended(self) -> bool:
        """True if the job has ended for good."""
        return self.state in ENDED

    @property
    def has_known_state(self) -> bool:
        """True if the state is one of WAITING, RUNNING and ENDED."""
        return self.state in WAITING | RUNNING | ENDED

    @property
    def task(self) -> str:
        """The index in its array; "" without an array, or if several tasks share a line."""
        index = self.id.partition("_")[2]
        return index if index.isdigit() else ""


def by_name(name: str) -> list[str]:
    """Ask for the numbers of this user's jobs of this name that wait or run."""
    return ["squeue", "--noheader", "--me", f"--name={name}", "--format=%F"]


def show_job(number: str, cluster: str) -> list[str]:
    """Ask the controller, which forgets a job some minutes after its end."""
    return ["scontrol", *_cluster_option(cluster), "show", "job", number]


def show_accounting(number: str, cluster: str) -> list[str]:
    """Ask the accounting, which a cluster may not have."""
    options = [
        "--noheader",
        "--parsable2",
        "--allocations",
        f"--jobs={number}",
        f"--format={_SACCT}",
    ]
    return ["sacct", *_cluster_option(cluster), *options]


def cancel_waiting(ids: Sequence[str], cluster: str) -> list[str]:
    """Take jobs that have not begun out of the queue, and leave running ones alone.

    The waiting tasks of an array have the id `59_0-7%2`; scancel takes the array's number for them. A single task has
    the id `59_3`. With such an id, --state=PENDING would cancel all tasks that wait (Slurm 22.05). If the task begins
    at that moment, scancel stops it cleanly.
    """
    job_ids = dict.fromkeys(
        n if n.partition("_")[2].isdigit() else n.partition("_")[0] for n in ids
    )
    state = [] if all("_" in job_id for job_id in job_ids) else ["--state=PENDING"]
    return ["scancel", *_cluster_option(cluster), *state, *job_ids]


def numbers(answer: str) -> list[str]:
    """Return the job numbers in an answer of squeue, without other lines."""
    return list(dict.fromkeys(word for word in answer.split() if word.isdigit()))


def from_sacct(answer: str) -> list[QueuedJob]:
    """Return the jobs in an answer of sacct. The last line of a job is its last start."""
    jobs: dict[str, QueuedJob] = {}
    for line in answer.splitlines():
        cells = line.strip().split("|")
        if len(cells) == 6 and re.match(r"\d+(?:_|$)", cells[0]):
            number, state, code, nodes, runs, limit = map(_plain, cells)
            jobs[number] = QueuedJob(
                number, state.partition(" ")[0], _ended(code), nodes, runs, limit
            )
    return list(jobs.values())


def from_scontrol(answer: str) -> list[QueuedJob]:
    """Return the jobs in an answer of `scontrol show job`."""
    records = re.split(r"^(?=JobId=\d)", answer, flags=re.MULTILINE)
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
        reason=value.get("Reason", ""),
        nodes=value.get("NodeList", ""),
        limit=value.get("TimeLimit", ""),
        log=log[1] if log else "",
    )
    if job.waiting:
        return job._replace(start_time=value.get("StartTime", ""))
    ended = _ended(value.get("ExitCode", "")) if job.ended else ""
    return job._replace(reason=ended or job.reason, elapsed=value.get("RunTime", ""))


def unknown(answer: str) -> bool:
    """True if the answer says that Slurm does not know the job, or the task of an array, any more."""
    return "Invalid job id" in answer or re.search(r"Job \S+ not found", answer) is not None


def submitted(answer: str) -> tuple[str, str] | None:
    """Return the id and the cluster in the output of `sbatch --parsable`; None if it names no job."""
    matches = re.findall(r"^(\d+)(?:;(\S+))?$", answer, re.MULTILINE)
    return matches[-1] if matches else None


def table(jobs: Iterable[QueuedJob]) -> list[tuple[str, ...]]:
    """Return the rows of a table for people, the heading first."""
    heads = ("job", "state", "nodes", "runs", "limit", "starts", "why")
    rows = [(j.id, j.state, j.nodes, j.elapsed, j.limit, j.start_time, j.reason) for j in jobs]
    return without_empty_columns([heads, *rows])


def _cluster_option(cluster: str) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []


def _plain(cell: str) -> str:
    return "" if cell.strip() in _EMPTY else cell.strip()


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
