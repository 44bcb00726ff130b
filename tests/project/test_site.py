"""`make site` fails if a link or an anchor of the documentation is dead."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project.tree import ROOT

ENVIRONMENT = ROOT / ".venv-docs"


@pytest.mark.skipif(not ENVIRONMENT.is_dir(), reason="`make site` has made no .venv-docs")
@pytest.mark.parametrize(
    ("page", "link"),
    [
        ("README.md", ""),
        ("README.md", "docs/nowhere.md"),
        ("docs/adr/0003-the-status-file.md", "../spec.md#nowhere"),
    ],
)
def test_a_dead_link_fails_the_site(tmp_path: Path, page: str, link: str) -> None:
    for path in ROOT.iterdir():
        if path.name in ("docs", "tools"):
            shutil.copytree(path, tmp_path / path.name)
        elif path.name == "README.md":
            shutil.copy2(path, tmp_path)
        elif path.name not in (".git", "build"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tools/venv.sh").write_text("#!/bin/bash\n")  # .venv-docs is there
    with (tmp_path / page).open("a") as file:
        file.write(f"\n\n[there]({link})\n" if link else "\n")
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    made = subprocess.run(
        ["make", "site"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert (made.returncode != 0) == bool(link), made.stdout + made.stderr
