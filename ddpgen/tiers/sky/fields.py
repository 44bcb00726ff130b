"""The tier sky's own fields of a spec, typed like the others.

Owns the words that SkyPilot accepts in each of them. tiers/sky/directives.py has SkyPilot's names. Pure.
"""

# ruff: noqa: RUF009 (setting() makes a dataclass field, it is not a shared default)
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ddpgen.spec.fields import (
    Choice,
    Flag,
    Refused,
    Text,
    Value,
    WholeNumber,
    did_you_mean,
    setting,
    show,
)
from ddpgen.spec.groups import Group, Pairs, Texts
from ddpgen.spec.job import JobSpec
from ddpgen.spec.places import Prefix
from ddpgen.spec.times import Duration
from ddpgen.spec.yamltree import Scalar
from ddpgen.tiers.sky.extra import Extra
from ddpgen.tiers.sky.requirement import Requirement, may_bring_others, package

# A number that is not 0.
_POSITIVE = r"(?=[0-9.]*[1-9])[0-9]{1,6}(\.[0-9]{1,3})?"
_CPUS = Text(rf"{_POSITIVE}\+?", 'a number like "8", or "8+" for at least that')
_MEMORY = Text(
    rf"{_POSITIVE}([KMGTPkmgtp][BIbi])?\+?", 'GB like "64", "64GB", or "64+" for at least that'
)
# A context of Kubernetes may be an ARN, which holds colons and slashes.
_INFRA = r"([A-Za-z0-9]+|[*])(/[A-Za-z0-9*._@-]+){0,2}|([Kk]8[Ss]|[Kk]ubernetes)/[A-Za-z0-9][A-Za-z0-9._@:/+-]*"
# The clouds of SkyPilot 0.14 (sky/clouds/), and its other names for two of them.
_CLOUDS = (
    "aws", "azure", "cudo", "digitalocean", "do", "fluidstack", "gcp", "hyperbolic", "ibm", "k8s", "kubernetes",
    "lambda", "mithril", "nebius", "oci", "paperspace", "primeintellect", "runpod", "scp", "seeweb", "shadeform",
    "slurm", "ssh", "vast", "verda", "vsphere", "yotta",
)  # fmt: skip
# [REGISTRY[:PORT]/]NAME[:TAG][@DIGEST], as docker takes it.
_DOCKER = re.compile(
    r"docker:((localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:))(:[0-9]+)?/)?"
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@sha256:[0-9a-f]{64})?"
)
_BUCKET = Text(
    r"(s3|gs|r2|cos|oci|nebius|cw|vastdata)://[a-zA-Z0-9][a-zA-Z0-9._/@-]*"
    r"|https://[a-z0-9]+\.blob\.core\.windows\.net/[a-z0-9-]+",
    "a bucket like s3://NAME, gs://NAME, r2://NAME or https://ACCOUNT.blob.core.windows.net/CONTAINER",
)


class Gpus(Text):
    """A type of GPU and a number of them."""

    def __init__(self) -> None:
        allowed = "a type and a number, like A100:8; L4 is one"
        super().__init__(r"[A-Za-z][A-Za-z0-9._-]*(:[1-9][0-9]{0,3})?", allowed)
        self.sample = "x:0"  # so that no other field follows from a refused one

    def parse(self, raw: Scalar) -> str:
        if match := re.fullmatch(r"([A-Za-z].*[0-9].*)[xX]([1-9][0-9]?)", raw.text):
            raise Refused(f"{show(raw.text)} is no type of GPU", f"write {match[1]}:{match[2]}")
        return super().parse(raw)


class Infra(Text):
    """A place for machines: a cloud, its region and zone, a context of Kubernetes."""

    def __init__(self) -> None:
        super().__init__(_INFRA, "a cloud like aws, aws/REGION[/ZONE] or k8s/CONTEXT")

    def parse(self, raw: Scalar) -> str:
        cloud, slash, place = super().parse(raw).partition("/")
        cloud = cloud.lower()
        if cloud not in (*_CLOUDS, "*"):
            raise Refused(f"{show(cloud)} is no cloud of SkyPilot", did_you_mean(cloud, _CLOUDS))
        return f"{cloud}{slash}{place}"


class Image(Text):
    """An image of the machines: a container's, or one of a cloud."""

    def __init__(self) -> None:
        super().__init__(
            r"[A-Za-z0-9/][^\s\0]*", "docker:NAME@sha256:DIGEST, or a cloud's image id"
        )

    def parse(self, raw: Scalar) -> str:
        text = super().parse(raw)
        if text.startswith("docker:") and not _DOCKER.fullmatch(text):
            problem = f"{show(text)} names no image of a container"
            raise Refused(
                problem, "write docker:NAME:TAG, or docker:NAME@sha256: and 64 digits of 0 to f"
            )
        return text


class MountPath(Text):
    """An absolute path on the machines, kept without a slash at its end."""

    def __init__(self) -> None:
        super().__init__(r"(/[A-Za-z0-9._-]+)+/?", "a path like /checkpoints")

    def parse(self, raw: Scalar) -> str:
        return super().parse(raw).rstrip("/")


