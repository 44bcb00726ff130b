"""Plain TCP between two hosts, on the interface that the job uses: the network's own bandwidth.

This measures the same as iperf3 with one stream. The receiver starts to count after the connection has had time to open
its window.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from train.base import nic
from train.preflight import network
from train.tools.probe.figures import Nic

_SECONDS = 2.0
_WARM_UP_S = 0.5
_TRIPS = 20
_PIECE = 1 << 20
_WAIT_S = 30.0  # the other side may be a little late


def interface(name: str) -> Nic:
    """Return the interface `name` of this host, with the others that are up and have an address."""
    known = nic.interfaces()
    mine = next((each for each in known if each.name == name), None)
    address = mine.addresses[0] if mine and mine.addresses else ""
    others = tuple(
        (each.name, network.kind(each.name), _speed(each.name))
        for each in known
        if each.name != name and each.carrier and each.addresses
    )
    return Nic(name, address, network.kind(name), _speed(name), others)


def _speed(name: str) -> int:
    """Return the interface's own speed in Mbit/s; 0 if it gives none, as with Wi-Fi and virtual interfaces."""
    try:
        return max(0, int(Path("/sys/class/net", name, "speed").read_text()))
    except (OSError, ValueError):
        return 0


def listen(address: str) -> socket.socket:
    """Return a listening socket for the other host to connect to."""
    return socket.create_server((address, 0))


def serve(server: socket.socket) -> tuple[float, float]:
    """Do the receiver's part. Returns bytes a second, and the seconds of a round trip. Raises OSError."""
    server.settimeout(_WAIT_S)
    conn, _ = server.accept()
    with conn:
        conn.settimeout(_WAIT_S)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(_TRIPS):
            began = time.perf_counter()
            conn.sendall(b"x")
            _exactly(conn, 1)
            trips.append(time.perf_counter() - began)
        return _received(conn), sorted(trips)[_TRIPS // 2]


def send(address: tuple[str, int], source: str) -> None:
    """Do the sender's part, from this host's own address. Raises OSError."""
    with socket.create_connection(address, _WAIT_S, (source, 0)) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_TRIPS):
            _exactly(conn, 1)
            conn.sendall(b"x")
        piece, end = bytes(_PIECE), time.monotonic() + _SECONDS
        while time.monotonic() < end:
            conn.sendall(piece)


def _received(conn: socket.socket) -> float:
    buffer = bytearray(_PIECE)
    first = last = began = time.perf_counter()
    count = 0
    while got := conn.recv_into(buffer):
        last = time.perf_counter()
        if last - began < _WARM_UP_S:
            first = last
        else:
            count += got
    return count / (last - first) if count else 0.0


def _exactly(conn: socket.socket, count: int) -> None:
    if not conn.recv(count):
        raise ConnectionError("the other host has closed the connection")
