"""The tier `sky`: one task for SkyPilot, and the script that its machines run.

Owns the rules for a job on SkyPilot, and the values of the files' templates. ddpgen/tiers/sky/directives.py
has SkyPilot's names. Never imports SkyPilot.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.fields import show
from ddpgen.spec.job import Checkpoint
from ddpgen.spec.places import bucket_fault
from ddpgen.spec.rules import Conflict
from ddpgen.spec.secrets import exposes_secret
from ddpgen.text.shell import Word, expand_home, quote
from ddpgen.tiers.command import LOCK
from ddpgen.tiers.plan import Plan, values
from ddpgen.tiers.sky import directives, machines, mounts
from ddpgen.tiers.sky.bucket import PACKAGES
from ddpgen.tiers.sky.extra import MERGED
from ddpgen.tiers.sky.fields import Bucket, SkyJob
from ddpgen.tiers.sky.requirement import (
    are_equal,
    floats,
    ignored_option,
    may_bring_others,
    names_index,
    package,
    pins,
    unknown_option,
    without_hash,
)

_SYSTEM = (
    ".", "bin", "boot", "dev", "etc", "home", "lib", "lib64", "proc", "root", "run", "sbin", "sys",
    "tmp", "usr", "var",
)  # fmt: skip
# The login to a registry of images: all of them, or none.
_LOGIN = {f"SKYPILOT_DOCKER_{name}" for name in ("USERNAME", "PASSWORD", "SERVER")}
# SkyPilot sets these for every task.
_SKY_PREFIX = "SKYPILOT_"
_SKYIGNORE = """\
# With this file here SkyPilot sends all of this directory to the machines. Without it, it would leave out
# whatever the .gitignore of a repository around it names, or fail where that names the directory itself.
"""
# A line that installs packages for Python. Nothing behind it uses them, if it is the last one.
_PIP = re.compile(
    r"\s*(sudo +)?(\S*python3? +-m +)?pip3? +install(?!.* (-t|--target|--prefix|--root)\b) [^|&;\n]*\s*"
)
_TOO_OLD = re.compile(r"v?(?:[01]|2\.[0-3])(?!\d)")  # versions of torch
# The names of jobs that SkyPilot accepts as a task's name.
_TASK_NAME = re.compile(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*")


def check(job: SkyJob) -> Iterator[Conflict]:
    """Yield the fields that SkyPilot would refuse or misread."""
    yield from _storage(job)
    yield from machines.check(job)
    yield from _variables(job)
    yield from _setup(job)
    yield from _requirements(job)
    yield from _extra(job)
    if job.nodes.elastic:
        problem = f"SkyPilot starts a fixed number of machines, not {job.nodes}"
        yield Conflict(
            ("nodes",), problem, f"write nodes: {job.nodes.minimum}, or as many as {int(job.nodes)}"
        )
    if not _TASK_NAME.fullmatch(job.name):
        problem = f"{job.name} is no name for SkyPilot: it ends in `.`, `_` or `-`, or has three of them in a row"
        yield Conflict(("name",), problem, "write one without")
    if job.preempted_every is not None and job.checkpoint.every != Checkpoint.every:
        problem = (
            f"is not looked at: preempted_every lets the job find {job.checkpoint.every} by itself"
        )
        yield Conflict(
            ("checkpoint.every", "preempted_every"), problem, "leave one of them out", False
        )


def _storage(job: SkyJob) -> Iterator[Conflict]:
    fields = ("checkpoint.dir", "bucket")
    if job.checkpoint.path:
        problem = f"{job.checkpoint.path} is on the machine's own disk, which is lost with it"
        remedy = "write targets: {sky: {bucket: s3://NAME, checkpoint: {dir: null}}}"
        yield Conflict(fields, problem, remedy)
    elif job.checkpoint.url and job.bucket:
        problem = f"checkpoints cannot go to {job.checkpoint.url} and to {job.bucket.url}"
        yield Conflict(("bucket", "checkpoint.dir"), problem, "leave one of them out")
    elif not job.checkpoint.url and not job.bucket:
        problem = "is missing: a spot machine takes its disk along when it goes"
        yield Conflict(("bucket",), problem, "write targets: {sky: {bucket: s3://NAME}}")
    if (job.checkpoint.url or "").partition(":")[0] in ("file", "local", "memory"):
        problem = f"{job.checkpoint.url} is on the machine itself, which is lost with it"
        yield Conflict(("checkpoint.dir",), problem, "name a bucket: s3://NAME/PLACE")
    if job.bucket:
        yield from _bucket(job.bucket)
    if job.checkpoint.shared:
        problem = "every machine has a directory of its own; what they share is the bucket"
        yield Conflict(("checkpoint.shared",), problem, "leave it out")


def _bucket(bucket: Bucket) -> Iterator[Conflict]:
    scheme, _, rest = bucket.url.partition("://")
    name, _, prefix = rest.partition("/")
    if scheme == "cos":  # its names begin with the region
        prefix = prefix.partition("/")[2]
    if prefix and scheme != "https":
        problem = f"{bucket.url} names a place in a bucket, and SkyPilot mounts whole ones"
        remedy = f"write bucket: {{url: {bucket.url[: -len(prefix) - 1]}, prefix: {prefix}}}"
        yield Conflict(("bucket.url", "bucket"), problem, remedy)
    if fault := bucket_fault(
        "azure" if scheme == "https" else scheme, prefix if scheme == "https" else name
    ):
        yield Conflict(("bucket.url", "bucket"), fault.problem, fault.remedy)
    account = rest.partition(".")[0]
    if scheme == "https" and not 3 <= len(account) <= 24:
        problem = f"{show(account)} cannot be the name of an account in Azure"
        remedy = "write one of 3 to 24 small letters and digits"
        yield Conflict(("bucket.url", "bucket"), problem, remedy)
    first = bucket.path.split("/")[1]
    if first in _SYSTEM or bucket.path == "/opt" or ".." in bucket.path.split("/"):
        problem = (
            f"{bucket.path} is the system's own place, or below a home that may be cleared away"
        )
        yield Conflict(("bucket.path",), problem, "write a path like /checkpoints")


def _variables(job: SkyJob) -> Iterator[Conflict]:
    for name in job.env:
        if name.startswith(_SKY_PREFIX):
            yield Conflict((f"env.{name}",), "is set by SkyPilot", "take another name")
    names = {secret.name for secret in job.secrets}
    if names & _LOGIN and (missing := ", ".join(sorted(_LOGIN - names))):
        problem = f"SkyPilot logs in to a registry by three of them, and {missing} is missing"
        yield Conflict(("secrets",), problem, f"add {missing}")


def _setup(job: SkyJob) -> Iterator[Conflict]:
    if job.locked and job.requirements:
        problem = "are not installed where the environment is locked"
        remedy = "write them into a file, run ddpgen lock SPEC -r FILE, and leave them out here"
        yield Conflict(("requirements",), problem, remedy)
    names = {package(requirement) for requirement in job.requirements}
    names_known = bool(names) and not any(map(may_bring_others, job.requirements))
    if names_known and "torch" not in names:
        problem = "are all that the job's Python will have, and torch is not among them"
        yield Conflict(("requirements",), problem, "add torch==VERSION", False)
    last = len(job.setup) - 1
    if job.requirements and not job.python.activate and _PIP.fullmatch("".join(job.setup[last:])):
        problem = "installs into the machine's Python, and the job's has the requirements alone"
        yield Conflict((f"setup[{last}]", "setup"), problem, "write it into requirements", False)
    needed = PACKAGES.get((job.checkpoint.url or "").partition(":")[0])
    by_extra = any(re.match(r"fsspec *\[", line) for line in job.requirements)
    if names_known and needed and needed not in names and not by_extra:
        problem = (
            f"{job.checkpoint.url} is reached by {needed}, which is not among the requirements"
        )
        yield Conflict(("requirements", "checkpoint.dir"), problem, f"add {needed}==VERSION", False)


def _requirements(job: SkyJob) -> Iterator[Conflict]:
    yield from _pins(job)
    looked_up = [each for each in job.requirements if package(each) and "@" not in each]
    names_place = "PIP_FIND_LINKS" in job.env or any(
        re.match("-[fr]|--(find-links|requirement)", each) for each in job.requirements
    )
    if "--no-index" in job.requirements and looked_up and not names_place:
        problem = "have --no-index, and no place where pip finds packages instead"
        yield Conflict(("requirements",), problem, "add --find-links ./DIRECTORY", False)
    for i in without_hash(job.requirements):
        problem = "has no hash, and if one package has a hash, pip wants one of each"
        remedy = "add --hash=sha256:HASH to it, or leave out all hashes"
        yield Conflict((f"requirements[{i}]", "requirements"), problem, remedy)
    for i, requirement in enumerate(job.requirements):
        fields = (f"requirements[{i}]", "requirements")
        if re.fullmatch(r"[\w./~][\w./~-]*\.(txt|in)", requirement):
            problem = f"{requirement} would be the name of a package, not of a file"
            yield Conflict(fields, problem, f"write -r {requirement}", "/" in requirement)
            continue
        if option := unknown_option(requirement):
            problem = f"pip 26 has no {option} in a requirements file"
            yield Conflict(fields, problem, "write one that it has, or leave it out", False)
        if option := ignored_option(requirement):
            problem = f"pip ignores {option} behind a requirement"
            yield Conflict(fields, problem, "write it as a line of its own", False)
        if floats(requirement):
            problem = f"{requirement} is another version next month, on the machine that takes over"
            yield Conflict(fields, problem, "write NAME==VERSION", False)


def _pins(job: SkyJob) -> Iterator[Conflict]:
    """Yield the versions that pip cannot install, or that are too old."""
    pinned: dict[str, str] = {}
    for i, name, version in pins(job.requirements):
        if not are_equal(pinned.setdefault(name, version), version):
            problem = f"asks for {name}=={version}, and for {name}=={pinned[name]} above"
            yield Conflict((f"requirements[{i}]", "requirements"), problem, "keep one of them")
        if name == "torch" and _TOO_OLD.match(version):
            fields = (f"requirements[{i}]", "requirements")
            problem = f"torch {version} is older than 2.4, the oldest that ddpgen is made for"
            yield Conflict(fields, problem, "write torch==2.13.0", False)
        if "+" in version and not any(map(names_index, job.requirements)):
            problem = f"{version} is not on PyPI, which has no version with +"
            remedy = "add --extra-index-url URL, as a line of its own"
            yield Conflict((f"requirements[{i}]", "requirements"), problem, remedy, False)


def _extra(job: SkyJob) -> Iterator[Conflict]:
    bucket = f"{job.bucket.path}/" if job.bucket else ""
    for section in ("file_mounts", "volumes"):
        for path, source in job.extra.get(section, {}).items():
            field, place = f"extra.{section}.{path}", f"{path.rstrip('/')}/"
            if bucket and (place.startswith(bucket) or bucket.startswith(place)):
                problem = f"overlaps the bucket, which is mounted at {bucket.rstrip('/')}"
                remedy = "take another path, or set the field targets.sky.bucket.path"
                yield Conflict((field,), problem, remedy)
            if section == "file_mounts" and (refused := mounts.fault(path, source)):
                yield Conflict((field,), refused.problem, refused.remedy)
    if "hooks" in job.extra.get("config", {}) and directives.hook(job):
        problem = "is written by ddpgen, so that a pod stops cleanly before it is taken away"
        yield Conflict(("extra.config.hooks",), problem, "write notices: false to replace it")
    for name, value in _leaves("", job.extra):
        # A pod's toleration has a key, which is a name.
        if exposes_secret("" if name == "key" else name, value.strip('"')):
            problem = f"{name} looks like a secret, and everybody who reads the bundle reads it"
            remedy = "have SkyPilot keep it (managed_secrets)"
            yield Conflict(("extra",), problem, remedy, False)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each scalar of a value of `extra`, with the name of the key that holds it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(name, inner)
    else:
        yield name, value


def render(job: SkyJob, plan: Plan, renderer: Renderer) -> list[Artefact]:
    """Return sky.yaml, the files with the spec's own lines of bash, and .skyignore."""
    template_values = {**values(job, plan, "sky.activate.sh"), **_values(job)}
    parts = {
        name: renderer.render(f"sky_{name}.sh.j2", template_values) for name in ("setup", "run")
    }
    text = renderer.render("sky.yaml.j2", {**template_values, **parts})
    from_files = "".join(
        f'{name}="$(cat {quote(expand_home(file))})" '.replace("{", "{{").replace("}", "}}")
        for name, file in job.secrets
        if file
    )
    command = f"{from_files}sky jobs launch{template_values['secrets_given']} sky.yaml"
    if job.points:
        command = command.replace(" sky.yaml", ' --env DDPGEN_ARGS=--point="$point" sky.yaml')
        points = """$(python3 -c 'import json; print(*json.load(open("points.json"))["sky"])')"""
        command = f"for point in {points}; do {command}; done"
    start = f"(cd {{bundle}} && {command})"
    artefacts = [Artefact("sky.yaml", text, start, False)]
    if job.setup:
        lines = renderer.render("setup.sh.j2", {**template_values, "setup": job.setup})
        artefacts.append(Artefact("sky.setup.sh", lines, executable=False))
    artefacts += renderer.activation(template_values)
    return [*artefacts, Artefact(".skyignore", _SKYIGNORE, executable=False)]


