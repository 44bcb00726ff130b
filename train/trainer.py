"""A training run, read from the top down: run(), then the Trainer's resume, train, train_step, finish.

Owns the order of the operations in a run and in a step. Other modules implement the operations.
Imports torch and all training code, so worker.py imports this module only when there is something to run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from train.base.errors import EXIT_CHANGED, TrainError
from train.checkpoint.resume import find_newest, restore
from train.checkpoint.selection import Selection
from train.checkpoint.state import State
from train.distributed import agreement
from train.distributed.buffers import Buffers
from train.distributed.gpu_time import GpuTime
from train.distributed.gradients import AllReduceGradients, Gradients, TreeGradients
from train.distributed.local_sockets import SocketReducer, connect
from train.distributed.process_group import World
from train.distributed.step_exchange import StepExchange, StepResult
from train.distributed.timing import HostTime, StepClock
from train.health import phase
from train.health.phase import NOW, WAITING, doing
from train.run.config import RunConfig
from train.run.lock import Fence
from train.run.node import Node
from train.run.stop import BY_OPTION, BY_SIGNAL, PREEMPTED, StopRequest, foremost
from train.training import numerics, repeats, rng, startup, trackers
from train.training.builder import load_workload
from train.training.data import BatchPlan, MicroBatchFetcher, SampleOrder, fetch_batches, to_device
from train.training.evaluate import evaluate, names
from train.training.optim import LearningRate, build_optimizers
from train.training.profile import Profile
from train.training.records import Records, StartFacts
from train.training.run_info import RunInfo
from train.training.shares import Shares
from train.workload import Context

if TYPE_CHECKING:
    from train.checkpoint.remote import RemoteCheckpoints

# Seconds that the ranks wait at most while rank 0 writes a checkpoint to its disk.
LAST_SAVE_S = 3600.0


class Outcome(Enum):
    """How the training came to an end."""

    DONE = "done"
    STOPPED = "stopped"
    LEFT = "left"
    """All processes end. torchrun starts new ones, which form another world, and the job goes on."""


def run(info: RunInfo) -> int:
    """Run one worker and return its exit code. Raises TrainError, FencedOffError, or the exception of a crash."""
    config, directory = info.config, info.directory
    met = startup.meet(info)
    world, fence = met.world, met.fence
    with doing(phase.BUILDING):
        trainer = Trainer(config, world, met.shares, met.stop, met.host)
    with (
        startup.end_all_when_fenced_off(info.node),
        startup.open_store(config, directory, fence, world) as remote,
    ):
        with doing(phase.LOADING):
            source = trainer.resume(directory, fence, met.assembly)
        info.reporter.follow(trainer.state)
        # Compare before DDP broadcasts the parameters of rank 0, because that would hide a difference.
        with doing("comparing the parameters"):
            other_bits = met.assembly.other_bits()
            startup.check_equal(trainer.state.model, trainer.last_step, world, other_bits)
        with doing("looking at the metrics"):
            trainer.check_metrics()
        with doing("computing a micro-batch twice"):
            trainer.check_repeats()
        with doing(phase.CONNECTING):
            trainer.connect()
        if fence is not None:
            records = trainer.open_records(
                directory,
                fence,
                remote,
                checkpoint_host=source,
                argv=info.argv,
                rank_names=met.assembly.rank_names(),
                hosts=met.assembly.hosts(),
                environments=met.environments,
            )
            info.replaced.before_end = records.checkpointer.abandon
            if info.failures is not None:
                info.failures.before_end = records.checkpointer.settle
        if met.host is not None:
            met.host.write("running", trainer.state.step)
        # Wait, so that no rank trains before the status is `running`. Otherwise a fast rank could fail first, and
        # `running` would overwrite `failed`.
        world.barrier()
        try:
            outcome = trainer.train()
            with doing("last checkpoint"):
                trainer.finish(outcome)
        finally:
            if trainer.records is not None:
                # A state that was copied before a peer crashed is valid: finish writing it.
                trainer.records.checkpointer.settle()
    startup.leave(world, info, trainer.gradients)
    if trainer.records is not None:
        trackers.finish(trainer.records.trackers)  # now, as no rank waits for this one any more
    return EXIT_CHANGED if outcome is Outcome.LEFT else 0


class Trainer:
    """One rank's part of a run.

    `records`: on rank 0 only. `host`: the directory for this host's status. Only the first rank of a host has one, and
    only in a job of several hosts. `repeats`: True if a micro-batch computed again gives the same bits.
    `accepted`: the changes of settings that the user has accepted. `earlier`: on rank 0, the manifest's entry for
    the launch that wrote the loaded checkpoint. `marker`: the contents of checkpoint.json, without the parts that grow with
    the number of hosts. `state`: all that changes during a run.
    """

    records: Records | None = None
    gradients: Gradients
    buffers: Buffers | None = None
    exchange: StepExchange
    repeats = True
    earlier: Sequence[Mapping[str, Any]] = ()
    accepted: Sequence[str] = ()
    marker: Mapping[str, Any] | None = None
    profile: Profile | None = None

    def __init__(
        self, config: RunConfig, world: World, shares: Shares, stop: StopRequest, host: Node | None
    ) -> None:
        """Enter the user's directory, set the seed, build the workload and the optimizers. Raises TrainError."""
        self.config, self.world, self.stop, self.host = config, world, stop, host
        self.shares = shares
        directory = Path(config.checkpoint_dir).absolute()
        if config.code_dir is not None:
            os.chdir(config.code_dir)
        context = Context(
            seed=config.seed,
            rank=world.rank,
            local_rank=world.rank_info.local_rank,
            world_size=world.size,
            device=world.device,
            micro_batch_size=config.micro_batch_size,
            once_per_node=world.once_per_node,
        )
        rng.set_global(rng.derive(config.seed, rng.INIT), world.device)
        self.workload = load_workload(config.workload, context, config.args)
        self.workload.model.to(world.device)
        order = SampleOrder(len(self.workload.dataset), config.seed)
        self.plan = BatchPlan(order, config.seed, config.global_batch_size, config.micro_batch_size)
        self.fetcher = MicroBatchFetcher(self.workload.dataset, self.plan, self.workload.collate)
        if config.steps is None:
            assert config.epochs is not None
            self.last_step = math.ceil(config.epochs * order.n / config.global_batch_size)
        else:
            self.last_step = config.steps
        scaler = torch.amp.GradScaler(world.device.type, enabled=config.precision == "fp16")
        optimizers = build_optimizers(self.workload, config, world, directory)
        selection = Selection(config)
        self.state = State(self.workload.model, optimizers, scaler, step=0, selection=selection)
        # LearningRate reads the base rates here. Afterwards a loaded checkpoint replaces them by scheduled rates.
        schedule = self.workload.schedule
        self.learning_rate = LearningRate(optimizers, config, self.last_step, schedule)
        self.settings = numerics.settings(config, self.last_step, schedule is not None)
        self.clock = StepClock(GpuTime() if world.device.type == "cuda" else HostTime())
        if config.profile is not None:
            self.profile = Profile(config.profile, directory / "profile", world, self.clock)
        self.autocast = partial(_autocast, config.precision, world.device.type)
        self._gradient_weights: dict[torch.dtype, torch.Tensor] = {}

    def resume(self, directory: Path, fence: Fence | None, assembly: agreement.Assembly) -> str:
        """Resume from the newest checkpoint. Returns the name of the host that sent it to rank 0, or "".

        Raises TrainError if the checkpoint does not fit the model, if its step is beyond `last_step`, or if the user has
        not accepted its other settings.
        """
        newest = find_newest(directory, self.world, fence.check if fence else lambda: None)
        if newest is None:
            return ""
        self.accepted = startup.check_settings(self.config, self.settings, self.world, newest)
        self.earlier = newest.earlier
        restore(self.state, newest.source)
        self.marker = newest.source.meta
        if self.state.step > self.last_step:
            raise TrainError(
                f"the newest checkpoint in {directory} is of step {self.state.step}, beyond the "
                f"{self.last_step} steps asked for; ask for more steps or use another checkpoint.dir"
            )
        return assembly.members[newest.rank].host if newest.rank else ""

    def check_metrics(self) -> None:
        """Raise TrainError on every rank when the evaluation gives no metric of the name in train.best."""
        selection, workload = self.state.selection, self.workload
        if not selection.metric:
            return
        metric_names = None
        if workload.eval_dataset is not None:
            with self.autocast():
                metric_names = names(workload, self.world.device, self.config)
        selection.check(workload.eval_dataset is not None, metric_names)

    def check_repeats(self) -> None:
        """Compute the next step's first micro-batch twice, on every rank, and print a warning if the results differ."""
        if self.state.step >= self.last_step or self.state.selection.verdict:
            return
        config, step, device = self.config, self.state.step, self.world.device
        key = next(self.fetcher.keys(range(1), range(step, step + 1)))
        # With data workers, this process must not open the dataset's files, so a worker reads the batch. One worker reads
        # both times. With two, the check would miss a random dataset, because the workers' random generators are equal.
        workers, timeout_s = min(config.data_workers, 1), config.collective_timeout
        model = self.workload.model

        def read() -> Iterator[Any]:
            return fetch_batches(self.fetcher, [key] * 2, workers, config.threads, timeout_s, False)

        # The user's code may call collectives on two conditions: `reduction` is `allreduce`, and all ranks have equally
        # many micro-batches. A rank with more micro-batches than another would wait for ever.
        may_meet = config.reduction == "allreduce" and len({*self.shares.counts}) == 1

        def compute(batch: Any) -> torch.Tensor:
            return self._loss(model, 0, to_device(batch, device))

        self.repeats = repeats.check(model, compute, read, self.world, may_meet)
        # If a repeat has other bits, no micro-batch may move to another rank: the weights would depend on the move.
        self.shares.balances &= self.repeats

    def connect(self) -> None:
        """Set up what the ranks exchange in each step. Every rank holds the same parameters by now."""
        config, world, model = self.config, self.world, self.workload.model
        shares, sockets = self.shares, connect(world)
        self.exchange = StepExchange(world, shares.own, config.micro_batches, sockets)
        if config.reduction == "allreduce":
            self.gradients = AllReduceGradients(model, world, config, self.clock)
            return
        self.gradients = tree = TreeGradients(model, world, config, shares.ranges, self.clock)
        shares.parts = [self.exchange, tree]
        if any(module._buffers for module in model.modules()):
            sums = SocketReducer(sockets, shares.ranges, tree.reducer) if sockets else tree.reducer
            self.buffers = Buffers(model, sums, shares.own, config.micro_batches)
            shares.parts += [self.buffers, *([sums] if isinstance(sums, SocketReducer) else ())]

    def open_records(
        self,
        directory: Path,
        fence: Fence,
        remote: RemoteCheckpoints | None = None,
        *,
        rank_names: Sequence[str],
        checkpoint_host: str,
        argv: Sequence[str],
        hosts: Mapping[str, Any],
        environments: Mapping[str, Any],
    ) -> Records:
        """Begin to record the run, on rank 0. StartFacts describes the arguments. Raises FencedOffError, OSError."""
        facts = StartFacts(
            config=self.config, world=self.world, workload=self.workload, plan=self.plan, settings=self.settings,
            last_step=self.last_step, shares=self.shares, repeats=self.repeats, accepted=self.accepted,
            earlier=self.earlier, marker=self.marker, rank_names=rank_names, checkpoint_host=checkpoint_host,
            argv=argv, hosts=hosts, environments=environments,
        )  # fmt: skip
        self.records = Records(directory, fence, facts, self.state, remote)
        return self.records

    def train(self) -> Outcome:
        """Train until the last step, or until the ranks agree to stop or to leave."""
        config = self.config
        if config.reduction == "allreduce" and self.world.size > 2:
            self._settle_buckets()
        batches = fetch_batches(
            self.fetcher,
            self.shares.keys(self.fetcher, range(self.state.step, self.last_step)),
            config.data_workers,
            config.threads,
            config.collective_timeout,
            pin_memory=self.world.device.type == "cuda",
        )
        outcome = self.take_steps(batches)
        if self.profile is not None:
            self.profile.close()
        self.gradients.close()
        return outcome

    def take_steps(self, batches: Iterator[Any]) -> Outcome:
        """Take the steps that are left. After each step all ranks decide together to go on, to stop or to leave."""
        self.gradients.ddp.train()
        selection = self.state.selection
        if selection.metric and self.state.step and selection.evaluated != self.state.step:
            # A run saves its last step before it evaluates it. So a checkpoint of a last step lacks the evaluation.
            self._commit(False, self._evaluation_is_due() and self.evaluate())
        result: StepResult | None = None
        while (outcome := self._outcome(result)) is None:
            lr = self.learning_rate.set_for(self.state.step)
            with self.profile.step(self.state.step + 1) if self.profile else nullcontext():
                result = self.train_step(batches)
            self.state.step += 1
            NOW.name = phase.RECORDS
            if self.records is not None:
                self.records.stepped(self.state, result, lr)
            if self.shares.stepped(self.state.step, result.rank_times) and self.records is not None:
                self.records.shared_out(self.state.step)
            self._commit(result.checkpoint_due, self._evaluation_is_due() and self.evaluate())
        return outcome

    def _outcome(self, result: StepResult | None) -> Outcome | None:
        """Return the outcome if the training ends here, or None for one more step. `result`: of the step just taken, if any."""
        state, until = self.state, self.config.until
        if state.step >= self.last_step or state.selection.verdict:
            return Outcome.DONE
        if until is not None and state.step >= until:
            return Outcome.STOPPED
        if result is not None and (result.stop_requested or result.leave_requested):
            return Outcome.STOPPED if result.stop_requested else Outcome.LEFT
        return None

    def _evaluation_is_due(self) -> bool:
        """Return whether to evaluate after this step. The last step is evaluated after its checkpoint is written."""
        every, step = self.config.eval_every, self.state.step
        return step < self.last_step and every > 0 and step % every == 0

    def _commit(self, due: bool, is_best: bool) -> None:
        if due or is_best:
            self.state.collect()
        if self.records is not None:
            self.records.commit(self.state, due, is_best)
        if is_best:
            # Rank 0 may still be writing the previous checkpoint, perhaps beyond the collective timeout. Wait for it.
            self.world.broadcast(f"best/{self.state.step}", "", LAST_SAVE_S)

    def train_step(self, batches: Iterator[Any]) -> StepResult:
        """Take one optimizer step: this rank's micro-batches, the reduction, the update."""
        self.clock.begin()
        self.gradients.begin()
        buffers = self.buffers
        if buffers is not None:
            buffers.begin()
        losses: list[torch.Tensor] = []
        for v in self.shares.own:
            last = v == self.shares.own[-1]
            with nullcontext() if last else self.gradients.ddp.no_sync():
                NOW.name = phase.DATA
                with self.clock.batch():
                    batch = next(batches)
                NOW.name = phase.FORWARD
                loss = self._forward(v, batch)
                losses.append(loss.detach())
                if buffers is not None:
                    # Record before the backward pass, in which activation checkpointing may change the buffers again.
                    buffers.record_changes(last)
                if last:
                    changed = buffers.changed() if buffers is not None else []
                    NOW.name = phase.EXCHANGE
                    self.exchange.add_losses(losses)
                    if not loss.is_cuda:
                        self.exchange.send(*self._requests(), changed, self._own_times())
                NOW.name = phase.BACKWARD
                self._backward(loss)
                if last and loss.is_cuda:
                    NOW.name = phase.EXCHANGE
                    self.exchange.send(*self._requests(), changed, self._own_times())
            if not last:
                self.gradients.add_micro_batch()
        self.clock.reduced()
        self._check_complete()
        NOW.name = phase.SNAPSHOT
        if self.records is not None:
            self.records.checkpointer.wait_copied()
        NOW.name = phase.UPDATE
        self._update()
        NOW.name = phase.EXCHANGE
        with WAITING, self.clock.waiting():
            result = self.exchange.receive()
        if buffers is not None:
            NOW.name = phase.BUFFERS
            with WAITING, self.clock.waiting():
                buffers.combine(result.changed_buffers)
        self.clock.end()
        return result

    def _own_times(self) -> list[float]:
        """Return this rank's times if they are due, else []."""
        return self.clock.report() if self.shares.times_due(self.state.step + 1) else []

    def evaluate(self) -> bool:
        """Evaluate on the held-out split, if there is one, and record the metrics. Returns whether they are the
        best so far."""
        self.state.settle()
        with doing(phase.EVALUATION), self.autocast():
            metrics = evaluate(self.workload, self.world, self.config)
        if metrics and self.records is not None:
            self.records.evaluated(self.state.step, metrics)
        return self.state.selection.observe(self.state.step, metrics)

    def finish(self, outcome: Outcome) -> None:
        """Write the last checkpoint and the final status. If the checkpoint fails, raise TrainError on every rank. After
        LEFT, write no final status, and raise nothing."""
        reason = ""
        if outcome is Outcome.STOPPED:
            # Perhaps not every rank knows the reason. The status of every host must give the same reason.
            reason = foremost(self.world.all_gather(self.stop.reason)) or BY_OPTION
        if outcome is Outcome.DONE and self.state.step < self.last_step:
            reason = self.state.selection.verdict
        self.state.collect()
        taken = outcome is Outcome.STOPPED and reason.startswith((PREEMPTED, BY_SIGNAL))
        has_store = bool(self.config.checkpoint_store)
        timeout_s = startup.STORE_S if has_store else LAST_SAVE_S
        why = ""
        if self.records is not None:
            leaving = taken or outcome is Outcome.LEFT
            why = self.records.save_last(self.state, leaving, job_goes_on=taken and has_store)
        if outcome is Outcome.LEFT:
            # torchrun starts new ranks, so there is no final status, and a failed checkpoint does not end the job.
            self.world.broadcast("last checkpoint", why, timeout_s)
            if self.records is not None:
                self.records.close_world(self.state.step, why)
        else:
            agreement.agree(self.world, "last checkpoint", why, timeout_s)
            # Evaluate after the last checkpoint, so that a fault in the evaluation loses no training.
            if outcome is Outcome.DONE:
                self._evaluate_last()
            if self.records is not None:
                self.records.close(outcome.value, self.state.step, reason)
        if self.host is not None:
            word = "running" if outcome is Outcome.LEFT else outcome.value
            self.host.write(word, self.state.step, reason)
        self.stop.close()

    def _evaluate_last(self) -> None:
        if self.state.selection.evaluated == self.state.step:
            return
        if self.evaluate() and self.records is not None:
            self.records.mark_best(self.state)

    def _requests(self) -> tuple[bool, bool, bool]:
        """Return this rank's requests: to stop, to leave, to take a checkpoint after this step. A request of one rank is enough."""
        by_signal, elastic = self.stop.by_signal, self.config.elastic
        due = self.records is not None and self.records.due(self.state.step + 1)
        return self.stop.by_file or (by_signal and not elastic), by_signal and elastic, due

    def _forward(self, v: int, batch: Any) -> torch.Tensor:
        batch = to_device(batch, self.world.device)
        if self.state.shards:
            with self.clock.waiting():
                self.state.settle()  # wait for the parameters of the other ranks
        if self.buffers is not None:
            self.buffers.restore()
        return self._loss(self.gradients.ddp, v, batch)

    def _loss(self, model: torch.nn.Module, v: int, batch: Any) -> torch.Tensor:
        seed = rng.derive(self.config.seed, rng.MODEL, self.state.step, v)
        rng.set_global(seed, self.world.device)
        with self.autocast():
            loss = self.workload.loss(model, batch)
        returned: object = loss  # a user's function may return something else than annotated
        if not isinstance(returned, torch.Tensor) or returned.numel() != 1:
            shape = getattr(returned, "shape", None)
            got = type(returned).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            raise TrainError(f"the workload's loss returned {got}; it has to be a scalar tensor")
        return loss

    def _backward(self, loss: torch.Tensor) -> None:
        scaled = self.state.scaler.scale(loss)
        weights = self._gradient_weights
        if scaled.dtype not in weights:
            weight = self.gradients.weight
            weights[scaled.dtype] = torch.tensor(weight, dtype=scaled.dtype, device=scaled.device)
        # backward(weight) gives the same gradients, but makes torch import sympy first: half a second.
        (scaled * weights[scaled.dtype]).backward()

    def _check_complete(self) -> None:
        """Raise TrainError when a parameter got no gradient. DDP itself complains only in the next forward pass: by
        then the wrong update is done and saved."""
        missing = self.gradients.missing()
        if missing:
            raise TrainError(
                f"no gradient to reduce in step {self.state.step + 1} for {', '.join(missing[:5])}; set "
                "train.find_unused_parameters: true if the model skips parameters in some steps, or freeze "
                "them (requires_grad_(False)) if it never uses them"
            )

    def _update(self) -> None:
        """Unscale, clip and update. Every rank has the same reduced gradients, so every rank computes identical values."""
        state = self.state
        if self.config.grad_clip is not None:
            for optimizer in state.optimizers:
                state.scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(state.model.parameters(), self.config.grad_clip)
        for optimizer in state.optimizers:
            state.scaler.step(optimizer)
        state.scaler.update()

    def _settle_buckets(self) -> None:
        """Do one backward pass and discard its gradients, on a fresh start and on resume alike.

        DDP rebuilds its buckets after the first backward pass, and so changes the order in which a ring adds up.
        Without this pass, a resumed run would change the order at another step than the undisturbed run.
        """
        buffers = [buffer.clone() for buffer in self.state.model.buffers()]
        steps = range(self.state.step, self.state.step + 1)
        first = next(self.fetcher.keys(self.shares.own, steps))
        batch = to_device(self.fetcher[first], self.world.device)
        self.gradients.ddp.train()
        with self.autocast():
            loss = self.workload.loss(self.gradients.ddp, batch)
        loss.backward()
        self.gradients.begin()
        for buffer, before in zip(self.state.model.buffers(), buffers, strict=True):
            buffer.data.copy_(before)


def _autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
