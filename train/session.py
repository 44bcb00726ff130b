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
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from train import manifest, rng
from train.books import Books
from train.checkpoint.resume import Source, find, restore
from train.config import RunConfig
from train.control import Control
from train.data import (
    BatchPlan,
    MicroBatchFetcher,
    SampleOrder,
    micro_batches,
    ranges,
    shares_by_weight,
    to_device,
)
from train.errors import EXIT_CHANGED, TrainError, start_command
from train.evaluate import evaluate
from train.failure import FailureBroadcast
from train.health.phase import EVALUATION, NOW, doing
from train.health.reporter import Reporter
from train.lock import Fence, FencedOffError, claim
from train.loop import Job, Machinery, Outcome, State, train
from train.metrics import say
from train.node import Node
from train.optim import LearningRate, build_optimizer
from train.parallel import agreement
from train.parallel.buffers import Buffers
from train.parallel.gradients import AllReduceGradients, Gradients, TreeGradients
from train.parallel.mesh import MeshReducer, connect
from train.parallel.process_group import Place, World, join, leave
from train.replaced import Replacement
from train.scheduler import VARIABLE
from train.stop import BY_SIGNAL, PREEMPTED, StopRequest, foremost
from train.workload import Context, load_workload

if TYPE_CHECKING:
    from train.checkpoint.remote import RemoteCheckpoints

# How long the peers wait for the last checkpoint: slow disks are common, endless ones are not.
LAST_SAVE_S = 3600.0
# And for one that rank 0 brings from a store, or there, which may be large and far away.
STORE_S = 6 * 3600.0


def run(
    config: RunConfig,
    directory: Path,
    attempt: str,
    reporter: Reporter,
    replaced: Replacement,
    node: Node | None = None,
    failures: FailureBroadcast | None = None,
) -> int:
    """Run one worker. Returns its exit code. Raises TrainError, FencedOffError, or what a crash raises.

    `reporter` beats, and is stopped at a good end; `replaced` may end this process at any time. `node`
    and `failures` are there when the job was started on several hosts, each by its script.
    """
    NOW.name = "starting"
    place = Place.from_environment(os.environ)
    _check_world_size(config, place, node is not None)
    fence = None
    if place.rank == 0 and node is None:
        # Started without a launch script, rank 0 claims the directory for itself.
        fence = Fence(directory, attempt or _claim_by_hand(directory))
    manifest.pin(config.threads)
    timeouts = config.rendezvous_timeout, config.collective_timeout
    world = join(place, config.backend, *timeouts, failures)
    # Not before: a worker that waits for peers that will never come is to die of a SIGTERM.
    scheduler = os.environ.get(VARIABLE, "")
    stop = StopRequest(directory / "stop", scheduler, watches=place.local_rank == 0)
    facts = manifest.facts(config, world.device)
    assembly = agreement.assemble(world, config.weight, facts, directory, node)
    _acquaint(reporter, world)
    host = None
    if node is not None:
        host = Host(node, agreement.enter(node, assembly, place), failures)
        fence = agreement.take_directory(directory, assembly, world)
    parts = ranges(_shares(config, assembly))
    if world.rank == 0:
        agreement.introduce(assembly, world.backend, parts)
    with doing("building model and data"):
        job, state = _set_up(config, world, parts[world.rank])
    with _told_to_all(node), _store(config, directory, fence, world) as remote:
        with doing("loading the checkpoint"):
            source = _resume(job, state, directory, fence, assembly)
        reporter.follow(state)
        # Before DDP, which would quietly give every rank the parameters of rank 0.
        with doing("comparing the parameters"):
            _check_equal(job, state)
        with doing("connecting the ranks"):
            machinery = _machinery(job, parts)
        books = Books(directory, fence, job, state.step, source, remote) if fence else None
        if books is not None:
            replaced.before_end = books.saver.abandon
        if host is not None:
            host.begin(state.step, books)
        # Nobody trains before the status says `running`: a rank that fails at once says so after it.
        world.barrier()
        try:
            outcome = _train(job, state, machinery, Observer(job, books, stop, host))
        finally:
            reporter.hold()
            if books is not None:
                # A peer's crash does not spoil what was copied before it: let it get to the disk.
                books.saver.settle()
    if failures is not None:
        world.barrier()
        failures.close()
    reporter.stop()
    leave(world)
    return EXIT_CHANGED if outcome is Outcome.LEFT else 0


