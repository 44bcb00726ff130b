"""The kinds of value that name places: directories and programs on the hosts, stores, addresses.

Decides which of them cannot exist, or cannot belong to one job. Asks no host and no network. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from ddpgen.spec.fields import Refused, Text, did_you_mean, show
from ddpgen.spec.yamltree import Scalar

# URL schemes of the stores that fsspec reaches, each with a package of its own.
SCHEMES = (
    "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "ocilake", "oss", "tos", "tosfs", "hf", "hdfs", "webhdfs",
    "lakefs", "dbfs", "webdav", "root", "dropbox", "gdrive", "box", "sftp", "ssh", "smb", "ftp", "file", "local", "memory",
)  # fmt: skip
_S3_RULES = ("s3", "s3a", "r2", "nebius", "cw", "vastdata")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?", re.ASCII)
_QUAD = re.compile(r"(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])){3}")
_LEADING_ZERO = re.compile(r"(^|\.)0[0-9]")
# HOST:/path, as scp and rsync take it. A container's image may begin with a transport of apptainer.
_SCP = re.compile(
    r"(?!(?:docker-archive|oci|oci-archive):)([\w.-]+@)?[\w.-]+:(?=[/~](?!/))", re.ASCII
)
# A checkpoint in the directory of a job, or in its part of a bucket.
_STEP = re.compile(r"(^|/)step-[0-9]{9,}(/|$)")
# Values in a URL that give access to a store, such as the signature of Azure's shared access.
_CREDENTIALS = re.compile(
    r"\?(.*&)?[\w-]*(sig|signature|key|token|secret|password|credential)=", re.IGNORECASE
)
# An access point of S3 in place of a bucket.
_ACCESS_POINT = re.compile(
    r"arn:aws[a-z-]*:s3[a-z-]*:[a-z0-9-]*:[0-9]{12}:([a-z0-9-]+[/:])*accesspoint[/:][A-Za-z0-9.-]+(?=/|$)"
)
# The command that activates an environment, or a file in its directory, where the directory is meant.
_AROUND_ENVIRONMENT = re.compile(
    r"^(\.|source|(conda|mamba|micromamba) activate) +|/(bin/(activate|python|pip)[\w.]*|pyproject\.toml|uv\.lock)$"
)
# Programs that run Python or a command line, or install packages, and that do not take Python's own command line.
_NO_PYTHON = re.compile(
    r"(activate|pip|conda|env|uv|torchrun|accelerate|deepspeed|srun|mpirun|bash|sh|zsh)[0-9.]*(\.\w+)?"
)
# Usual names of environments.
_ENVIRONMENTS = ("conda", "env", "venv", ".venv")
# The working directory and the checkpoint directory.
_OWN_DIRECTORIES = (".", "{checkpoint_dir}")


class HostPath(Text):
    """A path on the hosts. The hosts fill in ~, and nothing else."""

    def __init__(self, allowed: str = "a path"):
        super().__init__(allowed=allowed)

    def parse(self, raw: Scalar) -> str:
        return checked(super().parse(raw), path_fault)


class HostDirectory(HostPath):
    """A directory on the hosts."""

    def parse(self, raw: Scalar) -> str:
        return checked(super().parse(raw), _url_for_path)


class EnvironmentPath(HostPath):
    """The directory of a Python environment on the hosts."""

    def parse(self, raw: Scalar) -> str:
        return checked(super().parse(raw), _environment_fault)


class Prefix(Text):
    """A job's own part of a bucket."""

    def __init__(self) -> None:
        super().__init__(
            r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*",
            "words of letters, digits, `.`, `_` and `-`, with `/` between them",
        )

    def parse(self, raw: Scalar) -> str:
        return checked(super().parse(raw), _step_fault)


class Address(Text):
    """The address by which other hosts reach a host."""

    def __init__(self) -> None:
        super().__init__(
            r"(?=.{1,253}$)[A-Za-z0-9][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_-]{1,63})*\.?",
            "an IPv4 address or a host name",
        )

    def parse(self, raw: Scalar) -> str:
        return checked(super().parse(raw), number_fault)


