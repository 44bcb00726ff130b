"""How a user's own script ends, as the launch script will read it, and how it is stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.train.own_script import ROOT, ForkedJob, Job, wait_for_line
from train.base.errors import EXIT_FAILED
from train.launch.words import NEWEST
from train.run.lock import claim
from train.run.status import Status, read_status, write_status

ARGPARSE = """\
import argparse, train_of_mine
parser = argparse.ArgumentParser(prog="mine")
parser.add_argument("--depth", type=int)
parser.parse_args()
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_stopped_script_says_what_it_was_asked(job: Job) -> None:
    stop = job.home / "ask"
    stop.write_text("preempted: gcp takes this machine back\n")
    assert job.run("raise SystemExit(75)", DDPGEN_STOP_FILE=str(stop))[0] == 0
    assert job.status == job.says("stopped", "preempted: gcp takes this machine back")
    # Who has ended by itself was asked by nobody.
    assert job.run("", DDPGEN_STOP_FILE=str(stop))[0] == 0
    assert job.status == job.says("done")


def test_only_rank_0_says_that_all_is_done(job: Job) -> None:
    assert job.run("", RANK="1", LOCAL_RANK="1")[0] == 0
    assert job.status == job.says("running")


def test_wrong_arguments_are_for_good(job: Job) -> None:
    (job.code / "train_of_mine.py").touch()
    reason = "loop.py refused its arguments (exit code 2); correct train.args"
    code, said = job.run(ARGPARSE, (), "--dept=x", RANK="1")
    assert (code, job.status) == (EXIT_FAILED, job.says("failed", reason))
    assert "invalid int value" in said
    assert f"ddpgen: {reason}\n" in said
    # torchrun starts all of them once more; they see that there is nothing to be done.
    assert job.run("raise SystemExit('ran')") == (0, "")
    assert job.status == job.says("failed", reason)


def test_words_that_are_added_to_go_on_are_named_where_they_are_refused(job: Job) -> None:
    (job.work).mkdir()
    (job.work / "ckpt.pt").touch()
    options = ("--resume-exists=ckpt.pt", "--resume-arg=--resume")
    text = (
        "import argparse; p = argparse.ArgumentParser(); p.add_argument('--resume'); p.parse_args()"
    )
    assert job.run(text, options)[0] == EXIT_FAILED
    assert job.status.reason.startswith("loop.py refused its arguments (exit code 2); ")
    assert "train.resume.args" in job.status.reason


def test_the_newest_checkpoint_is_named_where_the_script_goes_on(job: Job) -> None:
    for name in ("checkpoint-200", "checkpoint-1000", "checkpoint-2000"):
        (job.work / name).mkdir(parents=True)
        (job.work / name / "state.json").touch()
    (job.work / "checkpoint-2000" / "state.json").unlink()
    os.utime(job.work / "checkpoint-1000", (1, 1))
    options = (
        "--resume-exists=checkpoint-*",
        "--resume-exists=last",
        f"--resume-arg=--resume={NEWEST}/x",
        "--guard=checkpoint-*/state.json",
    )
    text = "import sys\nprint(*sys.argv[1:])\n"
    # A rank that looks before rank 0 has moved the torn one away takes the same one.
    for rank in ("1", "0"):
        said = job.run(text, options, "--lr=1", RANK=rank, LOCAL_RANK=rank)[1]
        assert said.splitlines()[-1] == "--lr=1 --resume=checkpoint-1000/x"


def test_of_checkpoints_without_numbers_the_newest_by_time_is_named(job: Job) -> None:
    for name, time in (("a.pt", 2), ("b.pt", 1)):
        job.work.mkdir(exist_ok=True)
        (job.work / name).touch()
        os.utime(job.work / name, (time, time))
    options = ("--resume-exists=*.pt", f"--resume-arg={NEWEST}")
    assert job.run("import sys\nprint(sys.argv[1:])\n", options) == (0, "['a.pt']\n")


def test_a_module_that_refuses_its_arguments_is_named(job: Job) -> None:
    (job.code / "pkg.py").write_text("import sys\nsys.exit(2)\n")
    job.start("module:pkg", "--x").communicate(timeout=60)
    assert job.status.reason.startswith("pkg refused its arguments (exit code 2); ")
    assert "train.resume.args" not in job.status.reason


def test_a_script_that_is_not_there_is_for_good(job: Job) -> None:
    process = job.start("code/mine.py")
    process.communicate(timeout=60)
    assert (process.returncode, job.status.word) == (EXIT_FAILED, "failed")


