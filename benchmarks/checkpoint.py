"""The cost of a checkpoint for the training, by ddpgen, torch.save, dcp.save and dcp.async_save.

    python benchmarks/checkpoint.py [--processes 2] [--blocks 5]
    sudo python benchmarks/checkpoint.py --hosts     on two hosts of the rig of tests/real, with a shared directory
    python benchmarks/checkpoint.py --cuda           on GPU 0 of this machine, with one process

`--processes` is the number on each host. The model is saved every 10 steps. It has two layers and AdamW, about 250 MB of
state. With --cuda it is a gpt of 25M parameters in bf16, about 300 MB. The contenders take turns, a launch each. Two of them,
a job of ddpgen and a loop written by hand, save nothing. Printed are medians over the blocks:

  lost      the time of 40 steps with 4 checkpoints, less the time of the same steps without, over 4
  worst     the longest step, less the median step of the run that saves nothing
  durable   seconds from the end of the step until the checkpoint is complete. Ours is flushed to the disk (fsync) by
            then, and checkpoint.json has its hashes. The others are only written.

The loop written by hand saves the states of model and optimizer. torch.save writes on rank 0, before a barrier. With
torch.distributed.checkpoint every rank writes a part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARED, NAMES, PORT = "/shared", ("node1", "node2"), 29511
EVERY, FIRST, LAST = 10, 11, 50  # steps; a step of FIRST … LAST counts, and 4 checkpoints
STEPS = LAST + 5
MICRO_BATCH = 4
ON_GPU: dict[str, Any] = {
    "batch": 128, "args": {"depth": 8, "width": 512, "heads": 8, "seq_len": 1024, "max_bytes": 20_000_000}
}  # fmt: skip
OURS, BY_HAND = "ours", "by hand"
SAVES_NOTHING = {OURS: "ours, none", BY_HAND: "by hand, none"}
CONTENDERS = {
    "ours, none": OURS,
    "ours": OURS,
    "by hand, none": BY_HAND,
    "torch.save": BY_HAND,
    "dcp.save": BY_HAND,
    "dcp.async_save": BY_HAND,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--hosts", action="store_true", help="on two hosts of a rig, as root")
    parser.add_argument("--cuda", action="store_true", help="on GPU 0, with one process")
    parser.add_argument("--hidden", type=int, default=20_000, help="width of the model's layer")
    parser.add_argument("--directory", type=Path, help="for the checkpoints  [default: build]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE, too")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.processes = 1 if options.cuda else options.processes
    if options.worker:
        train_by_hand(**json.loads(options.worker))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with ExitStack() as stack:
        rig = new_rig(stack) if options.hosts else None
        for _ in range(options.blocks):
            runs = {name: measure(name, options, rig) for name in CONTENDERS}
            for name, run in runs.items():
                found[name].append(costs(run, runs[SAVES_NOTHING[CONTENDERS[name]]]))
                print(f"  {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    size = found["ours"][0]["bytes"] / 1e6
    processes = options.processes * (len(NAMES) if rig else 1)
    print(f"{size:.0f} MB, {processes} processes, every {EVERY} steps, {options.blocks} blocks")
    for name, blocks in found.items():
        print(f"  {name:15}", *(shown(key, [b[key] for b in blocks]) for key in SHOWN))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


SHOWN = ("step", "lost", "worst", "durable")


def shown(key: str, values: list[float]) -> str:
    """The median of the blocks, and their least and greatest."""
    return f" {key} {statistics.median(values):.3f} s ({min(values):.3f} … {max(values):.3f})"


def costs(run: dict[str, Any], saves_nothing: dict[str, Any]) -> dict[str, float]:
    """Return the cost of a run's checkpoints, against the run of the same block that saves nothing."""
    checkpoints = (LAST - FIRST + 1) // EVERY
    plain = saves_nothing["steps"]
    return {
        "step": statistics.median(run["steps"]),
        "lost": (sum(run["steps"]) - sum(plain)) / checkpoints,
        "worst": max(run["steps"]) - statistics.median(plain),
        "durable": statistics.median(run["durable"] or [0.0]),
        "bytes": run["bytes"],
    }


def new_rig(stack: ExitStack) -> Any:
    """Start two hosts that share a directory."""
    sys.path.insert(0, str(ROOT))
    from tests.real.rig import Host, Rig

    return stack.enter_context(Rig([Host(name, shared=SHARED) for name in NAMES]))


def measure(name: str, options: argparse.Namespace, rig: Any) -> dict[str, Any]:
    """Run one contender. Return the seconds of its steps FIRST … LAST, and of its checkpoints until they are complete."""
    parent = rig.shared if rig else options.directory or ROOT / "build"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        outside = Path(directory)
        outside.chmod(0o777)
        place = Path(SHARED, outside.name) if rig else outside
        command: list[str] = []
        if CONTENDERS[name] == OURS:
            every = EVERY if name == "ours" else 10 * STEPS
            micro_batch = ON_GPU["batch"] if options.cuda else MICRO_BATCH
            arguments = (
                ON_GPU["args"] if options.cuda else {"features": 1000, "hidden": options.hidden}
            )
            command += [
                "-m", "train", "run", f"--workload={'gpt' if options.cuda else 'toy'}", f"--steps={STEPS}",
                f"--checkpoint-dir={place / 'ours'}",
                f"--global-batch-size={micro_batch * options.processes * (len(NAMES) if rig else 1)}",
                f"--micro-batch-size={micro_batch}", "--optimizer=adamw", "--log-every=1000",
                *(f"--arg={key}={value}" for key, value in arguments.items()),
                f"--checkpoint-every={every} steps", *(["--precision=bf16"] if options.cuda else []),
            ]  # fmt: skip
        else:
            case = {
                "name": name,
                "place": str(place),
                "hidden": options.hidden,
                "cuda": options.cuda,
            }
            command += [__file__, f"--worker={json.dumps(case)}"]
        (on_hosts if rig else here)(command, place, options.processes, rig)
        return read_ours(outside / "ours") if CONTENDERS[name] == OURS else read_by_hand(outside)


VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DDPGEN_JOB": "checkpoint"}


def here(command: list[str], place: Path, processes: int, _: Any) -> None:
    """Run the command on this machine, by torchrun."""
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
        f"--nproc-per-node={processes}",
    ]  # fmt: skip
    env = {**os.environ, **VARIABLES, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*torchrun, *command], env=env, cwd=place, timeout=600, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def on_hosts(command: list[str], place: Path, processes: int, rig: Any) -> None:
    """Run the command on all hosts of the rig, by a torchrun on each."""
    started = []
    for host in rig:
        torchrun = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(NAMES)}", f"--local-addr={host.address}",
            f"--nproc-per-node={processes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={NAMES[0]}:{PORT}",
            f"--rdzv-id={place.name}",
        ]  # fmt: skip
        env = {**VARIABLES, "GLOO_SOCKET_IFNAME": host.nic}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(host.popen([*torchrun, *command], env=env, cwd=str(place), **pipes))
    outputs = [each.communicate(timeout=900)[0] for each in started]
    if any(each.returncode for each in started):
        sys.exit("\n".join(outputs))


def read_ours(directory: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    ends = {row["step"]: row["time"] for row in rows if row["kind"] == "step"}
    newest = max(directory.glob("step-*"))
    return {
        "steps": [ends[step] - ends[step - 1] for step in range(FIRST, LAST + 1)],
        "durable": [row["seconds"] for row in rows if row["kind"] == "checkpoint" and row["step"] < LAST],
        "bytes": sum(file.stat().st_size for file in newest.iterdir()),
    }  # fmt: skip


def read_by_hand(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "result.json").read_text())
    return found


def problem(hidden: int, cuda: bool, rank: int) -> tuple[Any, Callable[[Any], Any]]:
    """Return the model of this rank, and a function from the model under DDP to the loss of the next batch."""
    import torch

    from train.workload import Context
    from train.workloads import gpt
    from train.workloads.toy import Classifier

    batches = torch.Generator().manual_seed(rank)
    if not cuda:

        def toy(model: Any) -> Any:
            inputs = torch.randn(MICRO_BATCH, 1000, generator=batches)
            labels = torch.randint(0, 4, (MICRO_BATCH,), generator=batches)
            return torch.nn.functional.cross_entropy(model(inputs), labels)

        return Classifier(1000, 4, hidden, 0.0, False), toy
    device, size = torch.device("cuda", 0), ON_GPU["batch"]
    made = gpt.build(Context(0, rank, 0, 1, device, size), **ON_GPU["args"])

    def loss(model: Any) -> Any:
        chosen = torch.randint(0, len(made.dataset), (size,), generator=batches).tolist()
        batch = torch.utils.data.default_collate([made.dataset[i] for i in chosen])
        with torch.autocast("cuda", torch.bfloat16):
            return made.loss(model, batch.to(device))

    return made.model.to(device), loss


def train_by_hand(name: str, place: str, hidden: int, cuda: bool) -> None:
    """One rank of a loop as one writes it by hand: DDP, AdamW, and a save every EVERY steps."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    made, next_loss = problem(hidden, cuda, rank)
    model = DistributedDataParallel(made, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    durable: list[float] = []
    ends = [time.perf_counter()]
    save = saver(name, Path(place), model, optimizer, durable)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad(set_to_none=True)
        loss = next_loss(model)
        loss.backward()
        optimizer.step()
        loss.item()  # a GPU's work counts in its own step
        if step % EVERY == 0 and step <= LAST:
            save(step)
        ends.append(time.perf_counter())
    save(0)  # wait for the last one
    if rank == 0:
        steps = [ends[step] - ends[step - 1] for step in range(FIRST, LAST + 1)]
        found = {"steps": steps, "durable": durable, "bytes": 0}
        Path(place, "result.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def saver(
    name: str, place: Path, model: Any, optimizer: Any, durable: list[float]
) -> Callable[[int], None]:
    """Return what saves a step. Step 0 stands for the end: wait for what is being written."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict_saver import async_save
    from torch.distributed.checkpoint.state_dict_saver import save as save_parts

    pending: list[Any] = []
    # Collectives of async_save's thread would meet those of the training in the same group, and wait for ever.
    group = dist.new_group(backend="gloo")

    def by_torch(step: int, state: dict[str, Any], written: Callable[[], None]) -> None:
        if dist.get_rank() == 0:
            torch.save(state, place / f"{step}.new")
            os.replace(place / f"{step}.new", place / f"{step}.pt")
        dist.barrier()
        written()

    def by_dcp(step: int, state: dict[str, Any], written: Callable[[], None]) -> None:
        save_parts(state, checkpoint_id=place / str(step))
        written()

    def by_dcp_in_the_background(
        step: int, state: dict[str, Any], written: Callable[[], None]
    ) -> None:
        future = async_save(state, checkpoint_id=place / str(step), process_group=group)
        assert isinstance(future, Future)
        future.add_done_callback(lambda _: written())
        pending.append(future)

    ways = {
        "torch.save": by_torch, "dcp.save": by_dcp, "dcp.async_save": by_dcp_in_the_background,
    }  # fmt: skip

    def save(step: int) -> None:
        began = time.perf_counter()
        while pending:
            pending.pop().result()
        if step and name in ways:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            ways[name](step, state, lambda: durable.append(time.perf_counter() - began))

    return save


if __name__ == "__main__":
    main()