def path_fault(path: str) -> Refused | None:
    """Return the refusal of a path on the hosts; None if it may exist."""
    if not path.strip():
        return Refused(f"{show(path)} is blank", "write a path")
    if path.startswith("~") and not (path + "/").startswith("~/"):
        problem = f"{show(path)} is the home of another user, which only a login shell finds"
        return Refused(problem, "write ~/path or /path")
    if scp := _SCP.match(path):
        problem = f"{show(path)} is a place for scp, and here a directory of this name"
        return Refused(problem, f"write {path[scp.end() :]}, as the host itself names it")
    if path.endswith("://"):
        return Refused(f"{path} names nothing", f"write {path}NAME")
    return variable_fault(path)


def variable_fault(path: str) -> Refused | None:
    """Return the refusal of a path with a variable. No tier fills it in: a host may not even have it."""
    variable = _VARIABLE.search(path)
    if variable is None:
        return None
    problem = f"{show(path)} is taken as it is written: {variable[0]} is not filled in"
    remedy = "write the path itself, or ~/path"
    if "://" in path:
        remedy = "write the value itself"
    elif (path + "/").startswith(f"{variable[0]}/"):
        remedy += f"; `ln -s {variable[0]} ~/LINK` on the hosts makes ~/LINK one"
    return Refused(problem, remedy)


def checkpoint_fault(place: str) -> Refused | None:
    """Return the refusal of the URL or directory for a job's checkpoints."""
    if posixpath.normpath(place) == "~":
        problem = "the home directory is no directory of the job's own"
        return Refused(problem, "name one in it, like ~/checkpoints/NAME")
    if "://" not in place and (wildcard := re.search(r"[*?]", place)):
        problem = f"{show(place)} is taken as it is written: nothing fills in {wildcard[0]}"
        return Refused(problem, "write the whole name")
    return url_fault(place) or (None if "://" in place else directory_fault(place))


def directory_fault(path: str) -> Refused | None:
    """Return the refusal of a directory that a job wants for itself; None if the job may have it."""
    if fault := _url_for_path(path) or path_fault(path):
        return fault
    if re.match(r"[A-Za-z]:\\|\\\\", path):
        return Refused(f"{show(path)} is a path of Windows", "write one like /data/NAME")
    normal = posixpath.normpath(path)
    if normal in (".", "/", "//") or posixpath.basename(normal) == "..":
        problem = f"{show(path)} is no directory of the job's own"
        return Refused(problem, "name one for this job, like checkpoints/NAME or /data/NAME")
    if re.match(r"//?(proc|sys|dev(?!/shm/))(/|$)", normal):
        problem = f"{show(path)} is on no disk: it belongs to the system"
        return Refused(problem, "name a directory, like /data/NAME")
    return _step_fault(normal)


def _url_for_path(path: str) -> Refused | None:
    """Return the refusal of a URL where a path belongs."""
    if not re.match(r"[a-z][a-z0-9]*://", path):
        return None
    return Refused(f"{show(path)} is a URL, and no path", "write a path on the hosts")


def _step_fault(path: str) -> Refused | None:
    """Return the refusal of a path in a checkpoint."""
    if not _STEP.search(path):
        return None
    problem = f"{show(path)} looks like a part of another job's checkpoints"
    return Refused(problem, "write another name, like runs/NAME")


def guard_fault(pattern: str) -> Refused | None:
    """Return the refusal of a pattern of checkpoint directories that would name the job's own directory."""
    if posixpath.normpath(posixpath.dirname(pattern)) in _OWN_DIRECTORIES:
        problem = f"{show(pattern)} is in the job's own directory, which is no checkpoint"
        return Refused(problem, "write DIRECTORY/FILE, like ckpt-*/DONE")
    return _pattern_fault(pattern) or variable_fault(pattern)


