"""A regression with Lightning Fabric, which saves its state after every epoch. Nothing here knows of a launcher."""

import argparse
import os

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

fabric = Fabric(
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
)
fabric.launch()
fabric.seed_everything(0)

model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer = fabric.setup(model, optimizer)
x = torch.randn(2048, 16, generator=torch.Generator().manual_seed(1))
dataset = TensorDataset(x, x.sin().sum(dim=1, keepdim=True))

state = {"model": model, "optimizer": optimizer, "epoch": 0}
if os.path.exists("last.ckpt"):
    fabric.load("last.ckpt", state)

for epoch in range(state["epoch"], args.epochs):
    # Fabric's own sampler counts the epochs of this process, which begin anew after a resume.
    sampler = DistributedSampler(dataset, fabric.world_size, fabric.global_rank, seed=epoch)
    data = DataLoader(dataset, batch_size=8, sampler=sampler)
    data = fabric.setup_dataloaders(data, use_distributed_sampler=False)
    for inputs, targets in data:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    fabric.print(f"epoch {epoch} loss {loss.item():.4f}")
    state["epoch"] = epoch + 1
    fabric.save("last.ckpt", state)

if fabric.is_global_zero:
    torch.save(model.state_dict(), "final.pt")
