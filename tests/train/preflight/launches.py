"""Launches on this machine: hosts on 127.0.0.x, as threads, or as processes where one is to suffer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.train.preflight.stub_host import parse
from train.preflight.checkin import meet
from train.preflight.report import PreflightResult

STUB = Path(__file__).with_name("stub_host.py")
WAIT_S = 40


class Process:
    """A host as a process; `said`: what it printed, once it has ended."""

    def __init__(self, given: dict[str, Any]) -> None:
        command = [sys.executable, str(STUB), json.dumps(given)]
        self.popen = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []

    def outcome(self) -> dict[str, Any]:
        text, _ = self.popen.communicate(timeout=WAIT_S)
        *self.said, last = text.splitlines()
        assert last.startswith("{"), text
        return dict(json.loads(last))

    def codes(self) -> list[str]:
        return [finding["code"] for finding in self.outcome()["findings"]]


class Launch:
    """Hosts a, b, c … of one job; `a` is the head."""

    def __init__(self, nodes: int, **common: Any) -> None:
        self.port = free_port()
        names = "abcdefghijklmnopqrstuvwxyz"[:nodes]
        self.addresses = {name: f"127.0.0.{rank + 1}" for rank, name in enumerate(names)}
        self._common = {
            "nodes": nodes,
            "min_nodes": nodes,
            "world_size": nodes,
            "head": "127.0.0.1",
            "port": self.port,
            "addresses": self.addresses,
            "timeout_s": 20.0,
            **common,
        }
        self.said: dict[str, list[str]] = {}
        self.told: list[PreflightResult] = []
        self._pool = ThreadPoolExecutor(64)
        self._processes: list[Process] = []

    def given(self, name: str, **changes: Any) -> dict[str, Any]:
        own = {"host_name": name, "node_rank": ord(name[0]) - ord("a")}
        address = self.addresses.get(name, "127.0.0.99")
        return {**self._common, **own, "address": address, **changes}

    def thread(self, name: str, **changes: Any) -> Future[PreflightResult]:
        settings, stub = parse(self.given(name, **changes))
        say = self.said.setdefault(name, []).append
        return self.submit(
            meet, settings, lambda: stub.examine(settings), stub.judge, self.told.append, say
        )

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """A thread that the end of the launch does not wait for."""
        return self._pool.submit(work, *given)

    def process(self, name: str, **changes: Any) -> Process:
        process = Process(self.given(name, **changes))
        self._processes.append(process)
        return process

    def meet(self, names: Sequence[str], **changes: Any) -> list[PreflightResult]:
        """Start them in this order; what each of them knows in the end."""
        started = [self.thread(name, **changes) for name in names]
        return [each.result(WAIT_S) for each in started]

    def until_said(self, *names: str) -> None:
        """Until each of these threads has said something."""
        deadline = time.monotonic() + WAIT_S
        while not all(self.said.get(name) for name in names):
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def close(self) -> None:
        for process in self._processes:
            process.popen.kill()
            process.popen.communicate()
        self._pool.shutdown(wait=False, cancel_futures=True)


def codes(outcome: PreflightResult) -> list[str]:
    return [finding.code for finding in outcome.findings]


def causes(outcome: PreflightResult) -> list[str]:
    return [finding.cause for finding in outcome.findings]


def severities(outcome: PreflightResult) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in outcome.findings]
