"""Peers of the check-in that are no hosts: sockets that say what a test wants."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tests.train.preflight.launches import Launch
from train.preflight.report import Hello


def hello(given: dict[str, Any], role: str = "client") -> dict[str, Any]:
    counts = (given["node_rank"], given["nodes"], given["world_size"])
    hello = Hello(
        "toy", given["host_name"], *counts, given["head"], f"instance-{given['host_name']}", role
    )
    same = {name: given[name] for name in ("node_rank", "nodes", "world_size", "head", "address")}
    report = {"host": given["host_name"], "procs": 1, **same}
    return asdict(hello) | {"report": report, "port": 1, "clock": time.time()}


@contextlib.contextmanager
def dialled(port: int) -> Iterator[socket.socket]:
    end = time.monotonic() + 10
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), 15)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.05)
    with sock:
        yield sock


@contextlib.contextmanager
def connected(port: int) -> Iterator[Any]:
    with dialled(port) as sock, speaking(sock) as (send, receive):
        receive("identity")
        yield send, receive


@contextlib.contextmanager
def speaking(sock: socket.socket) -> Iterator[Any]:
    with sock.makefile("rwb") as stream:

        def send(kind: str, **content: Any) -> None:
            stream.write(json.dumps({"kind": kind, **content}).encode() + b"\n")
            stream.flush()

        def receive(kind: str) -> dict[str, Any]:
            while (message := json.loads(stream.readline()))["kind"] != kind:
                pass
            return dict(message)

        yield send, receive


@contextlib.contextmanager
def a_head(here: Launch) -> Iterator[Any]:
    """A head of whatever words, for one client at a time."""
    with socket.create_server(("127.0.0.1", here.port)) as server:
        sock = server.accept()[0]
    with sock, speaking(sock) as (send, receive):
        send("identity", **hello(here.given("a"), role="head"))
        yield send, receive


@contextlib.contextmanager
def a_program(port: int, banner: bytes) -> Iterator[None]:
    """Something else that listens at the port, and says so much to everybody."""
    with socket.create_server(("127.0.0.1", port)) as server:
        conns: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    conns.append(server.accept()[0])
                    conns[-1].sendall(banner)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for conn in conns:
            conn.close()
