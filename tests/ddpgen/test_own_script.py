"""`train.script`: what a spec may say of it, and the command that its processes run."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ddpgen
from ddpgen.render import Renderer
from ddpgen.spec.rules import RESERVED_VARIABLES
from ddpgen.tiers.registry import TIERS, read
from tests.ddpgen.conftest import HOSTILE, Run, faults

HEAD = "name: mine\ncode: code\ntrain:\n"


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    for name in ("my train.py", "run.sh"):
        (tmp_path / "code" / name).write_text("")


def program(train: str, run: Run) -> list[str]:
    """The words behind `script` in the launch script, each without its quotes."""
    Path("mine.yaml").write_text(HEAD + train)
    done = run("render", "mine.yaml", "--target", "local")
    assert done.code == 0, done
    return rendered_program()


def rendered_program() -> list[str]:
    text = Path("build/mine/local.sh").read_text()
    words = text.partition("\n  script ")[2].partition(' -- "$@"')[0].replace("\\\n", " ")
    return shlex.split(words)


def test_without_a_word_about_it_nothing_is_added(run: Run) -> None:
    assert program("  script: my train.py\n", run) == ["code/my train.py"]


def test_its_launch_script_promises_neither_bits_nor_a_way_on(run: Run) -> None:
    program("  script: my train.py\n", run)
    text = Path("build/mine/local.sh").read_text()
    assert "\n#   bash local.sh [ARG ARG...]   start" in text
    assert " 75 stopped (start it again).\n" in text
    assert " --bits-may-differ -- \\\n" in text


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (
            "  args: {lr: 1e-3, layers: [1, b c], on: 'true', deep: true, run.name: $x}\n",
            ["--deep", "--layers=1", "--layers=b c", "--lr=1e-3", "--on=true", "--run.name=$x"],
        ),
        (
            "  args: {id: 007, n: 1_000, t: 2:00, v: [1.10, 0x10], x: {y: [1.10, 0x10]}, z: [[1.10]]}\n",
            [
                "--id=007",
                "--n=1_000",
                "--t=2:00",
                "--v=1.10",
                "--v=0x10",
                '--x={"y": [1.10, 16]}',
                "--z=[1.10]",
            ],
        ),
        ("  args: {a: false, b: null, c: true, d: 1}\n  args_style: flags\n", ["--c", "--d=1"]),
        (
            "  args: {a: false, b: null, c: true, d: 1}\n  args_style: equals\n",
            ["--a=False", "--b=None", "--c=True", "--d=1"],
        ),
        (
            "  args: {a: false, b: null, c: true, d: 1}\n  args_style: no-prefix\n",
            ["--no-a", "--c", "--d=1"],
        ),
        (
            "  args: [train, +experiment=a, --, 007, '{job}', ' x']\n",
            ["train", "+experiment=a", "{--}", "007", "{job}", " x"],
        ),
    ],
)
def test_arguments(train: str, words: list[str], run: Run) -> None:
    assert program("  script: my train.py\n" + train, run) == ["code/my train.py", *words]


def test_a_number_stays_as_written_wherever_it_comes_from(tmp_path: Path, run: Run) -> None:
    (tmp_path / "team.yaml").write_text("train: {args: {team: 1.10}}\n")
    head = (
        '{"name": "mine", "code": "code", "extends": "team.yaml", "targets": {"local": {"train": '
    )
    (tmp_path / "job.json").write_text(
        f'{head}{{"script": "my train.py", "args": {{"json": 1E-4}}}}}}}}}}'
    )
    run("render", "job.json", "--target", "local", "--set", "train.args.set=0x10")
    words = ["--json=1E-4", "--set=0x10", "--team=1.10"]
    assert rendered_program()[-3:] == words
    train = {"script": "my train.py", "args": {"a": 1e-4, "b": "1e-4", "c": [2.0, True]}}
    ddpgen.load({"name": "mine", "code": "code", "train": train}).render("local")
    assert rendered_program()[-4:] == ["--a=0.0001", "--b=1e-4", "--c=2.0", "--c"]


TEXTS = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
)
NAMES = st.from_regex("[A-Z][A-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in {*RESERVED_VARIABLES, "PATH", "IFS"}
)
ALL_HOSTILE = {f"V{number}": text for number, text in enumerate(HOSTILE)}
# A python3 that shows the variables that it has, and then its arguments.
STUB = """#!/bin/bash
env -0
printf '%s\\0' ---- "$@"
"""


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(TEXTS, max_size=5),
    options=st.dictionaries(NAMES, TEXTS | st.lists(TEXTS, max_size=2), max_size=3),
    env=st.dictionaries(NAMES, TEXTS, max_size=3),
    form=st.sampled_from(["list", "mapping", "command"]),
)
@example(words=HOSTILE, options={}, env=ALL_HOSTILE, form="list")
@example(words=[], options={**ALL_HOSTILE, "LIST": HOSTILE}, env={}, form="mapping")
@example(words=HOSTILE, options={}, env={}, form="command")
def test_any_text_arrives_at_the_supervisor(
    words: list[str], options: dict[str, Any], env: dict[str, str], form: str, tmp_path: Path
) -> None:
    train: dict[str, Any] = {"script": "/t.py", "args": words}
    expected = ["/t.py", *("{--}" if word == "--" else word for word in words)]
    if form == "mapping":
        train["args"] = options
        items = ((n, v if isinstance(v, list) else [v]) for n, v in sorted(options.items()))
        expected = ["/t.py", *(f"--{name}={text}" for name, texts in items for text in texts)]
    elif form == "command":
        train = {"command": ["/t", *words], "resume": "by-itself"}
        expected[0] = "/t"
    # Each odd letter as its number: PyYAML itself would fold some of them.
    spec = yaml.safe_dump({"name": "a", "env": env, "train": train})
    job = read(spec.encode(), "a.yaml")["local"].job
    (tmp_path / "train").mkdir(exist_ok=True)
    (tmp_path / "train" / "__main__.py").touch()
    (tmp_path / "python3").write_text(STUB)
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "local.sh").write_text(TIERS["local"].render(job, Renderer())[0].text)
    done = subprocess.run(
        ["bash", "local.sh"], cwd=tmp_path, capture_output=True, check=True, timeout=30,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "LC_ALL": "C"},
    )  # fmt: skip
    variables, _, arguments = done.stdout.partition(b"\0----\0")
    got = dict(line.split(b"=", 1) for line in variables.split(b"\0"))
    assert {name: got[name.encode()].decode() for name in env} == env
    assert [each.decode() for each in arguments.split(b"\0")][-len(expected) - 2 :] == [
        *expected,
        "--",
        "",
    ]


def test_what_is_said_of_resuming_stopping_and_the_directory(run: Run) -> None:
    train = """\
  script: my train.py
  workdir: runs/a
  resume: {exists: [a.pt, b-*.pt], args: [--init_from=resume]}
  guard: "{checkpoint_dir}/c-*/DONE"
  stop: {signal: USR1, grace: 5min}
