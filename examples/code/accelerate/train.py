"""A regression with accelerate, which saves its state after every epoch. Nothing here knows of a launcher."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

# The order of the samples then follows from the seed and the epoch, also after a resume.
shuffling = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=shuffling)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(2048, 16, generator=torch.Generator().manual_seed(1))
data = DataLoader(TensorDataset(x, x.sin().sum(dim=1, keepdim=True)), batch_size=8, shuffle=True)
model, optimizer, data = accelerator.prepare(model, optimizer, data)

first = 0
kept = sorted(
    int(name[6:]) for name in os.listdir(".") if name.startswith("epoch_") and name[6:].isdigit()
)
if kept:
    accelerator.load_state(f"epoch_{kept[-1]}")
    first = kept[-1] + 1

for epoch in range(first, args.epochs):
    data.set_epoch(epoch)
    for inputs, targets in data:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
    accelerator.save_state(f"epoch_{epoch}")

accelerator.wait_for_everyone()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), "final.pt")