def checkpoint_file_fault(pattern: str) -> Refused | None:
    """Return the refusal of a pattern of a script's checkpoints that would match at every start."""
    if posixpath.normpath(pattern) in _OWN_DIRECTORIES:
        return Refused(f"{show(pattern)} is there at every start", 'write a file, like "ckpt-*.pt"')
    return _pattern_fault(pattern) or variable_fault(pattern)


def _pattern_fault(pattern: str) -> Refused | None:
    """Return the refusal of a pattern that Python's glob reads in another way than a shell, or not at all."""
    if fault := _url_for_path(pattern):
        return fault
    if "**" in pattern.split("/"):
        problem = f"{show(pattern)} has **, which stands for one directory here"
        return Refused(problem, "write * for each directory, like */*/DONE")
    if braces := re.search(r"\{([^{}/]*(?:,|\.\.)[^{}/]*)\}", pattern):
        problem = f"{show(pattern)} has {braces[0]}, which only a shell takes apart"
        return Refused(problem, "write [0-9] for a digit, * for any text, or a list of patterns")
    if number := re.search(r"%[0-9]*d", pattern):
        problem = f"{show(pattern)} has {number[0]}, which stands for itself here"
        return Refused(problem, "write * for the number")
    if "\\" in pattern:
        problem = f"{show(pattern)} has a backslash, which stands for itself here"
        return Refused(problem, "write * for any text, or [0-9] for a digit")
    if "[" in re.sub(r"\[!?(\][^]/]*|[^]/]+)\]", "", pattern):
        problem = f"{show(pattern)} has a [ without its ]"
        return Refused(problem, "close it, or write [[] for the character itself")
    return None


def program_fault(program: str) -> Refused | None:
    """Return the refusal of a program on the hosts: a name on the PATH, or a path."""
    if "/" in program and not program.startswith(("/", "~/")):
        problem = f'"{program}" is another place on every host'
        return Refused(problem, "write a name on the PATH, ~/path or /path")
    directory, slash, name = program.rpartition("/")
    if not name:
        return Refused(
            f"{show(program)} is a directory", "write the program in it, like ~/venv/bin/python"
        )
    if directory and (name == "bin" or (name in _ENVIRONMENTS and not directory.endswith("bin"))):
        remedy = f"write {program}/{'' if name == 'bin' else 'bin/'}python3"
        return Refused(f"{show(program)} is a directory, and no program", remedy)
    if _NO_PYTHON.fullmatch(name):
        return Refused(f"{show(program)} is no Python", f"write {directory}{slash}python3")
    if re.fullmatch(r"python(2(\.\d+)?|3\.\d)", name):
        problem = f"{show(program)} is too old: the training needs Python 3.10 or newer"
        return Refused(problem, f"write {directory}{slash}python3.10, or a newer one")
    if re.fullmatch("[0-9.]+", program):
        return Refused(f'"{program}" is a version, and no program', f"write python{program}")
    if "/" not in program and not re.fullmatch("[A-Za-z0-9_.+-]+", program):
        problem = f"{show(program)} is no name of a program"
        return Refused(problem, "write one name on the PATH, without options, ~/path or /path")
    return path_fault(program) or _words_fault(program)


def _words_fault(path: str) -> Refused | None:
    if _CONTROL.search(path):
        return Refused(f"{show(path)} has a control character", "write the path alone")
    if runs := re.fullmatch(r"(?:/usr)?/bin/env\s+(\S+)", path):
        return Refused(f"{show(path)} is taken for one path", f"write {runs[1]}")
    if re.search(r"(^|\s)-\S", path):
        problem = f"{show(path)} holds an option, and is taken for one path"
        return Refused(problem, "write the path alone")
    return None


def _environment_fault(path: str) -> Refused | None:
    if (directory := _AROUND_ENVIRONMENT.sub("", path)) != path:
        return Refused(f"{show(path)} is not the environment itself", f"write {directory}")
    if re.search(r"\.(ya?ml|txt)$", path):
        return Refused(f"{show(path)} lists packages", "write the environment made from it")
    return _words_fault(path)


