"""Pure decisions: whether a job of Slurm ends or is requeued when one of its starts ends.

Owns the two budgets (crashes, and everything else that ends a start), and the lines to print. Reads no file and no
clock, and asks nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from train.base.errors import EXIT_FAILED, EXIT_STOPPED, EXIT_UNAVAILABLE, EXIT_USAGE
from train.launch import bad_nodes
from train.launch.bad_nodes import Fault
from train.launch.decision import DONE, FAILED, GO_ON, STOPPED, final
from train.launch.slurm.job import State
from train.run.status import Status

AGAIN = "sbatch slurm.sbatch"
# The kinds of end that lead to another start. NODE: the own fault of a node, which counts as a requeue.
CRASH, REQUEUE, NODE = "crash", "requeue", "node"
LOST = "it did not answer any more"
_KILLED, _LAST_SIGNAL = 128 + 9, 128 + 64
# srun's words if the controller is away, which is no fault of the job.
_AWAY = re.compile(r"contact slurm controller|timed out|Zero Bytes|Communication", re.IGNORECASE)


class Begun(NamedTuple):
    """A start whose processes were started. `step`: the newest checkpoint at its beginning. `ended`: CRASH, REQUEUE
    or NODE; "" while that is not known."""

    requeue_count: int
    step: int
    ended: str = ""


@dataclass(frozen=True)
class Failure:
    """The end of a node by its own decision: its exit code, its name, and the last words that it printed."""

    code: int
    node: str
    words: str


@dataclass(frozen=True)
class JobState:
    """The facts about the job that decide if it ends.

    `newest`: its newest checkpoint; None if that is not known. `begun`: its starts, this one last. `next`: the purpose
    of another start (decision.goes_on). `comes_back`: False if Slurm does not requeue it.
    """

    requeue_count: int
    requeues: int
    restarts: int
    newest: int | None = 0
    begun: Sequence[Begun] = ()
    only_preflight: bool = False
    next: str = GO_ON
    comes_back: bool = True

    @property
    def again(self) -> str:
        """The command that starts the job again, with its purpose."""
        return f"{self.next}: {AGAIN}"

    @property
    def crashes(self) -> int:
        return sum(
            start.ended == CRASH for start in self.begun if start.requeue_count < self.requeue_count
        )

    @property
    def stands_still(self) -> bool:
        """True if the last two starts have made no newer checkpoint; False if that is not known. Starts that a bad node
        has ended do not count."""
        last, newest = [start for start in self.begun if start.ended != NODE][-2:], self.newest
        return newest is not None and len(last) == 2 and all(start.step >= newest for start in last)


@dataclass(frozen=True)
class StartEnd:
    """How a start ended.

    `code`: srun's exit code. `status`: the status that this start has put on file, if any. `asked`: the signal that
    this supervisor got. `stop`: the maker of the stop file, "job" or "user" (Directory.whose_stop). `failure`: the
    failure that a node has put on file. `reported`: the task that failed first, as srun reports it. `refusal`: why srun
    has started nothing. `lost`: a node does not answer. `fault`: the node's own fault that has ended the start.
    """

    code: int
    status: Status | None = None
    asked: str = ""
    stop: str = ""
    failure: Failure | None = None
    reported: Failure | None = None
    refusal: str = ""
    lost: bool = False
    fault: Fault | None = None


@dataclass(frozen=True)
class Finish:
    """This start is the job's last, unless Slurm itself has requeued the job. `reason`: how the job ended, for a status
    that still says `running`; by default the line."""

    code: int
    line: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Requeue:
    """The job must go back into the queue. `code`: the exit code if it does not."""

    line: str
    code: int
    counter: str = REQUEUE


def fault_of(end: StartEnd, nodes: int, silent: Sequence[str]) -> Fault | None:
    """Return the node's own fault that has ended a start on `nodes` nodes, if one has. `silent`: the nodes that do not
    answer.

    If several nodes fall silent at once, they have lost something that they share, for example a switch.
    """
    end = _as_decided(end)
    if end.asked or end.refusal:
        return None
    if end.lost:
        return Fault(silent[0], LOST) if len(silent) == 1 else None
    if end.status is not None and end.status.word == FAILED:
        return bad_nodes.of_reason(end.status.reason, nodes)
    if end.code == EXIT_UNAVAILABLE and end.failure is not None:
        return bad_nodes.of_reason(end.failure.words, nodes)
    return None


def decide(end: StartEnd, job: JobState) -> Finish | Requeue:
    """Decide whether the end of a start ends the job, before Slurm is asked about the job's state."""
    meant = _decide(end, job)
    if end.fault is None:
        return meant
    if isinstance(meant, Finish):  # the job may go well on another node
        return Requeue(meant.reason or meant.line, meant.code, NODE)
    return replace(meant, counter=NODE)