@contextmanager
def _told_to_all(node: Node | None) -> Iterator[None]:
    """Of several hosts none goes on when rank 0 may not write any more."""
    try:
        yield
    except FencedOffError as error:
        if node is None:
            raise
        node.check()  # where only this host was started anew, the others go on without it
        raise TrainError(str(error)) from None


@contextmanager
def _store(
    config: RunConfig, directory: Path, fence: Fence | None, world: World
) -> Iterator[RemoteCheckpoints | None]:
    """Rank 0 takes the store, if there is one, and brings its newest checkpoint here.

    Raises TrainError on every rank when that cannot be. A job that fails for good says so there.
    """
    if not config.checkpoint_store:
        yield None
        return
    remote, why = None, ""
    if fence is not None:
        from train.checkpoint.remote import open_remote  # only where there is a store

        job = os.environ.get("DDPGEN_JOB", "(started by hand)")
        try:
            place, keep = config.checkpoint_store, config.checkpoint_keep
            remote = open_remote(place, directory, keep, fence, f"{job} {fence.attempt}")
            remote.pull(fence.check)
        except (TrainError, FencedOffError) as error:
            why = str(error)
    try:
        agreement.agree(world, "checkpoint store", why, STORE_S)
        yield remote
    except TrainError as error:
        if remote is not None:
            remote.give_up(str(error))
        raise


def _acquaint(reporter: Reporter, world: World) -> None:
    """Let the reporters of this world know each other, over the network where it has several hosts."""
    name = world.gather(secrets.token_hex(4))[0]
    reporter.meet(name, world.store if len(world.layout) > 1 else None)
    if world.backend == "nccl":
        # Its watchdog aborts the process; no exception ever comes.
        reporter.speak_before(world.collective_timeout, lambda line: say(line, world.rank))


def _claim_by_hand(directory: Path) -> str:
    """What a launch script does otherwise: take the directory, forget an old request to stop."""
    job = os.environ.get("DDPGEN_JOB", "(started by hand)")
    attempt = claim(directory, job, os.getpid(), scheduler=os.environ.get(VARIABLE, ""))
    (directory / "stop").unlink(missing_ok=True)
    return attempt


@dataclass(frozen=True)
class Host:
    """This process' part of its host's books, where the job runs on several: local rank 0 has it."""

    node: Node
    fence: Fence | None
    failures: FailureBroadcast | None

    def begin(self, step: int, books: Books | None) -> None:
        if self.fence is not None:
            self.node.write("running", step)
        if self.failures is not None and books is not None:
            self.failures.before_end = books.saver.settle

    def end(self, word: str, step: int, reason: str = "") -> None:
        """The host's last word. Raises FencedOffError, TrainError when it cannot be written."""
        if self.fence is None:
            return
        try:
            self.node.write(word, step, reason)
        except OSError as error:
            raise TrainError(
                f"the status file in {self.node.directory} cannot be written: {error.strerror}; "
                "make room or restore the permission, and start the job again"
            ) from None
        self.fence.close()


