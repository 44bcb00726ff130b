"""Which rank the others wait for: heartbeats in, sentences out, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from train.health.diagnosis import examine
from train.health.heartbeats import Beat, ReceivedBeat
from train.health.phase import EXCHANGE

NOW = 1_000.0
FORWARD = {"phase": "forward", "where": "my_model.py:88 in forward", "waits": False}
TIMED_OUT = {"ended": "RuntimeError: Timed out waiting", "waited": True}
SOON = {"in_step": 2.0}
AT_EXCHANGE = f"{EXCHANGE}, train/distributed/step_exchange.py:58 in receive"
HOST_GONE = "the host or its network is gone, or it is frozen there"
NETWORK = "each for the others: look at the network between them"
WAIT = f"in step 121, {EXCHANGE}"
HERE = {0: "S", 1: "S"}


def beat(rank: int, size: int = 4, **more: Any) -> Beat:
    """One of four ranks on two hosts that all wait in the exchange of step 121, for 20 s."""
    host = "a" if rank < size / 2 else "b"
    made = Beat(
        rank, rank, size, host, 100 + rank, f"machine {host}", world="w", born=NOW - 500, time=NOW,
        step=120, phase=EXCHANGE, waits=True, where="train/distributed/step_exchange.py:58 in receive",
        in_step=20.0, in_phase=20.0, usual=0.1,
    )  # fmt: skip
    return replace(made, **more)


@dataclass
class Case:
    """`odd`: by rank, the age of its heartbeat and how that differs; `states`: of processes here."""

    odd: Mapping[int, tuple[float, Mapping[str, Any]]]
    sentences: list[str]
    blamed: tuple[int, ...] = ()
    wrong: bool = True
    conditions: str = ""
    states: Mapping[int, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def all_but(odd: Mapping[str, Any], **others: Any) -> dict[int, tuple[float, Mapping[str, Any]]]:
    """Ranks 0, 1 and 3 are as `odd` says, rank 2 as `others` does."""
    return {**dict.fromkeys((0, 1, 3), (0.5, odd)), 2: (0.5, others)}


def lost_here(state: str, age: float, says: str) -> Case:
    """Rank 1, on this machine, is lost."""
    last = f"rank 1 on a (process 101) {says}; it last stood at step 121, {AT_EXCHANGE}"
    return Case({1: (age, {})}, [last, f"ranks 0, 2-3 wait {WAIT}"], (1,), states={1: state})


STANDS = "rank 2 on b stands at step 121, forward, my_model.py:88 in forward for"
EXCEPTIONLESS = "killed (out of memory? see dmesg there), or crashed in native code"
CASES = {
    "a rank that is not heard of": Case(
        {3: (22.0, {**FORWARD, "in_step": 0.1})},
        [
            (f"rank 3 on b (process 103) has not been heard of for 22 s: {HOST_GONE}; it last stood at "
            "step 121, forward, my_model.py:88 in forward"),
            f"ranks 0-2 wait {WAIT}",
        ],
        (3,),
        states=HERE,
        options={"delay": 2.0},
    ),
    "a host that is silent altogether": Case(
        {2: (22.0, FORWARD), 3: (21.0, {})},
        [
            (f"ranks 2-3 on b have not been heard of for 22 s: {HOST_GONE}; rank 2 last stood at step "
            f"121, forward, my_model.py:88 in forward; rank 3 last stood at step 121, {AT_EXCHANGE}"),
            f"ranks 0-1 wait {WAIT}",
        ],
        (2, 3),
        states=HERE,
        options={"delay": 2.0},
    ),
    "stopped": lost_here(
        "T", 1.0, "is stopped, by SIGSTOP, Ctrl-Z or a debugger; kill -CONT 101 has it go on"
    ),
    "gone": lost_here(
        "", 1.0, f"ended without an exception (last heartbeat 1 s ago): {EXCEPTIONLESS}"
    ),
    "a zombie": lost_here(
        "Z", 1.0, f"ended without an exception (last heartbeat 1 s ago): {EXCEPTIONLESS}"
    ),
    "in the kernel": lost_here(
        "D", 30.0, "has been silent for 30 s in state D: it waits for a disk or a device driver"
    ),
    "in native code": lost_here(
        "R",
        30.0,
        "has been silent for 30 s although it runs: native code keeps Python's interpreter lock, or the "
        "machine is overloaded",
    ),
    "for a lost rank the others wait from the first second on": Case(
        {**dict.fromkeys((0, 1), (0.5, SOON)), 2: (2.0, SOON), 3: (0.5, {**SOON, **FORWARD})},
        [
            ("rank 2 on b (process 102) is stopped, by SIGSTOP, Ctrl-Z or a debugger; kill -CONT 102 has "
            f"it go on; it last stood at step 121, {AT_EXCHANGE}"),
            f"ranks 0-1 wait {WAIT}",
        ],
        (2,),
        conditions="waits, waits, stopped, goes on",
        states={2: "T"},
    ),
    "one stands in the user's code, and the others wait however short": Case(
        all_but({"in_step": 9.6}, **FORWARD, in_step=10.1, busy=0.99),
        [f"{STANDS} 11 s, with 99% of a processor", f"ranks 0-1, 3 wait {WAIT}"],
        (2,),
    ),
    "of two that stand the one behind is the cause": Case(
        {1: (0.5, {**FORWARD, "step": 119}), 2: (0.5, FORWARD)},
        [
            "rank 1 on a stands at step 120, forward, my_model.py:88 in forward for 20 s",
            f"ranks 0, 3 wait {WAIT}",
        ],
        (1,),
    ),
    "all wait": Case({}, [f"ranks 0-3 wait {WAIT}, {NETWORK}"]),
    "all wait, one in an earlier step": Case(
        {3: (0.5, {"step": 119})},
        [f"ranks 0-2 wait {WAIT}; rank 3 waits in step 120, {EXCHANGE}, {NETWORK}"],
        (3,),
    ),
    "some wait, briefly, for one that goes on": Case(
        {0: (0.5, {"phase": "evaluation", "in_step": 0.0, "waits": False})},
        [f"ranks 1-3 wait {WAIT}"],
        wrong=False,
    ),
    "who timed out is not the cause, who still works is": Case(
        all_but(TIMED_OUT, **FORWARD, in_step=3.0),
        [f"{STANDS} 4 s", f"ranks 0-1, 3 waited {WAIT}"],
        (2,),
    ),
    "some timed out, and the other waits as well": Case(
        all_but(TIMED_OUT, in_step=0.1), [f"ranks 0-3 waited {WAIT}, {NETWORK}"]
    ),
    "one ended by an exception": Case(
        all_but(TIMED_OUT, ended="ValueError: bad", where="mine.py:3 in f"),
        [
            ("rank 2 on b (process 102) has ended: ValueError: bad; it last stood at step 121, "
            f"{EXCHANGE}, mine.py:3 in f")
        ],
        (2,),
    ),
    "a host that hears nothing blames no rank": Case(
        {2: (60.0, {}), 3: (60.0, {})},
        ["ranks 2-3: nothing can be heard of from this host"],
        (2, 3),
        states=HERE,
        options={"cut_off": True},
    ),
    "nor when its own ranks have timed out and ended": Case(
        {**dict.fromkeys((0, 1), (0.5, TIMED_OUT)), **dict.fromkeys((2, 3), (20.0, {}))},
        ["ranks 2-3: nothing can be heard of from this host"],
        (2, 3),
        states={0: "", 1: ""},
        options={"cut_off": True, "delay": 4.0},
    ),
    "a heartbeat may be late, and later through another host": Case(
        {**dict.fromkeys((0, 1, 2), (5.5, {"in_step": 0.1})), 3: (9.0, {"in_step": 0.1})},
        [],
        wrong=False,
        options={"delay": 4.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_the_heartbeats_mean(case: Case) -> None:
    heard = [
        ReceivedBeat(beat(r, **case.odd.get(r, (0, {}))[1]), case.odd.get(r, (0.5,))[0])
        for r in range(4)
    ]
    found = examine(heard, case.states, **case.options)
    assert list(found.sentences) == case.sentences
    assert (found.blamed, found.wrong) == (case.blamed, case.wrong)
    if case.conditions:
        assert ", ".join(p.condition for p in found.members) == case.conditions


@pytest.mark.parametrize(
    "well",
    [
        {"in_step": 3.0},
        {"in_step": 60.0, "usual": 30.0},  # its steps take that long
        {"phase": "evaluation", "in_step": 90.0, "in_phase": 90.0},
        {"phase": "building model and data", "step": -1, "in_step": 900.0, "in_phase": 900.0},
    ],
)
def test_what_takes_its_time_is_no_alarm(well: dict[str, Any]) -> None:
    found = examine([ReceivedBeat(beat(rank, **well), 2.0) for rank in range(4)], {})
    assert (found.wrong, found.sentences) == (False, ())


def test_a_rank_without_heartbeat_is_missing_once_it_had_time_to_come() -> None:
    heard = [ReceivedBeat(beat(rank), 0.5) for rank in range(3)]
    found = examine(heard, {}, host_of_rank={3: "b"})
    assert found.blamed == (3,)
    assert found.sentences[0].startswith("rank 3 (on b): no heartbeat was ever seen here")
    fresh = [ReceivedBeat(replace(each.beat, born=NOW - 3, in_step=1.0), 0.1) for each in heard]
    assert not examine(fresh, {}).wrong
    assert not examine(heard[:2], {0: "S"}, partial=True).blamed
