"""The bash of sky.yaml in SkyPilot's own, without machines; and a setup that may run any number of times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import wheels
from tests.sky import files
from tests.sky.skypilot import SkyPilot

pytestmark = pytest.mark.real


@pytest.mark.parametrize("kind", ["vm", "slurm"])
def test_nothing_of_ours_at_the_top_level_ends_skypilots_bash(
    skypilot: SkyPilot, kind: str, tmp_path: Path
) -> None:
    """Its last lines wait for the uploads: they must be reached whatever the job ends with."""
    home = tmp_path / "home"
    python = home / "python"
    wanted = files.spec(python={"interpreter": str(python), "activate": ["true"]})
    task = skypilot.load(files.laid_out(home / "sky_workdir", wanted))
    (home / "sky_workdir" / "train").symlink_to(files.ROOT / "train")
    activation = home / "sky_workdir" / "sky.activate.sh"
    script = tmp_path / "script"
    text = skypilot.script(task["run"], task["envs"], kind)
    script.write_text(text.replace("exit $__skypilot_user_exit_code", "echo reached"))
    for file, endings in (
        (python, ("exit 75", "kill -9 $$", "kill -TERM $$")),
        (
            activation,
            ("exit 75", "exec false", "set -e; false", "trap 'exit 3' EXIT", 'echo "open'),
        ),
    ):
        for ending in endings:
            file.write_text(f"#!/bin/bash\n{ending}\n")
            file.chmod(0o755)
            done = bash(script, home)
            assert done.stdout.splitlines()[-1:] == ["reached"], done.stdout


class Setup:
    """The setup of a task with one requirement, a wheel made here: pip needs no network for it."""

    def __init__(self, skypilot: SkyPilot, place: Path, **tier: Any) -> None:
        self.home = place / "home"
        self.home.mkdir()
        wheel = wheels.wheel(self.home, "demo", {"demo.py": ""}, version="1")
        tier = {"requirements": [f"demo@file://{wheel}"], **tier}
        bundle = self.home / "sky_workdir"
        bundle.mkdir()
        (bundle / "train").symlink_to(files.ROOT / "train")
        wanted = files.spec(tier=tier, python=sys.executable)
        task = skypilot.load(files.laid_out(bundle, wanted))
        self.script = place / "script"
        self.script.write_text(skypilot.script(task["setup"], task["envs"], "setup"))

    def run(self) -> subprocess.CompletedProcess[str]:
        return bash(self.script, self.home)

    @property
    def environment(self) -> Path:
        (found,) = (each for each in (self.home / ".ddpgen").glob("env-*") if each.is_dir())
        return found

    def imports(self) -> str:
        words = [self.environment / "bin" / "python", "-c", "import demo; print(demo.__name__)"]
        return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.strip()


def bash(script: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """As SkyPilot starts it: interactive, so that ~/.bashrc counts."""
    return subprocess.run(
        ["/bin/bash", "-i", str(script)],
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PIP_NO_INDEX": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=180, start_new_session=True,
    )  # fmt: skip


def test_setup_installs_once_and_says_what_is_there(skypilot: SkyPilot, tmp_path: Path) -> None:
    setup = Setup(skypilot, tmp_path, setup=["echo setting up"])
    first = setup.run()
    assert first.returncode == 0, first.stdout
    assert setup.imports() == "demo"
    assert "demo @ file://" in (setup.environment / "installed.txt").read_text()
    made = {path: path.stat().st_mtime_ns for path in setup.environment.rglob("*")}
    again = setup.run()
    assert again.returncode == 0, again.stdout
    assert {path: path.stat().st_mtime_ns for path in setup.environment.rglob("*")} == made
    for done in (first, again):
        assert "setting up" in done.stdout
        assert f"ddpgen: in {setup.environment}: demo @ file://" in done.stdout


@pytest.mark.nightly
def test_a_requirement_that_cannot_be_had_ends_the_setup_with_pips_words(
    skypilot: SkyPilot, tmp_path: Path
) -> None:
    setup = Setup(skypilot, tmp_path, requirements=["no-such-thing==1"])
    done = setup.run()
    assert done.returncode == 69
    assert "No matching distribution found for no-such-thing==1" in done.stdout
    assert "ddpgen: pip could not install the spec's requirements" in done.stdout
    assert not (setup.environment / "installed.txt").exists()
