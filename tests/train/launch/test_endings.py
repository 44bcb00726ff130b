"""How a job can end on each tier: the table of docs/troubleshooting.md, made by the functions that decide it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.project.tree import ROOT
from train.base.errors import EXIT_UNAVAILABLE, EXIT_USAGE
from train.launch.decision import End, ExitReport, at_end, not_begun, word_of
from train.launch.sky import Sky
from train.launch.slurm.decision import (
    CRASH,
    Begun,
    Failure,
    Finish,
    JobState,
    Requeue,
    StartEnd,
    decide,
    fault_of,
    requeue,
)
from train.launch.slurm.job import State
from train.launch.words import Command
from train.run.status import Status

GUIDE = ROOT / "docs" / "troubleshooting.md"
BEGIN = "<!-- made by make golden from tests/train/launch/test_endings.py -->\n"
END = "<!-- end -->\n"

DONE = Status("done", "a", 400)
EARLY = Status("done", "a", 250, "early stop: no better for 3 evaluations")
STOPPED = Status("stopped", "a", 120, "user")
RUNNING = Status("running", "a", 100)
CRASHED = Status("running", "a", 100, "rank 1 in step 131: ValueError: odd (model.py:7 in forward)")
LOST = Status("running", "a", 100, "rank 0 in step 131: lost a peer: rank 2 on laptop is gone")
FAILED = Status(
    "failed", "a", 100, "the checkpoint was written with other settings: lr: 0.05 -> 0.5"
)
PREFLIGHT = "preflight: NIC001 on laptop; nothing was started"
HELD = "the checkpoint directory is held by a live job (DIR004)"


class Ending(NamedTuple):
    """A row. `status`: the first word of the file `status` afterwards; `comes_back`: without anybody's command."""

    how: str
    code: int
    status: str
    comes_back: str
    line: str


# --- one machine, and hosts: the supervisor's own exit code -------------------------------------------


def launches() -> Iterator[Ending]:
    again = "bash local.sh"

    def ended(how: str, end: End) -> Ending:
        return of_report(how, at_end(end, "results are in DIR", again), end.status)

    yield ended("all steps are done", End(0, DONE))
    yield ended("`train.early_stop`", End(0, EARLY))
    yield ended("the file `stop`, `ddpgen stop`, Ctrl-C, SIGTERM, SIGHUP", End(0, STOPPED, stops=1))
    yield of_report("the same, before the training began", not_begun(again), RUNNING)
    yield ended("a second Ctrl-C or SIGTERM", End(137, RUNNING, stops=2, killed=True))
    yield refused("a wrong argument", EXIT_USAGE, "unknown option --stepss; did you mean --steps?")
    yield refused("refused by the preflight", EXIT_UNAVAILABLE, PREFLIGHT)
    yield refused("another job runs in the directory", EXIT_UNAVAILABLE, HELD)
    yield ended("a failure that no restart cures", End(0, FAILED))
    yield ended("an exception, after `restarts` restarts", End(1, CRASHED))
    yield ended(
        "a process killed from outside, or a host lost, after `restarts` restarts", End(1, LOST)
    )
    yield ended("all processes killed from outside", End(1, RUNNING))


def of_report(how: str, report: ExitReport, status: Status | None) -> Ending:
    """A row from what a supervisor reports, where its processes have left `status`."""
    assert status is not None
    settled = status.word != "running" or report.comes_back
    word = status.word if settled else word_of(report.code)
    return Ending(how, report.code, word, yes(report.comes_back), "`, `".join(report.lines))


def refused(how: str, code: int, line: str) -> Ending:
    """Before the directory is taken; its status is that of the run before."""
    return Ending(how, code, "as before", "no", line)


# --- Slurm: the batch job -----------------------------------------------------------------------------

JOB = JobState(requeue_count=0, requeues=20, restarts=3, newest=120, begun=(Begun(0, 60),))
CAME = Requeue("TERM came before the training began", 75)
NODE = Failure(69, "node2", "node2 does not see the bundle, /shared/gpt")


