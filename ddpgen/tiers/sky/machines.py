"""The machines of a job on SkyPilot: the rules for their kind, cloud, image and labels.

Owns the facts about the clouds of SkyPilot 0.14 that a spec can be held to without its catalogue. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ddpgen.spec import unwise
from ddpgen.spec.fields import show
from ddpgen.spec.job import Python
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.sky import directives
from ddpgen.tiers.sky.fields import SkyJob
from ddpgen.tiers.sky.requirement import may_bring_others, package

# Feature of SkyPilot 0.14 → the clouds without it (sky/clouds/), which tests/sky compares with the installed SkyPilot.
# A cloud is not listed if only some of its machines or clusters lack the feature. Kubernetes and Nebius may have
# network tiers, Kubernetes may have spot machines, and Slurm may have container images and mounts of buckets.
WITHOUT: Mapping[str, frozenset[str]] = {
    name: frozenset(clouds.split())
    for name, clouds in {
        "multi-node jobs": "hyperbolic primeintellect runpod seeweb shadeform vast verda vsphere yotta",
        "spot machines":
            "cudo digitalocean do fluidstack hyperbolic lambda paperspace scp seeweb shadeform slurm vsphere yotta",
        "disk tiers":
            "cudo digitalocean do fluidstack hyperbolic ibm k8s kubernetes lambda mithril paperspace primeintellect"
            " runpod scp seeweb shadeform ssh vast verda vsphere yotta",
        "network tiers":
            "azure cudo digitalocean do fluidstack hyperbolic lambda mithril paperspace primeintellect runpod"
            " scp seeweb shadeform vast verda vsphere yotta",
        "container images": "cudo hyperbolic ibm oci primeintellect scp shadeform verda vsphere",
        "machine images":
            "cudo fluidstack hyperbolic lambda mithril paperspace primeintellect scp seeweb shadeform vsphere",
        "mounts of buckets": "hyperbolic runpod seeweb shadeform vast verda yotta",
        "local disks":
            "azure cudo digitalocean do fluidstack gcp hyperbolic ibm k8s kubernetes lambda mithril nebius oci paperspace"
            " primeintellect runpod scp seeweb shadeform slurm ssh vast verda vsphere yotta",
    }.items()
}  # fmt: skip
# Cloud → the names and values of its labels in SkyPilot 0.14 (is_label_valid in sky/clouds/), and the same in words.
_LABELS = {
    "aws": (
        r"(?!aws:)[\S]{1,127}$",
        r"[\S]{0,255}$",
        "a name of up to 127 characters and a value of up to 255, without spaces",
    ),
    "gcp": (
        r"[a-z]([a-z0-9_-]{0,62})?$",
        r"[a-z0-9_-]{0,63}$",
        "up to 63 small letters, digits, `_` and `-`, a letter first in the name",
    ),
    "k8s": (
        r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\/)?[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?$",
        r"([a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?)?$",
        "up to 63 letters, digits, `_`, `.` and `-`, small ones in the name",
    ),
}
_LABELS |= {"kubernetes": _LABELS["k8s"], "ssh": _LABELS["k8s"]}
# Cloud → the names of its zones. The group is the region of the zone.
_ZONES = {
    "aws": re.compile(r"([a-z]+(-[a-z]+)+-[0-9]+)[a-z]"),
    "gcp": re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z]"),
}
# Cloud → the form of its regions, and of its machines.
_REGIONS = {
    "aws": re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+"),
    "gcp": re.compile(r"[a-z]+-[a-z]+[0-9]+"),
}
_MACHINES = {
    "aws": re.compile(r"[a-z0-9-]+\.[a-z0-9-]+"),
    "azure": re.compile(r"(Standard|Basic)_\w+"),
    "gcp": re.compile(r"[a-z0-9]+-[a-z0-9-]+"),
}
_MOST_MIB = 32 << 20  # of any machine
# The first letters of the images that only one cloud has → that cloud.
_IMAGES = {"ami-": "aws", "projects/": "gcp", "ocid1.": "oci"}
# The clouds whose usual images have no torch.
_BARE = {"aws", "azure", "gcp"}
# A line of setup on a machine of these clouds, what comes of it, and a remedy.
_AS_A_USER = (
    (
        re.compile(
            r"([A-Z_]+=\S+ +)?apt(-get)?( +-\S+)* +(install|update|upgrade|remove)\b[^|&;]*"
        ),
        "lacks sudo, and the user of the machine is not root",
        r"write sudo \g<0>",
    ),
    (
        re.compile(
            r"(sudo +)?(\S*/)?(reboot|poweroff|halt|shutdown|systemctl +(reboot|poweroff))( [^|&;]*)?"
        ),
        "ends the machine in the middle of its setup",
        "leave it out",
    ),
)
# A path in the home, or a module, that no such image has.
_OF_A_CLUSTER = re.compile(
    r"((source|\.) +)?(~|\$HOME)/(?!\.|miniconda|sky)[^|&;]*$|module +load [^|&;]*$"
)
# A home directory that no machine of SkyPilot has.
_OTHER_HOME = re.compile(r"/home/(?!(ubuntu|gcpuser|azureuser|sky)(/|$))|/Users/")
# A line that makes what a later one needs.
_MAKES = re.compile(r"\b(clone|install|venv|create|wget|curl|rsync|cp)\s")
# The clouds on which SkyPilot takes network_tier: best together with an image of the cloud.
_BEST_WITH_IMAGE = {"gcp", "nebius"}
# Cloud → its machines with GPUs of NVIDIA, and some of those without any GPU.
_INSTANCES = {
    "aws": (r"(p[2-9]|g[3-9])\w*\..*", r"[acmrtxz][1-9]\w*\..*"),
    "azure": (r"Standard_N[CDV]\d.*", r"Standard_[ABDEF]\d.*"),
    "gcp": (r"(a2|a3|a4|g2)-.*", r"(n1|n2|n2d|n4|e2|c2|c2d|c3|c3d|c4|m1|m2|m3|t2d)-.*"),
}
_LETTER_O = re.compile(r"[0-9]O+(?![A-Za-z])")
_WITHOUT_BF16 = re.compile(r"(V100|P100|T4|P4|K80|M60)(?![0-9A-Za-z])")
_LEAST_DISK_GB, _MINUTE_S = 20, 60
# SkyPilot's accelerators that are no GPUs.
_NO_GPU = re.compile("tpu|trainium|inferentia", re.IGNORECASE)
# A build of torch for CPUs or AMD, or an index with such builds.
_OTHER_WHEELS = re.compile(
    r"torch==[^ ;]*(\+(?:cpu|rocm)[\d.]*)|-(?:i|-index-url|-extra-index-url)[ =].*/whl/(cpu|rocm[\d.]*)\b"
)
# Where machines that are no spot machines may be taken back as well.
_PREEMPTS = {"k8s", "kubernetes", "slurm", "ssh"}


def check(job: SkyJob) -> Iterator[Conflict]:
    """Yield the fields about machines that SkyPilot would refuse or misread."""
    yield from _kinds(job)
    yield from _machines(job)
    yield from _small(job)
    yield from _preemption(job)
    yield from _places(job)
    yield from _image(job)
    made = any(_MAKES.search(line) for line in job.python.activate)
    if job.clouds <= _BARE and not (job.setup or job.image or job.extra or made):
        yield from _python_of_a_new_machine(job)
        yield from _files_of_a_new_machine(job)
        if job.requirements and not job.locked:
            yield from _packages(job)
        names = (*job.env, *(secret.name for secret in job.secrets), *job.python.activate)
        if "wandb" in job.train.trackers and not any("WANDB" in n.upper() for n in names):
            problem = "wandb has no login on a new machine"
            yield Conflict(("train.trackers",), problem, "write secrets: [WANDB_API_KEY]", False)
    yield from _setup(job)
    yield from _labels(job)


def _machines(job: SkyJob) -> Iterator[Conflict]:
    if others := job.gpu_counts - {job.gpus_per_node or 0}:
        gpus = max(others)
        problem = f"{gpus} GPUs on a machine, where the job uses {job.gpus_per_node or 0}"
        fields = ("accelerators", "gpus_per_node", "procs_per_node")
        yield Conflict(fields, problem, f"write gpus_per_node: {gpus} and procs_per_node: {gpus}")
    if job.gpus_per_node and not job.accelerators and job.instance_type is None:
        problem = f"asks for {job.gpus_per_node} GPUs, and nothing says of which kind"
        remedy = f"write accelerators: A100:{job.gpus_per_node}"
        yield Conflict(("accelerators", "gpus_per_node"), problem, remedy)
    if job.instance_type and len(job.clouds) != 1:
        problem = f"{job.instance_type} is one cloud's name for a machine"
        yield Conflict(("instance_type", "infra"), problem, "write infra: with that cloud")
    yield from _instance(job)
    if job.on_demand_fallback and not job.spot:
        problem = "has no effect: the machines are paid in full anyway"
        yield Conflict(("on_demand_fallback", "spot"), problem, "leave it out", False)
    yield from _without(job)
    if job.memory:
        mib = directives.memory_mib(job.memory)
        yield from unwise.memory("memory", job.memory, mib, job.procs_per_node, "16GB")
        if mib > _MOST_MIB:
            problem = f"{job.memory} is more than any machine has"
            yield Conflict(("memory",), problem, "write the size in GB, like 64", False)
    if job.ordered and len(job.accelerators) < 2 and len(job.infra) < 2:
        yield unwise.no_effect("ordered", "on fewer than two accelerators or places")
    if job.cpus and float(job.cpus.rstrip("+")) < job.procs_per_node > 1:
        problem = f"{job.procs_per_node} processes share {job.cpus} CPUs of a machine"
        remedy = f'write "{job.procs_per_node}+", or start fewer processes'
        yield Conflict(("cpus", "procs_per_node"), problem, remedy, False)


def _without(job: SkyJob) -> Iterator[Conflict]:
    """Yield a warning for each feature that no cloud of the job has in SkyPilot."""
    image = job.image or ""
    in_docker = image.startswith("docker:")
    has_local_disk = "local_disk" in job.extra.get("resources", {})
    needed = {
        "multi-node jobs": ("nodes", job.nodes != 1, "write nodes: 1"),
        "spot machines": ("spot", job.spot and not job.on_demand_fallback, "write spot: false"),
        "disk tiers": ("disk_tier", job.disk_tier not in (None, "best"), "leave it out"),
        "network tiers": ("network_tier", job.network_tier == "best", "leave it out"),
        "container images": ("image", in_docker, "leave it out"),
        "machine images": ("image", image and not in_docker, "leave it out"),
        "mounts of buckets": ("bucket", job.bucket, "write checkpoint: {dir: URL} in its place"),
        "local disks": ("extra.resources.local_disk", has_local_disk, "leave it out"),
    }
    for feature, (field, is_needed, remedy) in needed.items():
        if is_needed and job.infra and job.clouds <= WITHOUT[feature]:
            problem = f"SkyPilot has no {feature} on {', '.join(sorted(job.clouds))}"
            yield Conflict((field, "infra"), problem, f"{remedy}, or take another cloud", False)


def _instance(job: SkyJob) -> Iterator[Conflict]:
    """Yield a warning if the machine has GPUs that the job does not use, or the other way round."""
    cloud = min(job.clouds, default="")
    if job.instance_type is None or cloud not in _INSTANCES or len(job.clouds) != 1:
        return
    owners = [each for each, form in _MACHINES.items() if form.fullmatch(job.instance_type)]
    if owners and cloud not in owners:
        problem = f"{job.instance_type} is a machine of {owners[0]}, and infra names {cloud}"
        yield Conflict(("instance_type", "infra"), problem, f"write infra: {owners[0]}", False)
    with_gpus, without = _INSTANCES[cloud]
    fields = ("instance_type", "gpus_per_node")
    if not job.gpus_per_node and re.fullmatch(with_gpus, job.instance_type):
        problem = f"{job.instance_type} has GPUs, and the job uses none"
        yield Conflict(fields, problem, "write gpus_per_node: N and procs_per_node: N", False)
    attaches = cloud == "gcp" and job.accelerators  # to any kind of machine
    if job.gpus_per_node and not attaches and re.fullmatch(without, job.instance_type):
        problem = f"{job.instance_type} has no GPUs, and the job uses {job.gpus_per_node}"
        yield Conflict(fields, problem, "leave instance_type out, and write accelerators", False)


def _small(job: SkyJob) -> Iterator[Conflict]:
    """Yield the numbers that have another unit in SkyPilot, or lack one, and an interface that few machines have."""
    if job.nic and not job.infra:
        problem = f"{job.nic} is an interface of some machines, and the job may get any"
        yield Conflict(("nic",), problem, "leave it out: each machine finds its own", False)
    if job.disk_size is not None and job.disk_size < _LEAST_DISK_GB:
        problem = f"{job.disk_size} GB hold no image of a cloud together with torch"
        yield Conflict(("disk_size",), problem, "leave it out: it is 256 by default", False)
    if job.autostop is not None and job.autostop < _MINUTE_S:
        problem = f"{job.autostop:g} s are less than a minute, the least that SkyPilot counts"
        yield Conflict(("autostop",), problem, "write minutes, like 10min", False)
    if job.preempted_every and job.preempted_every < _MINUTE_S:
        problem = f"no machine starts within {job.preempted_every:g} s"
        yield Conflict(("preempted_every",), problem, "write hours, like 2h", False)


def _kinds(job: SkyJob) -> Iterator[Conflict]:
    for i, kind in enumerate(job.accelerators):
        fields = (f"accelerators[{i}]", "accelerators")
        if _NO_GPU.match(kind):
            yield Conflict(fields, f"{kind} is no GPU", "write a type of GPU, like A100:8")
        elif _LETTER_O.search(kind):
            problem = f"{kind} has a letter O among its digits, and so no cloud has it"
            yield Conflict(fields, problem, "write the digit 0", False)
        elif job.train.precision == "bf16" and _WITHOUT_BF16.match(kind):
            problem = f"{kind.partition(':')[0]} has no units for bf16, which makes each step slower than fp32"
            yield Conflict(
                ("train.precision", "accelerators"), problem, "write fp16 or fp32", False
            )


def _preemption(job: SkyJob) -> Iterator[Conflict]:
    if job.preempted_every and not job.spot and not job.clouds & _PREEMPTS:
        problem = "spot is false, and so no cloud takes a machine back"
        yield Conflict(("preempted_every", "spot"), problem, "leave one of them out", False)
    if job.preempted_every and job.train.program_field != "workload":
        yield unwise.no_effect("preempted_every", "on a script or command, which saves by itself")


def _places(job: SkyJob) -> Iterator[Conflict]:
    """Yield a warning for each zone that is written as a region, or that is in another region."""
    for i, place in enumerate(job.infra):
        cloud, _, names = place.partition("/")
        region, _, zone = names.partition("/")
        owners = [each for each, form in _REGIONS.items() if form.fullmatch(region)]
        if cloud in _MACHINES and owners and cloud not in owners:
            problem = f"{region} is a region of {owners[0]}, and not of {cloud}"
            yield Conflict((f"infra[{i}]", "infra"), problem, f"write {owners[0]}/{region}", False)
        if cloud not in _ZONES:
            continue
        match = _ZONES[cloud].fullmatch(zone or region)
        if match and region not in (match[1], "*"):
            problem = f"{match[0]} is a zone of {cloud}" + (f" in {match[1]}" if zone else "")
            remedy = f"write {cloud}/{match[1]}, or {cloud}/{match[1]}/{match[0]}"
            yield Conflict((f"infra[{i}]", "infra"), problem, remedy, False)


def _image(job: SkyJob) -> Iterator[Conflict]:
    image = job.image or ""
    if image.startswith("docker:"):
        if "@sha256:" not in image:
            problem = f"{image} may be another image the next time a machine starts"
            yield Conflict(("image",), problem, "name it by digest: docker:NAME@sha256:…", False)
    elif image and (not job.clouds or "*" in job.clouds):
        problem = f"{image} is one cloud's image, and infra does not name the cloud"
        remedy = f"write infra: with that cloud, or image: docker:{image} if it is a container's"
        yield Conflict(("image", "infra"), problem, remedy)
    elif "/" in image and ":" in image and not image.startswith(("projects/", "ocid1.")):
        problem = f"{image} looks like a container's image, and would be taken for a cloud's"
        yield Conflict(("image",), problem, f"write docker:{image}", False)
    elif image:
        yield from _image_of_a_cloud(job, image)


def _image_of_a_cloud(job: SkyJob, image: str) -> Iterator[Conflict]:
    owner = next((cloud for start, cloud in _IMAGES.items() if image.startswith(start)), None)
    if owner and (others := job.clouds - {owner}):
        problem = f"{image} is an image of {owner}, and infra names {', '.join(sorted(others))}"
        yield Conflict(("image", "infra"), problem, f"write infra: {owner}/REGION")
    elif not image.startswith("skypilot:") and {"aws", "aws/*", "aws/*/*"} & {*job.infra}:
        problem = f"{image} is in one region of aws, and infra does not name the region"
        yield Conflict(("infra", "image"), problem, "write aws/REGION, like aws/us-east-1")
    if job.network_tier == "best" and (others := job.clouds - _BEST_WITH_IMAGE):
        problem = f"{image} cannot have network_tier: best on {', '.join(sorted(others))}"
        remedy = "leave one of them out, or write image: docker:NAME@sha256:DIGEST"
        yield Conflict(("network_tier", "image"), problem, remedy)


def _python_of_a_new_machine(job: SkyJob) -> Iterator[Conflict]:
    """Yield a warning for each part of the job's Python that nothing brings to the machine."""
    python = job.python
    is_default = python.interpreter == Python.interpreter and not python.activate
    if is_default and not (job.requirements or job.locked or job.rendezvous.launcher == "env"):
        problem = "are missing, and nothing else installs torch on a new machine"
        yield Conflict(("requirements",), problem, "write requirements: [torch==VERSION]", False)
    lines = [(("python.interpreter", "python"), python.interpreter)]
    for i, text in enumerate(python.activate):
        lines += [
            ((f"python.activate[{i}]", "python.activate"), line) for line in text.splitlines()
        ]
    for fields, line in lines:
        if _OF_A_CLUSTER.match(line):
            problem = f"{show(line)} is for a machine that has been set up, and a new one has not"
            remedy = "write requirements: in its place, or targets: {sky: {setup: LINE}} to make it"
            yield Conflict(fields, problem, remedy, False)


