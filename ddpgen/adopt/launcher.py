"""The command that trains: the words in front of it, its launcher, and the launcher's options. Pure.

Sources: the options of srun, pyxis, apptainer, uv, torchrun, accelerate and deepspeed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddpgen.adopt.expansion import START, is_known, plain

_LAUNCHERS = {
    ("torchrun",): "torchrun",
    ("torchrun_jsc",): "torchrun",  # of the supercomputers in Jülich, with the same options
    ("python", "-m", "torch.distributed.run"): "torchrun",
    ("python", "-m", "torch.distributed.launch"): "torchrun",
    ("accelerate", "launch"): "accelerate",
    ("python", "-m", "accelerate.commands.launch"): "accelerate",
    ("deepspeed",): "deepspeed",
    ("python",): "python",
}
_LAUNCHER_FLAGS = frozenset([
    "standalone", "module", "m", "no-python", "run-path", "use-env", "virtual-local-rank",
    "multi-gpu", "cpu", "same-network", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "debug",
    "quiet", "q", "enable-cpu-affinity", "downcast-bf16", "fp8-use-autocast-during-eval", "dynamo-use-dynamic",
    "dynamo-use-fullgraph", "dynamo-use-regional-compilation", "tpu", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo",
    "no-local-rank", "force-multi", "save-pid", "no-ssh", "no-ssh-check", "elastic-training", "bind-cores-to-rank",
])  # fmt: skip
# Modules that Python runs, and that train nothing.
_TOOLS = frozenset([
    "pip", "venv", "virtualenv", "ensurepip", "pytest", "site", "compileall", "json.tool", "http.server", "nltk.downloader",
    "torch.utils.collect_env", "tensorboard.main",
])  # fmt: skip
_PREFIXES = ("exec", "time", "nohup", "env", "command", "stdbuf", "nice", "setsid")
_PREFIX_VALUES = {"nice": ("-n",), "stdbuf": ("-i", "-o", "-e")}
# Programs in front of a launcher that the spec's job runs without, and the remedies.
_LOST_PREFIXES = {"timeout": "write targets.slurm.time"} | dict.fromkeys(
    ("numactl", "taskset", "chrt", "ionice", "nsys", "ncu"), ""
)
# Options of srun and sbatch. A letter or another name stands for the same option in both.
SLURM_SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "J": "job-name", "K": "kill-on-bad-exit",
    "k": "no-kill", "L": "licenses", "l": "label", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks",
    "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec", "s": "oversubscribe",
    "t": "time", "u": "unbuffered", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude", "tasks": "ntasks",
    "tasks-per-node": "ntasks-per-node",
}  # fmt: skip
SLURM_FLAGS = frozenset([
    "exclusive", "requeue", "no-requeue", "parsable", "overcommit", "oversubscribe", "no-kill", "hold", "contiguous",
    "spread-job", "use-min-nodes", "get-user-env", "reboot", "label", "unbuffered", "overlap", "kill-on-bad-exit", "pty",
    "quiet", "verbose", "exact", "multi-prog", "disable-status",
    "container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root",
    "container-writable", "container-readonly", "container-entrypoint", "no-container-entrypoint",
])  # fmt: skip
# The spec's own srun has these options, or they only say how the script's output is written.
_SRUN_NEEDLESS = frozenset([
    "kill-on-bad-exit", "wait", "label", "unbuffered", "output", "error", "jobid", "quiet", "verbose", "overlap", "exact",
    "mpi", "export",
])  # fmt: skip
# Options of srun that ask for the same as those of sbatch.
_SRUN_ASKS = frozenset([
    "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gres",
    "nodelist", "exclude", "exclusive", "partition", "account", "qos", "constraint", "reservation", "time", "mem",
    "mem-per-cpu", "mem-per-gpu", "job-name",
])  # fmt: skip
_BINDING = re.compile(r"(cpu|gpu|mem|accel)-bind|distribution|hint|.*-per-core")
# Python's own options in front of its script or of -m. -W and -X have a value.
_PYTHON_OPTION = re.compile(r"-(?=.)([bBdEIOPqsSuvx]*)(?:([WX])(.*))?", re.DOTALL)
_CONTAINER_FLAGS = frozenset([
    "nv", "rocm", "cleanenv", "e", "contain", "c", "containall", "C", "no-home", "writable-tmpfs", "writable", "w",
    "fakeroot", "f", "unsquash", "ipc", "pid", "userns", "u", "nvccli", "compat", "no-eval", "no-privs", "keep-privs",
])  # fmt: skip
_UV_FLAGS = frozenset([
    "no-sync", "frozen", "locked", "isolated", "active", "all-extras", "no-dev", "dev", "quiet", "q", "offline", "exact",
    "no-project", "no-config", "all-groups", "no-cache", "verbose", "v", "no-capture-output", "live-stream",
])  # fmt: skip
_ENVIRONMENT_RUNNERS = ("uv", "poetry", "pipenv", "pdm", "hatch", "pixi", "rye", "conda", "mamba", "micromamba")  # fmt: skip


_COMMANDS = (
    "torchrun",
    "torchrun_jsc",
    "accelerate",
    "deepspeed",
    "python",
    "srun",
    "bash",
    "sh",
    "apptainer",
    "singularity",
    *_PREFIXES,
    *_LOST_PREFIXES,
    *_ENVIRONMENT_RUNNERS,
)
# The launchers that add an option to the arguments of each process, that option, and the launcher's option against it.
_LOCAL_RANK = {
    "torch.distributed.launch": ("--local-rank=N", "use-env"),
    "deepspeed": ("--local_rank=N", "no-local-rank"),
}
WORKDIR = "the job works in a directory of its own; train.workdir names another"
_UNKNOWN = "only a machine knows what it is"


class Prefix(NamedTuple):
    """The words in front of a launcher.

    `srun`: True if srun is among them. `asks`: its options that sbatch has too. `words`: all words of the command, as the script's own shell fills them in.
    `env`: the variables that are set for the command alone. `lost`: the parts that a spec does not have, with the
    remedies. `container`: the fields of the container.
    """

    srun: bool = False
    words: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    container: Mapping[str, str | list[str]] = {}
    asks: Mapping[str, str] = {}


class Launch(NamedTuple):
    """The command that trains.

    `kind`: its launcher. `program`: the word that names the launcher. `options`: the launcher's options. `rest`: the
    training script with its arguments. `lost`: the words that only a machine knows. `line`, `text`: the command in the
    launch script. `directory`: the command's working directory, relative to the launch script's directory.
    """

    kind: str
    program: str
    options: Mapping[str, str]
    rest: Sequence[str]
    lost: Sequence[tuple[str, str]] = ()
    prefix: Prefix = Prefix()
    line: int = 0
    text: str = ""
    directory: str = ""


def option(words: list[str], short: Mapping[str, str], flags: frozenset[str]) -> tuple[str, str]:
    """Remove an option from the front of `words`, and return its name and value.

    Its forms are --name=value, --name value, -n2 and -n 2. Options in `flags` take no value.
    """
    word = words.pop(0)
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("--") and len(word) > 2 and short:
        name, value, equals = word[1], word[2:].removeprefix("="), "="
    name = short.get(name, name)
    if (
        not equals
        and name.replace("_", "-") not in flags
        and words
        and not words[0].startswith("-")
    ):
        value = words.pop(0)
    return name, value


def prefixed(words: Sequence[str], outer: Prefix) -> tuple[Prefix, list[str]]:
    """Return the words in front of a launcher, and the others. `outer`: the words in front of the shell around them."""
    rest = list(words)
    prefix = outer._replace(words=outer.words or tuple(words))
    while rest:
        name = posixpath.basename(rest[0])
        if assigned := re.fullmatch(r"(\w+)=(.*)", rest[0], re.DOTALL):
            prefix = prefix._replace(env=(*prefix.env, (assigned[1], assigned[2])))
            del rest[0]
        elif name in _PREFIXES:
            del rest[0]
            while rest and rest[0].startswith("-"):
                del rest[: 1 + (rest[0] in _PREFIX_VALUES.get(name, ()))]
        elif name == "srun":
            del rest[0]
            prefix = _srun(prefix, rest)
        elif name in ("singularity", "apptainer") and rest[1:2] in (["exec"], ["run"]):
            del rest[:2]
            prefix = _apptainer(prefix, rest)
        elif name in _ENVIRONMENT_RUNNERS and rest[1:2] == ["run"]:
            prefix = _environment(prefix, rest)
        elif name in _LOST_PREFIXES and (at := _launcher_in(rest)):
            lost = " ".join([name, *rest[1:at]]), _LOST_PREFIXES[name]
            prefix = prefix._replace(lost=(*prefix.lost, lost))
            del rest[:at]
        elif not is_known(rest[0]) and _launcher_in(rest):
            prefix = prefix._replace(lost=(*prefix.lost, (plain(rest.pop(0)), _UNKNOWN)))
        else:
            break
    return prefix, rest


def _launcher_in(words: Sequence[str]) -> int:
    """Return the index of the first word behind words[0] that may begin a launch; 0 for none."""
    names = [re.sub(r"[0-9.]+$", "", posixpath.basename(word)) for word in words]
    return next((i for i, name in enumerate(names) if i and name in _COMMANDS), 0)


def _srun(prefix: Prefix, rest: list[str]) -> Prefix:
    lost, container, asks = [*prefix.lost], dict(prefix.container), dict(prefix.asks)
    options: list[str] = []
    while rest and rest[0].startswith("-"):
        name, value = option(rest, SLURM_SHORT, SLURM_FLAGS)
        text = f"--{name}={value}" if value else f"--{name}"
        if name in _SRUN_ASKS:
            asks[name] = value
        elif name == "container-image":
            container |= {"image": value, "runtime": "pyxis"}
        elif name == "container-mounts":
            container["mounts"] = value.split(",")
        elif name.startswith(("container-", "no-container-")) and name != "container-workdir":
            options.append(text)
        elif _BINDING.fullmatch(name):
            remedy = "one task of the spec's srun has all CPUs and GPUs of its node"
            lost.append((f"srun {text}", remedy))
        elif name == "export" and value not in ("ALL", "NONE"):
            env = re.findall(r"(?:^|,)(\w+)=([^,]*)", value)
            prefix = prefix._replace(env=(*prefix.env, *env))
            remedy = "the job gets all variables of its node"
            lost += [(f"srun {text}", remedy)] * (not value.startswith("ALL,"))
        elif name not in _SRUN_NEEDLESS:
            lost.append((f"srun {text}", WORKDIR if name == "container-workdir" else ""))
    if options:
        container["options"] = options
    return prefix._replace(srun=True, lost=tuple(lost), container=container, asks=asks)


def _apptainer(prefix: Prefix, rest: list[str]) -> Prefix:
    container: dict[str, str | list[str]] = {"runtime": "apptainer"}
    mounts: list[str] = []
    options: list[str] = []
    while rest and rest[0].startswith("-"):
        name, value = option(rest, {}, _CONTAINER_FLAGS)
        if name in ("B", "bind"):
            mounts += value.split(",")
        elif name in ("pwd", "cwd"):
            if value != START:
                lost = f"apptainer --{name}={plain(value)}", WORKDIR
                prefix = prefix._replace(lost=(*prefix.lost, lost))
        elif name not in ("nv", "workdir", "W"):  # the spec's job has --nv
            dashes = "-" if len(name) == 1 else "--"
            options.append(f"{dashes}{name}={value}" if value else f"{dashes}{name}")
    container |= {name: each for name, each in (("mounts", mounts), ("options", options)) if each}
    container["image"] = rest.pop(0) if rest else ""
    return prefix._replace(container=container)


def _environment(prefix: Prefix, rest: list[str]) -> Prefix:
    runner = posixpath.basename(rest[0])
    words = [*rest]
    del rest[:2]
    while rest and rest[0].startswith("-") and rest[0] not in ("--", "-m"):
        option(rest, {}, _UV_FLAGS)
    command = " ".join([runner, *words[1 : len(words) - len(rest)]])
    if rest[:1] == ["--"]:
        del rest[0]
    if rest and (rest[0] == "-m" or rest[0].endswith(".py")):  # uv runs Python
        rest.insert(0, "python")
    remedy = "activate its environment: python.activate, or targets.slurm.environment"
    return prefix._replace(lost=(*prefix.lost, (command, remedy)))


def _without_python_options(words: list[str]) -> list[tuple[str, str]]:
    """Remove the options of Python but -m from behind words[0]. Return those that a spec does not have, with remedies."""
    lost = []
    while option_match := _PYTHON_OPTION.fullmatch("".join(words[1:2])):
        del words[1]
        flags, name, value = option_match.groups()
        if name and not value:
            value = "".join(words[1:2])
            del words[1:2]
        if "O" in flags:
            lost.append((f"-{flags}", "write PYTHONOPTIMIZE in env"))
        if name:
            lost.append(
                (f"-{name} {plain(value)}", "write PYTHONWARNINGS in env" if name == "W" else "")
            )
    return lost


def launched(words: Sequence[str]) -> Launch | None:
    """Return the training that `words` start by a launcher or by Python; None if they start none."""
    program, *words = words
    words.insert(0, re.sub(r"^python[0-9.]+$", "python", posixpath.basename(program)))
    lost = _without_python_options(words) if words[0] == "python" else []
    if words[0] == "python" and re.search(r"which \"?torchrun|/torchrun$", "".join(words[1:2])):
        words[:2] = ["torchrun"]
    starts = (start for start in _LAUNCHERS if tuple(words[: len(start)]) == start)
    start = max(starts, key=len, default=())
    kind, rest = _LAUNCHERS.get(start, ""), words[len(start) :]
    options: dict[str, str] = {}
    while rest and "m" not in options:
        if rest[0].startswith("-"):
            name, value = option(rest, {}, frozenset() if kind == "python" else _LAUNCHER_FLAGS)
            if not name:  # it was `--`, which ends the options
                rest.insert(0, value)
                break
            options[name.replace("_", "-")] = value
        elif not is_known(rest[0]) and any(word.endswith(".py") for word in rest[1:]):
            lost.append((plain(rest.pop(0)), _UNKNOWN))
        else:
            break
    script = rest[0] if rest else ""
    if not kind or (kind == "python" and [*options] != ["m"] and not script.endswith(".py")):
        return None
    if kind == "python" and options.get("m") in _TOOLS:
        return None
    added, unless = _LOCAL_RANK.get(start[-1], ("", ""))
    if added and unless not in options:
        problem = f"{added}, which {start[-1]} adds to the arguments of each process"
        lost.append((problem, 'have the script read int(os.environ["LOCAL_RANK"])'))
    return Launch(kind, program, options, rest, lost)
