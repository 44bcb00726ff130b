"""train.shard: optimizer gives the bits of a run without it, in every file, on any number of processes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.real.jobs import checkpoints, rows
from tests.train import sharded
from tests.train.workers import Run, import_compiler, run
from tests.train.world import in_world
from train.base.errors import TrainError
from train.checkpoint import disk
from train.checkpoint.copies import Copies
from train.distributed import sharding
from train.distributed.process_group import RankInfo, World
from train.distributed.sharding import ONE_BY_ONE, owners, shard

SHARD = "--shard=optimizer"


def done(place: Path, workload: str, processes: int, *arguments: str) -> Run:
    end = run(place, workload, processes, "--log-every=1", *arguments)
    assert end.codes == [0] * processes, end.output
    return end


def files(of: Run) -> dict[str, str]:
    """The sha256 of the model and of the optimizer in each checkpoint."""
    return {
        f"{place.name}/{name}": hashlib.sha256((place / name).read_bytes()).hexdigest()
        for place in checkpoints(of.directory)
        for name in ("model.pt", "optimizer.pt")
    }


# --- whole runs -----------------------------------------------------------------------------------

GPT = (
    "--global-batch-size=9", "--optimizer=adamw", "--lr=0.001", "--grad-clip=1.0", "--seed=5", "--schedule=cosine",
    "--arg=depth=2", "--arg=width=32", "--arg=heads=2", "--arg=seq_len=16", "--arg=dropout=0.2",
    "--arg=max_bytes=20000", "--eval-every=2", "--best-metric=loss", "--checkpoint-every=2 steps",
    "--checkpoint-keep=9",
)  # fmt: skip


@pytest.mark.slow
def test_every_file_is_that_of_a_run_without_it(tmp_path: Path) -> None:
    """And the digest of the weights after each step, which is in the receipt."""
    whole = done(tmp_path / "whole", "gpt", 1, *GPT, "--digest")
    assert len(files(whole)) == 6
    for processes in (2, 3, 4):
        end = done(tmp_path / str(processes), "gpt", processes, *GPT, "--digest", SHARD)
        assert files(end) == files(whole)
        assert receipt(end) == receipt(whole)


def receipt(of: Run) -> str:
    (start,) = json.loads((of.directory / "manifest.json").read_text())["starts"]
    return str(start["receipt"])


@pytest.mark.slow
def test_it_may_be_switched_on_and_off_at_any_restart(tmp_path: Path) -> None:
    whole = files(done(tmp_path / "whole", "gpt", 1, *GPT))
    place = tmp_path / "restarted"
    done(place, "gpt", 3, *GPT, SHARD, "--until=1")
    done(place, "gpt", 2, *GPT, "--until=3")
    done(place, "gpt", 1, *GPT, SHARD, "--until=4")
    last = done(place, "gpt", 4, *GPT, SHARD)
    assert "resuming at step 4 of 6" in last.output
    assert files(last).items() >= {k: v for k, v in whole.items() if "-000000002/" not in k}.items()


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [
        "sharded.py:tied_and_frozen",
        pytest.param("own_parts.py:two_optimizers", marks=pytest.mark.nightly),
        pytest.param("odd_models.py:channels_last", marks=pytest.mark.nightly),
    ],
)
def test_models_that_are_hard_to_share_out(tmp_path: Path, workload: str) -> None:
    import_compiler()
    workload = f"tests/train/{workload}"
    whole = files(done(tmp_path / "whole", workload, 1))
    assert files(done(tmp_path / "sharded", workload, 3, SHARD)) == whole


@pytest.mark.slow
def test_ranks_skip_the_same_steps_under_the_gradient_scaler(tmp_path: Path) -> None:
    workload = "tests/train/sharded.py:overflowing"
    flags = ("--optimizer=adamw", "--precision=fp16")
    whole = done(tmp_path / "whole", workload, 1, *flags)
    content = disk.unpickle(checkpoints(whole.directory)[-1] / "optimizer.pt")
    assert content["scaler"]["scale"] == 32768  # it was halved once
    assert files(done(tmp_path / "sharded", workload, 3, *flags, SHARD)) == files(whole)


def test_the_log_of_a_workload_reads_whole_parameters(tmp_path: Path) -> None:
    workload = "tests/train/sharded.py:reads_weights_in_log"

    def logged(of: Run) -> list[str]:
        return re.findall("weights after .*", of.output)

    whole = logged(done(tmp_path / "whole", workload, 1))
    assert len({*whole}) > 6
    assert logged(done(tmp_path / "sharded", workload, 2, SHARD)) == whole


@pytest.mark.slow
def test_it_stops_early_at_the_same_step(tmp_path: Path) -> None:
    early = (
        "--eval-every=2", "--best-metric=quality", "--patience=1", '--arg=values=[3, 2, 5, 1]', "--steps=20",
    )  # fmt: skip
    workload = "tests/train/own_parts.py:measured"
    whole = done(tmp_path / "whole", workload, 1, *early)
    assert rows(whole.directory, "step")[-1]["step"] == 6
    assert files(done(tmp_path / "sharded", workload, 2, *early, SHARD)) == files(whole)


@pytest.mark.nightly
def test_random_kills_with_everything_changed_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = int(os.environ.get("DDPGEN_KILLS", "50"))
    flags = (
        f"--steps={3 * kills + 10}", "--global-batch-size=24", "--micro-batch-size=2", "--optimizer=adamw", "--lr=0.01",
        "--grad-clip=1.0", "--checkpoint-every=1 steps", "--checkpoint-keep=2", "--log-every=100",
    )  # fmt: skip
    workload = "tests/train/sharded.py:killed"
    whole = done(tmp_path / "whole", workload, 1, *flags)
    place, chance, starts = tmp_path / "killed", random.Random(1), Counter[str]()
    for seed in range(kills):
        monkeypatch.setenv("KILL_SEED", str(seed))
        processes, shard = chance.choice((1, 2, 3, 4)), chance.choice(("none", "optimizer"))
        more = chance.choice(([], ["--balance"]))
        end = run(place, workload, processes, *flags, f"--shard={shard}", *more)
        # workers.run kills a process that goes on without its peer.
        assert end.codes.count(-signal.SIGKILL) == 1, end.output
        assert not {None, 0} & {*end.codes}, end.output
        starts[f"{processes} {shard} {' '.join(more)}".strip()] += 1
    monkeypatch.delenv("KILL_SEED")
    last = done(place, workload, 3, *flags, SHARD, "--balance")
    print(
        f"{kills} kills, then {re.findall('resuming at step .*', last.output)[-1]}: {dict(starts)}"
    )
    assert newest(last) == newest(whole)
    assert not [name for name in os.listdir(place) if name.startswith(("tmp", ".tmp"))]


def newest(of: Run) -> dict[str, str]:
    """The files of the last checkpoint."""
    last = checkpoints(of.directory)[-1].name
    return {name: value for name, value in files(of).items() if name.startswith(last)}


def test_it_needs_the_tree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from train.run.config import parse

    with pytest.raises(SystemExit):
        parse(["--workload=toy", "--steps=1", "--global-batch-size=2", "--micro-batch-size=1",
               f"--checkpoint-dir={tmp_path}", "--reduction=allreduce", SHARD])  # fmt: skip
    assert "--shard needs --reduction=tree" in capsys.readouterr().err


# --- one optimizer --------------------------------------------------------------------------------


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return sharded.net()


def give_gradients(parameters: Sequence[torch.Tensor], step: int) -> None:
    torch.manual_seed(100 + step)
    for p in parameters:
        p.grad = torch.randn_like(p)


def content(optimizers: Sequence[Any]) -> bytes:
    """The bytes of optimizer.pt."""
    file = io.BytesIO()
    torch.save([Copies(torch.device("cpu")).take(each.state_dict()) for each in optimizers], file)
    return file.getvalue()


def after(
    steps: range, net: torch.nn.Module, optimizers: Sequence[Any]
) -> Iterator[tuple[bytes, bytes]]:
    """The bytes of the parameters and of the state after each step, those of the state on rank 0 only."""
    for step in steps:
        give_gradients(list(net.parameters()), step)
        for each in optimizers:
            each.step()
        for each in optimizers:
            if isinstance(each, sharding.ShardedOptimizer):
                each.collect()
        weights = io.BytesIO()
        torch.save(Copies(torch.device("cpu")).take(net.state_dict()), weights)
        yield weights.getvalue(), content(optimizers) if is_first(optimizers) else b""


def is_first(optimizers: Sequence[Any]) -> bool:
    return all(
        getattr(each, "_world", None) is None or each._world.rank == 0 for each in optimizers
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [[[0], [1, 2]], pytest.param([[0, 1], [2, 3]], marks=pytest.mark.nightly)]
)
def test_every_class_updates_as_without_it(
    tmp_path: Path, layout: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import_compiler()
    monkeypatch.setattr(
        sharding, "BUCKET_BYTES", 1024
    )  # parameters are cut, and there are many buckets

    def body(world: World) -> list[str]:
        different = []
        for name in (name for name in ONE_BY_ONE if hasattr(torch.optim, name)):
            alone = model()
            expected = list(after(range(4), alone, [sharded.optimizer(name, alone)]))
            net = model()
            (optimizer,) = shard([sharded.optimizer(name, net)], world, tmp_path)
            first = list(after(range(2), net, [optimizer]))
            # A restart: all ranks read the same file.
            saved = torch.load(io.BytesIO(alone_at(name, 2)), weights_only=True)[0]
            again = model()
            again.load_state_dict(net.state_dict())
            (optimizer,) = shard([sharded.optimizer(name, again)], world, tmp_path)
            optimizer.load_state_dict(saved)
            got = [*first, *after(range(2, 4), again, [optimizer])]
            if [weights for weights, _ in got] != [weights for weights, _ in expected]:
                different.append(f"{name}: parameters")
            if world.rank == 0 and [state for _, state in got] != [s for _, s in expected]:
                different.append(f"{name}: state")
        return different

    def alone_at(name: str, steps: int) -> bytes:
        net = model()
        return list(after(range(steps), net, [sharded.optimizer(name, net)]))[-1][1]

    size = sum(map(len, layout))
    assert in_world(size, body, layout) == [[]] * size


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
def test_the_gradient_scaler_finds_the_same_optimizer(tmp_path: Path, fused: bool) -> None:
    """The first step overflows: it leaves no state, or zeros if it is fused."""

    def states(wrap: Any) -> Iterator[bytes]:
        net, scaler = model(), torch.amp.GradScaler("cpu")
        (optimizer,) = wrap(torch.optim.AdamW(net.parameters(), fused=fused))
        scaler.scale(torch.zeros(()))
        for factor in (torch.inf, 1.0):
            for p in net.parameters():
                p.grad = torch.full_like(p, factor * scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            if isinstance(optimizer, sharding.ShardedOptimizer):
                optimizer.collect()
            yield content([optimizer]) if is_first([optimizer]) else b""

    def body(world: World) -> list[bytes]:
        return list(states(lambda made: shard([made], world, tmp_path)))

    assert in_world(2, body)[0] == list(states(lambda made: [made]))


class Own(torch.optim.AdamW):
    """A class of a user's own, which may update in any way."""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Own, r"test_sharding\.Own; take one of these, or write shard: none"),
        (torch.optim.LBFGS, r"not torch\.optim\.lbfgs\.LBFGS; take one of these"),
        (torch.optim.SparseAdam, r"not torch\.optim\.sparse_adam\.SparseAdam; take one"),
    ],
)
def test_other_classes_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(TrainError, match=reason):
        shard([make(model().parameters())], alone(), Path())