def _files_of_a_new_machine(job: SkyJob) -> Iterator[Conflict]:
    """Yield a warning for each file of the job that nothing brings to the machine."""
    args, bucket = job.train.args, f"{job.bucket.path}/" if job.bucket else "/checkpoints/"
    data = args.get("text") if isinstance(args, Mapping) and job.train.workload == "gpt" else None
    program = next(filter(_OF_A_CLUSTER.match, job.train.command[:1]), None)
    paths: dict[str, str | None] = {
        "train.script": job.train.script,
        "train.command": program,
        "train.args.text": data,
    }
    values = args.items() if isinstance(args, Mapping) else enumerate(args)
    for name, value in values:
        place = str(value).rpartition("=")[2]
        if _OTHER_HOME.match(place):
            paths[f"train.args.{name}" if isinstance(name, str) else f"train.args[{name}]"] = place
    for field, path in paths.items():
        if str(path).startswith(("/", "~")) and not str(path).startswith(bucket):
            problem = f"{path} is on no new machine, and nothing brings it there"
            remedy = "write a path in code, or mount the file by targets.sky.extra"
            yield Conflict((field,), problem, remedy, False)


def _packages(job: SkyJob) -> Iterator[Conflict]:
    """Yield a warning for wheels of torch that cannot use the job's GPUs, and for trackers that are not installed."""
    for i, line in enumerate(job.requirements):
        nvidia = job.gpus_per_node and not any(kind.startswith("MI") for kind in job.accelerators)
        if nvidia and (build := _OTHER_WHEELS.search(line)):
            problem = f"{show(build[1] or build[2])} is a torch without CUDA, and the job uses GPUs"
            fields = (f"requirements[{i}]", "requirements")
            yield Conflict(fields, problem, "leave it out, or name one like +cu126", False)
    if any(map(may_bring_others, job.requirements)):
        return
    missing = {*job.train.trackers} - {*map(package, job.requirements)}
    for tracker in sorted(missing):
        problem = f"{tracker} is not among the requirements, and then it gets no metrics"
        yield Conflict(("train.trackers",), problem, f"add {tracker}==VERSION to them", False)


def _setup(job: SkyJob) -> Iterator[Conflict]:
    """Yield a warning for each line of setup that a user of a cloud's machine cannot run, or that ends the machine."""
    in_docker = (job.image or "").startswith("docker:")
    if (
        not job.clouds
        or in_docker
        or not job.clouds <= _BARE
        or re.search(r"\bsudo +(-[is]|su)\b", "\n".join(job.setup))
    ):
        return
    for i, text in enumerate(job.setup):
        for pattern, problem, remedy in _AS_A_USER:
            for match in filter(None, map(pattern.fullmatch, map(str.strip, text.splitlines()))):
                fields = (f"setup[{i}]", "setup")
                yield Conflict(fields, problem, match.expand(remedy), False)


def _labels(job: SkyJob) -> Iterator[Conflict]:
    for cloud in sorted(job.clouds & _LABELS.keys()):
        names, values, allowed = _LABELS[cloud]
        for name, value in job.labels.items():
            if not (re.match(names, name) and re.match(values, value)):
                problem = f"{show(f'{name}={value}')} is no label of {cloud}"
                yield Conflict((f"labels.{name}", "labels"), problem, f"write {allowed}")