class Observer:
    """The loop's Watcher: passes what it sees to the books, if this rank has any."""

    def __init__(self, job: Job, books: Books | None, stop: StopRequest, host: Host | None) -> None:
        self._job, self._books, self._stop, self._host = job, books, stop, host

    def stop_requested(self) -> bool:
        return self._stop.by_file or (self._stop.by_signal and not self._job.config.elastic)

    def leave_requested(self) -> bool:
        return self._stop.by_signal and self._job.config.elastic

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
        with doing(EVALUATION), self._job.autocast():
            metrics = evaluate(self._job.workload, self._job.world, self._job.config)
        if metrics and self._books is not None:
            self._books.evaluated(step, metrics)

    def close(self, state: State, outcome: Outcome) -> None:
        """Make the end durable. Raises TrainError on every rank when rank 0 could not."""
        reason = ""
        if outcome is Outcome.STOPPED:
            # Only some may know it, and each host's status is to say the same.
            reason = foremost(self._job.world.gather(self._stop.reason))
        taken = outcome is Outcome.STOPPED and reason.startswith((PREEMPTED, BY_SIGNAL))
        leaving = taken or outcome is Outcome.LEFT
        goes_on = taken and bool(self._job.config.checkpoint_store)
        why = self._books.save_last(state, leaving, goes_on) if self._books is not None else ""
        if outcome is Outcome.LEFT:
            self._part(state, why)
            return
        agreement.agree(self._job.world, "last checkpoint", why, self._last_save_s)
        # After the checkpoint: a fault in an evaluation must not cost the training.
        if outcome is Outcome.DONE:
            self.evaluate(state.step)
        if self._books is not None:
            self._books.close(state.step, stopped=outcome is Outcome.STOPPED, reason=reason)
        if self._host is not None:
            self._host.end(outcome.value, state.step, reason)
        self._stop.close()

    @property
    def _last_save_s(self) -> float:
        return STORE_S if self._job.config.checkpoint_store else LAST_SAVE_S

    def _part(self, state: State, why: str) -> None:
        """Meet again as another world: no last word, and a checkpoint only if it can be had."""
        self._job.world.from_rank_0("last checkpoint", why, self._last_save_s)
        if self._books is not None:
            if why:
                self._books.say(f"{why}; going on from the one before")
            self._books.part(state.step)
        if self._host is not None:
            self._host.end("running", state.step)
        self._stop.close()


def _check_world_size(config: RunConfig, place: Place, among_hosts: bool) -> None:
    if config.world_size in (None, place.world_size):
        return
    what = f"planned for {config.world_size} processes and started as {place.world_size}"
    if among_hosts and place.world_size < (config.world_size or 0):
        # The host's script has counted the processes from the nodes that it was told of.
        raise TrainError(
            f"{what}: torchrun has left a node out, as it does when the clocks of the nodes are 10 s "
            "apart or more; compare them (`date +%s` on each at once; `ddpgen explain CLK001`), let "
            "all keep time by NTP, and start the job again"
        )
    raise TrainError(
        f"{what}; start the job by its launch script, or render it again for this number"
    )


def _shares(config: RunConfig, assembly: agreement.Assembly) -> tuple[int, ...]:
    weights = [member.weight for member in assembly.members]
    shares = config.shares or shares_by_weight(config.micro_batches, weights)
    if len(shares) != len(weights):
        raise TrainError(f"--shares names {len(shares)} ranks, the world has {len(weights)}")
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


def _resume(
    job: Job, state: State, directory: Path, fence: Fence | None, assembly: agreement.Assembly
) -> str:
    """Go on from the newest checkpoint. Returns the host that had it, if not that of rank 0."""
    found = find(directory, job.world, fence.check if fence else lambda: None)
    if found is None:
        return ""
    _check_settings(job, found.source)
    restore(state, found.source)
    if state.step > job.last_step:
        raise TrainError(
            f"the newest checkpoint in {directory} is of step {state.step}, beyond the "
            f"{job.last_step} steps asked for; ask for more steps or use another checkpoint.dir"
        )
    return assembly.members[found.rank].host if found.rank else ""


def _check_settings(job: Job, found: Source) -> None:
    """Refuse to continue a run as a different one; say so where only the bits may differ."""
    now = _as_json(manifest.settings(job.config, job.last_step))
    changed = manifest.differences(found.meta.get("settings", {}), now)
    if changed and not job.config.accept_changes:
        raise TrainError(
            f"the checkpoint of step {found.step} was written with other settings: "
            f"{'; '.join(changed)}. Use another checkpoint.dir to start anew, or add "
            "--accept-changes to the training command to go on from it with the new settings "
            f"({start_command(len(job.world.layout) > 1)} --accept-changes)"
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
    mesh = connect(world)
    if config.reduction == "tree":
        gradients = tree = TreeGradients(model, world, config, all_ranges)
        if any(module._buffers for module in model.modules()):
            reducer = MeshReducer(mesh, all_ranges, tree.reducer) if mesh else tree.reducer
            buffers = Buffers(model, reducer, job.mine, config.micro_batches)
    else:
        gradients = AllReduceGradients(model, world, config)
    control = Control(world, job.mine, config.micro_batches, mesh)
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


def _train(job: Job, state: State, machinery: Machinery, observer: Observer) -> Outcome:
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
    outcome = train(job, state, machinery, batches, observer)
    machinery.gradients.close()
    with doing("last checkpoint"):
        observer.close(state, outcome)
    return outcome


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
