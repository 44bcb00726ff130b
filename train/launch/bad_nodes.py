"""Bad nodes: the nodes that have ended two starts of a job by their own fault. The next start leaves them out.

Owns the file `bad-nodes`, and the judgement if the end of a start was a node's own fault. Runs no command.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from train.base.files import read_file, replace_file
from train.preflight.finding import CODES

FILE = "bad-nodes"
# So many faults make a node bad, because a single one may be chance. ddpgen/driver/bad_nodes.py has the same number.
STARTS = 2
HEADER = (
    "# A node with two lines is left out of the next start. Remove a line to give the node back.\n"
)
# These findings are the fault of the one node that has them, because its peers pass the same check of the same job. A
# full disk is the node's own if its peers find room.
_OWN = frozenset(["GPU001", "GPU004", "GPU005", "GPU006", "DIR003"])
# This finding is the fault of the node even if it has no peers: no setting of a job makes nvidia-smi fail.
_OWN_WITHOUT_PEERS = frozenset(["GPU006"])
_REFUSED = re.compile(r"preflight: ([^;]+); nothing was started")
_FINDING = re.compile(r"([A-Z]+\d{3}) on ([^\s,]+)")
_OTHER_BITS = re.compile(r"other bits on ([^\s,]+) than on [^\s,]+ in ")
# If two nodes compute different bits, nobody knows which one is right.
_MAJORITY = 3


@dataclass(frozen=True)
class Fault:
    """A node's own fault, which has ended a start. `when`: the local time of that end, in ISO form; "" if unknown."""

    node: str
    why: str
    when: str = ""


def of_reason(reason: str, nodes: int) -> Fault | None:
    """Return the node's own fault in the reason why a start on `nodes` nodes has ended; None for any other reason.

    A crash of the training, a kill and a lost peer are no fault of a node: the training, its memory or another node may
    be the cause.
    """
    if refused := _REFUSED.fullmatch(reason):
        return _of_findings(refused[1].split(", "), nodes)
    odd = _OTHER_BITS.findall(reason)
    if len(odd) == 1 and nodes >= _MAJORITY:
        return Fault(odd[0], "it computes other bits than its peers")
    return None


def _of_findings(texts: Sequence[str], nodes: int) -> Fault | None:
    findings = [_FINDING.fullmatch(text) for text in texts]
    codes = {match[1] for match in findings if match}
    names = {match[2] for match in findings if match}
    own = _OWN if nodes > 1 else _OWN_WITHOUT_PEERS
    if not all(findings) or len(names) != 1 or not codes <= own:
        return None
    why = ", ".join(f"{code}: {CODES[code].title}" for code in sorted(codes))
    return Fault(names.pop(), why)


def read(path: Path) -> list[Fault]:
    """Return the faults on file, the first one first; [] without a file."""
    faults = []
    with contextlib.suppress(OSError):
        for line in read_file(path).decode("utf-8", "replace").splitlines():
            words = line.split(maxsplit=2)
            if words and not words[0].startswith("#"):
                node, when, why = (*words, "", "")[:3]
                faults.append(Fault(node, why, when))
    return faults


def note(path: Path, fault: Fault) -> None:
    """Add a line about `fault` to the file. Ignore a failed write: the job can go on without it."""
    when = fault.when or time.strftime("%Y-%m-%dT%H:%M:%S")
    line = " ".join(f"{fault.node} {when} {fault.why}".split())
    with contextlib.suppress(OSError):
        text = read_file(path).decode("utf-8", "replace") if path.exists() else HEADER
        replace_file(path, f"{text.rstrip()}\n{line}\n".encode())


def bad(faults: Sequence[Fault]) -> list[Fault]:
    """Return the newest fault of each node that has ended enough starts, the longest known node first."""
    nodes = [fault.node for fault in faults]
    newest = {fault.node: fault for fault in faults if nodes.count(fault.node) >= STARTS}
    return list(newest.values())
