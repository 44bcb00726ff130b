"""What follows from a job, as a table for people or as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ddpgen import shell
from ddpgen.spec.job import JobSpec
from ddpgen.spec.sky import SkyJob
from ddpgen.spec.slurm import SlurmJob
from ddpgen.tiers import ranks as launch
from ddpgen.tiers.ranks import Rank
from ddpgen.tiers.sky import directives as sky
from ddpgen.tiers.slurm import directives as slurm

MOST_RANKS = 64  # a table longer than a few screens tells nobody anything


def as_text(job: JobSpec, tier: str) -> str:
    """The plan, one line per rank."""
    ranks, kept = launch.ranks(job), launch.store(job)
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
        f"rendezvous   {launch.rendezvous(job)}",
        f"checkpoints  {_spoken(launch.checkpoint_dir(job))}",
        *([f"kept in      {_spoken(kept)}"] if kept else []),
        *(_times(job) if isinstance(job, SlurmJob) else ()),
        *(_machines(job) if isinstance(job, SkyJob) else ()),
        "",
    ]
    width = max(len(rank.host) for rank in ranks)  # only the tier hosts has names for them
    width = max(width, 4) + 2 if width else 0
    lines.append(f"{'host' if width else '':{width}}node  rank  local rank  micro-batches")
    lines += [
        f"{rank.host:{width}}{rank.node_rank:4}  {rank.rank:4}  {rank.local_rank:10}  {_range(rank)}"
        for rank in ranks[:MOST_RANKS]
    ]
    if len(ranks) > MOST_RANKS:
        lines.append(f"… and {len(ranks) - MOST_RANKS} more ranks")
    host = f" on {ranks[0].host} (the others' differ where the hosts do)" if width else ""
    lines += ["", f"the launch{host}; its script fills in {{name}} and prints the whole command:"]
    return "\n".join([*lines, "", shell.sections(launch.command(job)[1:])])


def facts(job: JobSpec, tier: str) -> dict[str, Any]:
    """The plan for programs; words known only at run time appear as bash would write them."""
    kept = launch.store(job)
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
        "rendezvous": launch.rendezvous(job),
        "checkpoint_dir": shell.quote(launch.checkpoint_dir(job)),
        **({"store": _spoken(kept)} if kept else {}),
        "nodes": nodes,
        "command": [shell.quote(word) for word in launch.command(job).shown],
    }


def _times(job: SlurmJob) -> Iterator[str]:
    least, most = job.nodes.least, int(job.nodes)
    fewer = f"; begins with {least} nodes, too" if least < most else ""
    yield f"each node    {slurm.cpus_per_task(job)} CPUs{fewer}"
    starts = f"at most {job.requeues + 1} starts"
    if job.time is None:
        yield f"time         {starts}, each as long as the partition allows"
        return
    limit, total = slurm.clock(job.time), slurm.clock(job.time * (job.requeues + 1))
    yield f"time         {limit} a start, {starts}: {total} in all (days-hours:minutes:seconds)"
    warning = slurm.clock(slurm.warning_s(job))
    yield f"warning      {warning} before the end of a start it stops, and comes back"


def _machines(job: SkyJob) -> Iterator[str]:
    if job.bucket:
        mode, url = sky.MODES[job.bucket.mode], job.bucket.url.rstrip("/")
        yield f"bucket       {url}, seen as {job.bucket.path} ({mode})"
    common = _pairs(sky.resources(job))
    for number, kind in enumerate(sky.alternatives(job)):
        yield f"{'machines' if not number else 'or':13}{', '.join(filter(None, (_pairs(kind), common)))}"


def _pairs(pairs: Iterable[tuple[str, sky.Scalar]]) -> str:
    return ", ".join(
        f"{key} {str(value).lower() if isinstance(value, bool) else value}" for key, value in pairs
    )


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