def slurm() -> Iterator[Ending]:
    stop = replace(STOPPED, reason="slurm 7 0 USR1")
    warned = StartEnd(0, stop, asked="USR1", stop="job")
    yield start("all steps are done", StartEnd(0, DONE))
    yield start("the file `stop`, `ddpgen stop`", StartEnd(0, STOPPED, stop="user"))
    yield start("the warning before a time limit, USR1, USR2", warned)
    yield start("a preemption, the time limit itself", replace(warned, asked="TERM"), State.ENDED)
    yield start(
        "`scontrol requeue`, a preemption by REQUEUE", replace(warned, asked="TERM"), State.REQUEUED
    )
    yield start("`scancel`", replace(warned, asked="TERM"), State.OVER)
    yield asked("`scancel` before the training began", CAME, State.OVER)
    yield asked("a preemption before the training began", CAME, State.ENDED)
    over = replace(JOB, requeue_count=20, begun=(Begun(20, 60),))
    yield start("the warning, and `requeues` are used up", warned, job=over)
    yield start(
        "the warning, where Slurm does not requeue (`Requeue=0`)",
        warned,
        job=replace(JOB, comes_back=False),
    )
    still = replace(JOB, begun=(Begun(0, 120), Begun(1, 120)))
    yield start("the warning, twice without a newer checkpoint", warned, job=still)
    refusal = replace(NODE, words=PREFLIGHT)
    yield start("refused by the preflight", StartEnd(143, RUNNING, failure=refusal))
    broken = StartEnd(
        143,
        RUNNING,
        failure=replace(NODE, words=PREFLIGHT.replace("NIC001 on laptop", "GPU006 on node2")),
    )
    broken = replace(broken, fault=fault_of(broken, 2, ()))
    yield start("the same, because of a node's own fault", broken)
    yield start(
        "refused on a node: no bundle, no Python, no container",
        StartEnd(143, RUNNING, reported=NODE),
    )
    yield start(
        "refused by srun",
        StartEnd(1, RUNNING, refusal="srun: fatal: SLURM_MEM_PER_CPU and ... are exclusive"),
    )
    yield Ending("another job runs in the directory", EXIT_UNAVAILABLE, "as before", "no", HELD)
    yield start("a failure that no restart cures", StartEnd(1, FAILED))
    yield start("an exception, after torchrun's restarts", StartEnd(1, CRASHED))
    yield start("a process killed from outside (memory)", StartEnd(137, RUNNING))
    crashed = replace(JOB, requeue_count=3, begun=[Begun(n, 20 * n, CRASH) for n in range(3)])
    yield start("the same, and `restarts` are used up", StartEnd(137, RUNNING), job=crashed)
    yield start("a node is lost", StartEnd(1, RUNNING, lost=True))


def start(how: str, end: StartEnd, state: State = State.RUNNING, job: JobState = JOB) -> Ending:
    """A row from the end of a start of a Slurm job, and what Slurm says of the job then."""
    meant = decide(end, job)
    if isinstance(meant, Requeue):
        return asked(how, meant, state, job, end.status)
    return finished(how, meant, end.status)


def asked(
    how: str, wanted: Requeue, state: State, job: JobState = JOB, status: Status | None = RUNNING
) -> Ending:
    """A row from a start that wants another one."""
    meant = requeue(wanted, state, state is not State.RUNNING, job)
    assert status is not None
    if isinstance(meant, Requeue):
        return Ending(how, 0, status.word, "yes", meant.line)
    return finished(how, meant, status, by_itself=state is State.REQUEUED)


def finished(how: str, meant: Finish, status: Status | None, by_itself: bool = False) -> Ending:
    assert status is not None
    settles = status.word in ("running", "stopped") and not by_itself  # Directory.say_ended
    word = word_of(meant.code) if settles else status.word
    return Ending(how, meant.code, word, yes(by_itself), meant.line)


# --- SkyPilot: each machine of a managed job ----------------------------------------------------------


def sky() -> Iterator[Ending]:
    tier = Sky(argparse.Namespace(), Command((), (), (), ()))
    tier.me = "node0"

    def ended(how: str, end: End) -> Ending:
        return of_report(how, tier.at_end(end), end.status)

    noticed = replace(STOPPED, reason="preempted: aws takes the machine back")
    signalled = replace(STOPPED, reason="signal: TERM")
    yield ended("all steps are done", End(0, DONE))
    yield ended("`ddpgen stop`, an object `stop` in the bucket", End(0, STOPPED))
    yield ended("the cloud's notice of a preemption", End(0, noticed))
    yield ended("SIGTERM, as of a machine that shuts down", End(0, signalled, stops=1))
    yield of_report("the same, before the training began", tier.not_begun("TERM"), RUNNING)
    yield refused("refused by the preflight", EXIT_UNAVAILABLE, PREFLIGHT)
    yield ended("a failure that no restart cures", End(0, FAILED))
    yield ended("an exception, after torchrun's restarts", End(1, CRASHED))


# --- the page -----------------------------------------------------------------------------------------


def yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def table(title: str, endings: Sequence[Ending]) -> str:
    rows = [
        f"| {e.how} | {e.code} | {e.status} | {e.comes_back} | `{e.line.replace('|', '/')}` |"
        for e in endings
    ]
    head = "| how it ends | exit code | `status` | comes back by itself | the last lines |"
    return "\n".join([f"**{title}**", "", head, "|---|---|---|---|---|", *rows, ""])


def page() -> str:
    tiers: list[tuple[str, Callable[[], Iterator[Ending]]]] = [
        ("This machine and hosts", launches),
        ("Slurm", slurm),
        ("SkyPilot", sky),
    ]
    return "\n".join(table(title, [*rows()]) for title, rows in tiers)


def test_the_guide_has_the_endings_that_the_code_decides(update_golden: bool) -> None:
    text = GUIDE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    assert rest, f"{GUIDE} has no line {BEGIN}"
    _, _, after = rest.partition(END)
    made = f"{before}{BEGIN}\n{page()}\n{END}{after}"
    if update_golden:
        Path(GUIDE).write_text(made, "utf-8")
    assert GUIDE.read_text("utf-8") == made, "make golden writes it"


def test_a_job_that_is_over_never_says_running() -> None:
    for ending in (*launches(), *slurm(), *sky()):
        assert ending.status != "running" or ending.comes_back == "yes", ending
        assert (ending.status == "done") <= (ending.code == 0), ending
