"""The tier `slurm` on the job's first node: one start of the job, from its batch script to its requeue.

Takes the directory, starts `supervise slurm-node` on every node by srun, and waits. Turns Slurm's signals into the stop
file, and puts the job back into the queue. decision.py decides if a start that ends is the job's last. job.py reads
Slurm's answers, directory.py owns the files, and step.py makes the command of srun.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from train.base import nic
from train.base.console import clock, say
from train.base.errors import EXIT_STOPPED, EXIT_UNAVAILABLE, Refusal
from train.base.scheduler import VARIABLE
from train.base.words import first_few
from train.launch import bad_nodes, reserve, secrets
from train.launch.bad_nodes import Fault
from train.launch.decision import goes_on, word_of
from train.launch.events import LATE_S, Due, Event, Events, Exit, Result, Signal
from train.launch.options import LEADING, check_arguments, ports
from train.launch.points import Training, is_done
from train.launch.report import say_report
from train.launch.slurm.decision import (
    AGAIN,
    LOST,
    NODE,
    REQUEUE,
    Begun,
    Failure,
    Finish,
    JobState,
    Requeue,
    StartEnd,
    decide,
    fault_of,
    may_be_lost,
    requeue,
    standstill,
)
from train.launch.slurm.directory import Directory, Starts, checkpoint_directory
from train.launch.slurm.exclusion import Exclusion, Site, exclude
from train.launch.slurm.job import (
    Controller,
    JobRecord,
    State,
    environment,
    state,
    unanswered,
)
from train.launch.slurm.step import (
    StepErrors,
    in_short,
    is_step,
    on_each_node,
    parent_title,
    store_of,
)
from train.launch.supervisor import NotBegunError
from train.launch.words import Command
from train.launch.workers import Workers

# Pauses between questions, in seconds: a controller that is being restarted answers after a minute or two.
_PATIENT = (2, 5, 10, 20, 30, 30, 30)
_RETRY_S = 2.0
# Signals that come before a time limit.
_WARNINGS = ("USR1", "USR2")
_REQUEUES, _REQUEUES_APART_S = 5, 2.0
# sbatch --export=NONE, or SBATCH_EXPORT=NONE, keeps the variables of the submission from the job.
_SECRET_REMEDY = (
    "export {name} before sbatch; where the site submits with --export=NONE, write {name}: "
    "file:~/PATH in the spec"
)
_NO_CLEAN_STOP = "no clean stop within Slurm's KillWait"


class Slurm:
    """One start of a job."""

    leading = LEADING

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the options by which the batch script describes the job."""
        add = parser.add_argument
        add(
            "--ports",
            type=ports,
            default=range(29500, 30500),
            help="FROM-TO: where a free one is looked for",
        )
        add("--requeues", type=int, default=20, help="how often it may go back into the queue")
        add("--restarts", type=int, default=3, help="how often it may do so after a crash")
        add("--keep-bad-nodes", action="store_true", help="leave out no node after its own faults")
        add("--warning", type=int, default=0, help="seconds before its time limit it is warned")
        add(
            "--array",
            action="store_true",
            help="it is one of an array, with a directory of its own",
        )
        add("--python", default="python3", help="the interpreter on the nodes")
        add(
            "--in",
            dest="inside",
            action="append",
            default=[],
            help="an argument of what starts a command in the container",
        )
        add("--srun", action="append", default=[], help="an argument for srun")
        add("--source", default="", help="sourced on the nodes, in the container")

    def __init__(self, options: argparse.Namespace, command: Command, events: Events) -> None:
        self._options, self._events, self._command = options, events, command
        self._only_preflight = options.preflight
        self._number = os.environ.get("SLURM_JOB_ID", "")
        self._requeue_count = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self._controller = Controller(self._number)
        self._stop_signal, self._term_at_hand = "", False
        self._started_at = time.monotonic()
        self._directory: Directory | None = None
        self._is_batch_script, self._directory_taken = False, False
        self._comes_back = True
        self._starts = Starts(self._number)
        self._node_names: list[str] = []
        self._excludes = not (options.keep_bad_nodes or options.preflight)
        self._errors = StepErrors()

    def run(self) -> int:
        """Run the start; return the exit code of the job."""
        try:
            _speak_for_slurm()
            return self._run()
        except Refusal as refusal:
            return self._finish(Finish(refusal.code, str(refusal)))
        except nic.NetworkError as error:
            return self._finish(Finish(EXIT_UNAVAILABLE, str(error)))
        except NotBegunError as asked:
            return self._requeue(Requeue(f"{asked} came before the training began", EXIT_STOPPED))

    def _run(self) -> int:
        if is_step(os.environ, os.getpid(), parent_title()):
            what = f"this is a job step of Slurm job {self._number}, started by srun"
            raise Refusal(EXIT_UNAVAILABLE, f"{what}; submit it: sbatch slurm.sbatch")
        self._is_batch_script = True
        check_arguments(self._command, LEADING)
        self._check_activation()
        secrets.load(self._options.secrets, os.environ, _SECRET_REMEDY)
        nodes = self._node_names = self._nodes()
        self._check_is_head(nodes)
        record = self._run_in_thread(lambda: self._controller.show(_PATIENT))
        bundle = self._find_directory(record)
        if not self._only_preflight:
            self._check_not_done()
            bundle = self._run_in_thread(lambda: self._take_directory(bundle, record))
        os.chdir(bundle)
        say(f"start {self._requeue_count + 1}: {len(nodes)} node(s), {' '.join(nodes)}")
        if self._excludes and (elsewhere := self._run_in_thread(self._avoid_bad_nodes)):
            return self._requeue(elsewhere)
        if record is not None and not self._only_preflight:
            self._say_limits(record)
        command = self._step_command(nodes, bundle)
        self._note_start()
        say(f"starting the nodes\n{in_short(command)}")
        self._start(command, nodes)
        ended = self._wait()
        return self._end(ended, len(nodes)) if isinstance(ended, int) else self._requeue(*ended)

    def _run_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run `work` in a thread while the loop goes on; return its result. Raises NotBegunError and its errors."""
        return self._events.result_of(work, self._on_early_event)

    def _on_early_event(self, event: Event) -> None:
        """Handle an event before the training begins. A signal ends this start then."""
        if isinstance(event, Signal) and not (self._only_preflight and event.name in _WARNINGS):
            self._stop_signal = event.name
            raise NotBegunError(event.name)

    # --- may it start, and where ----------------------------------------------------------------------

    def _check_activation(self) -> None:
        """Raise Refusal if the environment failed in the batch script, or NotBegunError if a signal ended its lines."""
        code, _, words = os.environ.pop("DDPGEN_FAILED", "").partition(" ")
        if not code:
            return
        if int(code) > 128:  # an end by a signal is no fault of the environment
            self._run_in_thread(lambda: time.sleep(LATE_S))
        raise Refusal(EXIT_UNAVAILABLE, f"the environment of the spec failed: {words}")

    def _find_directory(self, record: JobRecord | None) -> Path:
        """Find the checkpoint directory and make it; return the bundle's path. Raises Refusal."""
        if record is None:
            who = f"scontrol on {socket.gethostname()} says nothing of job {self._number}"
            raise Refusal(EXIT_UNAVAILABLE, f"{who}; is the controller of Slurm up?")
        if record.index and not (self._options.array or self._options.point):
            raise Refusal(
                EXIT_UNAVAILABLE,
                "this job is one of an array (--array), and all of them would write to one directory; "
                "write array: below targets.slurm and render again",
            )
        bundle = Path.cwd()
        self._note_job(record)
        self.directory.make()
        if state(record, self._requeue_count) is not State.RUNNING:
            self._events.inject(Signal("TERM"))  # Slurm sent it before this program listened
        return bundle

    def _check_not_done(self) -> None:
        """Raise Refusal with the exit code 0 if the job is a point of a sweep whose training is done."""
        training = Training(self._options.point_id, self._command.arguments)
        if self._options.point and is_done(self.directory.path, training):
            raise Refusal(0, f"{self._options.point} is done")

    def _note_job(self, record: JobRecord) -> None:
        """Note the checkpoint directory, and whether Slurm requeues the job."""
        self._comes_back = record.comes_back
        if self._directory is not None:
            return
        self._index = "" if self._options.point else record.index
        path = checkpoint_directory(Path.cwd(), self._options.checkpoint_dir, self._index)
        self._controller.job = record.name
        cluster = os.environ.get("SLURM_CLUSTER_NAME", "")
        self._directory = Directory(path, record.name, self._number, self._requeue_count, cluster)
        kept = self._directory.starts()
        earlier = (start for start in kept.starts if start.requeue_count < self._requeue_count)
        budgets = self._options.requeues, self._options.restarts
        self._starts = replace(
            kept, requeues=budgets[0], restarts=budgets[1], starts=tuple(earlier)
        )

    def _say_limits(self, record: JobRecord) -> None:
        """Warn about settings of the site, or options of sbatch, that shorten the job's life."""
        warning_s, limit_s = self._options.warning, record.time_limit_s
        if warning_s and limit_s is not None and limit_s <= warning_s:
            say(
                f"warning: this job's time limit is {clock(limit_s)} and it is warned {clock(warning_s)} "
                "before the end, so each start is stopped at once; submit it with a longer --time "
                "that the site allows, or with a shorter warning (--signal=B:USR1@SECONDS)"
            )
        if not record.comes_back and self._options.requeues:
            say(
                "warning: Slurm does not requeue this job (Requeue=0, by the site or --no-requeue): after a "
                f"stop, a time limit or a preemption submit it again: {AGAIN}"
            )

    @property
    def directory(self) -> Directory:
        assert self._directory is not None
        return self._directory

    def _take_directory(self, bundle: Path, record: JobRecord) -> Path:
        """Take the directory; return the snapshot of the bundle. Raises Refusal."""
        directory = self.directory
        directory.take(self._controller)
        self._directory_taken = True
        directory.obey_stop(record.submitted)
        directory.say_running()
        return directory.keep_snapshot(bundle, record.submitted)

    def _nodes(self) -> list[str]:
        """Return the job's nodes. There is no fallback to this host, because the job would then run on one node only.
        Raises Refusal."""
        listed = os.environ.get("SLURM_JOB_NODELIST", "")
        nodes = self._controller.hostnames(listed)
        if not nodes or str(len(nodes)) != os.environ.get("SLURM_JOB_NUM_NODES"):
            raise Refusal(
                EXIT_UNAVAILABLE,
                f"scontrol does not name the nodes of this job ({listed}); it has to work on "
                f"{socket.gethostname()}",
            )
        return nodes

    def _check_is_head(self, nodes: Sequence[str]) -> None:
        """Raise Refusal if a user has started the script by hand on another node than the first. This process reserves
        the port where the workers meet, and they meet on the first node."""
        here = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        if here != nodes[0] and here.partition(".")[0] != nodes[0]:
            raise Refusal(
                EXIT_UNAVAILABLE,
                f"this is {here}, and the first node of job {self._number} is {nodes[0]}; submit it: "
                "sbatch slurm.sbatch",
            )

    # --- the start ------------------------------------------------------------------------------------

    def _start(self, command: Sequence[str], nodes: Sequence[str]) -> None:
        """Start srun. Its error output passes through this process, which learns from it how the step ends."""
        read_end, write_end = os.pipe()
        self._workers = Workers(
            command, environment(self._step_environment(nodes)), stderr=write_end
        )
        os.close(write_end)
        self._events.watch_child(self._workers.pid)
        self._passing_on = threading.Thread(target=self._pass_on, args=(read_end,), daemon=True)
        self._passing_on.start()

    def _pass_on(self, srun: int) -> None:
        """Print srun's error output. This runs in a thread, because srun and its tasks would stop at a full pipe while
        this process waits for Slurm."""
        while data := os.read(srun, 65536):
            self._errors.feed(data)
            self._print(data)
        if self._errors.is_inside_a_line:
            self._print(b"\n")

    @staticmethod
    def _print(data: bytes) -> None:
        with contextlib.suppress(OSError):  # the disk of the log may be full
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()

    def _step_command(self, nodes: Sequence[str], bundle: Path) -> list[str]:
        """Return the command that starts the nodes. Raises Refusal, NetworkError."""
        options, directory = self._options, self.directory
        head, peer = nodes[0], nodes[1] if len(nodes) > 1 else ""
        # Use an address, because a node may resolve the name to another network, or to 127.0.1.1.
        name, address = self._run_in_thread(lambda: self._choose(head, peer))
        self._reserved = reserve.reserve(address, options.ports, int(self._number))
        port = self._reserved.getsockname()[1]
        say(f"meeting at {head}, interface {name}, address {address}, port {port}")
        step_options = (
            *self._command.options[1:],
            f"--store={store_of(options.store, self._index)}",
            "--shared=true",  # the next start may be on other nodes, and needs the files of this one
            f"--checkpoint-dir={directory.path}",
            f"--head={head}",
            f"--address={address}",
            f"--port={port}",
        )
        return on_each_node(
            options,
            replace(self._command, options=step_options),
            len(nodes),
            bundle,
            directory.path,
        )

    def _choose(self, head: str, peer: str) -> tuple[str, str]:
        """Return the interface and the address of the head. Raises NetworkError."""
        towards = self._controller.address_of(peer) if peer else ""
        return nic.choose(
            self._controller.address_of(head), self._options.nic, is_head=True, peer=towards
        )

    def _step_environment(self, nodes: Sequence[str]) -> dict[str, str]:
        variables = {VARIABLE: self.directory.scheduler, "DDPGEN_ROSTER": "\n".join(nodes)}
        return {**os.environ, "DDPGEN_SCRIPT": "sbatch slurm.sbatch", **variables}

    def _note_start(self) -> None:
        """Put this start on file. Raises Refusal if the last two starts have made no newer checkpoint."""
        if self._only_preflight:
            return
        if self._job().stands_still:
            raise Refusal(1, f"{standstill()}; {self._job().again}")
        begun = Begun(self._requeue_count, self._job().newest or 0)
        self._keep_starts(
            starts=(*self._starts.starts, begun), head=self._node_names[0], began=time.time()
        )

    def _keep_starts(self, **changes: Any) -> None:
        self._starts = replace(self._starts, **changes)
        self.directory.keep_starts(self._starts)

    def _keep_end(self, start: int, kind: str) -> None:
        """Note how the newest start on file has ended, if it is the start after `start` requeues and has no end yet."""
        *before, last = self._starts.starts or (None,)
        if last is not None and last.requeue_count == start and not last.ended:
            self._keep_starts(starts=(*before, last._replace(ended=kind)))

    def _job(self) -> JobState:
        budgets = self._options.requeues, self._options.restarts
        of_script = self._command.program[0] == "script"
        newest = self.directory.progress(of_script) if self._directory else 0
        next_ = goes_on(self._command.program, bool(newest))
        return JobState(
            self._requeue_count,
            *budgets,
            newest,
            self._starts.starts,
            self._only_preflight,
            next_,
            self._comes_back,
        )

    # --- while it runs --------------------------------------------------------------------------------

    def _wait(self) -> int | tuple[Requeue, State]:
        """Return srun's exit code; or if the job must be requeued while srun still runs, the requeue and the job's
        state."""
        while True:
            event = self._events.next()
            if isinstance(event, Exit) and event.pid == self._workers.pid:
                self._workers.ended(event.code)
                # A child of srun's own may keep the pipe open, so there may be no end of file.
                self._passing_on.join(LATE_S)
                return event.code
            if isinstance(event, Signal):
                self._on_signal(event.name)
            elif event == Due("stop"):
                self._request_stop()
            elif event == Due("kill"):
                self._events.run_in_thread(self._job_state)
            elif isinstance(event, Result) and isinstance(event.value, float):
                self._events.set_alarm("kill", event.value)  # Slurm's KillWait
            elif isinstance(event, Result) and self._no_clean_stop(event.value):
                return Requeue(_NO_CLEAN_STOP, 1), event.value

    def _on_signal(self, name: str) -> None:
        if self._only_preflight and name in _WARNINGS:
            return  # a preflight is over in a moment, and is not requeued
        if not self._stop_signal:
            say(f"{name} from Slurm: asking for a clean stop")
        self._stop_signal = name
        if name == "TERM" and not self._term_at_hand:
            self._term_at_hand = True
            self._events.run_in_thread(self._controller.kill_wait_s)
        self._request_stop()

    def _request_stop(self) -> None:
        """Make the stop file. The training gets no signal, because srun answers TERM by killing its tasks."""
        try:
            self.directory.request_stop(self._stop_signal)
        except OSError as error:
            say(f"{self._stop_signal}: cannot create {self.directory.stop_file} ({error.strerror})")
            self._events.set_alarm("stop", _RETRY_S)

    def _no_clean_stop(self, job_state: State) -> bool:
        """Return True if the job must be requeued now. Slurm is about to kill everything, also this process, which then
        could not ask for another start."""
        if job_state is State.UNKNOWN:
            self._events.set_alarm("kill", LATE_S)
        if job_state is State.RUNNING:
            self._term_at_hand = False  # no KILL comes
        if job_state is State.OVER:  # write the end now, because no process is left after the KILL
            self.directory.say_ended("stopped", f"{_NO_CLEAN_STOP}; cancelled")
        return job_state in (State.ENDED, State.REQUEUED)

    def _job_state(self) -> State:
        shown = self._controller.show()
        if shown is not None and self._is_batch_script:
            self._note_job(shown)
        return state(shown, self._requeue_count)

    # --- how it ended ---------------------------------------------------------------------------------

    def _end(self, code: int, nodes: int) -> int:
        directory = self.directory
        asked = self._stop_signal
        if code and not asked and not self._only_preflight:
            # Slurm's signal may have ended a task, or srun, before it reaches this process.
            ends = self._job_state() not in (State.RUNNING, State.UNKNOWN)
            asked = self._stop_signal = "TERM" if ends else ""
        end = StartEnd(
            code,
            directory.status(),
            asked,
            self._whose_stop(),
            self._with_words(directory.failure()),
            self._with_words(self._errors.failure),
            self._errors.refusal(code),
        )
        silent = unanswered(nodes) if may_be_lost(end, nodes) else None
        end = replace(end, lost=silent is not None)
        if self._excludes and (fault := fault_of(end, nodes, silent or ())):
            end = replace(end, fault=fault)
            self._note_fault(fault)
        meant = decide(end, self._job())
        if isinstance(meant, Requeue):
            return self._requeue(meant)
        if end.stop:
            directory.remove_stop()
        where = f"; results are in {directory.path}" if meant.line.startswith("done") else ""
        return self._finish(replace(meant, line=meant.line + where))

    def _with_words(self, failure: Failure | None) -> Failure | None:
        """Return `failure` with the node's last line as the reason, if the node has put none on file."""
        if failure is None or failure.words:
            return failure
        nodes = self._controller.hostnames(failure.node) or [failure.node]
        return replace(failure, words=self._errors.last_line_of(nodes))

    def _whose_stop(self) -> str:
        return "" if self._only_preflight else self.directory.whose_stop()

    def _requeue(self, request: Requeue, job_state: State | None = None) -> int:
        if job_state is None:
            job_state = State.RUNNING if self._only_preflight else self._job_state()
        cancelled = self._stop_signal in ("TERM", "signal")
        meant = requeue(request, job_state, cancelled, self._job())
        if isinstance(meant, Finish):
            if job_state is State.REQUEUED:
                self._after_requeue_by_slurm()
            return self._finish(meant)
        say(meant.line)
        nodes = None
        if self._directory is not None:
            if self._whose_stop() == "job":
                self.directory.remove_stop()
            self._keep_end(self._requeue_count, meant.counter)
            nodes = self._announce(self._exclusion())
            if meant.counter == NODE:
                self.directory.say_running()  # the status may say `failed`
        # This comes last, because Slurm then kills everything of the job at once, this process too.
        for _ in range(_REQUEUES):
            refused, kept = self._controller.requeue(nodes)
            job_state = self._job_state() if refused else State.REQUEUED
            if job_state is State.REQUEUED:
                self._note_refusal(kept)
                return 0
            if job_state is State.OVER:
                return self._finish(Finish(EXIT_STOPPED, reason=f"{request.line}; cancelled"))
            time.sleep(_REQUEUES_APART_S)
        reason = f"{request.line}; Slurm does not requeue this job ({refused})"
        return self._finish(Finish(meant.code, f"{reason}; {self._job().again}", reason))

    # --- bad nodes ------------------------------------------------------------------------------------

    def _note_fault(self, fault: Fault) -> None:
        say(f"{fault.node} has ended this start by its own fault: {fault.why}")
        bad_nodes.note(self.directory.bad_nodes, fault)

    def _avoid_bad_nodes(self) -> Requeue | None:
        """Judge an earlier start that was cut off. Return a requeue if this start has a node that must be left out."""
        last = self._starts.starts[-1] if self._starts.starts else None
        if last is not None and last.requeue_count == self._requeue_count - 1 and not last.ended:
            # The batch supervisor of that start, on its first node, has not noted the end.
            head = self._starts.head
            if head and self._controller.lost([head], self._starts.began):
                say(f"{head} has ended the last start by its own fault: {LOST}")
                bad_nodes.note(self.directory.bad_nodes, Fault(head, LOST))
                self._keep_end(last.requeue_count, NODE)
        exclusion = self._exclusion()
        here = [node for node in exclusion.added if node in self._node_names] if exclusion else []
        if not here:
            return None
        request = Requeue(f"{first_few(here)}: a bad node", EXIT_UNAVAILABLE, NODE)
        comes_back = requeue(request, State.RUNNING, False, self._job())
        return request if isinstance(comes_back, Requeue) else None

    def _after_requeue_by_slurm(self) -> None:
        """Note how this start has ended, and leave the bad nodes out of the next one."""
        if not (self._excludes and self._directory_taken):
            return
        lost = self._controller.lost(self._node_names)
        if len(lost) == 1:  # several nodes have lost something that they share
            self._note_fault(Fault(lost[0], LOST))
        self._keep_end(self._requeue_count, NODE if len(lost) == 1 else REQUEUE)
        nodes = self._announce(self._exclusion())
        if nodes is not None:
            self._note_refusal(self._controller.leave_out(nodes))

    def _exclusion(self) -> Exclusion | None:
        """Return the nodes to leave out of the next start; None if the present exclusion stays."""
        starts = self._starts
        if starts.refused or not self._excludes or not self._directory_taken:
            return None
        bad = bad_nodes.bad(bad_nodes.read(self.directory.bad_nodes))
        if not (bad or starts.left_out):
            return None
        record = self._controller.show()
        if record is None:
            return None
        excluded = record.fields["ExcNodeList"] if record.has("ExcNodeList") else ""
        site = Site(
            needed=len(self._node_names),
            excluded=self._controller.hostnames(excluded) if excluded else (),
            added_before=starts.left_out,
            chosen=record.has("ReqNodeList") or record.has("Reservation"),
            kinds=self._controller.kinds(record),
        )
        exclusion = exclude(bad, site)
        for node, why in exclusion.kept.items():
            say(f"{node} is a bad node, and is not left out: {why}")
        return exclusion if exclusion.changes(site) else None

    def _announce(self, exclusion: Exclusion | None) -> Sequence[str] | None:
        """Print which nodes are left out from now on. Return all nodes that Slurm must leave out; None for no change.

        The nodes go on file before the requeue, because the requeue may kill this process.
        """
        if exclusion is None:
            return None
        before, after = self._starts.left_out, exclusion.added
        self._keep_starts(left_out=tuple(after))
        for node, why in after.items():
            if node not in before:
                say(f"{node} is left out from now on: {why}; see {self.directory.bad_nodes}")
        if given_back := [node for node in before if node not in after]:
            say(f"{first_few(given_back)}: given back, as {self.directory.bad_nodes} says")
        return exclusion.nodes

    def _note_refusal(self, refused: str) -> None:
        """If the site does not let the job leave nodes out, say so once, and go on."""
        if refused:
            say(
                f"Slurm does not leave nodes out for this job ({refused}); it goes on with all nodes"
            )
            self._keep_starts(refused=True)

    def _finish(self, decision: Finish) -> int:
        """End the job: print the line, write the end into the status, and free the directory if Slurm agrees."""
        code = decision.code
        if self._directory_taken and code == 0:
            say_report(self.directory.path, time.monotonic() - self._started_at)
        if decision.line:
            say(decision.line)
        if self._only_preflight or not self._is_batch_script:
            return code
        job_state = self._job_state()
        # The job may have the directory by an earlier start, although this start has not taken it.
        if self._directory is None or not self._directory.is_ours:
            return code
        if code == EXIT_STOPPED and job_state is State.RUNNING:
            self._controller.send_no_mail()  # a stop is a failure to Slurm, but not to the user
        if code and job_state is not State.REQUEUED:
            self.directory.say_ended(word_of(code), decision.reason or decision.line)
        if job_state not in (State.REQUEUED, State.UNKNOWN):
            with contextlib.suppress(OSError):
                self.directory.release()
        return code


def _speak_for_slurm() -> None:
    """Put the time and the node before each line of this process, as before the nodes' lines. Raises Refusal."""
    number, requeue_count = (
        os.environ.get("SLURM_JOB_ID"),
        os.environ.get("SLURM_RESTART_COUNT") or "0",
    )
    if not number:
        cause = "SLURM_JOB_ID was set as this script began, and is not any more"
        remedy = "take out the line of python.activate or environment: that unsets SLURM_..."
        raise Refusal(EXIT_UNAVAILABLE, f"{cause}; {remedy}")
    os.environ[VARIABLE] = f"slurm {number} {requeue_count}"
