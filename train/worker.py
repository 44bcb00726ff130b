"""`python -m train run`: one worker, from its environment to its exit code.

Owns what a worker's end means to torchrun and to the status file: done, stopped, replaced, failed
for good (on any host), or crashed and worth a restart. Imports torch only when there is something to run.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from train import processes
from train.config import RunConfig, parse
from train.console import say
from train.ending import exit_at_once
from train.errors import EXIT_FAILED, ToldError, TrainError
from train.fatal_error import LAST_WAIT_S, FatalErrorBroadcast
from train.health.phase import doing
from train.health.reporter import Reporter
from train.health.stacks import innermost_user_line
from train.lock import FencedOffError, read_lock
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
    return Worker(parse(argv), os.environ).run()


class Worker:
    """One process of an attempt: what it was told, and how its end is told."""

    def __init__(self, config: RunConfig, env: Mapping[str, str]) -> None:
        """`env`: torchrun's variables, and what the supervisor says of the launch."""
        self._config = config
        self._rank = int(env.get("RANK", "0"))
        self._directory = Path(config.checkpoint_dir).absolute()
        self._attempt = env.get("DDPGEN_ATTEMPT", "")
        self._node = node = Node.from_environment(env)
        self._replaced = Replacement(self._directory, env, node)
        self._reporter = Reporter(
            self._directory,
            env,
            node.name if node else "",
            may_write=lambda: not self._replaced.has_come(),
        )
        self._failures: FatalErrorBroadcast | None = None

    def run(self) -> int:
        """Its exit code."""
        if self._attempt and self._is_over():
            return 0
        self._replaced.end_if_come()
        self._replaced.watch()
        self._reporter.start()
        return self._alone() if self._node is None else self._among_hosts(self._node)

    def _is_over(self) -> bool:
        """Whether this is a restart of an attempt that has failed for good, or was replaced."""
        held = self._node.directory if self._node else self._directory
        status, holder = read_status(held), read_lock(held)
        if status is not None and (status.word, status.attempt) == ("failed", self._attempt):
            return True
        if holder is not None and holder.attempt != self._attempt:
            new = f"{holder.attempt} on {holder.host}"
            self._say(f"attempt {self._attempt} was replaced by {new}; ending")
            return True
        return False

    def _alone(self) -> int:
        try:
            return self._train()
        except FencedOffError as error:
            self._reporter.fail(error, waited=False)
            self._say(str(error))
            return 0
        except TrainError as error:
            self._reporter.fail(error, waited=False)
            self._fail(str(error))
            return EXIT_FAILED
        except Exception as error:  # noqa: BLE001 - the worker's last resort
            self._crash(error)
            return EXIT_FAILED

    def _among_hosts(self, node: Node) -> int:
        """As on one host; and what ends the job for good on one host ends it on all, with its reason.

        Then every worker exits 0, as torchrun's agents would otherwise start some of them again, to
        wait for others that do not come.
        """

        def end_as_told(reason: str) -> None:
            self._replaced.end_if_come()
            failures.before_end()
            code = self._put_down(reason)
            failures.wait_until_read()
            exit_at_once(code)

        self._failures = failures = FatalErrorBroadcast(node.name, self._rank, end_as_told)
        # Who listens when the process with the store dies has torch print a page of C++ frames, in front
        # of the one line that matters. Read by torch when it is imported.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        try:
            return self._train()
        except FencedOffError as error:
            self._reporter.fail(error, waited=False)
            self._say(str(error))
            return 0
        except ToldError as error:
            self._reporter.fail(error, waited=True)
            failures.wait_for_word(LAST_WAIT_S)  # who has told it in the exchange leaves word next
            return self._put_down(str(error))
        except TrainError as error:
            self._reporter.fail(error, waited=False)
            reason, is_mine = failures.tell(str(error))
            if is_mine:
                self._say(" ".join(str(error).split()))
            code = self._put_down(reason)
            failures.wait_until_read()
            return code
        except Exception as error:  # noqa: BLE001 - the worker's last resort
            failures.wait_for_word()
            self._crash(error)
            return EXIT_FAILED

    def _train(self) -> int:
        # Imports torch, which takes seconds: not before it is known that there is something to run. It makes
        # 250,000 objects that stay; the garbage collector would look at them again and again.
        with doing("importing torch"):
            gc.disable()
            from train import trainer

            gc.freeze()
            gc.enable()

        try:
            return trainer.run(
                self._config,
                self._directory,
                self._attempt,
                self._reporter,
                self._replaced,
                self._node,
                self._failures,
            )
        except Exception:
            # Whatever it is, it then comes of that: of others that have ended, or of the fence.
            self._replaced.end_if_come()
            raise

    # --- how an end is told -----------------------------------------------------------------------

    def _put_down(self, reason: str) -> int:
        """Write `failed` for this host, and for the job where this host holds it. The exit code."""
        try:
            record_end(self._directory, self._attempt, self._node, "failed", reason)
        except OSError as error:
            self._say(f"the status file cannot be written: {error.strerror}")
            return EXIT_FAILED
        return 0

    def _fail(self, why: str) -> None:
        """The same on one host, where another rank may have met the fault and said so."""
        was, reason = read_status(self._directory), " ".join(why.split())
        if was is None or (was.word, was.attempt, was.reason) != ("failed", self._attempt, reason):
            self._say(why)
            self._put_down(reason)

    def _crash(self, error: Exception) -> None:
        """Say what has happened; of what happened to others, who and where it was."""
        text, became = str(error), what_became_of_a_peer(error)
        lines: list[str] = []
        self._reporter.fail(error, waited=bool(became))
        if became:
            # A traceback through DDP would only hide the cause.
            what = "lost a peer" if became == GONE else "waited in vain for a peer"
            self._say(f"{what}: {text.splitlines()[0][:200]}")
            explain = self._reporter.explain
            lines = explain() if became == LATE else explain(timeout_s=0.0)
            for line in lines:
                self._say(line)
            reason = f"{what}: {lines[0] if lines else text.splitlines()[0]}"
        else:
            traceback.print_exc()
            self._say(f"{type(error).__name__}: {text}")
            where = innermost_user_line(error.__traceback__)
            reason = f"{type(error).__name__}: {text}" + (f" ({where})" if where else "")
        step = self._reporter.step
        when = f" in step {step + 1}" if step >= 0 else ""
        noted = f"rank {self._rank}{when}: {reason[:MOST_REASON]}"
        only_follows = bool(became) and not lines
        record_crash(self._directory, self._attempt, self._node, noted, only_follows)

    def _say(self, message: str) -> None:
        say(message, self._rank)