def test_hooks_and_gaps_in_memory_are_refused() -> None:
    hooked = torch.optim.SGD(model().parameters())
    hooked.register_step_post_hook(lambda *_: None)
    with pytest.raises(TrainError, match=r"a step hook of SGD .* or write shard: none"):
        shard([hooked], alone(), Path())
    gapped = torch.nn.Parameter(torch.randn(6, 8)[::2])
    with pytest.raises(TrainError, match=r"shape \(3, 8\) has gaps in memory"):
        shard([torch.optim.SGD([gapped])], alone(), Path())


def alone() -> World:
    """A world of one process."""
    rank_info = RankInfo(0, 1, 0, 1, launched=False)
    nothing: Any = None
    return World(rank_info, "gloo", torch.device("cpu"), nothing, ((0,),), nothing, 1.0)


def test_a_rank_has_its_part_of_the_state() -> None:
    def body(world: World) -> list[int]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(world.size * 3)))
        optimizer = torch.optim.AdamW(net.parameters())
        (part,) = shard([optimizer], world, Path())
        give_gradients(list(net.parameters()), 0)
        part.step()
        return [v.numel() * 4 for s in optimizer.state.values() for v in s.values() if v.ndim]

    for size in (2, 3, 4):
        of_ranks = [sum(sizes) for sizes in in_world(size, body)]
        assert sum(of_ranks) == 2 * 4 * size * 3 * (64 * 64 + 64)
        assert max(of_ranks) <= 1.1 * sum(of_ranks) / size


