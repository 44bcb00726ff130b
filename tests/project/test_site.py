"""`make site` fails if a link or an anchor of the documentation is dead."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project.tree import ROOT

ENVIRONMENT = ROOT / ".venv-docs"
DEAD = {"README.md": "docs/nowhere.md", "docs/adr/0003-the-status-file.md": "../spec.md#nowhere"}


@pytest.mark.slow
@pytest.mark.skipif(not ENVIRONMENT.is_dir(), reason="`make site` has made no .venv-docs")
def test_dead_links_fail_the_site_and_are_named(tmp_path: Path) -> None:
    for path in ROOT.iterdir():
        if path.name in ("docs", "tools"):
            shutil.copytree(path, tmp_path / path.name)
        elif path.name == "README.md":
            shutil.copy2(path, tmp_path)
        elif path.name not in (".git", "build"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tools/venv.sh").write_text("#!/bin/bash\n")  # .venv-docs is there
    for page, link in DEAD.items():
        with (tmp_path / page).open("a") as file:
            file.write(f"\n\n[there]({link})\n")
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    made = subprocess.run(
        ["make", "site"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    said = made.stdout + made.stderr
    assert made.returncode != 0, said
    # Two links and no more: without them the site is built.
    assert "Aborted with 2 warnings in strict mode" in said
    for link in DEAD.values():
        assert f"contains a link '{link.removeprefix('docs/')}'" in said  # as seen from docs/
