"""Which rank the others wait for: from heartbeats to sentences.

Owns the judgement: which rank is gone, stopped, silent or a straggler, and who waits for it. Pure: it
is given the beats with their ages, and what this machine knows of its own processes.
Knows nothing of files, stores or sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from train.health.heartbeats import Beat, Heard
from train.health.phase import BACKWARD, DATA, EXCHANGE, FORWARD, SCRIPT, TRAINING

# A heartbeat may be late: a loaded machine, a long call into native code, two looks in between.
SILENT_S = 6.0
# One older than so many usual ones says how the rank was, not how it is.
_FRESH = 2.5
# A step may take this many times what it usually takes, and at least so many seconds.
_LONGER = 10.0
STANDING_S = 10.0
# What comes before and after the steps (a download, an evaluation) takes its time.
LONG_PHASE_S = 300.0
# Hosts start their processes, and import torch, at different speeds.
COMING_S = 30.0
GOES_ON, WAITS, STANDS, LATE, SILENT, STOPPED, GONE, ENDED, UNKNOWN, TO_COME = (
    "goes on", "waits", "stands", "late", "silent", "stopped", "gone", "ended", "unknown", "to come",
)  # fmt: skip
_LOST = (SILENT, STOPPED, GONE, ENDED)
_STATES = {"T": STOPPED, "t": STOPPED, "Z": GONE, "X": GONE, "": GONE}
_NAMED = 4


@dataclass(frozen=True)
class RankState:
    """A rank and how it is. `state`: of its process, where this machine can see it (proc(5); "" for
    one that is gone), else None. `beat` is None where it was never heard of."""

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
    """`sentences`: cause and remedy; `wrong`: whether anything is. `blamed`: the ranks it is about."""

    members: tuple[RankState, ...]
    sentences: tuple[str, ...]
    wrong: bool
    blamed: tuple[int, ...] = ()


def examine(
    heard: Sequence[Heard],
    states: Mapping[int, str],
    cut_off: bool = False,
    late: float = 0.0,
    homes: Mapping[int, str] | None = None,
    partial: bool = False,
) -> Diagnosis:
    """Judge a world by what was heard of it; `partial`: of these ranks only, the others are well or unknown.

    `states`: of the processes of ranks on this machine. `cut_off`: this host hears nothing of the others
    any more, so that their silence says nothing. `late`: seconds by which what is heard may be behind.
    `homes`: on which host a rank that was never heard of should be.
    """
    if not heard:
        return Diagnosis((), (), False)
    size = max(each.beat.world_size for each in heard)
    known = {each.beat.rank: each for each in heard}
    age = max(each.beat.time - each.beat.born + each.age for each in heard)
    unheard = UNKNOWN if cut_off else TO_COME if age < COMING_S + late else SILENT
    front = max(heard, key=lambda each: (each.beat.step, -_since(each)))
    members = tuple(
        _state_of(rank, known.get(rank), front, states.get(rank), cut_off, late, unheard)
        for rank in (sorted(known) if partial else range(size))
    )
    lost = [p for p in members if p.condition in _LOST]
    culprits = [p for p in lost if not (p.beat and p.beat.waited)]
    if culprits:
        members = tuple(_waiting(p) for p in members)
        sentences = _about_lost(culprits, members, homes or {})
        return Diagnosis(members, tuple(sentences), True, tuple(p.rank for p in culprits))
    return _no_rank_lost(members)


def _since(heard: Heard) -> float:
    """Seconds since this rank completed its last step, at least."""
    beat = heard.beat
    between = 0.0 if beat.phase in TRAINING else beat.in_phase
    return heard.age + max(beat.in_step, between)


def _state_of(
    rank: int,
    heard: Heard | None,
    front: Heard,
    state: str | None,
    cut_off: bool,
    late: float,
    unheard: str,
) -> RankState:
    if heard is None:
        return RankState(rank, unheard)
    # All take part in every step: when the front completed its last one, this rank still lived.
    moved = front.beat.step > heard.beat.step + 1
    silence = min(heard.age, _since(front)) if moved else heard.age
    condition = _condition(heard, silence, state, cut_off, late)
    return RankState(rank, condition, heard.beat, heard.age, state)


def _condition(heard: Heard, silence: float, state: str | None, cut_off: bool, late: float) -> str:
    """`silence`: seconds since the last sign of life, which others may have given."""
    beat = heard.beat
    if beat.ended:
        return ENDED
    if state is not None and state in _STATES:
        return _STATES[state]
    if silence > max(SILENT_S, 4 * beat.every) + late:
        return UNKNOWN if cut_off and state is None else SILENT
    if heard.age > max(_FRESH * beat.every, beat.every + late / 2):
        return LATE
    if not _stands(beat):
        return GOES_ON
    if silence < heard.age:
        return LATE  # the others have left that step since
    return WAITS if beat.waits else STANDS


def _waiting(member: RankState) -> RankState:
    """Where one is lost, the others need not have waited for long to wait for it."""
    beat = member.beat
    waits = member.condition == GOES_ON and beat is not None and beat.waits and beat.step >= 0
    return replace(member, condition=WAITS) if waits else member


def _stands(beat: Beat) -> bool:
    if beat.phase in TRAINING:
        return beat.in_step > max(STANDING_S, _LONGER * beat.usual)
    return beat.in_phase > LONG_PHASE_S and beat.step >= 0


def _about_lost(
    culprits: Sequence[RankState], members: Sequence[RankState], homes: Mapping[int, str]
) -> list[str]:
    hosts = _silent_hosts(culprits, members)
    among = {p.rank for theirs in hosts for p in theirs}
    sentences = [_silent_host(silent) for silent in hosts]
    unheard = [p for p in culprits if p.beat is None]
    alone = [p for p in culprits if p.beat is not None and p.rank not in among]
    sentences += _each(alone, _lost)
    if unheard:
        at = sorted({homes[p.rank] for p in unheard if p.rank in homes})
        where = f" (on {', '.join(at[:_NAMED])})" if at else ""
        sentences.append(
            f"{ranks([p.rank for p in unheard])}{where}: no heartbeat was ever seen here; look at the "
            "output of its host"
        )
    waiting = [p for p in members if p.condition == WAITS]
    if waiting:
        sentences.append(_who_waits(waiting))
    return sentences


def _silent_hosts(
    culprits: Sequence[RankState], members: Sequence[RankState]
) -> list[list[RankState]]:
    """The hosts elsewhere all of whose ranks, several, are silent: one thing has happened to them."""
    blamed = set(_numbers(culprits))
    of_host: dict[str, list[RankState]] = {}
    for member in members:
        if member.beat is not None:
            of_host.setdefault(member.beat.host, []).append(member)
    return [
        theirs
        for theirs in of_host.values()
        if len(theirs) > 1
        and all(p.rank in blamed and p.condition == SILENT and p.state is None for p in theirs)
    ]


def _silent_host(theirs: Sequence[RankState]) -> str:
    last = [f"rank {p.rank} last stood {stood(_beat(p))}" for p in theirs[:_NAMED]]
    return (
        f"{ranks(_numbers(theirs))} on {_beat(theirs[0]).host} have not been heard of for "
        f"{duration(max(p.age for p in theirs))}: the host or its network is gone, or it is frozen "
        f"there; {'; '.join(last)}"
    )


def _lost(member: RankState) -> str:
    beat = _beat(member)
    return f"{member.name} (process {beat.pid}) {_how(member, beat)}; it last stood {stood(beat)}"


def _how(member: RankState, beat: Beat) -> str:
    ago = duration(member.age)
    if member.condition == ENDED:
        return f"has ended: {beat.ended}"
    if member.condition == STOPPED:
        return f"is stopped, by SIGSTOP, Ctrl-Z or a debugger; kill -CONT {beat.pid} has it go on"
    if member.condition == GONE:
        return (
            f"is gone without a word (last heartbeat {ago} ago): killed (out of memory? see dmesg "
            "there), or crashed in native code"
        )
    if member.state == "D":
        return f"has been silent for {ago} in state D: it waits for a disk or a driver"
    if member.state is not None:
        return (
            f"has been silent for {ago} although it runs: native code keeps Python's interpreter "
            "lock, or the machine is overloaded"
        )
    return (
        f"has not been heard of for {ago}: its host or its network is gone, or it is frozen there"
    )


def _no_rank_lost(members: Sequence[RankState]) -> Diagnosis:
    """Nobody is lost, but perhaps some whose wait was in vain. Who keeps the others waiting?"""
    unknown = [p for p in members if p.condition == UNKNOWN]
    if unknown:
        sentence = f"{ranks(_numbers(unknown))}: nothing can be heard of from this host"
        return Diagnosis(tuple(members), (sentence,), True, _numbers(unknown))
    present = [p for p in members if p.beat is not None]
    gave_up = [p for p in present if p.condition == ENDED]
    standing = [p for p in present if p.condition == STANDS or (gave_up and _is_at_work(p))]
    if standing or gave_up:
        members = tuple(_waiting(p) for p in members)
        present = [p for p in members if p.beat is not None]
    waiting = [p for p in present if p.condition in (WAITS, ENDED)]
    late = [p for p in present if p.condition == LATE]
    if standing:
        first = min(_position(p) for p in standing)
        behind = [p for p in standing if _position(p) == first]
        sentences = _each(behind, lambda p: f"{p.name} stands {_standing_at(p)}")
        if waiting:
            sentences.append(_who_waits(waiting, "waited" if gave_up else "wait"))
        return Diagnosis(tuple(members), (*sentences, *_late(late)), True, _numbers(behind))
    if gave_up and late:
        return Diagnosis(tuple(members), tuple(_late(late)), True, _numbers(late))
    if waiting and len(waiting) == len(present):
        behind = _behind(waiting)
        sentence = _lagging(behind) if behind else _all_wait(waiting, bool(gave_up))
        return Diagnosis(tuple(members), (sentence,), True, _numbers(behind))
    said = (*_late(late), *([_who_waits(waiting)] if waiting else ()))
    nobody_goes_on = len(waiting) + len(late) == len(present)
    wrong = bool(gave_up) or (bool(waiting) and nobody_goes_on)
    return Diagnosis(tuple(members), said, wrong)


def _is_at_work(member: RankState) -> bool:
    return member.condition == GOES_ON and not _beat(member).waits


def _all_wait(waiting: Sequence[RankState], in_vain: bool) -> str:
    if in_vain:
        return f"{ranks(_numbers(waiting))} waited for each other in vain: look at the network"
    return f"all ranks wait for each other {stood(_beat(waiting[0]))}: look at the network"


def _late(late: Sequence[RankState]) -> list[str]:
    return _each(
        late,
        lambda p: (
            f"{p.name} was last heard of {duration(p.age)} ago, {stood(_beat(p))}: how it is "
            "now is not known yet"
        ),
    )


def _each(members: Sequence[RankState], say: Callable[[RankState], str]) -> list[str]:
    """A sentence on each of the first few, and the numbers of the others."""
    sentences = [say(member) for member in members[:_NAMED]]
    if len(members) > _NAMED:
        sentences.append(f"and {len(members) - _NAMED} more: {ranks(_numbers(members[_NAMED:]))}")
    return sentences


def _behind(waiting: Sequence[RankState]) -> list[RankState]:
    """Those who wait in an earlier step than others: what these have sent has not reached them."""
    steps = {_beat(p).step for p in waiting}
    return [p for p in waiting if _beat(p).step == min(steps)] if len(steps) > 1 else []


def _lagging(behind: Sequence[RankState]) -> str:
    return (
        f"{ranks(_numbers(behind))} still waits {stood(_beat(behind[0]))}, which the others have "
        "left behind: what they sent has not arrived; look at the network between them"
    )


def _position(member: RankState) -> tuple[int, int]:
    beat = _beat(member)
    order = [DATA, FORWARD, SCRIPT, BACKWARD, EXCHANGE]
    return beat.step, order.index(beat.phase) if beat.phase in order else len(order)


def _standing_at(member: RankState) -> str:
    beat = _beat(member)
    seconds = beat.in_step if beat.phase in TRAINING else beat.in_phase
    says = f"{stood(beat)} for {duration(seconds + member.age)}"
    if beat.busy >= 0.0:
        says += f", with {min(1.0, beat.busy):.0%} of a processor"
    return says


def _who_waits(waiting: Sequence[RankState], verb: str = "wait") -> str:
    """`ranks 0-2 wait in step 121, the exchange at its end`, for each place where some do."""
    places: dict[str, list[int]] = {}
    for member in waiting:
        beat = _beat(member)
        place = (
            f"in {beat.phase or 'their own code'}"
            if beat.step < 0
            else (f"in step {beat.step + 1}, {beat.phase or 'starting'}")
        )
        places.setdefault(place, []).append(member.rank)
    said = [
        f"{ranks(found)} {verb if verb != 'wait' or len(found) > 1 else 'waits'} {place}"
        for place, found in sorted(places.items(), key=lambda each: each[1][0])
    ]
    return "; ".join(said[:_NAMED])


def stood(beat: Beat) -> str:
    """`at step 121, backward, my_model.py:88 in forward`."""
    parts = [f"at step {beat.step + 1}"] if beat.step >= 0 else []
    parts += [part for part in (beat.phase, beat.where) if part]
    return ", ".join(parts) or "nobody knows where"


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
