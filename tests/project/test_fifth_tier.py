"""A new tier is one folder, one template and one line of the registry: a tier for at(1), added to a copy of the program."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpgen.tiers.registry import TIERS as REGISTRY
from ddpgen.tiers.tier import Follow, Tier
from tests.project.floors import imports
from tests.project.tree import ROOT

TIERS = {path.parent.name for path in (ROOT / "ddpgen" / "tiers").glob("*/tier.py")}
OUTSIDE = [
    path
    for path in sorted((ROOT / "ddpgen").rglob("*.py"))
    if path.relative_to(ROOT / "ddpgen").parts[0] not in ("tiers", "driver")
]
# A word of another language than ours: fsspec's protocol for this machine's disk, and a value of mmengine's --launcher.
OTHER_WORDS = {("ddpgen/spec/places.py", "local"), ("ddpgen/lint/processes.py", "slurm")}
# A script is read into the fields that it is rendered from.
MAY_IMPORT = {
    ("ddpgen/adopt/sbatch.py", "ddpgen.tiers.slurm.fields"),
    ("ddpgen/adopt/sbatch.py", "ddpgen.tiers.slurm.directives"),
    ("ddpgen/adopt/sky.py", "ddpgen.tiers.sky.extra"),
    # `ddpgen site` is about a cluster of Slurm.
    ("ddpgen/cli/specs.py", "ddpgen.tiers.slurm"),
    ("ddpgen/cli/specs.py", "ddpgen.tiers.slurm.site"),
}

TIER = '''
"""The tier `at`: this machine, later."""

from __future__ import annotations

from dataclasses import dataclass

from ddpgen.render import Artefact, Renderer
from ddpgen.spec.fields import Text, setting
from ddpgen.spec.job import JobSpec
from ddpgen.tiers.plan import values
from ddpgen.tiers.tier import Tier


@dataclass(frozen=True, repr=False, eq=False)
class AtJob(JobSpec):
    """A job for the tier `at`."""

    when: str = setting(Text(r"[0-9a-z+: ]+", "a time of at(1), like `now + 1 hour`"), "now")


class At(Tier[AtJob]):
    """See Tier."""

    model = AtJob

    def render(self, job: AtJob, renderer: Renderer) -> list[Artefact]:
        placed = values(job, self.plan(job), "at.activate.sh") | {"when": job.when}
        script = renderer.render("at.sh.j2", placed)
        return [Artefact("at.sh", script, "at -f {bundle}/at.sh"), *renderer.activation(placed)]
'''
SUBMIT = """
from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpgen.monitor.record import Launch
from ddpgen.programs import output
from ddpgen.tiers.at.tier import AtJob


def submit(
    job: AtJob, bundle: Path, arguments: Sequence[str], points: Sequence[str] = ()
) -> Launch:
    _, said = output(["at", "-f", str(bundle / "at.sh"), *job.when.split()])
    return Launch("at", said.split()[1])


def preview(
    job: AtJob, bundle: Path, copy: Path, arguments: Sequence[str], points: Sequence[str]
) -> Iterator[str]:
    yield f"+ at -f {bundle}/at.sh {job.when}"
