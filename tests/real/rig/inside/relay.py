"""A bad wire: `relay.py ONE OTHER DELAY_MS LARGEST NETNS NIC`, run in the switch's network namespace.

Stands in for netem, which many kernels lack: every frame that comes out of interface ONE goes into
OTHER after DELAY_MS, and the other way round; every one whose packet is longer than LARGEST bytes
(0: none) is lost. Prints `ready` when it passes frames. Knows nothing of
what hangs on the two.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import socket
import struct
import sys
import time

ETH_P_ALL, PACKET_OUTGOING, ETH_HLEN = 3, 4, 14
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
SIOCETHTOOL, CLONE_NEWNET = 0x8946, 0x40000000
# ethtool's commands that turn off: transmit checksums, TCP segmentation, generic segmentation.
OFFLOADS = (0x17, 0x1F, 0x24)
BATCH, FRAME = 64, 65600


def main() -> None:
    one, other, delay_ms, largest, netns, nic = sys.argv[1:]
    # A raw socket sees frames before the sender's "hardware" has finished them: whoever sends towards
    # it has to send them whole, that is the host, and the switch's end of the wire.
    turn_offloads_off_in(netns, nic)
    turn_offloads_off(other.removesuffix("a") + "b")
    sockets = (listen(one), listen(other))
    print("ready", flush=True)
    longest = ETH_HLEN + int(largest) if int(largest) else FRAME
    relay(sockets, float(delay_ms) / 1e3, longest)


def relay(sockets: tuple[socket.socket, socket.socket], delay_s: float, longest: int) -> None:
    under_way: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable = select.select(sockets, [], [], wait)[0]
        now = time.monotonic()
        for come_in in readable:
            out = 1 if come_in is sockets[0] else 0
            for frame in received(come_in):
                if len(frame) <= longest:
                    count += 1
                    heapq.heappush(under_way, (now + delay_s, count, out, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, out, frame = heapq.heappop(under_way)
            # An unplugged end, or a full queue: frames are lost there on any wire.
            with contextlib.suppress(OSError):
                sockets[out].send(frame)


def received(come_in: socket.socket) -> list[bytes]:
    frames: list[bytes] = []
    for _ in range(BATCH):
        try:
            frame, address = come_in.recvfrom(FRAME)
        except OSError:
            break
        if address[2] != PACKET_OUTGOING:  # else it is our own
            frames.append(frame)
    return frames


def listen(interface: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    raw.bind((interface, 0))
    everything = struct.pack("iHH8s", socket.if_nametoindex(interface), PACKET_MR_PROMISC, 0, b"")
    raw.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, everything)
    raw.setblocking(False)
    return raw


def turn_offloads_off_in(netns: str, nic: str) -> None:
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(netns, os.O_RDONLY)
    enter(there)
    turn_offloads_off(nic)
    enter(here)
    os.close(here)
    os.close(there)


def enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")


def turn_offloads_off(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, SIOCETHTOOL, request)


if __name__ == "__main__":
    main()