"""
    assert program(train, run) == [
        "--workdir=../runs/a",
        "--resume-exists=a.pt",
        "--resume-exists=b-*.pt",
        "--resume-arg=--init_from=resume",
        "--guard={checkpoint_dir}/c-*/DONE",
        "--stop-signal=USR1",
        "--stop-grace=300s",
        "code/my train.py",
    ]
    own = "  script: my train.py\n  workdir: '{checkpoint_dir}/w'\n"
    assert program(own, run)[0] == "--workdir={checkpoint_dir}/w"
    short = "  script: my train.py\n  resume: scratch\n  stop: TERM\n"
    assert program(short, run) == ["--from-scratch", "--stop-signal=TERM", "code/my train.py"]


def test_a_command_is_run_word_for_word(run: Run) -> None:
    text = "  command: [./run.sh, a b, --, 1e3, '{job}']\n  resume: {exists: c.pt, args: --go}\n"
    assert program(text, run) == [
        "--resume-exists=c.pt", "--resume-arg=--go", "--no-python",
        "./run.sh", "a b", "{--}", "1e3", "{job}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "file"),
    [
        ("./run.sh", "run.sh"),
        ("bin/run", "bin/run"),
        ("python", ""),
        ("/opt/x", ""),
        ("~/x", ""),
        ("python3, code/x.py, y.py", "code/x.py"),
        ("~/venv/bin/python3.12, -u, -OO, ./x.py", "x.py"),
        ("python3, /opt/x.py", ""),
        ("python3, '{checkpoint_dir}/x.py'", ""),
        ("python3, -m, x.py", ""),
        ("python3, -W, ignore, x.py", ""),
        ("python3, x", ""),
        ("my-python, x.py", ""),
    ],
)
def test_a_command_may_run_a_file_of_the_job(word: str, file: str) -> None:
    text = f"name: a\ncode: x\ntrain:\n  command: [{word}]\n  resume: by-itself\n"
    assert read(text.encode(), "a.yaml")["local"].job.train.user_file == file


def test_the_script_of_a_command_is_in_code_or_in_a_directory_of_the_hosts() -> None:
    command = "train:\n  command: [python3, code/x.py]\n  resume: by-itself\n"
    (fault,) = faults(f"name: a\n{command}")
    assert fault.where == "3:12 train.command"
    assert "code is not given" in fault.text
    (fault,) = faults(f"name: a\ncode: code\n{command}")
    assert fault.where == "4:12 train.command"
    assert "code/x.py is not in code" in fault.text
    assert not faults(f"name: a\n{command}  workdir: /data/app\n")


@pytest.mark.parametrize(
    ("program", "file"),
    [
        ("script: code/a/t.py", "a/t.py"),
        ("script: python t.py", "t.py"),
        ("command: [./code/t.py], resume: scratch", "t.py"),
        (
            "workload: 'code/t.py:build', steps: 1, global_batch_size: 1, micro_batch_size: 1",
            "t.py",
        ),
    ],
)
def test_the_path_of_a_file_is_the_one_inside_code(program: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "code/a").mkdir()
    for name in ("t.py", "a/t.py"):
        (tmp_path / "code" / name).touch()
    (fault,) = faults(with_train(program))
    assert fault.text.endswith(f"write its path inside code: {file}")


@pytest.mark.parametrize(
    "script", ["/opt/app/train.py", "~/nanoGPT/train.py", "module:torchtitan.train"]
)
def test_a_script_that_is_on_the_hosts_needs_no_code(script: str) -> None:
    job = read(f"name: a\ntrain:\n  script: {script}\n".encode(), "a.yaml")["local"].job
    assert (job.train.script, job.train.user_file) == (script, "")


SIZES = "steps: 1, global_batch_size: 4, micro_batch_size: 1"


REFUSED = [
    ("script: a.py, args: {compile: false}", "3:39 train.args.compile", "no-prefix"),
    ("script: a.py, args: {name: [a, null]}", "3:36 train.args.name", "null"),
    ("script: a.py, steps: 5", "3:30 train.steps", "loop"),
    ("script: a.py, resume: {args: x}", "3:38 train.resume.args", "exists"),
    ("script: a.py, resume: {begin: scratch, exists: x}", "3:56 train.resume.exists", "scratch"),
    ("script: a.py, resume: by-itself", "3:31 train.resume", "command"),
    ("command: ['', x], resume: by-itself", "3:19 train.command[0]", "no program"),
    ("command: [A=1, ./a.sh], resume: by-itself", "3:19 train.command[0]", "env: {A: 1}"),
    ("command: [cd, x], resume: by-itself", "3:19 train.command[0]", "shell"),
    ("script: a.py, args: {name: null}", "3:36 train.args.name", "no-prefix leaves it out"),
    ("script: a.py, guard: DONE", "3:30 train.guard", "fit"),
    ("script: a.py, guard: ../../*/DONE", "3:30 train.guard", "fit"),
    ("script: a.py, guard: a/../../b/DONE", "3:30 train.guard", "fit"),
    ("script: a.py, guard: a/..", "3:30 train.guard", "fit"),
    ("script: a.py, guard: /data/*/DONE", "3:30 train.guard", "fit"),
    ("script: a.py, guard: ~/out/*/DONE", "3:30 train.guard", "fit"),
    ("script: a.py, resume: {exists: ../x}", "3:40 train.resume.exists", "fit"),
    ("script: a.sh", "3:17 train.script", ".py"),
    (f"workload: toy, {SIZES}, stop: USR1", "3:83 train.stop", "script"),
    (f"workload: toy, {SIZES}, args: [a]", "3:83 train.args", "mapping"),
    ("script: a.py, command: [./a.sh]", "3:32 train.command", "both"),
    ("command: ./a.sh --lr 1, resume: by-itself", "3:18 train.command", "spaces"),
    ("command: ['/bin/sh -c', x], resume: scratch", "3:18 train.command", "spaces"),
    ("command: [./a.sh], args: [x], resume: by-itself", "3:34 train.args", "command"),
    (
        "command: [a], resume: {begin: by-itself, exists: x}",
        "3:58 train.resume.exists",
        "by-itself",
    ),
    ("command: [./a.sh]", "3:18 train.command", "saves"),
]


def with_train(train: str) -> str:
    return f"name: mine\ncode: code\ntrain: {{{train}}}\n"


@pytest.mark.parametrize(("train", "where", "word"), REFUSED)
def test_what_cannot_be_meant_is_refused(train: str, where: str, word: str) -> None:
    (fault,) = faults(with_train(train))
    assert fault.where == where
    assert word in fault.text
