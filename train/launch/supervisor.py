"""One host's part of a launch, from its options to its exit code. It is the same on all tiers.

check arguments → preflight → take the directory → network → start the workers → wait → decide. Work that waits for
files, hosts or names runs in a thread, so that the event loop answers a signal at once.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from train.base import nic
from train.base.console import say
from train.base.errors import EXIT_UNAVAILABLE, Refusal
from train.base.processes import end_group
from train.base.scheduler import VARIABLE, Scheduled
from train.launch import decision, directory, install, points, secrets, words
from train.launch.decision import End, ExitReport, Request
from train.launch.events import LATE_S, Event, Events, Exit, Result, Signal
from train.launch.options import check_arguments
from train.launch.report import say_report
from train.launch.tier import Tier
from train.launch.words import Command
from train.launch.workers import Pin, Workers, for_workers, pins
from train.preflight import command as preflight
from train.preflight.settings import Settings
from train.run import portable, saves
from train.run.layout import node_directory, steps_on_disk
from train.run.lock import keep_alive
from train.run.node import Node, settle_end
from train.run.status import Status, read_status
from train.run.stop import create_stop_file

# A spec calls these two tiers `hosts` and `slurm`.
_TIER_OF = {"host": "hosts", "slurm-node": "slurm"}
# After a final failure torchrun normally ends within a second. If it still runs and has had no child for _ALONE_S
# seconds, it only waits for other hosts, which do not know of the failure.
_ALONE_S = 5.0
_LOOK_S = 1.0


class NotBegunError(Exception):
    """A signal came before the workers were started."""


class Supervisor:
    """One start on one host."""

    def __init__(
        self, tier: Tier, options: argparse.Namespace, command: Command, events: Events
    ) -> None:
        self._tier, self._options, self._events = tier, options, events
        self._command = command
        self._bundle = Path.cwd()
        self._stops, self._killed = 0, False
        self._attempt = ""
        self._workers: Workers | None = None
        self._started_at = time.monotonic()

    def run(self) -> int:
        """Run the launch; return the exit code."""
        try:
            outcome = self._run()
        except Refusal as refusal:
            outcome = ExitReport(refusal.code, tuple(filter(None, [str(refusal)])))
        except NotBegunError as stop:
            outcome = self._tier.not_begun(str(stop))
        if outcome.code == 0 and self._workers is not None and self._tier.decides:
            # Print the report's path first. Programs read the job's result from the last line.
            say_report(self.checkpoint_dir, time.monotonic() - self._started_at)
        for line in outcome.lines:
            say(line)
        if self._attempt and outcome.code and not outcome.comes_back:
            self._settle(outcome)
        self._tier.report(outcome)
        return outcome.code

    def _run(self) -> ExitReport:
        self._tier.listen(self._events)
        if not self._options.install:
            secrets.load(
                self._options.secrets,
                os.environ,
                self._tier.secret_remedy,
                self._tier.has_secrets or bool(self._options.driven),
            )
        check_arguments(
            self._command, self._tier.leading
        )  # after secrets.load(): from then on, messages hide secrets
        if self._options.lock:
            self._enter(Path(self._options.lock))
        if self._options.install:
            return ExitReport(0)
        if portable.is_asked((*self._command.program, *self._command.arguments)):
            portable.pin(
                os.environ
            )  # so that the preflight compares the instruction set that the workers will use
        self.member = member = self._run_in_thread(self._tier.membership)
        self.checkpoint_dir = directory.of(self._options.checkpoint_dir, member.task_directory)
        if self._options.setup:
            self._set_up(self._options.setup)
        if member.is_head and len(member.roster) > 1:
            say(
                f"{member.host_name} is the head, at {member.meets_at}; expecting {member.other_names}"
            )
        check_only = self._options.preflight
        if check_only or not self._options.no_preflight:
            has_driver = bool(self._options.driven)
            why = self._run_in_thread(lambda: preflight.run(self._settings(), has_driver))
            if why or check_only:
                return ExitReport(EXIT_UNAVAILABLE if why else 0, reason=why)
        bundle = _hold(self._bundle)
        self._attempt = self._run_in_thread(self._acquire)
        interface, address, head = self._run_in_thread(self._network)
        self._run_in_thread(lambda: self._tier.prepare(member, address))
        self._start(interface, address, head, [bundle] if bundle is not None else [])
        return self._wait()

    def _run_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run `work` in a thread while the loop goes on; return its result. Raises NotBegunError, and what `work` raises."""
        return self._events.result_of(work, self._on_early_event)

    def _on_early_event(self, event: Event) -> None:
        """Handle an event before the training begins: a signal ends this start."""
        if isinstance(event, Signal):
            say(f"{event.name}: stopping before the training begins")
            raise NotBegunError(event.name)
        self._tier.on_event(event)

    def _enter(self, lock: Path) -> None:
        """Continue in the Python that has the packages of the version lock. Raises Refusal, NotBegunError."""
        environment = self._run_in_thread(lambda: install.of_lock(lock))
        self._tier.hand_over()
        install.enter(environment)

    def _set_up(self, lines: str) -> None:
        """Run the spec's setup. Raises Refusal, NotBegunError."""
        # The lines run in their own session, so that a stop also ends the processes that they have started.
        words = ("bash", "-euo", "pipefail", lines)
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = self._run_in_thread(child.wait)
            # Perhaps setup was stopped. Then this process gets a signal as well, at most LATE_S later. Wait for it, or the
            # stop would count as a failure of setup.
            if code < 0 or code > 128:
                self._run_in_thread(lambda: time.sleep(LATE_S))
        except NotBegunError:
            end_group(child.pid)
            raise
        if code:
            raise Refusal(EXIT_UNAVAILABLE, "setup of the spec failed; its output is above")

    # --- before the workers -----------------------------------------------------------------------

    def _settings(self) -> Settings:
        member, options = self.member, self._options
        return Settings(
            job=options.job,
            host_name=member.host_name,
            checkpoint_dir=self.checkpoint_dir,
            node_rank=member.node_rank,
            nodes=member.nodes,
            min_nodes=member.min_nodes,
            world_size=member.world_size,
            procs=member.procs,
            head=member.head_address,
            port=member.port,
            is_head=member.is_head,
            addresses=dict(member.roster),
            nic=options.nic,
            backend=options.backend,
            gpus=options.gpus,
            same_bits=not options.bits_may_differ,
            shared=None if options.shared is None else options.shared == "true",
            timeout_s=options.timeout,
            ignore=frozenset(options.ignore),
            scheduler=self._tier.scheduler,
            script=self._tier.restart_command,
            saves=self._saves(),
            check_only=self._options.preflight,
        )

    def _saves(self) -> tuple[str, ...]:
        """Return the patterns of the files from which a user's script resumes."""
        if self._command.program[0] != "script":
            return ()
        program = words.filled_program(self._command, self._placeholder_values("", ""))
        return saves.patterns(list(program), self._bundle, self.checkpoint_dir)

    @property
    def held_directory(self) -> Path:
        """The directory that this start owns: this host's node directory if it meets other hosts (`member.head` is set),
        else the checkpoint directory."""
        whole = self.checkpoint_dir
        return node_directory(whole, self.member.host_name) if self.member.head else whole

    def _acquire(self) -> str:
        if importlib.util.find_spec("torch") is None:
            raise Refusal(
                EXIT_UNAVAILABLE,
                f"torch is not installed for {sys.executable}; install torch for it, activate a virtual environment "
                "that has torch, or set 'python' in the spec to an interpreter that has torch",
            )
        attempt = directory.acquire(
            self.checkpoint_dir, self.held_directory, self._options.job, self._tier.scheduler
        )
        if self._options.point and self.member.is_head:
            training = points.Training(self._options.point_id, self._command.arguments)
            points.mark(self.checkpoint_dir, training)
        return attempt

    def _network(self) -> tuple[str, str, str]:
        """Return the interface and address of this host, and the head's IPv4 address as this host resolves it.

        torch gets the address that the preflight has checked. Given a name, torch would try IPv6 first. Raises Refusal.
        """
        member, interface = self.member, self._options.nic
        if not member.head:  # loopback works where the hostname does not resolve
            return interface or ("lo0" if sys.platform == "darwin" else "lo"), "127.0.0.1", ""
        try:
            name, address = nic.choose(member.head_address, interface, member.is_head, member.peer)
            if member.is_head:
                nic.check_port_free(address, member.port)
            head = address if member.is_head else nic.resolve(member.head_address)
        except nic.NetworkError as error:
            raise Refusal(EXIT_UNAVAILABLE, str(error)) from None
        say(f"{member.host_name}: interface {name}, address {address}")
        return name, address, head

    # --- the workers ------------------------------------------------------------------------------

    def _start(self, interface: str, address: str, head: str, inherited_fds: Sequence[int]) -> None:
        options = self._options
        all_pins = pins(interface, options.threads, bool(self.member.head or options.store))
        pinned = [pin for pin in all_pins if pin.name not in options.keep]
        command = words.workers(self._command, self._placeholder_values(address, head))
        # If all hosts share one log or terminal, only the head prints this.
        if self.member.is_head or not (self._tier.scheduler or options.driven):
            self._say_start(pinned, command)
        try:
            environment = for_workers(os.environ, pinned, self._launch_environment(head))
            self._workers = Workers(command, environment, inherited_fds, self._tier.ignored)
        except OSError as error:
            raise Refusal(
                EXIT_UNAVAILABLE, f"cannot start {command[0]!r}: {error.strerror}"
            ) from None
        self._events.watch_child(self._workers.pid)
        keep_alive(self.held_directory, self._attempt)
        self._tier.watch(self._stop_file)
        self._events.run_in_thread(self._until_useless)
        if options.store and self.member.is_head:
            self._watch_store(options.store)

    def _watch_store(self, store_url: str) -> None:
        """Start a thread that watches the store. If `ddpgen stop` writes a request there, the thread makes the stop file."""
        from train.checkpoint.store import stop  # only where there is a store

        scheduled = Scheduled.parse(self._tier.scheduler)
        arguments = store_url, scheduled.job if scheduled else self._attempt, self._stop_file
        threading.Thread(target=stop.watch, args=arguments, daemon=True).start()

    def _placeholder_values(self, address: str, head: str) -> Mapping[str, str]:
        member = self.member
        nodes = (
            f"{member.min_nodes}:{member.nodes}"
            if member.min_nodes < member.nodes
            else f"{member.nodes}"
        )
        return {
            "nodes": nodes,
            "head": head,
            "port": str(member.port),
            "address": address,
            "node_rank": str(member.node_rank),
            "first_rank": str(member.first_rank),
            "world_size": str(member.world_size),
            "launch": member.launch or self._options.job,
            "is_head": str(member.is_head).lower(),
            "checkpoint_dir": str(self.checkpoint_dir),
            "store": self._options.store,
            "job": self._options.job,
            "attempt": member.launch or self._attempt,
            "array_index": os.environ.get("SLURM_ARRAY_TASK_ID", ""),
            "--": "--",
        }

    def _launch_environment(self, head: str) -> dict[str, str]:
        variables = {
            "DDPGEN_JOB": self._options.job,
            "DDPGEN_TIER": _TIER_OF.get(self._options.tier, self._options.tier),
            "DDPGEN_ATTEMPT": self._attempt,
            "DDPGEN_CHECKPOINT_DIR": str(self.checkpoint_dir),
            "DDPGEN_STOP_FILE": str(self._stop_file),
            "DDPGEN_LAUNCHER_PID": str(os.getpid()),
        }
        if self.member.head:
            variables.update(
                DDPGEN_NODE=self.member.host_name, DDPGEN_NODE_DIR=str(self.held_directory)
            )
            variables.update(MASTER_ADDR=head, MASTER_PORT=str(self.member.port))
        if self.member.launch:
            variables["DDPGEN_LAUNCH"] = self.member.launch
        if self._tier.scheduler:
            variables[VARIABLE] = self._tier.scheduler
            variables["DDPGEN_SCRIPT"] = self._tier.restart_command
        if self._options.store:
            variables["DDPGEN_CHECKPOINT_STORE"] = self._options.store
        return variables

    def _say_start(self, pinned: Sequence[Pin], command: Sequence[str]) -> None:
        settings = {shlex.quote(f"{pin.name}={pin.value}"): pin.reason for pin in pinned}
        width = max(map(len, settings), default=0)
        lines = [f"  {setting:<{width}}  # {why}" for setting, why in settings.items()]
        say("\n".join(["starting the processes of this host", *lines, words.displayed(command)]))

    # --- while they run ---------------------------------------------------------------------------

    def _wait(self) -> ExitReport:
        assert self._workers is not None
        while True:
            event = self._events.next()
            if isinstance(event, Exit) and event.pid == self._workers.pid:
                self._workers.ended(event.code)
                if count := self._workers.end_leftovers():
                    say(f"ended {count} process(es) that the workers had started and left behind")
                return self._tier.at_end(self._end(event.code))
            if isinstance(event, Result):  # _until_useless() has returned
                self._workers.kill()
            else:
                self._on_event(event)

    def _until_useless(self) -> None:
        """Return when this host has failed for good and its torchrun only waits for other hosts.

        torchrun then waits for the next rendezvous, or for 300 s in its exit barrier. Meanwhile it ignores signals.
        """
        assert self._workers is not None
        alone_s = 0.0
        while alone_s < _ALONE_S:
            time.sleep(
                _LOOK_S
            )  # poll, because there are no events for the status and the processes
            status = read_status(self.held_directory)
            failed = status is not None and status.word == "failed"
            is_alone = failed and self._workers.has_no_process()
            alone_s = alone_s + _LOOK_S if is_alone else 0.0

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Signal):
            self._act_on(self._tier.on_signal(event.name, self._stops, self._has_met()))
        else:
            self._tier.on_event(event)

    def _act_on(self, request: Request) -> None:
        assert self._workers is not None
        self._stops += 1
        if request.action == "kill":
            self._killed = True
            say(request.message)
            self._workers.kill()
            return
        if request.action == "leave":
            say(request.message)
            self._workers.end()
            return
        try:
            create_stop_file(self._stop_file, request.words)
        except OSError as error:
            say(
                f"cannot create {self._stop_file} ({error.strerror}); ending the processes of this host instead"
            )
            self._workers.end()
            return
        if request.message:
            say(request.message)
        if request.action == "end":  # nobody looks for the stop file yet
            self._workers.end()

    @property
    def _stop_file(self) -> Path:
        return self.checkpoint_dir / "stop"

    def _has_met(self) -> bool:
        """Return True if the processes of all hosts have met in this start. A job on one host needs no meeting."""
        if not self.member.head:
            return True
        with contextlib.suppress(OSError):
            words_on_file = (self.held_directory / "launch").read_text("utf-8", "replace").split()
            return bool(words_on_file[:1] == [self._attempt])
        return False

    def _settle(self, outcome: ExitReport) -> None:
        """Write the outcome into the status of the job and of this host, after a failure or a stop."""
        member, attempt, node = self.member, self._attempt, None
        if member.head:
            node = Node(member.host_name, self.held_directory, attempt, member.launch)
        directory = self.checkpoint_dir if self._tier.decides else self.held_directory
        try:
            settle_end(directory, attempt, node, decision.word_of(outcome.code), outcome.why)
        except OSError as error:
            say(f"the status file cannot be written: {error.strerror}")

    def _end(self, code: int) -> End:
        status = read_status(self.held_directory)
        if status is not None and status.attempt != self._attempt:
            status = None
        elif (
            status is not None
            and status.word == "done"
            and code
            and self._command.program[0] == "script"
        ):
            # `done` is about rank 0 alone, and another process has failed.
            why = "rank 0 was done, but another process failed and gave no reason"
            status = replace(status, word="running", reason=why)
        return End(code, status, self._stops, self._killed, self._has_met(), self._next(status))

    def _next(self, status: Status | None) -> str:
        program, saved = self._command.program, False
        with contextlib.suppress(OSError):
            if program[0] == "script":
                where = Path(self._options.store or self.checkpoint_dir)
                saved = bool(directory.steps_saved(where))
            else:
                saved = bool(steps_on_disk(self.checkpoint_dir))
                if not saved and status is not None and status.step:
                    # The job has taken steps, but this disk has no checkpoint. It may be on another host or in the store. For a
                    # job with one host and no store, assume a checkpoint only after a clean stop.
                    elsewhere = bool(self.member.head or self._options.store)
                    saved = elsewhere or status.word == "stopped"
        if not saved and not self.member.is_head:
            return ""  # the checkpoints, or the record of saves, may be on the host of rank 0
        return decision.goes_on(program, saved)


def _hold(bundle: Path) -> int | None:
    """Lock the bundle, because restarts need it and `ddpgen render` does not replace a locked one.

    Return the descriptor that holds the lock; None if the bundle cannot be locked.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(bundle, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return descriptor
    return None
