"""`python -m train script [OPTION …] FILE [ARG …]`: a user's own training loop under the same launch artefacts.

A Python script runs in this process as it would by itself, and hooks observe it (train.script.hooks). Any other
program is a child process (train.script.program).
"""

from __future__ import annotations

import argparse
import functools
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from train.base import processes, typed
from train.base.console import say
from train.base.errors import EXIT_FAILED, EXIT_STOPPED, LATE, LOSS, peer_failure
from train.health.reporter import Reporter
from train.health.stacks import innermost_user_line
from train.run.config import seconds
from train.run.metrics import MetricsLog
from train.run.node import MOST_REASON
from train.run.status import one_line, read_status
from train.script.hooks import progress, renames
from train.script.hooks.frameworks import hooks
from train.script.hooks.imports import after_import
from train.script.hooks.progress import BeginsAnewError, Progress
from train.script.hooks.session import Session, StopTraining
from train.script.hooks.starts import Starts, UnlikeStartsError
from train.script.hooks.stopping import StopAtStep, rendezvous_store
from train.script.process import Runner
from train.script.program import Program

# Words in torch's errors when it finds no GPU. `_cuda_` is in the names of functions that a build without CUDA lacks.
_GPU = ("CUDA", "NVIDIA driver", "GPU", "NCCL", "_cuda_")


def main(argv: Sequence[str]) -> int:
    """Run FILE with the arguments after it, and return this worker's exit code.

    FILE's exit code means: 0 done, 75 stopped, 2 wrong arguments. No restart cures wrong arguments. Any other code is a
    crash, which a restart may cure.
    """
    processes.die_with_parent(signal.SIGKILL)
    parser = argparse.ArgumentParser(prog="python -m train script", allow_abbrev=False)
    add = parser.add_argument
    add("--workdir", type=Path, help="where it runs; left out: work in the checkpoint directory")
    add("--resume-exists", action="append", default=[], metavar="GLOB")
    add("--resume-arg", action="append", default=[], help="added when there is such a file")
    add(
        "--guard",
        action="append",
        default=[],
        metavar="GLOB/FILE",
        help="directories that are torn without it",
    )
    add(
        "--from-scratch",
        action="store_true",
        help="it may start over and overwrite what it has saved",
    )
    add("--stop-signal", default="", help="what tells it to stop")
    add("--stop-grace", type=seconds, default=120.0, help="after this it gets a TERM")
    add("--term-grace", type=seconds, default=10.0, help="and after this it is killed")
    add("--no-python", action="store_true", help="what follows is any program")
    add("command", nargs=argparse.REMAINDER, metavar="FILE.py|module:NAME|PROGRAM [ARG ...]")
    options = parser.parse_args(argv)
    if not options.command:
        parser.error("which script?")
    kind = Program if options.no_python else Script
    return kind(options, os.environ).run()