"""
TEMPLATE = """{% extends "local.sh.j2" %}
{% block bundle %}
# at {{ when | comment }}
{{ super() }}
{% endblock %}
"""
LINES = {
    "from ddpgen.tiers.hosts.tier import Hosts\n": "from ddpgen.tiers.at.tier import At\n",
    '    "local": Local(),\n': '    "at": At(),\n',
}
SPEC = """\
name: night
nodes: 1
train: {workload: toy, steps: 20, global_batch_size: 8, micro_batch_size: 4}
targets:
  at: {when: now + 1 hour}
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with a fifth tier."""
    place = tmp_path_factory.mktemp("fifth")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("ddpgen", "templates", "train", "docs"):
        shutil.copytree(ROOT / name, place / name, ignore=ignored)
    folder = place / "ddpgen" / "tiers" / "at"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "tier.py").write_text(TIER)
    (folder / "submit.py").write_text(SUBMIT)
    (folder / "follow.py").write_text("from ddpgen.tiers.local.follow import *\n")
    (place / "templates" / "at.sh.j2").write_text(TEMPLATE)
    registry = place / "ddpgen" / "tiers" / "registry.py"
    text = registry.read_text()
    for line, added in LINES.items():
        assert text.count(line) == 1
        text = text.replace(line, line + added)
    registry.write_text(text)
    (place / "job.yaml").write_text(SPEC)
    return place


def ddpgen(copy: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddpgen", *words]
    more = {"PYTHONPATH": str(copy), **env}
    return subprocess.run(
        command, cwd=copy, env=os.environ | more, capture_output=True, text=True, check=False
    )


def test_it_renders(copy: Path) -> None:
    done = ddpgen(copy, "render", "job.yaml", "--target", "all")
    assert done.returncode == 0, done.stderr
    script = (copy / "build" / "night" / "at.sh").read_text()
    assert "# at now + 1 hour\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_its_fields_are_read_and_explained_like_the_others(copy: Path) -> None:
    (copy / "wrong.yaml").write_text(SPEC.replace("when: now", "wehn: now"))
    done = ddpgen(copy, "validate", "wrong.yaml", "--target", "at")
    assert done.returncode == os.EX_DATAERR
    assert "wrong.yaml:5:8: targets.at.wehn" in done.stderr
    assert "when" in done.stderr.partition("wehn")[2]
    done = ddpgen(copy, "schema")
    overlays = json.loads(done.stdout)["properties"]["targets"]["properties"]
    assert overlays["at"]["properties"]["when"]["default"] == "now"


def test_it_is_planned_and_predicted(copy: Path) -> None:
    done = ddpgen(copy, "plan", "job.yaml", "--target", "at", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tier"] == "at"
    done = ddpgen(copy, "predict", "job.yaml", "--target", "at", "--step-time", "1s")
    assert done.returncode == 0, done.stderr


def test_it_is_submitted_by_its_own_tool_and_followed(copy: Path) -> None:
    programs = copy / "bin"
    programs.mkdir()
    (programs / "at").write_text('#!/bin/sh\necho "$@" > at.words\necho "job 7 at noon"\n')
    (programs / "at").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = ddpgen(copy, "launch", "job.yaml", "--target", "at", "--dry-run")
    assert "at.sh now + 1 hour" in done.stdout, done.stderr
    done = ddpgen(copy, "launch", "job.yaml", "--target", "at", PATH=path)
    assert done.returncode == 0, done.stderr
    assert (copy / "at.words").read_text().split()[-4:] == ["now", "+", "1", "hour"]
    done = ddpgen(copy, "status", "job.yaml", "--target", "at")
    assert done.returncode == 0, done.stderr
    assert "checkpoints/night" in done.stdout


def test_no_code_outside_the_folders_of_the_tiers_asks_for_a_tier() -> None:
    own = tuple(f"ddpgen.tiers.{tier}" for tier in TIERS)
    imported, words = set(), set()
    for path in OUTSIDE:
        shown = str(path.relative_to(ROOT))
        imported |= {
            (shown, ".".join(name.split(".")[:4])) for name in imports(path) if name.startswith(own)
        }
        tree = ast.walk(ast.parse(path.read_text()))
        said = {node.value for node in tree if isinstance(node, ast.Constant)}
        words |= {(shown, word) for word in said & TIERS}
    wrong = (imported ^ MAY_IMPORT) | (words ^ OTHER_WORDS)
    assert not wrong, "\n".join(f"{path}: {name}" for path, name in sorted(wrong))


@pytest.mark.parametrize("name", sorted(TIERS))
def test_a_tier_gives_only_what_every_tier_is_asked_for(name: str) -> None:
    own = {attribute for attribute in vars(type(REGISTRY[name])) if not attribute.startswith("_")}
    assert own <= {*dir(Tier), *Tier.__annotations__}


def asked(function: Callable[..., Any], receiver: int = 0) -> list[str]:
    """The kinds of a function's parameters, without the first `receiver`."""
    parameters = list(inspect.signature(function).parameters.values())[receiver:]
    return [str(each.annotation).replace(" | Path", "") for each in parameters]


@pytest.mark.parametrize("name", sorted(TIERS))
def test_the_modules_of_a_tier_take_what_they_are_given(name: str) -> None:
    """The type checker cannot see it, because they are imported by name."""
    tier = REGISTRY[name]
    functions = [each for each in vars(Follow) if not each.startswith("_")]
    assert "status" in functions
    for each in functions:
        assert asked(getattr(tier.follow, each)) == asked(getattr(Follow, each), 1), each
    for value, kind in ((tier.follow.KILL_ADVICE, str), (tier.follow.INTERVAL_S, int)):
        assert isinstance(value, kind)
    if not tier.start:
        module = importlib.import_module(f"ddpgen.tiers.{name}.submit")
        job, *others = asked(module.submit)
        assert (job, others) == (tier.model.__name__, ["Path", "Sequence[str]", "Sequence[str]"])
        job, *others = asked(module.preview)
        assert (job, others) == (tier.model.__name__, [*["Path"] * 2, *["Sequence[str]"] * 2])
