"""The usual mistakes of a loop that is written by hand, and those of a user's own workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpgen.lint.program import check
from ddpgen.tiers.registry import read

SLURM = "name: a\ncode: code\ntrain: {script: t.py, resume: scratch}\nprocs_per_node: 2\ntargets: {slurm: {}}\n"
ON_GPUS = SLURM.replace("per_node: 2\n", "per_node: 2\ngpus_per_node: 2\n")
SKY = (
    "name: a\ncode: code\ntrain: {script: t.py, resume: scratch}\nprocs_per_node: 2\nenv: {GIVEN: x}\nsecrets: [TOKEN]\n"
    "targets: {sky: {bucket: s3://bbb, setup: pip install torch}}\n"
)
OWN = (
    "name: a\ncode: code\ntargets: {slurm: {}}\n"
    "train: {workload: 't.py:build', steps: 9, global_batch_size: 4, micro_batch_size: 1, eval_every: 3 steps, best: {metric: acc, mode: max}}\n"
)
TRAINS = "import os, sys, torch\nimport torch.distributed as dist\ndist.init_process_group()\nmodel = DDP(net)\nm.save(m.load())\n"
LOOP = "for epoch in range(9):\n    loss.backward()\n"
SAMPLER = f"{TRAINS}sampler = DistributedSampler(data{{}})\nloader = DataLoader(data, sampler=sampler)\n{{}}{LOOP}"
LOADER = f"{TRAINS}{{}}loader = DataLoader(data{{}})\n{LOOP}"
SHUFFLE = ", shuffle=True"
METRICS = "def metrics(model, batch):\n    return {{'accuracy': 1, 'f1': 2}}\n"
BUILDS = f"from train.workload import Workload\n{METRICS}def build(context):\n    return Workload(model=m, dataset=d, loss=l, metrics=metrics{{}})\n"
ITERABLE = "class Data(IterableDataset):\n    def __iter__(self): ...\n{}def build(c):\n    return Workload(model=m, loss=l, dataset=Data(8), finish=f, metrics=f)\n"
# The spec, the text, and words of the warning; "" without one.
TOLD = [
    (SLURM, f"{TRAINS}name = input('run? ')\n", "t.py:6 waits for a keyboard"),
    (SLURM, f"{TRAINS}def f():\n    breakpoint()\nf()\n", "breakpoint() ends it"),
    (SLURM, f"{TRAINS}def main():\n    if rank == 0 and input('go? ') != 'y':\n        raise SystemExit\nif __name__ == '__main__':\n    main()\n", "input() ends it"),
    (SLURM, f"{TRAINS}if args.ask:\n    if input('go? ') != 'y':\n        raise SystemExit\n", ""),
    (SLURM, f"{TRAINS}rank = int(os.environ['SLURM_PROCID'])\n", "t.py reads SLURM_PROCID"),
    (SLURM, f"{TRAINS}torch.cuda.set_device(int(os.environ['SLURM_LOCALID']))\n", "t.py reads SLURM_LOCALID"),
    (SLURM, f"{TRAINS}n = int(os.environ.get('LOCAL_RANK', os.environ.get('SLURM_LOCALID', 0)))\n", ""),
    (SLURM, f"{TRAINS}rank = int(os.environ.get('RANK', os.environ['SLURM_PROCID']))\n", ""),
    (SLURM.replace("scratch", "scratch, args: [--launcher=slurm]"), TRAINS, "launcher slurm counts tasks"),
    (SLURM.replace("scratch", "scratch, args: [--launcher, pytorch]"), TRAINS, ""),
    (SLURM, f"{TRAINS}assert dist.get_world_size() == 8\n", "t.py:6 wants 8 processes, and the job has 2"),
    (SLURM, f"{TRAINS}assert dist.get_world_size() == 2\n", ""),
    (SLURM, f"{TRAINS}import pdb; pdb.set_trace()\n", "set_trace() ends it"),
    *(
        (SLURM, f"from torch.utils.data import DataLoader\n{TRAINS}s = RandomSampler(data)\nloader = DataLoader(data, {arguments}, pin_memory=True)\n{LOOP}", told)
        for arguments, told in (
            ("sampler=s, shuffle=True", "DataLoader refuses sampler and shuffle=True"),
            ("sampler=s, num_workers=-1", "DataLoader refuses num_workers=-1"),
            ("sampler=s, persistent_workers=True", "DataLoader refuses persistent_workers without"),
            ("sampler=s, num_workers=0, prefetch_factor=4", "DataLoader refuses prefetch_factor without"),
            ("sampler=None, batch_sampler=b, prefetch_factor=None, persistent_workers=False", ""),
            ("sampler=s, shuffle=(s is None), prefetch_factor=2, num_workers=n", ""),
            ("8, False, s, None, 4, prefetch_factor=2, persistent_workers=True", ""),
            ("sampler=s, persistent_workers=True, **more", ""),
        )
    ),
    (SLURM, f"from torch_geometric.loader import DataLoader\n{TRAINS}s = RandomSampler(data)\nl = DataLoader(data, sampler=s, shuffle=True)\n{LOOP}", ""),
    (SLURM, f"from torch.utils.data import DataLoader\n{TRAINS}s = None\nif more:\n    s = RandomSampler(data)\nl = DataLoader(data, sampler=s, shuffle=True)\n{LOOP}", ""),
    (SLURM, f"import torch\n{TRAINS}s = RandomSampler(data)\nl = torch.utils.data.DataLoader(data, sampler=s, shuffle=True)\n{LOOP}", "DataLoader refuses"),
    (SLURM, f"{TRAINS}s = RandomSampler(data)\nl = DataLoader(data, sampler=s, shuffle=True)\n{LOOP}", ""),
    (SLURM, f"from torch.utils.data import DataLoader\n{TRAINS}if old:\n    l = DataLoader(data, num_workers=-1)\n{LOOP}", ""),
    (SLURM.replace("scratch", "scratch, args: [--launcher=slurm]").replace("node: 2", "node: 1"), TRAINS, ""),
    (SLURM, SAMPLER.format("", "").replace("sampler=sampler", "shuffle=True"), "t.py:6: no DataLoader gets the sampler"),
    (SLURM, SAMPLER.format("", "").replace("sampler=sampler", "32, drop_last=True").replace(LOOP, f"sampler.set_epoch(1)\n{LOOP}"), "no DataLoader gets"),
    (SLURM, SAMPLER.format("", "").replace("sampler=sampler", "batch_sampler=B(sampler, 4)").replace(LOOP, f"sampler.set_epoch(1)\n{LOOP}"), ""),
    (SLURM, SAMPLER.format("", "").replace("sampler=sampler", "shuffle=True").replace(LOOP, f"other(sampler)\n{LOOP}"), "without set_epoch()"),
    (SLURM, SAMPLER.format("", "").replace("sampler=sampler", "shuffle=True").replace("sampler =", "self.sampler ="), "without set_epoch()"),
    (SLURM, f"{TRAINS}def g(input): return input(3)\ng(f)\ndef unused(): breakpoint()\n", ""),
    (SLURM, f"{TRAINS}def ask():\n    if not sys.stdin.isatty(): return 1\n    return input()\nask()\n", ""),
    (SLURM, f"{TRAINS}x = {' + '.join(['q'] * 900)}\ndl = DataLoader(d, shuffle=True, num_workers=rank)\n{LOOP}", ""),
    (SLURM, f"{TRAINS}if args.debug:\n    breakpoint()\nself.input(3)\n", ""),
    (SLURM, "from torch.utils.data import Dataloader, dataset, Subset\nfrom ours import Dataloader\n" + TRAINS, "t.py:1: torch.utils.data has no Dataloader"),
    (SLURM.replace("scratch", "scratch, stop: {signal: USR1}"), TRAINS, "t.py has no handler for USR1"),
    (SLURM.replace("scratch", "scratch, stop: {signal: USR1}"), f"import signal\n{TRAINS}", ""),
    (SLURM.replace("scratch", "scratch, stop: {signal: USR1}"), f"import lightning\n{TRAINS}", ""),
    (SLURM, f"{TRAINS}if rank == 0:\n    dist.barrier()\n{LOOP}", "t.py:7: only rank 0 calls barrier()"),
    (SLURM, f"{TRAINS}if dist.get_rank() == 0:\n    save()\n    torch.distributed.all_reduce(x)\n{LOOP}", "calls all_reduce()"),
    (SLURM, f"{TRAINS}if rank == 0:\n    dist.barrier(group=g)\n    loss.barrier()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}if rank == 0:\n    dist.barrier()\nelse:\n    dist.barrier()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}if rank != 0:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}if local_rank == 0:\n    dist.barrier()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}if rank == 0:\n    dist.barrier(g)\n{LOOP}", ""),
    (SLURM, f"{TRAINS}if not is_main:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}def f():\n    if rank == 0:\n        dist.barrier()\n        return\n    dist.barrier()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}if rank != 0:\n    train()\n    sys.exit()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}if rank > 3:\n    sys.exit()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}def adapt(net, rank):\n    if rank > 8: return\n    loss.backward()\n", ""),
    (SLURM.replace("2", "1"), f"{TRAINS}if rank == 0:\n    dist.barrier()\n{LOOP}", ""),
    (SLURM, f"{TRAINS}def main():\n    if rank != 0:\n        return\n    for x in y:\n        loss.backward()\n", "t.py:7: all ranks but 0 leave"),
    (SLURM, f"{TRAINS}if rank > 0:\n    sys.exit()\ndist.barrier()\n{LOOP}", "all ranks but 0 leave"),
    (SLURM, f"{TRAINS}{LOOP}if rank:\n    sys.exit()\nprint(9)\n", ""),
    (SLURM, SAMPLER.format("", ""), "t.py:6: without set_epoch()"),
    (SLURM, SAMPLER.format(SHUFFLE, ""), "without set_epoch()"),
    (SLURM, SAMPLER.format(", shuffle=False", ""), ""),
    (SLURM, SAMPLER.format("", "sampler.set_epoch(0)\n"), ""),
    (SLURM, SAMPLER.format(", 2, rank, False", ""), ""),
    (SLURM, SAMPLER.format(", seed=epoch", ""), ""),
    (SLURM, SAMPLER.format("", "sampler.epoch = 3\n"), ""),
    (SLURM, SAMPLER.format("", "from ours import train\n"), ""),
    (SLURM, "import accelerate\n" + SAMPLER.format("", ""), ""),
    (SLURM, SAMPLER.format("", "").replace("epoch", "i"), ""),
    (SLURM, LOADER.format("", SHUFFLE), "t.py:6: each of 2 processes goes over all of the data"),
    (SLURM, LOADER.format("import tqdm\n", SHUFFLE), "goes over all of the data"),
    (SLURM, LOADER.format("data = data[rank::2]\n", SHUFFLE), ""),
    (SLURM, LOADER.format("data = data[rank * n : n]\n", SHUFFLE), ""),
    (SLURM, LOADER.format("torch.manual_seed(7 + rank)\n", SHUFFLE), ""),
    (SLURM, LOADER.format("data = Subset(data, own)\n", SHUFFLE), ""),
    (SLURM, LOADER.format("data = random_split(data, [1, 1], g)[rank]\n", SHUFFLE), ""),
    (SLURM, LOADER.format("data = [x for i, x in enumerate(data) if i % 2 == rank]\n", SHUFFLE), ""),
    (SLURM, LOADER.format("data = data[int(os.environ['RANK'])::2]\n", SHUFFLE), ""),
    (SLURM, LOADER.format("data = open(f'part-{rank}.pt')\n", SHUFFLE), ""),
    (SLURM, LOADER.format("seed = 7 + rank\n", SHUFFLE), ""),
    (SLURM, LOADER.format("train = DataLoader(data, batch_sampler=b)\n", SHUFFLE), ""),
    (SLURM, LOADER.format("rank = int(os.environ['RANK'])\nif rank == 0: print(f'{rank}')\n", SHUFFLE), "goes over all of the data"),
    (SLURM, LOADER.format("local_rank = dist.get_rank()\nis_first = local_rank == 0\n", SHUFFLE), "goes over all of the data"),
    (SLURM, LOADER.format("from ours import data\n", SHUFFLE), ""),
    (SLURM, LOADER.format("", ", shuffle=False"), ""),
    (SLURM, LOADER.format("", ", shuffle=True").replace("DDP", "Net"), ""),
    (ON_GPUS, f"{TRAINS}{LOOP}", "t.py moves nothing to a GPU"),
    (ON_GPUS, f"{TRAINS}net.to('cuda')\n{LOOP}", ""),
    (ON_GPUS, f"import ours\n{TRAINS}{LOOP}", ""),
    (ON_GPUS, f"{TRAINS}net.to(int(os.environ['LOCAL_RANK']))\n{LOOP}", ""),
    (ON_GPUS, f"{TRAINS}net = DDP(net, device_ids=[n])\n{LOOP}", ""),
    (ON_GPUS.replace("targets", "env: {DEVICE: cuda}\ntargets"), f"{TRAINS}net.to('x')\n{LOOP}", ""),
    (ON_GPUS.replace("t.py,", "t.py, args: {device: cuda},"), f"{TRAINS}net.to(args.device)\n{LOOP}", ""),
    (SKY, f"{TRAINS}x = os.environ['DATA'] + '/x'\n", "t.py:6 needs the variable DATA"),
    (SKY, f"{TRAINS}x = os.environ['DATA'] if y else 1\n", ""),
    (SKY, f"{TRAINS}os.environ['DATA'] = '1'\nx = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}os.environ.setdefault('DATA', '1')\nx = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}os.environ.update(DATA='1')\nx = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}if 'DATA' in os.environ: f()\nx = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}os.environ |= {{'DATA': '1'}}\nx = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}os.environ.update({{'DATA': '1'}})\nx = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}for k in f: os.environ[k] = 1\nx = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}def unused(): return os.environ['DATA']\n", ""),
    (SKY, f"import ours\n{TRAINS}x = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}load_dotenv()\nx = os.environ['DATA']\n", ""),
    (SKY, f"{TRAINS}x = [os.environ[n] for n in ('GIVEN',)], os.environ['GIVEN'], os.environ['TOKEN'], os.environ['RANK']\n", ""),
    (SLURM, f"{TRAINS}x = os.environ['DATA']\n", ""),  # sbatch hands on the variables of its own shell
    (OWN, BUILDS.format(""), 'the workload in t.py has no metric "acc"'),
    (OWN.replace("acc,", "f1,"), BUILDS.format(""), ""),
    (OWN.replace("acc,", "loss,"), BUILDS.format(""), ""),
    (OWN, BUILDS.format(", finish=f"), ""),
    (OWN, BUILDS.format(")\n    made.metrics = (f"), ""),
    (OWN, BUILDS.format(")\n    return replace(made, metrics=f"), ""),
    (OWN, BUILDS.format("").replace("metrics=metrics", "metrics=other.metrics"), ""),
    (OWN, BUILDS.format("").replace("def build", "metrics = named(metrics)\ndef build"), ""),
    (OWN, BUILDS.format("").replace("train.workload", "ours"), ""),
    (OWN, BUILDS.format("").replace("model=m", "*parts"), ""),
    (OWN, BUILDS.format(", **more"), ""),
    (OWN, BUILDS.format("").replace("'accuracy'", "name"), ""),
    (OWN, BUILDS.format("").replace("return {", "return 1 or {"), ""),
    (OWN, BUILDS.format("").replace(", metrics=metrics", ""), "has no metric"),
    (OWN, "def build(context):\n    def f(): return 1\n    return {'model': m}\n", "t.py:3: build() returns a dict"),
    (OWN, "def build(context):\n    return model, data, loss\n", "returns a tuple"),
    (OWN, "def build(context):\n    return dict(model=m)\n", "t.py:2: build() returns a dict"),
    (OWN, "def build(context):\n    return x.dict(model=m)\n", ""),
    (OWN, BUILDS.format("").replace("def build", "async def build"), "t.py:4: build is a coroutine's function"),
    (OWN, "@run\nasync def build(context): ...\n", ""),
    (OWN, "async def build(context): ...\nbuild = run(build)\n", ""),
    (OWN, "async def build(context): ...\ndef build(context): ...\n", ""),
    (OWN, "from nets import build\nasync def f(): ...\n", ""),
    (OWN, "class build(nn.Module): ...\n", "t.py:1: build is a class, and no workload"),
    (OWN, "class build:\n    def __init__(self, context): self.model = 1\n", "t.py:1: build is a class"),
    (OWN, "class Net(nn.Module): ...\nclass build(Net): ...\n", "t.py:2: build is a class"),
    (OWN, "class build(Workload): ...\n", ""),
    (OWN, "class Mine(train.workload.Workload): ...\nclass build(Mine): ...\n", ""),
    (OWN, "class build(*bases): ...\n", ""),
    (OWN, "class build(Generic[T]): ...\n", ""),
    (OWN, "class build(metaclass=Calls): ...\n", ""),
    (OWN, "@dataclass\nclass build: ...\n", ""),
    (OWN, "class build:\n    def __new__(cls, context): return made(context)\n", ""),
    (OWN, "class build:\n    def __init__(self, context): self.model, self.dataset, self.loss = f(context)\n", ""),
    (OWN, "class build:\n    model, loss = m, f\n    @property\n    def dataset(self): ...\n", ""),
    (OWN, "class build:\n    def __init__(self, c): vars(self).update(model=m, dataset=d, loss=f)\n", ""),
    (OWN, "class build: ...\nbuild = build.make\n", ""),
    (OWN, "def build(context):\n    if context: return {}\n    return made\n", ""),
    (OWN, ITERABLE.format(""), "t.py:1: Data has no [index]"),
    (OWN, ITERABLE.format("    def __getitem__(self, i): ...\n"), ""),
    (OWN, ITERABLE.format("    __getitem__ = f\n"), ""),
    (OWN, ITERABLE.format("").replace("=Data", "=other.Data"), ""),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "text", "words"), TOLD)
def test_a_mistake_is_named_and_nothing_else(
    spec: str, text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/t.py").write_text(text)
    (job,) = (each.job for name, each in read(spec.encode(), "a.yaml").items() if name != "local")
    found = [each.problem for each in check(job, tmp_path)]
    assert len(found) == bool(words), found
    assert all(words in problem for problem in found), found
