"""make sets itself up: once, whole, whatever interrupts it, and however many do it at a time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.project.tree import ROOT

# What an install of the checkout itself needs; torch and the rest would only make the tests slow.
SMALL = ("click", "hatchling", "jinja2", "markupsafe", "packaging", "pathspec", "pluggy", "pyyaml")
SMALL_LOCK = (*SMALL, "tomli", "trove-classifiers")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with nothing in it but what set-up reads, and a short lock."""
    for name in ("pyproject.toml", "Makefile", "README.md", "LICENSE", "tools/venv.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    for package in ("ddpgen", "train", "templates"):
        (tmp_path / package).mkdir()
    shutil.copy2(ROOT / "ddpgen/__init__.py", tmp_path / "ddpgen/__init__.py")
    lock = (ROOT / "requirements-dev.lock").read_text().splitlines(keepends=True)
    (tmp_path / "requirements-dev.lock").write_text(
        "".join(line for line in lock if line.partition("==")[0] in SMALL_LOCK)
    )
    return tmp_path


def start(checkout: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["make", "venv"],
        cwd=checkout,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


# An index may stumble more often than pip forgives by itself.
PATIENT = {"PIP_RETRIES": "15", "PIP_TIMEOUT": "30"}


def clean_environment() -> dict[str, str]:
    """Without what the outer make passes down, and with settings of a user that must not matter."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return kept | PATIENT | {"PIP_USER": "1", "PYTHONPATH": "/nonexistent", "MAKEFLAGS": ""}


def set_up(checkout: Path) -> str:
    process = start(checkout)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output


def works(checkout: Path) -> bool:
    """The environment imports the checkout's own ddpgen and what it needs."""
    code = "import click, jinja2, yaml, ddpgen; print(ddpgen.__file__)"
    done = subprocess.run(
        [checkout / ".venv/bin/python", "-c", code],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip() == str(checkout / "ddpgen/__init__.py")


@pytest.mark.nightly
def test_second_make_has_nothing_to_do_and_a_changed_lock_is_noticed(checkout: Path) -> None:
    assert "creating .venv" in set_up(checkout)
    assert works(checkout)
    assert set_up(checkout) == ""
    with (checkout / "requirements-dev.lock").open("a") as lock:
        lock.write("# changed\n")
    assert "requirements changed" in set_up(checkout)
    assert set_up(checkout) == ""


@pytest.mark.nightly
def test_killed_install_is_done_over(checkout: Path) -> None:
    process = start(checkout)
    assert process.stdout is not None
    for line in process.stdout:
        if "Installing collected packages" in line:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert not (checkout / ".venv/.stamp").exists()
    assert "creating .venv" in set_up(checkout)
    assert works(checkout)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("flock") is None, reason="this system has no flock")
def test_two_makes_at_once_set_up_once(checkout: Path) -> None:
    both = [start(checkout), start(checkout)]
    outputs = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("creating .venv" in output for output in outputs) == 1
    assert sum("waiting" in output for output in outputs) == 1
    assert works(checkout)


def test_python_too_old_or_without_venv_is_said_with_what_to_install(checkout: Path) -> None:
    """On a PATH where the only python3 says that it has no venv module."""
    fakes = checkout / "bin"
    fakes.mkdir()
    for tool in ("bash", "dirname", "rm"):
        (fakes / tool).symlink_to(str(shutil.which(tool)))
    (fakes / "python3").write_text("#!/bin/bash\n[[ $2 != *ensurepip* ]]\n")
    (fakes / "python3").chmod(0o755)
    said = fails_to_set_up(checkout, fakes)
    assert "apt install python3-venv" in said
    (fakes / "python3").write_text("#!/bin/bash\nexit 1\n")
    assert "no Python 3.10 or newer found" in fails_to_set_up(checkout, fakes)


def fails_to_set_up(checkout: Path, path: Path) -> str:
    done = subprocess.run(
        ["tools/venv.sh"],
        cwd=checkout,
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 69, done.stdout + done.stderr
    return done.stderr


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    done = subprocess.run(
        ["make"], cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=30
    )
    listed = dict(line.split(maxsplit=2)[1:] for line in done.stdout.splitlines())
    assert set(listed) == set(targets) - {"venv"}
    assert all(len(text) > 10 for text in listed.values())
    assert set(listed) >= {"run", "check", "test", "nightly", "lint", "bench", "golden"}
