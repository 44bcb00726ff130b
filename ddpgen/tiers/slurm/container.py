"""The rules for a job's container: the image, mounts and options that apptainer or pyxis would refuse or misread. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from ddpgen.spec.fields import did_you_mean, show, similar
from ddpgen.spec.groups import SBATCH_OPTIONS
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.slurm.directives import WRITTEN_OPTIONS
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
_BAD_REFERENCE = (r"docker://(?:.*\s.*|.*:|.*[^:]//.*|.*/)", "is no name of an image", "write docker://HOST/NAME:TAG", True)  # fmt: skip
_IMAGES = {
    "apptainer": (
        _SHORT_DIGEST,
        _BAD_REFERENCE,
        (r".*\.def", "is what apptainer builds an image from", "write the image, like ~/NAME.sif", True),
        (rf"{_RELATIVE}(?:\.{{1,2}}/.*|.*\.(?:sif|img|sqsh))", _IN_BUNDLE, "write ~/path or /path", True),
        (rf"{_RELATIVE}(?!(?:{_FILE})$)([^:#]+)", _IN_BUNDLE, r"write docker://\1, or ~/path or /path", True),
        (r"(?:docker|oras)://(?:[^/]*[.:][^/]*/|(?![^/]*[.:][^/]*/))[^:@]*[A-Z][^@]*", "has a capital letter in the name of the image", "write it in lower case", True),
        (rf"(?!(?:{_FILE})$)(?:docker://)?([^#]+)#(.+)", "has the # of enroot", r"write docker://\1/\2", True),
        (rf"(?!(?:{_FILE})$|docker-|oci|.*(?:://|#))(.+:[\w.-]+)", "is the name of a file to apptainer", r"write docker://\1", True),
    ),
    "pyxis": (
        _SHORT_DIGEST,
        _BAD_REFERENCE,
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
# Options of apptainer exec 1.4 and singularity exec 4 that have a value, and those without one.
_WITH_VALUE = frozenset([
    "--add-caps", "--app", "--apply-cgroups", "--arch", "--authfile", "--bind", "--blkio-weight", "--blkio-weight-device",
    "--cdi-dirs", "--config", "--cpu-shares", "--cpus", "--cpuset-cpus", "--cpuset-mems", "--device", "--dns",
    "--docker-host", "--drop-caps", "--env", "--env-file", "--fusemount", "--home", "--hostname", "--memory",
    "--memory-reservation", "--memory-swap", "--mount", "--netns-path", "--network", "--network-args", "--no-mount",
    "--overlay", "--pem-path", "--pids-limit", "--platform", "--runscript-timeout", "--scratch", "--security", "--shub-api", "--tmpdir",
    "--workdir", "-B", "-H", "-S", "-W", "-o",
])  # fmt: skip
_WITHOUT_VALUE = frozenset([
    "--allow-setuid", "--compat", "--contain", "--disable-cache", "--docker-login", "--fakeroot", "--ignore-fakeroot-command",
    "--ignore-proot", "--ignore-subuid", "--ignore-userns", "--ipc", "--keep-layers", "--keep-privs", "--net", "--no-compat",
    "--no-eval", "--no-home", "--no-https", "--no-init", "--no-nv", "--no-oci", "--no-pid", "--no-privs", "--no-rocm",
    "--no-setgroups", "--no-tmp-sandbox", "--no-umask", "--nohttps", "--notify", "--nv", "--nvccli", "--oci",
    "--oom-kill-disable", "--passphrase", "--pid", "--rocm", "--sharens", "--tmp-sandbox",
    "--underlay", "--unsquash", "--userns", "--uts", "--verify", "--vm", "--writable", "--writable-tmpfs",
    "-c", "-f", "-i", "-n", "-p", "-u", "-w",
])  # fmt: skip
# The options of srun, up to Slurm 25.11: those of sbatch but some, its own, and those of pyxis 0.20.
SRUN_OPTIONS = frozenset(f"--{name}" for name in (SBATCH_OPTIONS | WRITTEN_OPTIONS.keys()) - {
    "array", "export-file", "get-user-env", "gid", "ignore-pbs", "no-requeue", "nodefile", "parsable", "requeue", "uid", "wrap",
} | {
    "accel-bind", "bcast", "bcast-exclude", "compress", "cpu-bind", "disable-status", "epilog", "exact", "external-launcher",
    "het-group", "immediate", "interactive", "jobid", "kill-on-bad-exit", "label", "mpi", "multi-prog", "no-allocate", "overlap",
    "preserve-env", "prolog", "pty", "quit-on-interrupt", "relative", "send-libs", "slurmd-debug", "task-epilog",
    "task-prolog", "threads", "treewidth", "unbuffered",
} | {
    "container-entrypoint", "container-entrypoint-log", "container-env", "container-image", "container-image-import",
    "container-mount-home", "container-mounts", "container-name", "container-readonly", "container-remap-root", "container-save",
    "container-workdir", "container-writable", "no-container-entrypoint", "no-container-mount-home", "no-container-remap-root",
})  # fmt: skip


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
        elif runtime == "pyxis" and word.startswith("--"):
            yield from _unknown(word, runtime, SRUN_OPTIONS, fields)
        elif runtime == "apptainer":
            yield from _of_apptainer(container.options, i, fields)
        if re.match(r"--?[A-Za-z][\w-]* +\S", word):
            problem = f"{show(word)} is one word with a space in it"
            words = ", ".join(f'"{part}"' for part in word.split())
            yield Conflict(fields, problem, f"write a list of words: [{words}]")


def _of_apptainer(options: Sequence[str], i: int, fields: tuple[str, ...]) -> Iterator[Conflict]:
    """Yield what is wrong with the word at `i`, which is an option or the value of the option before it."""
    word, before, behind = options[i], options[i - 1] if i else "", options[i + 1 : i + 2]
    if not word.startswith("-"):
        if before in _WITHOUT_VALUE:
            yield Conflict(fields, f"{show(word)} would be the image", "leave it out")
    elif word in _WITH_VALUE:
        if not behind or behind[0].startswith("--"):
            yield Conflict(fields, f"{word} has no value", f"write {word}=VALUE, or leave it out")
    elif word.startswith("--"):
        yield from _unknown(word, "apptainer", _WITH_VALUE | _WITHOUT_VALUE, fields)


def _unknown(
    word: str, runtime: str, known: Collection[str], fields: tuple[str, ...]
) -> Iterator[Conflict]:
    name = word.partition("=")[0]
    is_told = " " in name or any(re.fullmatch(pattern, word) for pattern, *_ in _OPTIONS[runtime])
    if name not in known and not is_told:
        program = "srun" if runtime == "pyxis" else runtime
        close = similar(name, known, at_least=0.8)
        remedy = f"did you mean {close}?" if close else f"leave it out if your {program} has none"
        yield Conflict(fields, f"{program} has no {name}", remedy, False)


def _mounts(container: Container, field: str) -> Iterator[Conflict]:
    targets: dict[str, str] = {}
    for i, mount in enumerate(container.mounts):
        fields = (f"{field}[{i}]", field)
        source, *rest = mount.split(":")
        # A comma separates several mounts or options. The runtime itself judges these.
        misfit = rest and "," not in mount and (len(rest) > 2 or not rest[0].startswith("/"))
        if misfit or mount.startswith(("-", ":")):
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
