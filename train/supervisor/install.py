"""`python -m train install DIR -- REQUIREMENT …`: a virtual environment for a list of requirements.

Owns that it is made once, is found again, and is never taken for whole when it is not. Machines may share
the directory. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from train.console import say
from train.errors import EXIT_UNAVAILABLE, Refusal
from train.files import locked

# What pip has installed: written last, so that its presence says that all is there.
INSTALLED = "installed.txt"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


def main(argv: Sequence[str]) -> int:
    """Make the environment; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train install", allow_abbrev=False)
    parser.add_argument("directory", type=Path)
    parser.add_argument("requirements", nargs="+", help="each a line of a requirements file")
    options = parser.parse_args(argv)
    environment = options.directory.expanduser().absolute()
    try:
        environment.parent.mkdir(parents=True, exist_ok=True)
        with locked(Path(f"{environment}.lock")):  # machines may share their home
            if not (environment / INSTALLED).exists():
                _make(environment, options.requirements)
        listed = " ".join((environment / INSTALLED).read_text("utf-8").splitlines())
    except Refusal as refusal:
        say(str(refusal))
        return refusal.code
    except OSError as error:
        say(f"{error.filename or environment} cannot be used: {error.strerror or error}")
        return EXIT_UNAVAILABLE
    say(f"in {environment}: {listed}")
    return 0


def _make(environment: Path, requirements: Sequence[str]) -> None:
    """Raises Refusal, OSError."""
    if environment.exists():  # half made
        shutil.rmtree(environment)
    if _fails(sys.executable, "-m", "venv", environment):
        raise Refusal(
            EXIT_UNAVAILABLE,
            f"no virtual environment could be made with {sys.executable}; on Debian and Ubuntu that "
            "takes python3-venv (setup: [sudo apt-get install -y python3-venv])",
        )
    listed = environment / "requirements.txt"
    listed.write_text("".join(f"{line}\n" for line in requirements), "utf-8")
    python = environment / "bin" / "python"
    if _fails(python, *_PIP, "install", "--quiet", "-r", listed):
        raise Refusal(
            EXIT_UNAVAILABLE,
            "pip could not install the spec's requirements; its output is above",
        )
    frozen = subprocess.run([python, *_PIP, "freeze"], stdout=subprocess.PIPE, check=True)
    (environment / "freeze.new").write_bytes(frozen.stdout)
    os.replace(environment / "freeze.new", environment / INSTALLED)


def _fails(*command: str | Path) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode != 0
