"""The cost of a step: our loop against a bare DDP loop, the tree against DDP's own all-reduce.

Every contender is set up in the same processes and takes its turn for a block of steps, again and
again, so that a drift in the machine's speed affects all of them. The output has the medians over the
blocks, their spread, the processor time of rank 0 in all its threads (other work on the machine
disturbs it less than the wall-clock time), and the ratios block by block.

  ours/tree       train/ as a job runs it: metrics row and progress line each step
  ours/allreduce  the same with reduction: allreduce
  bare            a DDP loop written by hand: same model, micro-batches, optimizer and dataset

With --all-on: a job with everything that observes the training, against a job without it. Give --seconds 5 or more,
because the process of the tracker takes the rows a second later:

  all on          each rank's times and their rows, share: auto, and the tracker tensorboard
  all off         none of them (the bit probe runs before the first step and the report after the last: in no step)

With --digest: our loop with the weights hashed every 10 steps (train.digest), against our loop without it.

With --shard: our loop with shard: optimizer against our loop without it, with two processes or more:

  ours/tree       as above
  ours/shard      each rank updates its own parameters, and then the ranks exchange them

With --cuda: on GPU 0, which all processes share (nccl for one process, gloo for more, because NCCL refuses two ranks on
one card):

  ours/tree       as above, deterministic
  bare            by hand, with torch's own defaults
  bare/exact      by hand, deterministic

With --determinism: our loop with determinism: portable, against our loop with the default. A process chooses its
kernels only once, so each block is a launch of its own.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from train.distributed.timing import StepClock  # noqa: E402 - the checkout, put there above

GPT = "--arg=dropout=0.1 --optimizer=adamw --grad-clip=1.0 --global-batch-size=16"
LARGER = "--arg=width=384 --arg=heads=6 --arg=seq_len=64 --arg=max_bytes=2000000"
TOY = "--arg=batch_norm=true --arg=hidden=256 --optimizer=sgd --global-batch-size=64"
LOOPS = ("bare", "ours/tree", "ours/allreduce")
ALL_ON = ("all off", "all on")
DIGEST = ("digest off", "digest on")
SHARD = ("ours/tree", "ours/shard")
ON_GPU = ("bare", "bare/exact", "ours/tree")
# name -> (argv of the run, processes to measure with)
CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "gpt 0.8M, 8 micro-batches": (
        f"--workload=gpt {GPT} --micro-batch-size=2 --arg=max_bytes=2000000",
        (1, 2, 4),
    ),
    "gpt 7.3M, one micro-batch each": (
        f"--workload=gpt {GPT} --micro-batch-size=@SHARE {LARGER}",
        (1, 2, 4),
    ),
    "two layers with batch norm, 0.03M": (
        f"--workload=toy {TOY} --micro-batch-size=@SHARE",
        (1, 2),
    ),
}

LONG = "--arg=depth=12 --arg=width=768 --arg=heads=12 --arg=seq_len=1024 --arg=max_bytes=20000000"
GPU_CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "gpt 86M, bf16, 4 micro-batches of 8 x 1024": (
        f"--workload=gpt {GPT} --global-batch-size=32 --micro-batch-size=8 --precision=bf16 {LONG}",
        (1, 2),
    ),
    "gpt 86M, fp32, 4 micro-batches of 8 x 1024": (
        f"--workload=gpt {GPT} --global-batch-size=32 --micro-batch-size=8 {LONG}",
        (1,),
    ),
    "gpt 0.8M, fp32, 8 micro-batches of 2 x 128": (*CASES["gpt 0.8M, 8 micro-batches"][:1], (1, 2)),
    "two layers with batch norm, 0.03M": CASES["two layers with batch norm, 0.03M"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a block, about")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--all-on", action="store_true", help="compare all on and all off, instead")
    parser.add_argument("--digest", action="store_true", help="hashes of the weights on and off")
    parser.add_argument("--shard", action="store_true", help="shard: optimizer against none")
    parser.add_argument("--cuda", action="store_true", help="on GPU 0, which all processes share")
    parser.add_argument("--determinism", action="store_true", help="portable against the default")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker), options.blocks, options.seconds)
        return
    results = []
    chosen = {
        ALL_ON: options.all_on, DIGEST: options.digest, SHARD: options.shard, ON_GPU: options.cuda, LOOPS: True
    }  # fmt: skip
    contenders = next(each for each, is_chosen in chosen.items() if is_chosen)
    for name, (argv, worlds) in (GPU_CASES if options.cuda else CASES).items():
        for world in worlds if options.only in name else ():
            if options.shard and world == 1:
                continue
            if options.determinism:
                found = measure_determinism(argv, world, options)
            else:
                found = measure(argv, world, options, contenders)
            results.append({"case": name, "processes": world, **found})
            print_result(results[-1])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def measure_determinism(argv: str, world: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the two settings in turns. Each launch has one block."""
    result: dict[str, Any] = {"ms": {}, "cpu_ms": {}}
    once = argparse.Namespace(blocks=1, seconds=options.seconds, cuda=False)
    for _ in range(options.blocks):
        for setting in ("default", "portable"):
            block = measure(f"{argv} --determinism={setting}", world, once, ("ours/tree",))
            for kind, values in result.items():
                values.setdefault(setting, []).extend(block[kind]["ours/tree"])
    return result


