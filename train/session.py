"""One worker's run, from joining the world to its last collective.

Owns the order of set-up and the checks before the first step. The training itself is loop.py's, and
every other thing done here belongs to the module that does it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from train import manifest, rng
from train.books import Books
from train.buffers import Buffers
from train.checkpoint import Checkpoint
from train.config import RunConfig
from train.control import Control
from train.data import (
    BatchPlan,
    MicroBatchFetcher,
    SampleOrder,
    micro_batches,
    ranges,
    shares_evenly,
    to_device,
)
from train.dist import Place, World, join, leave
from train.errors import TrainError
from train.evaluate import evaluate
from train.gradients import AllReduceGradients, Gradients, TreeGradients
from train.lock import Fence, claim
from train.loop import Job, Machinery, State, train
from train.metrics import say
from train.optim import LearningRate, build_optimizer
from train.saver import find, restore
from train.stop import StopRequest
from train.workload import Context, load_workload

# How long the peers wait for the last checkpoint: slow disks are common, endless ones are not.
LAST_SAVE_S = 3600.0


def run(config: RunConfig, directory: Path, attempt: str) -> int:
    """Run one worker. Returns its exit code. Raises TrainError, FencedOffError, or what a crash raises."""
    place = Place.from_environment(os.environ)
    _check_world_size(config, place)
    fence = None
    if place.rank == 0:
        # Started without a launch script, rank 0 claims the directory for itself.
        fence = Fence(directory, attempt or _claim_by_hand(directory))
    manifest.pin(config.threads)
    world = join(place, config.backend, config.rendezvous_timeout, config.collective_timeout)
    # Not before: a worker that waits for peers that will never come is to die of a SIGTERM.
    stop = StopRequest(directory / "stop")
    if world.rank == 0:
        say(f"{world.size} processes, backend {world.backend}, device {world.device.type}")
    shares = _shares(config, world)
    job, state = _set_up(config, world, ranges(shares)[world.rank])
    _resume(job, state, directory, fence.check if fence else lambda: None)
    # Before DDP, which would quietly give every rank the parameters of rank 0.
    _check_equal(job, state)
    machinery = _machinery(job, ranges(shares))
    books = Books(directory, fence, job, state.step) if fence else None
    # Nobody trains before the status says `running`: a rank that fails at once says so after it.
    world.barrier()
    try:
        _train(job, state, machinery, Observer(job, books, stop))
    finally:
        if books is not None:
            # A peer's crash does not spoil what was copied before it: let it get to the disk.
            books.saver.settle()
    leave(world)
    return 0


def _claim_by_hand(directory: Path) -> str:
    """What a launch script does otherwise: take the directory, forget an old request to stop."""
    attempt = claim(directory, os.environ.get("DDPGEN_JOB", "(started by hand)"), os.getpid())
    (directory / "stop").unlink(missing_ok=True)
    return attempt


class Observer:
    """The loop's Watcher: passes what it sees to the books, if this rank has any."""

    def __init__(self, job: Job, books: Books | None, stop: StopRequest) -> None:
        self._job, self._books, self._stop = job, books, stop

    def stop_requested(self) -> bool:
        return self._stop.requested

    def state_may_change(self) -> None:
        if self._books is not None:
            self._books.saver.wait_copied()

    def stepped(self, state: State, loss: float, lr: float) -> None:
        if self._books is not None:
            self._books.stepped(state, loss, lr)
        every = self._job.config.eval_every
        if every and state.step % every == 0 and state.step < self._job.last_step:
            self.evaluate(state.step)

    def evaluate(self, step: int) -> None:
        with self._job.autocast():
            metrics = evaluate(self._job.workload, self._job.world, self._job.config)
        if metrics and self._books is not None:
            self._books.evaluated(step, metrics)

    def close(self, state: State, stopped: bool) -> None:
        """Make the end durable. Raises TrainError on every rank when rank 0 could not."""
        saved = self._books.save_last(state) if self._books is not None else ""
        why = self._job.world.from_rank_0("last checkpoint", saved, LAST_SAVE_S)
        if why:
            raise TrainError(why)
        # After the checkpoint: a fault in an evaluation must not cost the training.
        if not stopped:
            self.evaluate(state.step)
        if self._books is not None:
            self._books.close(state.step, stopped)
        self._stop.close()


def _check_world_size(config: RunConfig, place: Place) -> None:
    if config.world_size not in (None, place.world_size):
        raise TrainError(
            f"planned for {config.world_size} processes and started as {place.world_size}; start "
            "the job by its launch script, or render it again for this number"
        )


def _shares(config: RunConfig, world: World) -> tuple[int, ...]:
    shares = config.shares or shares_evenly(config.micro_batches, world.size)
    if len(shares) != world.size:
        raise TrainError(f"--shares names {len(shares)} ranks, the world has {world.size}")
    return shares


