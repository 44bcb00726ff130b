"""Make the virtual environment of a version lock, or of a list of packages.

The commands are `python -m train install LOCK` and `… install DIR -- REQUIREMENT …`. A supervisor does the first by
itself. Each environment is made once and found again, and a half-made one is never used. Machines may share the
directory. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from train.base.console import say
from train.base.errors import EXIT_UNAVAILABLE, Refusal
from train.base.files import locked, read_file, replace_file
from train.base.processes import die_with_parent

# The list of the installed packages. It is written last, so that its presence proves that the environment is complete.
INSTALLED = "installed.txt"
_LISTED = "requirements.txt"
# An option that has pip read a file, and a comment. A relative path starts at `code` of the bundle.
_READS_FILE = re.compile(
    r"((?:^| )(?:-[rc] *|--(?:requirement|constraint)(?:=| +)))(?![a-z]+://)([^ ]+)"
)
# An option that has pip look for packages in a directory. A relative one would start at the directory of pip's list.
# Quotes and variables are left to pip.
_LOOKS_INTO = re.compile(r"(^(?:-f *|--find-links(?:=| +)))(?![A-Za-z]+:|[\"'$])([^ ]+)")
_COMMENT = re.compile("(^| )#.*")
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


def main(argv: Sequence[str]) -> int:
    """Make the environment; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train install", allow_abbrev=False)
    parser.add_argument("place", type=Path, help="a lock; or a directory, with requirements")
    parser.add_argument("requirements", nargs="*", help="each a line of a requirements file")
    options = parser.parse_args(argv)
    try:
        environment = of_lock(options.place) if not options.requirements else _of_list(options)
        listed = " ".join((environment / INSTALLED).read_text("utf-8").splitlines())
    except Refusal as refusal:
        say(str(refusal))
        return refusal.code
    say(f"in {environment}: {listed}")
    return 0


def of_lock(lock: Path) -> Path:
    """Return the environment of a version lock for this Python, and make it if it is missing. Raises Refusal."""
    try:
        content = read_file(lock)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
    except (OSError, RuntimeError) as error:  # there may be no home
        raise Refusal(EXIT_UNAVAILABLE, f"{lock}: {error}; copy the whole bundle") from None
    asked = [line for line in content.splitlines() if not line.startswith(b"#")]
    python = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"
    name = hashlib.sha256(b"\n".join([python.encode(), *asked])).hexdigest()[:12]
    return _make_once(cache / "ddpgen" / name, content.decode("utf-8", "replace"), lock.absolute())


def enter(environment: Path) -> None:
    """Replace this process by the same command in `environment`, unless this process runs there already."""
    if os.path.realpath(sys.prefix) == os.path.realpath(environment):
        return
    say(f"the Python of this job has what the version lock lists, in {environment}")
    programs = os.path.join(environment, "bin")
    os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    os.environ["VIRTUAL_ENV"] = str(environment)
    python = os.path.join(programs, "python")
    os.execv(python, [python, "-m", "train", *sys.argv[1:]])


def _of_list(options: argparse.Namespace) -> Path:
    environment = options.place.expanduser().absolute()
    content = "".join(f"{line}\n" for line in _lines(options.requirements))
    with contextlib.suppress(FileNotFoundError):
        # If the requirements, or a file that they read, have changed, make the environment again.
        if (environment / _LISTED).read_text("utf-8") != content:
            (environment / INSTALLED).unlink()
    return _make_once(environment, content)


def _lines(requirements: Sequence[str]) -> Iterator[str]:
    """Yield the requirements, each file that they read with its path on this host and its hash. Raises Refusal."""
    for requirement in requirements:
        line = _READS_FILE.sub(_on_this_host, _COMMENT.sub("", requirement))
        line = _LOOKS_INTO.sub(_on_this_host, line)
        yield line
        for _, file in _READS_FILE.findall(line):
            try:
                yield from _hashes(Path(file), set())
            except OSError as error:
                message = f"{file}: {error.strerror}; correct {requirement} in requirements"
                raise Refusal(EXIT_UNAVAILABLE, message) from None


