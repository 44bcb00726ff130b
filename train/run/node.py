"""This host among the hosts of a job: its own directory below the checkpoints.

Owns the node directory `<checkpoint dir>/nodes/<host>`: what the host's script reads there
(`status`), and which launch the host belongs to (`launch`). The checkpoint directory may lie on one
disk that all hosts share, or on one of each host's own; a node directory is one host's in both
cases. Also how a process of an attempt says how that ended, with or without other hosts. Imports no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from train.base.console import say
from train.base.files import replace_file
from train.run.layout import steps_on_disk
from train.run.lock import FencedOffError, read_lock
from train.run.status import Status, read_status, record_status, write_status

# Of an exception's text, which may be a page, so much goes into the status.
MOST_REASON = 500


@dataclass(frozen=True)
class Node:
    """`attempt`: what this host's script was given when it claimed the node directory. `given`: the
    launch id that the script was started with, if any."""

    name: str
    directory: Path
    attempt: str
    given: str

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Node | None:
        """As the host script says; None where the job has no other hosts."""
        directory, attempt = env.get("DDPGEN_NODE_DIR"), env.get("DDPGEN_ATTEMPT")
        if not directory or not attempt:
            return None
        path = Path(directory).absolute()
        return cls(env.get("DDPGEN_NODE") or path.name, path, attempt, env.get("DDPGEN_LAUNCH", ""))

    def launch(self) -> str:
        """The launch this host has taken part in since its script started, else the one given."""
        try:
            attempt, launch = (self.directory / "launch").read_text("utf-8", "replace").split()
        except (OSError, ValueError):
            return self.given
        return launch if attempt == self.attempt else self.given

    def remember(self, launch: str) -> None:
        """Put the launch on file. Raises OSError."""
        replace_file(self.directory / "launch", f"{self.attempt} {launch}\n".encode())

    def check(self) -> None:
        """Raise FencedOffError when this host's script was started anew since."""
        holder = read_lock(self.directory)
        if holder is None or holder.attempt != self.attempt:
            raise FencedOffError(
                f"attempt {self.attempt} no longer holds {self.directory}; it stops writing and ends"
            )

    def write(self, word: str, step: int | None = None, reason: str = "") -> None:
        """Put the status on file; without a step, the one before stays. Raises TrainError, FencedOffError."""
        self.check()
        if step is None:
            step = (read_status(self.directory) or Status(word, self.attempt, 0)).step
        record_status(self.directory, Status(word, self.attempt, step, reason))


def is_over(held: Path, attempt: str, rank: int | None = None) -> bool:
    """Whether a process of `attempt` is a restart of one that has failed for good, or was replaced: it says so."""
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
    """Put how the attempt ended into its status: this host's, and the job's where this host holds it.

    Leaves a directory alone that another attempt has taken. Raises OSError.
    """
    for place, was in _statuses(directory, attempt, node):
        write_status(place, Status(word, was.attempt, was.step, reason))


def settle_end(
    directory: Path, attempt: str, node: Node | None, word: str, reason: str = ""
) -> None:
    """The attempt is over: put how it ended into a status that its processes have not ended. Raises OSError.

    A crash that a process has noted there is the reason.
    """
    for place, was in _statuses(directory, attempt, node):
        if was.word == "running":
            write_status(place, Status(word, was.attempt, was.step, was.reason or reason))
        elif was.word == "done":  # rank 0 has said so for itself
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
    """Note a crash, which a restart may cure: the status says `running` still. `lost`: it only follows from the
    end of another process, and does not take the place of what was noted before. `words`: the statuses that it
    takes the place of. `step`: the newest complete step, as far as the process knows it."""
    with contextlib.suppress(OSError):
        for place, was in _statuses(directory, attempt, node, step):
            if was.word in words.split() and not (lost and was.reason):
                write_status(place, Status("running", was.attempt, was.step, what))


def _statuses(
    directory: Path, attempt: str, node: Node | None, step: int = 0
) -> Iterator[tuple[Path, Status]]:
    """The directories that are this attempt's, and their statuses, at `step` or a later step that they know of."""
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
