"""`python -m train script [OPTION …] FILE [ARG …]`: a user's own training loop under the same launch artefacts.

Owns the contract's other side: the script is run as it would be by itself, hooks tell what it does
(train.integrations), and how it ends becomes the status.
"""

from __future__ import annotations

import argparse
import glob
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from train import processes, workdir
from train.config import seconds
from train.console import say
from train.errors import EXIT_FAILED, EXIT_STOPPED, exit_at_once, what_became_of_a_peer
from train.health.stacks import innermost_user_line
from train.integrations import progress
from train.integrations.frameworks import hooks
from train.integrations.imports import after_import
from train.integrations.progress import BeginsAnewError, Progress
from train.integrations.session import Session, StopTraining
from train.integrations.stopping import StopAtStep
from train.lock import HeldByLiveJobError, is_replaced, read_lock, take
from train.metrics import MetricsLog
from train.node import MOST_REASON, Node, is_over, record_crash
from train.replaced import Replacement
from train.scheduler import VARIABLE, Scheduled
from train.status import Status, read_status, write_status
from train.stop import is_for, reason_in

EXIT_USAGE = 2  # argparse's, click's and many others'
# How often a process looks whether it is to stop.
_LOOK_S = 0.5
_GPU = ("CUDA", "NVIDIA driver", "GPU")


def main(argv: Sequence[str]) -> int:
    """Run FILE with the arguments after it.

    Its exit code is taken as: 0 done; 75 stopped; 2 wrong arguments, which no restart can cure;
    anything else failed, and worth one.
    """
    processes.die_with_parent(signal.SIGKILL)
    parser = argparse.ArgumentParser(prog="python -m train script", allow_abbrev=False)
    add = parser.add_argument
    add("--workdir", type=Path, help="where it runs; left out: work in the checkpoint directory")
    add("--resume-exists", action="append", default=[], metavar="GLOB")
    add("--resume-arg", action="append", default=[], help="added when there is such a file")
    add("--from-scratch", action="store_true", help="it may begin anew over what it has saved")
    add("--stop-signal", default="", help="what tells it to stop")
    add("--stop-grace", type=seconds, default=120.0, help="after this it gets a TERM")
    add("--term-grace", type=seconds, default=10.0, help="and after this it is killed")
    add("command", nargs=argparse.REMAINDER, metavar="FILE.py|module:NAME [ARG ...]")
    options = parser.parse_args(argv)
    if not options.command:
        parser.error("which script?")
    return Runner(options, os.environ).run()


