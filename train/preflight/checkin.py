"""Check-in: all hosts of a launch meet at the head, which collects their reports and tells the verdict.

    head.py    gather, probe, judge, tell       server.py   its conversations with the clients
    client.py  find the head, do as it says     common.py   shared by head and clients
    links.py   the probes between the hosts     wire.py     lines of JSON over TCP
    messages.py  findings and lines, in words

Each host first checks itself. The side that accepts a connection speaks first (`identity`). So a client sends nothing
to a program that is no preflight, and a client that was led to the wrong host learns which host that is.

    client                      head
      ·      ◀── identity ──      the head's name and job
      ├── hello ──▶               the client's job, rank, counts, report and clock
      ·          ◀── wait ──      at once and every second: the head is alive, and which hosts are missing
      ├── still ──▶               the client is alive
      ·         ◀── peers ──      all hosts are there: the peers to probe
      ├── links ──▶               the results of the probes
      ·       ◀── verdict ──      the findings of all hosts
      ├── ack ──▶
      ·            ◀── go ──      all hosts have acknowledged: only now do they go on

A head that has gathered its hosts hangs up on a client that comes later. If a host is still missing after a second,
the head connects to the same port of that host and sends `call`. The host then tries once more to connect to the head.
If that fails, the host speaks as above over the head's connection, and the head reports the firewall that closes one
direction only. If a firewall closes both directions, each side reports the other one as missing.

If a run under way (torch's TCPStore) holds the head's port, a client finds that out in the store's own protocol. A
host of an elastic job, or a host that took part before, joins that run. If a connection breaks before `go`, the check
ends for that host. It ends for all hosts if the head is gone, or if the job needs every host.
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
    calls `publish`, with an outcome that ends the launch, before it tells the other hosts. `print_line` prints a line
    for the people who wait, and may block. Returns after at most `settings.timeout_s` seconds and some 20 more. Raises
    the exceptions of `examine`.
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
