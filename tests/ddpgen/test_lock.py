"""`ddpgen lock`: what it writes and refuses, and what a spec with `environment: locked` is rendered to."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpgen.bundle import lock as form
from ddpgen.reproduce import resolve
from ddpgen.tiers.registry import read
from tests import wheels
from tests.ddpgen.conftest import GPT, Run

DIGEST = f"sha256:{'ab' * 32}"
LOCKED = f"{GPT}environment: locked\n"
HEAD = "# Lock of job.yaml, written by `ddpgen lock`\n"
TIERS = """\
targets:
  local: {}
  hosts: {hosts: [a, b]}
  slurm: {time: 1h, nodes: 2}
  sky: {bucket: s3://bbb}
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels, which is all that pip knows; uv is not there."""
    wheels.write(tmp_path / "wheels")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path / "wheels"


@pytest.mark.parametrize(
    "archive", [{"hash": "sha256=ab"}, {"hash": "sha256=ab", "hashes": {"sha256": "ab"}}]
)
def test_each_form_of_a_hash_in_pips_report_is_read(archive: dict[str, Any]) -> None:
    metadata = {"name": "Tiny.Thing", "version": "1.0"}
    info = {"url": "file:///wheels/tiny.whl", "archive_info": archive}
    item = {"metadata": metadata, "download_info": info, "is_direct": False}
    assert resolve._line(item) == "tiny-thing==1.0 --hash=sha256:ab"


@pytest.mark.slow
def test_a_requirements_file_is_locked_with_all_that_it_needs(
    run: Run, spec: Callable[..., Path], index: Path, tmp_path: Path
) -> None:
    spec(LOCKED)
    asked = f"--no-index\n-f {index} # here\ntiny>=1 # the rest follows\n"
    Path("requirements.txt").write_text(asked)
    done = run("lock", "job.yaml", "-r", "requirements.txt")
    assert done[:2] == (0, "job.lock\n"), done.err
    assert "torch is not " in done.err
    text = Path("job.lock").read_text().splitlines()
    assert text[0].startswith(HEAD.rstrip())
    assert text[1] == f"# from: requirements.txt sha256:{wheels.digest(Path('requirements.txt'))}"
    assert text[2].startswith("# for: Python 3.")
    assert text[2].endswith(", by pip")
    hashes = [wheels.digest(index / f"{n}-1.0-py3-none-any.whl") for n in ("borrowed", "tiny")]
    assert text[3:] == [
        "--no-index",
        f"-f {index}",
        "borrowed==1.0 \\",
        f"    --hash=sha256:{hashes[0]}",
        "tiny==1.0 \\",
        f"    --hash=sha256:{hashes[1]}",
    ]
    assert run("render", "job.yaml", "--target", "local").code == 0
    assert Path("build/gpt/environment.lock").read_bytes() == Path("job.lock").read_bytes()
    Path("requirements.txt").write_text(f"{asked}borrowed==1.0\n")
    stale = run("render", "job.yaml", "--target", "local")
    assert stale.code == 65
    assert stale.err.startswith("job.yaml:8:14: environment: job.lock is outdated: ")
    assert stale.err.endswith("write it with ddpgen lock job.yaml -r requirements.txt\n")


def test_requirements_that_cannot_be_read_are_a_fault_of_the_spec(
    run: Run, spec: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    spec(LOCKED)
    Path("job.lock").write_text(f"{HEAD}# from: r.txt sha256:ab\n")
    Path("r.txt").write_text("torch\n")
    monkeypatch.setattr(form, "source", lambda path, home: closed(path))
    refused = run("validate", "job.yaml")
    assert refused.code == 65
    assert refused.err.startswith("job.yaml:8:14: environment: r.txt, ")
    assert "Permission denied" in refused.err


def python_with_pip(place: Path) -> Path:
    """Make a virtual environment with nothing but a copy of pip, because venv takes five seconds to install pip. Returns
    its Python."""
    argv = [sys.executable, "-m", "venv", "--without-pip", place]
    subprocess.run(argv, check=True, timeout=120)
    (packages,) = place.glob("lib/python*/site-packages")
    pip = importlib.util.find_spec("pip")
    assert pip is not None
    assert pip.origin is not None
    shutil.copytree(Path(pip.origin).parent, packages / "pip")
    return place / "bin" / "python"


@pytest.mark.slow
def test_what_the_python_of_the_spec_has_is_locked(
    run: Run,
    spec: Callable[..., Path],
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = python_with_pip(tmp_path / "venv")
    small, mine = (wheels.wheel(index, name, {f"{name}.py": ""}) for name in ("small", "mine"))
    pip = [python, "-m", "pip", "--quiet"]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    subprocess.run([*pip, "install", "small"], check=True, timeout=120)
    spec(f"{LOCKED}python: {python}\n")
    assert run("lock", "job.yaml").code == 0
    text = Path("job.lock").read_text().splitlines()
    assert text[1] == f"# from: what {python} has"
    assert text[3:] == ["small==1.0 \\", f"    --hash=sha256:{wheels.digest(small)}"]
    subprocess.run([*pip, "install", mine], check=True, timeout=120)
    refused = run("lock", "job.yaml")
    assert refused.code == 69
    assert "cannot be locked" in refused.err
    assert f": mine (from file://{mine}); " in refused.err
    small.unlink()
    subprocess.run([*pip, "uninstall", "--yes", "mine"], check=True, timeout=120)
    nowhere = run("lock", "job.yaml")
    assert nowhere.code == 69
    assert "small==1.0" in nowhere.err
    assert " -r requirements.txt" in nowhere.err
    assert Path("job.lock").read_text().splitlines() == text


def test_uv_is_asked_where_it_is(
    run: Run,
    spec: Callable[..., Path],
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = tmp_path / "said"
    (tmp_path / "uv").write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/asked\ncat {said}\n')
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hashes = [f"--hash={DIGEST}", f"--hash={DIGEST.replace('ab', 'cd')}"]
    locked = [f"torch==2.13.0 ; sys_platform == 'linux' \\\n    {hashes[0]} \\\n    {hashes[1]}\n"]
    spec(LOCKED)
    Path("requirements.txt").write_text("torch\n")
    said.write_text("".join(locked))
    done = run("lock", "job.yaml", "-r", "requirements.txt")
    assert done.code == 0, done.err
    assert "torch is not " not in done.err
    assert Path("job.lock").read_text().splitlines(True)[3:] == "".join(locked).splitlines(True)
    assert Path("job.lock").read_text().splitlines()[2].endswith(", by uv")
    assert " --universal --generate-hashes " in (tmp_path / "asked").read_text()
    said.write_text("-e ./mine\n")
    refused = run("lock", "job.yaml", "-r", "requirements.txt")
    assert refused.code == 69
    assert "cannot be locked: -e ./mine; " in refused.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-r", "gone.txt"], 2, "no file gone.txt"),
        (["-r", "secret.txt"], 69, "secret.txt holds credentials"),
        (["-r", "split.txt"], 69, "split.txt holds credentials"),
        (["-r", "token.txt"], 69, "token.txt holds credentials"),
        (["--container", "ghcr.io/a/b:1"], 2, "`skopeo inspect docker://ghcr.io/a/b:1` shows it."),
        (["--container", f"a@{DIGEST}", "-r", "secret.txt"], 2, "leave out -r or --container"),
        (
            ["--container", f"a@{DIGEST}", "-o", "secret.txt"],
            74,
            "secret.txt is not what ",
        ),
        (["--container", f"a@{DIGEST}", "-o", "no/dir.lock"], 2, "no directory no"),
    ],
)
def test_what_cannot_be_locked_is_refused(
    run: Run, spec: Callable[..., Path], words: list[str], code: int, said: str
) -> None:
    spec(LOCKED)
    Path("secret.txt").write_text("--extra-index-url=https://me:word@host/simple\ntorch\n")
    Path("split.txt").write_text("  --extra-index-url \\\n https://me:word@host/simple\ntorch\n")
    Path("token.txt").write_text("--index-url=https://host/simple?token=word\ntorch\n")
    done = run("lock", "job.yaml", *words)
    assert done.code == code
    assert said in " ".join(done.err.split())
    assert not Path("job.lock").exists()
    assert "--extra-index-url" in Path("secret.txt").read_text()


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        (None, "ddpgen lock job.yaml"),
        ("torch==2\n", "move it away"),
        (f"{HEAD}# container: a@{DIGEST}\n", "apptainer"),
    ],
)
def test_a_lock_that_does_not_fit_is_named(
    run: Run, spec: Callable[..., Path], lock: str | None, said: str
) -> None:
    spec(LOCKED)
    if lock is not None:
        Path("job.lock").write_text(lock)
    done = run("validate", "job.yaml")
    assert done.code == 65
    assert "job.yaml:8:14: environment: " in done.err
    assert said in done.err


def test_every_artefact_runs_from_the_lock(run: Run, spec: Callable[..., Path]) -> None:
    spec(LOCKED + TIERS)
    Path("job.lock").write_text(f"{HEAD}torch==2\n")
    assert run("render", "job.yaml", "--target", "all").code == 0
    for name in ("local.sh", "hosts/a.sh", "hosts/b.sh", "slurm.sbatch", "sky.yaml"):
        assert Path("build/gpt", name).read_text().count("--lock=environment.lock") == 1, name
    setup = yaml.safe_load(Path("build/gpt/sky.yaml").read_text())["setup"]
    assert "exec python3 -m train install environment.lock\n" in setup


def test_a_locked_container_takes_the_place_of_the_image(
    run: Run, spec: Callable[..., Path]
) -> None:
    spec(f"{LOCKED}{TIERS}".replace("local: {}", "local: {environment: installed}").replace(
        "hosts: {hosts", "hosts: {environment: installed, hosts"
    ).replace("time: 1h", "environment: {container: {image: a:1, mounts: /data}}, time: 1h"))  # fmt: skip
    done = run("lock", "job.yaml", "--container", f"docker://ghcr.io/a/b@{DIGEST}")
    assert done.code == 0, done.err
    assert run("render", "job.yaml", "--target", "all").code == 0
    listing = json.loads(Path("build/gpt/bundle.json").read_text())
    inside = listing["spec"]["slurm"]["environment"]
    assert inside["container"]["image"] == f"docker://ghcr.io/a/b@{DIGEST}"
    assert inside["container"]["mounts"] == ["/data"]
    assert listing["spec"]["sky"]["image"] == f"docker:ghcr.io/a/b@{DIGEST}"
    assert "environment.lock" not in listing["files"]


def test_a_locked_container_is_refused_where_another_runtime_starts_it(
    run: Run, spec: Callable[..., Path]
) -> None:
    pyxis = "environment: {container: {image: a, runtime: pyxis}}"
    spec(f"{LOCKED}targets: {{slurm: {{{pyxis}}}}}\n")
    assert run("lock", "job.yaml", "--container", f"docker://ghcr.io/a/b@{DIGEST}").code == 0
    done = run("render", "job.yaml", "--target", "slurm")
    assert done.code == 65
    assert "only apptainer on slurm" in done.err


def test_a_word_for_a_mapping_is_overlaid_like_the_mapping() -> None:
    text = f"{LOCKED}targets: {{slurm: {{environment: {{modules: cuda}}}}}}\n"
    environment = read(text.encode(), "job.yaml")["slurm"].job.environment
    assert (environment.packages, environment.modules) == ("locked", ("cuda",))
