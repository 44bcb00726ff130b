"""This host among the hosts of a job: its own directory below the checkpoints.

Owns the node directory `<checkpoint dir>/nodes/<host>`: the host's `status`, which its supervisor reads, and the file
`launch`, which names the launch to which the host belongs. The checkpoint directory may lie on a disk that all hosts
share, or on a disk of each host. In both cases a node directory belongs to one host. Also owns how a process records
the end of its attempt, with or without other hosts. Imports no torch.
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

# The status takes at most so many characters of an exception's text, which may fill a page.
MOST_REASON = 500


@dataclass(frozen=True)
class Node:
    """`attempt`: the id that this host's supervisor got when it claimed the node directory. `given`: the launch id with
    which the supervisor was started, or ""."""

    name: str
    directory: Path
    attempt: str
    given: str

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Node | None:
        """The node that the supervisor's variables describe; None if the job has no other hosts."""
        directory, attempt = env.get("DDPGEN_NODE_DIR"), env.get("DDPGEN_ATTEMPT")
        if not directory or not attempt:
            return None
        path = Path(directory).absolute()
        return cls(env.get("DDPGEN_NODE") or path.name, path, attempt, env.get("DDPGEN_LAUNCH", ""))

    def launch(self) -> str:
        """The launch in which this host has taken part since its supervisor started; before that the given launch."""
        try:
            attempt, launch = (self.directory / "launch").read_text("utf-8", "replace").split()
        except (OSError, ValueError):
            return self.given
        return launch if attempt == self.attempt else self.given

    def remember(self, launch: str) -> None:
        """Write the launch to its file. Raises OSError."""
        replace_file(self.directory / "launch", f"{self.attempt} {launch}\n".encode())

    def check(self) -> None:
        """Raise FencedOffError if a later supervisor of this host has claimed the node directory."""
        check_held(self.directory, self.attempt)

    def write(self, word: str, step: int | None = None, reason: str = "") -> None:
        """Write the status; without a step, the step on file stays. Raises TrainError, FencedOffError."""
        self.check()
        if step is None:
            step = (read_status(self.directory) or Status(word, self.attempt, 0)).step
        record_status(self.directory, Status(word, self.attempt, step, reason))


def is_over(held: Path, attempt: str, rank: int | None = None) -> bool:
    """True if `attempt` has failed for good or was replaced, so that a restarted process must end.

    Prints a line if it was replaced.
    """
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
    """Write the end of the attempt to each status that says `running` or `done`. Raises OSError.

    If a process has noted a crash in a status `running`, the crash is the reason.
    """
    for place, was in _statuses(directory, attempt, node):
        if was.word == "running":
            write_status(place, Status(word, was.attempt, was.step, was.reason or reason))
        elif was.word == "done":  # rank 0 has written that before the other processes ended
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
    `words`: the statuses that the note may replace. `step`: the newest complete step that the process knows.
    """
    with contextlib.suppress(OSError):
        for place, was in _statuses(directory, attempt, node, step):
            if was.word in words.split() and not (lost and was.reason):
                write_status(place, Status("running", was.attempt, was.step, what))


def _statuses(
    directory: Path, attempt: str, node: Node | None, step: int = 0
) -> Iterator[tuple[Path, Status]]:
    """Yield each directory that this attempt holds, with its status. The status's step is the newest step known."""
    places = [(directory, node.launch() if node else attempt)]
    if node is not None:
        places.insert(0, (node.directory, node.attempt))
    for place, mine in places:
        holder = read_lock(place)
        if not mine or holder is None or holder.attempt != mine:
            return
        was = read_status(place) or Status("running", mine, 0)
        # The status of a running attempt has the step of its start. Only the job's directory has the checkpoints.
        newest = max([was.step, step, *steps_on_disk(directory)])
        now = was if was.attempt == mine else Status("running", mine, 0)
        yield place, replace(now, step=newest)
