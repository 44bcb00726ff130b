"""Run Slurm's commands, with retries, and read their answers.

Owns the calls of scontrol, squeue and sinfo, and the reading of their output. Decides nothing. If a command does not
answer, a state is UNKNOWN, which is never taken for an answer. Any other value is None or empty then.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from train.base import nic
from train.base.console import say

# An answer may take several times as long as Slurm's own MessageTimeout.
_ANSWER_S = 60.0
# A wait is reported once it has lasted so long, and again at this interval.
_SILENCE_S, _REPORT_AGAIN_S = 10.0, 300.0
# srun's words about a node that does not answer (22.05).
_LAUNCH_FAILED = re.compile(r"failed on node (\S+):")
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*)=(\S*)")
# srun's inputs, without SLURM_: "Input environment variables" of srun(1), 22.05 to 24.11. sbatch hands on
# those of the allocation or the shell in which it was called.
_SRUN_INPUTS = (
    "ACCOUNT ACCTG_FREQ ARBITRARY_NODELIST BCAST BCAST_EXCLUDE BURST_BUFFER CLUSTERS CLUSTER_CONSTRAINT COMPRESS "
    "CONSTRAINT CONTAINER CONTAINER_ID CORE_SPEC CPUS_PER_GPU CPUS_PER_TASK CPU_BIND CPU_BIND_LIST CPU_BIND_TYPE "
    "CPU_BIND_VERBOSE CPU_FREQ_REQ DEBUG DELAY_BOOT DEPENDENCY DISABLE_STATUS DISTRIBUTION DIST_PLANESIZE EPILOG "
    "EXACT EXCLUSIVE EXIT_ERROR EXIT_IMMEDIATE EXPORT_ENV GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND "
    "GPU_FREQ GRES GRES_FLAGS HINT HOSTFILE IMMEDIATE KILL_BAD_EXIT LABELIO MEM_BIND MEM_BIND_LIST MEM_BIND_PREFER "
    "MEM_BIND_SORT MEM_BIND_TYPE MEM_BIND_VERBOSE MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE MPI_TYPE NCORES_PER_SOCKET "
    "NETWORK NO_KILL NPROCS NSOCKETS_PER_NODE NTASKS NTASKS_PER_CORE NTASKS_PER_GPU NTASKS_PER_NODE "
    "NTASKS_PER_SOCKET NTASKS_PER_TRES OPEN_MODE OVERCOMMIT OVERLAP PARTITION POWER PROFILE PROLOG QOS REMOTE_CWD "
    "REQ_SWITCH RESERVATION RESV_PORTS SEND_LIBS SIGNAL SPREAD_JOB SRUN_REDUCE_TASK_EXIT_MSG STDERRMODE STDINMODE "
    "STDOUTMODE STEP_GRES STEP_KILLED_MSG_NODE_ID TASK_EPILOG TASK_PROLOG TEST_EXEC THREADS THREADS_PER_CORE "
    "THREAD_SPEC TIMELIMIT TIME_FORMAT TREE_WIDTH TRES_BIND TRES_PER_TASK UMASK UNBUFFEREDIO USE_MIN_NODES WAIT "
    "WAIT4SWITCH WCKEY WORKING_DIR"
)
_NOT_FOR_SRUN = frozenset(f"SLURM_{name}" for name in _SRUN_INPUTS.split())
# Slurm accepts another ExcNodeList only after the requeue. But the requeue signals all of the job at once, and kills it
# after KillWait (22.05). So a shell that ignores these signals from its beginning runs both commands.
_KEEPS_NODES = 100
_LEAVE_OUT = 'trap \'\' TERM USR1 INT; exec scontrol update JobId="$1" ExcNodeList="$2"'
_REQUEUE = f"""\
trap '' TERM USR1 INT
scontrol requeue "$1" || exit
[ $# -eq 1 ] || scontrol update JobId="$1" ExcNodeList="$2" || exit {_KEEPS_NODES}
"""
# The states of a job that has ended and does not come back (squeue(1), JOB STATE CODES; up to Slurm 25.11). A job that
# goes back into the queue is COMPLETING until it is PENDING. ddpgen/tiers/slurm/jobs.py has the same list.
OVER = frozenset([
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
])  # fmt: skip


class State(enum.Enum):
    """The state of a job during one of its starts.

    RUNNING: it runs. REQUEUED: Slurm itself has requeued it. ENDED: a time limit or a preemption has ended it, and it
    may be requeued. OVER: it was cancelled. UNKNOWN: Slurm has not answered.
    """

    RUNNING = enum.auto()
    REQUEUED = enum.auto()
    ENDED = enum.auto()
    OVER = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True)
class JobRecord:
    """The record of one job in `scontrol show job`. Slurm writes local times in whole seconds."""

    fields: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, job: str) -> JobRecord | None:
        """Return the record of `job`, a number or an array's `NUMBER_INDEX`; None without one."""
        for record in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE):
            # Two parts are the user's, and may look like any field: the job's name, to the end of the first line, and
            # the text from its command on.
            first, _, rest = record.partition("\n")
            slurms = first.partition(" JobName=")[0], rest.partition("   Command=")[0]
            fields = dict(reversed(_FIELD.findall("\n".join(slurms))))
            array = f"{fields.get('ArrayJobId')}_{fields.get('ArrayTaskId')}"
            if job in (fields.get("JobId"), array):
                return cls(fields)
        return None

    @property
    def name(self) -> str:
        """The job's name in Slurm: its number, or ARRAY_INDEX."""
        if self.index:
            return f"{self.fields['ArrayJobId']}_{self.index}"
        return self.fields["JobId"]

    @property
    def index(self) -> str:
        """The job's index in an array, or ""."""
        return self.fields.get("ArrayTaskId", "")

    @property
    def submitted(self) -> float | None:
        """The time at which the job was submitted, in seconds since the epoch; None if that is not known."""
        try:
            return datetime.fromisoformat(self.fields.get("SubmitTime", "")).timestamp()
        except ValueError:
            return None

    @property
    def time_limit_s(self) -> int | None:
        """The job's time limit in seconds; None without one. Slurm writes [DAYS-]HH:MM:SS, or a word."""
        found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", self.fields.get("TimeLimit", ""))
        if found is None:
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    def has(self, field: str) -> bool:
        """True if Slurm shows a value for the field."""
        return self.fields.get(field, "") not in ("", "(null)")

    @property
    def comes_back(self) -> bool:
        """False if Slurm refuses a requeue, because of the site or of sbatch --no-requeue."""
        return self.fields.get("Requeue") != "0"


