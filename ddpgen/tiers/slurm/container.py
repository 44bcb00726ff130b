"""The rules for a job's container: the image, mounts and options that apptainer or pyxis would refuse or misread. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddpgen.spec.fields import did_you_mean, show
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.slurm.fields import Container

# Runtime → the transports of an image that it knows.
_TRANSPORTS = {
    "apptainer": ("docker", "docker-daemon", "docker-archive", "oci", "oci-archive", "library", "oras", "shub", "http",
                  "https", "instance"),
    "pyxis": ("docker", "dockerd", "podman"),
}  # fmt: skip
_SHORT_DIGEST = (r"(?![./~]).*@sha256:(?![0-9a-f]{64}$).*", "has a digest that is not 64 digits of 0 to f", "write all of it, or a tag", True)  # fmt: skip
# Runtime → forms of an image that it refuses or misreads: the pattern, the problem, the remedy, and True for an error.
_FILE = r"[./~].*|.*\.(?:sif|img|sqsh)"
# No path in a bundle's `code`, no absolute path, no transport, and no word that the supervisor fills in.
_RELATIVE = r"(?!(?:\./)?code(?:/|$)|[/~{]|docker-|oci|.*://)"
_IN_BUNDLE = "is looked for in the bundle, which holds only files of code"
_IMAGES = {
    "apptainer": (
        _SHORT_DIGEST,
        (r".*\.def", "is what apptainer builds an image from", "write the image, like ~/NAME.sif", True),
        (rf"{_RELATIVE}(?:\.{{1,2}}/.*|.*\.(?:sif|img|sqsh))", _IN_BUNDLE, "write ~/path or /path", True),
        (rf"{_RELATIVE}(?!(?:{_FILE})$)([^:#]+)", _IN_BUNDLE, r"write docker://\1, or ~/path or /path", True),
        (r"(?:docker|oras)://(?:[^/]*[.:][^/]*/|(?![^/]*[.:][^/]*/))[^:@]*[A-Z][^@]*", "has a capital letter in the name of the image", "write it in lower case", True),
        (rf"(?!(?:{_FILE})$)(?:docker://)?([^#]+)#(.+)", "has the # of enroot", r"write docker://\1/\2", True),
        (rf"(?!(?:{_FILE})$|docker-|oci|.*(?:://|#))(.+:[\w.-]+)", "is the name of a file to apptainer", r"write docker://\1", True),
    ),
    "pyxis": (
        _SHORT_DIGEST,
        (r"(?:docker://)?([^/#.][^/#]*[.:][^/#]*)/(?!/)([^#]+)", "is looked for at Docker Hub", r"write docker://\1#\2", False),
        (rf"{_RELATIVE}\.{{1,2}}/.*", _IN_BUNDLE, "write /path", True),
        (r"[^#]+\.sif", "is in a form that only apptainer reads", "write runtime: apptainer", True),
    ),
}  # fmt: skip
_VARIABLES_LOST = "takes away the variables of Slurm and ddpgen that each node needs"
# The same for an option.
_OPTIONS = {
    "apptainer": (
        (r"--(?:container-.*|gpus(?:=.*)?)", "is no option of apptainer", "leave it out", True),
        (r"--(?:rm|entrypoint|interactive|ipc=.*|shm-size|tty|user|volume)(?:=.*)?|-(?:it|ti|t|v|d)", "is an option of docker", "leave it out; mounts has the directories", True),
        (r"--(?:pwd|cwd)(?:=.*)?", "is decided by ddpgen", "leave it out", True),
        (r"--cleanenv|--containall|-[eC]", _VARIABLES_LOST, "leave it out", True),
    ),
    "pyxis": (
        (r"--export=(?!(?:.*,)?ALL(?:,|$)).*", _VARIABLES_LOST, "leave it out", True),
        (r"-[nN]\d*|--(?:container-image|container-mounts|container-workdir|chdir|cpus-per-task|gpus-per-task|gres|nodes|ntasks|ntasks-per-node|pty|time)(?:=.*)?", "is decided by ddpgen", "leave it out", True),
        (r"--(?:nv|nvccli|rocm|bind|cleanenv|containall|fakeroot|writable-tmpfs|pwd)(?:=.*)?",
         "is an option of apptainer, and srun gets it", "leave it out; mounts has the directories", False),
    ),
}  # fmt: skip


def check(container: Container) -> Iterator[Conflict]:
    """Yield the parts of the container that its runtime would refuse or misread."""
    field, runtime = "environment.container", container.runtime
    fields: tuple[str, ...] = (f"{field}.image", field)
    yield from _misfits(_IMAGES[runtime], container.image, fields)
    transport, is_url, _ = container.image.partition("://")
    if is_url and transport not in _TRANSPORTS[runtime]:
        remedy = did_you_mean(transport, _TRANSPORTS[runtime])
        yield Conflict(fields, f"{runtime} knows no {transport}://", remedy, False)
    yield from _mounts(container, f"{field}.mounts")
    for i, word in enumerate(container.options):
        fields = (f"{field}.options[{i}]", f"{field}.options")
        yield from _misfits(_OPTIONS[runtime], word, fields)
        if i == 0 and not word.startswith("-"):
            yield Conflict(fields, f"{show(word)} would be the image", "write options, like --NAME")
        if re.match(r"--?[A-Za-z][\w-]* +\S", word):
            problem = f"{show(word)} is one word with a space in it"
            words = ", ".join(f'"{part}"' for part in word.split())
            yield Conflict(fields, problem, f"write a list of words: [{words}]")


def _mounts(container: Container, field: str) -> Iterator[Conflict]:
    targets: dict[str, str] = {}
    for i, mount in enumerate(container.mounts):
        fields = (f"{field}[{i}]", field)
        source, *rest = mount.split(":")
        # A comma separates several mounts or options. The runtime itself judges these.
        misfit = rest and "," not in mount and (len(rest) > 2 or not rest[0].startswith("/"))
        if misfit or mount.startswith("-"):
            problem = f"{show(mount)} is no mount: the target is an absolute path"
            yield Conflict(fields, problem, "write SOURCE:/TARGET, or SOURCE:/TARGET:ro")
        elif container.runtime == "apptainer" and re.match(_RELATIVE, source) and "," not in mount:
            yield Conflict(fields, f"{show(mount)} {_IN_BUNDLE}", "write ~/path or /path")
        target = (rest or [source])[0]
        if (other := targets.setdefault(target, source)) != source and "," not in mount:
            problem = f"{show(mount)} lies over {show(other)}, which has the same target"
            yield Conflict(fields, problem, "give one of them another target", False)


def _misfits(
    misfits: Iterable[tuple[str, str, str, bool]], text: str, fields: tuple[str, ...]
) -> Iterator[Conflict]:
    for pattern, problem, remedy, fatal in misfits:
        if match := re.fullmatch(pattern, text):
            yield Conflict(fields, f"{show(text)} {problem}", match.expand(remedy), fatal)
            return
