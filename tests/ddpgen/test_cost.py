"""The arithmetic of measure/cost.py against known cases, and against what train/ really sends."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from ddpgen.lint import workloads
from ddpgen.measure import cost, quantities
from ddpgen.measure.cost import Interruptions, Link, Overlap, Shape
from ddpgen.spec.fields import Refused
from train.checkpoint.checkpointer import best_interval
from train.distributed import tree
from train.distributed.reduction import plain_sum_is_the_tree, plan_stages
from train.distributed.sharding import plan_gather
from train.training.data import ranges
from train.workload import Context
from train.workloads import gpt, mnist, toy

GIGABIT = quantities.link("1GbE")


@pytest.mark.parametrize(
    ("link", "seconds"),
    [("1GbE", 14.3), ("2.5GbE", 5.72), ("10GbE", 1.43), ("100G", 0.143), ("400G", 0.0358)],
)
def test_760m_parameters_in_bf16_on_two_nodes(link: str, seconds: float) -> None:
    sent = cost.ring_bytes(Shape((1, 1)), 760e6 * 2)
    assert sent == 1.52e9
    assert quantities.link(link).seconds(sent, 0.85) == pytest.approx(seconds, rel=0.01)
    assert GIGABIT.seconds(sent, 1.0) == pytest.approx(12.16)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 1000])
def test_a_ring_sends_2_times_n_minus_1_of_n(nodes: int) -> None:
    shape = Shape((1,) * nodes)
    assert cost.ring_bytes(shape, nodes * 100.0) == pytest.approx(2 * (nodes - 1) * 100)


def test_inside_each_host_first_costs_the_network_what_the_hosts_alone_would() -> None:
    eight_each = Shape((8, 8), (1,) * 16)
    assert cost.tree_bytes(eight_each, 100.0) == 100  # 2(N-1)/N for two hosts
    assert cost.ring_bytes(eight_each, 100.0) == 187.5  # 2(W-1)/W for 16 ranks


def shares(leaves: int, ranks: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, leaves), ranks - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *c, leaves))) for c in cuts]


@pytest.mark.parametrize("leaves", [1, 2, 3, 5, 6, 7, 8, 11])
def test_partial_sums_are_those_of_the_tree(leaves: int) -> None:
    for first, end in itertools.combinations(range(leaves + 1), 2):
        nodes = tree.fold_of_rank(range(first, end), leaves).nodes
        assert cost.partial_sums(first, end, leaves) == len(nodes), (first, end)


@pytest.mark.parametrize("procs", [(1, 1), (3,), (2, 2), (2, 1), (1, 1, 1), (2, 2, 2), (1, 3, 1)])
@pytest.mark.parametrize("leaves", [6, 8, 9])
def test_the_trees_bytes_are_what_its_exchanges_send(procs: tuple[int, ...], leaves: int) -> None:
    for each in shares(leaves, sum(procs)):
        said = cost.tree_bytes(Shape(procs, each), 1.0)
        assert said == pytest.approx(exchanged(procs, each)), each


def exchanged(procs: tuple[int, ...], each: tuple[int, ...]) -> float:
    """The busiest host's part of the gradients, counted message by message as _exchange sends them."""
    mine = ranges(each)
    ends = list(itertools.accumulate(procs, initial=0))
    layout = [list(range(a, b)) for a, b in itertools.pairwise(ends)]
    group = {rank: host for host, ranks in enumerate(layout) for rank in ranks}
    if len(procs) == 1:
        group = {rank: rank for rank in group}
    if plain_sum_is_the_tree(mine):
        return 1.0
    out, into = dict.fromkeys(group.values(), 0.0), dict.fromkeys(group.values(), 0.0)
    for rank in group:
        size = 1.0
        for members, stage in plan_stages(mine, layout, rank):
            size /= len(members)
            rows = stage.rows[members.index(rank)]
            for other in members:
                if group[other] != group[rank]:
                    out[group[rank]] += (rows + 1) * size  # its rows of the other's chunk, its sum
                    into[group[other]] += (rows + 1) * size
    return max(*out.values(), *into.values())