def measure(
    argv: str, world: int, options: argparse.Namespace, contenders: tuple[str, ...]
) -> dict[str, Any]:
    """Return the milliseconds a step of each contender, block by block, in one launch."""
    batch = next(int(a.split("=")[1]) for a in argv.split() if a.startswith("--global-batch"))
    words = argv.replace("@SHARE", str(batch // world)).split()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "result.json"
        case = {
            "argv": words, "directory": directory, "out": str(out), "contenders": contenders, "cuda": options.cuda
        }  # fmt: skip
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--local-addr=127.0.0.1", f"--nproc-per-node={world}", __file__,
            f"--blocks={options.blocks}", f"--seconds={options.seconds}",
            f"--worker={json.dumps(case)}",
        ]  # fmt: skip
        env = {
            **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"
        }  # fmt: skip
        done = subprocess.run(
            command, env=env, timeout=600, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        result: dict[str, Any] = json.loads(out.read_text())
        return result


def work(case: dict[str, Any], blocks: int, seconds: float) -> None:
    """One rank: set up every contender, then let them take turns."""
    from train.run import portable

    if portable.is_asked(case["argv"]):
        portable.pin(os.environ)
    from train.distributed.process_group import RankInfo, join
    from train.run.config import parse
    from train.training.numerics import pin

    backend = "gloo"
    if case["cuda"]:  # each process as the only one of its host, so that all take GPU 0
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        backend = "nccl" if os.environ["WORLD_SIZE"] == "1" else "gloo"
    place = RankInfo.from_environment(os.environ)
    pin(1)
    world = join(place, backend, 60, 60)
    fixed = ["--steps=1000000", "--checkpoint-dir=.", *case["argv"]]
    directory = Path(case["directory"])
    all_reduce = [*fixed, "--reduction=allreduce"]
    tracked = [*fixed, "--tracker=tensorboard", "--balance"]
    make: dict[str, Callable[[], Callable[[int], None]]] = {
        "bare": lambda: bare(parse(fixed), world, exact=not case["cuda"]),
        "bare/exact": lambda: bare(parse(fixed), world, exact=True),
        "ours/tree": lambda: ours(parse(fixed), world, directory / "tree"),
        "ours/shard": lambda: ours(
            parse([*fixed, "--shard=optimizer"]), world, directory / "shard"
        ),
        "ours/allreduce": lambda: ours(parse(all_reduce), world, directory / "allreduce"),
        "digest off": lambda: ours(parse(fixed), world, directory / "plain"),
        "digest on": lambda: ours(parse([*fixed, "--digest"]), world, directory / "digest"),
        "all off": lambda: ours(parse(fixed), world, directory / "off", NoClock()),
        "all on": lambda: ours(parse(tracked), world, directory / "on"),
    }
    contenders = {name: make[name]() for name in case["contenders"]}
    while "all on" in contenders and not any(directory.glob("on/tensorboard/*")):
        time.sleep(0.1)  # the tracker's imports take seconds
    for run in contenders.values():
        run(3)
    began = time.perf_counter()
    contenders[case["contenders"][0]](5)
    steps = max(3, round(seconds * 5 / (time.perf_counter() - began)))
    steps = world.all_gather(steps)[0]
    times: dict[str, list[float]] = {name: [] for name in contenders}
    busy: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks):
        for name, run in contenders.items():
            world.barrier()
            began, began_busy = time.perf_counter(), time.process_time()
            run(steps)
            times[name].append((time.perf_counter() - began) / steps * 1e3)
            busy[name].append((time.process_time() - began_busy) / steps * 1e3)
    if world.rank == 0:
        Path(case["out"]).write_text(json.dumps({"ms": times, "cpu_ms": busy}))
    world.barrier()
    os._exit(0)


class NoClock(StepClock):
    """A clock that measures nothing, so that there are no rows of the ranks' times."""

    def begin(self) -> None: ...
    def end(self) -> None: ...
    def ready(self) -> None: ...
    def reduced(self) -> None: ...

    @contextmanager
    def waiting(self) -> Iterator[None]:
        yield

    batch = waiting

    def report(self) -> list[float]:
        return []


def ours(
    config: Any, world: Any, directory: Path, clock: StepClock | None = None
) -> Callable[[int], None]:
    """Return the loop of a job's trainer, with its records in `directory`. `clock`: instead of the trainer's own."""
    from train.run.lock import Fence, claim
    from train.run.stop import StopRequest
    from train.trainer import Trainer
    from train.training.data import fetch_batches

    directory.mkdir(exist_ok=True, parents=True)
    trainer = Trainer(config, world, evenly(config, world), StopRequest(directory / "stop"), None)
    trainer.clock = clock or trainer.clock
    trainer.check_repeats()
    trainer.connect()
    if world.rank == 0:
        sys.stdout = io.StringIO()
        fence = Fence(directory, claim(directory, "bench", os.getpid()))
        names = [f"rank {rank}" for rank in range(world.size)]
        trainer.open_records(
            directory,
            fence,
            rank_names=names,
            checkpoint_host="",
            argv=(),
            hosts={},
            environments={},
        )
    keys = trainer.shares.keys(trainer.fetcher, range(trainer.last_step))
    batches = fetch_batches(trainer.fetcher, keys, 0, 1, 60, pin_memory=world.device.type == "cuda")

    def run(steps: int) -> None:
        set_exact(True, world.device)
        trainer.last_step = trainer.state.step + steps
        trainer.take_steps(batches)
        finish(world.device)

    return run


def set_exact(exact: bool, device: Any) -> None:
    """On a GPU, choose the operations that repeat their bits, or torch's own defaults."""
    import torch

    if device.type == "cuda":
        torch.set_deterministic_debug_mode("error" if exact else "default")
        torch.backends.cudnn.allow_tf32 = not exact


def finish(device: Any) -> None:
    """Wait until the GPU has finished all its work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bare(config: Any, world: Any, exact: bool) -> Callable[[int], None]:
    """Return a loop as a user writes it by hand: only DDP, gradient accumulation, clipping and the optimizer."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from train.run.stop import StopRequest
    from train.trainer import Trainer
    from train.training.data import batch_reader, to_device

    never = StopRequest(Path(config.checkpoint_dir, "stop"))
    trainer = Trainer(config, world, evenly(config, world), never, None)
    workload, state = trainer.workload, trainer.state
    model = DistributedDataParallel(workload.model, gradient_as_bucket_view=True)
    read = batch_reader(workload.dataset, workload.collate)
    each, mine = config.micro_batch_size, len(trainer.shares.own)
    # The order of a sampler: one shuffled epoch, again and again.
    order = torch.randperm(len(workload.dataset)).tolist()
    position = 0

    def run(steps: int) -> None:
        nonlocal position
        set_exact(exact, world.device)
        for step in range(steps):
            state.optimizers[0].zero_grad(set_to_none=True)
            for i in range(mine):
                start = (position * world.size + world.rank) * each % (len(order) - each)
                batch = to_device(read(order[start : start + each]), world.device)
                position += 1
                with nullcontext() if i == mine - 1 else model.no_sync():
                    with trainer.autocast():
                        loss = workload.loss(model, batch) / mine
                    loss.backward()
            if config.grad_clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
            state.optimizers[0].step()
            if step % config.log_every == 0:
                loss.item()
        finish(world.device)

    return run


def evenly(config: Any, world: Any) -> Any:
    """Return the micro-batches of each rank."""
    from train.training.data import ranges, shares_by_weight
    from train.training.shares import Shares

    counts = shares_by_weight(config.micro_batches, [Fraction(1)] * world.size)
    return Shares(ranges(counts), world.rank, config)


def print_result(result: dict[str, Any]) -> None:
    print(f"\n{result['case']}, {result['processes']} process(es)")
    times = result["ms"]
    for name, values in times.items():
        print(
            f"  {name:<15} {statistics.median(values):9.3f} ms a step"
            f"   ({min(values):.3f} … {max(values):.3f}),"
            f" {statistics.median(result['cpu_ms'][name]):.3f} ms of processor"
        )
    pairs = (
        ("ours/tree", "bare"), ("bare/exact", "bare"), ("ours/tree", "bare/exact"), ("ours/tree", "ours/allreduce"), ("portable", "default"), ("all on", "all off"), ("digest on", "digest off"), ("ours/shard", "ours/tree")
    )  # fmt: skip
    for a, b in pairs:
        if a not in times or b not in times:
            continue
        ratios = [x / y for x, y in zip(times[a], times[b], strict=True)]
        more = statistics.median(x - y for x, y in zip(times[a], times[b], strict=True)) * 1e3
        print(
            f"  {a} / {b}: {statistics.median(ratios):.3f}   ({min(ratios):.3f} … "
            f"{max(ratios):.3f}), {more:+.0f} µs a step"
        )


if __name__ == "__main__":
    main()
