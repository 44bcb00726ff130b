"""status, logs and stop of a job that SkyPilot manages.

Owns which jobs are meant: the one launched from here, and what has the spec's name and lives. Decides
when a stop goes through the bucket, and when there is nothing that could stop cleanly. The bucket is
also asked where SkyPilot knows nothing: the job may be another machine's, or its controller lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddpgen.driver.screen import table
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import bucket, managed, skypilot, state, store
from ddpgen.monitor.bucket import Address
from ddpgen.monitor.managed import Managed
from ddpgen.monitor.record import Launched
from ddpgen.monitor.state import JobState, Report
from ddpgen.spec.sky import SkyJob

# What the job notes as the reason of its end, behind `user: `.
_SAID = "ddpgen stop"
# Rank 0 says every 30 s that it lives.
_LIVES_S = 120.0
# Reasons of an end from which SkyPilot starts the job again (train/supervisor/sky.py).
_COMES_BACK = ("preempted", "signal")
_STRANGER = "something runs there that this SkyPilot does not know"


class Asked(NamedTuple):
    """A job of the spec, and what was launched last."""

    job: SkyJob
    launched: Launched | None

    @property
    def unknown(self) -> str:
        """What to say when there is no job."""
        if self.launched is not None and self.launched.job:
            return f"SkyPilot does not show job {self.launched.job} any more"
        return f"SkyPilot knows no job called {self.job.name}"


class There(NamedTuple):
    """What the bucket says. `age_s`: since rank 0 last said that it lives."""

    found: JobState
    age_s: float | None

    @property
    def lives(self) -> bool:
        """Whether somebody has just said so."""
        return self.found.word == "running" and self.age_s is not None and self.age_s <= _LIVES_S

    @property
    def may_go_on(self) -> bool:
        """Whether it runs, or may come back: killed with its machine, or stopped before that."""
        taken = self.found.word == "stopped" and self.found.reason.startswith(_COMES_BACK)
        return self.found.word == "running" or taken

    @property
    def sign(self) -> str:
        """When it last said that it lives."""
        known = self.found.word == "running" and self.age_s is not None
        return f"last sign of life {state.ago(self.age_s or 0.0)}" if known else ""


def status(asked: Asked) -> Iterator[str | Report]:
    """Lines that say how it stands. Raises TargetUnavailableError."""
    try:
        seen = _look(asked)
    except TargetUnavailableError as error:
        yield from _status_without_sky(asked, error)
        return
    if seen:
        yield from table(managed.table(seen))
    elif seen is None:
        yield "SkyPilot's controller of jobs is not up, so none of its jobs runs"
        yield f"how the last ones ended: {skypilot.typed(['jobs', 'queue', '--refresh'])}"
    else:
        yield asked.unknown
    yield from _bucket(asked, seen)


def stop(asked: Asked, now: bool) -> Iterator[str]:
    """Cancel what waits, and ask what runs for a clean stop; or cancel all of it, `now`.

    Raises TargetUnavailableError.
    """
    try:
        seen = _look(asked)
    except TargetUnavailableError as error:
        yield from _stop_without_sky(asked, now, error)
        return
    alive = [each for each in seen or [] if not each.over]
    if not alive:
        yield from _stop_unknown(asked, now, seen or [])
    known = asked.launched.job if asked.launched else ""
    meant = [each for each in alive if each.id == known] or alive
    for each in alive:
        if each not in meant:
            yield f"{each.id}: of the same name, and {each.words}: left alone; to end it: {_now([each.id])}"
        elif each.ending:
            yield f"{each.id}: it is being cancelled already"
        elif now or each.waits:
            yield from _cancel(each)
    running = [each for each in meant if not (now or each.ending or each.waits)]
    if running:
        yield from _ask_to_stop(asked, running)


def lives(asked: Asked) -> bool:
    """Whether one of the jobs waits or runs. Raises TargetUnavailableError."""
    return any(not each.over for each in _look(asked) or [])


def log(asked: Asked) -> Managed | None:
    """The job whose output is meant. Raises TargetUnavailableError."""
    seen = _look(asked)
    return seen[-1] if seen else None


def _look(asked: Asked) -> list[Managed] | None:
    """Every job that is meant, the remembered one last; None when no controller is up to be asked."""
    answer = skypilot.ask(managed.queue())
    found = managed.from_queue(answer.said)
    if managed.nothing_up(answer.said):
        return None
    if answer.code != 0 or found is None:
        skypilot.version()  # it may be another program of that name
        asks = skypilot.typed(managed.queue())
        raise TargetUnavailableError(f"{asks}: {managed.complaint(answer.said)}")
    # Another server numbers its jobs anew: the name has to fit, too.
    ours = [each for each in found if each.name == asked.job.name]
    known = asked.launched.job if asked.launched else ""
    remembered = [each for each in ours if each.id == known]
    alive = [each for each in ours if not each.over and each.id != known]
    # Oldest first, as they are read.
    return [*reversed(alive), *remembered] or ours[:1]


def _runs(seen: Sequence[Managed] | None) -> bool | None:
    """Whether it has processes, as far as SkyPilot knows."""
    if seen is None:
        return False
    return any(not each.waits and not each.over for each in seen) if seen else None


def _bucket(asked: Asked, seen: Sequence[Managed] | None) -> Iterator[str | Report]:
    at = _address(asked)
    if at is None:
        return
    try:
        there = _there(at)
    except store.NoWayError as error:
        yield f"{at.url}: not looked at: {error}"
        return
    stranger = there.lives and all(each.over for each in seen or [])
    yield from _words(at, there, None if stranger else _runs(seen))
    if stranger:
        yield f"  {_stranger(seen or [])}"


def _words(at: Address, there: There, runs: bool | None) -> Iterator[str | Report]:
    if there.found.there == "no":
        yield f"{at.url}:"
        yield "  nothing there yet"
        return
    yield Report(at.url, there.found, runs)
    if there.sign:
        yield f"  {there.sign}"


def _stranger(ended: Sequence[Managed]) -> str:
    numbers = ", ".join(each.id for each in ended)
    return f"unless that was the last of {numbers}, {_STRANGER}" if ended else _STRANGER


def _there(at: Address) -> There:
    """Raises NoWayError."""
    facts = store.look(at)
    age = facts.get("owner-age")
    return There(state.read(facts), None if age is None else float(age))


def _address(asked: Asked) -> Address | None:
    return bucket.address(asked.job, os.environ)


def _status_without_sky(asked: Asked, error: TargetUnavailableError) -> Iterator[str | Report]:
    """What the bucket says is much, where SkyPilot says nothing."""
    at = _address(asked)
    if at is None:
        raise error
    try:
        there = _there(at)
    except store.NoWayError as closed:
        raise TargetUnavailableError(f"{error}\n{at.url}: not looked at: {closed}") from None
    yield str(error)
    yield from _words(at, there, None)


def _stop_without_sky(asked: Asked, now: bool, error: TargetUnavailableError) -> Iterator[str]:
    at = _address(asked)
    if at is None:
        raise error
    by_hand = f"a clean stop takes no SkyPilot: {bucket.stop_by_hand(at)}"
    if now:
        raise TargetUnavailableError(f"{error}\nso nothing can be cancelled from here\n{by_hand}")
    try:
        there = _there(at)
        if there.may_go_on:
            store.ask_to_stop(at, _SAID)
    except store.NoWayError as closed:
        raise TargetUnavailableError(
            f"{error}\n{at.url}: not looked at: {closed}\n{by_hand}"
        ) from None
    if not there.may_go_on:
        words = "\n".join(state.as_text(_words(at, there, None)))
        raise TargetUnavailableError(
            f"{error}\nnothing runs that could be asked; what waits only SkyPilot can cancel\n{words}"
        )
    yield str(error)
    yield from _asked_there(at, there)


def _stop_unknown(asked: Asked, now: bool, ended: Sequence[Managed]) -> Iterator[str]:
    """SkyPilot has nothing of this job to stop; somebody else's may run all the same."""
    told = ", ".join(f"{each.id} ({each.words})" for each in ended) or asked.unknown
    at = _address(asked)
    try:
        there = _there(at) if at else None
    except store.NoWayError as closed:
        if ended:
            there = None  # SkyPilot knows how it ended
        else:
            raise _nothing_seen(asked, now, closed) from None
    if at is None or there is None or not (there.lives or (there.may_go_on and not ended)):
        yield f"nothing to stop: {told}"
        return
    what = _stranger(ended) if there.lives else "it may run, or come back, elsewhere"
    known = f"{told}; {at.url}: {what}" + (f" ({there.sign})" if there.sign else "")
    if now:
        raise TargetUnavailableError(
            f"{known}\n--now cannot cancel what this SkyPilot does not know; ddpgen stop without it asks "
            "for a clean stop"
        )
    try:
        store.ask_to_stop(at, _SAID)
    except store.NoWayError as closed:
        raise TargetUnavailableError(
            f"{known}\n{at.url} cannot be written from here: {closed}\n"
            f"for a clean stop: {bucket.stop_by_hand(at)}"
        ) from None
    yield known
    yield from _asked_there(at, there)


