"""getifaddrs(3): the one call of libc that Python does not have.

Owns the layout of its structures on Linux and macOS. Knows nothing of what the addresses are for.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator


class _IfAddrs(ctypes.Structure):
    """The first fields of struct ifaddrs, the same on Linux and macOS."""

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
    )


def getifaddrs() -> list[tuple[str, int, str, bytes]]:
    """(name, flags, IPv4 address or "", its netmask or b"") of every entry. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.c_void_p()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    try:
        return list(_entries(first.value))
    finally:
        libc.freeifaddrs(first)


def _entries(at: int | None) -> Iterator[tuple[str, int, str, bytes]]:
    while at is not None:
        entry = _IfAddrs.from_address(at)
        address = _ipv4(entry.address)
        yield os.fsdecode(entry.name), entry.flags, address, _mask(entry.mask) if address else b""
        at = entry.next


def _ipv4(address: int | None) -> str:
    """The address in a struct sockaddr_in; empty for any other family."""
    if not address:
        return ""
    head = ctypes.string_at(address, 8)
    # BSD keeps a length before the family, which is a single byte there.
    family = int.from_bytes(head[:2], sys.byteorder) if sys.platform == "linux" else head[1]
    return socket.inet_ntoa(head[4:8]) if family == socket.AF_INET else ""


def _mask(address: int | None) -> bytes:
    """The netmask in a struct sockaddr_in. BSD sets no family there, and leaves out the zeros at its end."""
    if not address:
        return b""
    size = 8 if sys.platform == "linux" else min(8, ctypes.string_at(address, 1)[0])
    return ctypes.string_at(address, size)[4:].ljust(4, b"\0")
