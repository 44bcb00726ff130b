"""This host among the hosts of a job: its own directory below the checkpoints.

Owns the node directory `<checkpoint dir>/nodes/<host>`: the host's `status`, which its script reads, and the launch to
which the host belongs (`launch`). The checkpoint directory may lie on a disk that all hosts share, or on a disk of each
host. In both cases a node directory belongs to one host. Also owns how a process records the end of its attempt, with
or without other hosts. Imports no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from train.base.console import say
from train.base.files import replace_file
from train.run.layout import steps_on_disk
from train.run.lock import check_held, read_lock
from train.run.status import Status, read_status, record_status, write_status

# Characters of an exception's text, which may be a page, that go into the status.
MOST_REASON = 500


@dataclass(frozen=True)
class Node:
    """`attempt`: the id that this host's script got when it claimed the node directory. `given`: the launch id with
    which the script was started, or ""."""

    name: str
    directory: Path
    attempt: str
    given: str

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Node | None:
        """The node that the host script's variables describe; None if the job has no other hosts."""
        directory, attempt = env.get("DDPGEN_NODE_DIR"), env.get("DDPGEN_ATTEMPT")
        if not directory or not attempt:
            return None
        path = Path(directory).absolute()
        return cls(env.get("DDPGEN_NODE") or path.name, path, attempt, env.get("DDPGEN_LAUNCH", ""))

    def launch(self) -> str:
        """The launch in which this host has taken part since its script started, else the given one."""
        try:
            attempt, launch = (self.directory / "launch").read_text("utf-8", "replace").split()
        except (OSError, ValueError):
            return self.given
        return launch if attempt == self.attempt else self.given

    def remember(self, launch: str) -> None:
        """Write the launch to its file. Raises OSError."""
        replace_file(self.directory / "launch", f"{self.attempt} {launch}\n".encode())

    def check(self) -> None:
        """Raise FencedOffError if this host's script has been started again since."""
        check_held(self.directory, self.attempt)

    def write(self, word: str, step: int | None = None, reason: str = "") -> None:
        """Write the status; without a step, the step on file stays. Raises TrainError, FencedOffError."""
        self.check()
        if step is None:
            step = (read_status(self.directory) or Status(word, self.attempt, 0)).step
        record_status(self.directory, Status(word, self.attempt, step, reason))


def is_over(held: Path, attempt: str, rank: int | None = None) -> bool:
    """True if `attempt` has failed for good or was replaced, so that a restarted process ends. Prints the latter."""
    status, holder = read_status(held), read_lock(held)
    if status is not None and (status.word, status.attempt) == ("failed", attempt):
        return True
    if holder is not None and holder.attempt != attempt:
        say(f"attempt {attempt} was replaced by {holder.attempt} on {holder.host}; ending", rank)
        return True
    return False


def record_end(
    directory: Path, attempt: str, node: Node | None, word: str, reason: str = ""
) -> None:
    """Write the end of the attempt to this host's status, and to the job's if this host holds the job's directory.

    Does not touch a directory that another attempt has taken. Raises OSError.
    """
    for place, was in _statuses(directory, attempt, node):
        write_status(place, Status(word, was.attempt, was.step, reason))


def settle_end(
    directory: Path, attempt: str, node: Node | None, word: str, reason: str = ""
) -> None:
    """Write the end of the attempt to each status that its processes have left without one. Raises OSError.

    If a process has noted a crash there, the crash is the reason.
    """
    for place, was in _statuses(directory, attempt, node):
        if was.word == "running":
            write_status(place, Status(word, was.attempt, was.step, was.reason or reason))
        elif was.word == "done":  # rank 0 has written it for itself
            write_status(place, Status(word, was.attempt, was.step, reason))


def record_crash(
    directory: Path,
    attempt: str,
    node: Node | None,
    what: str,
    lost: bool,
    words: str = "running",
    step: int = 0,
) -> None:
    """Note a crash, which a restart may cure: the status still says `running`.

    `lost`: the crash only follows from the end of another process, so it does not replace a reason noted before.
    `words`: the statuses that it replaces. `step`: the newest complete step, as far as the process knows it.
    """
    with contextlib.suppress(OSError):
        for place, was in _statuses(directory, attempt, node, step):
            if was.word in words.split() and not (lost and was.reason):
                write_status(place, Status("running", was.attempt, was.step, what))


def _statuses(
    directory: Path, attempt: str, node: Node | None, step: int = 0
) -> Iterator[tuple[Path, Status]]:
    """Yield this attempt's directories with their statuses, at `step` or at a later step that they know."""
    places = [(directory, node.launch() if node else attempt)]
    if node is not None:
        places.insert(0, (node.directory, node.attempt))
    for place, mine in places:
        holder = read_lock(place)
        if not mine or holder is None or holder.attempt != mine:
            return
        was = read_status(place) or Status("running", mine, 0)
        # The status of a running attempt has the step of its start; checkpoints are in the whole directory only.
        newest = max([was.step, step, *steps_on_disk(directory)])
        now = was if was.attempt == mine else Status("running", mine, 0)
        yield place, replace(now, step=newest)
