"""The tier sky's own fields of a spec, typed like the others: what each decides and what a wrong one costs.

Owns which words SkyPilot takes where. What they become in its YAML is sky.py's. Pure.
"""

# ruff: noqa: RUF009 (setting() makes a dataclass field, it is not a shared default)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ddpgen.spec.fields import (
    Choice,
    Duration,
    Flag,
    Group,
    Pairs,
    Text,
    Texts,
    Value,
    Whole,
    setting,
)
from ddpgen.spec.job import JobSpec

_GPUS = Text(r"[A-Za-z][A-Za-z0-9.-]*:[1-9][0-9]{0,3}", "a type and a number, like A100:8")
_AMOUNT = Text(r"[1-9][0-9]*(\.[0-9]+)?\+?", 'an amount like "8", or "8+" for at least that')
_BUCKET = Text(
    r"(s3|gs|r2|cos|oci|nebius|coreweave|vastdata)://[a-zA-Z0-9][a-zA-Z0-9._/@-]*"
    r"|https://[a-z0-9]+\.blob\.core\.windows\.net/[a-z0-9-]+",
    "a bucket like s3://NAME, gs://NAME, r2://NAME or https://ACCOUNT.blob.core.windows.net/CONTAINER",
)


@dataclass(frozen=True, repr=False, eq=False)
class Bucket:
    """Where checkpoints outlive the machines."""

    url: str = setting(
        _BUCKET,
        "The bucket: the name alone, it has to exist. Everything that is to survive a preemption lies "
        "there.",
    )
    mode: str = setting(
        Choice("mount", "cached"),
        "mount: a file is in the bucket when it is closed, so a checkpoint that counts is safe. cached: "
        "through a cache on the machine's disk, which uploads later; what is not up yet is lost with it.",
        "mount",
    )
    prefix: str | None = setting(
        Text(
            r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*",
            "words of letters, digits, `.`, `_` and `-`, with `/` between them",
        ),
        "Where in the bucket. Two jobs with the same place exclude each other. Left out: the job's name.",
        None,
    )
    path: str = setting(
        Text(r"/[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", "a path like /checkpoints"),
        "Where it is mounted on the machines. Not below the home: it may be cleared away with the bucket "
        "still in it.",
        "/checkpoints",
    )


@dataclass(frozen=True, repr=False, eq=False)
class Recovery:
    """What SkyPilot does when a machine is gone."""

    strategy: str = setting(
        Choice("eager_next_region", "failover"),
        "Where it looks for the next machine: in another region at once, or first in the same one.",
        "eager_next_region",
    )
    restarts_on_errors: int = setting(
        Whole(0, 1000),
        "How often it starts the job again after it failed with all machines up. A fault in your code "
        "fails every time, and each start costs minutes.",
        0,
    )


@dataclass(frozen=True, repr=False, eq=False)
class SkyJob(JobSpec):
    """A job for the tier `sky`: the job's fields and the tier's own."""

    meets: ClassVar[bool] = True

    bucket: Bucket | None = setting(
        Group(Bucket, shorthand="url"),
        "Where checkpoints outlive the machines. Left out only where checkpoint.dir is a URL.",
        None,
    )
    accelerators: tuple[str, ...] = setting(
        Texts(_GPUS),
        "The GPUs of each machine, like A100:8; of several the cheapest that can be had. The number is "
        "gpus_per_node.",
        (),
    )
    ordered: bool = setting(
        Flag(), "Take accelerators and infra in the order written, not by price.", False
    )
    infra: tuple[str, ...] = setting(
        Texts(
            Text(r"[a-z0-9]+(/[A-Za-z0-9*._@-]+){0,2}", "a cloud like aws, or aws/REGION[/ZONE]")
        ),
        "Where machines may be: clouds, regions, Kubernetes, Slurm. Left out: wherever you have access.",
        (),
    )
    instance_type: str | None = setting(
        Text(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a cloud's name for a machine, like p4d.24xlarge"),
        "The kind of machine. It fits one cloud only, so say infra too.",
        None,
    )
    cpus: str | None = setting(
        _AMOUNT, "Virtual CPUs of each machine, at least one per process.", None
    )
    memory: str | None = setting(_AMOUNT, "Memory of each machine, in GB.", None)
    spot: bool = setting(
        Flag(),
        "Spot machines: at a fraction of the price, and taken back at any time.",
        True,
    )
    on_demand_fallback: bool = setting(
        Flag(), "Where no spot machine can be had, pay the full price.", False
    )
    disk_size: int | None = setting(
        Whole(1, 100_000),
        "The disk of each machine, in GB. It holds a few checkpoints while they are on their way.",
        None,
    )
    disk_tier: str | None = setting(
        Choice("low", "medium", "high", "ultra", "best"), "How fast the disk is.", None
    )
    network_tier: str | None = setting(
        Choice("standard", "best"),
        "best: the cloud's fastest network between machines. Few kinds have it, so ask only if needed.",
        None,
    )
    image: str | None = setting(
        Text(r"[A-Za-z0-9][^\s\0]*", "docker:NAME@sha256:DIGEST, or a cloud's image id"),
        "The image of the machines. One named by a tag is another one next month; name it by digest.",
        None,
    )
    labels: Mapping[str, str] = setting(
        Pairs(r"[A-Za-z][A-Za-z0-9_./-]*", "letters, digits and _./-", Value(wants="a text")),
        "Labels of the machines, for your bill.",
        dict,
    )
    autostop: float | None = setting(
        Duration(),
        "After so long without work a machine of `sky launch` is taken down. Left out, it goes on costing "
        "until you say `sky down`. Managed jobs clean up by themselves.",
        None,
    )
    recovery: Recovery = setting(
        Group(Recovery, shorthand="strategy"),
        "What SkyPilot does when a machine is gone.",
        Recovery,
    )
    requirements: tuple[str, ...] = setting(
        Texts(
            Text(
                r"(--[a-z]|[A-Za-z0-9])[^'\0-\x1f]*",
                "a line of a requirements file, like torch==2.13.0, without single quotes",
            )
        ),
        "What pip installs, once per machine, into an environment of its own that the job then uses. "
        "Left out: `python` has everything.",
        (),
    )
    setup: tuple[str, ...] = setting(
        Texts(Text(wants="a line of bash")),
        "Lines of bash that make a machine ready, before requirements. Run again on every new machine, "
        "and maybe twice on one.",
        (),
    )
    secrets: tuple[str, ...] = setting(
        Texts(Text(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable")),
        "Variables whose values come from your environment when you launch; no file holds them.",
        (),
    )
    preempted_every: float | None = setting(
        Duration(),
        "How long such a machine usually lasts. Then checkpoint.every is found by itself, from this and "
        "from how long a checkpoint takes.",
        None,
    )
    notices: bool = setting(
        Flag(),
        "Watch for the cloud's notice that it takes a machine back, and stop cleanly before it does.",
        True,
    )
