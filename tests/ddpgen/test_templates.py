"""Templates place finished values through approved filters; what they render is clean bash."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import HealthCheck, given, reject, settings
from jinja2 import nodes

from ddpgen import job
from ddpgen.errors import SpecInvalidError
from ddpgen.render import FILTERS
from ddpgen.tiers.registry import read
from tests.ddpgen import drawn
from tests.ddpgen.conftest import GPT, ROOT, Run, check_bash

TEMPLATES = sorted((ROOT / "templates").glob("*.j2"))


def bare_values(source: str) -> list[str]:
    """What a template prints without passing it through exactly one of our filters."""
    found = []
    for output in jinja2.Environment(autoescape=False).parse(source).find_all(nodes.Output):
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                continue
            if not (isinstance(node, nodes.Filter) and node.name in FILTERS):
                found.append(f"line {node.lineno}: not through a filter of ours")
            elif isinstance(node.node, nodes.Filter):
                found.append(f"line {node.lineno}: through two filters")
    return found


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_value_enters_through_one_filter(template: Path) -> None:
    assert bare_values(template.read_text()) == []


@pytest.mark.parametrize("source", ["{{ x }}", "a{{ x | upper }}", "{{ x | comment | sh }}"])
def test_a_bare_value_would_be_found(source: str) -> None:
    assert bare_values(source)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_compute_nothing(template: Path) -> None:
    tree = jinja2.Environment(autoescape=False).parse(template.read_text())
    kinds = (nodes.Assign, nodes.BinExpr, nodes.Call, nodes.Compare, nodes.Macro)
    assert not list(tree.find_all(kinds))


SPECS = {
    "env": GPT + "env: {A: \"it's\\n$(x)\", B: é, C: ''}\n",
    "activate": GPT + "python: {activate: [module load cuda, source ~/venv/bin/activate]}\n",
    "hostile": GPT + "checkpoint: {dir: '$(touch x) `y`'}\npython: /it's here/python\n",
    "script": "name: s\ncode: .\ntrain: {script: a.py, args: {x: ['$y', \"it's\"]}}\n",
}


@pytest.mark.parametrize("name", SPECS)
def test_scripts_are_clean_bash(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "job.yaml").write_text(SPECS[name])
    outcome = run("render", "job.yaml", "--target", "local", "--stdout")
    assert outcome.code == 0, outcome.err
    check_bash(outcome.out)


RENDERED = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


@RENDERED
@given(spec=drawn.one_field(yaml.safe_load(GPT)))
def test_what_validates_renders_on_every_tier(spec: dict[str, Any], tmp_path: Path) -> None:
    for script in scripts(spec, tmp_path):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=30)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@settings(RENDERED, max_examples=300)
@given(spec=drawn.one_field(yaml.safe_load(GPT)))
def test_what_validates_is_clean_bash(spec: dict[str, Any], tmp_path: Path) -> None:
    for script in scripts(spec, tmp_path):
        check_bash(script)


def scripts(spec: dict[str, Any], home: Path) -> list[str]:
    """Return the scripts of a spec that validates, and those in its task for SkyPilot. Its other files are parsed."""
    raw = yaml.safe_dump(spec, allow_unicode=True).encode("utf-8", "surrogatepass")
    try:
        readings = read(raw, str(home / "job.yaml"))
        job.check([*readings.values()], home)
    except SpecInvalidError:
        reject()
    found = []
    for artefact in job.artefacts(readings, [*readings], None):
        if artefact.path.endswith(".json"):
            json.loads(artefact.text)
        elif artefact.path.endswith(".yaml"):
            task = yaml.safe_load(artefact.text)
            found += [task["setup"], task["run"]] if "setup" in task else [task["run"]]
        elif re.search(r"(?<!activate)(?<!setup)\.(sh|sbatch)$", artefact.path):  # not the user's
            found.append(artefact.text)
    return found


Spec = Callable[..., Path]


def test_templates_of_the_users_replace_ours_or_extend_them_by_block(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/_setup.sh.j2").write_text("umask 077 # for {{ name | comment }}\n")
    (tmp_path / "mine/local.sh.j2").write_text(
        '{% extends "ddpgen/local.sh.j2" %}\n'
        "{% block run %}\necho before\n{{ super() }}{% endblock %}\n"
    )
    outcome = run("render", spec(), "--target", "local", "--stdout", "--templates", "mine")
    assert outcome.code == 0
    assert "umask 077 # for gpt\n" in outcome.out
    assert "unset PYTHONSAFEPATH" not in outcome.out
    assert "echo before\n# --- run: " in outcome.out


def test_a_template_that_replaces_none_of_ours_is_refused(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/locl.sh.j2").write_text("umask 077\n")
    command = ("render", spec(), "--target", "local", "--stdout", "--templates", "mine")
    outcome = run(*command)
    assert outcome.code == 74
    assert "locl.sh.j2 replaces no template" in outcome.err
    assert "did you mean local.sh.j2?" in outcome.err
    # Another template may include it.
    (tmp_path / "mine/_setup.sh.j2").write_text('{% include "locl.sh.j2" %}')
    assert "umask 077" in run(*command).out


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "{{ nmae | sh }}",
            "mine: template local.sh.j2: 'nmae' is undefined; correct the template",
        ),
        ("{% if %}", "mine: template local.sh.j2:1: Expected an expression, got 'end of statement"),
        ('{% include "x" %}', "mine: template x: x; correct the template"),
        ("{{ name | quote }}", "mine: template local.sh.j2:1: No filter named 'quote'."),
        (b"\xff", "mine: template local.sh.j2: UnicodeDecodeError: 'utf-8' codec can't decode"),
        ("{{ 1 / 0 }}", "mine: template local.sh.j2: ZeroDivisionError: division by zero; correct"),
        ('{% include "local.sh.j2" %}', "mine: template local.sh.j2: RecursionError: "),
        ("{% extends 5 %}", "mine: template "),
    ],
)
def test_a_broken_template_of_the_users_is_explained(
    run: Run, spec: Spec, tmp_path: Path, source: str | bytes, said: str
) -> None:
    (tmp_path / "mine").mkdir()
    raw = source if isinstance(source, bytes) else source.encode()
    (tmp_path / "mine/local.sh.j2").write_bytes(raw)
    outcome = run("render", spec(), "--target", "local", "--stdout", "--templates", "mine")
    assert outcome.code == 74
    assert outcome.err.startswith(said)
