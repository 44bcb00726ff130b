"""What Slurm's commands say, as they said it (Slurm 22.05), and how long they are asked."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from train.launch.slurm.directory import Directory
from train.launch.slurm.job import (
    Controller,
    JobRecord,
    State,
    environment,
    is_over,
    kill_wait_s,
    lost_nodes,
    state,
)
from train.launch.slurm.step import in_short, is_step, on_each_node, store_of
from train.launch.words import Command

ROOT = Path(__file__).parents[4]
SHOWN = """\
JobId={id} {array}JobName={name}
   UserId=trainer(2000) GroupId=trainer(2000) MCS_label=N/A
   Priority=4294901758 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=02:00:00 TimeMin=N/A
   SubmitTime=2026-11-22T13:04:00 EligibleTime=2026-11-22T19:03:13
   StartTime=2026-11-22T13:05:07 EndTime=2026-11-22T21:03:14 Deadline=N/A
   PreemptEligibleTime=2026-11-22T13:05:07 PreemptTime={preempted}
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Command=/shared/a b/slurm.sbatch Restarts=5 JobState=RUNNING
   WorkDir=/shared
"""
BEFORE, AT, AFTER = (f"2026-11-22T13:05:0{second}" for second in (6, 7, 8))


def shown(state: str = "RUNNING", **more: str) -> str:
    usual = {
        "id": "7",
        "array": "",
        "reason": "None",
        "restarts": "0",
        "preempted": "None",
        "name": "gpt",
    }
    return SHOWN.format(**{**usual, **more, "state": state})


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (shown(), State.RUNNING),
        (shown("COMPLETING"), State.OVER),  # scancel
        (shown("CANCELLED"), State.OVER),
        (shown("COMPLETING", reason="TimeLimit"), State.ENDED),
        (shown("TIMEOUT", reason="TimeLimit"), State.ENDED),
        (shown("COMPLETING", preempted=AFTER), State.ENDED),
        (shown("COMPLETING", preempted=AT), State.ENDED),  # within the second of its start
        (shown("COMPLETING", preempted=BEFORE), State.OVER),  # of an earlier start
        (shown("PREEMPTED", preempted=AFTER), State.ENDED),
        (shown("COMPLETING", restarts="1"), State.REQUEUED),
        (shown("PENDING", restarts="1", reason="BeginTime"), State.REQUEUED),
        (shown("COMPLETING", restarts="1", preempted=AFTER), State.REQUEUED),
        ("", State.UNKNOWN),
        ("slurm_load_jobs error: Unable to contact slurm controller", State.UNKNOWN),
    ],
)
def test_what_slurm_means_to_do_with_the_job(text: str, meant: State) -> None:
    assert state(JobRecord.parse(text, "7"), requeue_count=0) is meant


def test_a_job_of_an_array_is_found_by_its_own_number() -> None:
    array = "ArrayJobId=7 ArrayTaskId={} "
    text = shown(id="8", array=array.format(0)) + shown("PENDING", array=array.format(1))
    first, second = JobRecord.parse(text, "8"), JobRecord.parse(text, "7")
    assert first is not None
    assert second is not None
    assert (first.name, first.index, first.fields["JobState"]) == ("7_0", "0", "RUNNING")
    assert (second.name, second.index, second.fields["JobState"]) == ("7_1", "1", "PENDING")
    assert JobRecord.parse(text, "7_0") == first
    assert JobRecord.parse(text, "9") is None


@pytest.mark.parametrize(
    "name",
    [
        "x JobState=X Restarts=1",
        "JobState=COMPLETED",
        "x ArrayJobId=1 ArrayTaskId=3",
        "x   Command=/y",
    ],
)
def test_the_name_of_a_job_cannot_lie(name: str) -> None:
    parsed = JobRecord.parse(shown(name=name), "7")
    assert parsed is not None
    assert (state(parsed, 0), parsed.name, parsed.index) == (State.RUNNING, "7", "")


@pytest.mark.parametrize(
    ("config", "seconds"),
    [("KillWait                = 30 sec\n", 22), ("KillWait = 12 sec", 6), ("", 22)],
)
def test_there_is_time_for_the_last_act_before_slurm_kills(config: str, seconds: int) -> None:
    assert kill_wait_s(f"SlurmdTimeout = 300 sec\n{config}") == seconds


@pytest.mark.parametrize(
    ("answer", "over"),
    [("RUNNING", False), ("PENDING", False), ("COMPLETING", False), ("RESV_DEL_HOLD", False), ("SOMETHING_NEW", False),
     ("NODE_FAIL", True), ("PREEMPTED", True), ("LAUNCH_FAILED", True), ("COMPLETED", True), ("CANCELLED", True), (None, True), ("", None)],
)  # fmt: skip
def test_no_answer_is_not_the_end_of_a_job(answer: str | None, over: bool | None) -> None:
    assert is_over(answer) is over


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of Slurm that fail as often as the file `fails` has lines, and are counted in `asked`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "fails").write_text("")
    for name in ("scontrol", "squeue"):
        (tmp_path / name).write_text(
            f"#!/bin/bash\ncd {tmp_path}\necho {name} >>asked\n"
            '[ "$(wc -l <asked)" -gt "$(wc -l <fails)" ] || { cat why >&2; exit 1; }\ncat answer\n'
        )
        (tmp_path / name).chmod(0o755)
    (tmp_path / "why").write_text("Unable to contact slurm controller\n")
    return tmp_path


def test_a_controller_that_is_away_for_a_minute_is_asked_again(command: Path) -> None:
    (command / "answer").write_text(shown())
    (command / "fails").write_text("\n" * 3)
    pauses: list[float] = []
    found = Controller("7", pauses.append).show((2, 5, 10, 20))
    assert found is not None
    assert pauses == [0, 2, 5, 10]
    assert found.submitted is not None
    (command / "asked").unlink()
    assert Controller("7", pauses.append).show((1, 1)) is None


def test_a_wait_for_the_controller_is_said_once_and_at_long_intervals(
    command: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (command / "answer").write_text(shown())
    (command / "fails").write_text("\n" * 5)
    (now, pauses) = (0.0, 8)

    def pause(seconds: float) -> None:
        nonlocal now
        now += 100 * seconds

    controller = Controller("7", pause, lambda: now)
    assert controller.show([1] * pauses) is not None
    line = "waiting for Slurm's controller: scontrol show job 7 failed (Unable to contact slurm controller)"
    assert capsys.readouterr().err == f"ddpgen: {line}\n" * 2
    assert controller.requeue() == ("", "")
    (command / "fails").write_text("\n" * 100)
    assert controller.requeue() == ("Unable to contact slurm controller", "")
    assert capsys.readouterr().err == ""  # the caller says why Slurm refuses
    # A command that hangs is said to hang before it has ended.
    (command / "scontrol").write_text("#!/bin/bash\nsleep 0.5\n")
    monkeypatch.setattr("train.launch.slurm.job._SILENCE_S", 0.05)
    assert Controller("7").requeue() == ("", "")
    assert capsys.readouterr().err.endswith("requeue 7 has not answered yet\n")


def test_the_state_of_another_job(command: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pauses: list[float] = []
    controller = Controller("7", pauses.append)
    (command / "answer").write_text("RUNNING\n")
    assert controller.state_of("5") == "RUNNING"
    assert capsys.readouterr().err == ""
    (command / "fails").write_text("\n" * 100)
    assert controller.state_of("5") == ""
    assert (capsys.readouterr().err.count("squeue does not answer"), pauses) == (6, [5] * 6)
    (command / "why").write_text("slurm_load_jobs error: Invalid job id specified\n")
    assert controller.state_of("5") is None


def test_srun_takes_nothing_from_an_allocation_around_sbatch_or_from_the_users_tastes() -> None:
    outer = (
        "SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_GPUS_PER_SOCKET SLURM_TRES_PER_TASK "
        "SLURM_NTASKS SLURM_DISTRIBUTION SLURM_EXCLUSIVE SLURM_CPU_BIND SLURM_CPU_BIND_LIST"
    )
    tastes = (
        "SQUEUE_FORMAT SLURM_TIME_FORMAT SLURM_EXPORT_ENV SRUN_EXPORT_ENV SRUN_CPUS_PER_TASK SLURM_TIMELIMIT "
        "SLURM_STDOUTMODE SLURM_LABELIO SLURMD_DEBUG SLURM_CLUSTERS"
    )
    # They name the job, or belong to the site or the user's code.
    kept_names = (
        "A SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_JOB_NODELIST SLURM_ARRAY_TASK_ID SLURM_CONF SLURMD_NODENAME "
        "SLURM_RESTART_COUNT SLURM_TMPDIR CUDA_VISIBLE_DEVICES"
    )
    kept = dict.fromkeys(kept_names.split(), "x")
    assert environment({**kept, **dict.fromkeys(f"{outer} {tastes}".split(), "y")}) == kept


NODE = """\
NodeName=gpu-a01-x Arch=x86_64 CoresPerSocket=1
   Gres=gpu:toy:4
   NodeAddr=192.168.7.1 NodeHostName=node1 Version=22.05.8
