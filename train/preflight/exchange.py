"""Check-in: all hosts of a launch meet at the head, which collects what they say and tells the verdict.

    head.py    gather, probe, judge, tell       desk.py    its conversations with the guests
    guest.py   find the head, do as it says     roll.py    who has come
    search.py  knocking at the head's port      calls.py   the head calls those who have not come
    links.py   the probes between the hosts     blame.py   findings and lines, in words
    wire.py    lines of JSON over TCP           own.py     what head and guests do alike

Who connects hears first who is there (`door`), and only then speaks: so a program that is no
preflight is not disturbed, and a guest that was led to the wrong host learns to which.

    guest                       head
      ·        ◀── door ──        who it is, of which job
      ├── hello ──▶               who the guest is: job, rank, counts, instance
      ·        ◀── greet ──       the token of this launch; all further words carry it
      ├── here ──▶                its clock
      ├── report ──▶              its own checks, when they are done
      ·        ◀── wait ──        every second: for whom all wait …
      ├── still ──▶               … and that the guest is alive, and at what
      ·        ◀── probe ──       all are there: its neighbours
      ├── links ──▶               what it saw of them
      ·        ◀── verdict ──     findings of all
      ├── ack ──▶
      ·        ◀── go ──          all have acknowledged: only now anybody goes on

`late` instead of `greet`: the hosts have gathered without this one. A host that is missing after a
second is called by the head (`call`), at the same port; over that connection it then speaks as above,
after it has tried once more whether it cannot reach the head itself: what stands in one direction
only is a firewall. What passes no firewall in either direction is said by each side for itself.

A run under way (torch's TCPStore) at the head's port is asked in its own language, and joined by a
host of an elastic job, or one that took part before. A head that ends before the verdict ends the
check for all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from train.preflight.asked import Asked
from train.preflight.finding import Finding
from train.preflight.outcome import Outcome
from train.preflight.own import Voice
from train.preflight.report import Link, Report

__all__ = ["Outcome", "meet"]

_OTHER_FILES = 128  # that are open beside the guests' connections


def meet(
    asked: Asked,
    examine: Callable[[], Report],
    judge: Callable[[Sequence[Report], Sequence[Link]], list[Finding]],
    say: Callable[[str], None],
) -> Outcome:
    """Meet the other hosts; what came of it.

    `examine` looks at this host and may block; it runs in a thread meanwhile. `judge` is called on
    the head only, with what all hosts reported. `say` gets a line of text whenever there is something
    to tell those who wait; it may block. Returns after at most `asked.patience_s` seconds and some 20 more,
    counted on a guest from when it reached the head. Raises what `examine` raises.
    """
    voice = Voice(say)
    try:
        if asked.is_head:
            return _receive(asked, examine, judge, voice.say)
        from train.preflight.guest import visit_head

        return asyncio.run(visit_head(asked, examine, voice.say))
    finally:
        voice.end()


def _receive(
    asked: Asked,
    examine: Callable[[], Report],
    judge: Callable[[Sequence[Report], Sequence[Link]], list[Finding]],
    say: Callable[[str], None],
) -> Outcome:
    from train.preflight.head import receive_guests

    most = 2 * (asked.nodes + _OTHER_FILES)

    def examined() -> Report:
        report = examine()
        _allow_files(most, most)  # not before: the checks tell what the run itself will have
        return report

    _allow_files(asked.nodes + _OTHER_FILES, most)  # unless these do not fit meanwhile
    return asyncio.run(receive_guests(asked, examined, judge, say))


def _allow_files(least: int, wanted: int) -> None:
    """Where fewer than `least` open files are allowed, `wanted`, if the system lets us have them."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= least:
        return
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
