"""What becomes of a job of Slurm when a start of it ends: every pair of a signal and what Slurm means to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train.launch.bad_nodes import Fault
from train.launch.slurm.decision import (
    CRASH,
    LOST,
    NODE,
    REQUEUE,
    Begun,
    Failure,
    Finish,
    JobState,
    Requeue,
    StartEnd,
    decide,
    fault_of,
    may_be_lost,
    requeue,
)
from train.launch.slurm.job import State
from train.run.status import Status

AGAIN = "to resume: sbatch slurm.sbatch"
JOB = JobState(requeue_count=0, requeues=6, restarts=3, newest=20, begun=(Begun(0, 0),))
STOPPED = Status("stopped", "slurm.7.0", 20)
RUNNING = Status("running", "slurm.7.0", 15)
DONE = Status("done", "slurm.7.0", 100)
FAILED = Status("failed", "slurm.7.0", 20, "CUDA error")
CAUSE = "rank 3: ValueError: odd (model.py:7 in forward)"
CRASHED = replace(RUNNING, step=20, reason=CAUSE)
TOLD = "node2 ended this start (exit code 69): setup of the spec failed"
SETUP = Failure(69, "node2", "setup of the spec failed")
SHELL = Failure(69, "node2", "node2 does not see /scratch/bundle-7")
IN_SHELL = f"node2 ended this start (exit code 69): {SHELL.words}"
GRES = "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification"
AWAY = "srun: error: Unable to create step for job 7: Unable to contact slurm controller"
LAST = "its last lines are before this one"


@pytest.mark.parametrize(
    ("end", "meant"),
    [
        (StartEnd(0, DONE), Finish(0, "done at step 100")),
        # A stop that comes at the very end.
        (StartEnd(0, DONE, asked="TERM", stop="job"), Finish(0, "done at step 100")),
        # Done says one node, and another was killed while it was still writing.
        (StartEnd(137, DONE), Requeue("killed on a node (srun ended with 137)", 1, CRASH)),
        (StartEnd(137, DONE, "TERM", "job"), Requeue("ended by Slurm before a clean stop was complete", 1)),
        (StartEnd(1, FAILED), Finish(1, "failed at step 20: CUDA error")),
        (StartEnd(1, FAILED, asked="USR1", stop="job"), Finish(1, "failed at step 20: CUDA error")),
        (StartEnd(0, STOPPED, asked="USR1", stop="job"), Requeue("stopped at step 20", 75)),
        (StartEnd(0, STOPPED, asked="TERM", stop="job"), Requeue("stopped at step 20", 75)),
        # scancel --signal=USR1 reaches the tasks alone, which make the stop file.
        (StartEnd(0, STOPPED, stop="job"), Requeue("stopped at step 20", 75)),
        (StartEnd(0, STOPPED, stop="user"), Finish(75, f"stopped at step 20; {AGAIN}")),
        # The user's own stop, and a time limit just then: it stays stopped.
        (StartEnd(0, STOPPED, asked="USR1", stop="user"), Finish(75, f"stopped at step 20; {AGAIN}")),
        (
            StartEnd(137, RUNNING, asked="TERM", stop="job"),
            Requeue("ended by Slurm before a clean stop was complete", 1),
        ),
        (StartEnd(0, RUNNING, stop="job"), Requeue("ended by Slurm before a clean stop was complete", 1)),
        (StartEnd(137, RUNNING), Requeue("killed on a node (srun ended with 137)", 1, CRASH)),
        # The others' torchrun fails because of the one that was killed.
        (
            StartEnd(137, RUNNING, failure=Failure(1, "node1", "")),
            Requeue("killed on a node (srun ended with 137)", 1, CRASH),
        ),
        (StartEnd(1, RUNNING, lost=True), Requeue("a node does not answer any more", 1)),
        # A node fails; srun sends the others a TERM, of which they make a stop file.
        (StartEnd(69, RUNNING, stop="job", failure=SETUP), Finish(69, TOLD)),
        # ... and KILL, before they have read it.
        (StartEnd(137, RUNNING, stop="job", failure=SETUP), Finish(69, TOLD)),
        # A prolog failed on node2, and srun's TERM was lost on node1, whose preflight waited for node2.
        (
            StartEnd(69, RUNNING, failure=Failure(69, "node1", "HOST001"), reported=Failure(1, "node2", "TaskProlog")),
            Finish(69, "node2 ended this start (exit code 1): TaskProlog"),
        ),
        # The preflight refused on both, and the other node was reported first.
        (StartEnd(69, RUNNING, failure=SETUP, reported=Failure(69, "node1", "")), Finish(69, TOLD)),
        # One that cannot even write that down: its directory is not there, or its container fails. The others are
        # a shell that the TERM ends, or are killed.
        (StartEnd(143, RUNNING, reported=SHELL), Finish(69, IN_SHELL)),
        (StartEnd(137, RUNNING, reported=SHELL), Finish(69, IN_SHELL)),
        (StartEnd(69, RUNNING, stop="job"), Finish(69, f"srun ended with 69; {LAST}")),
        (
            StartEnd(143, RUNNING, reported=Failure(255, "node[2-3]", "")),
            Finish(69, f"node[2-3] ended this start (exit code 255): {LAST}, or in the log of slurmd on node[2-3]"),
        ),
        (
            StartEnd(137, RUNNING, reported=Failure(1, "node2", "TaskProlog failed status=1")),
            Finish(69, "node2 ended this start (exit code 1): TaskProlog failed status=1"),
        ),
        # A node that was asked to stop puts nothing on file.
        (
            StartEnd(1, CRASHED, reported=Failure(1, "node2", "crashed")),
            Finish(1, f"crashed: {CAUSE}; {AGAIN}", f"crashed: {CAUSE}"),
        ),
        (
            StartEnd(137, RUNNING, reported=Failure(137, "node2", "")),
            Requeue("killed on a node (srun ended with 137)", 1, CRASH),
        ),
        (
            StartEnd(255, RUNNING, stop="job"),
            Finish(1, f"srun ended with 255; {LAST}; {AGAIN}", f"srun ended with 255; {LAST}"),
        ),
        # Slurm ends the tasks, and what a node says of that is no failure.
        (
            StartEnd(143, RUNNING, "TERM", reported=SHELL),
            Requeue("ended by Slurm before a clean stop was complete", 1),
        ),
        # A node was killed, and the other's torchrun has ended before srun saw that.
        (
            StartEnd(137, RUNNING, failure=Failure(1, "node1", ""), reported=Failure(1, "node1", "")),
            Requeue("killed on a node (srun ended with 137)", 1, CRASH),
        ),
        (StartEnd(1, RUNNING, refusal=GRES), Finish(69, f"srun could not start the nodes: {GRES}")),
        (StartEnd(1, RUNNING, refusal=AWAY), Requeue(f"srun could not start the nodes: {AWAY}", 69)),
        (
            StartEnd(1, CRASHED, failure=Failure(1, "node1", "crashed: rank 0: lost a peer")),
            Finish(1, f"crashed: {CAUSE}; {AGAIN}", f"crashed: {CAUSE}"),
        ),
        (StartEnd(2, None), Finish(2, f"srun ended with 2; {LAST}")),
    ],
)  # fmt: skip
def test_what_the_end_of_a_start_means(end: StartEnd, meant: Finish | Requeue) -> None:
    assert decide(end, JOB) == meant


def test_a_look_at_the_nodes_ends_with_what_it_found() -> None:
    look = replace(JOB, only_preflight=True, begun=())
    assert decide(StartEnd(0, None), look) == Finish(0)
    came = Requeue("TERM came before the training began", 75)
    assert requeue(came, State.RUNNING, True, look) == Finish(75, came.line)


SIGNALLED = Requeue("stopped at step 20", 75)
BACK = "back into the queue, to resume"


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("job_state", list(State))
def test_every_signal_with_everything_slurm_may_mean(cancelled: bool, job_state: State) -> None:
    """`cancelled`: TERM came, which a preemption, a time limit and scancel send alike; else USR1."""
    comes = Requeue(f"stopped at step 20; {BACK} (requeue 1 of at most 6)", 75, REQUEUE)
    by_itself = "stopped at step 20; Slurm takes it back into the queue by itself"
    over = f"stopped at step 20; cancelled, so it stays out of the queue; {AGAIN}"
    asked = "Slurm does not say whether it was cancelled, so it is not put into the queue"
    unknown = Finish(75, f"stopped at step 20; {asked}; {AGAIN}", f"stopped at step 20; {asked}")
    meant = {
        State.RUNNING: comes,
        State.ENDED: comes,
        State.REQUEUED: Finish(0, by_itself),
        State.OVER: Finish(75, over, "stopped at step 20; cancelled"),
        State.UNKNOWN: unknown if cancelled else comes,
    }
    assert requeue(SIGNALLED, job_state, cancelled, JOB) == meant[job_state]


def test_a_job_that_slurm_does_not_requeue_is_not_said_to_come_back() -> None:
    kept = "stopped at step 20; Slurm does not requeue this job (Requeue=0)"
    job = replace(JOB, comes_back=False)
    meant = Finish(75, f"{kept}; {AGAIN}", kept)
    assert requeue(SIGNALLED, State.RUNNING, False, job) == meant
    assert requeue(SIGNALLED, State.ENDED, True, job) == meant


KILLED = Requeue("killed on a node (srun ended with 137)", 1, CRASH)


def job(*ended: str, requeues: int = 2, restarts: int = 2, newest: int = 100) -> JobState:
    """A job whose earlier starts ended so, each a bit further on."""
    begun = [Begun(n, 10 * n, why) for n, why in enumerate((*ended, ""))]
    return JobState(len(ended), requeues, restarts, newest, begun)


@pytest.mark.parametrize(
    ("wanted", "before", "said"),
    [
        (SIGNALLED, job(REQUEUE), "(requeue 2 of at most 2)"),
        (SIGNALLED, job(CRASH, CRASH, REQUEUE), "(requeue 2 of at most 2)"),
        # Slurm's own counts.
        (SIGNALLED, job("", REQUEUE), "all that targets.slurm.requeues allows"),
        (SIGNALLED, job(requeues=0), "requeued 0 times, all that targets.slurm.requeues allows"),
        (KILLED, job(REQUEUE, REQUEUE), "(crash 1 of at most 2)"),
        (KILLED, job(CRASH, REQUEUE, REQUEUE), "(crash 2 of at most 2)"),
        (KILLED, job(CRASH, CRASH), "it was killed 3 times, and restarts: is 2"),
        (KILLED, job(restarts=0), "it was killed 1 times, and restarts: is 0"),
    ],
)
def test_crashes_and_the_rest_have_a_budget_each(
    wanted: Requeue, before: JobState, said: str
) -> None:
    decision = requeue(wanted, State.RUNNING, False, before)
    assert said in decision.line
    assert isinstance(decision, Requeue) == ("at most" in said)


@pytest.mark.parametrize("wanted", [SIGNALLED, KILLED])
def test_two_starts_without_a_newer_checkpoint_are_the_last_ones(wanted: Requeue) -> None:
    first = JobState(0, 9, 9, newest=20, begun=[Begun(0, 20)])
    assert isinstance(requeue(wanted, State.RUNNING, False, first), Requeue)
    second = JobState(1, 9, 9, newest=20, begun=[Begun(0, 20, wanted.counter), Begun(1, 20)])
    last = requeue(wanted, State.RUNNING, False, second)
    assert isinstance(last, Finish)
    assert last.code == 1
    assert "the second start without a newer checkpoint; giving up" in last.line
    named = ("targets.slurm.mem",) if wanted is KILLED else ("slurm.time", "step_time", "warning")
    assert all(each in last.line for each in named)
    for newest in (21, None):  # None: what a user's program saves may not be seen
        assert isinstance(
            requeue(wanted, State.RUNNING, False, replace(second, newest=newest)), Requeue
        )


GPU = Failure(69, "node2", "preflight: GPU006 on node2; nothing was started")
BITS = replace(FAILED, reason="other bits on node3 than on node1 in gemm")


@pytest.mark.parametrize(
    ("end", "nodes", "silent", "node"),
    [
        (StartEnd(69, RUNNING, failure=GPU), 2, (), "node2"),
        # Each node reports the refusal of all.
        (StartEnd(69, RUNNING, failure=replace(GPU, node="node1")), 2, (), "node2"),
        (StartEnd(143, RUNNING, failure=GPU, stop="job"), 2, (), "node2"),
        (StartEnd(1, BITS), 3, (), "node3"),
        (StartEnd(1, BITS), 2, (), None),
        (StartEnd(1, RUNNING, lost=True), 2, ("node1",), "node1"),
        # Several have lost something that they share; or srun has named none.
        (StartEnd(1, RUNNING, lost=True), 4, ("node1", "node2"), None),
        (StartEnd(1, RUNNING, lost=True), 4, (), None),
        # Slurm has ended it, or srun has started nothing.
        (StartEnd(69, RUNNING, asked="TERM", failure=GPU), 2, (), None),
        (StartEnd(1, RUNNING, refusal=GRES), 2, (), None),
        # The job's own ends.
        (StartEnd(69, RUNNING, failure=SETUP), 2, (), None),
        (StartEnd(1, FAILED), 2, (), None),
        (StartEnd(1, CRASHED), 2, (), None),
        (StartEnd(137, RUNNING), 2, (), None),
        (StartEnd(0, DONE), 2, (), None),
        (StartEnd(0, STOPPED, stop="user"), 2, (), None),
    ],
)  # fmt: skip
def test_whose_fault_the_end_of_a_start_was(
    end: StartEnd, nodes: int, silent: tuple[str, ...], node: str | None
) -> None:
    fault = fault_of(end, nodes, silent)
    assert (fault and fault.node) == node


def test_a_nodes_own_fault_brings_the_job_back() -> None:
    fault = Fault("node2", LOST)
    told = "node2 ended this start (exit code 69): preflight: GPU006 on node2; nothing was started"
    end = StartEnd(69, RUNNING, failure=GPU, fault=fault)
    assert decide(end, JOB) == Requeue(told, 69, NODE)
    end = StartEnd(1, RUNNING, lost=True, fault=fault)
    assert decide(end, JOB) == Requeue("node2 does not answer any more", 1, NODE)
    line = "failed at step 20: other bits on node3 than on node1 in gemm"
    assert decide(StartEnd(1, BITS, fault=fault), JOB) == Requeue(line, 1, NODE)


def test_a_start_that_a_bad_node_has_ended_is_no_standstill_and_uses_up_a_requeue() -> None:
    wanted = Requeue("node2 does not answer any more", 1, NODE)
    begun = [Begun(0, 20, NODE), Begun(1, 20)]
    second = JobState(1, 2, 9, newest=20, begun=begun)
    meant = requeue(wanted, State.RUNNING, False, second)
    assert isinstance(meant, Requeue)
    assert "(requeue 2 of at most 2)" in meant.line
    third = replace(second, requeue_count=2, begun=[*begun[:1], Begun(1, 20, NODE), Begun(2, 20)])
    assert not third.stands_still
    assert "all that targets.slurm.requeues allows" in requeue(wanted, State.RUNNING, False, third).line  # fmt: skip


def test_only_what_looks_like_a_failure_is_looked_into() -> None:
    assert may_be_lost(StartEnd(1, RUNNING), 2)
    assert may_be_lost(StartEnd(1, RUNNING, failure=Failure(1, "node1", "")), 2)
    assert may_be_lost(StartEnd(233, None), 2)  # a node that is down, and Slurm does not know yet
    assert not may_be_lost(StartEnd(1, RUNNING), 1)
    assert not may_be_lost(StartEnd(255, RUNNING, refusal=GRES), 2)
    assert not may_be_lost(StartEnd(1, FAILED), 2)
    assert not may_be_lost(StartEnd(1, RUNNING, asked="TERM"), 2)
    assert not may_be_lost(StartEnd(137, RUNNING, failure=Failure(1, "node1", "")), 2)


def test_a_script_that_saves_nothing_is_not_said_to_go_on() -> None:
    job = replace(JOB, newest=None, next="to start over")
    stopped = decide(StartEnd(0, STOPPED, stop="user"), job)
    assert stopped == Finish(75, "stopped at step 20; to start over: sbatch slurm.sbatch")
    wanted = Requeue("stopped at step 20", 75)
    back = requeue(wanted, State.RUNNING, False, job)
    assert back.line.startswith("stopped at step 20; back into the queue, to start over (")
