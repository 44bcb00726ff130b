"""How long N hosts take to check in: simulated clients against a real head, in a process of its own.

A client is one connection that sends the messages of a healthy host, when such a host sends them. All clients live
in this process, and so share one core. They do not probe each other, because in a real launch this work is spread
over N machines, and here one machine would do all of it. The head does its own part in full, including its own
probes and the comparison of all reports. Measured for each N: the time from the first attempt until the last client
may go on, and the head's own time (from its start) and peak memory.

Exits with 0 if every launch went on, whatever the figures. The reader judges them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import queue
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from train.preflight import compare, links  # noqa: E402 - the checkout, put there above
from train.preflight.checkin import meet  # noqa: E402
from train.preflight.report import Hello, Link, Report  # noqa: E402
from train.preflight.settings import Settings  # noqa: E402
from train.preflight.wire import Conn, Listener, bind, encode  # noqa: E402

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kibibytes
HOST = "127.0.0.1"
FACTS = {
    "machine": "0" * 32,
    "torch": "2.13.0+cu126",
    "python": "3.11.7",
    "cuda": "12.6",
    "nccl": "2.27.3",
    "code": "c0de" * 16,
    "spec": "5bec" * 16,
    "isa": "avx2",
    "directory": "a-token",
}


def main() -> int:
    """Measure each N, print the table, write the JSON."""
    options = parse_arguments()
    if options.head:
        return be_head(*options.head)
    measured = []
    for count in options.hosts:
        runs = [measure(count, options.port) for _ in range(options.runs)]
        measured.append(figures(count, runs))
        print(line(measured[-1]), flush=True)
    if options.json:
        whole = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "checkin": measured,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(whole, indent=2) + "\n")
    return 0 if all(each["failed"] == 0 for each in measured) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("hosts", type=int, nargs="*", default=[2, 8, 100, 1000])
    parser.add_argument("--runs", type=int, default=3, help="of each (default: %(default)s)")
    parser.add_argument("--port", type=int, default=29400)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--head", type=int, nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def figures(count: int, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the medians of the times, the largest peak memory and the number of failed runs."""
    return {
        "hosts": count,
        "runs": len(runs),
        "to_go_s": round(statistics.median(run["to_go_s"] for run in runs), 3),
        "worst_to_go_s": round(max(run["to_go_s"] for run in runs), 3),
        "head_s": round(statistics.median(run["head_s"] for run in runs), 3),
        "head_cpu_s": round(statistics.median(run["head_cpu_s"] for run in runs), 3),
        "head_rss_bytes": max(run["head_rss_bytes"] for run in runs),
        "failed": sum(run["failed"] for run in runs),
    }


def line(of: dict[str, Any]) -> str:
    rss = of["head_rss_bytes"] / 2**20
    return (
        f"{of['hosts']:6} hosts: all go on after {of['to_go_s']:6.2f} s (worst {of['worst_to_go_s']:.2f})"
        f", head {of['head_cpu_s']:.2f} s of CPU, {rss:.0f} MiB"
        + (f"; {of['failed']:.0f} runs failed" if of["failed"] else "")
    )


# --- the head -------------------------------------------------------------------------------------


