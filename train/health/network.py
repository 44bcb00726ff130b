"""Tests of the network as it is now: this host's own interface, and connections to the other hosts.

Owns a few short tests, which run in parallel and are bounded in time. Sends only connection attempts. Knows nothing of
ranks: its inputs are names and addresses.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from train.base import nic

TRY_S = 2.0
MAX_HOSTS = 16
_SSH = 22
# (True if all is well, a sentence).
Answer = tuple[bool, str]
_Result = TypeVar("_Result")


def check_connections(
    hosts: Mapping[str, str], head: str = "", interface: str = "", address: str = ""
) -> list[Answer]:
    """Check this host's own interface, each of the other hosts, and the TCPStore.

    `hosts`: addresses by name; only the first 16 are tried. `head`: `HOST:PORT` of the TCPStore. `interface`,
    `address`: the interface and address by which this host takes part. Takes at most about two seconds, or three if a
    name server hangs.
    """
    store, _, number = head.rpartition(":")
    port = int(number) if number.isdecimal() and 0 < int(number) < 65536 else 0
    targets = [(name, target) for name, target in hosts.items() if target not in ("", address)]
    tests = [partial(_check_host, name, target, port) for name, target in targets[:MAX_HOSTS]]
    if port:
        tests.append(partial(_check_store, store, port))
    own_answer = [_check_own_interface(interface, address)] if interface else []
    return own_answer + _at_once(tests)


def _check_own_interface(interface: str, address: str) -> Answer:
    host = socket.gethostname()
    try:
        candidates = nic.interfaces()
        own_interface = next((i for i in candidates if i.name == interface), None)
        if own_interface is None:
            return False, f"{host} has no interface {interface} any more; what took it away?"
        nic.check_usable(own_interface, candidates)
    except nic.NetworkError as error:
        return False, str(error)
    if address and address not in own_interface.addresses:
        has = ", ".join(own_interface.addresses)
        return False, f"{interface} of {host} has lost its address {address} (now: {has})"
    return True, f"{interface} of {host} ({address}) is up and has a carrier"


def _check_host(name: str, address: str, port: int) -> Answer:
    """Test if the host answers at all: it may take or refuse a connection."""
    answers = _at_once(
        [partial(_connect, address, target_port) for target_port in (_SSH, port) if target_port]
    )
    target = f"{name} ({address})"
    if "taken" in answers or "refused" in answers:
        return True, f"{target} answers"
    for answer in answers:
        if answer != "silent":
            return (
                False,
                f"{target} cannot be reached: {answer}; is its network (or this host's) up?",
            )
    return (
        False,
        f"{target} does not answer; is it switched on, its cable in, and no firewall between?",
    )


def _check_store(host: str, port: int) -> Answer:
    answer = _connect(host, port)
    who = f"the TCPStore ({host} port {port})"
    if answer == "taken":
        return True, f"{who} takes connections"
    if answer == "refused":
        return False, f"{who} is closed: its process on the head has ended"
    return False, f"{who}: {'no answer' if answer == 'silent' else answer}"


def _connect(address: str, port: int) -> str:
    """Return `taken`, `refused`, `silent`, or the text of another error."""
    try:
        socket.create_connection((address, port), timeout=TRY_S).close()
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    except OSError as error:
        # If a host on the same network is off, ARP finds no answer, and the error is EHOSTUNREACH.
        return "silent" if error.errno == errno.EHOSTUNREACH else error.strerror or str(error)
    return "taken"


def _at_once(tests: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """The answers of the tests, in their order. A test that a name server holds up for too long has no answer."""
    answers: dict[int, _Result] = {}

    def run(number: int) -> None:
        answers[number] = tests[number]()

    threads = [threading.Thread(target=run, args=[n], daemon=True) for n in range(len(tests))]
    deadline = time.monotonic() + TRY_S + 1.0
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [answer for _, answer in sorted(answers.copy().items())]


def own_endpoint(env: Mapping[str, str]) -> tuple[str, str, str]:
    """The (interface, address, store) by which a process with this environment takes part; each is "" if unknown."""
    host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    head = f"{host}:{port}" if host and port else ""
    name = env.get("GLOO_SOCKET_IFNAME", "")
    if not host and not name:
        return "", "", head
    try:
        return (*nic.choose(host, name), head)
    except (nic.NetworkError, OSError):
        return name, "", head
