"""The records that rank 0 writes: manifest, metrics, progress, checkpoints, status.

Owns the job's records in the checkpoint directory during a run, always behind the fence of lock.py. The other ranks
write no records of the job: heartbeats belong to health/, and a host's own status belongs to node.py.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.base.console import Progress, clock, say, say_restart
from train.base.errors import TrainError
from train.base.words import first_few
from train.checkpoint import disk
from train.checkpoint.checkpointer import Checkpointer, NotInStoreError, SaveFailedError
from train.checkpoint.copies import Copies
from train.checkpoint.digests import Chain
from train.checkpoint.state import State
from train.checkpoint.weights import weights_sha256
from train.distributed.timing import SlowRanks, remedy
from train.health import phase
from train.run.chain import Digest
from train.run.layout import BEST, best_step, step_directory
from train.run.lock import Fence
from train.run.manifest import RunManifest
from train.run.metrics import MetricsLog
from train.run.provenance import MANIFEST
from train.run.status import Status, read_status, record_status
from train.training import numerics, trackers

if TYPE_CHECKING:
    from train.checkpoint.remote import RemoteCheckpoints
    from train.distributed.process_group import World
    from train.distributed.step_exchange import StepResult
    from train.run.config import RunConfig
    from train.training.data import BatchPlan
    from train.training.shares import Shares
    from train.workload import Workload


@dataclass(frozen=True)
class StartFacts:
    """A start of a run, as manifest.json and the checkpoints describe it.

    `shares`: the micro-batches of each rank in a step. `repeats`: true if a micro-batch gives the same bits when it is
    computed again. `accepted`: the changed settings that this start goes on with. `earlier`: the starts before this
    one, as the checkpoint names them. `marker`: the checkpoint's marker, if there is a checkpoint. `checkpoint_host`:
    the host on whose disk the checkpoint was found, "" if that is this host. `hosts` and `environments`: the values of
    manifest.json under these names.
    """

    config: RunConfig
    world: World
    workload: Workload
    plan: BatchPlan
    settings: Mapping[str, Any]
    last_step: int
    shares: Shares
    repeats: bool
    accepted: Sequence[str]
    earlier: Sequence[Mapping[str, Any]]
    marker: Mapping[str, Any] | None
    rank_names: Sequence[str]
    checkpoint_host: str
    argv: Sequence[str]
    hosts: Mapping[str, Any]
    environments: Mapping[str, Any]


class Records:
    """The open records of a run: from the moment when the step to resume at is known, to the final status."""

    def __init__(
        self,
        directory: Path,
        fence: Fence,
        facts: StartFacts,
        state: State,
        remote: RemoteCheckpoints | None = None,
    ) -> None:
        """`remote`: the store, if there is one. Raises FencedOffError, OSError."""
        fence.check()  # building the model may have taken long, and another start may have begun meanwhile
        self._directory, self._fence = directory, fence
        self._plan, self._last_step = facts.plan, facts.last_step
        self._remote, self._selection = remote, state.selection
        self._started_at = time.monotonic()
        self._warned = False
        self._names, self._slow_ranks = facts.rank_names, SlowRanks()
        self._shares, self._log_every = facts.shares, facts.config.log_every
        self._has_last = True
        self._ending: dict[str, Any] = {}
        config, world, workload = facts.config, facts.world, facts.workload
        self._calls_log = workload.log is not None
        start_step = state.step
        disk.remove_leftovers(directory)
        if (best_step(directory) or 0) > start_step:  # that step will come again
            (directory / BEST).unlink(missing_ok=True)
        marker = facts.marker or {}
        about, run = _describe_run(facts, fence), str(marker.get("tracker_run", ""))
        if config.trackers:
            run = trackers.run_id(directory, run)
        if run:
            about["tracker_run"] = (
                run  # each checkpoint has this id, so that a machine that takes over continues the curves
            )
        entry = _describe_start(facts, about, start_step)
        earlier = [*facts.earlier, *(remote.earlier if remote is not None else ())]
        with _named_for_good():
            self.manifest = RunManifest(
                directory, fence.check, about, entry, facts.environments, earlier
            )
        self.manifest.complete_with(workload.data_files, workload.fingerprint)
        if remote is not None:
            remote.resume(start_step)
        units = config.global_batch_size * workload.units_per_sample
        standing = {
            "last_step": facts.last_step, "unit": workload.unit, "units_per_step": units,
        }  # fmt: skip
        with _named_for_good():
            self._log = MetricsLog(directory / "metrics.jsonl", workload.log, standing)
        self.trackers = trackers.start(
            config.trackers, directory, run, start_step, config.log_every
        )
        every, keep = config.checkpoint_every, config.checkpoint_keep
        self._chain: Chain | None = None
        if config.digest:
            self._chain = Chain(
                start_step, config.log_every, marker.get("chain"), Copies(world.device)
            )
        self.checkpointer = Checkpointer(
            directory, fence, every, keep, self.manifest, remote, self._chain, world.device
        )
        self._progress = Progress(
            start_step, facts.last_step, workload.unit, units, config.log_every
        )
        sizes = {"world_size": world.size, "last_step": facts.last_step, **self._link()}
        was = read_status(directory)
        after = was.reason if was is not None and was.word in ("running", "failed") else ""
        self._write_row("start", start_step, **sizes, after=after)
        if not config.elastic:  # torchrun counts a change of hosts as a restart, too
            say_restart("" if start_step else "; there is no checkpoint yet, so it starts over")
        if start_step:
            if not facts.checkpoint_host:
                self.checkpointer.resumed(start_step)
            whose = (
                f", from the checkpoint of {facts.checkpoint_host}" if facts.checkpoint_host else ""
            )
            say(f"resuming at step {start_step} of {facts.last_step}{whose}")
        self._write_status("running", start_step)
        self.checkpointer.begin(start_step)

    def stepped(self, state: State, result: StepResult, lr: float) -> None:
        """Record a complete step: its row, the ranks' times if they are due, the progress line."""
        if self._calls_log:
            state.settle()  # the workload's log may read the parameters
        self._record_checkpoints()
        first, end = self._plan.span(state.step - 1)
        self._ending["loss"] = loss = result.loss
        digest = self._chain.add(state.step, loss) if self._chain is not None else None
        chained = {**self._link(), **_digest(digest)}
        self._write_row("step", state.step, loss=loss, lr=lr, samples=[first, end], **chained)
        self.manifest.record_stages(phase.stages)
        due = state.step % self._log_every == 0
        if due and result.rank_times and all(times[0] for times in result.rank_times):
            self._record_ranks(state.step, result.rank_times)
        self._progress.update(state.step, loss, lr)
        if not math.isfinite(loss) and not self._warned:
            self._warned = True
            self.say(f"the loss is {loss} at step {state.step}; the rows before it may tell why")

    def _link(self) -> dict[str, str]:
        return {"chain": self._chain.here.last} if self._chain is not None else {}

    def _record_checkpoints(self) -> None:
        """Write the rows of the checkpoints that were completed meanwhile."""
        while self.checkpointer.completed:
            step, seconds, stall = self.checkpointer.completed.popleft()
            self._write_row("checkpoint", step, seconds=round(seconds, 3), stall=round(stall, 3))

    def _record_ranks(self, step: int, rank_times: list[list[float]]) -> None:
        step_s = max(rank[0] for rank in rank_times)
        waiting, batches = ([round(rank[n], 6) for rank in rank_times] for n in (1, 2))
        counts, balances = self._shares.counts, self._shares.balances
        slow = self._slow_ranks.observe(step_s, waiting) if self._shares.settled else None
        if slow is not None:
            self.say(
                f"{self._names[slow.rank]} computes longer than the others, which wait {slow.cost:.0%} of each "
                f"step for it; {remedy(slow.rank, counts, balances)}"
            )
        values: dict[str, Any] = {
            "seconds": round(step_s, 6),
            "waiting": waiting,
            "batches": batches,
            "shares": counts,
        }
        if (named := self._slow_ranks.slow_rank) is not None:
            values["slow"] = {"name": self._names[named.rank], "cost": round(named.cost, 3)}
        self._write_row("ranks", step, **values)

    def shared_out(self, step: int) -> None:
        """Record that the ranks have other numbers of micro-batches after `step`."""
        counts = self._shares.counts
        self._write_row("shares", step, shares=counts)
        self._slow_ranks = SlowRanks()
        parts = zip(self._names, counts, strict=True)
        listed = first_few([f"{name}: {count}" for name, count in parts])
        self.say(f"share: auto, micro-batches from step {step + 1} on: {listed}")

    def due(self, step: int) -> bool:
        """Return whether to take a checkpoint after `step` complete steps. save_last() takes the last step's."""
        return step < self._last_step and self.checkpointer.due(step)

    def commit(self, state: State, due: bool, is_best: bool) -> None:
        """Take a checkpoint if one is due, or if the evaluation of this step was the best so far.

        Call it after the rows of this step are written, so that every committed step is on record. Raises
        FencedOffError.
        """
        if due or is_best:
            self.checkpointer.save(state, is_best)  # this also hashes the copy
        elif self._chain is not None and self._chain.here.due and state.step < self._last_step:
            state.settle()
            self._chain.take(state.model)
        lost = self.checkpointer.fenced_off
        if lost is None and self._remote is not None:
            lost = self._remote.fenced_off
        if lost is not None:
            raise lost

    def evaluated(self, step: int, metrics: dict[str, Any]) -> None:
        self._write_row("eval", step, **metrics)
        numbers = {name: value for name, value in metrics.items() if isinstance(value, float)}
        text = "  ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        self.say(f"eval at step {step}  {text}")

    def mark_best(self, state: State) -> None:
        """Record that the evaluation after the last checkpoint was the best. Raises FencedOffError."""
        try:
            self.checkpointer.mark_best(state)
        except OSError as error:
            self.say(f"{BEST} cannot be written ({error.strerror}), which names step {state.step}")

    def save_last(self, state: State, process_ends: bool, job_goes_on: bool) -> str:
        """Take the last checkpoint. Returns why it failed, or "". Raises FencedOffError.

        `process_ends`: this process will end soon, or its machine will be taken away. `job_goes_on`: the job goes on elsewhere
        from the store, so a failure of this checkpoint only prints a message and returns "".
        """
        self._progress.end_line()
        if not process_ends:
            self._ending["weights"] = weights_sha256(state.model.state_dict())
        try:
            self.checkpointer.finish(state, process_ends)
        except (SaveFailedError, NotInStoreError) as error:
            is_here = isinstance(error, NotInStoreError)
            self._has_last = is_here
            committed = self._remote.committed if self._remote is not None else None
            newest = "none yet" if committed is None else f"step {committed}"
            if job_goes_on:
                say(f"{error}; the job resumes from the newest one in the store ({newest})")
                return ""
            if not is_here:
                return f"{error}; make room and start the job again: it resumes from the one before"
            return (
                f"{error}. Started again, the job resumes from the newest checkpoint in the store "
                f"({newest}), and from this one where this machine's disk is there still"
            )
        return ""

    def close(self, word: str, step: int, reason: str = "") -> None:
        """Write the final status `word`, "done" or "stopped", and print the end of the run.

        `reason`: why the run was stopped. Raises FencedOffError, and TrainError if the status cannot be written or the
        attempt has failed already.
        """
        self._record_checkpoints()
        digest = None
        if self._chain is not None:
            digest, self._ending["receipt"] = self._chain.here.digest, self._chain.here.receipt
        self._write_row(word, step, reason=reason, **_digest(digest))
        self._log.close()
        self._end(word, step, reason)
        self._write_status(word, step, reason)
        if self._remote is not None:
            self._remote.close(self.manifest.snapshot())
        self._fence.close()
        spent = clock(time.monotonic() - self._started_at)
        directory = step_directory(self._directory, step)
        why = f" ({reason})" if reason else ""
        weights = f"; the weights: {directory}/model.pt" if self._has_last else ""
        say(f"{word} at step {step}{why}, {spent} since this start{weights}")
        self._say_best()

    def _say_best(self) -> None:
        selection, best = self._selection, best_step(self._directory)
        if best is None or best != selection.best_step:
            return
        directory = step_directory(self._directory, best)
        where = (
            directory
            if directory.is_dir()
            else f"{directory.name} on the host, or in the store, that wrote it"
        )
        say(
            f"best {selection.metric}: {selection.best:.6g}, at step {best}; the weights: {where}/model.pt"
        )

    def close_world(self, step: int, problem: str) -> None:
        """End the records of this world. The job goes on in another world, whose rank 0 writes records of its own.

        `problem`: the reason why this step has no checkpoint, or "".
        """
        if problem:
            self.say(f"{problem}; resuming from the one before")
        self._record_checkpoints()
        self._write_row("left", step)
        self._log.close()
        self._end("left", step, problem)
        if self._remote is not None:
            self._remote.stop_renewing()
        self._fence.close()
        say(f"at step {step} the hosts change; meeting again")

    def say(self, message: str) -> None:
        self._progress.end_line()
        say(message)

    def _write_row(self, kind: str, step: int, **values: Any) -> None:
        self._fence.check_seen()
        head = {"kind": kind, "step": step, "attempt": self._fence.attempt}
        when = {"generation": self._fence.generation, "time": round(time.time(), 3)}
        self._log.write({**head, **when, **values})

    def _end(self, word: str, step: int, reason: str) -> None:
        try:
            self.manifest.end(word, step, reason, **self._ending)
        except OSError as error:
            self.say(f"how this start ended is not in {MANIFEST}: {error.strerror}")

    def _write_status(self, word: str, step: int, reason: str = "") -> None:
        self._fence.check()
        status = read_status(self._directory)
        if status is not None and (status.word, status.attempt) == ("failed", self._fence.attempt):
            raise TrainError(status.reason)  # another rank has recorded a failure meanwhile
        record_status(self._directory, Status(word, self._fence.attempt, step, reason))


