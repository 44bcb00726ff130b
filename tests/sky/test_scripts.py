"""The bash of sky.yaml without machines: clean to ShellCheck, and a setup that may run any number of times."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sky import files
from tests.sky.skypilot import SkyPilot

pytestmark = pytest.mark.real

SPECS: dict[str, dict[str, Any]] = {
    **{path.stem: yaml.safe_load(path.read_text()) for path in files.EXAMPLES},
    "one machine": files.spec(),
    "url": files.spec(checkpoint={"dir": "s3://bucket/it's $(here)"}, tier={"bucket": None}),
    "pods": files.spec(tier={"infra": "k8s"}, nodes=2),
    "no notices": files.spec(tier={"notices": False}, preflight=False),
    "env": files.spec(nodes=2, rendezvous={"launcher": "env"}, nic="ens5"),
    "static": files.spec(nodes=2, rendezvous={"launcher": "torchrun-static"}),
    "cached": files.spec(
        tier={"bucket": {"url": "s3://bbb", "mode": "cached", "path": "/a.b/c-d"}}
    ),
    "python": files.spec(python={"interpreter": "/it's here/python", "activate": ["a 'b", "c"]}),
    "setup": files.spec(
        tier={
            "setup": ["echo 'a \"b\" $c'", "# it's", "cat <<E\nx\nE"],
            "requirements": ["a==1", "b[c,d]==2"],
            "secrets": ["WANDB_API_KEY"],
        }
    ),
    "hostile": files.spec(env={"A": "$(touch pwned)", "B": "it's\n`x`"}),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_script_is_clean_bash(skypilot: SkyPilot, name: str, tmp_path: Path) -> None:
    path = files.laid_out(tmp_path, SPECS[name])
    given = dict.fromkeys(SPECS[name]["targets"]["sky"].get("secrets", []), "x")
    task = skypilot.load(path, secrets=given)
    scripts: list[Path] = []
    for part in ("setup", "run"):
        if task[part]:
            scripts.append(tmp_path / f"{part}.sh")
            scripts[-1].write_text(f"#!/bin/bash\n{task[part]}")
        # What SkyPilot puts around it is its own, but the whole has to be bash.
        whole = skypilot.script(task[part] or "true", task["envs"], "setup")
        subprocess.run(["bash", "-n"], input=whole, text=True, check=True, timeout=30)
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)
    done = subprocess.run(
        [shellcheck(), "--exclude=SC1091", *map(str, scripts)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "")
    younger = (r"\bmapfile\b", r"\breadarray\b", r"declare -A", r"\$\{\w+@", r"\bwait -n\b", "&>>")
    text = "".join(script.read_text() for script in scripts)
    assert not [pattern for pattern in younger if re.search(pattern, text)]


def shellcheck() -> str:
    beside_python = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    found = shutil.which("shellcheck", path=beside_python)
    assert found, "shellcheck is missing; it comes with the [dev] extra"
    return found


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
        wheel = self.home / "demo-1-py3-none-any.whl"
        wheel.parent.mkdir()
        make_wheel(wheel)
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


def make_wheel(path: Path) -> None:
    about = "demo-1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("demo.py", "")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        listed = ("demo.py", f"{about}/METADATA", f"{about}/WHEEL", f"{about}/RECORD")
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in listed))


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
def test_a_setup_that_was_killed_is_done_over(skypilot: SkyPilot, tmp_path: Path) -> None:
    setup = Setup(skypilot, tmp_path)
    assert setup.run().returncode == 0
    environment = setup.environment
    (environment / "installed.txt").unlink()  # written last
    shutil.rmtree(environment / "bin")
    done = setup.run()
    assert done.returncode == 0, done.stdout
    assert setup.imports() == "demo"


@pytest.mark.nightly
def test_machines_that_share_a_home_install_one_after_the_other(
    skypilot: SkyPilot, tmp_path: Path
) -> None:
    setup = Setup(skypilot, tmp_path)
    running = [
        subprocess.Popen(
            ["/bin/bash", "-i", str(setup.script)],
            env={"HOME": str(setup.home), "PATH": os.environ["PATH"], "PIP_NO_INDEX": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    said = [each.communicate(timeout=200)[0] for each in running]
    assert [each.returncode for each in running] == [0, 0, 0], said
    assert setup.imports() == "demo"


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


def test_a_line_of_setup_that_fails_ends_it(skypilot: SkyPilot, tmp_path: Path) -> None:
    setup = Setup(skypilot, tmp_path, setup=["echo first", "cd /nowhere", "echo last"])
    done = setup.run()
    assert done.returncode == 69
    assert "(setup of the spec) failed at line 6: cd /nowhere" in done.stdout
    assert "first" in done.stdout
    assert "last" not in done.stdout
