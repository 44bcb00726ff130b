"""A training loop of your own, launched by ddpgen: two spirals, told apart by a small network.

It imports nothing of ddpgen. What it owes the launcher is marked (1) to (5), as in
docs/own-script.md: find your peers, resume, save atomically, agree on a stop, and exit with the
code that says how it ended.
"""

import argparse
import math
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STOPPED = 75  # the exit code for "stopped when asked to; the same command goes on"


def main() -> int:
    """Train from the newest checkpoint on; return the exit code."""
    args = parse_args()
    # (1) torchrun has set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. The timeout is
    # explicit: left alone, a dead peer is noticed after 10 to 30 minutes.
    device = own_device()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=120))
    rank, checkpoint = dist.get_rank(), Path(os.environ["DDPGEN_CHECKPOINT_DIR"], "checkpoint.pt")

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model = DistributedDataParallel(network.append(nn.Linear(64, 2)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    first = resume(checkpoint, model, optimizer, device)  # (2)

    done = first
    for step in range(first, args.steps):
        points, spiral = spirals(args.batch_size, seed=step * dist.get_world_size() + rank)
        loss = nn.functional.cross_entropy(model(points.to(device)), spiral.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        stop = anyone_asked_to_stop(device)  # (4) after a whole step, never in the middle of one
        done = step + 1
        if stop or done == args.steps or done % args.checkpoint_every == 0:
            save(checkpoint, model, optimizer, done)  # (3)
            if rank == 0:
                print(f"step {done}/{args.steps} loss {loss.item():.4f}", flush=True)
        if stop:
            break
    dist.destroy_process_group()
    # (5) 0: done. 75: stopped as asked. Any other code, or a death, is a failure.
    return 0 if done == args.steps else STOPPED


def parse_args() -> argparse.Namespace:
    """What `train.args` of the spec sets: `steps: 900` arrives as `--steps=900`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    return parser.parse_args()


def own_device() -> torch.device:
    """One GPU for each process of a host, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device) -> int:
    """Rank 0 reads, all get it: the others may run where there is no such file, or an older one."""
    state = [torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None]
    dist.broadcast_object_list(state, src=0, device=device)
    if state[0] is None:
        return 0
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    return state[0]["step"]


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Whole under its name or not there: a kill at any moment leaves the previous one in place."""
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        with open(path.with_suffix(".tmp"), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path.with_suffix(".tmp"), path)
    dist.barrier()  # nobody goes on, or exits, before the file is there


def anyone_asked_to_stop(device: torch.device) -> bool:
    """One rank that sees the file is enough, and all of them stop after the same step."""
    asked = torch.tensor(float(os.path.exists(os.environ["DDPGEN_STOP_FILE"])), device=device)
    dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    return bool(asked)


def spirals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points [count, 2] and which of the two arms each is on, made from the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    spiral = torch.randint(2, (count,), generator=generator)
    turn = torch.rand(count, generator=generator) * 2 * math.pi + 0.5
    angle = turn + spiral * math.pi
    return torch.stack((angle.cos(), angle.sin()), dim=1) * turn[:, None] / 6, spiral


if __name__ == "__main__":
    sys.exit(main())