def url_fault(url: str) -> Refused | None:
    """Return the refusal of a store's URL for checkpoints, or of a path that was meant as a URL."""
    scheme, _, rest = url.partition(":")
    if (slip := re.match(r"(\w+)(//|:/(?!/))", url)) and slip[1] in SCHEMES:
        problem = f"{show(url)} is a directory of this name, and no URL"
        return Refused(problem, f"write {slip[1]}://{url[slip.end() :]}")
    if not rest.startswith("//"):
        return None
    if scheme not in SCHEMES:
        problem = f"{scheme}:// is not a store that fsspec knows"
        return Refused(problem, did_you_mean(scheme, SCHEMES))
    if not rest.strip("/"):
        return Refused(f"{url} names no place", f"write {scheme}://NAME")
    if scheme in ("file", "local") and not rest.startswith("///"):
        return Refused(f"{url} names a host, and no directory", f"write {scheme}:///PATH")
    user, at, _ = rest[2:].partition("/")[0].rpartition("@")
    if ":" in user or (at and scheme in ("s3", "s3a", "gs", "gcs")) or _CREDENTIALS.search(rest):
        problem = (
            "holds credentials, which everybody may read in the bundle and in the list of processes"
        )
        remedy = "leave them out: the environment has them, or the cloud's own configuration file"
        return Refused(problem, remedy)
    name, _, place = rest[2:].partition("/")
    if scheme in ("s3", "s3a") and (point := _ACCESS_POINT.match(rest[2:])):
        return variable_fault(url) or _step_fault(rest[2 + point.end() :])
    return bucket_fault(scheme, name) or variable_fault(url) or _step_fault(place)


def bucket_fault(scheme: str, name: str) -> Refused | None:
    """Return the refusal of a bucket's name, by the rules of its store."""
    if scheme in _S3_RULES:
        fits = re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", name)
        if not fits or re.search(r"\.[.-]|-\.|^xn--", name) or _QUAD.fullmatch(name):
            problem = f"{show(name)} cannot be the name of a bucket in S3"
            remedy = "write one of 3 to 63 small letters, digits, `.` and `-`"
            return Refused(problem, remedy)
    elif scheme in ("gs", "gcs"):
        fits = re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", name)
        if (
            not fits
            or re.search(r"\.[.-]|-\.|^goog|g[o0]{2}gle|[^.]{64}", name)
            or _QUAD.fullmatch(name)
        ):
            problem = f"{show(name)} cannot be the name of a bucket in Google Cloud Storage"
            remedy = "write one of 3 to 63 small letters, digits, `.`, `_` and `-`, without the word google"
            return Refused(problem, remedy)
    elif scheme in ("az", "abfs", "abfss", "azure"):
        container = name.partition("@")[0]
        if not re.fullmatch(r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*", container):
            problem = f"{show(container)} cannot be the name of a container in Azure"
            remedy = "write one of 3 to 63 small letters, digits and single `-`"
            return Refused(problem, remedy)
    return None


def number_fault(address: str) -> Refused | None:
    """Return the refusal of an address of digits and dots that no host can have; None for any other text."""
    if not re.fullmatch(r"[0-9.]+", address):
        return None
    if _LEADING_ZERO.search(address) or not _QUAD.fullmatch(address):
        problem = f"{address} is no IPv4 address"
        return Refused(problem, "write four numbers from 0 to 255, without leading zeros")
    first = int(address.partition(".")[0])
    if first >= 224 or (first == 0 and address != "0.0.0.0"):
        return Refused(f"{address} is the address of no host", "write the address of the host")
    return None


def checked(text: str, fault: Callable[[str], Refused | None]) -> str:
    """Return the text. Raise its fault, if it has one."""
    if refusal := fault(text):
        raise refusal
    return text
