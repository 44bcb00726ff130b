"""`ddpgen lock`: record the versions and hashes of a job's packages, so that they can be installed again.

Owns the refusal of packages that cannot be locked, and the calls of uv and pip. The form of a lock, and the check for an
outdated one, are in bundle/lock.py.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpgen.bundle import lock
from ddpgen.errors import FileTroubleError, TargetUnavailableError
from ddpgen.programs import output
from ddpgen.spec.fields import Refused
from ddpgen.spec.job import JobSpec

_log = logging.getLogger(__name__)
# The hosts need no ddpgen, and an environment has a pip of its own.
_EXCLUDED = ("ddpgen", "pip")
_INDEX = re.compile(r"(-i|-f|--(index-url|extra-index-url|find-links|no-index))(?![a-z-])")
_INSTALLED = """\
import json, sys, sysconfig
sys.path[:] = filter(None, sys.path)
from importlib.metadata import distributions
found = [(d.metadata["Name"], d.version, d.read_text("direct_url.json") or "{}") for d in distributions()]
python = "Python %d.%d on %s" % (*sys.version_info[:2], sysconfig.get_platform())
print(json.dumps([python, found]))
"""
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==[^\s;]+( ;[^\\]*)?( --hash=sha256:[0-9a-f]{64})+")
_UV = (
    "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate",
    "--index-strategy=unsafe-best-match",
)  # fmt: skip
_PIP = ("-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report=-")

_HINTS = {
    "uv": "it reads UV_INDEX and UV_FIND_LINKS, not pip's configuration",
    "pip": "22.3 or newer is needed",
}


def container(image: str) -> dict[str, str]:
    """Return a lock's header entry for a container. Raises Refused if the image is not named by its digest."""
    image = re.sub("^docker:(//)?", "", image)
    if re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", image):
        return {"container": image}
    name = image.partition("@")[0] or "IMAGE"
    why = "its digest is not 64 hexadecimal digits" if "@" in image else "it names no digest"
    raise Refused(
        f"{image} may be another image next month: {why}",
        f"write NAME@sha256:DIGEST; `docker buildx imagetools inspect {name}` or `skopeo inspect "
        f"docker://{name}` shows it",
    )


def packages(
    job: JobSpec, requirements: Path | None, home: Path
) -> tuple[dict[str, str], list[str]]:
    """Return a lock's header entries and its requirements. Raises TargetUnavailableError, FileTroubleError.

    `requirements`: a file, or None for the packages that the job's Python has here. `home`: the directory of the lock.
    """
    name = os.path.expanduser(job.python.interpreter)
    python = shutil.which(name)
    if python is None:
        problem = f"there is no Python called {name} here"
        raise TargetUnavailableError(
            f"{problem}; activate the environment that has it, and try again"
        )
    code, output_text = output([python, "-c", _INSTALLED])
    if code != 0:
        raise TargetUnavailableError(
            f"{python} does not run; set python: in the spec to one that does"
        )
    platform, installed = json.loads(output_text)
    uv = shutil.which("uv")
    _log.debug(f"packages of {python}, resolved by {uv or 'pip, because no uv is on the PATH'}")
    tool = [uv, *_UV, f"--python={python}"] if uv else [python, *_PIP]
    origin = f"what {job.python.interpreter} has"
    if requirements is not None:
        origin, index_options = _read(requirements, home)
        pinned = _resolved([*tool, *([] if uv else ["-r"]), str(requirements)])
    else:
        index_options = []
        with tempfile.TemporaryDirectory() as scratch:
            installed_file = Path(scratch, "installed.txt")
            installed_file.write_text("\n".join(_versions(installed)), "utf-8")
            pinned = _resolved([*tool, "--no-deps", *([] if uv else ["-r"]), str(installed_file)])
    facts = {"from": origin, "for": f"{platform}, by {'uv' if uv else 'pip'}"}
    return facts, [*index_options, *pinned]


def write(path: Path, spec: str, facts: Mapping[str, str], lines: Iterable[str]) -> None:
    """Write a lock, and replace an earlier one. Raises FileTroubleError."""
    text = lock.head(spec, facts) + "".join(f"{line}\n" for line in lines)
    new = path.with_name(f".{path.name}.new")
    try:
        if path.exists() and lock.facts(path.read_text("utf-8", "replace")) is None:
            raise FileTroubleError(f"{path} is not what `ddpgen lock` writes; name another with -o")
        new.write_text(text, "utf-8")
        os.replace(new, path)
    except OSError as error:
        raise FileTroubleError(f"{path}: {error.strerror}; name another file with -o") from None


def _read(requirements: Path, home: Path) -> tuple[str, list[str]]:
    """Return the header entry for a requirements file, and the file's lines that name package indexes."""
    try:
        origin = lock.source(requirements, home)
        text = requirements.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileTroubleError(f"{requirements} cannot be read: {error}; correct -r") from None
    lines = map(str.strip, re.sub(r"\\\n", " ", text).splitlines())
    index_options = [line.partition(" #")[0].strip() for line in lines if _INDEX.match(line)]
    if any(re.search(r"://[^/\s]*@|://\S*\?", line) for line in index_options):
        problem = f"{requirements} holds credentials, and everybody may read a lock"
        raise TargetUnavailableError(f"{problem}; move them to ~/.netrc or pip's own configuration")
    return origin, index_options


def _versions(installed: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the installed packages as requirements. Raises TargetUnavailableError if one is not from an index."""
    requirements: dict[str, str] = {}
    local: list[str] = []
    for name, version, direct in installed:
        name = _canonical(name or "")
        # If a package is on the path twice, Python imports the first.
        if name and name not in (*_EXCLUDED, *requirements):
            requirements[name] = f"{name}=={version}"
            if url := json.loads(direct).get("url"):
                local.append(f"{name} (from {url})")
    _refuse(local)
    return list(requirements.values())


def _canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def _resolved(command: Sequence[str]) -> list[str]:
    """Return the requirements that uv or pip resolves from a file. Raises TargetUnavailableError."""
    tool = "uv" if command[1] == "pip" else "pip"
    code, output_text = output(command)
    if code != 0:
        raise TargetUnavailableError(
            f"{tool} finds not all of it ({_HINTS[tool]}); its output is above. What no index has cannot be locked: "
            "uninstall it, publish it, or list what the job needs in a file: -r requirements.txt"
        )
    if tool == "uv":
        lines = re.sub(r"\s*\\\n\s*", " ", output_text).splitlines()
    else:
        lines = [_line(item) for item in json.loads(output_text)["install"]]
    _refuse([line for line in lines if not _PINNED.fullmatch(line)])
    return [line.replace(" --hash", " \\\n    --hash") for line in sorted(lines)]


def _line(item: Mapping[str, Any]) -> str:
    """Return a requirement from pip's report, without a hash if it is not from an index."""
    metadata = item["metadata"]
    archive = item["download_info"].get("archive_info", {})
    # pip 23.0 and older give a file of --find-links the older form alone.
    older = archive.get("hash", "").partition("sha256=")[2]
    digest = archive.get("hashes", {}).get("sha256") or older
    if item["is_direct"] or not digest:
        return f"{metadata['name']} (from {item['download_info']['url']})"
    return f"{_canonical(metadata['name'])}=={metadata['version']} --hash=sha256:{digest}"


def _refuse(local: Sequence[str]) -> None:
    if local:
        names = ", ".join(requirement.partition(" --hash")[0] for requirement in local)
        raise TargetUnavailableError(
            f"not from an index, so it cannot be locked: {names}; publish it there, or bring its code along by "
            "`code:` and lock the rest: -r requirements.txt"
        )