class DiskSize(WholeNumber):
    """A number of GB. The unit may be there: 256GB, 500Gi, 2TB."""

    def __init__(self, low: int, high: int):
        super().__init__(low, high)
        self.allowed += " (GB)"
        self.form = {"anyOf": [self.form, {"type": "string", "pattern": "^[0-9]+[GTgt][BbIi]$"}]}

    def parse(self, raw: Scalar) -> int:
        size = re.fullmatch("([0-9]{1,9})([GT])[BI]", raw.text.upper())
        if size is None:
            return super().parse(raw)
        number = int(size[1]) * (1024 if size[2] == "T" else 1)
        return super().parse(raw._replace(text=str(number), tag="int", quoted=False))


@dataclass(frozen=True, repr=False, eq=False)
class Bucket:
    """The bucket in which checkpoints outlive the machines."""

    url: str = setting(_BUCKET)
    mode: str = setting(Choice("mount", "cached"), "mount")
    prefix: str | None = setting(Prefix(), None)
    path: str = setting(MountPath(), "/checkpoints")


@dataclass(frozen=True, repr=False, eq=False)
class Recovery:
    """SkyPilot's reaction to a lost machine and to a failed job."""

    strategy: str = setting(Choice("eager_next_region", "failover"), "eager_next_region")
    restarts_on_errors: int = setting(WholeNumber(0, 1000), 0)


@dataclass(frozen=True, repr=False, eq=False)
class SkyJob(JobSpec):
    """A job for the tier `sky`: the job's fields and the tier's own."""

    distributed: ClassVar[bool] = True

    bucket: Bucket | None = setting(Group(Bucket, shorthand="url"), None)
    accelerators: tuple[str, ...] = setting(Texts(Gpus()), ())
    ordered: bool = setting(Flag(), False)
    infra: tuple[str, ...] = setting(Texts(Infra()), ())
    instance_type: str | None = setting(
        Text(r"[A-Za-z0-9][A-Za-z0-9._$:-]*", "a cloud's name for a machine, like p4d.24xlarge"),
        None,
    )
    cpus: str | None = setting(_CPUS, None)
    memory: str | None = setting(_MEMORY, None)
    spot: bool = setting(Flag(), True)
    on_demand_fallback: bool = setting(Flag(), False)
    disk_size: int | None = setting(DiskSize(1, 100_000), None)
    disk_tier: str | None = setting(Choice("low", "medium", "high", "ultra", "best"), None)
    network_tier: str | None = setting(Choice("standard", "best"), None)
    image: str | None = setting(Image(), None)
    labels: Mapping[str, str] = setting(
        Pairs(r"[A-Za-z][A-Za-z0-9_./-]*", "letters, digits and _./-", Value(allowed="a text")),
        dict,
    )
    autostop: float | None = setting(Duration(), None)
    recovery: Recovery = setting(Group(Recovery, shorthand="strategy"), Recovery)
    requirements: tuple[str, ...] = setting(Texts(Requirement()), ())
    setup: tuple[str, ...] = setting(Texts(Text(allowed="a line of bash")), ())
    preempted_every: float | None = setting(Duration(), None)
    notices: bool = setting(Flag(), True)
    extra: Mapping[str, Any] = setting(Extra(), dict)

    def __post_init__(self) -> None:
        counts = self.gpu_counts
        if self.gpus_per_node is None and len(counts) == 1:
            object.__setattr__(self, "gpus_per_node", counts.pop())
        super().__post_init__()

    @property
    def clouds(self) -> set[str]:
        """The clouds of `infra`; * is any."""
        return {place.partition("/")[0] for place in self.infra}

    @property
    def gpu_counts(self) -> set[int]:
        """The numbers of GPUs in `accelerators`."""
        return {int(item.partition(":")[2] or 1) for item in self.accelerators}

    @property
    def preempted_after(self) -> float | None:
        return self.preempted_every

    def at_point(self, name: str) -> SkyJob:
        """The job of one point of a sweep, with a name that SkyPilot takes and its own part of the bucket."""
        checkpoint, bucket = self.checkpoint, self.bucket
        if checkpoint.url:
            checkpoint = super().at_point(name).checkpoint
        if bucket is not None:
            bucket = replace(bucket, prefix=f"{bucket.prefix or self.name}/{name}")
        job_name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.name}-{name}")
        return replace(self, name=job_name, points={}, checkpoint=checkpoint, bucket=bucket)

    @property
    def installs(self) -> frozenset[str] | None:
        """The packages of `requirements`, which get an environment of their own; None if a line may bring others."""
        if not self.requirements or self.locked or self.python.activate:
            return None
        if any("[" in line or may_bring_others(line) for line in self.requirements):
            return None
        names = (re.sub("[-_.]+", "-", package(line)) for line in self.requirements)
        return frozenset(filter(None, names))

    def persists(self, path: str) -> bool:
        """True if the path is in the bucket: a machine's disk is lost with the machine."""
        places = ("{checkpoint_dir}/", f"{self.bucket.path}/" if self.bucket else "")
        return bool(self.bucket and f"{path}/".startswith(places))
