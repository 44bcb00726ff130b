"""The files of the project, as git and the tools see them: shared by the tests in this folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def project_files() -> list[Path]:
    """Every file of the project relative to its root: tracked ones and those about to be."""
    # safe.directory: CI may run as another user than the one who made the checkout.
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "-z"]
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout, so what belongs to it is not known")
    listed = subprocess.run(
        [*command, "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, timeout=30
    )
    names = sorted(name for name in listed.stdout.decode().split("\0") if name)
    return [Path(name) for name in names if (ROOT / name).is_file()]


def copy_project(to: Path) -> Path:
    """A copy of the project's files without .git and without anything that was built."""
    for name in project_files():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    return to
