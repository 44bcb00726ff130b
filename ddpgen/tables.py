"""A launch plan as a table for people, or as JSON for programs."""

from __future__ import annotations

import json

from ddpgen import shell
from ddpgen.plan import LaunchPlan, Rank

MOST_RANKS = 64  # a table longer than a few screens tells nobody anything


def as_text(plan: LaunchPlan) -> str:
    """The plan, one line per rank."""
    nodes = f"{len(plan.nodes)} node" + ("s" if len(plan.nodes) > 1 else "")
    lines = [
        f"{plan.name} on {plan.tier}: {nodes}, {plan.world_size} ranks, {_work(plan)}",
        f"backend      {plan.backend}",
        f"rendezvous   {plan.rendezvous}",
        f"checkpoints  {_spoken(plan.checkpoint_dir)}",
        "",
        "node  rank  local rank  micro-batches",
    ]
    ranks = [(node.node_rank, rank) for node in plan.nodes for rank in node.ranks]
    for node_rank, rank in ranks[:MOST_RANKS]:
        lines.append(f"{node_rank:4}  {rank.rank:4}  {rank.local_rank:10}  {_range(rank)}")
    if len(ranks) > MOST_RANKS:
        lines.append(f"… and {len(ranks) - MOST_RANKS} more ranks")
    return "\n".join([*lines, "", shell.continued(plan.torchrun)])


def as_json(plan: LaunchPlan) -> str:
    """The plan as JSON; words known only at run time appear as bash would write them."""
    nodes = [
        {
            "node_rank": node.node_rank,
            "ranks": [
                {
                    "rank": rank.rank,
                    "local_rank": rank.local_rank,
                    "micro_batches": [rank.first, rank.end],
                }
                for rank in node.ranks
            ],
        }
        for node in plan.nodes
    ]
    facts = {
        "name": plan.name,
        "tier": plan.tier,
        "world_size": plan.world_size,
        "micro_batches": plan.micro_batches,
        "backend": plan.backend,
        "rendezvous": plan.rendezvous,
        "checkpoint_dir": shell.quote(plan.checkpoint_dir),
        "nodes": nodes,
        "command": [shell.quote(word) for word in plan.torchrun],
    }
    return json.dumps(facts, indent=2, ensure_ascii=False)


def _work(plan: LaunchPlan) -> str:
    if not plan.micro_batches:
        return "a script with its own loop"
    return f"{plan.micro_batches} micro-batches a step"


def _range(rank: Rank) -> str:
    if rank.first == rank.end:
        return "its own"
    last = rank.end - 1
    count = rank.end - rank.first
    return f"{rank.first}" if count == 1 else f"{rank.first}–{last}  ({count})"


def _spoken(word: shell.Word) -> str:
    """A path with its late part in words."""
    if isinstance(word, shell.Joined):
        late = {"beside": "<beside the bundle>", "HOME": "~"}
        parts = (late.get(p.name, p.name) if isinstance(p, shell.Var) else p for p in word.parts)
        return "".join(parts)
    return word if isinstance(word, str) else shell.quote(word)