def _decide(end: StartEnd, job: JobState) -> Finish | Requeue:
    end = _as_decided(end)
    said = _by_status(end, job.again)
    if said is not None:
        return said
    if end.asked:
        return Requeue("ended by Slurm before a clean stop was complete", EXIT_FAILED)
    if end.code == 0 and job.only_preflight:
        return Finish(0)
    if end.refusal:
        line = f"srun could not start the nodes: {end.refusal}"
        away = _AWAY.search(end.refusal)
        return Requeue(line, EXIT_UNAVAILABLE) if away else Finish(EXIT_UNAVAILABLE, line)
    if end.lost:
        node = end.fault.node if end.fault else "a node"
        return Requeue(f"{node} does not answer any more", EXIT_FAILED)
    if 128 < end.code <= _LAST_SIGNAL:
        return Requeue(f"killed on a node (srun ended with {end.code})", EXIT_FAILED, CRASH)
    why = _how(end)
    if end.code in (EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_STOPPED):
        return Finish(end.code, why)
    if end.status is not None and end.status.reason:
        why = f"crashed: {end.status.reason}"
    return Finish(EXIT_FAILED, f"{why}; {job.again}", why)


def may_be_lost(end: StartEnd, nodes: int) -> bool:
    """Return True if the caller has to check that all nodes answer: the other nodes see a lost node as a failure."""
    end = _as_decided(end)
    # A code above all signals is srun's own, for example if it could not start the task of a node.
    unclear = end.code == EXIT_FAILED or end.code > _LAST_SIGNAL
    decided = end.asked or end.refusal or _by_status(end) is not None
    return nodes > 1 and unclear and not decided


def _as_decided(end: StartEnd) -> StartEnd:
    """Return `end` with the failure and the code of the node that ended the start, because srun then ends the others.
    Add a signal that only the tasks have got."""
    failure = end.failure
    # After a kill on one node, the torchrun of another one ends with 1, maybe before srun has seen the kill.
    if failure is not None and failure.code == 1 and end.code == _KILLED:
        failure, code = None, end.code
    elif failure is not None and not _waited_for(end.reported, failure):
        code = failure.code
    else:
        failure = end.reported
        code = _never_began(failure, end.status) if failure else end.code
    # After a task has failed, srun sends TERM to the others. A stop file that they make then says nothing about Slurm.
    asked = end.asked or ("signal" if end.stop == "job" and code == 0 else "")
    return replace(end, code=code, asked=asked, failure=failure)


def _waited_for(reported: Failure | None, failure: Failure) -> bool:
    """Return True if the node of `failure` refused because the node that srun reports first never came.

    A prolog or a container that fails puts nothing on file. srun's TERM may be lost on a node whose task is about to
    begin, so that this node waits in the preflight and refuses. If the codes are equal, one preflight has refused on
    all nodes.
    """
    if reported is None or reported.node == failure.node:
        return False
    return failure.code == EXIT_UNAVAILABLE != reported.code