def _digest(digest: Digest | None) -> dict[str, Any]:
    return {"digest": asdict(digest)} if digest is not None else {}


@contextmanager
def _named_for_good() -> Iterator[None]:
    """Within this context, raise TrainError with the path for an OSError that no restart cures.

    Such errors are: no permission, a read-only file system, and a directory in the place of the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR):
            raise
        raise TrainError(
            f"{error.filename2 or error.filename} cannot be written: {error.strerror}; restore the permission, or move it "
            "away, and start the job again"
        ) from None


def _describe_run(facts: StartFacts, fence: Fence) -> dict[str, Any]:
    config, world, workload = facts.config, facts.world, facts.workload
    trained = [p for p in workload.model.parameters() if p.requires_grad]
    return {
        "name": os.environ.get("DDPGEN_JOB", ""),
        "unit": workload.unit,
        "units_per_step": config.global_batch_size * workload.units_per_sample,
        "settings": facts.settings,
        "facts": numerics.facts(config, world.device),
        "world_size": world.size,
        "attempt": fence.attempt,
        "generation": fence.generation,
        "code": numerics.code(),
        "exact_on_any_world_size": config.reduction == "tree" and facts.repeats,
        "parameters": sum(p.numel() for p in trained),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trained),
    }


def _describe_start(facts: StartFacts, run: dict[str, Any], from_step: int) -> dict[str, Any]:
    start = {
        **{name: run[name] for name in ("attempt", "generation", "settings", "code", "world_size")},
        "tier": os.environ.get("DDPGEN_TIER", ""),
        "started": round(time.time(), 3),
        "from_step": from_step,
        "last_step": facts.last_step,
        "bundle": "",
        "argv": list(facts.argv),
        "shares": facts.shares.counts,
        "hosts": facts.hosts,
        "data": {},
    }
    if facts.config.shard != "none":
        start["shard"] = facts.config.shard
    return {**start, "accepted": facts.accepted} if facts.accepted else start
