"""Modules, conda, a virtual environment, uv, a container: each is really entered on the nodes of a cluster.

conda, uv and apptainer are programs of a few lines that do what the real ones do as far as it concerns a
launch, and say how they were called; bash, venv and Slurm are the real ones.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import wheels
from tests.real import batch, jobs
from tests.real.batch import Batch
from tests.real.conftest import NewSlurm
from tests.real.rig.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]
PYTHON = Path(sys.executable)
MODULES = """\
module() { echo "module $*" >&2; [ "$2" != nowhere/1 ] || return 1; [ "$2" != tools/1 ] || PATH=/shared/tools:$PATH; }
"""
TOOLS = {
    "conda": 'echo "$@" >&2; echo /shared/conda',
    "uv": """\
echo "uv $*" >&2
mkdir -p "${@: -1}/.venv/bin"
printf 'PATH=/shared/venv/bin:$PATH\\nUV_ACTIVE=1\\n' >"${@: -1}/.venv/bin/activate"
""",
    "apptainer": """\
echo "apptainer $*" >&2
[ "$1" = exec ] || exit 2
shift
while [ "${1#--}" != "$1" ]; do
  case $1 in
    --bind=*) [ -e "${1#--bind=}" ] || { echo "no such place: $1" >&2; exit 255; } ;;
    --pwd=*) cd "${1#--pwd=}" ;;
  esac
  shift
done
image=$1
shift
IN_CONTAINER=$image PATH=/shared/venv/bin:$PATH exec "$@"
""",
}
ACTIVATE = 'conda() { echo "conda $*" >&2; PATH=/shared/venv/bin:$PATH; CONDA=$2; export CONDA; }\n'


@pytest.fixture(scope="module")
def cluster(new_slurm: NewSlurm) -> Slurm:
    """A site with modules and tools; there is no `python3` with torch but in the environments."""
    cluster = new_slurm(nodes=2)
    shared = cluster.rig.shared
    for name, text in TOOLS.items():
        write(shared / "tools" / name, f"#!/bin/bash\nset -eu\n{text}\n")
    write(shared / "conda/etc/profile.d/conda.sh", ACTIVATE)
    # What `python3 -m venv` makes, for the Python of the tests.
    write(shared / "venv/bin/activate", "PATH=/shared/venv/bin:$PATH\n")
    write(shared / "venv/bin/python-here", f'#!/bin/bash\nexec {PYTHON} "$@"\n')
    write(shared / "image.sif", "")
    for node in cluster.nodes:
        write(node.path("/etc/profile.d/modules.sh"), MODULES)
    return cluster


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    for each in (path, path.parent):
        os.chown(each, 2000, 2000)


def looked_at(cluster: Slurm, name: str, **tier: Any) -> tuple[tuple[str, str], str]:
    """How a job ended that only looks whether the nodes can start it, and what it said."""
    wanted = batch.spec(f"in-{name}", nodes=2, tier=tier, python="python-here")
    job = Batch(cluster, wanted, arguments=["--preflight"])
    return job.ended(), job.log


@pytest.mark.parametrize(
    ("name", "environment", "said"),
    [
        ("venv", {"modules": ["cuda/12", "b"], "venv": "/shared/venv"}, ["module load cuda/12"]),
        (
            "conda",
            {"modules": ["tools/1"], "conda": "torch"},
            ["module load tools/1", "conda activate torch"],
        ),
        (
            "uv",
            {"modules": ["tools/1"], "uv": "/shared/project"},
            ["uv sync --frozen --quiet --project /shared/project"],
        ),
        (
            "container",
            {
                "modules": ["tools/1"],
                "container": {
                    "image": "/shared/image.sif",
                    "mounts": ["/etc"],
                    "options": ["--nv"],
                },
            },
            [
                "--bind=/etc",
                "--nv /shared/image.sif bash -c",
            ],
        ),
    ],
)
def test_an_environment_is_entered_on_every_node(
    cluster: Slurm, name: str, environment: dict[str, Any], said: list[str]
) -> None:
    ended, log = looked_at(cluster, name, environment=environment)
    assert ended == ("COMPLETED", "0:0"), log
    assert "2 hosts can start the job" in log
    for words in said:
        assert words in log


@pytest.mark.nightly
def test_a_lock_is_installed_once_where_the_nodes_share_their_home(cluster: Slurm) -> None:
    shared = cluster.rig.shared
    wheels.write(shared / "wheels")
    lock = wheels.lock(shared / "wheels", "/shared/wheels")
    tier = {"environment": {"packages": "locked", "venv": "/shared/venv"}}
    env = {"XDG_CACHE_HOME": "/shared/cache", "PIP_CONFIG_FILE": os.devnull}
    wanted = batch.spec("in-lock", nodes=2, tier=tier, python="python-here", env=env)
    (shared / "cache").mkdir(mode=0o777)
    (shared / "cache").chmod(0o777)
    code = {"paced.py": jobs.PACED_TOY, "job.lock": lock}
    job = Batch(cluster, wanted, arguments=["--preflight"], code=code)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert "2 hosts can start the job" in job.log
    (made,) = (shared / "cache" / "ddpgen").glob("*/installed.txt")
    assert made.read_text() == "borrowed==1.0\ntiny==1.0"
    where = f"what the version lock lists, in /shared/cache/ddpgen/{made.parent.name}\n"
    assert job.log.count(where) == 2


@pytest.mark.parametrize(
    ("name", "tier", "said"),
    [
        ("nothing", {}, "node1: there is no Python called python-here (PATH="),
        (
            "unknown",
            {"environment": {"modules": ["nowhere/1"], "venv": "/shared/venv"}},
            "the environment failed: 1 slurm.activate.sh line 3: ",
        ),
        (
            "empty",
            {"environment": {"container": "/shared/image.sif"}},
            "there is no apptainer on node1",
        ),
    ],
)
def test_what_cannot_be_entered_is_named(
    cluster: Slurm, name: str, tier: dict[str, Any], said: str
) -> None:
    ended, log = looked_at(cluster, name, **tier)
    assert ended == ("FAILED", "69:0"), log
    assert said in log


@pytest.mark.nightly
def test_setup_runs_once_on_every_node_in_the_environment(cluster: Slurm) -> None:
    lines = ['it="it\'s"', 'echo "$it $SLURMD_NODENAME $PATH" >>/shared/setup.log']
    tier = {"environment": {"venv": "/shared/venv"}, "setup": lines}
    ended, log = looked_at(cluster, "once", **tier)
    assert ended == ("COMPLETED", "0:0"), log
    written = sorted((cluster.rig.shared / "setup.log").read_text().splitlines())
    assert [line.split()[:2] for line in written] == [["it's", "node1"], ["it's", "node2"]]
    assert all(" /shared/venv/bin:" in line for line in written)