def _hashes(file: Path, hashed: set[Path]) -> Iterator[str]:
    """Yield the hash of a file, and those of the files that it has pip read. pip itself names one that is not there."""
    content = read_file(file)
    hashed.add(file)
    yield f"# sha256:{hashlib.sha256(content).hexdigest()}"
    for line in content.decode("utf-8", "replace").splitlines():
        for _, name in _READS_FILE.findall(line):
            named = Path(os.path.normpath(file.parent / name))
            if named not in hashed and named.is_file():
                yield from _hashes(named, hashed)


def _on_this_host(reads: re.Match[str]) -> str:
    return f"{reads[1]}{Path('code', os.path.expanduser(reads[2])).absolute()}"


def _make_once(environment: Path, content: str, lock: Path | None = None) -> Path:
    """Return `environment`, and make it if it is missing or incomplete. Raises Refusal."""
    try:
        environment.parent.mkdir(parents=True, exist_ok=True)
        if not _is_whole(environment):
            say(f"installing into {environment}, or waiting for who does")
        with locked(Path(f"{environment}.lock")) as alone:  # machines may share their home
            if lock and not alone and not _is_whole(environment):
                # Without a lock, an environment that another machine is making looks like one that a killed machine
                # has left half made. So take another name.
                environment = environment.with_name(f"{environment.name}-{socket.gethostname()}")
            if not _is_whole(environment):
                _make(environment, content, lock)
    except OSError as error:
        message = f"{error.filename or environment} cannot be used: {error.strerror or error}"
        raise Refusal(EXIT_UNAVAILABLE, message) from None
    return environment


def _is_whole(environment: Path) -> bool:
    """Return True if all packages are installed, and the Python that made the environment still exists."""
    return (environment / INSTALLED).exists() and os.access(environment / "bin/python", os.X_OK)


def _make(environment: Path, content: str, lock: Path | None) -> None:
    """Make the environment with uv, if uv is installed and there is a lock with hashes, else with pip. Raises Refusal,
    OSError."""
    if environment.exists():  # half made
        shutil.rmtree(environment)
    uv = shutil.which("uv") if lock else None
    python = str(environment / "bin" / "python")
    if uv:
        venv = [uv, "venv", "--quiet", f"--python={sys.executable}"]
        install = [uv, "pip", "install", f"--python={python}", "--index-strategy=unsafe-best-match"]
    else:
        venv, install = [sys.executable, "-m", "venv"], [python, *_PIP, "install"]
    if _fails(*venv, str(environment)):
        raise Refusal(
            EXIT_UNAVAILABLE,
            f"no virtual environment could be made with {sys.executable}; on Debian and Ubuntu that "
            "takes python3-venv (setup: [sudo apt-get install -y python3-venv])",
        )
    listed = environment / _LISTED
    listed.write_text(content, "utf-8")
    hashed = ("--require-hashes", "--no-deps") if lock else ()
    start = None if lock or not os.path.isdir("code") else "code"
    if _fails(*install, "--quiet", *hashed, "-r", str(listed), directory=start):
        raise Refusal(EXIT_UNAVAILABLE, _install_error("uv" if uv else "pip", content, lock))
    if lock:
        installed = re.findall(r"^[^\s#-][^\s;]*", content, re.MULTILINE)
    else:
        freeze = subprocess.run([python, *_PIP, "freeze"], stdout=subprocess.PIPE, check=True)
        installed = freeze.stdout.decode("utf-8", "replace").splitlines()
    replace_file(environment / INSTALLED, "\n".join(installed).encode())


def _install_error(tool: str, content: str, lock: Path | None) -> str:
    if lock is None:
        return f"{tool} could not install the spec's requirements; its output is above"
    made_for = (re.findall("^# for: (.*)", content, re.MULTILINE) or ["another host"])[0]
    here = "Python {}.{} on {}".format(*sys.version_info[:2], sysconfig.get_platform())
    return (
        f"{tool} could not install {lock.name}, which was made for {made_for}; this is {here}. Its output is "
        "above. Where this host has no way to the index, type on one that has it and shares this home: "
        f"cd {lock.parent} && python3 -m train install {lock.name} (PY004)"
    )


def _fails(*command: str, directory: str | None = None) -> bool:
    """Run a command; return True if it fails. The command dies with this process, so that it never runs unnoticed."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        cwd=directory,
        check=False,
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )
    return done.returncode != 0
