"""Check-in: all hosts of a launch meet at the head, which collects what they say and tells the verdict.

    head.py    gather, probe, judge, tell       server.py   its conversations with the clients
    client.py  find the head, do as it says     common.py   what head and clients do alike
    links.py   the probes between the hosts     wire.py     lines of JSON over TCP
    messages.py  findings and lines, in words

Each host first looks at itself. Who connects hears who is there (`identity`), and only then speaks: so
a program that is no preflight is not disturbed, and a client that was led to the wrong host learns to
which.

    client                      head
      ·      ◀── identity ──      who it is, of which job
      ├── hello ──▶               who the client is: job, rank, counts; its report and its clock
      ·          ◀── wait ──      at once and every second: for whom all wait …
      ├── still ──▶               … and that the client is alive
      ·         ◀── peers ──      all are there: whom to probe
      ├── links ──▶               what it saw of them
      ·       ◀── verdict ──      findings of all
      ├── ack ──▶
      ·            ◀── go ──      all have acknowledged: only now anybody goes on

A head that has gathered its hosts hangs up on whoever comes later. A host that is missing after a second
is called by the head (`call`), at the same port; over that connection it then speaks as above, after it
has tried once more whether it cannot reach the head itself: what stands in one direction only is a
firewall. What passes no firewall in either direction is said by each side for itself.

A run under way (torch's TCPStore) at the head's port is asked in its own language, and joined by a
host of an elastic job, or one that took part before. A connection that breaks before the verdict ends
the check: for all where the head is gone or no host can be missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from train.preflight.common import Printer
from train.preflight.finding import Finding
from train.preflight.report import Link, PreflightResult, Report
from train.preflight.settings import Settings


def meet(
    settings: Settings,
    examine: Callable[[], Report],
    judge: Callable[[Sequence[Report], Sequence[Link]], list[Finding]],
    tell: Callable[[PreflightResult], object],
    say: Callable[[str], None],
) -> PreflightResult:
    """Meet the other hosts; what came of it.

    `examine` looks at this host and may block. `judge` is called on the head only, with what all hosts
    reported. `tell` is called on the head only, with an outcome that ends the launch, before the others
    hear of it. `say` gets a line of text whenever there is something to tell those who wait; it may
    block. Returns after at most `settings.timeout_s` seconds and some 20 more. Raises what `examine`
    raises.
    """
    printer = Printer(say)
    try:
        if settings.is_head:
            from train.preflight.head import receive_clients

            return asyncio.run(receive_clients(settings, examine, judge, tell, printer.say))
        from train.preflight.client import join_head

        return asyncio.run(join_head(settings, examine, printer.say))
    finally:
        printer.end()
