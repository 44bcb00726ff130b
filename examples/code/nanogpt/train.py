"""A plain DDP loop in nanoGPT's conventions: settings as `--key=value`, one ckpt.pt that is overwritten in
place, `--init_from=resume` to resume. Nothing here knows of a launcher."""

import os
import sys
from ast import literal_eval

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

out_dir = "out"
init_from = "scratch"  # or "resume"
always_save_checkpoint = True
eval_interval = 25
max_iters = 400
batch_size = 8
learning_rate = 1e-3
compile = False  # noqa: A001 - nanoGPT calls it so

for argument in sys.argv[1:]:  # --key=value overrides a setting above
    key, value = argument.removeprefix("--").split("=")
    if key not in globals():
        raise ValueError(f"Unknown config key: {key}")
    try:
        globals()[key] = literal_eval(value)
    except (SyntaxError, ValueError):
        globals()[key] = value

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, device = dist.get_rank(), "cpu"
if torch.cuda.is_available():
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(device)
master = rank == 0
if master:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(
    device
)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num = 0
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
if compile:
    model = torch.compile(model)
ddp = DistributedDataParallel(model)

while iter_num < max_iters:
    seed = iter_num * dist.get_world_size() + rank
    x = torch.randn(batch_size, 64, generator=torch.Generator().manual_seed(seed)).to(device)
    loss = torch.nn.functional.mse_loss(ddp(x), x.roll(1, dims=1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if master and (iter_num % eval_interval == 0 or iter_num == max_iters):
        print(f"iter {iter_num}: loss {loss.item():.4f}", flush=True)
        if always_save_checkpoint:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "iter_num": iter_num,
            }
            torch.save(state, os.path.join(out_dir, "ckpt.pt"))
dist.destroy_process_group()
