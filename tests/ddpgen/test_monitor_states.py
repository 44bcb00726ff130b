"""The state of a job on each tier, as one table: what `status` prints, whether it is over, whether `stop` asks it.

The whole texts are in tests/golden/status.txt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ddpgen.driver import bad_nodes, state
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor.places import ProgramResult
from ddpgen.monitor.report import JobStatus, Report, as_text
from ddpgen.tiers.local import follow as local
from ddpgen.tiers.sky import follow as sky
from ddpgen.tiers.sky import jobs as sky_jobs
from ddpgen.tiers.slurm import follow as slurm
from ddpgen.tiers.slurm import jobs as slurm_jobs
from tests.ddpgen.answers import answer, managed, record
from tests.ddpgen.conftest import progress
from train.launch import bad_nodes as runtime

LOCK = '{"attempt": "a", "generation": 3, "host": "desk"}'


def row(kind: str, step: int, attempt: str = "a", **more: Any) -> dict[str, Any]:
    head = {"kind": kind, "step": step, "attempt": attempt, "generation": 3}
    return {**head, "time": 1000 + step / 2, **more}


def at_120(attempt: str = "a") -> str:
    """progress.json at step 120 of 400."""
    slow = {"name": "rank 1", "cost": 0.25}
    rows = [
        row("step", 119, attempt, loss=2.75), row("step", 120, attempt, loss=2.5), row("eval", 120, attempt, loss=1.0),
        row("ranks", 120, attempt, seconds=0.5, waiting=[], batches=[0], slow=slow, shares=[5, 3]),
    ]  # fmt: skip
    return progress(rows, last_step=400, unit="tokens", units_per_step=1000)


def facts(status: str = "", **more: str) -> dict[str, str]:
    """The facts of a checkpoint directory."""
    known = {"there": "yes", "status": status, "now": "1090", "newest": "100"}
    return {**known, **{name.replace("_", "-"): text for name, text in more.items()}}


class Case(NamedTuple):
    """A title, the answers that a tier judges, and its judgement: over; asked: `stop` would ask the job to stop."""

    title: str
    given: tuple[Any, ...]
    over: bool
    asked: bool | None = None  # None: stop has nothing to ask about, or refuses


# --- local: the facts, and whether the processes of the lock run ------------------------------------

RUNNING, OF_B = "running a 0", progress([row("step", 7, attempt="b", loss=0.5)])
SAVED = '{"path": "/w/a.pt", "step": 5, "by": "", "whole": %s}'
BY_LIGHTNING = '{"path": "/w/c", "step": 5, "by": "lightning 1", "whole": true}'
LATER = '{"path": "/w/b.pt", "step": 9, "by": "", "whole": true}'
LOCAL = [
    Case("it runs", (facts(RUNNING, lock=LOCK, progress=at_120()), True), False, True),
    Case("it runs, and a stop has been asked for", (facts(RUNNING, lock=LOCK, stop="asked"), True), False, True),
    Case("the loss is nan", (facts(RUNNING, lock=LOCK, progress=progress([row("step", 7, loss="nan")])), True), False, True),
    Case("this start has no step yet", (facts(RUNNING, lock=LOCK, progress=OF_B), True), False, True),
    Case("it was killed", (facts(RUNNING, lock=LOCK, progress=at_120(), stop="asked"), False), True),
    Case("it runs on another host, perhaps", (facts(RUNNING, lock=LOCK), None), False, True),
    Case("a rank failed, and nothing came after it",
         (facts("running a 7 rank 1: x (m.py:3 in load)", lock=LOCK), False), True),
    Case("done", (facts("done a 300", lock=LOCK, progress=at_120()), False), True),
    Case("stopped", (facts("stopped a 120", lock=LOCK, progress=at_120()), False), True),
    Case("failed", (facts("failed a 0 rank 1: out of memory", lock=LOCK), False), True),
    Case("a status that nobody wrote", (facts("nonsense", lock=LOCK), False), False),
    Case("a lock, and no status", (facts(lock=LOCK), True), False, True),
    Case("neither lock nor status", (facts(), False), False),
    Case("no directory", ({"there": "no"}, False), False),
    Case("a directory of another user", ({"there": "closed", "lock": LOCK}, False), False),
    *(
        Case(f"a script has saved: {title}", (facts("done a 7", newest="", lock=LOCK, saves=saves), False), True)
        for title, saves in [
            ("a file", SAVED % "true"),
            ("a file, and a later one", f"{SAVED % 'true'}\t{LATER}"),
            ("half a file", SAVED % "false"),
            ("what a framework can go on from, and its weights", f"{BY_LIGHTNING}\t{LATER}"),
            ("not even a path", '{"path": 1, "whole": true}\tx'),
        ]
    ),
]  # fmt: skip


def on_local(given: tuple[Mapping[str, str], bool | None]) -> tuple[JobStatus, bool | None, str]:
    job_state, is_live = state.read(given[0]), given[1]
    refusal = local.nothing_to_stop("d", job_state, is_live)
    return local.status_of("d", job_state, is_live), None if refusal else True, refusal


# --- slurm: the answers of scontrol or sacct, and the facts of each directory ---------------------


def task(index: str, job_state: str) -> str:
    return record("4711", job_state, ArrayJobId="4711", ArrayTaskId=index)


# As Slurm prints it, with fields that only look like fields.
BOOKED = (
    "JobId=4711 JobName=gpt JobState=RUNNING\n"
    "   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)\n"
    "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=69:0\n"
    "   RunTime=00:00:02 TimeLimit=01:00:00\n   ReqNodeList=(null) ExcNodeList=(null)\n   NodeList=node1\n"
    "   Command=/b/slurm.sbatch JobState=RUNNING NodeList=node7\n   Comment=JobState=x RunTime=9\n"
    "   StdOut=/my logs/a.log\n   Power=\n"
)
TWICE = "4711|COMPLETED|0:0|node1|0:10|1:00\n4711|FAILED|75:0|node1|0:11|1:00\n"
OURS, GONE = facts("running slurm.4711.0 0", progress=at_120("slurm.4711.0")), {"there": "no"}
SLURM = [
    Case("it runs", (record("4711", "RUNNING"), OURS), False),
    Case("it waits for its first start", (record("4711", "PENDING", "Priority"), GONE), False),
    Case("it waits again after a kill", (record("4711", "PENDING", "BeginTime"), OURS), False),
    Case("another job of the same name has the directory",
         (record("4700", "RUNNING") + record("4711", "PENDING"), facts("running slurm.4700.1 0")), False),
    Case("it was stopped; the last line of sacct counts", (TWICE, facts("stopped slurm.4711.1 90")), True),
    Case("scancel has ended it", ("4711|CANCELLED by 1000|0:15|None assigned|0:00|1:00\n", GONE), True),
    Case("it could not start", (BOOKED, GONE), True),
    Case("a node could not write the log", (record("4711", "FAILED", code="0:53"), GONE), True),
    Case("Slurm has forgotten it, and it is done", ("", facts("done slurm.4711.0 300")), True),
    Case("Slurm has forgotten it, and it was killed", ("", OURS), True),
    Case("Slurm has forgotten it, and it has left nothing", ("", GONE), False),
    Case("nobody knows whether it comes back", (record("4711", "SOMETHING_NEW"), GONE), True),
    Case("another tier has written the status", (record("4711", "PENDING"), facts("running a 0")), False),
    Case("an array: two tasks run, the others wait",
         (task("2-3", "PENDING") + task("0", "COMPLETED") + task("1", "RUNNING"),
          facts("done slurm.4711_0.0 300"), facts("running slurm.4711_1.0 0")), False),
]  # fmt: skip


def on_slurm(given: tuple[str, Mapping[str, str]]) -> tuple[JobStatus, bool | None, str]:
    output, *directories = given
    queued = slurm_jobs.from_scontrol(output) or slurm_jobs.from_sacct(output)
    names = [f"d-{index}" for index in sorted(slurm.tasks(queued))] or ["d"]
    states = dict(zip(names, map(state.read, directories), strict=True))
    return (
        slurm.status_of(queued, states, "Slurm does not know job 4711 any more", "d.log"),
        None,
        "",
    )


# --- sky: the answer of `sky jobs queue`, and the facts of the bucket ------------------------------

CODES = (
    "Job exited with exit code{} (user program failure). To see the details, run: sky jobs logs 7"
)
DOWN = "1\nsky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server"
NO_CONTROLLER = "1\nsky.exceptions.ClusterNotUpError: No in-progress managed jobs."
STARTS = "\x1b[2mStarting a local server.\x1b[0m\n\x1b[32m✓ started\x1b[0m\n[WARN] a line with a bracket\n"
CLOSED = "s3://ours/gpt: not looked at: that takes pip install s3fs"
NO_BUCKET = sky.BucketState()


def bucket(status: str, age_s: float | None = 20, **more: str) -> sky.BucketState:
    """The bucket; rank 0 has renewed its time stamp so long ago."""
    return sky.BucketState("s3://ours/gpt", state.read(facts(status, **more)), age_s)


def one(title: str, status: str, **more: Any) -> Case:
    over = status.startswith(("SUCCEEDED", "CANCELLED", "FAILED"))
    return Case(title, (answer(managed(7, status, **more)), NO_BUCKET), over)


EMPTY, RUNS = answer(), bucket("running sky.a.1 0")
AT_120 = bucket("running sky.a.1 0", 270, progress=at_120("sky.a.1"))
LOST = bucket("running sky.a.1 0", 600)
SKY = [
    one("queued", "PENDING", details="Waiting for other jobs to launch"),
    one("starting", "STARTING"),
    one("running", "RUNNING", recovery_count=2, job_duration=3723.4, infra="AWS (us-east-1a)",
        cluster_resources="2x[A100:8][Spot]"),
    one("recovering", "RECOVERING", recovery_count=1, details="Recovering: Cluster\n preempted or failed"),
    one("being cancelled", "CANCELLING"),
    one("done", "SUCCEEDED"),
    one("cancelled", "CANCELLED", details="Cancellation requested by user me (request ID: 1)"),
    one("stopped by the user", "FAILED", details=f"Failure: {CODES.format('s [1, 130]')}"),
    one("it could not start", "FAILED", failure_reason=CODES.format(" 69")),
    one("failed", "FAILED", details=f"Failure: {CODES.format(' 1')}"),
    one("failed before it began", "FAILED_NO_RESOURCE"),
    one("a state that is new", "SOME_NEW_STATE"),
    Case("SkyPilot says other things first", (answer(managed(7, "RUNNING"), before=STARTS), NO_BUCKET), False),
    Case("the bucket is empty", (answer(managed(7, "RUNNING")), sky.BucketState("s3://ours/gpt", state.read(GONE))), False),
    Case("the bucket cannot be read", (answer(managed(7, "RUNNING")), sky.BucketState("s3://ours/gpt", error=CLOSED)), False),
    Case("the bucket says that it runs", (answer(managed(7, "RUNNING")), AT_120), False),
    Case("it was killed, and comes back", (answer(managed(7, "RECOVERING")), AT_120), False),
    Case("it was stopped",
         (answer(managed(7, "FAILED", details=CODES.format(" 130"))),
          bucket("stopped sky.a.1 130 user: ddpgen stop", 600, progress=at_120("sky.a.1"), stop="asked")), True, False),
    Case("cancelled, and it runs on", (answer(managed(7, "CANCELLED")), RUNS), False, True),
    # Killed with its machines, and SkyPilot says that it does not come back.
    Case("cancelled and killed", (answer(managed(7, "CANCELLED")), LOST), True, False),
    Case("another SkyPilot runs it", (EMPTY, RUNS), False, True),
    Case("unknown, and silent", (EMPTY, LOST), False, True),
    Case("unknown, and preempted", (EMPTY, bucket("stopped sky.a.1 9 preempted: by AWS", 600)), False, True),
    Case("unknown, and signalled", (EMPTY, bucket("stopped sky.a.1 9 signal: TERM", 600)), False, True),
    Case("unknown, and done", (EMPTY, bucket("done sky.a.1 300", 600)), True, False),
    Case("unknown, and stopped by the user", (EMPTY, bucket("stopped sky.a.1 130 user: x", 600)), True, False),
    Case("unknown, and the bucket is empty", (EMPTY, sky.BucketState("s3://ours/gpt", state.read(GONE))), False, False),
    Case("unknown, and the bucket cannot be read", (EMPTY, sky.BucketState("s3://ours/gpt", error=CLOSED)), False),
    Case("the controller sleeps, and the bucket says that it runs", (NO_CONTROLLER, RUNS), False, True),
    Case("the controller sleeps, and the bucket cannot be read",
         (NO_CONTROLLER, sky.BucketState("s3://ours/gpt", error=CLOSED)), False),
    Case("no answer, and the bucket says that it runs", (DOWN, RUNS), False, True),
    Case("no answer, and the bucket says that it is done", (DOWN, bucket("done sky.a.1 300", 600)), True),
    Case("no answer, and the bucket cannot be read", (DOWN, sky.BucketState("s3://ours/gpt", error=CLOSED)), False),
    Case("no answer, and no bucket", (DOWN, NO_BUCKET), False),
]  # fmt: skip


def on_sky(given: tuple[str, sky.BucketState]) -> tuple[JobStatus, bool | None, str]:
    code, _, output = given[0].partition("\n")
    queue, bucket_state = sky.our_jobs(ProgramResult(int(code), output), "gpt", "7"), given[1]
    try:
        status = sky.status_of(queue, bucket_state)
    except TargetUnavailableError as error:
        status = JobStatus([f"error {error.exit_code}: {error}"], False)
    if queue.live or not bucket_state.url:
        return status, None, ""
    try:
        asked, lines = sky.stop_in_bucket(queue, bucket_state, now=False)
    except TargetUnavailableError as error:
        return status, None, f"error {error.exit_code}: {error}"
    if asked:
        with pytest.raises(TargetUnavailableError, match="--now cannot cancel"):
            sky.stop_in_bucket(queue, bucket_state, now=True)
    return status, asked, "\n".join(lines)


# --- the table ---------------------------------------------------------------------------------------

TIERS = {"local": (on_local, LOCAL), "slurm": (on_slurm, SLURM), "sky": (on_sky, SKY)}


def judged(tier: str, case: Case) -> tuple[JobStatus, bool | None, str]:
    return TIERS[tier][0](case.given)


@pytest.mark.parametrize(
    ("tier", "case"),
    [
        pytest.param(tier, case, id=f"{tier}: {case.title}")
        for tier, (_, cases) in TIERS.items()
        for case in cases
    ],
)
def test_a_job_is_over_and_is_asked_to_stop(tier: str, case: Case) -> None:
    status, asked, _ = judged(tier, case)
    assert (status.ended, asked) == (case.over, case.asked)


def test_the_texts_of_every_state(golden: Callable[[str, str], None]) -> None:
    pages = []
    for tier, (_, cases) in TIERS.items():
        for case in cases:
            status, _, stop = judged(tier, case)
            lines = [f"--- {tier}: {case.title} ({'over' if status.ended else 'not over'})"]
            lines += as_text(status.parts)
            lines += [f"jobs: {status.jobs}"] if status.jobs else []
            lines += [f"stop: {line}" for line in stop.splitlines()]
            pages += [f"{line}\n" for line in "\n".join(lines).splitlines()]
    golden("status.txt", "".join(pages))


# --- the parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "facts",
    [
        {"newest": "x", "progress": "{", "lock": "[]", "saves": "{\t[]"},
        {"slurm-job": "4711; rm", "progress": '{"step": "9", "loss": true, "losses": 7, "waiting": {}, "shares": {"1": 2}}'},
        {"progress": '{"evaluation": [], "slow": 7, "losses": [[]], "waiting": ["x"], "shares": [[1]], "unit": {}}'},
        {"progress": '{"step": true, "last_step": false, "units_per_step": true}'},
    ],
)  # fmt: skip
def test_what_a_stranger_puts_into_the_directory_does_no_harm(facts: dict[str, str]) -> None:
    assert state.read({"there": "yes", **facts}) == state.JobState("yes")


def test_a_metric_of_any_name_moves_no_cursor() -> None:
    evaluation = {"kind": "eval", "step": "\x1b[2J", "acc\x1b]0;title\x07": 0.5}
    job_state = state.read({"there": "yes", "progress": json.dumps({"evaluation": evaluation})})
    assert job_state.evaluation == r"acc\x1b]0;title\x07 0.5000 at step \x1b[2J"


def test_status_reads_eight_tasks_of_an_array_and_live_ones_first() -> None:
    ended = [slurm_jobs.QueuedJob(f"4711_{index}", "COMPLETED") for index in range(9)]
    queued = [*ended, slurm_jobs.QueuedJob("4711_9", "RUNNING")]
    assert slurm.tasks(queued) == ["9", *"0123456"]


def test_how_often_a_job_of_slurm_has_come_back() -> None:
    begun = [[0, 0, "requeue"], [1, 20, "crash"], [2, 20, "requeue"], [3, 40, ""]]
    kept = {"job": "7", "requeues": 6, "restarts": 3, "starts": begun}
    known = {"there": "yes", "status": "running slurm.7.3 40", "slurm-starts": json.dumps(kept)}
    told = "come back 2 of at most 6 times because of Slurm, 1 of at most 3 times after a crash"
    assert told in Report("d", state.read(known), True).words()
    for spoilt in ({**kept, "starts": [[0, 0, ""]]}, {**kept, "starts": 5}, {"starts": []}, []):
        assert state.read({**known, "slurm-starts": json.dumps(spoilt)}).slurm_starts == ""


def test_a_bad_node_is_named_with_its_last_fault_and_since_when() -> None:
    lines = "# header\tnode2 2026-11-26T09:00:00 GPU006: x\tnode1 2026-11-26 lost\tnode2 2026-11-26T10:00:00 GPU006: \x1b[0m\t"
    report = Report("d", state.read(facts("running slurm.7.3 40", bad_nodes=lines)), True)
    said = "bad node node2 since 2026-11-26T10:00:00: GPU006: \\x1b[0m"
    assert said in report.words()
    fault = {"node": "node2", "when": "2026-11-26T10:00:00", "why": "GPU006: \\x1b[0m"}
    assert report.facts()["bad_nodes"] == [fault]
    once = state.read(facts("running slurm.7.3 40", bad_nodes="node2 2026-11-26 x"))
    assert "bad_nodes" not in Report("d", once, True).facts()


def test_both_programs_read_the_same_bad_nodes(tmp_path: Path) -> None:
    path = tmp_path / bad_nodes.FILE
    for node in ("node1", "node2", "node2"):
        runtime.note(path, runtime.Fault(node, "GPU006: no answer"))
    text = path.read_text()
    faults = bad_nodes.read(text.splitlines())
    assert [(f.node, f.when, f.why) for f in faults] == [
        (f.node, f.when, f.why) for f in runtime.read(path)
    ]
    assert "".join([bad_nodes.HEADER, *(f"{fault.line}\n" for fault in faults)]) == text
    assert (bad_nodes.FILE, bad_nodes.STARTS) == (runtime.FILE, runtime.STARTS)
    assert [f.node for f in bad_nodes.bad(faults)] == [f.node for f in runtime.bad(runtime.read(path))]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "ids"),
    [
        ([managed(9, "RECOVERING"), managed(8, "FAILED"), managed(7, "RUNNING")], ["7", "9"]),
        ([managed(8, "FAILED"), managed(7, "SUCCEEDED")], ["7"]),  # the one launched from here
        # Another server numbers its jobs from 1 again.
        ([managed(7, "RUNNING", job_name="x"), managed(3, "SUCCEEDED"), managed(2, "FAILED")], ["3"]),
        ([managed(7, "RUNNING", job_name="x")], []),
    ],
)  # fmt: skip
def test_of_the_jobs_of_this_name_those_that_live_are_meant(
    rows: list[dict[str, Any]], ids: list[str]
) -> None:
    answer = ProgramResult(0, json.dumps(rows))
    assert [job.id for job in sky.our_jobs(answer, "gpt", "7").jobs] == ids


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (1, DOWN[2:], "ApiServerConnectionError"),
        (0, "Fetching managed job statuses...\nManaged jobs\n", "Managed jobs"),
        (2, "Error: No such option: --output\n", "Error: No such option"),
        (0, '["a", {}]\n', '["a", {}]'),
        (0, '[{"job_id": 7,\n', '[{"job_id": 7,'),
        (1, "[]\n", "[]"),
        (0, "", "it said nothing"),
    ],
)
def test_an_answer_that_is_none_is_quoted_and_nothing_is_guessed(
    code: int, output: str, reason: str
) -> None:
    queue = sky.our_jobs(ProgramResult(code, output), "gpt", "7")
    assert (queue.jobs, queue.failed) == ((), True)
    assert queue.reason.startswith("sky jobs queue --verbose --limit=300 --output=json: ")
    assert f": {reason}" in queue.reason


def test_a_row_with_anything_in_it_does_no_harm() -> None:
    strange = {"job_id": 1, "status": None, "job_duration": "long", "details": "a\x1b[1mb\x1b[0m\x1b]0;x\x07\u202e"}  # fmt: skip
    output = json.dumps([strange, {"job_id": "2"}, {}])
    assert sky_jobs.from_queue(output) == [
        sky_jobs.Managed("1", "", "", details=r"ab\x1b]0;x\x07\u202e")
    ]
    assert sky_jobs.from_queue("[" * 100_000) is None
    assert sky_jobs.from_queue("[]\nbye\n") == []