def test_adagrad_frees_what_it_has_made_for_others(tmp_path: Path) -> None:
    def body(world: World) -> int:
        optimizer = sharded.optimizer("Adagrad", model())
        (part,) = shard([optimizer], world, tmp_path)
        part.load_state_dict(sharded.optimizer("Adagrad", model()).state_dict())
        return len(optimizer.state)

    assert sum(in_world(3, body)) == len(list(model().parameters()))


def freeze_first(net: torch.nn.Module) -> torch.nn.Module:
    next(net.parameters()).requires_grad_(False)
    return net


def test_the_state_of_a_frozen_parameter_is_kept(tmp_path: Path) -> None:
    """Adagrad makes it when it is built. AdamW loads it from a checkpoint of a start that trained the parameter."""

    def adam(net: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(net.parameters())

    before = model()
    trained = adam(before)
    give_gradients(list(before.parameters()), 0)
    trained.step()

    def body(world: World) -> list[bytes]:
        made = torch.optim.Adagrad(freeze_first(model()).parameters())
        optimizers = shard([made, adam(freeze_first(model()))], world, tmp_path)
        optimizers[1].load_state_dict(trained.state_dict())
        for each in optimizers:
            each.collect()  # type: ignore[attr-defined]
        return [content([each]) for each in optimizers] if world.rank == 0 else []

    made = torch.optim.Adagrad(freeze_first(model()).parameters())
    assert in_world(2, body)[0] == [content([made]), content([trained])]


def test_frozen_parameters_do_not_change_the_balance_of_the_others() -> None:
    def body(world: World) -> int:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 800), torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
        )
        optimizer = torch.optim.AdamW(freeze_first(net).parameters())
        (part,) = shard([optimizer], world, Path())
        give_gradients([p for p in net.parameters() if p.requires_grad], 0)
        part.step()
        return sum(p.numel() for p in optimizer.state)

    assert in_world(2, body) == [800, 72]


