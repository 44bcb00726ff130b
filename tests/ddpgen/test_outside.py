"""A job names files that are not in its `code`, so that no process of the job finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ddpgen.conftest import GPT, Fault, findings

SCRIPT = "name: a\ncode: code\ntrain: {{script: inner.py, {}}}\n"
COMMAND = "name: a\ncode: code\ntrain: {{command: [cat, {}], resume: by-itself}}\n"
SLURM = GPT + "code: code\ntargets: {{slurm: {{setup: {}}}}}\n"
ACTIVATE = GPT + "python: {{activate: {}}}\n"
# The spec, the field, a word of the finding.
NOT_THERE = [
    ("name: a\ncode: code\ntrain: {script: near.py}\n", "code", "beside the spec is not in code"),
    (SCRIPT.format("args: {config: conf/a.yaml}"), "train.args.config", "add it to code"),
    (SCRIPT.format("args: [--config, ./code/sub/b.yaml]"), "train.args[1]", "write sub/b.yaml"),
    (SCRIPT.format("args: [--config=conf/a.yaml]"), "train.args[0]", "not in code (code)"),
    (COMMAND.format("conf/a.yaml"), "train.command[1]", "on the hosts"),
    (SLURM.format("pip install -r sub/b.yaml"), "targets.slurm.setup", "write code/sub/b.yaml"),
    (SLURM.format("['true', 'cat conf/a.yaml']"), "targets.slurm.setup[1]", "not in the bundle"),
    (ACTIVATE.format("source conf/a.yaml"), "python.activate", "another file, or none"),
    ("name: a\ncode: lone.py\ntrain: {script: lone.py}\n", "code", "imports inner"),
    ("name: a\ncode: reads.py\ntrain: {script: reads.py}\n", "code", "reads.py:1 opens conf/a.yaml"),
    (SCRIPT.format("args: {deepspeed: conf/ds.json}"), "train.args.deepspeed", "add it to code"),
    (SCRIPT.format("args: [--config=conf/ds.json]"), "train.args[0]", "add it to code"),
    (SCRIPT.format("args: [--deepspeed, conf/ds.json]"), "train.args[1]", "add it to code"),
]  # fmt: skip
THERE = [
    SCRIPT.format("args: {config: sub/b.yaml, out: conf, other: /conf/a.yaml, name: '{job}/a.yaml'}"),
    SCRIPT.format("args: {config: conf/a.yaml}, workdir: /work"),
    SCRIPT.format("args: {metrics: conf/ds.json}"),
    SCRIPT.format("args: [--dump_config, conf/ds.json]"),
    SCRIPT.format("args: [--save-to=conf/a.yaml]"),
    "name: a\ncode: twice.py\ntrain: {script: twice.py}\n",
    "name: a\ncode: reads.py\ntrain: {script: reads.py, workdir: /work}\n",
    "name: a\ncode: others.py\ntrain: {script: others.py}\n",
    "name: a\ncode: code\ntrain: {script: tries.py}\n",
    "name: a\ncode: code\ntrain: {script: finds.py}\n",
    "name: a\ncode: code\ntrain: {script: packs.py}\n",
    COMMAND.format("conf/none.yaml"),
    SCRIPT.format("args: {results: conf/a.yaml}"),
    SCRIPT.format("args: {save: conf/model.pt, log: conf/train.log}"),
    SLURM.format("pip install -r code/sub/b.yaml"),
    SLURM.format("['cd /data', 'cat conf/a.yaml']"),
    SLURM.format('"awk $\'{ print \\\\\'x\\\\\' }\' conf/none.yaml"'),
    SLURM.format("pip install -r https://x.org/sub/b.yaml"),
    SLURM.format("pip install -r $HOME/sub/b.yaml"),
    SLURM.format("pip install -r ./code/sub/b.yaml"),
    SLURM.format("echo starting sub/b.yaml"),
    ACTIVATE.format("source /venv/bin/activate"),
    "name: a\ncode: [lone.py, inner.py]\ntrain: {script: lone.py}\n",
]  # fmt: skip


def write(place: Path) -> None:
    """Write the files that the specs name."""
    for name in (
        "conf/a.yaml",
        "code/sub/b.yaml",
        "code/inner.py",
        "lone.py",
        "inner.py",
        "conf/model.pt",
        "conf/train.log",
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("import inner, torch\n")
    (place / "beside.py").touch()
    (place / "code/near.py").write_text("import beside, inner, torch\n")
    (place / "yaml.py").touch()
    (place / "code/packs.py").write_text("import yaml\n")
    (place / "code/tries.py").write_text("try:\n    import beside\nexcept ImportError: pass\n")
    (place / "code/finds.py").write_text("import sys\nsys.path.append(x)\nimport beside\n")
    (place / "conf/ds.json").touch()
    (place / "reads.py").write_text("exec(open('./conf/a.yaml').read())\n")
    (place / "twice.py").write_text(
        "f = exists('conf/a.yaml')\nif f: open('conf/a.yaml')\nopen('../x')\n"
    )
    others = "open('conf/a.yaml', 'w'), open('/conf/a.yaml'), open('none.yaml'), open(x), f.open('conf/a.yaml')"
    (place / "others.py").write_text(f"{others}\nopen('conf/a.yaml', **how)\n")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)


def told(spec: str) -> list[Fault]:
    """Return the findings of a spec about its files."""
    words = ("not in code", "not in the bundle", "another file")
    return [Fault.of(each) for each in findings(spec) if any(w in each.problem for w in words)]


@pytest.mark.parametrize(("spec", "field", "word"), NOT_THERE)
def test_a_file_outside_of_code_does_not_travel(spec: str, field: str, word: str) -> None:
    (fault,) = told(spec)
    assert fault.where.partition(" ")[2] == field
    assert word in fault.text


@pytest.mark.parametrize("spec", THERE)
def test_a_file_in_code_or_on_the_hosts_is_there(spec: str) -> None:
    assert told(spec) == []
    assert not [finding for finding in findings(spec) if finding.fatal]


def test_a_module_beside_the_spec_may_be_installed_with_its_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    assert told("name: a\ncode: code\ntrain: {script: near.py}\n") == []
