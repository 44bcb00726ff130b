"""A launch plan as a table for people, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ddpgen import shell
from ddpgen.plan.launch import LaunchPlan, Rank
from ddpgen.plan.sky import Pairs, SkyPlan
from ddpgen.plan.slurm import SlurmPlan, clock

MOST_RANKS = 64  # a table longer than a few screens tells nobody anything


def as_text(plan: LaunchPlan) -> str:
    """The plan, one line per rank."""
    width = max((max(len(node.name), 4) + 2 for node in plan.nodes if node.name), default=0)
    nodes = f"{len(plan.nodes)} node" + ("s" if len(plan.nodes) > 1 else "")
    lines = [
        f"{plan.name} on {plan.tier}: {nodes}, {plan.world_size} ranks, {_work(plan)}",
        f"backend      {plan.backend}",
        f"rendezvous   {plan.rendezvous}",
        f"checkpoints  {_spoken(plan.checkpoint_dir)}",
        *([f"kept in      {_spoken(plan.store)}"] if plan.store else []),
        *(_times(plan.slurm) if plan.slurm else ()),
        *(_machines(plan.sky) if plan.sky else ()),
        "",
        f"{'host':{width}}node  rank  local rank  micro-batches"
        if width
        else "node  rank  local rank  micro-batches",
    ]
    ranks = [(node, rank) for node in plan.nodes for rank in node.ranks]
    for node, rank in ranks[:MOST_RANKS]:
        lines.append(
            f"{node.name:{width}}{node.node_rank:4}  {rank.rank:4}  {rank.local_rank:10}  "
            f"{_range(rank)}"
        )
    if len(ranks) > MOST_RANKS:
        lines.append(f"… and {len(ranks) - MOST_RANKS} more ranks")
    host = (
        f" on {plan.hosts.hosts[0].name} (the others' differ where the hosts do)"
        if plan.hosts
        else ""
    )
    lines += ["", f"the launch{host}; its script fills in {{name}} and prints the whole command:"]
    return "\n".join([*lines, "", shell.continued(plan.supervise.shown)])


def as_json(plan: LaunchPlan) -> str:
    """The plan as JSON; words known only at run time appear as bash would write them."""
    nodes = [
        {
            "node_rank": node.node_rank,
            **({"host": node.name} if node.name else {}),
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
        **({"store": _spoken(plan.store)} if plan.store else {}),
        "nodes": nodes,
        "command": [shell.quote(word) for word in plan.supervise.shown],
    }
    return json.dumps(facts, indent=2, ensure_ascii=False)


def _times(batch: SlurmPlan) -> Iterator[str]:
    fewer = f"; begins with {batch.least} nodes, too" if batch.least < batch.most else ""
    yield f"each node    {batch.cpus_per_task} CPUs{fewer}"
    starts = f"at most {batch.requeues + 1} starts"
    if batch.time_s is None or batch.total_s is None:
        yield f"time         {starts}, each as long as the partition allows"
        return
    limit, total = clock(batch.time_s), clock(batch.total_s)
    yield f"time         {limit} a start, {starts}: {total} in all (days-hours:minutes:seconds)"
    yield f"warning      {clock(batch.warning_s)} before the end of a start it stops, and comes back"


def _machines(task: SkyPlan) -> Iterator[str]:
    if task.bucket_url:
        yield f"bucket       {task.bucket_url}, seen as {task.bucket_path} ({task.bucket_mode})"
    common = _pairs(task.resources)
    for number, kind in enumerate(task.alternatives):
        yield f"{'machines' if not number else 'or':13}{', '.join(filter(None, (_pairs(kind), common)))}"


def _pairs(pairs: Pairs) -> str:
    return ", ".join(
        f"{key} {str(value).lower() if value is True else value}" for key, value in pairs
    )


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
        task = dict.fromkeys(("SLURM_ARRAY_TASK_ID", "SKYPILOT_TASK_ID"), "<task>")
        late = {"beside": "<beside the bundle>", "HOME": "~", **task}
        parts = (late.get(p.name, p.name) if isinstance(p, shell.Var) else p for p in word.parts)
        return "".join(parts)
    return word if isinstance(word, str) else shell.quote(word)