def _install(job: SkyJob) -> tuple[tuple[Word, ...], ...]:
    """Return the argument lists of `train install`: one, or none if the job installs no packages."""
    if job.locked:
        return ((LOCK,),)
    return ((directives.environment(job), "--", *job.requirements),) if job.requirements else ()


def _values(job: SkyJob) -> dict[str, Any]:
    bucket, recovery = job.bucket, job.recovery
    kinds = list(directives.alternatives(job))
    common = tuple(directives.resources(job))
    checkpoint_url = job.checkpoint.url or ""
    if bucket:
        checkpoint_url = bucket.url.rstrip("/") + directives.bucket_directory(
            job, bucket
        ).removeprefix(bucket.path)
    return {
        "machines": f"{int(job.nodes)} machine(s), {job.procs_per_node} process(es) on each",
        "num_nodes": int(job.nodes),
        "same": (*kinds[0], *common) if len(kinds) == 1 else common,
        "different": kinds if len(kinds) > 1 else (),
        "choice": "ordered" if job.ordered else "any_of",
        "labels": sorted(job.labels.items()),
        "autostop_min": None if job.autostop is None else math.ceil(job.autostop / 60),
        "recovery": (
            ("strategy", recovery.strategy.upper()),
            ("max_restarts_on_errors", recovery.restarts_on_errors),
        ),
        "bucket_url": bucket.url.rstrip("/") if bucket else None,
        "bucket_path": bucket.path if bucket else "",
        "bucket_mode": directives.MODES[bucket.mode] if bucket else "",
        "cached": bucket is not None and bucket.mode == "cached",
        "stop_object": f"{checkpoint_url}/{'NAME/' if job.points else ''}stop",
        "secrets": [secret.name for secret in job.secrets],
        "secrets_given": "".join(f" --secret {secret.name}" for secret in job.secrets),
        "exit_preempted": directives.EXIT_PREEMPTED,
        "hook": directives.hook(job),
        "sets_up": bool(job.setup or job.requirements or job.locked),
        "setup_lines": bool(job.setup),
        "script": "sky.setup.sh",
        "base_python": expand_home(job.python.interpreter),
        "install": _install(job),
        "configures": bool(directives.hook(job) or job.extra.get("config")),
        "extra": {name: job.extra.get(name) for name in MERGED},
        "others": {name: value for name, value in job.extra.items() if name not in MERGED},
    }
