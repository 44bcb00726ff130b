"""What a signal and the end of the workers mean, as tables."""

from __future__ import annotations

import pytest

from train.launch.decision import End, at_end, goes_on, not_begun, on_signal
from train.run.status import Status

AGAIN = "bash local.sh"
GO_ON = f"to resume: {AGAIN}"
ANEW = f"to start over, as nothing was seen to be saved: {AGAIN}"
UNKNOWN = f"to start it again: {AGAIN}"
SILENT = "the launcher ended with code 3 and no process said why, as when one is killed"
NOTED = "rank 1: ValueError: odd (model.py:7 in forward)"


def status(word: str, step: int = 7, reason: str = "") -> Status:
    return Status(word, "a1", step, reason)


@pytest.mark.parametrize(
    ("name", "stops", "met", "action"),
    [
        ("INT", 0, True, "stop"),
        ("TERM", 0, True, "stop"),
        ("HUP", 0, True, "stop"),
        ("INT", 0, False, "end"),
        ("TERM", 0, False, "end"),
        ("HUP", 0, False, "end"),
        ("INT", 1, True, "kill"),
        ("TERM", 1, False, "kill"),
        ("HUP", 1, True, "stop"),  # a closing terminal sends it twice
        ("HUP", 2, False, "end"),
        ("KILL", 0, False, "kill"),  # a driver's needs no stop before it
    ],
)
def test_a_signal(name: str, stops: int, met: bool, action: str) -> None:
    assert on_signal(name, stops, met).action == action


@pytest.mark.parametrize(
    ("program", "saved", "expected"),
    [
        (("run", "--workload=gpt"), True, GO_ON),
        (("run", "--workload=gpt"), False, f"to start over, as no checkpoint was written: {AGAIN}"),
        (("run", "--workload=gpt", "--probe"), True, f"to start over: {AGAIN}"),
        (("script", "code/train.py", "--from-scratch"), True, GO_ON),  # an argument of its own
        (("script", "code/train.py"), False, ANEW),
        (("script", "--resume-exists=ckpt.npz", "code/train.py"), False, UNKNOWN),
        (("script", "--resume-exists=ckpt.npz", "code/train.py"), True, GO_ON),
        (("script", "--from-scratch", "code/train.py"), True, f"to start over: {AGAIN}"),
        (("script", "--no-python", "./train.sh"), False, UNKNOWN),
        (
            ("script", "--from-scratch", "--no-python", "./train.sh"),
            False,
            f"to start over: {AGAIN}",
        ),
    ],
)
def test_what_another_start_is_for(program: tuple[str, ...], saved: bool, expected: str) -> None:
    again = goes_on(program, saved)
    for end in (End(0, status("stopped"), next=again), End(1, status("running"), next=again)):
        assert at_end(end, "HERE", AGAIN).lines[-1].endswith(expected)
    assert at_end(End(0, status("stopped"), next=""), "HERE", AGAIN).lines == ("stopped at step 7",)


def test_only_who_typed_it_is_told_how_to_kill_and_to_go_on() -> None:
    assert not_begun("").lines == ("stopped before the training began",)
    assert on_signal("INT", 0, met=True).message.endswith("a clean stop; again to kill")
    assert on_signal("TERM", 0, True, driven=True).message.endswith("a clean stop")


@pytest.mark.parametrize(
    ("end", "code", "lines"),
    [
        (End(1, status("done")), 0, ("done at step 7; HERE",)),
        (End(0, status("done", 0)), 0, ("done; HERE",)),
        (End(0, status("done", 7, "early stop")), 0, ("done at step 7 (early stop); HERE",)),
        (End(1, status("stopped")), 75, (f"stopped at step 7; to resume: {AGAIN}",)),
        (End(0, status("failed", 7, "why")), 1, ("failed at step 7: why",)),
        (End(0, status("failed", 0)), 1, ("failed: no reason given",)),
        (End(3, status("running")), 1, (f"crashed: {SILENT}", GO_ON)),
        (End(1, status("running", 7, NOTED)), 1, (f"crashed: {NOTED}", GO_ON)),
        (
            End(137, status("running")),
            1,
            ("crashed: the launcher was killed by signal 9", GO_ON),
        ),
        (End(137, status("running"), stops=2, killed=True), 1, (f"killed; {GO_ON}",)),
        (End(1, status("running"), stops=1, met=False), 75, not_begun(AGAIN).lines),
        (
            End(137, status("running"), stops=2, killed=True, met=False),
            1,
            (f"killed; {GO_ON}",),
        ),
        (End(137, status("running", 7, NOTED), killed=True), 1, (f"killed; {GO_ON}",)),
        (End(137, status("done"), stops=2, killed=True), 0, ("done at step 7; HERE",)),
        (
            End(1, None),
            1,
            ("the status is not of this attempt: another job has taken over",),
        ),
    ],
)
def test_the_end_of_the_workers(end: End, code: int, lines: tuple[str, ...]) -> None:
    outcome = at_end(end, "HERE", AGAIN)
    assert (outcome.code, outcome.lines) == (code, lines)
    # The driver of several hosts gets the cause, and may start all again after a crash.
    assert outcome.crashed == (outcome.code == 1 and lines[0].startswith(("crashed", "killed")))
    if end.killed and end.status == status("running", 7, NOTED):
        assert outcome.reason == f"killed, as it was asked to; the last crash: {NOTED}"
    elif not lines[0].startswith("killed"):
        assert outcome.reason in lines[0]
    # A status that says `running` still gets the same reason.
    assert outcome.why == (outcome.reason or lines[0])


def test_a_failure_without_a_reason_says_so() -> None:
    assert at_end(End(0, status("failed"))).why == "no reason given"