class Script(Runner):
    """A Python script that runs in this process, with hooks in the libraries that it imports."""

    def __init__(self, options: argparse.Namespace, env: Mapping[str, str]) -> None:
        """`env`: the launcher's variables, and the supervisor's for this launch."""
        self._module = options.command[0].partition("module:")[2]
        # A module has no path, so give one in `code`: Python then finds the module among the files of the job.
        path = Path("code", "-m") if self._module else Path(options.command[0])
        self._path = path.expanduser().absolute()
        name = self._module or self._path.name
        super().__init__(name, options, options.stop_signal, env)
        self._log: MetricsLog | None = None
        self._restart = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        host = self._node.name if self._node else ""
        self._reporter = Reporter(self._job_directory, env, host)
        # Keep a page of C++ frames from hiding our one-line reason. torch reads this when it is imported.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def _run(self) -> int:
        if not self._module and not self._path.is_file():
            return self._fail(f"{self._path} is not there; is it listed under 'code'?")
        if self._path.is_relative_to(self._code):
            self._path = Path.cwd() / self._path.relative_to(self._code)
            os.chdir(self._path.parent)
        arguments = self._all_arguments()
        session = self._session()
        self._reporter.start()
        watch = (session.stop.check_request, lambda: session.progress.step)
        threading.Thread(target=self._watch, args=watch, name="stop", daemon=True).start()
        try:
            code = self._run_script(session, arguments)
        except StopTraining:
            code = EXIT_STOPPED
        except KeyboardInterrupt:
            if not self._signalled:
                raise
            code = EXIT_STOPPED
        except (BeginsAnewError, UnlikeStartsError) as error:
            noted = read_status(self._directory)
            crash = noted.reason if noted is not None else ""
            after = f"; it was started again after this crash: {crash}" if crash else ""
            self._reporter.fail(error, peer_failed=False)
            return self._fail(f"{error}{after}")
        except Exception as error:  # noqa: BLE001 - whatever the script raises
            return self._crash(session, error)
        self._ended.set()
        if session.stopped or (code == 0 and self._signalled):
            code = EXIT_STOPPED
        if code in (0, EXIT_STOPPED):
            self._reporter.stop()
        else:
            self._reporter.fail(SystemExit(code), peer_failed=False)
        return self._conclude(code, session.progress.step)

    def _run_script(self, session: Session, arguments: list[str]) -> int:
        """Run the script and return its exit code. Raises the script's exceptions."""
        after_import(hooks(session))
        renames.follow(session.progress)
        # Put the script's own directory first on the path, as `python FILE` does. Hide this package, because the
        # script may have a module `train` of its own.
        for name in [n for n in list(sys.modules) if n == "train" or n.startswith("train.")]:
            typed.HIDDEN[name] = sys.modules.pop(name)
        sys.path[0] = str(self._path.parent)
        sys.argv = [str(self._path), *arguments]
        try:
            if self._module:
                runpy.run_module(self._module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(self._path), run_name="__main__")
        except StopTraining:
            raise
        except SystemExit as exit_:
            if exit_.code is None or isinstance(exit_.code, int):
                return exit_.code or 0
            print(exit_.code, file=sys.stderr)
            return EXIT_FAILED
        return 0

    def _saves(self, rank: int) -> Path:
        """Return the path of the record of a rank's saves."""
        # If there is a bucket, the script's saves go there and outlive the machine; keep their record with them.
        return Path(self._store or self._job_directory, "script", f"saves-{rank}.jsonl")

    def _interrupted_saves(
        self, on_skipped: Callable[[str], None] = lambda _: None
    ) -> Iterator[str]:
        yield from super()._interrupted_saves(on_skipped)
        yield from progress.interrupted_saves(self._saves(0))

    def _session(self) -> Session:
        own_progress = Progress(
            self._saves(self._rank),
            self._options.from_scratch,
            in_bucket=bool(self._store),
            head=self._saves(0),
        )
        own_progress.remove_drafts()
        stop = StopAtStep(
            own_progress, self._stop_requested, self._options.stop_grace / 2, self._rank, self._size
        )
        whole = {} if self._options.from_scratch else progress.whole_checkpoints(self._saves(0))
        log = self._write_row if self._rank == 0 else None
        on_first_step = functools.partial(self._begin_to_beat, own_progress)
        return Session(
            own_progress, stop, whole, log, self._store, on_first_step, self._size, self._starts()
        )

    def _starts(self) -> Starts | None:
        if self._node is None:
            return None
        rank, ranks = self._rank, self._size
        return Starts(self._node.name, rank, ranks, self._job_directory, resumes=self._resumes)

    def _begin_to_beat(self, steps: Progress) -> None:
        """Start the heartbeats after the first step, when the processes have met and `steps` counts."""
        # On several hosts the heartbeats go through a second connection to the store, which torch 2.4 cannot make.
        clone = getattr(rendezvous_store(), "clone", None) if self._node else None
        launch = (self._node.launch() if self._node else "") or self._attempt
        self._reporter.meet(f"{launch}-{self._restart}", clone() if clone else None)
        self._reporter.follow(steps)

    def _write_row(self, row: dict[str, Any]) -> None:
        if self._log is None:
            self._log = MetricsLog(self._job_directory / "metrics.jsonl")
        attempt = (self._node.launch() if self._node else "") or self._attempt
        self._log.write({**row, "attempt": attempt, "time": round(time.time(), 3)})

    def _send(self, name: str) -> bool:
        """Send the script a signal, and return True. If the script has no handler (yet), send nothing and return False,
        because the signal would kill it."""
        signum = getattr(signal, f"SIG{name}")
        if signal.getsignal(signum) is signal.SIG_DFL:
            return False
        self._signalled = True
        os.kill(os.getpid(), signum)
        return True

    def _crash(self, session: Session, error: Exception) -> int:
        """Report an exception that has left the script, as a failure or as a crash. Returns the exit code."""
        trace = _from_script_on(error.__traceback__)
        _print(error, trace)
        where = innermost_user_line(trace)
        # Format the error exactly as the status returns it, because the next start compares the two.
        what = one_line(f"{type(error).__name__}: {error}", MOST_REASON)
        what += f" ({where})" if where else ""
        became = peer_failure(error)
        self._reporter.fail(error, peer_failed=bool(became))
        if remedy := _remedy(error, session.progress.steps_taken):
            return self._fail(f"{what}; {remedy}")
        noted = read_status(self._directory)
        again = noted is not None and noted.reason.endswith(what)
        if again and not became and not session.progress.steps_taken:
            return self._fail(f"crashed twice in the same way before its first step: {what}")
        lines = self._reporter.explain(wait=became == LATE) if became else []
        for line in lines:
            say(line, self._rank)
        loss = f"{LOSS[became]}: " if became else ""
        self._note_crash(
            f"{loss}{lines[0] if lines else what}", only_follows=bool(became) and not lines
        )
        return EXIT_FAILED


def _remedy(error: Exception, steps: int) -> str:
    """Return the remedy for an error that no restart can cure; "" if a restart may cure it."""
    if isinstance(error, SyntaxError):
        return "correct the script"
    if isinstance(error, ImportError) and not steps:
        return "install it where the job's Python finds it, or list the file under 'code'"
    torch = sys.modules.get("torch")
    lacks_gpu = torch is not None and not torch.cuda.is_available()
    if lacks_gpu and not steps and any(word in str(error) for word in _GPU):
        return "this host offers the job no GPU: set gpus_per_node, or have the script use the CPU"
    return ""


def _from_script_on(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames that started the script, or None if the script has not begun."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    started = False
    while trace is not None and (not started or trace.tb_frame.f_code.co_filename in ours):
        started = started or trace.tb_frame.f_code.co_filename in ours[1:]
        trace = trace.tb_next
    return trace


def _print(error: Exception, trace: TracebackType | None) -> None:
    """Print the error as Python would, without the hooks' frames."""
    said = traceback.TracebackException(type(error), error, trace)
    hooks_are = os.path.dirname(progress.__file__) + os.sep
    said.stack[:] = [frame for frame in said.stack if not frame.filename.startswith(hooks_are)]
    print("".join(said.format()), end="", file=sys.stderr)