def _set_up(config: RunConfig, world: World, mine: range) -> tuple[Job, State]:
    """Build workload and optimizer, in the user's directory and from the seed."""
    if config.code_dir is not None:
        os.chdir(config.code_dir)
    context = Context(
        seed=config.seed,
        rank=world.rank,
        local_rank=world.place.local_rank,
        world_size=world.size,
        device=world.device,
        micro_batch_size=config.micro_batch_size,
        run_once_per_node=world.once_per_node,
    )
    rng.set_global(rng.derive(config.seed, rng.INIT), world.device)
    workload = load_workload(config.workload, context, config.args)
    workload.model.to(world.device)
    order = SampleOrder(len(workload.dataset), config.seed)
    plan = BatchPlan(order, config.seed, config.global_batch_size, config.micro_batch_size)
    last_step = config.steps
    if last_step is None:
        assert config.epochs is not None
        last_step = math.ceil(config.epochs * order.n / config.global_batch_size)
    scaler = torch.amp.GradScaler(world.device.type, enabled=config.precision == "fp16")
    state = State(workload.model, build_optimizer(workload, config), scaler, step=0)
    # Here, because it reads the base rates: in a checkpoint's optimizer they are scheduled already.
    rate = LearningRate(state.optimizer, config, last_step)
    autocast = partial(_autocast, config.precision, world.device.type)
    return Job(config, workload, world, plan, mine, last_step, rate, autocast), state


def _resume(job: Job, state: State, directory: Path, may_tidy: Callable[[], None]) -> None:
    found = find(directory, job.world, may_tidy)
    if found is None:
        return
    _check_settings(job, found)
    restore(state, found)
    if state.step > job.last_step:
        raise TrainError(
            f"the newest checkpoint in {directory} is of step {state.step}, beyond the "
            f"{job.last_step} steps asked for; ask for more steps or use another checkpoint.dir"
        )


def _check_settings(job: Job, found: Checkpoint) -> None:
    """Refuse to continue a run as a different one; say so where only the bits may differ."""
    now = _as_json(manifest.settings(job.config, job.last_step))
    changed = manifest.differences(found.meta.get("settings", {}), now)
    if changed and not job.config.accept_changes:
        raise TrainError(
            f"the checkpoint of step {found.step} was written with other settings: "
            f"{'; '.join(changed)}. Use another checkpoint.dir to start anew, or add "
            "--accept-changes to the training command to go on from it with the new settings (bash "
            "local.sh --accept-changes)"
        )
    if job.world.rank == 0 and found.meta.get("code") != manifest.code():
        say(
            f"your code has changed since the checkpoint of step {found.step} was written; going on "
            "from it all the same. To start anew, give the job another name or checkpoint.dir"
        )
    now = _as_json(manifest.facts(job.config, job.world.device))
    changed = manifest.differences(found.meta.get("facts", {}), now)
    if changed and job.world.rank == 0:
        say(f"bits may differ from the run that wrote the checkpoint: {'; '.join(changed)}")


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _machinery(job: Job, all_ranges: list[range]) -> Machinery:
    config, world, model = job.config, job.world, job.workload.model
    gradients: Gradients
    buffers = None
    if config.reduction == "tree":
        gradients = tree = TreeGradients(model, world, config, all_ranges)
        if any(module._buffers for module in model.modules()):
            buffers = Buffers(model, tree.reducer, job.mine, config.micro_batches)
    else:
        gradients = AllReduceGradients(model, world, config)
    control = Control(world, job.mine, config.micro_batches)
    return Machinery(gradients, buffers, control, {})


def _autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)


def _check_equal(job: Job, state: State) -> None:
    """Before the first step: every rank holds the same parameters and plans the same steps."""
    digest = hashlib.sha256(str(job.last_step).encode())
    for name, tensor in state.model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue  # a module's extra state may be anything
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().to("cpu").contiguous()
        size = flat.numel() * flat.element_size()
        # Read in place: numpy, which tensors usually pass through, may not be installed.
        digest.update((ctypes.c_char * size).from_address(flat.data_ptr()) if size else b"")
    answers = job.world.gather(digest.hexdigest())
    odd = [str(rank) for rank, answer in enumerate(answers) if answer != answers[0]]
    if odd:
        raise TrainError(
            f"rank(s) {', '.join(odd)} hold other parameters, or plan another number of steps, than "
            "rank 0; the workload has to build the same model and dataset on every rank (is "
            "something seeded by rank, time or file order?)"
        )


def _train(job: Job, state: State, machinery: Machinery, observer: Observer) -> None:
    config = job.config
    fetcher = MicroBatchFetcher(job.workload.dataset, job.plan, job.workload.collate)
    if config.reduction == "allreduce" and job.world.size > 2:
        _settle_buckets(job, state, machinery, fetcher)
    batches = micro_batches(
        fetcher,
        job.mine,
        range(state.step, job.last_step),
        config.data_workers,
        config.threads,
        config.collective_timeout,
        pin_memory=job.world.device.type == "cuda",
    )
    stopped = train(job, state, machinery, batches, observer)
    machinery.gradients.close()
    observer.close(state, stopped)


def _settle_buckets(
    job: Job, state: State, machinery: Machinery, fetcher: MicroBatchFetcher
) -> None:
    """One backward pass thrown away, on a fresh start and on resume alike.

    DDP lays its buckets out anew after the first backward pass, and with them the order in which a
    ring adds up; without this a resumed run would do so at another step than the undisturbed one.
    """
    buffers = [buffer.clone() for buffer in state.model.buffers()]
    first = next(fetcher.keys(job.mine, range(state.step, state.step + 1)))
    batch = to_device(fetcher[first], job.world.device)
    machinery.gradients.ddp.train()
    with job.autocast():
        loss = job.workload.loss(machinery.gradients.ddp, batch)
    loss.backward()
    machinery.gradients.begin()
    for buffer, before in zip(state.model.buffers(), buffers, strict=True):
        buffer.data.copy_(before)
