"""Check-in: all hosts of a launch meet at the head, which collects their reports and tells the verdict.

    head.py    gather, probe, judge, tell       server.py   its conversations with the clients
    client.py  find the head, do as it says     common.py   shared by head and clients
    links.py   the probes between the hosts     wire.py     lines of JSON over TCP
    messages.py  findings and lines, in words

Each host first looks at itself. Who connects hears who is there (`identity`), and only then speaks: so
a program that is no preflight is not disturbed, and a client that was led to the wrong host learns to
which.

    client                      head
      ·      ◀── identity ──      the head's name and job
      ├── hello ──▶               the client's job, rank, counts, report and clock
      ·          ◀── wait ──      at once and every second: the hosts that are missing
      ├── still ──▶               the client is alive
      ·         ◀── peers ──      all hosts are there: the peers to probe
      ├── links ──▶               the results of the probes
      ·       ◀── verdict ──      the findings of all hosts
      ├── ack ──▶
      ·            ◀── go ──      all hosts have acknowledged: only now do they go on

A head that has gathered its hosts hangs up on whoever comes later. A host that is missing after a second
is called by the head (`call`), at the same port; over that connection it then speaks as above, after it
has tried once more whether it cannot reach the head itself: what stands in one direction only is a
firewall. What passes no firewall in either direction is said by each side for itself.

If a run under way (torch's TCPStore) holds the head's port, a client finds that out in the store's own protocol. A
host of an elastic job, or a host that took part before, joins that run. A connection that breaks before the verdict
ends the check. It ends for all hosts if the head is gone, or if the job needs every host.
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
    publish: Callable[[PreflightResult], object],
    print_line: Callable[[str], None],
) -> PreflightResult:
    """Meet the other hosts, and return the outcome.

    `examine` checks this host and may block. Only the head calls `judge`, with the reports of all hosts. Only the head
    calls `publish`, with an outcome that ends the launch, before the other hosts hear of it. `print_line` prints a line for
    the people who wait, and may block. Returns after at most `settings.timeout_s` seconds and some 20 more. Raises what
    `examine` raises.
    """
    printer = Printer(print_line)
    try:
        if settings.is_head:
            from train.preflight.head import receive_clients

            return asyncio.run(receive_clients(settings, examine, judge, publish, printer.say))
        from train.preflight.client import join_head

        return asyncio.run(join_head(settings, examine, printer.say))
    finally:
        printer.end()