"""


@pytest.mark.parametrize(
    ("node", "address"),
    [("127.0.0.1", "127.0.0.1"), ("gpu-a01-x.invalid", "192.168.7.1")],
)
def test_a_node_whose_name_slurm_alone_knows_has_an_address(
    command: Path, node: str, address: str
) -> None:
    (command / "answer").write_text(NODE)
    assert Controller("7").address_of(node) == address
    (command / "fails").write_text("\n" * 9)
    assert Controller("7").address_of(node) == node


SHOWN_NODES = """\
NodeName=node1 Arch=x86_64 CoresPerSocket=1
   State=ALLOCATED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   BootTime=2026-11-22T08:00:00 SlurmdStartTime=2026-11-22T08:00:07
NodeName=node2 Arch=x86_64 CoresPerSocket=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   BootTime={booted} SlurmdStartTime=2026-11-22T13:09:00
   Reason={reason} [slurm@2026-11-22T13:10:00]
"""
BEGAN = datetime(2026, 11, 22, 13, 5).timestamp()  # noqa: DTZ001 - Slurm writes local times


@pytest.mark.parametrize(
    ("state", "booted", "lost"),
    [
        ("ALLOCATED", "2026-11-22T08:00:00", []),
        ("DOWN*", "2026-11-22T08:00:00", ["node2"]),
        ("IDLE*", "2026-11-22T08:00:00", ["node2"]),
        ("DOWN+NOT_RESPONDING", "None", ["node2"]),  # newer ones
        ("DOWN", "2026-11-22T13:08:00", ["node2"]),  # back after an unexpected reboot
        ("IDLE", "2026-11-22T13:08:00", ["node2"]),
        # By an administrator, or drained after the end.
        ("DOWN", "2026-11-22T08:00:00", []),
        ("IDLE+DRAIN", "None", []),
    ],
)
def test_a_node_is_lost_if_it_is_silent_or_has_booted_meanwhile(
    state: str, booted: str, lost: list[str]
) -> None:
    text = SHOWN_NODES.format(state=state, booted=booted, reason="Not responding")
    assert lost_nodes(text, BEGAN) == lost


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("00:01:00", 60), ("02:00:00", 7200), ("1-00:00:30", 86430), ("UNLIMITED", None), ("", None)],
)
def test_a_jobs_own_limits_are_read_from_what_slurm_says(limit: str, seconds: int | None) -> None:
    of_job = JobRecord.parse(shown().replace("TimeLimit=02:00:00", f"TimeLimit={limit}"), "7")
    assert of_job is not None
    assert (of_job.time_limit_s, of_job.comes_back) == (seconds, True)
    forbidden = JobRecord.parse(shown().replace("Requeue=1", "Requeue=0"), "7")
    assert forbidden is not None
    assert not forbidden.comes_back


@pytest.mark.parametrize(
    ("env", "parent", "step"),
    [
        ({}, "slurmstepd: [7.batch]", False),
        ({"SLURM_TASK_PID": "5"}, "slurmstepd: [7.batch]", False),
        # sbatch hands on the variables of the step that it was called in.
        ({"SLURM_STEP_ID": "0", "SLURM_TASK_PID": "5"}, "slurmstepd: [7.batch]", False),
        ({"SLURM_STEP_ID": "0", "SLURM_TASK_PID": "5"}, "slurmstepd: [7.0]", True),
        ({"SLURM_STEP_ID": "0", "SLURM_TASK_PID": "4"}, "bash", True),
        # salloc's own shell.
        ({"SLURM_STEP_ID": "4294967290", "SLURM_TASK_PID": "4"}, "bash", False),
    ],
)
def test_a_step_is_told_from_a_batch_script(env: dict[str, str], parent: str, step: bool) -> None:
    assert is_step(env, 5, parent) is step


def test_each_task_of_an_array_has_a_store_of_its_own() -> None:
    assert store_of("s3://kept/gpt", "") == "s3://kept/gpt"
    assert store_of("s3://kept/gpt/", "3") == "s3://kept/gpt/3"


def test_the_log_shows_the_command_of_srun() -> None:
    options = argparse.Namespace(inside=[], srun=["--mpi=none"], source="", python="python3")
    command = Command((), ("torchrun",), ("run",), ())
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLURM_CPUS_PER_TASK", "8")
        step = on_each_node(options, command, 2, Path("/b"), Path("/c"))
    assert in_short(step) == (
        "  srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=8 --kill-on-bad-exit=1 --wait=0 --mpi=none \\\n"
        "    bash -c ... -m train supervise slurm-node ..."
    )


def test_a_node_that_refuses_in_the_shell_puts_its_reason_on_file(tmp_path: Path) -> None:
    options = argparse.Namespace(inside=[], srun=[], source="", python="/opt/python")
    directory = Directory(tmp_path, "7", "7", 2)
    command = Command((), ("torchrun",), ("run",), ())
    env = {"DDPGEN_SCHEDULER": directory.scheduler, "SLURMD_NODENAME": "node2", "PATH": "/bin"}
    step = on_each_node(options, command, 2, tmp_path, tmp_path)
    shell = step[step.index("bash") :]
    done = subprocess.run(shell, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 69
    failure = directory.failure()
    assert failure is not None
    assert (failure.code, failure.node) == (69, "node2")
    assert "/opt/python on node2 (PATH=/bin); " in failure.words
    assert done.stderr.endswith(f" node2: {failure.words}\n")
    # Without a checkpoint directory that this node sees, the reason is printed alone.
    shell = [word.replace(str(tmp_path), "/not/here") for word in shell]
    done = subprocess.run(shell, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 69
    assert "node2 does not see /not/here; " in done.stderr.splitlines()[-1]


def test_an_environment_that_unsets_slurms_variables_is_named(tmp_path: Path) -> None:
    words = "-m train supervise slurm --job=a --checkpoint-dir=c -- torchrun -- run --"
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(
        [sys.executable, *words.split()], env={**env, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 69
    assert "SLURM_JOB_ID was set " in done.stderr
    assert len(done.stderr.splitlines()) == 1
