"""`python -m train run`: one worker, from its environment to its exit code.

Owns how a worker reports its end to torchrun and to the status file. The end is one of: done, stopped, replaced, failed
for good (on any host), or crashed and worth a restart. Imports torch only when there is something to run.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from train.base import processes
from train.base.console import say
from train.base.errors import (
    EXIT_FAILED,
    LATE,
    LOSS,
    ToldError,
    TrainError,
    exit_at_once,
    peer_failure,
)
from train.distributed import nccl
from train.distributed.failures import LAST_WAIT_S, FatalErrorBroadcast
from train.health.phase import IMPORTING, doing
from train.health.reporter import Reporter
from train.health.stacks import innermost_user_line
from train.run import portable
from train.run.config import RunConfig, parse
from train.run.lock import FencedOffError
from train.run.node import MOST_REASON, Node, is_over, record_crash, record_end
from train.run.replaced import Replacement
from train.run.status import read_status
from train.training.run_info import RunInfo

# Imports torch and the module that does the work; returns that module's function.
Load = Callable[[], Callable[[RunInfo], int]]


def _load_trainer() -> Callable[[RunInfo], int]:
    from train import trainer

    return trainer.run


def main(argv: Sequence[str]) -> int:
    """Run one worker and return its exit code; the status file says how the job ended.

    The code is 0 if a restart by torchrun would be wrong: done, stopped, replaced, or failed for good on several hosts.
    On one host a failure for good returns 1. The workers that torchrun then starts again read the status and end.
    """
    return work(parse(argv), argv)


def work(config: RunConfig, argv: Sequence[str], load: Load = _load_trainer) -> int:
    """Like `main`, for parsed settings. `argv`: the arguments from which they were parsed, for the manifest."""
    processes.die_with_parent(signal.SIGKILL)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        # Under Slurm torchrun ignores SIGTERM. If its workers inherited that, torchrun could not end this process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return Worker(config, os.environ, argv).run(load)


class Worker:
    """One process of an attempt, and how its end is reported. RunInfo describes the attributes."""

    def __init__(self, config: RunConfig, env: Mapping[str, str], argv: Sequence[str]) -> None:
        """`env`: torchrun's variables, and the supervisor's for this launch. `argv`: the arguments as given."""
        self.config, self.argv = config, list(argv)
        self._rank = int(env.get("RANK", "0"))
        self.directory = Path(config.checkpoint_dir).absolute()
        self.attempt = env.get("DDPGEN_ATTEMPT", "")
        self.node = node = Node.from_environment(env)
        self.replaced = Replacement(self.directory, env, node)
        self.reporter = Reporter(
            self.directory,
            env,
            node.name if node else "",
            may_write=lambda: not self.replaced.has_come(),
        )
        self.failures: FatalErrorBroadcast | None = None

    def run(self, load: Load = _load_trainer) -> int:
        """Run the worker and return its exit code. `load` imports torch."""
        directory = self.node.directory if self.node else self.directory
        if self.attempt and is_over(directory, self.attempt, self._rank):
            return 0
        self.replaced.end_if_come()
        self.replaced.watch()
        self.reporter.start()
        if self.node is not None:
            self.failures = FatalErrorBroadcast(self.node.name, self._rank, self._end_as_reported)
            # When the process with the store dies, torch prints a page of C++ frames on every waiting peer. Silence
            # it, so that our one-line reason stays visible. torch reads this when it is imported.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        try:
            return self._work(load)
        except FencedOffError as error:
            self.reporter.fail(error, peer_failed=False)
            self._say(str(error))
            return 0
        except TrainError as error:
            self.reporter.fail(error, peer_failed=isinstance(error, ToldError))
            return self._fail(error)
        except Exception as error:  # noqa: BLE001 - the worker's last resort
            self._crash(error)
            return EXIT_FAILED

    def _work(self, load: Load) -> int:
        # The import of torch takes seconds, so it comes only after the checks that may end this process. The import
        # makes 250,000 objects that stay. Keep the garbage collector from looking at them again and again.
        nccl.record_collectives(os.environ, self.directory)
        if self.config.determinism == portable.PORTABLE:
            portable.pin(os.environ)
        with doing(IMPORTING):
            gc.disable()
            run = load()
            gc.freeze()
            gc.enable()

        info = RunInfo(
            self.config,
            self.argv,
            self.directory,
            self.attempt,
            self.node,
            self.failures,
            self.reporter,
            self.replaced,
        )
        try:
            return run(info)
        except Exception:
            # If a later start has replaced this one, that is the cause: peers have ended, or the fence refused.
            self.replaced.end_if_come()
            raise

    # --- how an end is reported -----------------------------------------------------------------------

    def _fail(self, error: TrainError) -> int:
        """End the job for good, on one host or on all of them. Returns the exit code.

        On several hosts every worker exits 0. After another code torchrun's agents would start some workers again,
        and these would wait for peers that do not come.
        """
        text, failures = " ".join(str(error).split()), self.failures
        if failures is None:
            was = read_status(self.directory)
            if was is None or (was.word, was.attempt, was.reason) != ("failed", self.attempt, text):
                self._say(text)  # else another rank has met the same error, and said so
                self._record_failure(text)
            return EXIT_FAILED
        if isinstance(error, ToldError):
            # Wait until the process that met the error has sent it to all others.
            failures.wait_for_word(LAST_WAIT_S)
            return self._record_failure(text)
        reason, is_mine = failures.broadcast(text)
        if is_mine:
            self._say(text)
        code = self._record_failure(reason)
        failures.wait_until_read()
        return code

    def _end_as_reported(self, reason: str) -> None:
        """End this process, because another process has told why the job ends. The listening thread calls this."""
        assert self.failures is not None
        self.replaced.end_if_come()
        self.failures.before_end()
        code = self._record_failure(reason)
        self.failures.wait_until_read()
        exit_at_once(code)

    def _record_failure(self, reason: str) -> int:
        """Write `failed` for this host, and for the job if this host holds it. Returns the exit code."""
        try:
            record_end(self.directory, self.attempt, self.node, "failed", reason)
        except OSError as error:
            self._say(f"the status file cannot be written: {error.strerror}")
            return EXIT_FAILED
        return 0

    def _crash(self, error: Exception) -> None:
        """Print and note the cause: the exception, or the crash of another process that it follows from."""
        step = self.reporter.step
        step_clause = f" in step {step + 1}" if step >= 0 else ""
        if peer := peer_failure(error):
            self._lose_peer(error, peer, step_clause)
            return
        self.reporter.fail(error, peer_failed=False)
        traceback.print_exc()
        self._say(f"{type(error).__name__}: {error}")
        where = innermost_user_line(error.__traceback__)
        reason = f"{type(error).__name__}: {error}"[:MOST_REASON] + (f" ({where})" if where else "")
        noted = f"rank {self._rank}{step_clause}: {reason}"
        record_crash(self.directory, self.attempt, self.node, noted, False, step=step)
        if self.failures is not None:
            self.failures.broadcast_crash(" ".join(noted.split()))

    def _lose_peer(self, error: Exception, peer: str, step_clause: str) -> None:
        """Like _crash, if `error` means that a peer is GONE or LATE. Prints no traceback: it would hide the cause."""
        if self.failures is not None:
            self.failures.wait_for_word()
        cause = self.failures.cause if self.failures is not None else ""
        self.reporter.fail(error, peer_failed=True)
        loss = LOSS[peer]
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._say(f"{loss}: {text[:200]}")
        lines = [cause] if cause else self.reporter.explain(wait=peer == LATE)
        for line in lines:
            self._say(line)
        reason = "; ".join(lines) or text
        noted = cause or f"rank {self._rank}{step_clause}: {loss}: {reason}"[:MOST_REASON]
        only_follows = bool(cause) or not lines
        step = self.reporter.step
        record_crash(self.directory, self.attempt, self.node, noted, only_follows, step=step)

    def _say(self, message: str) -> None:
        say(message, self._rank)