def test_on_one_of_several_hosts_its_status_is_that_hosts(job: Job) -> None:
    node = job.directory / "nodes" / "laptop"
    node.mkdir(parents=True)
    attempt = claim(node, "mine", os.getpid())
    where = {"DDPGEN_NODE_DIR": str(node), "DDPGEN_ATTEMPT": attempt, "RANK": "3"}
    assert job.run("", LOCAL_RANK="1", **where)[0] == 0
    assert read_status(node) is None
    assert job.run("", LOCAL_RANK="0", **where)[0] == 0
    assert read_status(node) == Status("done", attempt, 0)
    assert job.status == job.says("running")


def test_a_replaced_attempt_ends_and_writes_nothing(job: Job) -> None:
    code, said = job.run("raise SystemExit(3)", DDPGEN_ATTEMPT="older")
    assert (code, job.status) == (0, job.says("running"))
    assert "was replaced" in said


def test_an_exception_is_noted_with_its_line_and_may_be_tried_again(job: Job) -> None:
    text = "def boom():\n    raise ValueError('no\\nsuch')\n\nboom()\n"
    code, said = job.run(text, RANK="3")
    noted = "rank 3: ValueError: no such (loop.py:2 in boom)"
    assert (code, job.status) == (1, job.says("running", noted))
    assert "Traceback" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", "SyntaxError: '(' was never closed"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "import torch\ntorch.ones(1).cuda()\n",
            "this host offers the job no GPU: set gpus_per_node",
        ),
        (
            "import torch\nraise AttributeError(\"module 'torch._C' has no attribute '_cuda_setDevice'\")\n",
            "this host offers the job no GPU: set gpus_per_node",
        ),
        (
            'import torch\nraise RuntimeError("Distributed package doesn\'t have NCCL built in")\n',
            "this host offers the job no GPU: set gpus_per_node",
        ),
    ],
)
def test_what_no_restart_cures_is_not_repeated(tmp_path: Path, text: str, said: str) -> None:
    job = ForkedJob(tmp_path)
    code, output = job.run(text)
    assert (code, job.status.word) == (1, "failed")
    assert said in job.status.reason
    assert "runpy" not in output
    assert "train/script/script.py" not in output
    assert job.run("print('ran')") == (0, "")  # torchrun's restart


def test_the_loss_of_another_process_is_never_the_cause_that_is_final(job: Job) -> None:
    """The crash of the other process is; this one may lose it twice with the same words."""
    lost = "raise RuntimeError('Connection closed by peer')"
    for _ in range(2):
        assert job.run(lost, RANK="1")[0] == EXIT_FAILED
        why = "rank 1: lost a peer: RuntimeError: Connection closed by peer (loop.py:1 in <module>)"
        assert job.status == job.says("running", why)


READS = """\
import gc, types
gc.unfreeze()  # tests/conftest.py has frozen what was imported
modules = {m.__name__: m for m in gc.get_objects() if isinstance(m, types.ModuleType)}
typed, view = modules["train.base.typed"], modules["train.health.view"]
typed._hints.cache_clear()
print(typed.convert(view.Preflight, {"ok": True}) == view.Preflight(True))
"""


def test_what_is_read_while_the_script_runs_has_the_names_of_our_modules(tmp_path: Path) -> None:
    """They are hidden from the script, which may have a module `train` of its own."""
    assert ForkedJob(tmp_path).run(READS) == (0, "True\n")


def test_the_same_crash_before_the_first_step_is_not_tried_a_third_time(job: Job) -> None:
    assert job.run("raise KeyError('data')")[0] == 1
    assert job.status.word == "running"
    assert job.run("raise KeyError('data')")[0] == 1
    twice = "crashed twice in the same way before its first step: KeyError: 'data'"
    assert job.status == job.says("failed", f"{twice} (loop.py:1 in <module>)")


def test_the_same_long_or_coloured_crash_is_known_again(job: Job) -> None:
    text = "raise RuntimeError('x' * 485 + ' \\n\\x1b[31mred, and a page more')"
    assert job.run(text)[0] == 1
    assert job.status.word == "running"
    said = job.run(text)[1]
    assert job.status.reason.startswith("crashed twice in the same way ")
    assert "\x1b" not in job.status.reason
    ours = [line for line in said.split("\n") if line.startswith("ddpgen: ")]
    assert ours
    assert not any("\x1b" in line for line in ours)


def test_a_script_is_done_when_no_rank_has_crashed(job: Job) -> None:
    assert job.run("")[0] == 0
    assert job.run("raise OSError('late')", RANK="1", LOCAL_RANK="1")[0] == 1
    late = job.says("running", "rank 1: OSError: late (loop.py:1 in <module>)")
    assert job.status == late
    # Nor is rank 0 when that has happened since it began; it is when it was before.
    kept = job.directory / "status"
    kept.write_text(job.says("running").line)
    assert job.run(f"open({str(kept)!r}, 'w').write({late.line!r})\n")[0] == 1
    assert job.status == late
    assert job.run("")[0] == 0
    assert job.status == job.says("done")


