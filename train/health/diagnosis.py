"""The diagnosis of a hang: from heartbeats to sentences that name the rank for which the others wait.

Judges which rank is gone, stopped, silent or a straggler, and which ranks wait for it. Pure: its inputs are the
heartbeats with their ages, and the states of the processes on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from train.health.heartbeats import Beat, ReceivedBeat
from train.health.phase import BACKWARD, DATA, EXCHANGE, FORWARD, SCRIPT, TRAINING

# A heartbeat may be late because of a loaded machine, a long call into native code, or two reads on its way.
SILENT_S = 6.0
# A step may take _LONGER times its usual time, and STANDING_S seconds in any case.
_LONGER = 10.0
STANDING_S = 10.0
# The phases before and after the steps (a download, an evaluation) may take longer.
LONG_PHASE_S = 300.0
# Hosts start their processes, and import torch, at different speeds.
COMING_S = 30.0
GOES_ON, WAITS, STANDS, SILENT, STOPPED, GONE, ENDED, UNKNOWN, TO_COME = (
    "goes on", "waits", "stands", "silent", "stopped", "gone", "ended", "unknown", "to come",
)  # fmt: skip
_LOST_CONDITIONS = (SILENT, STOPPED, GONE, ENDED)
_STATES = {"T": STOPPED, "t": STOPPED, "Z": GONE, "X": GONE, "": GONE}
# The phases of a step, from the first to the last.
_ORDER = (DATA, FORWARD, SCRIPT, BACKWARD, EXCHANGE)
_MAX_NAMED = 4
_HOST_LOST = "the host or its network is gone, or it is frozen there"


@dataclass(frozen=True)
class RankState:
    """A rank and its condition. `state`: the state of its process (proc(5); "" if it is gone), None if this machine
    cannot see it. `beat`: None if no heartbeat of the rank is known."""

    rank: int
    condition: str
    beat: Beat | None = None
    age: float = 0.0
    state: str | None = None

    @property
    def name(self) -> str:
        """`rank 3 on b`."""
        return f"rank {self.rank}" + (f" on {self.beat.host}" if self.beat else "")


@dataclass(frozen=True)
class Diagnosis:
    """`sentences`: cause and remedy. `wrong`: True if there is a fault. `blamed`: the ranks that cause it."""

    members: tuple[RankState, ...]
    sentences: tuple[str, ...]
    wrong: bool
    blamed: tuple[int, ...] = ()


def examine(
    received: Sequence[ReceivedBeat],
    states: Mapping[int, str],
    cut_off: bool = False,
    delay: float = 0.0,
    host_of_rank: Mapping[int, str] | None = None,
    partial: bool = False,
) -> Diagnosis:
    """Judge a world by its heartbeats. `partial`: judge these ranks only, because the others cannot be known here.

    `states`: the states of the processes of ranks on this machine. `cut_off`: True if this host hears nothing of the
    others any more, so that their silence says nothing. `delay`: seconds by which the heartbeats may be late.
    `host_of_rank`: the host of each rank, to name it for ranks without a heartbeat.
    """
    if not received:
        return Diagnosis((), (), False)
    by_rank = {heartbeat.beat.rank: heartbeat for heartbeat in received}
    size = max(heartbeat.beat.world_size for heartbeat in received)
    age = max(heartbeat.beat.time - heartbeat.beat.born + heartbeat.age for heartbeat in received)
    unheard = UNKNOWN if cut_off else TO_COME if age < COMING_S + delay else SILENT
    members = [
        _examine_rank(by_rank[rank], states.get(rank), cut_off, delay)
        if rank in by_rank
        else RankState(rank, unheard)
        for rank in (sorted(by_rank) if partial else range(size))
    ]
    culprits = [
        p for p in members if p.condition in _LOST_CONDITIONS and not (p.beat and p.beat.waited)
    ]
    at_work = [p for p in members if p.condition == GOES_ON and not _beat(p).waits]
    ended = [p for p in members if p.condition == ENDED]
    standing_ranks = [p for p in members if p.condition == STANDS] + (at_work if ended else [])
    if culprits or standing_ranks or ended:
        members = [_waiting_at_once(p) for p in members]
    if culprits:
        waiting = [p for p in members if p.condition == WAITS]
        sentences = [
            *_describe_lost(culprits, members, host_of_rank or {}),
            *_describe_waiting(waiting),
        ]
        return Diagnosis(tuple(members), tuple(sentences), True, _numbers(culprits))
    sentences, wrong, blamed = _judge_without_losses(members, standing_ranks)
    return Diagnosis(tuple(members), tuple(sentences), wrong, _numbers(blamed))


def _examine_rank(
    received: ReceivedBeat, state: str | None, cut_off: bool, delay: float
) -> RankState:
    beat, age = received.beat, received.age
    if beat.ended:
        condition = ENDED
    elif state is not None and state in _STATES:
        condition = _STATES[state]
    elif age > max(SILENT_S, 4 * beat.every) + delay:
        condition = UNKNOWN if cut_off and state is None else SILENT
    elif not _makes_no_progress(beat):
        condition = GOES_ON
    else:
        condition = WAITS if beat.waits else STANDS
    return RankState(beat.rank, condition, beat, age, state)


def _makes_no_progress(beat: Beat) -> bool:
    if beat.phase in TRAINING:
        return beat.in_step > max(STANDING_S, _LONGER * beat.usual)
    return beat.in_phase > LONG_PHASE_S and beat.step >= 0


def _waiting_at_once(member: RankState) -> RankState:
    """Return `member` as waiting however short its wait is, because the rank for which it waits is known."""
    beat = member.beat
    waits = member.condition == GOES_ON and beat is not None and beat.waits and beat.step >= 0
    return replace(member, condition=WAITS) if waits else member


# --- a rank is lost ---------------------------------------------------------------------------------


def _describe_lost(
    culprits: Sequence[RankState], members: Sequence[RankState], host_of_rank: Mapping[int, str]
) -> list[str]:
    hosts = _silent_hosts(culprits, members)
    among = {p.rank for host_ranks in hosts for p in host_ranks}
    sentences = []
    for host_ranks in hosts:
        last = [
            f"rank {p.rank} last stood {last_position(_beat(p))}" for p in host_ranks[:_MAX_NAMED]
        ]
        sentences.append(
            f"{ranks(_numbers(host_ranks))} on {_beat(host_ranks[0]).host} have not been heard of for "
            f"{duration(max(p.age for p in host_ranks))}: {_HOST_LOST}; {'; '.join(last)}"
        )
    sentences += _first_sentences(
        [p for p in culprits if p.beat and p.rank not in among], _lost_rank
    )
    if unheard := _numbers([p for p in culprits if p.beat is None]):
        hosts_of_unheard = sorted({host_of_rank[rank] for rank in unheard if rank in host_of_rank})
        where = f" (on {', '.join(hosts_of_unheard[:_MAX_NAMED])})" if hosts_of_unheard else ""
        sentences.append(
            f"{ranks(unheard)}{where}: no heartbeat was ever seen here; look at the output of its host"
        )
    return sentences


def _silent_hosts(
    culprits: Sequence[RankState], members: Sequence[RankState]
) -> list[list[RankState]]:
    """The ranks of each other host on which all ranks are silent, if it has several: their silence has one cause."""
    blamed = set(_numbers(culprits))
    of_host: dict[str, list[RankState]] = {}
    for member in members:
        if member.beat is not None:
            of_host.setdefault(member.beat.host, []).append(member)
    return [
        host_ranks
        for host_ranks in of_host.values()
        if len(host_ranks) > 1
        and all(p.rank in blamed and p.condition == SILENT and p.state is None for p in host_ranks)
    ]


def _lost_rank(member: RankState) -> str:
    beat = _beat(member)
    return f"{member.name} (process {beat.pid}) {_describe_condition(member, beat)}; it last stood {last_position(beat)}"


def _describe_condition(member: RankState, beat: Beat) -> str:
    ago = duration(member.age)
    if member.condition == ENDED:
        return f"has ended: {beat.ended}"
    if member.condition == STOPPED:
        return f"is stopped, by SIGSTOP, Ctrl-Z or a debugger; kill -CONT {beat.pid} has it go on"
    if member.condition == GONE:
        return (
            f"ended without an exception (last heartbeat {ago} ago): killed (out of memory? see dmesg "
            "there), or crashed in native code"
        )
    if member.state == "D":
        return f"has been silent for {ago} in state D: it waits for a disk or a device driver"
    if member.state is not None:
        return (
            f"has been silent for {ago} although it runs: native code keeps Python's interpreter "
            "lock, or the machine is overloaded"
        )
    return f"has not been heard of for {ago}: {_HOST_LOST}"


# --- no rank is lost, but some may keep the others waiting ------------------------------------------


def _judge_without_losses(
    members: Sequence[RankState], standing_ranks: Sequence[RankState]
) -> tuple[list[str], bool, Sequence[RankState]]:
    """Return the sentences, True if there is a fault, and the ranks that cause it."""
    unknown = [p for p in members if p.condition == UNKNOWN]
    if unknown:
        return (
            [f"{ranks(_numbers(unknown))}: nothing can be heard of from this host"],
            True,
            unknown,
        )
    present = [p for p in members if p.beat is not None]
    waiting = [p for p in present if p.condition in (WAITS, ENDED)]
    timed_out = any(p.condition == ENDED for p in present)
    who_waits = _describe_waiting(waiting, timed_out)
    if standing_ranks:
        first = min(map(_position, standing_ranks))
        behind = [p for p in standing_ranks if _position(p) == first]
        positions = _first_sentences(behind, lambda p: f"{p.name} stands {_standing_at(p)}")
        return [*positions, *who_waits], True, behind
    if waiting and len(waiting) == len(present):
        steps = {_beat(p).step for p in waiting}
        behind = [p for p in waiting if len(steps) > 1 and _beat(p).step == min(steps)]
        network = "each for the others: look at the network between them"
        return [f"{who_waits[0]}, {network}"], True, behind
    return who_waits, timed_out, ()


def _position(member: RankState) -> tuple[int, int]:
    beat = _beat(member)
    return beat.step, _ORDER.index(beat.phase) if beat.phase in _ORDER else len(_ORDER)


def _standing_at(member: RankState) -> str:
    beat = _beat(member)
    seconds = beat.in_step if beat.phase in TRAINING else beat.in_phase
    says = f"{last_position(beat)} for {duration(seconds + member.age)}"
    if beat.busy >= 0.0:
        says += f", with {min(1.0, beat.busy):.0%} of a processor"
    return says


# --- words ------------------------------------------------------------------------------------------


def _first_sentences(
    members: Sequence[RankState], sentence_on: Callable[[RankState], str]
) -> list[str]:
    """A sentence on each of the first few, and the numbers of the others."""
    sentences = [sentence_on(member) for member in members[:_MAX_NAMED]]
    if len(members) > _MAX_NAMED:
        sentences.append(
            f"and {len(members) - _MAX_NAMED} more: {ranks(_numbers(members[_MAX_NAMED:]))}"
        )
    return sentences


def _describe_waiting(waiting: Sequence[RankState], timed_out: bool = False) -> list[str]:
    """`ranks 0-2 wait in step 121, the exchange at its end`, for each position with waiting ranks."""
    ranks_at: dict[str, list[int]] = {}
    for member in waiting:
        beat = _beat(member)
        step = f"in step {beat.step + 1}, " if beat.step >= 0 else "in "
        ranks_at.setdefault(step + (beat.phase or "their own code"), []).append(member.rank)
    clauses = []
    for position, numbers in sorted(ranks_at.items(), key=lambda each: each[1][0]):
        verb = "waited" if timed_out else "wait" if len(numbers) > 1 else "waits"
        clauses.append(f"{ranks(numbers)} {verb} {position}")
    return ["; ".join(clauses[:_MAX_NAMED])] if clauses else []


def last_position(beat: Beat) -> str:
    """`at step 121, backward, my_model.py:88 in forward`."""
    parts = [f"at step {beat.step + 1}"] if beat.step >= 0 else []
    parts += [part for part in (beat.phase, beat.where) if part]
    return ", ".join(parts) or "at an unknown place"


def ranks(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and spans[-1][1] == n - 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans[:8]]
    if len(spans) > 8:
        texts.append("…")
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(texts)}"


def duration(seconds: float) -> str:
    """`4 s`, `3 min`, `2 h`, for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _beat(member: RankState) -> Beat:
    assert member.beat is not None
    return member.beat


def _numbers(members: Sequence[RankState]) -> tuple[int, ...]:
    return tuple(p.rank for p in members)
