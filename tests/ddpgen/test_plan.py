"""Ranks, their shares of the micro-batches, and the command, for what a spec asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpgen.text.shell import quote
from ddpgen.tiers import plan
from ddpgen.tiers.ranks import shares
from ddpgen.tiers.registry import read
from tests.ddpgen.conftest import GPT, ROOT, Run


def command(text: str) -> list[str]:
    return [
        quote(word)
        for word in plan.build_plan(read(text.encode(), "j")["local"].job).command.host_command
    ]


@pytest.mark.slow
@given(st.integers(1, 200), st.lists(st.fractions(Fraction(1, 9), 9), min_size=1, max_size=12))
def test_the_generator_and_the_training_share_out_alike(
    micro_batches: int, weights: list[Fraction]
) -> None:
    data = pytest.importorskip("train.training.data")
    if micro_batches >= len(weights):
        counts = [end - first for first, end in shares(micro_batches, weights)]
        assert counts == list(data.shares_by_weight(micro_batches, weights))


@pytest.mark.parametrize(
    ("more", "digests"),
    [
        ("", False),
        ("checkpoint: {every: 10 steps}", True),
        ("checkpoint: {every: 5 steps}", True),
        ("checkpoint: {every: 20 steps}", False),
        ("checkpoint: {every: 10 steps}\ntrain.digest: false", False),
        ("train.digest: true", True),
    ],
)
def test_weights_are_hashed_by_default_where_each_hash_has_a_checkpoint(
    more: str, digests: bool
) -> None:
    checkpoint, _, digest = more.partition("train.")
    workload = "workload: toy, steps: 30, global_batch_size: 8, micro_batch_size: 2"
    train = f"train: {{{workload}{digest and f', {digest}'}}}"
    assert ("--digest" in command(f"name: j\n{train}\n{checkpoint}\n")) is digests


# tests/ddpgen/test_schema.py validates the other examples, and test_reproduce.py renders them.
@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("gpt", "local"),
        ("nanogpt", "local"),
        ("fast_and_slow", "hosts"),
        ("cluster", "slurm"),
        ("spot_cpu", "sky"),
    ],
)
def test_the_plan_of_an_example(
    name: str, tier: str, run: Run, golden: Callable[[str, str], None]
) -> None:
    outcome = run("plan", ROOT / f"examples/{name}.yaml", "--target", tier)
    assert (outcome.code, outcome.err) == (0, "")
    golden(f"{name}.{tier}.plan.txt", outcome.out)


def test_the_script_of_an_example(run: Run, golden: Callable[[str, str], None]) -> None:
    outcome = run("render", ROOT / "examples/gpt.yaml", "--target", "local", "--stdout")
    assert (outcome.code, outcome.err) == (0, "")
    golden("gpt.local.sh", outcome.out)


def test_a_plan_for_programs(run: Run, spec: Callable[[str], object]) -> None:
    spec(GPT.replace("procs_per_node: 2", "procs_per_node: 3"))
    outcome = run("plan", "job.yaml", "--json")
    facts = json.loads(outcome.out)
    assert [rank["micro_batches"] for rank in facts["nodes"][0]["ranks"]] == [
        [0, 2],
        [2, 3],
        [3, 4],
    ]
    assert (facts["world_size"], facts["micro_batches"], facts["backend"]) == (3, 4, "gloo")


def test_a_plan_on_hosts_says_that_micro_batches_will_move(
    run: Run, spec: Callable[[str], object]
) -> None:
    spec(GPT + "targets: {hosts: {hosts: [a, b]}}")
    outcome = run("plan", "job.yaml", "--target=hosts")
    assert "\nshare        auto: " in outcome.out
    assert json.loads(run("plan", "job.yaml", "--target=hosts", "--json").out)["share"] == "auto"
    even = run("plan", "job.yaml", "--target=hosts", "--set", "targets.hosts.share=even")
    assert outcome.out.splitlines()[4].startswith("share ")
    moving = outcome.out.replace(" --balance", "").splitlines()
    assert even.out.splitlines() == moving[:4] + moving[5:]


def test_a_plan_says_that_the_optimizer_is_sharded(run: Run, spec: Callable[[str], object]) -> None:
    spec(GPT)
    plain, shard = run("plan", "job.yaml").out, ("--set", "train.shard=optimizer")
    line = "optimizer    each rank keeps about 1/2 of the optimizer's state (shard: optimizer)"
    out = run("plan", "job.yaml", *shard).out
    assert out.splitlines()[4] == line
    words = out.replace(line, "").replace("--shard=optimizer", "").replace("\\", "").split()
    assert words == plain.replace("\\", "").split()
    assert json.loads(run("plan", "job.yaml", "--json", *shard).out)["shard"] == "optimizer"
    alone = (*shard, "--set", "procs_per_node=1")  # one process has all of it
    assert "optimizer    " not in run("plan", "job.yaml", *alone).out


def test_the_plans_of_all_tiers_are_one_document_for_programs(
    run: Run, spec: Callable[[str], object]
) -> None:
    spec(GPT + "targets: {local: , sky: {bucket: s3://bucket, spot: false}}")
    plans = json.loads(run("plan", "job.yaml", "--target=all", "--json").out)
    assert [plan["tier"] for plan in plans] == ["local", "sky"]
    assert "use_spot false" in run("plan", "job.yaml", "--target=all").out


@pytest.mark.parametrize(
    ("top", "backend"),
    [
        ("", "gloo"),
        ("gpus_per_node: 0", "gloo"),
        ("gpus_per_node: 2", "nccl"),
        ("gpus_per_node: 2\nbackend: gloo", "gloo"),
    ],
)
def test_auto_means_nccl_where_gpus_are_asked_for(top: str, backend: str) -> None:
    assert f"--backend={backend}" in command(GPT + top)


@pytest.mark.parametrize(
    ("directory", "source"),
    [
        ("runs/a b", "\"$beside\"'/runs/a b'"),
        ("/scratch/x", "/scratch/x"),
        ("~/ck", '"$HOME"/ck'),
    ],
)
def test_where_checkpoints_go(directory: str, source: str) -> None:
    text = GPT + f"checkpoint: {{dir: {json.dumps(directory)}}}\n"
    assert quote(plan.build_plan(read(text.encode(), "j")["local"].job).checkpoint_dir) == source


def test_training_accepts_every_flag_a_plan_can_hold() -> None:
    """The argv is the contract with train/: its own parser reads what we write."""
    pytest.importorskip("torch")
    from train.run.config import parse

    text = GPT + "  grad_clip: 1.0\n  find_unused_parameters: true\n  args: {depth: 2}\ncode: .\n"
    words = command(text)
    config = parse([word.replace("'", "") for word in words[words.index("run") + 1 :]])
    assert config.checkpoint_every.seconds == 600
    assert (config.rendezvous_timeout, config.grad_clip, config.args) == (120.0, 1.0, {"depth": 2})


def test_training_is_told_what_is_the_best_when_to_stop_early_and_whom_to_tell() -> None:
    pytest.importorskip("torch")
    from train.run.config import parse

    text = GPT + "  eval_every: 5 steps\n  best: {metric: f1, mode: max}\n"
    text += "  early_stop: {patience: 3, min_delta: 0.01}\n  trackers: [wandb, tensorboard]\n  profile: 3..5\n"
    words = command(text)
    config = parse(words[words.index("run") + 1 :])
    assert (config.best_metric, config.best_mode) == ("f1", "max")
    assert (config.patience, config.min_delta) == (3, 0.01)
    assert (config.trackers, config.profile) == (("wandb", "tensorboard"), (3, 5))