class Runner:
    """One process of a script: what it was told, and how its end is told."""

    def __init__(self, options: argparse.Namespace, env: Mapping[str, str]) -> None:
        """`env`: the launcher's variables, and what the supervisor says of the launch."""
        self._options = options
        self._module = options.command[0].partition("module:")[2]
        # A module has no path of its own: it is looked for beside the files of the job.
        self._path = Path("code", "-m") if self._module else Path(options.command[0])
        self._path = self._path.absolute()
        self._name = self._module or self._path.name
        self._arguments = list(options.command[1:])
        self._attempt = env.get("DDPGEN_ATTEMPT", "")
        self._rank, self._size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self._is_local_0 = env.get("LOCAL_RANK", "0") == "0"
        self._launcher = int(env.get("DDPGEN_LAUNCHER_PID", os.getpid()))
        self._job = env.get("DDPGEN_JOB", "?")
        self._scheduler = env.get(VARIABLE, "")
        # Where the whole job's status is, and where this host's part of it.
        self._whole = Path(env.get("DDPGEN_CHECKPOINT_DIR", ".")).absolute()
        self._directory = Path(env.get("DDPGEN_NODE_DIR") or self._whole).absolute()
        self._stop_file = Path(env.get("DDPGEN_STOP_FILE") or self._whole / "stop").absolute()
        self._node = Node.from_environment(env)
        self._store = env.get("DDPGEN_CHECKPOINT_STORE", "")
        self._speaks = env.get("LOCAL_RANK" if self._node else "RANK", "0") == "0"
        self._ended = threading.Event()
        self._log: MetricsLog | None = None
        self._signalled = False

    def run(self) -> int:
        """The process' exit code."""
        if self._attempt and is_over(self._directory, self._attempt):
            return 0
        replaced = Replacement(self._whole, os.environ, self._node)
        replaced.end_if_come()
        if self._node is not None and self._is_local_0:
            try:
                self._take(self._node)
            except HeldByLiveJobError as error:
                return self._fail(str(error))
            # From here on a stop is the script's own business.
            self._node.remember(self._node.launch() or self._attempt)
        replaced.watch()
        if self._is_asked() and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return self._conclude(EXIT_STOPPED, 0)  # a crash after a stop was asked for
        if not self._module and not self._path.is_file():
            return self._fail(f"{self._path} is not there; is it listed under 'code'?")
        try:
            self._move()
        except OSError as error:
            return self._fail(
                f"{error.filename}: {error.strerror}; the script's workdir cannot be made"
            )
        return self._run()

    # --- before the script ------------------------------------------------------------------------

    def _take(self, node: Node) -> None:
        """Under a scheduler the script's rank 0 takes the whole directory: a later start of the job then
        shows, to this start and to whoever else comes. Raises HeldByLiveJobError, OSError."""
        if Scheduled.parse(self._scheduler) is None or self._rank:
            return
        launch = node.launch() or node.attempt
        take(self._whole, self._job, self._launcher, launch, self._scheduler)

    def _move(self) -> None:
        """Go to the working directory, where the script is found as well if it is one of the job's files."""
        directory = (self._options.workdir or self._whole / "work").expanduser().absolute()
        directory.mkdir(parents=True, exist_ok=True)
        code = Path("code").absolute()
        if code.is_dir():
            workdir.make(code, directory)
        if self._path.is_relative_to(code):
            self._path = directory / self._path.relative_to(code)
            directory = self._path.parent
        os.chdir(directory)

    def _session(self) -> Session:
        # What the script keeps outlives the machine where there is a bucket, and with it the record.
        records = Path(self._store or self._whole, "script")
        of_rank_0 = records / "saves-0.jsonl"
        for place in progress.torn(of_rank_0) if self._rank == 0 else ():
            _set_aside(place)
        record = records / f"saves-{self._rank}.jsonl"
        mine = Progress(record, self._options.from_scratch, in_bucket=bool(self._store))
        mine.remove_drafts()
        stop = StopAtStep(
            mine, self._is_asked, self._options.stop_grace / 2, self._rank, self._size
        )
        whole = {} if self._options.from_scratch else progress.whole(of_rank_0)
        return Session(mine, stop, whole, self._row if self._rank == 0 else None, self._store)

    def _resume_arguments(self) -> list[str]:
        """What the spec adds where there is something to go on from."""
        found = any(glob.glob(os.path.expanduser(each)) for each in self._options.resume_exists)
        return list(self._options.resume_arg) if found else []

    # --- the script -------------------------------------------------------------------------------

    def _run(self) -> int:
        session = self._session()
        arguments = [*self._arguments, *self._resume_arguments()]
        threading.Thread(target=self._watch, args=(session,), name="stop", daemon=True).start()
        try:
            code = self._run_script(session, arguments)
        except StopTraining:
            code = EXIT_STOPPED
        except KeyboardInterrupt:
            if not self._signalled:
                raise
            code = EXIT_STOPPED
        except BeginsAnewError as error:
            noted = read_status(self._directory)
            crash = noted.reason if noted is not None else ""
            after = f"; it was started again after this crash: {crash}" if crash else ""
            return self._fail(f"{error}{after}")
        except Exception as error:  # noqa: BLE001 - whatever the script raises
            return self._crash(session, error)
        self._ended.set()
        if session.stopped or (code == 0 and self._signalled):
            code = EXIT_STOPPED
        return self._conclude(code, session.progress.step)

    def _run_script(self, session: Session, arguments: list[str]) -> int:
        """The script's exit code. An exception in it passes through: torchrun restarts the workers."""
        after_import(hooks(session))
        # The script sees its own directory first, as under `python FILE`, and not this package: its
        # own module may well be called `train`.
        for name in [n for n in sys.modules if n == "train" or n.startswith("train.")]:
            del sys.modules[name]
        sys.path[0] = str(self._path.parent)
        sys.argv = [str(self._path), *arguments]
        if self._store:
            # What the script keeps is to outlive the machine; the launcher's files stay where they are.
            os.makedirs(self._store, exist_ok=True)
            os.environ["DDPGEN_CHECKPOINT_DIR"] = self._store
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

    def _row(self, row: dict[str, Any]) -> None:
        if self._log is None:
            self._log = MetricsLog(self._whole / "metrics.jsonl")
        attempt = (self._node.launch() if self._node else "") or self._attempt
        self._log.write({**row, "attempt": attempt, "time": round(time.time(), 3)})

    # --- stopping ---------------------------------------------------------------------------------

    def _is_asked(self) -> bool:
        try:
            return self._stop_file.exists() and is_for(reason_in(self._stop_file), self._scheduler)
        except OSError:
            return False  # a file server that is away is no request to stop

    def _watch(self, session: Session) -> None:
        """End this process when the script does not stop in time."""
        while not session.stop.look():
            if self._ended.wait(_LOOK_S):
                return
        told, until = not self._options.stop_signal, time.monotonic() + self._options.stop_grace
        while time.monotonic() < until:
            told = told or self._send(self._options.stop_signal)
            if self._ended.wait(min(_LOOK_S, self._options.stop_grace)):
                return
        if self._send("TERM") and self._ended.wait(self._options.term_grace):
            return
        if self._speaks:
            say(
                f"{self._name} did not stop within {self._options.stop_grace:g} s and is killed; it "
                "goes on from what it has saved"
            )
        exit_at_once(self._conclude(EXIT_STOPPED, session.progress.step))

    def _send(self, name: str) -> bool:
        """Send the script a signal, unless it has no handler for it (yet) and would die of it."""
        signum = getattr(signal, f"SIG{name}")
        if signal.getsignal(signum) is signal.SIG_DFL:
            return False
        self._signalled = True
        os.kill(os.getpid(), signum)
        return True

    # --- the end ----------------------------------------------------------------------------------

    def _conclude(self, code: int, step: int) -> int:
        """What the script's exit code means. Returns this worker's own."""
        if code == 0 and self._speaks:
            self._write("done", step)
        elif code == EXIT_STOPPED and self._speaks:
            # The script's ranks agree among themselves; the words lie where somebody has asked this host.
            asked = self._stop_file
            self._write("stopped", step, reason_in(asked) if asked.exists() else "")
        elif code == EXIT_USAGE:
            return self._fail(
                f"{self._name} refused its arguments (exit code {code}); correct train.args"
            )
        elif code not in (0, EXIT_STOPPED):
            self._note_crash(f"{self._name} ended with exit code {code}")
        # Not 75: torchrun would start the workers again.
        return 0 if code == EXIT_STOPPED else code

    def _crash(self, session: Session, error: Exception) -> int:
        """An exception has left the script: a restart may cure it, or not."""
        trace = _from_script_on(error.__traceback__)
        traceback.print_exception(type(error), error, trace)
        where = innermost_user_line(trace)
        what = f"{type(error).__name__}: {error}"[:MOST_REASON] + (f" ({where})" if where else "")
        if remedy := _remedy(error, session.progress.taken):
            return self._fail(f"{what}; {remedy}")
        noted = read_status(self._directory)
        if not session.progress.taken and noted is not None and noted.reason.endswith(what):
            return self._fail(f"crashed twice in the same way before its first step: {what}")
        self._note_crash(what, lost=bool(what_became_of_a_peer(error)))
        return EXIT_FAILED

    def _note_crash(self, why: str, lost: bool = False) -> None:
        """A restart may cure it; should there be none, the status knows why. `lost`: it only follows from the end of
        another rank."""
        what, was = f"rank {self._rank}: {why}", read_status(self._directory)
        if was is not None and (was.word, was.attempt) == ("done", self._attempt):
            self._write("running", was.step)  # rank 0 has come to its end, this one has not
        record_crash(self._whole, self._attempt, self._node, what, lost)

    def _fail(self, why: str) -> int:
        """Any rank may be the only one to meet a fault. The restarts of all see that it is for good."""
        if (read_status(self._directory) or Status("running", "", 0)).reason != why:
            say(why)
        self._write("failed", None, why)
        return EXIT_FAILED

    def _write(self, word: str, step: int | None, reason: str = "") -> None:
        holder = read_lock(self._directory)
        if not self._attempt or holder is None or holder.attempt != self._attempt:
            return
        if not step:
            step = (read_status(self._directory) or Status(word, self._attempt, 0)).step
        write_status(self._directory, Status(word, self._attempt, step, reason))
        if self._node is not None and self._rank == 0:
            # The whole job's status, beside this host's.
            launch = self._node.launch() or self._attempt
            if not is_replaced(read_lock(self._whole), self._scheduler):
                write_status(self._whole, Status(word, launch, step, reason))


def _remedy(error: Exception, steps: int) -> str:
    """What to do about an error that no restart can cure; "" when one may."""
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
    """The traceback without the frames that started the script; None where it has not begun."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    started = False
    while trace is not None and (not started or trace.tb_frame.f_code.co_filename in ours):
        started = started or trace.tb_frame.f_code.co_filename in ours[1:]
        trace = trace.tb_next
    return trace


def _set_aside(place: str) -> None:
    """Move a directory whose saving was cut off to where nothing looks for it: beside the folder that it is in."""
    folder, name = os.path.split(place)
    aside, count = os.path.join(os.path.dirname(folder), "torn", name), 1
    while os.path.lexists(aside):
        count += 1
        aside = os.path.join(os.path.dirname(folder), "torn", f"{name}.{count}")
    try:
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        os.rename(place, aside)
    except OSError as error:  # a bucket cannot rename a directory
        say(f"the saving of {place} was cut off; it cannot be moved away ({error.strerror})")
    else:
        say(f"the saving of {place} was cut off; it is now {aside}")
