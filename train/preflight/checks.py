"""The checks of one host by itself: the list of them, and how they are run in bounded time.

Owns the order: first everything is looked at, side by side, as a file server, a name server or a
driver may not answer; then each check judges what was seen. Knows nothing of other hosts.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from train import nic
from train.nic import NetworkError
from train.preflight import directory, facts, gpus, limits, network
from train.preflight.directory import Directory
from train.preflight.facts import Torch
from train.preflight.finding import Finding
from train.preflight.gpus import Gpus
from train.preflight.limits import Limits
from train.preflight.network import Network
from train.preflight.report import Report
from train.preflight.settings import Settings

LIMIT_S = directory.WATCH_S + 0.3  # for all looks together
ALONE_S = 6.5  # where no other host waits for the verdict
_LAST_S = 0.3  # this process, too, may have stood still
NAMES_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """What was seen of this host. `directory` is None where that did not answer, `gpus` where none
    are wanted, `torch` where it is missing."""

    network: Network = field(default_factory=Network)
    directory: Directory | None = field(default_factory=Directory)
    torch: Torch | None = None
    gpus: Gpus | None = None
    limits: Limits = field(default_factory=Limits)
    facts: dict[str, str] = field(default_factory=dict)


Check = Callable[[Settings, Seen], Iterator[Finding]]


def torch_is_there(settings: Settings, seen: Seen) -> Iterator[Finding]:
    """PY002."""
    if seen.torch is None:
        yield Finding(
            "PY002",
            settings.me,
            f"torch is not installed for {sys.executable} of {settings.me}",
            "activate the virtual environment that has it, install it there, or set python: in the "
            "spec to an interpreter that has it",
        )


def _of_network(check: Callable[[Settings, Network], Iterator[Finding]]) -> Check:
    return lambda settings, seen: check(settings, seen.network)


def _of_directory(check: Callable[[Settings, Directory | None], Iterator[Finding]]) -> Check:
    return lambda settings, seen: check(settings, seen.directory)


def _of_gpus(check: Callable[[Settings, Gpus, Torch | None], Iterator[Finding]]) -> Check:
    return lambda settings, seen: check(settings, seen.gpus, seen.torch) if seen.gpus else iter(())


def _of_limits(check: Callable[[Settings, Limits], Iterator[Finding]]) -> Check:
    return lambda settings, seen: check(settings, seen.limits)


CHECKS: tuple[Check, ...] = (
    torch_is_there,
    _of_network(network.head_resolves),
    _of_network(network.head_is_not_loopback),
    _of_network(network.interface_can_be_used),
    _of_network(network.route_exists),
    _of_network(network.interface_leads_to_the_others),
    _of_network(network.address_is_the_first),
    _of_network(network.address_is_ones_own),
    _of_directory(directory.directory_answers),
    _of_directory(directory.directory_can_be_made),
    _of_directory(directory.directory_can_be_written),
    _of_directory(directory.directory_has_room),
    _of_directory(directory.directory_is_not_held),
    _of_gpus(gpus.cuda_is_there),
    _of_gpus(gpus.driver_answers),
    _of_gpus(gpus.driver_is_new_enough),
    _of_gpus(gpus.gpus_are_enough),
    _of_gpus(gpus.gpus_are_free),
    _of_limits(limits.files_are_enough),
    _of_limits(limits.memory_may_be_locked),
    _of_limits(limits.shared_memory_is_enough),
)


def examine(settings: Settings) -> Report:
    """Look at this host and judge it, within some 6 s; what hangs is a finding of its own."""
    seen = look(settings)
    findings = tuple(finding for check in CHECKS for finding in check(settings, seen))
    return Report(
        host=settings.me,
        node_rank=settings.node_rank,
        nodes=settings.nodes,
        world_size=settings.world_size,
        procs=settings.procs,
        head=settings.head,
        nic=seen.network.taken,
        address=seen.network.address,
        prefix=seen.network.prefix,
        resolved=seen.network.head,
        facts=seen.facts,
        findings=findings,
    )


def look(settings: Settings) -> Seen:
    """See all there is to see of this host, side by side."""
    deadline = time.monotonic() + (ALONE_S if settings.alone else LIMIT_S)
    torch = facts.torch()
    answers = gpus.ask() if gpus.wanted(settings, torch) else None
    place = _Look(lambda: directory.look(settings))
    named = {name: _Look(functools.partial(nic.resolve, name)) for name in network.names(settings)}
    known = _Look(lambda: facts.gather(torch, Path.cwd()))
    net = network.look(settings, lambda name: _resolved(settings, name, named[name]))
    cards = answers() if answers else None
    found = known.result(deadline) or {}
    if cards is not None and cards.driver:
        found["driver"] = cards.driver
    kept = place.result(deadline)
    if kept is not None and kept.token:
        found["filesystem"] = kept.token
    return Seen(net, kept, torch, cards, limits.look(), found)


def _resolved(settings: Settings, name: str, found: _Look[str]) -> str:
    address = found.result(found.began + NAMES_S)
    if address is None:
        raise NetworkError(
            f"{settings.me} got no answer to what the address of {name!r} is in {NAMES_S:g} s",
            "look after the name server in /etc/resolv.conf there, add the name to /etc/hosts, or set "
            "address: of that host in the spec to an IPv4 address",
            "NAME001",
        )
    return address


class _Look(Generic[T]):
    """A look at something that may not answer, in a thread of its own that nobody has to await."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._seen: T | None = None
        self._error: BaseException | None = None
        self.began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="preflight", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._seen = self._look()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error

    def result(self, deadline: float) -> T | None:
        """What was seen; None when it is not there by `deadline`. Raises what the look raised."""
        self._thread.join(max(_LAST_S, deadline - time.monotonic()))
        if self._error is not None:
            raise self._error
        return self._seen