def be_head(count: int, port: int) -> int:
    """Run a real head in this process, and print its time, processor time and memory."""
    settings = settings_of(0, count, port)
    outcome = meet(
        settings,
        lambda: report_of(settings),
        lambda reports, seen: compare.judge(settings, reports, seen),
        lambda _: None,
        lambda text: print(text, file=sys.stderr),
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    for finding in outcome.findings[:3]:
        print(finding.code, finding.cause, file=sys.stderr)
    spent = {
        "head_s": outcome.seconds,
        "head_cpu_s": used.ru_utime + used.ru_stime,
        "head_rss_bytes": used.ru_maxrss * RSS_UNIT,
        "failed": int(len(outcome.reports) != count or any(f.is_error for f in outcome.findings)),
    }
    print(json.dumps(spent))
    return 0


def settings_of(rank: int, count: int, port: int) -> Settings:
    return Settings(
        "bench", name_of(rank), Path(), rank, nodes=count, min_nodes=count, world_size=count,
        head=HOST, port=port, is_head=rank == 0,
    )  # fmt: skip


def name_of(rank: int) -> str:
    return f"node{rank:05}"


def report_of(settings: Settings) -> Report:
    """Return the report of a host that has an address and a machine of its own."""
    rank = settings.node_rank
    facts = {**FACTS, "machine": f"{rank:032x}"}
    # All hosts are on one loopback network, so that the head can probe its neighbours.
    address = f"127.{1 + rank // 62500}.{rank // 250 % 250}.{rank % 250 + 1}"
    return Report.from_settings(
        settings, (), nic="eth0", address=address, prefix=8, first_address=address, resolved=HOST, facts=facts
    )  # fmt: skip


# --- the clients -----------------------------------------------------------------------------------


def measure(count: int, port: int) -> dict[str, float]:
    """Measure one launch of `count` hosts. Raises TimeoutExpired or ValueError if the head fails."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = [sys.executable, __file__, "--head", str(count), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as head:
        with Clients(count, port) as clients:
            took = clients.run()
        spent, _ = head.communicate(timeout=60)
    return {"to_go_s": took, **json.loads(spent)}


class Clients:
    """All clients in one loop, which answers each message at once. `_greeted`: tokens of the launch."""

    def __init__(self, count: int, port: int) -> None:
        self._ranks = range(1, count)
        self._settings = settings_of(0, count, port)
        self._selector = selectors.DefaultSelector()
        self._greeted: list[str] = []
        self._ended = asyncio.Event()
        self._probes: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=asyncio.run, args=[self._be_probed()])

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.data.sock.close()

    def run(self) -> float:
        """Return the seconds from the first attempt until the last client may go on, or is sent away."""
        probes = self._probes.get()
        while not self._listens():
            time.sleep(0.02)
        began = time.monotonic()
        for rank in self._ranks:
            self._enter(
                Client(replace(self._settings, node_rank=rank, host_name=name_of(rank)), probes)
            )
        while self._selector.get_map():
            for key, _ in self._selector.select():
                self._hear(key.data)
        return time.monotonic() - began

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex((HOST, self._settings.port)) == 0

    def _enter(self, client: Client) -> None:
        client.sock.connect((HOST, self._settings.port))
        client.sock.setblocking(False)
        self._selector.register(client.sock, selectors.EVENT_READ, client)

    def _hear(self, client: Client) -> None:
        if client.hear():
            self._greeted.append(client.token)
        else:
            self._selector.unregister(client.sock)
            client.sock.close()

    async def _be_probed(self) -> None:
        """Answer the head's probes of its neighbours, in a thread of its own."""

        async def answer(conn: Conn) -> None:
            conn.send("identity")
            first = await conn.receive(10)
            await links.serve(conn, self._greeted[-1], first)

        self._loop = asyncio.get_running_loop()
        listener = Listener(answer, 256)
        self._probes.put(await listener.open(bind(0, segment=0)))
        await self._ended.wait()
        await listener.close()


class Client:
    """A healthy client."""

    def __init__(self, settings: Settings, probes: int) -> None:
        self.sock = socket.socket()
        self.token = ""
        self._settings, self._probes = settings, probes
        self._rest = b""

    def hear(self) -> bool:
        """Answer the messages that have come. Return False if no more will come."""
        data = self.sock.recv(1 << 18)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for each in lines:
            message = json.loads(each)
            answers = self._answers(message)
            if answers:
                self.sock.sendall(b"".join(answers))
            if message["kind"] == "go" or message.get("go") is False:
                return False
        return bool(data)

    def _answers(self, message: dict[str, Any]) -> list[bytes]:
        settings, kind = self._settings, message["kind"]
        if kind == "identity":
            self.token = message["instance"]
            hello = replace(Hello.from_settings(settings), port=self._probes, clock=time.time())
            return [encode("hello", **vars(hello), report=asdict(report_of(settings)))]
        if kind == "peers":
            seen = [vars(Link(settings.host_name, p["host"])) for p in message["peers"]]
            return [encode("links", links=seen)]
        if kind == "wait":
            return [encode("still")]
        return [encode("ack")] if kind == "verdict" else []


if __name__ == "__main__":
    sys.exit(main())
