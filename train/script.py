"""`python -m train script FILE`: a user's own training loop under the same launch artefacts.

Owns the contract's other side: the script is run as it would be by itself, and how it ends becomes
the status. Knows nothing of what the script does.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from train import processes
from train.console import say
from train.errors import EXIT_FAILED, EXIT_STOPPED
from train.health.stacks import innermost_user_line
from train.lock import HeldByLiveJobError, is_replaced, read_lock, take
from train.node import MOST_REASON, Node, record_crash
from train.replaced import Replacement
from train.scheduler import VARIABLE, Scheduled
from train.status import Status, read_status, write_status
from train.stop import reason_in

EXIT_USAGE = 2  # argparse's, click's and many others'


def main(argv: Sequence[str]) -> int:
    """Run FILE with the arguments after it.

    Its exit code is taken as: 0 done; 75 stopped; 2 wrong arguments, which no restart can cure;
    anything else failed, and worth one.
    """
    processes.die_with_parent(signal.SIGKILL)
    if not argv:
        print("usage: python -m train script FILE [ARG ...]", file=sys.stderr)
        return EXIT_USAGE
    path = Path(argv[0]).absolute()
    attempt = os.environ.get("DDPGEN_ATTEMPT", "")
    if attempt and _is_over(attempt):
        return 0
    node = Node.from_environment(os.environ)
    replaced = Replacement(_whole(), os.environ, node)
    replaced.end_if_come()
    if node is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        try:
            _take(node)
        except HeldByLiveJobError as error:
            return _fail(attempt, str(error))
        node.remember(node.launch() or attempt)  # from here on a stop is the script's own business
    replaced.watch()
    if not path.is_file():
        return _fail(attempt, f"{path} is not there; is it listed under 'code'?")
    try:
        code = _run_script(path, list(argv[1:]))
    except Exception as error:
        where = innermost_user_line(error.__traceback__)
        _note_crash(
            attempt, node, f"{type(error).__name__}: {error}", f" ({where})" if where else ""
        )
        raise
    return _conclude(attempt, node, path.name, code)


def _conclude(attempt: str, node: Node | None, name: str, code: int) -> int:
    """What the script's exit code means. Returns this worker's own."""
    if code == 0 and _speaks_for_the_job():
        _write(attempt, "done")
    elif code == EXIT_STOPPED and _speaks_for_the_job():
        # The script's ranks agree among themselves; the words lie where somebody has asked this host.
        asked = _stop_file()
        _write(attempt, "stopped", reason_in(asked) if asked.exists() else "")
    elif code == EXIT_USAGE:
        why = f"{name} refused its arguments (exit code {code}); correct train.args"
        return _fail(attempt, why)
    elif code not in (0, EXIT_STOPPED):
        _note_crash(attempt, node, f"{name} ended with exit code {code}")
    # Not 75: torchrun would start the workers again.
    return 0 if code == EXIT_STOPPED else code


def _take(node: Node) -> None:
    """Under a scheduler the script's rank 0 takes the whole directory: a later start of the job then
    shows, to this start and to whoever else comes. Raises HeldByLiveJobError, OSError."""
    scheduler = os.environ.get(VARIABLE, "")
    if Scheduled.parse(scheduler) is None or os.environ.get("RANK", "0") != "0":
        return
    launcher = int(os.environ.get("DDPGEN_LAUNCHER_PID", os.getpid()))
    launch = node.launch() or node.attempt
    take(_whole(), os.environ.get("DDPGEN_JOB", "?"), launcher, launch, scheduler)


def _is_over(attempt: str) -> bool:
    """Whether this worker is a restart of an attempt that has failed for good, or was replaced."""
    status, holder = read_status(_directory()), read_lock(_directory())
    if status is not None and (status.word, status.attempt) == ("failed", attempt):
        return True
    if holder is not None and holder.attempt != attempt:
        say(f"attempt {attempt} was replaced by {holder.attempt} on {holder.host}; ending")
        return True
    return False


def _run_script(path: Path, arguments: list[str]) -> int:
    """The script's exit code. An exception in it passes through: torchrun restarts the workers."""
    # The script sees its own directory first, as under `python FILE`, and not this package: its
    # own module may well be called `train`.
    for name in [n for n in sys.modules if n == "train" or n.startswith("train.")]:
        del sys.modules[name]
    sys.path[0] = str(path.parent)
    sys.argv = [str(path), *arguments]
    os.chdir(path.parent)
    ours = os.environ.get("DDPGEN_CHECKPOINT_DIR")
    if store := os.environ.get("DDPGEN_CHECKPOINT_STORE"):
        # What the script keeps is to outlive the machine; the launcher's files stay where they are.
        os.makedirs(store, exist_ok=True)
        os.environ["DDPGEN_CHECKPOINT_DIR"] = store
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            return exit_.code or 0
        print(exit_.code, file=sys.stderr)
        return EXIT_FAILED
    finally:
        os.environ.pop("DDPGEN_CHECKPOINT_DIR", None)
        if ours is not None:
            os.environ["DDPGEN_CHECKPOINT_DIR"] = ours
    return 0


def _note_crash(attempt: str, node: Node | None, why: str, where: str = "") -> None:
    """A restart may cure it; should there be none, the status knows why."""
    what = f"rank {os.environ.get('RANK', '0')}: {why[:MOST_REASON]}{where}"
    record_crash(_whole(), attempt, node, what, lost=False)


def _fail(attempt: str, why: str) -> int:
    """Any rank may be the only one to meet a fault. The restarts of all see that it is for good."""
    if (read_status(_directory()) or Status("running", "", 0)).reason != why:
        say(why)
    _write(attempt, "failed", why)
    return EXIT_FAILED


def _directory() -> Path:
    """Where the status of this job is, or of its part on this host."""
    place = os.environ.get("DDPGEN_NODE_DIR") or os.environ.get("DDPGEN_CHECKPOINT_DIR") or "."
    return Path(place).absolute()


def _whole() -> Path:
    """Where the whole job's status is."""
    return Path(os.environ.get("DDPGEN_CHECKPOINT_DIR", ".")).absolute()


def _stop_file() -> Path:
    """What the script looks for."""
    return Path(os.environ.get("DDPGEN_STOP_FILE") or _whole() / "stop").absolute()


def _speaks_for_the_job() -> bool:
    rank = "LOCAL_RANK" if os.environ.get("DDPGEN_NODE_DIR") else "RANK"
    return os.environ.get(rank, "0") == "0"


def _write(attempt: str, word: str, reason: str = "") -> None:
    holder = read_lock(_directory())
    if attempt and holder is not None and holder.attempt == attempt:
        step = (read_status(_directory()) or Status(word, attempt, 0)).step
        write_status(_directory(), Status(word, attempt, step, reason))
        if os.environ.get("DDPGEN_NODE_DIR") and os.environ.get("RANK", "0") == "0":
            # The whole job's status, beside this host's.
            launch = os.environ.get("DDPGEN_LAUNCH") or attempt
            if not is_replaced(read_lock(_whole()), os.environ.get(VARIABLE, "")):
                write_status(_whole(), Status(word, launch, step, reason))
