"""`python -m train run`: one worker, from its environment to its exit code.

Owns what a worker's end means to torchrun and to the status file: done, stopped, replaced, failed
for good (on any host), or crashed and worth a restart. Imports torch only when there is something to run.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

from train import processes
from train.config import RunConfig, parse
from train.ending import exit_at_once
from train.errors import EXIT_FAILED, ToldError, TrainError
from train.failure import LAST_WAIT_S, FailureBroadcast
from train.health.phase import doing
from train.health.reporter import Reporter
from train.health.stacks import innermost_user_line
from train.lock import FencedOffError, read_lock
from train.metrics import say
from train.node import MOST_REASON, Node, record_crash, record_end
from train.parallel import master_port
from train.peers import GONE, LATE, what_became_of_a_peer
from train.replaced import Replacement
from train.status import read_status


def main(argv: Sequence[str]) -> int:
    """Run one worker. Returns its exit code; what became of the job is in the status file.

    0 whenever a restart by torchrun would be wrong: done, stopped, superseded, or failed for good.
    """
    processes.die_with_parent(signal.SIGKILL)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        # torchrun is to ignore it under Slurm, and has passed that on: it could not end this process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    master_port.hold(os.environ)
    config = parse(argv)
    rank = int(os.environ.get("RANK", "0"))
    directory = Path(config.checkpoint_dir).absolute()
    attempt = os.environ.get("DDPGEN_ATTEMPT", "")
    node = Node.from_environment(os.environ)
    if attempt and _is_over(node.directory if node else directory, attempt, rank):
        return 0
    replaced = Replacement(directory, os.environ, node)
    replaced.end_if_come()
    replaced.watch()
    name = node.name if node else ""
    reporter = Reporter(directory, os.environ, name, may_write=lambda: not replaced.has_come())
    reporter.start()
    if node is not None:
        return _among_hosts(config, directory, node, rank, reporter, replaced)
    try:
        return _run(config, directory, attempt, reporter, replaced)
    except FencedOffError as error:
        reporter.fail(error, waited=False)
        say(str(error), rank)
        return 0
    except TrainError as error:
        reporter.fail(error, waited=False)
        _report_failure(directory, attempt, str(error), rank)
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - the worker's last resort
        _report_crash(error, directory, attempt, None, rank, reporter)
        return EXIT_FAILED


def _among_hosts(
    config: RunConfig,
    directory: Path,
    node: Node,
    rank: int,
    reporter: Reporter,
    replaced: Replacement,
) -> int:
    """As on one host; and what ends the job for good on one host ends it on all, with its reason.

    Then every worker exits 0, as torchrun's agents would otherwise start some of them again, to
    wait for others that do not come.
    """

    def end_as_told(reason: str) -> None:
        replaced.end_if_come()
        failures.before_end()
        code = _put_down(directory, node, reason, rank)
        failures.wait_until_read()
        exit_at_once(code)

    failures = FailureBroadcast(node.name, rank, end_as_told)
    # Who listens when the process with the store dies has torch print a page of C++ frames, in front
    # of the one line that matters. Read by torch when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        return _run(config, directory, node.attempt, reporter, replaced, node, failures)
    except FencedOffError as error:
        reporter.fail(error, waited=False)
        say(str(error), rank)
        return 0
    except ToldError as error:
        reporter.fail(error, waited=True)
        failures.wait_for_word(LAST_WAIT_S)  # who has told it in the exchange leaves word next
        return _put_down(directory, node, str(error), rank)
    except TrainError as error:
        reporter.fail(error, waited=False)
        reason, is_mine = failures.tell(str(error))
        if is_mine:
            say(" ".join(str(error).split()), rank)
        code = _put_down(directory, node, reason, rank)
        failures.wait_until_read()
        return code
    except Exception as error:  # noqa: BLE001 - the worker's last resort
        failures.wait_for_word()
        _report_crash(error, directory, node.attempt, node, rank, reporter)
        return EXIT_FAILED


def _put_down(directory: Path, node: Node, reason: str, rank: int) -> int:
    """Write `failed` for this host, and for the job where this host holds it. The exit code."""
    try:
        record_end(directory, node.attempt, node, "failed", reason)
    except OSError as error:
        say(f"the status file cannot be written: {error.strerror}", rank)
        return EXIT_FAILED
    return 0


def _is_over(directory: Path, attempt: str, rank: int) -> bool:
    """Whether this worker is a restart of an attempt that has failed for good, or was replaced."""
    status = read_status(directory)
    if status is not None and status.attempt == attempt and status.word == "failed":
        return True
    holder = read_lock(directory)
    if holder is not None and holder.attempt != attempt:
        say(f"attempt {attempt} was replaced by {holder.attempt} on {holder.host}; ending", rank)
        return True
    return False


def _report_failure(directory: Path, attempt: str, why: str, rank: int) -> None:
    was = read_status(directory)
    reason = " ".join(why.split())
    if was is not None and (was.word, was.attempt, was.reason) == ("failed", attempt, reason):
        return  # another rank has met the same fault and said so
    say(why, rank)
    try:
        record_end(directory, attempt, None, "failed", reason)
    except OSError as error:
        say(f"the status file cannot be written: {error.strerror}", rank)


def _report_crash(
    error: Exception,
    directory: Path,
    attempt: str,
    node: Node | None,
    rank: int,
    reporter: Reporter,
) -> None:
    """Say what has happened; of what happened to others, who and where it was."""
    text, became = str(error), what_became_of_a_peer(error)
    lines: list[str] = []
    reporter.fail(error, waited=bool(became))
    if became:
        # A traceback through DDP would only hide the cause.
        what = "lost a peer" if became == GONE else "waited in vain for a peer"
        say(f"{what}: {text.splitlines()[0][:200]}", rank)
        lines = reporter.explain() if became == LATE else reporter.explain(timeout_s=0.0)
        for line in lines:
            say(line, rank)
        reason = f"{what}: {lines[0] if lines else text.splitlines()[0]}"
    else:
        traceback.print_exc()
        say(f"{type(error).__name__}: {text}", rank)
        where = innermost_user_line(error.__traceback__)
        reason = f"{type(error).__name__}: {text}" + (f" ({where})" if where else "")
    lost = bool(became) and not lines
    record_crash(directory, attempt, node, f"rank {rank}: {reason[:MOST_REASON]}", lost)


def _run(
    config: RunConfig,
    directory: Path,
    attempt: str,
    reporter: Reporter,
    replaced: Replacement,
    node: Node | None = None,
    failures: FailureBroadcast | None = None,
) -> int:
    # Imports torch, which takes seconds: not before it is known that there is something to run. It makes
    # 250,000 objects that stay; the garbage collector would look at them again and again.
    with doing("importing torch"):
        gc.disable()
        from train import trainer

        gc.freeze()
        gc.enable()

    try:
        return trainer.run(config, directory, attempt, reporter, replaced, node, failures)
    except Exception:
        # Whatever it is, it then comes of that: of others that have ended, or of the fence.
        replaced.end_if_come()
        raise
