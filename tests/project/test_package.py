"""The wheel works where there is no checkout, and the sdist is the whole project."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.project.tree import ROOT, project_files

# Where files of the checkout lie in the wheel; what is not named here does not travel.
PLACES = {
    "ddpgen/": "ddpgen/",
    "templates/": "ddpgen/_data/templates/",
    "train/": "ddpgen/_data/train/",
    "docs/spec.md": "ddpgen/_data/docs/spec.md",
    "docs/troubleshooting.md": "ddpgen/_data/docs/troubleshooting.md",
}


def build(kind: str, source: Path, into: Path) -> Path:
    """Build one distribution with the tools of this environment; the file that came out."""
    run(sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", into, source, cwd=into)
    (built,) = into.glob("*.whl" if kind == "--wheel" else "*.tar.gz")
    return built


def run(
    *command: object, cwd: Path | str, env: dict[str, str] | None = None, timeout: int = 120
) -> str:
    """Standard output of a command that has to succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{words} -> {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("--wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """An environment that holds the wheel and what the wheel says it needs, nothing else."""
    prefix = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(prefix, with_pip=True)
    pip = [prefix / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    patient = ["--retries=15", "--timeout=30"]  # an index may stumble
    run(*pip, "install", "--quiet", *patient, wheel, cwd=prefix, timeout=300)
    run(*pip, "check", cwd=prefix)
    return prefix


def clean(prefix: Path) -> dict[str, str]:
    """The caller's environment, with this virtual environment first and no way back to ours."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    kept.pop("VIRTUAL_ENV", None)
    return kept | {"PATH": f"{prefix}/bin:/usr/bin:/bin"}


def test_wheel_holds_the_generator_its_templates_and_the_training_module_and_no_more(
    wheel: Path,
) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    expected = {
        place + name.removeprefix(folder)
        for name in map(Path.as_posix, project_files())
        for folder, place in PLACES.items()
        if name.startswith(folder)
    }
    assert names - metadata == expected
    assert {Path(name).name for name in metadata} >= {"entry_points.txt", "LICENSE", "METADATA"}


@pytest.mark.nightly
def test_sdist_holds_every_file_of_the_project_and_builds_the_same_wheel(
    tmp_path: Path, wheel: Path
) -> None:
    for folder in ("sdist", "source", "again"):
        (tmp_path / folder).mkdir()
    with tarfile.open(build("--sdist", ROOT, tmp_path / "sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path / "source", filter="data")
    assert names == {*map(Path.as_posix, project_files()), "PKG-INFO"}
    (unpacked,) = (tmp_path / "source").iterdir()
    again = build("--wheel", unpacked, tmp_path / "again")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


@pytest.mark.nightly
def test_installed_wheel_is_ddpgen_alone_and_explains_a_code(empty_environment: Path) -> None:
    env = clean(empty_environment)
    code = "import importlib.util as u; print(bool(u.find_spec('ddpgen')), u.find_spec('train'))"
    looked = run(empty_environment / "bin/python", "-c", code, cwd=empty_environment, env=env)
    assert looked.strip() == "True None"
    said = run("ddpgen", "explain", "nic001", cwd=empty_environment, env=env)
    assert said.startswith("NIC001: the interface does not exist\n")


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.timeout(400)
def test_installed_wheel_renders_elsewhere_and_what_it_rendered_trains_to_the_end(
    empty_environment: Path, tmp_path: Path
) -> None:
    env = clean(empty_environment)
    run("ddpgen", "render", ROOT / "examples/toy.yaml", "--target", "local", cwd=tmp_path, env=env)
    (script,) = tmp_path.glob("build/*/local.sh")

    # Only now torch, and by a path entry: rendering has been shown to need nothing undeclared, and
    # nobody wants to download a gigabyte twice. (.pth files inside a path entry are not read, so the
    # checkout of this environment stays out of reach.)
    purelib = next((empty_environment / "lib").glob("python*/site-packages"))
    (purelib / "torch_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run("bash", script, cwd="/", env=env, timeout=300)

    (status,) = tmp_path.rglob("status")
    assert status.read_text().split()[0] == "done"
    assert list(status.parent.glob("step-*/model.pt"))
