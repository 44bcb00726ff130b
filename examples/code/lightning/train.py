"""A regression with Lightning. Nothing here knows of a launcher."""

import argparse
import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """A small network and how it is trained."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

lightning.seed_everything(0)
x = torch.randn(2048, 16, generator=torch.Generator().manual_seed(1))
data = DataLoader(TensorDataset(x, x.sin().sum(dim=1, keepdim=True)), batch_size=8, shuffle=True)
model = Regression()
trainer = lightning.Trainer(
    max_epochs=args.epochs,
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
    accelerator="auto",
    enable_progress_bar=False,
    logger=False,
)
trainer.fit(model, data)
if trainer.is_global_zero:
    torch.save(model.state_dict(), "final.pt")
