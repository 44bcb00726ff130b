"""Check-in: all hosts of a launch meet at the head, which collects what they say and tells the verdict.

    head.py    gather, probe, judge, tell       server.py      its conversations with the clients
    client.py  find the head, do as it says     membership.py  who has come
    search.py  attempts at the head's port      calls.py       the head calls those who have not come
    links.py   the probes between the hosts     messages.py    findings and lines, in words
    wire.py    lines of JSON over TCP           common.py      what head and clients do alike

Who connects hears first who is there (`identity`), and only then speaks: so a program that is no
preflight is not disturbed, and a client that was led to the wrong host learns to which.

    client                      head
      ·      ◀── identity ──      who it is, of which job
      ├── hello ──▶               who the client is: job, rank, counts, instance
      ·         ◀── greet ──      the token of this launch; all further messages carry it
      ├── here ──▶                its clock
      ├── report ──▶              its own checks, when they are done
      ·          ◀── wait ──      every second: for whom all wait …
      ├── still ──▶               … and that the client is alive, and at what
      ·         ◀── probe ──      all are there: its neighbours
      ├── links ──▶               what it saw of them
      ·       ◀── verdict ──      findings of all
      ├── ack ──▶
      ·            ◀── go ──      all have acknowledged: only now anybody goes on

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

from train.preflight.common import Printer
from train.preflight.finding import Finding
from train.preflight.report import Link, Report
from train.preflight.settings import Settings
from train.preflight.verdict import Outcome

__all__ = ["Outcome", "meet"]

_OTHER_FILES = 128  # that are open beside the clients' connections


def meet(
    settings: Settings,
    examine: Callable[[], Report],
    judge: Callable[[Sequence[Report], Sequence[Link]], list[Finding]],
    say: Callable[[str], None],
) -> Outcome:
    """Meet the other hosts; what came of it.

    `examine` looks at this host and may block; it runs in a thread meanwhile. `judge` is called on
    the head only, with what all hosts reported. `say` gets a line of text whenever there is something
    to tell those who wait; it may block. Returns after at most `settings.timeout_s` seconds and some 20 more,
    counted on a client from when it reached the head. Raises what `examine` raises.
    """
    voice = Printer(say)
    try:
        if settings.is_head:
            return _receive(settings, examine, judge, voice.say)
        from train.preflight.client import join_head

        return asyncio.run(join_head(settings, examine, voice.say))
    finally:
        voice.end()


def _receive(
    settings: Settings,
    examine: Callable[[], Report],
    judge: Callable[[Sequence[Report], Sequence[Link]], list[Finding]],
    say: Callable[[str], None],
) -> Outcome:
    from train.preflight.head import receive_clients

    most = 2 * (settings.nodes + _OTHER_FILES)

    def examined() -> Report:
        report = examine()
        _allow_files(most, most)  # not before: the checks tell what the run itself will have
        return report

    _allow_files(settings.nodes + _OTHER_FILES, most)  # unless these do not fit meanwhile
    return asyncio.run(receive_clients(settings, examined, judge, say))


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
