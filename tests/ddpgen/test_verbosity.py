"""-v and -q: which messages stderr gets, on both sides of a command's name, and that a bug's report has all of them."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpgen import job
from ddpgen.cli.verbosity import begin, without_secrets
from tests.ddpgen.conftest import GPT, Run
from tests.ddpgen.programs import Programs

Spec = Callable[..., Path]
WARNED = GPT.replace("procs_per_node: 2", "procs_per_node: 3")
SLURM = GPT + "env: {NOTE: spoken-word-77}\ntargets:\n  slurm: {}\n"
TOKEN = "abcdef0123456789"
HUB_TOKEN = "hf_0123456789"  # in no variable; its form gives it away


def debug(err: str) -> list[str]:
    """The lines of -v."""
    return [line.removeprefix("debug: ") for line in err.splitlines() if line.startswith("debug: ")]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    programs = Programs(tmp_path, monkeypatch, "sbatch", "squeue", "sacct", "scontrol", "scancel")
    programs.answers("test", "0\nsbatch: Job 1 to start at noon\n")
    programs.answers("sbatch", "0\n4711\n")
    return programs


def test_quiet_keeps_the_result_and_neither_warning_nor_hint(run: Run, spec: Spec) -> None:
    spec(WARNED)
    words = ("render", "job.yaml", "--target", "local")
    assert run(*words, "-q") == run("-q", *words) == (0, "build/gpt\n", "")
    usual = run(*words).err
    assert "warning: procs_per_node" in usual
    assert "\nunchanged: build/gpt (" in usual
    assert "\nnext: bash build/gpt/local.sh\n" in usual
    assert not debug(usual)


def test_quiet_keeps_errors_and_their_exit_codes(run: Run, spec: Spec) -> None:
    spec(GPT + "nodes: yes\n")
    refused = run("-q", "validate", "job.yaml")
    assert refused == run("validate", "job.yaml")
    assert refused.code == 65


@pytest.mark.parametrize(
    "words", [("-v", "validate"), ("validate", "-v"), ("-v", "validate", "-v")]
)
def test_verbose_goes_before_the_command_and_after_it(
    run: Run, spec: Spec, words: tuple[str, ...]
) -> None:
    spec()
    assert run(*words, "job.yaml") == (
        0, "job.yaml: valid for local\n", "debug: read job.yaml: a spec for local\n"
    )  # fmt: skip
    assert run("validate", "job.yaml").err == ""  # the next command begins with the default


@pytest.mark.parametrize("words", [("-v", "validate", "-q"), ("validate", "-q", "-v")])
def test_verbose_and_quiet_do_not_go_together(run: Run, spec: Spec, words: tuple[str, ...]) -> None:
    refused = run(*words, spec())
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.endswith("Error: give -v or -q, not both.\n")


def test_words_of_the_job_are_no_options_of_ours(
    run: Run, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "write_bundle", lambda *_: pytest.exit("written"))
    refused = run("launch", spec(), "--target=all", "--", "-q", "-v")
    assert "it takes one tier" in refused.err


def test_verbose_shows_each_program_as_a_user_would_type_it(
    run: Run, spec: Spec, slurm: Programs
) -> None:
    spec(SLURM)
    launched = run("launch", "job.yaml", "--target=slurm", "-v")
    assert (launched.code, launched.out) == (0, "4711\n")
    lines = debug(launched.err)
    (test,) = [line for line in lines if "sbatch --test-only" in line]
    number, _, command = test.partition(" + ")
    assert f"\n+ {command}\n" in launched.err
    assert command.startswith("(cd build/.submitted/gpt-")
    (end,) = [line for line in lines if line.startswith(f"{number} exit code ")]
    assert re.fullmatch(r".* exit code 0 after \d+\.\d\d s", end)
    assert any(line.startswith("wrote build/gpt.launched.json") for line in lines)
    slurm.answers("scontrol", "1\nslurm_load_jobs error: Invalid job id specified\n")
    slurm.answers("sacct", "1\nSlurm accounting storage is disabled\n")
    lines = debug(run("-v", "status", "job.yaml", "--target=slurm").err)
    (asked,) = [line for line in lines if " + scontrol show job " in line]
    assert asked.partition(" + ")[0] + " exit code 1 after " in "\n".join(lines)
    assert "tier slurm, launched as 4711" in lines


def test_quiet_shows_the_words_of_sbatch_only_if_it_refuses(
    run: Run, spec: Spec, slurm: Programs
) -> None:
    spec(SLURM)
    assert run("launch", "job.yaml", "--target=slurm", "-q") == (0, "4711\n", "")
    slurm.answers("test", "1\nsbatch: error: no partition\n")
    refused = run("launch", "job.yaml", "--target=slurm", "-q")
    assert (refused.code, refused.out, refused.err) == (
        69,
        "",
        "sbatch: error: no partition\nsbatch refuses the job; nothing was submitted\n",
    )


def test_a_bug_leaves_the_messages_that_were_not_shown_and_no_secret(
    run: Run, spec: Spec, slurm: Programs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise KeyError(f"oops {TOKEN}")

    monkeypatch.setattr("ddpgen.monitor.record.write_launch", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MY_API_KEY", TOKEN)
    spec(SLURM)
    words = ("launch", "job.yaml", "--target=slurm", "--", f"--key={TOKEN}", f"--hub={HUB_TOKEN}")
    assert run("-q", *words).code == 70
    log = (tmp_path / "ddpgen" / "error.log").read_text()
    head, _, rest = log.partition("\n\n")
    assert head.endswith(
        "\nddpgen -q launch job.yaml --target=slurm -- --key=$MY_API_KEY --hub=***"
    )
    shown, _, traceback = rest.partition("\n\n")
    assert shown.startswith("debug: read job.yaml: a spec for ")
    assert "\nwrote build/gpt (" in shown
    assert "sbatch --parsable" in shown
    assert traceback.startswith("Traceback ")
    assert TOKEN not in log
    assert "spoken-word-77" not in log
    verbose = run("-v", *words)
    assert "+ (cd build" in verbose.err
    assert TOKEN not in verbose.err
    assert "spoken-word-77" not in verbose.err


def test_a_secret_that_another_one_begins_with_or_that_a_shell_quotes_is_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdef12")
    monkeypatch.setenv("B_TOKEN", "abcdef1234")
    monkeypatch.setenv("C_TOKEN", "it's 5ecret")
    words = shlex.join(["run", "abcdef1234", "abcdef12", "it's 5ecret"])
    assert without_secrets(words) == "run $B_TOKEN $A_TOKEN $C_TOKEN"


def test_a_secret_of_the_spec_is_masked_whatever_its_name(
    run: Run, spec: Spec, slurm: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB", "plain-words")
    spec(f"{SLURM}secrets: [WANDB]\n")
    shown = run("-v", "launch", "job.yaml", "--target=slurm", "--", "--key=plain-words")
    assert shown.code == 0, shown.err
    assert "--key=$WANDB" in shown.err
    assert "plain-words" not in shown.err


def test_a_debug_line_that_nobody_reads_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    messages = begin()
    messages.shown = logging.DEBUG
    monkeypatch.setattr("click.echo", broken)
    logging.getLogger("ddpgen.test").debug("[1] exit code 0")
    with pytest.raises(BrokenPipeError):
        logging.getLogger("ddpgen.test").info("wrote build/gpt")