def test_owners_depend_on_the_sizes_and_the_number_of_ranks_alone() -> None:
    parameters = [torch.zeros(n) for n in (10, 60, 30, 50, 40, 10)]
    tied = [*parameters, parameters[1].view(6, 10), parameters[3][40:]]
    owner = owners(tied, 2)
    assert [owner[id(p)] for p in tied] == [0, 0, 0, 1, 1, 1, 0, 1]
    neighbours = list(torch.zeros(20).split(10))
    assert [*owners(neighbours, 2).values()] == [0, 1]
    assert set(owners(parameters, 1).values()) == {0}


# --- the memory of rank 0 -------------------------------------------------------------------------


def anonymous_bytes() -> int:
    """This process' memory that no file holds."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0])


@pytest.mark.slow
def test_collecting_and_loading_take_a_bucket_and_the_own_part(tmp_path: Path) -> None:
    whole = 64 << 20  # of state

    def body(world: World) -> tuple[int, int]:
        net = torch.nn.ParameterList(torch.zeros(1 << 20) for _ in range(8))
        (optimizer,) = shard([torch.optim.AdamW(net)], world, tmp_path)
        give_gradients(list(net), 0)
        optimizer.step()
        optimizer.settle()  # type: ignore[attr-defined]
        before = anonymous_bytes()
        optimizer.collect()  # type: ignore[attr-defined]
        collected = anonymous_bytes() - before
        if world.rank == 0:
            with open(tmp_path / "optimizer.pt", "wb") as file:
                torch.save(Copies(torch.device("cpu")).take(optimizer.state_dict()), file)
        world.barrier()
        (again,) = shard([torch.optim.AdamW(net)], world, tmp_path)
        before = anonymous_bytes()
        again.load_state_dict(disk.unpickle(tmp_path / "optimizer.pt", mapped=True))
        return collected, anonymous_bytes() - before

    for collected, loaded in in_world(4, body):
        assert collected < 3 * sharding.BUCKET_BYTES
        assert loaded < whole / 4 + 3 * sharding.BUCKET_BYTES
    assert not list(tmp_path.glob("tmp*"))


def test_without_room_for_the_file_it_takes_memory(tmp_path: Path) -> None:
    memory = sharding._memory(tmp_path / "missing", 100)
    memory[:3] = b"abc"
    assert (len(memory), bytes(memory[:3])) == (100, b"abc")
