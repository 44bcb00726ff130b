"""What the network says now: this host's own interface, and whether the others answer.

Owns a few short looks, all at once and bounded in time. Sends nothing but connection attempts and
pings. Knows nothing of ranks: it is given names and addresses.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from train import nic

TRY_S = 2.0
MOST_HOSTS = 16
_SSH = 22
_Said = TypeVar("_Said")
_ECHO = struct.Struct("!BBHHH")


def look(
    hosts: Mapping[str, str], head: str = "", interface: str = "", address: str = ""
) -> list[tuple[bool, str]]:
    """(is it well, what to say) of the own interface, of each host, and of the run's store.

    `hosts`: addresses by name, of which the first 16 are asked; `head`: `HOST:PORT` of the store;
    `interface`, `address`: by which this host takes part. Takes about two seconds at most.
    """
    port = _port(head)
    asked = [(name, at) for name, at in hosts.items() if at and at != address][:MOST_HOSTS]
    looks = [partial(_host, name, at, port) for name, at in asked]
    if port:
        looks.append(partial(_store, head.rpartition(":")[0], port))
    own = _own(interface, address) if interface else []
    return own + _at_once(looks)


def _port(head: str) -> int:
    word = head.rpartition(":")[2]
    return int(word) if word.isdecimal() and 0 < int(word) < 65536 else 0


def _own(interface: str, address: str) -> list[tuple[bool, str]]:
    here = socket.gethostname()
    try:
        found = next((i for i in nic.interfaces() if i.name == interface), None)
    except nic.NetworkError as error:
        return [(False, str(error))]
    if found is None:
        return [(False, f"{here} has no interface {interface} any more; what took it away?")]
    if not found.up:
        return [(False, f"{interface} of {here} is down; ip link set {interface} up")]
    if not found.carrier:
        return [(False, f"{interface} of {here} has no carrier; look after its cable")]
    if address and address not in found.addresses:
        has = ", ".join(found.addresses) or "none"
        return [(False, f"{interface} of {here} has lost its address {address} (now: {has})")]
    return [(True, f"{interface} of {here} ({address}) is up and has a carrier")]


def _host(name: str, address: str, port: int) -> tuple[bool, str]:
    """Whether the host answers at all: takes or refuses a connection, or a ping."""
    tries: list[Callable[[], str]] = [lambda: _ping(address), lambda: _connect(address, _SSH)]
    if port:
        tries.append(lambda: _connect(address, port))
    said = _at_once(tries, until=lambda answer: answer in ("taken", "refused"))
    who = f"{name} ({address})"
    if "taken" in said or "refused" in said:
        return True, f"{who} answers"
    for answer in said:
        if answer not in ("silent", "cannot ask"):
            return False, f"{who} cannot be reached: {answer}; is its network (or this host's) up?"
    return False, f"{who} does not answer; is it switched on, and its cable in?"


def _store(host: str, port: int) -> tuple[bool, str]:
    answer = _connect(host, port)
    who = f"the run's store ({host} port {port})"
    if answer == "taken":
        return True, f"{who} takes connections"
    if answer == "refused":
        return False, f"{who} is closed: its process on the head has ended"
    return False, f"{who}: {'no answer' if answer == 'silent' else answer}"


def _connect(address: str, port: int) -> str:
    """`taken`, `refused`, `silent`, or what stands in the way."""
    try:
        socket.create_connection((address, port), timeout=TRY_S).close()
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    except OSError as error:
        # A host on the same network that is off is found missing by its neighbours' ARP.
        return "silent" if error.errno == errno.EHOSTUNREACH else error.strerror or str(error)
    return "taken"


def _ping(address: str) -> str:
    """One ICMP echo, where the system lets an ordinary user send one."""
    if not hasattr(socket, "IPPROTO_ICMP"):
        return "cannot ask"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as icmp:
            icmp.settimeout(TRY_S)
            icmp.sendto(_ECHO.pack(8, 0, 0xFFFF - 0x0800 - 1, 0, 1), (address, 0))
            icmp.recv(64)
    except TimeoutError:
        return "silent"
    except OSError:
        return "cannot ask"
    return "taken"


def _at_once(
    looks: Sequence[Callable[[], _Said]], until: Callable[[_Said], bool] | None = None
) -> list[_Said]:
    """What each says, in their order; those that are not done in time say nothing."""
    answers: dict[int, _Said] = {}
    changed = threading.Condition()

    def one(number: int) -> None:
        answer = looks[number]()
        with changed:
            answers[number] = answer
            changed.notify()

    def enough() -> bool:
        done = until is not None and any(map(until, answers.values()))
        return done or len(answers) == len(looks)

    for number in range(len(looks)):
        threading.Thread(target=one, args=(number,), daemon=True).start()
    with changed:
        changed.wait_for(enough, timeout=TRY_S + 1.0)
        return [answers[number] for number in sorted(answers)]


def own_place(env: Mapping[str, str]) -> tuple[str, str, str]:
    """(interface, address, store) by which a process of this environment takes part, "" if unknown."""
    host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    head = f"{host}:{port}" if host and port else ""
    name = env.get("GLOO_SOCKET_IFNAME", "")
    try:
        known = nic.interfaces()
        source = nic.source_towards(nic.resolve(host)) if host else ""
    except (nic.NetworkError, OSError):
        return name, "", head
    found = next((i for i in known if (i.name == name if name else source in i.addresses)), None)
    if found is None:
        return name, "", head
    return found.name, source if source in found.addresses else "".join(found.addresses[:1]), head
