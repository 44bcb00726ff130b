"""A ResNet on pictures, as the ImageNet examples of many repositories train it: a checkpoint after every epoch, the
best one kept apart, `--resume PATH` to resume. Nothing here knows of a launcher."""

import argparse
import os
import random
import shutil

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser(description="ResNet training")
parser.add_argument("data", nargs="?", default="squares", help="what is on the pictures")
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("-b", "--batch-size", default=32, type=int, help="over all processes")
parser.add_argument("--lr", "--learning-rate", default=0.05, type=float)
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float, dest="weight_decay")
parser.add_argument("-p", "--print-freq", default=10, type=int)
parser.add_argument("--resume", default="", metavar="PATH", help="the newest checkpoint")
parser.add_argument("--seed", default=0, type=int)


class BasicBlock(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
        )

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def resnet(classes):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        BasicBlock(16, 16, 1),
        BasicBlock(16, 32, 2),
        BasicBlock(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


class Pictures(Dataset):
    """A bright square in one of four corners, in noise."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        picture = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(self.seed + i))
        corner = i % 4
        y, x = 8 * (corner // 2), 8 * (corner % 2)
        picture[:, y : y + 8, x : x + 8] += 0.5
        return picture, corner


def accuracy(model, loader, device):
    model.eval()
    right = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, target in loader:
            found = model(images.to(device)).argmax(dim=1).cpu()
            right += torch.tensor([(found == target).sum(), len(target)], device=device)
    dist.all_reduce(right)
    return (100 * right[0] / right[1]).item()


def save_checkpoint(state, is_best):
    torch.save(state, "checkpoint.pth.tar")
    if is_best:
        shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")


def main():
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    random.seed(args.seed)
    torch.manual_seed(args.seed)

    model = DistributedDataParallel(resnet(4).to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    start_epoch, best = 0, 0.0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        start_epoch, best = checkpoint["epoch"], checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print(f"=> loaded checkpoint '{args.resume}' (epoch {start_epoch})")

    per_process = args.batch_size // dist.get_world_size()
    train = Pictures(512, seed=0)
    sampler = DistributedSampler(train, seed=args.seed)
    train_loader = DataLoader(train, per_process, sampler=sampler)
    held_out = Pictures(128, seed=10_000)
    val_loader = DataLoader(
        held_out, per_process, sampler=DistributedSampler(held_out, shuffle=False)
    )

    for epoch in range(start_epoch, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for i, (images, target) in enumerate(train_loader):
            loss = criterion(model(images.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % args.print_freq == 0 and dist.get_rank() == 0:
                print(f"Epoch: [{epoch}][{i}/{len(train_loader)}]  Loss {loss.item():.4f}")
        acc1 = accuracy(model, val_loader, device)
        scheduler.step()
        is_best, best = acc1 > best, max(acc1, best)
        if dist.get_rank() == 0:
            print(f" * Acc@1 {acc1:.3f}")
            state = {
                "epoch": epoch + 1,
                "arch": "resnet",
                "state_dict": model.state_dict(),
                "best_acc1": best,
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            }
            save_checkpoint(state, is_best)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