def _never_began(failure: Failure, status: Status | None) -> int:
    """Return the code of a node that has put nothing on file, because its supervisor never ran.

    The node's shell, container or prolog could not start the supervisor. That counts as EXIT_UNAVAILABLE, whatever code
    they ended with. ddpgen's own codes stay, and so do signals and crashes that the training has noted.
    """
    own = failure.code in (EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_STOPPED)
    killed = 128 < failure.code <= _LAST_SIGNAL
    noted = status is not None and status.reason
    return failure.code if own or killed or noted else EXIT_UNAVAILABLE


def _by_status(end: StartEnd, again: str = "") -> Finish | Requeue | None:
    status = end.status
    if status is None:
        return None
    line = final(status)
    if status.word == DONE and end.code == 0:
        return Finish(0, line)
    if status.word == FAILED:
        return Finish(EXIT_FAILED, line)
    if status.word == STOPPED and end.asked and end.stop != "user":
        return Requeue(line, EXIT_STOPPED)
    if status.word == STOPPED:
        return Finish(EXIT_STOPPED, f"{line}; {again}")
    return None


def _how(end: StartEnd) -> str:
    if end.failure is None:
        return f"srun ended with {end.code}; its last lines are before this one"
    how = f"{end.failure.node} ended this start (exit code {end.failure.code})"
    # srun may drop the output of a prolog or a container.
    return f"{how}: {end.failure.words or f'its last lines are before this one, or in the log of slurmd on {end.failure.node}'}"


def requeue(wanted: Requeue, state: State, cancelled: bool, job: JobState) -> Finish | Requeue:
    """Decide whether a requeue takes place. `cancelled`: TERM came, which scancel sends too."""
    why = wanted.line
    if job.only_preflight:
        return Finish(wanted.code, why)
    if state is State.OVER:
        line = f"{why}; cancelled, so it stays out of the queue; {job.again}"
        return Finish(EXIT_STOPPED, line, f"{why}; cancelled")
    if state is State.REQUEUED:
        return Finish(0, f"{why}; Slurm takes it back into the queue by itself")
    if state is State.UNKNOWN and cancelled:
        asked = "Slurm does not say whether it was cancelled, so it is not put into the queue"
        return Finish(EXIT_STOPPED, f"{why}; {asked}; {job.again}", f"{why}; {asked}")
    if not job.comes_back:
        kept = f"{why}; Slurm does not requeue this job (Requeue=0)"
        return Finish(wanted.code, f"{kept}; {job.again}", kept)
    if wanted.counter != NODE and job.stands_still:
        line = f"{why}; {standstill(wanted.counter)}"
        return Finish(EXIT_FAILED, line)
    return _within_budget(wanted, job)


def _within_budget(wanted: Requeue, job: JobState) -> Finish | Requeue:
    requeued = job.requeue_count - job.crashes
    if wanted.counter == CRASH:
        left, count = (
            job.restarts - job.crashes,
            f"crash {job.crashes + 1} of at most {job.restarts}",
        )
        over = f"it was killed {job.crashes + 1} times, and restarts: is {job.restarts}"
    else:
        left, count = job.requeues - requeued, f"requeue {requeued + 1} of at most {job.requeues}"
        over = f"it has been requeued {requeued} times, all that targets.slurm.requeues allows"
    if left <= 0:
        reason = f"{wanted.line}; {over}"
        return Finish(wanted.code, f"{reason}; {job.again}", reason)
    back = f"back into the queue, {job.next}"
    return replace(wanted, line=f"{wanted.line}; {back} ({count})")


def standstill(counter: str = REQUEUE) -> str:
    """Return the reason why a job ends after two starts without a newer checkpoint."""
    first = "this is the second start without a newer checkpoint; giving up"
    if counter == CRASH:
        return f"{first}. Is there enough memory (targets.slurm.mem)?"
    return (
        f"{first}. One step and one checkpoint have to fit between the beginning of a start and its "
        "end: set a longer targets.slurm.time, the step_time that the metrics show, or a longer warning"
    )