def test_who_only_loses_a_peer_does_not_hide_the_cause(job: Job) -> None:
    cause = job.says("running", "rank 1: ValueError: the cause")
    loses = "raise RuntimeError('Connection closed by peer [127.0.0.1]')"
    noted = f"open({str(job.directory / 'status')!r}, 'w').write({cause.line!r})\n"
    assert job.run(noted + loses)[0] == 1
    assert job.status == cause
    # Of the next crash it is not the cause.
    code, said = job.run(loses, TORCHELASTIC_RESTART_COUNT="1", TORCHELASTIC_MAX_RESTARTS="3")
    assert (code, job.status.reason[:20]) == (1, "rank 0: lost a peer:")
    assert "restart 1 of 3: a worker had failed: rank 1: ValueError: the cause\n" in said


def test_a_cause_that_is_met_again_is_kept_in_each_restart(job: Job) -> None:
    """It reads the same as the one before, and what follows from it does not take its place."""
    cause = job.says("running", "rank 1: ValueError: the cause")
    write_status(job.directory, cause)
    again = f"""\
import sys
sys.path.append({str(ROOT)!r})
from pathlib import Path
from train.run.status import Status, write_status
write_status(Path({str(job.directory)!r}), {cause!r})
"""
    loses = "raise RuntimeError('Connection closed by peer [127.0.0.1]')"
    restart = {"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}
    assert job.run(again + loses, **restart)[0] == 1
    assert job.status == cause
    # Nor is the job done when another rank ends well.
    assert job.run(again, **restart)[0] == 1
    assert job.status == cause


@pytest.mark.parametrize(
    ("option", "handled", "ends"),
    [
        ("--stop-grace=0.2s", "signal.SIGTERM, lambda *_: sys.exit(0)", True),
        ("--stop-grace=0.2s", "signal.SIGTERM, signal.SIG_IGN", False),
        ("--stop-grace=0.2s", "signal.SIGUSR2, signal.SIG_IGN", False),  # it would die of TERM
        ("--stop-signal=USR1", "signal.SIGUSR1, lambda *_: sys.exit(75)", True),
        ("--stop-signal=INT", "signal.SIGUSR2, signal.SIG_IGN", True),  # KeyboardInterrupt
    ],
)
def test_a_signal_is_sent_to_who_listens(job: Job, option: str, handled: str, ends: bool) -> None:
    text = f"""\
import signal, sys, time
print('here', flush=True)
signal.signal({handled})
for _ in range(60):
    time.sleep(1)
"""
    process = job.begin(text, (option, "--term-grace=30s" if ends else "--term-grace=0.2s"))
    assert wait_for_line(process) == "here"
    (job.directory / "stop").write_text("enough\n")
    said, _ = process.communicate(timeout=50)
    killed = "loop.py did not stop within 0.2 s and is killed; what it has not saved is lost"
    assert (killed in said) is not ends
    assert job.status == job.says("stopped", "enough")
    assert process.returncode == 0


def test_a_crash_after_a_stop_was_asked_for_is_not_started_again(job: Job) -> None:
    (job.directory / "stop").write_text("enough\n")
    assert job.run("print('ran')", (), TORCHELASTIC_RESTART_COUNT="1") == (0, "")
    assert job.status == job.says("stopped", "enough")


def test_what_it_writes_does_not_get_into_the_bundle(job: Job) -> None:
    (job.code / "data").mkdir()
    (job.code / "data" / "words.txt").write_text("abc")
    text = "open('out.txt', 'w').write(open('data/words.txt').read())\nopen('data/new.txt', 'w')\n"
    assert job.run(text)[0] == 0
    assert sorted(path.name for path in job.code.rglob("*")) == ["data", "loop.py", "words.txt"]
    assert (job.work / "out.txt").read_text() == "abc"


def test_the_working_directory_follows_the_code(job: Job, tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (job.code / name).write_text(name)
    text = "import os\nprint(*(open(name).read() for name in ('one.py', 'two.py')))\n"
    assert job.run(text) == (0, "one.py two.py\n")
    (job.work / "two.py").unlink()
    (job.work / "two.py").write_text("the script's own")
    moved = Job(tmp_path / "moved")
    (moved.code / "one.py").write_text("new")
    assert moved.run(text, (f"--workdir={job.work}",)) == (0, "new the script's own\n")
