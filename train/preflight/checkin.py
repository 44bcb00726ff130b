"""Check-in: all hosts of a launch meet at the head, which collects what they say and tells the verdict.

    head.py    gather, probe, judge, tell       server.py   its conversations with the clients
    client.py  find the head, do as it says     common.py   what head and clients do alike
    links.py   the probes between the hosts     wire.py     lines of JSON over TCP
    messages.py  findings and lines, in words

Each host first looks at itself. A host that connects hears who is there (`identity`), and only then
speaks. So a program that is no preflight is not disturbed. A client listens at the head's port as well:
a host that was led to it in place of the head learns its name.

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

A head that has gathered its hosts hangs up on whoever comes later. A host that cannot reach the head says
so itself, and the head says for whom it waits.

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