def state(record: JobRecord | None, requeue_count: int) -> State:
    """Return the state of the job during its start after `requeue_count` requeues."""
    if record is None:
        return State.UNKNOWN
    fields = record.fields
    if fields.get("JobState") == "RUNNING":
        return State.RUNNING
    # Slurm's Restarts already includes the next start.
    if fields.get("Restarts") == str(requeue_count + 1):
        return State.REQUEUED
    if fields.get("Reason") == "TimeLimit":
        return State.ENDED
    preempted = fields.get("PreemptTime", "None")
    # The PreemptTime of an earlier start may still be there. ISO times compare like their texts.
    if preempted[:1].isdigit() and preempted >= fields.get("StartTime", ""):
        return State.ENDED
    return State.OVER


def is_over(squeue_state: str | None) -> bool | None:
    """Return True if a job with this state is over, or if the state is None: there is no such job. Return None if the
    state is "", because squeue has not answered."""
    if squeue_state is None or squeue_state in OVER:
        return True
    return None if squeue_state == "" else False


def kill_wait_s(config: str) -> float:
    """Return the seconds from TERM until this program has to act, because KILL comes after Slurm's KillWait."""
    found = re.search(r"^KillWait *= *([0-9]+)", config, re.MULTILINE)
    kill_wait = int(found[1]) if found else 30
    return float(kill_wait - 8 if kill_wait > 16 else kill_wait // 2)


class Controller:
    """Slurm's commands about a job. `pause`: the function that waits between two questions."""

    def __init__(
        self,
        job: str,
        pause: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job, self._pause, self._now = job, pause, now
        self._reported: float | None = None

    def show(self, pauses: Sequence[float] = (1, 1, 1)) -> JobRecord | None:
        """Return the job's record; None without an answer. Ask again after each of `pauses` (seconds)."""
        words = ("scontrol", "show", "job", self.job)
        for pause in (0, *pauses):
            self._pause(pause)
            code, text, why = run_command(*words, on_silence=lambda: self._report(words))
            if code == 0:
                self._reported = None
                return JobRecord.parse(text, self.job)
            self._report(words, why)
        return None

    def _report(self, words: Sequence[str], error: str = "") -> None:
        """Print that this job waits for Slurm: once, and again at long intervals, until Slurm answers."""
        if self._reported is not None and self._now() - self._reported < _REPORT_AGAIN_S:
            return
        self._reported = self._now()
        answer = f"failed ({error.strip()})" if error.strip() else "has not answered yet"
        say(f"waiting for Slurm's controller: {' '.join(words)} {answer}")

    def state_of(self, job: str) -> str | None:
        """Return the state of another job. None: no job has that number. "": Slurm does not answer."""
        for turn in range(1, 7):
            code, text, why = run_command("squeue", "-h", "-j", job, "-o", "%T")
            if code == 0:
                return text.split()[0] if text.split() else None
            if "Invalid job id" in why:
                return None
            say(f"squeue does not answer (try {turn} of 6): {why.strip()}")
            self._pause(5)
        return ""

    def hostnames(self, node_list: str) -> list[str]:
        """Return the names in Slurm's list of nodes, in order; [] without an answer."""
        code, text, _ = run_command("scontrol", "show", "hostnames", node_list)
        return text.split() if code == 0 else []

    def address_of(self, node: str) -> str:
        """Return the name of `node`, or its NodeAddr if Slurm alone knows the name."""
        try:
            nic.resolve(node)
        except nic.NetworkError:
            code, text, _ = run_command("scontrol", "show", "node", node)
            found = re.search(r"\bNodeAddr=(\S+)", text)
            return found[1] if code == 0 and found else node
        return node

    def kill_wait_s(self) -> float:
        return kill_wait_s(run_command("scontrol", "show", "config")[1])

    def requeue(self, leave_out: Sequence[str] | None = None) -> tuple[str, str]:
        """Requeue the job, and leave exactly the nodes `leave_out` out of its next start, unless that is None.

        Return why Slurm refuses the requeue, and why it refuses to leave the nodes out; "" if it does not refuse. After
        the requeue Slurm kills all of the job, this process too.
        """
        refused, code = self._change(_REQUEUE, leave_out)
        return ("", refused) if code == _KEEPS_NODES else (refused, "")

    def leave_out(self, nodes: Sequence[str]) -> str:
        """Leave exactly these nodes out of the next start of the job, which Slurm has requeued; return "", or why Slurm
        refuses."""
        return self._change(_LEAVE_OUT, nodes)[0]

    def _change(self, script: str, nodes: Sequence[str] | None) -> tuple[str, int]:
        words = (self.job, *([] if nodes is None else [",".join(nodes)]))
        shown = ("scontrol", "requeue" if script == _REQUEUE else "update", self.job)
        code, _, why = run_command(
            "sh", "-c", script, "sh", *words, on_silence=lambda: self._report(shown)
        )
        return ("" if code == 0 else " ".join(why.split()) or f"scontrol ended with {code}"), code

    def kinds(self, record: JobRecord) -> dict[str, str] | None:
        """Return the kind of each node in the job's partition; None without an answer. Nodes of one kind have the same
        GPUs, and the same features if the job asks for some."""
        kind = "%G %f" if record.has("Features") else "%G"
        partition = record.fields.get("Partition", "")
        code, text, _ = run_command("sinfo", "-h", "-N", "-p", partition, "-o", f"%N {kind}")
        rows = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
        return {row[0]: row[-1].strip() for row in rows} if code == 0 and text.strip() else None

    def lost(self, nodes: Sequence[str], since: float = math.inf) -> list[str]:
        """Return the nodes that do not answer Slurm, or that have booted after the time `since`."""
        code, text, _ = run_command("scontrol", "show", "node", ",".join(nodes))
        return lost_nodes(text, since) if code == 0 else []

    def send_no_mail(self) -> None:
        """Turn off Slurm's mails about the job, whatever its directives say."""
        run_command("scontrol", "update", f"JobId={self.job}", "MailType=NONE")


def unanswered(nodes: int) -> list[str] | None:
    """Return the nodes on which srun cannot start a command, as far as it names them; None if all nodes answer."""
    on_each = f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"
    code, _, why = run_command("srun", "--overlap", *on_each, "true")
    return sorted(set(_LAUNCH_FAILED.findall(why))) if code else None


def lost_nodes(shown: str, since: float) -> list[str]:
    """Return the nodes of `scontrol show node` that do not answer Slurm, or that have booted after `since`.

    A node that an administrator has set DOWN answers.
    """
    lost = []
    for record in re.split(r"^(?=NodeName=)", shown, flags=re.MULTILINE):
        fields = dict(reversed(_FIELD.findall(record)))
        state, booted = fields.get("State", ""), math.nan
        with contextlib.suppress(ValueError):
            booted = datetime.fromisoformat(fields.get("BootTime", "")).timestamp()
        if "*" in state or "NOT_RESPONDING" in state or booted > since:
            lost.append(fields["NodeName"])
    return lost


def run_command(*words: str, on_silence: Callable[[], None] = lambda: None) -> tuple[int, str, str]:
    """Run a command; return its exit code, output and error output. The code is -1 if the command is missing, or if it
    did not end in time. `on_silence`: called once if it takes long."""
    silent = threading.Timer(_SILENCE_S, on_silence)
    silent.daemon = True
    silent.start()
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S,
            env=environment(os.environ), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, "", str(error)
    finally:
        silent.cancel()
    output, why = (each.decode("utf-8", "replace") for each in (done.stdout, done.stderr))
    return done.returncode, output, why


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment for Slurm's commands, in which no variable changes what they do or print.

    srun needs no input: if it asks for nothing, the controller gives the step all memory and GPUs of the job. The job's
    number, nodes and array index stay, and so do a site's own variables (SLURM_TMPDIR).
    """
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("SQUEUE_", "SRUN_", "SLURMD_DEBUG")) and name not in _NOT_FOR_SRUN
    }
