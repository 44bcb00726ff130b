"""The ends of hosts: the meaning of an exit, the host that caused the others' ends, and the result of the run. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

DONE, FAILED, USAGE, NO_START, STOPPED = 0, 1, 2, 69, 75
SSH_FAILED = 255  # ssh's own exit code; the hosts' scripts never end with it

# The last line of a host's supervisor begins so. The launch's token and JSON follow (train/launch/hosts.py).
END_MARK = "ddpgen-end "
_CONSEQUENCE = re.compile(r"\b(?:lost|timed out waiting for) (?:a|the|its) peer")
_SOURCE = re.compile(r"(?:^|The last crash: )([^\s:]+): ")
_SSH_LINE = re.compile(
    r"ssh: |Connection |Shared connection |Timeout, server |client_loop|Read from remote|kex_|mux_"
    r"|.*: Permission denied|Host key|packet_write"
)
_LOST = "the connection was lost, or its script was killed there"
_STATES = {DONE: "done", STOPPED: "stopped", USAGE: "refused", NO_START: "refused"}


@dataclass(frozen=True)
class End:
    """The end of one host's script. `forced`: it came after the driver sent kill."""

    host: str
    state: str  # done stopped failed refused crashed lost killed
    code: int | None
    reason: str
    forced: bool = False
    is_consequence: bool = False  # its reason is a lost peer, so the peer's end is the cause
    is_cut: bool = False  # ssh itself lost the connection; else the script may have been killed
    fault: tuple[str, str] | None = None  # the host whose own fault it was, and why

    @property
    def clean(self) -> bool:
        return self.state in ("done", "stopped")


@dataclass(frozen=True)
class Report:
    """The end of a host as its supervisor reports it. `crashed`: True if a restart may cure it. `fault`: the host whose
    own fault has ended the start, and why (train/launch/bad_nodes.py)."""

    crashed: bool
    reason: str
    fault: tuple[str, str] | None = None


class Evidence:
    """The facts in a host's lines about its end.

    `report` comes from the host's supervisor, in the line with `token`, which no other program knows; until then it
    is None. `last_message` is ddpgen's last line, and `ssh_message` the last one of ssh. Both are for display only.
    """

    def __init__(self, token: str = "") -> None:
        self._mark = f"{END_MARK}{token} "
        self.report: Report | None = None
        self.last_message = self.ssh_message = ""

    def add(self, line: str) -> bool:
        """Take one line of the host's output. Return False if it is the report, which is not shown to the user."""
        _, mark, text = line.partition(
            self._mark
        )  # a program's output without a newline may stand before it
        if mark:
            self.report = _report(text)
            return False
        if line.startswith("ddpgen: "):
            self.last_message = line.removeprefix("ddpgen: ")
        elif _SSH_LINE.match(line):
            self.ssh_message = line
        return True


def _report(text: str) -> Report | None:
    try:
        data = json.loads(text)
        crashed, reason = bool(data["crashed"]), str(data["reason"])
        host, why = data.get("fault") or ("", "")
        return Report(crashed, reason, (host, why) if host else None)
    except (ValueError, KeyError, TypeError):
        return None


def judged(host: str, code: int, evidence: Evidence, forced: bool) -> End:
    """Return the end of a host from the exit code of its ssh and from its lines."""
    if code == SSH_FAILED or code < 0:
        cause = f"ssh was killed by signal {-code}" if code < 0 else evidence.ssh_message
        reason = f"the connection was lost: {cause}" if cause else _LOST
        return End(host, "lost", code, reason, forced, is_cut=bool(evidence.ssh_message))
    # A script leaves no report if it was killed, or ended before its supervisor began.
    report = evidence.report or Report(crashed=True, reason="")
    reason = report.reason or evidence.last_message
    if code in _STATES:
        return End(host, _STATES[code], code, reason, forced, fault=report.fault)
    state = "failed" if not report.crashed else "killed" if forced else "crashed"
    is_consequence = bool(_CONSEQUENCE.search(reason))
    return End(host, state, code, reason, forced, is_consequence, fault=report.fault)


def culprit(ends: Sequence[End]) -> End | None:
    """Return the end that caused the others; None if all are good. `ends` are in order of time."""
    bad = [end for end in ends if not end.clean]
    first = _first(bad)
    if first is None:
        return None
    # A reason that came from another host begins with that host's name. So does a crash that a failure quotes.
    by_host = {end.host: end for end in bad}
    sources = [by_host[name] for name in _SOURCE.findall(first.reason) if name in by_host]
    return sources[-1] if sources else first


def _first(bad: Sequence[End]) -> End | None:
    for end in bad:
        if (end.state == "lost" and not end.forced) or (
            end.state == "failed" and not end.is_consequence
        ):
            return end
    for state in ("refused", "lost"):
        for end in bad:
            if end.state == state:
                return end
    return min(bad, key=lambda end: (end.forced, end.is_consequence), default=None)


def lost_host(ends: Sequence[End]) -> str | None:
    """Return the host that was lost by its own fault; None without one.

    A cut between the driver and a host is not enough: a peer must have lost the host, too. If several hosts are lost at
    once, the fault lies in something that they share.
    """
    lost = {end.host for end in ends if end.is_cut}
    missed = any(end.is_consequence and end.host not in lost for end in ends)
    return lost.pop() if missed and len(lost) == 1 else None


def all_by_fault(ends: Sequence[End]) -> bool:
    """True if a host's fault may explain every end: as its own end, as the loss of a peer, or as the driver's kill."""
    return all(end.fault or end.is_cut or end.is_consequence or end.forced for end in ends)


def exit_code(ends: Sequence[End], blamed: End | None, elastic: bool) -> int:
    """Return the driver's exit code, from the last end of each host."""
    states = {end.state for end in ends}
    ended = states - {"lost", "crashed"} if elastic else states
    if ended and ended <= {"done", "stopped"}:
        return STOPPED if "stopped" in ended else DONE
    if blamed is not None and blamed.state == "refused":
        return blamed.code or NO_START
    return FAILED


def may_start_again(ends: Sequence[End], launcher: str, lost_head: str | None) -> bool:
    """True if the driver may start all hosts again: all ends are crashes, losses, or kills by the driver.

    `lost_head`: the head of an elastic job; None for any other job. An elastic job starts again only if its head ended.
    """
    causes = [end for end in ends if not end.forced or end.state == "lost"]
    if any(end.state not in ("crashed", "lost", "killed") for end in ends) or not causes:
        return False
    if lost_head is not None:
        return any(end.host == lost_head for end in causes)
    return launcher in ("torchrun-static", "env")