@pytest.mark.parametrize("procs", [(1, 1), (3,), (2, 2), (2, 1), (1, 1, 1), (2, 2, 2), (1, 3, 1)])
def test_the_gathers_bytes_are_what_its_stages_send(procs: tuple[int, ...]) -> None:
    ends = list(itertools.accumulate(procs, initial=0))
    layout = [list(range(a, b)) for a, b in itertools.pairwise(ends)]
    group = {rank: host for host, ranks in enumerate(layout) for rank in ranks}
    if len(procs) == 1:
        group = {rank: rank for rank in group}
    out, into = dict.fromkeys(group.values(), 0.0), dict.fromkeys(group.values(), 0.0)
    for ranks, positions in plan_gather(layout)[1]:
        for sender, (first, end) in zip(ranks, positions, strict=True):
            for receiver in ranks:
                if group[sender] != group[receiver]:
                    out[group[sender]] += (end - first) / sum(procs)
                    into[group[receiver]] += (end - first) / sum(procs)
    busiest = max(*out.values(), *into.values())
    assert cost.gather_bytes(Shape(procs), 1.0) == pytest.approx(busiest)


def test_only_the_backward_pass_of_the_last_micro_batch_hides_communication() -> None:
    step = Overlap(micro_batches=1, last_bucket=0.0).step(3.0, 2.0)
    assert (step.exposed_s, step.step_s) == (0.0, 3.0)
    step = Overlap(micro_batches=4, last_bucket=0.0).step(3.0, 2.0)
    assert (step.exposed_s, step.step_s) == (1.5, 4.5)


@pytest.mark.parametrize(("mib", "hidden"), [(1, False), (25, False), (250, True), (2500, True)])
def test_the_last_bucket_is_never_hidden(mib: int, hidden: bool) -> None:
    last = cost.last_bucket(mib * cost.MIB, 25.0)
    step = Overlap(1, last).step(30.0, 2.0)
    assert step.exposed_s == pytest.approx(2.0 * min(1, 25 / mib))
    assert (step.exposed_s < step.communication_s) is hidden


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("last_bucket", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("communication_s", [0.1, 1.0, 3.0])
def test_a_measured_step_gives_its_compute_back(
    micro_batches: int, last_bucket: float, communication_s: float
) -> None:
    overlap = Overlap(micro_batches, last_bucket)
    step_s = overlap.step(1.7, communication_s).step_s
    assert overlap.compute_s(step_s, communication_s) == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("cost_s", "mean_s"), [(40, 7200), (1, 60), (100, 60), (0.001, 60), (1000, 1000)]
)
def test_the_interval_is_the_runtimes(cost_s: float, mean_s: float) -> None:
    gone = Interruptions(mean_s, cost_s, 300.0)
    assert gone.young_s == best_interval(cost_s, mean_s)


@pytest.mark.parametrize(("cost_s", "mean_s"), [(40, 7200), (5, 3600), (60, 86400)])
def test_youngs_interval_is_close_to_the_best_by_dalys_whole_model(
    cost_s: float, mean_s: float
) -> None:
    def wall(interval_s: float) -> float:
        """Daly's total time for one second of work, but for constant factors."""
        return (math.exp((interval_s + cost_s) / mean_s) - 1) / interval_s

    gone = Interruptions(mean_s, cost_s, 0.0)
    best = min(map(wall, range(1, mean_s)))
    assert wall(gone.young_s) == pytest.approx(best, rel=2e-3)


def test_goodput_is_that_of_the_guide() -> None:
    """The table of docs/numbers.md."""
    gone = Interruptions(7200.0, 40.0, 360.0)
    least, most = gone.goodput(gone.young_s)
    assert (round(least, 2), round(most, 2)) == (0.85, 0.89)
    assert gone.lost_s(600.0) == 700.0
    assert gone.goodput(1e6) == (0.0, 0.0)


