"""A named fault: its stable code, the host it is about, the cause and the remedy.

Owns the list of codes, which docs/troubleshooting.md explains one by one. Plain values; prints nothing.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


class Code(NamedTuple):
    """A code's meaning in a few words, and its severity unless a finding overrides it."""

    title: str
    severity: str


CODES: Mapping[str, Code] = {
    "NIC001": Code("the interface does not exist", ERROR),
    "NIC002": Code("the interface is down", ERROR),
    "NIC003": Code("the interface has no carrier", ERROR),
    "NIC004": Code("the interface has no IPv4 address", ERROR),
    "NIC005": Code("the interface leads back to the host itself", ERROR),
    "NIC006": Code("a bridge, where another interface leads to the head", WARNING),
    "NIC007": Code("Wi-Fi or a VPN, where a wired interface leads to the head", WARNING),
    "NIC008": Code("the chosen interfaces are on networks that do not reach each other", ERROR),
    "NIC009": Code("two hosts take part with one address", ERROR),
    "NIC010": Code("the host's address in the spec is not one of its addresses", WARNING),
    "NIC011": Code("another interface than the chosen one leads to the head", WARNING),
    "NIC012": Code("the processes bind an address that the other hosts do not reach", ERROR),
    "NAME001": Code("the head's name does not resolve", ERROR),
    "NAME002": Code("the head resolves its own name to loopback", WARNING),
    "NAME003": Code("the head's name resolves to the host itself", ERROR),
    "NAME004": Code("the head's name leads to another host", ERROR),
    "NAME005": Code("the head's name resolves differently on two hosts", WARNING),
    "PORT001": Code("the port is taken on the head", ERROR),
    "PORT002": Code("an earlier run still holds the port on the head", ERROR),
    "PORT003": Code("a firewall drops what goes to the port", ERROR),
    "PORT004": Code("a firewall rejects what goes to the port", ERROR),
    "PORT005": Code("a firewall stands between the hosts' other ports", ERROR),
    "PORT006": Code("another program answers at the head's port", ERROR),
    "PORT007": Code("the head may not listen on the port", ERROR),
    "HOST001": Code("a host has not arrived", ERROR),
    "HOST002": Code("a host stopped answering in the middle of the check", ERROR),
    "HOST003": Code("a host left before the verdict", ERROR),
    "HOST004": Code("no route to the head", ERROR),
    "RANK001": Code("two hosts have one node rank", ERROR),
    "RANK002": Code("a node rank is out of range", ERROR),
    "RANK003": Code("the hosts disagree on who takes part", ERROR),
    "RANK004": Code("a host of another job", ERROR),
    "VER001": Code("torch differs between the hosts", ERROR),
    "VER002": Code("Python differs between the hosts", WARNING),
    "VER003": Code("torch was built for different CUDA versions", WARNING),
    "VER004": Code("NCCL differs between the hosts", ERROR),
    "VER005": Code("the code of the bundle differs between the hosts", ERROR),
    "VER006": Code("the spec differs between the hosts", ERROR),
    "VER007": Code("the processors differ, and with them the bits", WARNING),
    "GPU001": Code("fewer GPUs than processes", ERROR),
    "GPU002": Code("a GPU is in use by another program", WARNING),
    "GPU003": Code("an earlier run still holds a GPU", ERROR),
    "GPU004": Code("the GPU driver is too old for this torch", ERROR),
    "GPU005": Code("no CUDA where nccl was asked for", ERROR),
    "GPU006": Code("the GPU driver does not answer", ERROR),
    "DIR001": Code("the checkpoint directory does not exist and cannot be made", ERROR),
    "DIR002": Code("the checkpoint directory cannot be written to", ERROR),
    "DIR003": Code("there is no room for checkpoints", ERROR),
    "DIR004": Code("the checkpoint directory is held by a live job", ERROR),
    "DIR005": Code("the checkpoint directory is not shared", ERROR),
    "DIR006": Code("the checkpoint directory does not answer", ERROR),
    "DIR007": Code("the hosts have different saves of the script", ERROR),
    "LINK001": Code("large packets get lost between two hosts", ERROR),
    "LINK004": Code("two hosts do not reach each other", ERROR),
    "CLK001": Code("the clocks are more than 5 s apart", WARNING),
    "LIM001": Code("too few open files are allowed", ERROR),
    "LIM002": Code("too little memory may be locked", WARNING),
    "LIM003": Code("/dev/shm is small", WARNING),
    "PY001": Code("the Python of the spec is missing", ERROR),
    "PY002": Code("torch is missing", ERROR),
    "PY003": Code("the Python is too old", ERROR),
    "PY004": Code("the packages of the version lock cannot be installed", ERROR),
}


# An earlier run of the job holds the port, or a GPU.
_HELD = ("PORT002", "GPU003")


@dataclass(frozen=True)
class Finding:
    """One fault. `cause`: one sentence without its period, which names the host if that helps. `remedy`: the action, in
    the imperative. `severity`: overrides the code's severity."""

    code: str
    host: str
    cause: str
    remedy: str
    severity: str = ""

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", CODES[self.code].severity)

    @property
    def is_error(self) -> bool:
        """True if this finding forbids the launch."""
        return self.severity == ERROR


def eased(findings: Sequence[Finding], check_only: bool) -> list[Finding]:
    """The findings, with PORT002 and GPU003 as notes on each host where the job itself runs, if this is only a check.

    That job rightly uses its port and its GPUs. A DIR004 that is no error shows that the job runs on that host.
    """
    live = {f.host for f in findings if check_only and f.code == "DIR004" and not f.is_error}
    return [
        replace(f, severity=NOTE) if f.host in live and f.code in _HELD and f.is_error else f
        for f in findings
    ]


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The findings without repetitions, the worst first, then by host and code."""
    unique = dict.fromkeys(findings)
    return sorted(unique, key=lambda f: (SEVERITIES.index(f.severity), f.host, f.code))


def codes(text: str) -> tuple[str, ...]:
    """Parse codes of findings, separated by commas or spaces. Raises argparse.ArgumentTypeError."""
    given = tuple(re.split(r"[,\s]+", text.strip()))
    unknown = [code for code in given if code not in CODES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no code {unknown[0]!r}")
    return given