def _nothing_seen(asked: Asked, now: bool, closed: store.NoWayError) -> TargetUnavailableError:
    at = _address(asked)
    assert at is not None
    lines = [asked.unknown, f"whether it runs elsewhere: {at.url}: not looked at: {closed}"]
    if now:
        lines.append("--now cannot cancel what this SkyPilot does not know")
    lines.append(f"for a clean stop, if it runs: {bucket.stop_by_hand(at)}")
    return TargetUnavailableError("\n".join(lines))


def _asked_there(at: Address, there: There) -> Iterator[str]:
    if there.lives:
        yield f"{at.url}: asked for a clean stop, which it sees within some 10 s"
    else:
        yield f"{at.url}: asked for a clean stop: should it come back, it ends at once"


def _cancel(job: Managed) -> Iterator[str]:
    words = managed.cancel([job.id])
    answer = skypilot.ask(words)
    if answer.code != 0:
        raise TargetUnavailableError(f"{skypilot.typed(words)}: {managed.complaint(answer.said)}")
    if job.waits:
        yield f"{job.id}: cancelled while it was {job.words}: nothing more is lost by that"
    else:
        yield f"{job.id}: cancelled; what it did since its newest checkpoint may be lost"


def _ask_to_stop(asked: Asked, running: Sequence[Managed]) -> Iterator[str]:
    at = _address(asked)
    ids = [each.id for each in running]
    numbers = ", ".join(ids)
    if at is None:
        raise TargetUnavailableError(
            f"job {numbers} has no place in a bucket through which it could be asked; {_now(ids)} ends it"
        )
    try:
        store.ask_to_stop(at, _SAID)
    except store.NoWayError as error:
        raise TargetUnavailableError(
            f"{at.url} cannot be written from here: {error}\n"
            f"for a clean stop of job {numbers}, nothing lost: {bucket.stop_by_hand(at)}\n"
            f"at once, without a checkpoint: {_now(ids)}"
        ) from None
    yield f"{numbers}: asked for a clean stop, which it sees within some 10 s"


def _now(ids: Sequence[str]) -> str:
    return skypilot.typed(managed.cancel(ids))