CONTEXT = Context(0, 0, 0, 1, torch.device("cpu"), 2)
GPTS = [{}, {"depth": 3, "width": 32, "heads": 2, "seq_len": 16}, {"tie_weights": False}]
TOYS = [{}, {"features": 3, "classes": 7, "hidden": 5}, {"batch_norm": True, "dropout": 0.1}]
NETWORKS = [{}, {"channels": 3, "hidden": 9, "classes": 5}, {"batch_norm": True}]


def number(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def built_gpt(depth: int = 4, width: int = 128, heads: int = 4, seq_len: int = 128, tie_weights: bool = True) -> torch.nn.Module:  # fmt: skip
    return gpt.Transformer(depth, width, heads, seq_len, 0.0, tie_weights)


def built_mnist(channels: int = 16, hidden: int = 64, classes: int = 10, batch_norm: bool = False) -> torch.nn.Module:  # fmt: skip
    return mnist.Network((28, 28), channels, hidden, classes, 0.0, batch_norm)


@pytest.mark.parametrize("args", GPTS)
def test_parameters_of_gpt(args: dict[str, object]) -> None:
    assert workloads.counted("gpt", args) == number(built_gpt(**args))  # type: ignore[arg-type]


@pytest.mark.parametrize("args", TOYS)
def test_parameters_of_toy(args: dict[str, object]) -> None:
    built = toy.build(CONTEXT, **args).model  # type: ignore[arg-type]
    assert workloads.counted("toy", args) == number(built)


@pytest.mark.parametrize("args", NETWORKS)
def test_parameters_of_mnist(args: dict[str, object]) -> None:
    assert workloads.counted("mnist", args) == number(built_mnist(**args))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workload", "args"),
    [
        (None, {}),
        ("my.py:build", {}),
        ("mnist", {"data_dir": "~/pictures"}),
        ("gpt", {"depth": "4"}),
        ("gpt", {"depth": True}),
        ("toy", {"hidden": -1}),
    ],
)
def test_what_cannot_be_counted_is_not_guessed(workload: str, args: dict[str, object]) -> None:
    assert workloads.counted(workload, args) is None


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [
        ("1GbE", 1e9), ("nvlink", 3.6e12), ("300 Mbit/s", 3e8), ("2.5 Gbit/s", 2.5e9),
        ("25GbE", 25e9), ("40G", 40e9), ("1e2 Mbps", 1e8),
    ],
)  # fmt: skip
def test_links(text: str, bits_per_s: float) -> None:
    assert quantities.link(text).bits_per_s == bits_per_s


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (quantities.link, "10 GB/s", "counts bytes"),
        (quantities.link, "fast", "is no link"),
        (quantities.link, "0 Gbit/s", "is no link"),
        (quantities.link, "-1G", "is no link"),
        (quantities.many, "760Q", "is no number of parameters"),
        (quantities.many, "0", "is no number of parameters"),
        (quantities.many, "1e99", "is no number of parameters"),
        (quantities.seconds, "5", "has no unit"),
        (quantities.fraction, "85", "is no part of a whole"),
        (quantities.fraction, "nan", "is no part of a whole"),
        (quantities.price, "0", "is no price"),
        (quantities.price, "1e999", "is no price"),
    ],
)
def test_quantities_that_are_none(read: object, text: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        read(text)  # type: ignore[operator]


def test_numbers_for_people() -> None:
    times = [0.0, 2.5e-7, 3.58e-2, 0.9999, 14.3, 119.9, 755.0, 7200.0, 300000.0]
    spoken = "none, 0.25 µs, 35.8 ms, 1000 ms, 14.3 s, 120 s, 12.6 min, 2 h, 3.47 d"
    assert ", ".join(map(quantities.time, times)) == spoken
    assert [quantities.many(text) for text in ("760M", "1.3B", "124k", "12")] == [
        760_000_000, 1_300_000_000, 124_000, 12,
    ]  # fmt: skip
    assert quantities.count(760e6) == "760M"
    assert quantities.count(1.3e9) == "1.3B"
    assert quantities.count(1.52e9, "B") == "1.52 GB"
    assert quantities.count(12, "B") == "12 B"
    assert Link("x", 8.0).seconds(2.0, 0.5) == 4.0
