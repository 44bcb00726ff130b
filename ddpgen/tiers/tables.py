"""The plan of a job, as a table for people or as values for JSON."""

from __future__ import annotations

from typing import Any

from ddpgen.spec.job import JobSpec
from ddpgen.text import shell
from ddpgen.tiers import ranks as launch
from ddpgen.tiers.ranks import Rank
from ddpgen.tiers.registry import TIERS

MAX_RANKS = 64  # a longer table takes more than a few screens, and nobody reads it


def as_text(job: JobSpec, tier: str) -> str:
    """Return the plan as text, with a line for each rank up to MAX_RANKS."""
    ranks, plan = launch.ranks(job), TIERS[tier].plan(job)
    count = ranks[-1].node_rank + 1
    work = (
        f"{job.micro_batches} micro-batches a step"
        if job.micro_batches
        else "a script with its own loop"
    )
    nodes = f"{count} node" + ("s" if count > 1 else "")
    lines = [
        f"{job.name} on {tier}: {nodes}, {job.world_size} ranks, {work}",
        f"backend      {launch.backend(job)}",
        f"rendezvous   {plan.rendezvous}",
        f"checkpoints  {_path_text(plan.checkpoint_dir)}",
        *([f"kept in      {_path_text(plan.store)}"] if plan.store else []),
        *([f"points       {_points(job)}"] if job.points else []),
        *([f"optimizer    {_sharded(job)}"] if job.sharded else []),
        *plan.facts,
        "",
    ]
    width = max(len(rank.host) for rank in ranks)  # only the tier hosts has names for them
    width = max(width, 4) + 2 if width else 0
    lines.append(f"{'host' if width else '':{width}}node  rank  local rank  micro-batches")
    lines += [
        f"{rank.host:{width}}{rank.node_rank:4}  {rank.rank:4}  {rank.local_rank:10}  {_range(rank)}"
        for rank in ranks[:MAX_RANKS]
    ]
    if len(ranks) > MAX_RANKS:
        lines.append(f"… and {len(ranks) - MAX_RANKS} more ranks")
    host = f" on {ranks[0].host} (the others' differ where the hosts do)" if width else ""
    lines += [
        "",
        f"the launcher{host}; the supervisor fills in {{name}} and prints the whole command:",
    ]
    return "\n".join([*lines, "", shell.sections(plan.command[1:])])


def facts(job: JobSpec, tier: str) -> dict[str, Any]:
    """Return the plan for programs. A word known only at run time appears as bash source."""
    plan = TIERS[tier].plan(job)
    nodes: list[dict[str, Any]] = []
    for rank in launch.ranks(job):
        if rank.local_rank == 0:
            host = {"host": rank.host} if rank.host else {}
            nodes.append({"node_rank": rank.node_rank, **host, "ranks": []})
        work = [rank.first, rank.end]
        part = {"rank": rank.rank, "local_rank": rank.local_rank, "micro_batches": work}
        nodes[-1]["ranks"].append(part)
    return {
        "name": job.name,
        "tier": tier,
        "world_size": job.world_size,
        "micro_batches": job.micro_batches,
        "backend": launch.backend(job),
        "rendezvous": plan.rendezvous,
        "checkpoint_dir": shell.quote(plan.checkpoint_dir),
        **({"store": _path_text(plan.store)} if plan.store else {}),
        **({"points": [*job.points]} if job.points else {}),
        **({"share": "auto"} if job.balances else {}),
        **({"shard": job.train.shard} if job.sharded else {}),
        "nodes": nodes,
        "command": [shell.quote(word) for word in plan.command.host_command],
    }


def _sharded(job: JobSpec) -> str:
    return f"each rank keeps about 1/{job.world_size} of the optimizer's state (shard: optimizer)"


def _points(job: JobSpec) -> str:
    return f"{len(job.points)}, each in a directory of its own; the command is that of {next(iter(job.points))}"


def _range(rank: Rank) -> str:
    if rank.first == rank.end:
        return "its own"
    last = rank.end - 1
    count = rank.end - rank.first
    return f"{rank.first}" if count == 1 else f"{rank.first}–{last}  ({count})"


def _path_text(word: shell.Word) -> str:
    """Return a path for people: the parts known only at run time become words such as <task>."""
    if isinstance(word, shell.JoinedWord):
        task = dict.fromkeys(("SLURM_ARRAY_TASK_ID", "SKYPILOT_TASK_ID"), "<task>")
        variables = {"beside": "<beside the bundle>", "HOME": "~", **task}
        parts = (
            variables.get(p.name, p.name) if isinstance(p, shell.Var) else p for p in word.parts
        )
        return "".join(parts)
    return word if isinstance(word, str) else shell.quote(word)
