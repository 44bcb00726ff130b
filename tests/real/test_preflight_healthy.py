"""Two hundred launches of hosts that are well: the preflight has nothing to say against any of them.

Hosts, node counts, start orders, delays, slow and distant wires are drawn by lot, the same every
time. A false alarm would be as bad as a hang.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import NewRig
from tests.real.rig import Host, Machine, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]
ROOT = Path(__file__).resolve().parents[2]
LAUNCHES, LANES, MOST = 200, 2, 6
# Python has come up and imported once; each check is a fork of it. It is told on a line what to do.
SERVER = """
import json, os, sys, time
from tests.train.preflight.program import main
from train.preflight import checkin, checks, command
for line in sys.stdin:
    told = json.loads(line)
    reads, writes = os.pipe()
    if not os.fork():
        for number in (1, 2):
            os.dup2(writes, number)
        time.sleep(told["delay"])
        code = 70
        try:
            code = main(told["argv"])
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writes)
    with open(reads) as stream:
        output = stream.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.wait()[1]), output]), flush=True)
"""


@pytest.fixture(scope="module")
def rig(new_rig: NewRig) -> Rig:
    return new_rig(*(Host(f"n{number}") for number in range(LANES * MOST)))


class Server:
    """Python on a host that runs preflights, one at a time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.process = machine.popen(
            [sys.executable, "-c", SERVER], cwd=str(ROOT), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def begin(self, delay_s: float, argv: Sequence[str]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"delay": delay_s, "argv": argv}) + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        code, output = json.loads(self.process.stdout.readline())
        return code, output


@contextmanager
def serving(machine: Machine) -> Iterator[Server]:
    server = Server(machine)
    with server.process:
        yield server
        server.process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.nightly
def test_two_hundred_launches_of_healthy_hosts_raise_no_alarm(rig: Rig) -> None:
    assert launched(rig, LAUNCHES) == []


@pytest.mark.nightly
def test_a_host_far_away_and_one_on_a_slower_wire_raise_none_either(rig: Rig) -> None:
    """As between rooms and cities: a host that answers late is no fault of a link."""
    rig["n1"].delay(15)
    rig["n7"].rate(10)
    try:
        assert launched(rig, LAUNCHES // 10) == []
    finally:
        rig["n1"].delay(0)
        rig["n7"].rate(None)


def launched(rig: Rig, count: int) -> list[Any]:
    """The alarms of so many launches, two at a time, on half of the hosts each."""
    with ExitStack() as stack, ThreadPoolExecutor(LANES) as pool:
        servers = [stack.enter_context(serving(machine)) for machine in rig]
        lanes = [servers[lane * MOST :][:MOST] for lane in range(LANES)]
        bad = list(pool.map(alarms, lanes, range(LANES), [count // LANES] * LANES))
    assert rig.strays(within=30) == []
    return [each for lane in bad for each in lane]


def alarms(servers: Sequence[Server], seed: int, count: int) -> list[Any]:
    """Launch so often with these hosts; what was said against any of them."""
    lot = random.Random(seed)
    return [
        bad
        for number in range(count)
        if (bad := launch(lot.sample(servers, lot.randint(2, MOST)), lot, f"{seed}-{number}"))
    ]


def launch(servers: Sequence[Server], lot: random.Random, name: str) -> list[Any]:
    """One launch of these hosts, the first of them the head; its alarms."""
    port, procs = lot.randint(20000, 30000), lot.randint(1, 4)
    spread_s = lot.choice((0.0, 0.05, 0.3))
    common = {
        "job": "healthy", "checkpoint_dir": f"{Machine.home}/{name}", "port": port, "procs": procs,
        "nodes": len(servers), "min_nodes": len(servers), "world_size": procs * len(servers),
        "head": servers[0].machine.address, "timeout_s": 60.0,
        "addresses": {each.machine.name: each.machine.address for each in servers},
    }  # fmt: skip
    for rank in lot.sample(range(len(servers)), len(servers)):
        own = {"host_name": servers[rank].machine.name, "node_rank": rank}
        servers[rank].begin(lot.random() * spread_s, [json.dumps(common | own), "--only"])
    ends = [each.end() for each in servers]
    said = [
        output
        for code, output in ends
        if code or re.search("^(error|warning)", output, re.MULTILINE)
    ]
    passed = f"{len(servers)} hosts can start the job" in ends[0][1]
    return [said or ends] if said or not passed else []
