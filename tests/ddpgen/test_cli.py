"""The command line: what it prints where, what it exits with, and that its examples run."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml

from ddpgen import __version__, errors, job, programs
from ddpgen.cli import cli
from ddpgen.cli.shared import GROUPS
from ddpgen.cli.validation import Validation, github_annotations
from ddpgen.errors import Finding, Position, SpecInvalidError
from tests.ddpgen.conftest import GPT, ROOT, Run, ddpgen

Spec = Callable[..., Path]
COMMANDS = sorted(cli.commands)


def example(command: click.Command) -> str:
    """The command line that the help of a command shows."""
    lines = [line.strip() for line in (command.help or "").splitlines()]
    return lines[lines.index("Example:") + 1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str, run: Run) -> None:
    outcome = run(name, "--help")
    assert outcome.code == 0
    assert f"ddpgen {name}" in (ROOT / "docs" / "cli.md").read_text()
    assert example(cli.commands[name]).replace('"$(', "").startswith(("ddpgen", "eval"))


# These train, measure, compare what was trained, or ask a cluster: other tests run them for real.
OTHERS_RUN = ("launch", "probe", "bench", "diff", "reproduce", "verify", "site")


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in OTHERS_RUN])
def test_the_example_in_the_help_runs(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    ended(tmp_path / "checkpoints" / "gpt", "done")
    ended(tmp_path / "build" / "checkpoints" / "gpt", "done")
    (tmp_path / "build" / "checkpoints" / "gpt" / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "train.sbatch").write_text("#SBATCH -N 2\nsrun torchrun train.py\n")
    line = example(cli.commands[name]).replace("ddpgen ", f"{sys.executable} -m ddpgen ", 1)
    subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )


def test_the_training_module_is_found_where_python_takes_safe_paths_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "${PYTHONSAFEPATH-none} $PWD"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("DDPGEN_CALLED_AS", "ddpgen verify")
    assert programs.output_of_module("verify", tmp_path, []) == (0, f"none {ROOT}\n")


def test_a_probe_without_figures_ends_as_its_launch_did(run: Run, spec: Spec) -> None:
    probed = run("probe", spec(GPT + "python: /no/python\n"), "--target=local", "--json")
    assert (probed.code, probed.out) == (69, "")
    assert "probe.json" not in probed.err


def test_figures_for_programs_are_all_that_stands_on_standard_output(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    figures = tmp_path / "build/checkpoints/gpt-probe/probe.json"
    python.write_text(
        f"#!/bin/sh\necho a table\nmkdir -p {figures.parent}\necho '{{\"a\": 1}}' >{figures}\n"
    )
    python.chmod(0o755)
    spec(f"{GPT}python: {python}\n")
    probed = run("probe", "job.yaml", "--target=local", "--json")
    assert (probed.code, probed.out) == (0, '{"a": 1}\n'), probed.err
    assert "a table\n" in probed.err
    assert run("probe", "job.yaml", "--target=local").out == "a table\n"


@pytest.mark.parametrize("command", ["render", "launch", "plan", "validate", "status", "predict"])
def test_an_unknown_tier_is_a_wrong_argument(command: str, run: Run, spec: Spec) -> None:
    outcome = run(command, spec(), "--target", "cloud")
    assert (outcome.code, "write one of local, hosts, slurm, sky" in outcome.err) == (2, True)


def ended(directory: Path, word: str) -> None:
    """A checkpoint directory whose job has ended so."""
    directory.mkdir(parents=True)
    (directory / "status").write_text(f"{word} abc 7\n")


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [("done", 0, "is done, at step 7."), ("failed", 1, "has failed, at step 7.")],
)
def test_doctor_is_the_training_modules_own_and_passes_its_code_on(
    tmp_path: Path, word: str, code: int, says: str
) -> None:
    ended(tmp_path / "-odd name", word)
    (tmp_path / "train").mkdir()  # the user's own, which must not come first
    (tmp_path / "train" / "__init__.py").write_text("raise SystemExit(77)")
    done = ddpgen("doctor", "--", "-odd name", cwd=tmp_path)
    assert (done.returncode, says in done.stdout) == (code, True)
    assert done.stderr == ""  # it starts nothing that would have to be echoed


def test_the_training_module_complains_under_the_name_it_was_called_by(tmp_path: Path) -> None:
    (tmp_path / "preflight.json").write_text("{}")
    done = ddpgen("report", ".", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"ddpgen report: {tmp_path}/metrics.jsonl: No such file")
    assert done.stderr.endswith("no step is on record yet\n")


def test_the_help_lists_each_command_once_in_a_group_and_cuts_no_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(cli.commands)
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = [" ".join(line.split()) for line in lines]
    for name, command in cli.commands.items():
        assert f"{name} {str(command.help).partition('.')[0]}." in shown


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"ddpgen {__version__}\n", "")


def test_validate_says_for_what(run: Run, spec: Spec) -> None:
    assert run("validate", spec()).out.endswith("job.yaml: valid for local\n")


def test_validate_takes_several_specs_and_the_first_error_decides(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    spec()
    (tmp_path / "bad.yaml").write_text(GPT + "nodes: yes\n")
    outcome = run("validate", "job.yaml", "bad.yaml", "none.yaml")
    assert (outcome.code, outcome.out) == (65, "job.yaml: valid for local\n")
    assert [line.partition(":")[0] for line in outcome.err.splitlines()] == [
        "bad.yaml",
        "none.yaml",
    ]
    assert run("validate", "none.yaml", "bad.yaml").code == 66


def test_validate_strict_counts_warnings_as_errors(run: Run, spec: Spec) -> None:
    spec(GPT + "env: {HF_TOKEN: hf_0123456789}\n")
    warned = run("validate", "job.yaml")
    assert (warned.code, "warning: env.HF_TOKEN: " in warned.err) == (0, True)
    strict = run("validate", "--strict", "job.yaml")
    assert (strict.code, strict.out) == (65, "")
    assert ": env.HF_TOKEN: " in strict.err
    assert "warning" not in strict.err


def test_validate_reads_the_standard_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddpgen", "validate", "-"]
    given = GPT + "nodes: yes\n"
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, cwd=tmp_path, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr.startswith("-:8:8: nodes: ")) == (65, True)


def test_the_standard_input_is_one_spec(run: Run) -> None:
    assert run("validate", "-", "-").code == 2
    assert run("lock", "-").code == 2


def test_validate_prints_json_and_annotations(run: Run, spec: Spec) -> None:
    spec(GPT + "nodes: yes\n")
    told = run("validate", "--json", "job.yaml", "none.yaml")
    first, second = json.loads(told.out)
    finding = first.pop("findings")[0]
    assert first == {"spec": "job.yaml", "valid": False, "tiers": [], "error": ""}
    assert (finding["file"], finding["line"], finding["column"]) == ("job.yaml", 8, 8)
    assert (finding["severity"], finding["field"]) == ("error", "nodes")
    assert (second["findings"], "none.yaml" in second["error"]) == ([], True)
    assert (told.code, told.err) == (65, "")
    lines = run("validate", "--format", "github", "job.yaml", "none.yaml").out.splitlines()
    assert lines[0].startswith("::error file=job.yaml,line=8,col=8,title=nodes::")
    assert lines[1].startswith("::error file=none.yaml::none.yaml: ")
    assert run("validate", "--json", "--format", "github", "job.yaml").code == 2


def test_an_annotation_escapes_what_github_would_read() -> None:
    finding = Finding(Position(1, 2), "a,b:c", "50% of\nit", "no: yes")
    result = Validation("job.yaml", (), (finding,), SpecInvalidError("job.yaml", [finding]))
    line = "::error file=job.yaml,line=1,col=2,title=a%2Cb%3Ac::50%25 of%0Ait; no: yes"
    assert list(github_annotations(result)) == [line]
    doubt = Validation("job.yaml", ("local",), (finding._replace(fatal=False),), None)
    assert list(github_annotations(doubt)) == [line.replace("::error", "::warning")]


def test_the_hook_for_pre_commit_names_the_command() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"].split()[1] in cli.commands


def test_findings_go_to_stderr_and_the_code_is_65(run: Run, spec: Spec) -> None:
    spec(GPT + "nodes: yes\n")
    refused = run("validate", "job.yaml")
    assert (refused.code, refused.out, refused.err.count("\n")) == (65, "", 1)
    assert refused.err.startswith("job.yaml:8:8: nodes: ")
    endless = run("validate", "/dev/zero")
    assert (endless.code, "1 MiB" in endless.err) == (65, True)


def test_a_code_to_ignore_has_to_exist(run: Run, spec: Spec) -> None:
    wrong = run("validate", spec(GPT + "preflight: {ignore: [NIC080]}\n"))
    assert wrong.code == 65
    assert ": preflight.ignore: there is no code NIC080; " in wrong.err
    assert run("validate", spec(GPT + "preflight: {ignore: [NIC008, LINK001]}\n")).code == 0


def test_a_warning_does_not_stop_a_render(run: Run, spec: Spec) -> None:
    spec(GPT.replace("procs_per_node: 2", "procs_per_node: 3"))
    outcome = run("render", "job.yaml", "--target", "local")
    assert (outcome.code, outcome.out) == (0, "build/gpt\n")
    assert outcome.err.startswith("job.yaml:2:17: warning: procs_per_node: ")


def test_several_nodes_are_no_fault_of_a_spec_but_local_is_one_machine(
    run: Run, spec: Spec
) -> None:
    spec(GPT.replace("procs_per_node", "nodes") + "targets: {slurm: {}}\n")
    refused = run("render", "job.yaml", "--target", "local")
    assert refused.code == 69
    assert "no targets.local, " in refused.err
    assert "targets: {local: {nodes: 1}}" in refused.err
    spec(GPT.replace("procs_per_node", "nodes") + "targets: {slurm: {}, local: {}}\n")
    refused = run("render", "job.yaml", "--target", "local")
    assert refused.code == 65
    assert refused.err.startswith("job.yaml:2:8: nodes: local ")


def test_a_tier_that_is_not_there_is_refused(run: Run, spec: Spec) -> None:
    refused = run("render", spec(), "--target", "kubernetes")
    assert (refused.code, refused.out) == (2, "")
    assert "kubernetes" in refused.err
    assert "local, hosts, slurm, sky" in refused.err


@pytest.mark.parametrize(
    ("path", "said"),
    [("missing.yaml", "missing.yaml: No such file"), (".", ".: Is a directory; ")],
)
def test_a_spec_that_cannot_be_read_is_66(run: Run, path: str, said: str) -> None:
    refused = run("validate", path)
    assert (refused.code, refused.out) == (66, "")
    assert refused.err.startswith(said)


def test_a_spec_may_come_through_a_pipe(spec: Spec, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = spec().read_text()
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=[text], daemon=True)
    writer.start()
    done = ddpgen("validate", "pipe", cwd=tmp_path)
    assert (done.returncode, "valid for local" in done.stdout) == (0, True), done.stderr


def test_a_terminal_that_cannot_show_everything_is_no_reason_to_end(
    spec: Spec, tmp_path: Path
) -> None:
    spec(GPT + "env: {A: é}\n漢: 1\n")
    done = ddpgen("validate", "job.yaml", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert done.returncode == 65
    assert done.stderr.startswith(r"job.yaml:9:1: \u6f22: unknown key")


def test_a_wrong_command_line_is_2(run: Run) -> None:
    outcome = run("render", "job.yaml")
    assert outcome.code == 2
    assert "Missing option '--target'" in outcome.err


def test_stdout_gets_the_artefact_and_nothing_is_written(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    outcome = run("render", spec(), "--target", "local", "--stdout")
    assert outcome.out.startswith("#!/usr/bin/env bash\n")
    assert outcome.err == ""
    assert os.listdir(tmp_path) == ["job.yaml"]


@pytest.mark.parametrize(
    ("output", "typed"), [("it's here", "it's here/local.sh"), ("-x", "./-x/local.sh")]
)
def test_what_to_type_next_can_be_typed(run: Run, spec: Spec, output: str, typed: str) -> None:
    outcome = run("render", spec(), "--target", "local", f"--output={output}")
    next_line = outcome.err.splitlines()[-1]
    assert next_line.startswith("next: ")
    assert shlex.split(next_line)[1:] == ["bash", typed]


def test_a_bug_is_called_one_and_its_report_is_written(
    run: Run, spec: Spec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(job, "load", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    outcome = run("validate", spec())
    log = tmp_path / "ddpgen" / "error.log"
    bug = f"this is a bug in ddpgen {__version__}"
    assert outcome.code == 70
    assert outcome.err.startswith(bug)
    assert ": KeyError: 'oops'\n" in outcome.err
    assert outcome.err.endswith(f" {log}\n")
    lines = log.read_text().splitlines()
    assert lines[0].startswith(f"ddpgen {__version__}, Python 3.")
    assert lines[1] == f"ddpgen validate {tmp_path}/job.yaml"
    assert lines[-1] == "KeyError: 'oops'"
    monkeypatch.setenv("XDG_CACHE_HOME", str(log))
    outcome = run("validate", spec())
    assert outcome.err.startswith(bug)
    assert ":\nddpgen " in outcome.err
    assert outcome.err.endswith("KeyError: 'oops'\n\n")


def test_launch_renders_echoes_the_command_and_becomes_it(
    run: Run, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []

    def execvp(program: str, argv: list[str]) -> None:
        became.append(argv)
        raise SystemExit(75)

    monkeypatch.setattr(programs.os, "execvp", execvp)
    outcome = run("launch", spec(), "--target", "local", "--", "--steps=5", "a b")
    assert outcome.code == 75
    assert became == [["bash", "build/gpt/local.sh", "--steps=5", "a b"]]
    assert outcome.err.splitlines()[-1] == "+ bash build/gpt/local.sh --steps=5 'a b'"


def test_a_dry_run_shows_files_and_commands_and_does_nothing(
    run: Run, spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPGEN_SSH", "/bin/false")
    (tmp_path / "my.py").write_text("")
    hosts = "hosts: [{name: a}, {name: b, ssh: me@b, dir: /data}, spare], spares: 1"
    spec(f"{GPT}code: my.py\ntargets:\n  local: {{}}\n  hosts: {{{hosts}, ssh_options: [-4]}}\n")
    before = sorted(tmp_path.rglob("*"))
    local = run("launch", "job.yaml", "--target", "local", "--dry-run", "--", "--steps=5", "a b")
    assert local.code == 0, local.err
    assert local.err.endswith("nothing was written, sent or started\n")
    first, *files, command = local.out.splitlines()
    assert first.startswith("build/gpt: ")
    assert first.endswith(", to be written")
    assert files[:3] == ["  bundle.json", "  code/my.py", "  local.sh"]
    assert re.fullmatch(r"  train/ \(\d+ files of ddpgen; -v names them\)", files[3])
    assert command == "+ bash build/gpt/local.sh --steps=5 'a b'"
    assert "debug:   train/__main__.py\n" in run(
        "-v", "launch", "job.yaml", "--target", "local", "--dry-run"
    ).err  # fmt: skip
    there = run("launch", "job.yaml", "--target", "hosts", "--dry-run", "-o", "out", "--", "--x=1")
    assert there.out.splitlines()[-5:] == [
        "+ bash out/hosts/run.sh --x=1",
        "send out to a:ddpgen/gpt",
        "+ /bin/false -4 a 'cd ddpgen/gpt && bash hosts/a.sh --x=1'",
        "send out to me@b:/data/gpt",
        "+ /bin/false -4 me@b 'cd /data/gpt && bash hosts/b.sh --x=1'",
    ]
    assert "  hosts/a.sh\n" in there.out
    assert sorted(tmp_path.rglob("*")) == before
    # A file that the launch would refuse to lose is refused now.
    run("render", "job.yaml", "--target", "local")
    (tmp_path / "build/gpt/local.sh").write_text("")
    edited = run("launch", "job.yaml", "--target", "local", "--dry-run")
    assert (edited.code, "edited by hand" in edited.err) == (73, True), edited.err
    forced = run("launch", "job.yaml", "--target", "local", "--dry-run", "--force")
    assert (forced.code, (tmp_path / "build/gpt/local.sh").read_text()) == (0, "")


def test_launch_exits_with_the_code_of_the_job(spec: Spec, tmp_path: Path) -> None:
    spec(GPT + "python: no-such-python\n")
    done = ddpgen("launch", "job.yaml", "--target", "local", cwd=tmp_path)
    assert done.returncode == 69
    assert "+ bash build/gpt/local.sh\nddpgen: " in done.stderr
    assert "no-such-python" in done.stderr


def test_init_writes_a_spec_that_validates_and_overwrites_none(run: Run, tmp_path: Path) -> None:
    flags = ("--name", "demo", "--workload", "toy", "--procs", "3", "--steps", "20", "-o", "d.yaml")
    outcome = run("init", *flags)
    assert outcome == (0, "d.yaml\n", "next: ddpgen launch d.yaml --target local\n")
    written = yaml.safe_load((tmp_path / "d.yaml").read_text())
    assert (written["name"], written["procs_per_node"]) == ("demo", 3)
    assert run("validate", "d.yaml").code == 0
    refused = run("init", *flags)
    assert (refused.code, refused.out) == (73, "")
    assert refused.err.startswith("d.yaml exists already; ")


@pytest.mark.parametrize("name", ["it's", "a\nb: c", "-x", "$(touch pwned)", ""])
def test_init_refuses_answers_that_no_spec_may_hold(run: Run, name: str, tmp_path: Path) -> None:
    outcome = run("init", "--name", name)
    assert outcome.code == 2
    assert outcome.err.startswith("--name: ")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("procs", [1, 2, 3, 5, 8])
def test_what_init_writes_calls_for_no_warning(run: Run, procs: int) -> None:
    assert run("init", "--procs", procs, "-o", "it's.yaml").err == (
        """next: ddpgen launch 'it'"'"'s.yaml' --target local\n"""
    )
    outcome = run("validate", "it's.yaml")
    assert (outcome.code, outcome.err) == (0, "")


def test_init_says_which_file_is_still_to_be_written(run: Run, tmp_path: Path) -> None:
    outcome = run("init", "--workload", "mine.py:build")
    assert outcome.code == 0
    create, launch = outcome.err.splitlines()
    assert create.startswith("next: create mine.py ")
    assert "build()" in create
    assert launch.startswith("next: ddpgen launch")
    (tmp_path / "mine.py").write_text("def build(context): ...")
    assert run("validate", "job.yaml").code == 0


def test_init_asks_nothing_with_yes(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    assert run("init", "--yes", "--steps", "7", "-o", str(file)).code == 0
    written = yaml.safe_load(file.read_text())
    assert (written["name"], written["train"]["steps"]) == ("my-job", 7)


def test_init_refuses_wrong_options_before_it_asks(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "ddpgen", "init", "--name", "it's", "--workload", "gtp"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=slave,
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(master)
    os.close(slave)
    assert done.returncode == 2
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [
        "--name",
        "--workload",
    ]


def test_init_asks_on_a_terminal(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpgen", "init", "-o", "asked.yaml"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=slave,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.write(master, b"it's\nasked\ntoy\n0\n-1\n\n50\n")
    assert process.wait(60) == 0
    os.close(master)
    os.close(slave)
    written = yaml.safe_load((tmp_path / "asked.yaml").read_text())
    assert (written["name"], written["procs_per_node"], written["train"]["steps"]) == (
        "asked",
        2,
        50,
    )


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # before the first word: the command's write fails, always
    done = subprocess.run(
        [sys.executable, "-m", "ddpgen", "schema"], stdout=writing, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        (">/dev/full", 74, "No space left on device\n"),
        (">&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
        ("--target=sky 2>/dev/full", 69, ""),
    ],
)
def test_an_output_that_cannot_be_written_is_no_bug(
    spec: Spec, tmp_path: Path, redirected: str, code: int, said: str
) -> None:
    spec()
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ddpgen validate job.yaml {redirected}"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.endswith(said) if said else not done.stderr


def test_the_documented_exit_codes_are_the_ones_of_the_errors() -> None:
    table = (ROOT / "docs" / "cli.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    family = errors.DdpgenError.__subclasses__()
    assert documented == {error.exit_code for error in family} | {0, 1, 2, 75, 130}


@pytest.mark.parametrize("option", ["--steps=50", "--seed=1", "--set-lr=1", "--lr=1e-3"])
def test_an_option_of_the_training_is_not_taken_for_one_of_launch(
    option: str, run: Run, spec: Spec
) -> None:
    outcome = run("launch", spec(), "--target", "local", option)
    assert outcome.code == 2
    assert "behind --" in outcome.err
