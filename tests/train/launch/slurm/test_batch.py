"""The batch supervisor as slurm.sbatch becomes it, with a scontrol and an srun of a few lines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.launch.slurm.test_job import shown
from train.base.scheduler import VARIABLE
from train.launch import points
from train.launch.points import Training
from train.launch.slurm.directory import Directory

ROOT = Path(__file__).parents[4]
SCONTROL = """\
#!/bin/bash
cd {place}
case "$1 $2" in
  "show hostnames") echo "$3" ;;
  "show job") cat job ;;
  "show config") echo "KillWait = 1 sec" ;;
  "show node") cat node ;;
  "requeue 7") [ -e refuses ] && cat refuses >&2 && exit 1; echo "$*" >>changes; kill -TERM $PPID ;;
  "update JobId=7") [ -e keeps ] && cat keeps >&2 && exit 1; echo "$*" >>changes ;;
esac
exit 0
"""
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURMD_NODENAME": "localhost",
}
COMMAND = ("--", "torchrun", "--", "run", "--workload=gpt")


class Start:
    """One start of job 7, whose files lie in `place`."""

    def __init__(self, place: Path) -> None:
        self.place, self.checkpoints = place, place / "checkpoints"
        self.bundle = place / "bundle"
        self.bundle.mkdir()
        (self.bundle / "train").symlink_to(ROOT / "train")
        self.write("scontrol", SCONTROL.format(place=place))
        self.job()

    def write(self, name: str, text: str) -> None:
        (self.place / name).write_text(text)
        (self.place / name).chmod(0o755)

    def job(self, state: str = "RUNNING", old: str = "", new: str = "") -> None:
        (self.place / "job").write_text(shown(state).replace(old, new))

    def status(self, text: str = "") -> str:
        if text:
            self.checkpoints.mkdir(exist_ok=True)
            (self.checkpoints / "status").write_text(text)
        return (self.checkpoints / "status").read_text()

    def begin(self, *options: str, **env: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
        tier = ("slurm", "--job=gpt", "--nic=lo", f"--checkpoint-dir={self.checkpoints}")
        return subprocess.Popen(
            [sys.executable, "-m", "train", "supervise", *tier, *options, *COMMAND],
            env={**kept, **SLURM, "PATH": f"{self.place}:{os.environ['PATH']}", **env},
            cwd=self.bundle, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *options: str, **env: str) -> tuple[int, str]:
        """Its exit code, and its lines without time and host."""
        with self.begin(*options, **env) as process:
            _, text = process.communicate(timeout=60)
        return process.returncode, re.sub(r"(?m)^ddpgen .*?: ", "", text).strip()


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def test_an_srun_that_starts_nothing_ends_the_job_in_its_words(start: Start) -> None:
    reason = (
        "srun: error: Unable to create step for job 7: Memory required by task is not available"
    )
    start.write("srun", f"#!/bin/bash\necho '{reason}' >&2\nexit 1\n")
    code, said = start.run()
    assert (code, said.splitlines()[-2:]) == (69, [reason, f"srun could not start the nodes: {reason}"])  # fmt: skip
    assert start.status() == f"failed slurm.7.0 0 srun could not start the nodes: {reason}\n"
    assert sorted(os.listdir(start.checkpoints)) == [".slurm-job.guard", "slurm-starts", "status"]


def test_a_refusal_that_a_node_has_printed_alone_is_on_file(start: Start) -> None:
    # As the preflight does, on every node.
    finding = "preflight: CLK001 on node2; nothing was started"
    start.write(
        "srun",
        f"""#!/bin/bash
        echo 'ddpgen 2026-11-25 12:56:50 node2: {finding}' >&2
        echo 'srun: error: node2: task 1: Exited with exit code 69' >&2
        echo 'srun: error: node1: task 0: Terminated' >&2
        exit 143""",
    )
    code, said = start.run()
    cause = f"node2 ended this start (exit code 69): {finding}"
    assert (code, said.splitlines()[-1]) == (69, cause)
    assert start.status() == f"failed slurm.7.0 0 {cause}\n"


def test_what_srun_prints_on_its_error_output_is_passed_on_whole(start: Start) -> None:
    lines = 'for i in $(seq 20000); do echo "line $i"; done >&2; printf "the last one" >&2'
    start.write("srun", f"#!/bin/bash\n{lines}\nexit 3\n")
    code, said = start.run()
    assert code == 1
    printed = said[said.index("line 1\n") :].split("\n")
    assert printed[:20000] == [f"line {number}" for number in range(1, 20001)]
    assert printed[20000] == "the last one"


@pytest.mark.parametrize(
    ("name", "state", "code", "status"),
    [
        ("USR1", "RUNNING", 75, "stopped slurm.7.0 20 USR1 came before the training began; it has been requeued 1 times"),
        ("TERM", "COMPLETING", 75, "stopped slurm.7.0 20 TERM came before the training began; cancelled\n"),
    ],
)  # fmt: skip
def test_a_signal_before_the_directory_is_taken_ends_the_job_that_an_earlier_start_began(
    start: Start, name: str, state: str, code: int, status: str
) -> None:
    start.status("running slurm.7.0 20\n")
    (start.checkpoints / "slurm-job").write_text("7 0\n")
    Directory(start.checkpoints, "7", "7", 0).keep_snapshot(start.bundle, None)
    start.job(state)
    arguments = {"SLURM_RESTART_COUNT": "1", "DDPGEN_SIGNAL": name}
    ended, said = start.run("--requeues=1", **arguments)
    assert ended == code, said
    assert start.status().startswith(status)
    assert sorted(os.listdir(start.checkpoints)) == ["status"]


def test_an_environment_that_fails_is_on_file_and_a_signal_is_no_failure_of_it(
    start: Start,
) -> None:
    start.status("running slurm.7.0 20\n")
    (start.checkpoints / "slurm-job").write_text("7 0\n")
    failed = {"SLURM_RESTART_COUNT": "1", "DDPGEN_FAILED": "1 slurm.activate.sh line 2: false"}
    reason = "the environment of the spec failed: slurm.activate.sh line 2: false"
    assert start.run(**failed) == (69, reason)
    assert start.status() == f"failed slurm.7.0 20 {reason}\n"
    assert not (start.checkpoints / "slurm-job").exists()
    failed["DDPGEN_FAILED"] = "143 slurm.activate.sh line 2: sleep 6"
    start.job("COMPLETING")
    code, said = start.run(**failed, DDPGEN_SIGNAL="TERM")
    assert code == 75
    assert "environment" not in said


def test_a_secret_that_is_missing_ends_the_job_and_a_file_reaches_every_node(start: Start) -> None:
    start.write("srun", f"#!/bin/bash\nenv >{start.place}/env; exit 69\n")
    start.write("token", "from-a-file\n")
    option = f"--secrets=A_TOKEN,HF_TOKEN={start.place}/token"
    code, said = start.run(option, SLURM_RESTART_COUNT="1")
    others_may_read = (
        f"the secret HF_TOKEN is in a file that others may read; chmod 600 {start.place}/token"
    )
    assert code == 69
    assert said.startswith(
        "the secret A_TOKEN is not set, or is empty; export A_TOKEN before sbatch"
    )
    assert said.endswith(others_may_read)
    assert not (start.place / "env").exists()
    (start.place / "token").chmod(0o600)
    code, said = start.run(option, A_TOKEN="from-the-environment", HF_TOKEN="stale")
    variables = (start.place / "env").read_text().splitlines()
    assert {"A_TOKEN=from-the-environment", "HF_TOKEN=from-a-file"} <= {*variables}
    written = [path for path in start.checkpoints.rglob("*") if path.is_file()]
    assert not [path for path in written if b"from-" in path.read_bytes()]


@pytest.mark.slow
def test_limits_that_the_site_has_rewritten_are_said_at_the_start(start: Start) -> None:
    start.write("srun", "#!/bin/bash\nexit 3\n")
    start.job(old="TimeLimit=02:00:00", new="TimeLimit=00:01:00")
    _, said = start.run("--warning=60")
    assert "time limit is 1:00 and it is warned 1:00 " in said
    start.job(old="Requeue=1", new="Requeue=0")
    _, said = start.run("--warning=60")
    assert "this job's time limit" not in said
    assert "(Requeue=0, by the site or" in said
    # It is not said to go back, either.
    code, said = start.run(DDPGEN_SIGNAL="USR1")
    assert code == 75
    assert "back into the queue" not in said
    assert "(Requeue=0); to " in said


BROKEN = """#!/bin/bash
echo 'ddpgen 2026-11-25 12:56:50 localhost: preflight: GPU006 on localhost; nothing was started' >&2
echo 'srun: error: localhost: task 0: Exited with exit code 69' >&2
exit 69
"""


def with_partition(start: Start, *nodes: str) -> None:
    start.write("sinfo", f"#!/bin/bash\nprintf '%s gpu:4\\n' {' '.join(nodes)}\n")
    start.write("srun", BROKEN)


def changes(start: Start) -> list[str]:
    path = start.place / "changes"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_a_node_whose_own_fault_ended_two_starts_is_left_out_until_its_line_is_removed(
    start: Start,
) -> None:
    with_partition(start, "localhost", "node2")
    fault = (
        "localhost has ended this start by its own fault: GPU006: the GPU driver does not answer"
    )
    code, said = start.run("--requeues=3")
    assert code == 0, said
    assert fault in said
    assert changes(start) == ["requeue 7"]
    code, said = start.run("--requeues=3", SLURM_RESTART_COUNT="1")
    assert code == 0, said
    assert "localhost is left out from now on: GPU006: the GPU driver does not answer; see " in said
    out = "update JobId=7 ExcNodeList=localhost"
    assert changes(start) == ["requeue 7", "requeue 7", out]
    # Slurm leaves it out already, and is not asked again.
    start.job(old="   Command", new="   ReqNodeList=(null) ExcNodeList=localhost\n   Command")
    code, said = start.run("--requeues=3", SLURM_RESTART_COUNT="2")
    assert code == 0, said
    assert changes(start)[3:] == ["requeue 7"]
    # A person gives the node back.
    listed = start.checkpoints / "bad-nodes"
    listed.write_text("".join(listed.read_text().splitlines(keepends=True)[:2]))
    start.write("srun", "#!/bin/bash\nexit 137\n")
    code, said = start.run("--requeues=3", SLURM_RESTART_COUNT="3")
    assert code == 0, said
    assert "localhost: given back, as " in said
    assert changes(start)[4:] == ["requeue 7", "update JobId=7 ExcNodeList="]


def test_a_job_that_gets_a_listed_node_goes_back_before_anything_starts(start: Start) -> None:
    with_partition(start, "localhost", "node2")
    start.checkpoints.mkdir()
    listed = start.checkpoints / "bad-nodes"
    listed.write_text("localhost 2026-11-20 lost\nlocalhost 2026-11-21 lost\n")
    code, said = start.run("--requeues=1")
    assert code == 0, said
    assert "localhost: a bad node; back into the queue, to start over" in said
    assert "starting the nodes" not in said
    assert changes(start) == ["requeue 7", "update JobId=7 ExcNodeList=localhost"]
    # Without a requeue left it takes what it gets.
    assert "starting the nodes" in start.run("--requeues=0")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "refusal", "said"),
    [
        (("localhost", "node2"), "Access/permission denied", "Slurm does not leave nodes out for this job (Access/permission denied); it goes on"),
        (("localhost",), "", "localhost is a bad node, and is not left out: without it the partition has 0 nodes of its kind"),
    ],
)  # fmt: skip
def test_a_bad_node_that_must_stay_is_named_and_the_job_goes_on(
    start: Start, nodes: tuple[str, ...], refusal: str, said: str
) -> None:
    with_partition(start, *nodes)
    if refusal:
        (start.place / "keeps").write_text(f"{refusal}\n")
    start.run("--requeues=3")
    code, log = start.run("--requeues=3", SLURM_RESTART_COUNT="1")
    assert code == 0, log
    assert said in log
    code, log = start.run("--requeues=3", SLURM_RESTART_COUNT="2")
    assert "starting the nodes" in log
    assert "does not leave nodes out" not in log  # once is enough
    assert changes(start) == ["requeue 7"] * 3


def test_a_point_of_a_sweep_that_is_done_is_not_trained_again(start: Start) -> None:
    start.write("srun", "#!/bin/bash\nexit 3\n")
    listed = {"slurm": {"lr=1": {"words": ["--lr=1"], "id": "a"}}}
    (start.bundle / "points.json").write_text(json.dumps(listed))
    start.job(old="JobId=7 ", new="JobId=7 ArrayJobId=7 ArrayTaskId=0 ")
    directory = start.checkpoints / "lr=1"
    directory.mkdir(parents=True)
    (directory / "status").write_text("done slurm.6.0 4")
    points.mark(directory, Training("b", ()))
    code, said = start.run("--points", "--point=lr=1")
    assert code != 0, said
    assert "starting the nodes" in said
    (directory / "status").write_text("done slurm.6.0 4")
    points.mark(directory, Training("a", ()))
    assert start.run("--points", "--point=lr=1") == (0, "lr=1 is done")


def test_bad_nodes_are_kept_if_the_spec_says_so(start: Start) -> None:
    with_partition(start, "localhost", "node2")
    code, said = start.run("--keep-bad-nodes")
    assert code == 69, said
    assert not (start.checkpoints / "bad-nodes").exists()


@pytest.mark.slow
def test_a_start_whose_supervisor_was_cut_off_is_the_fault_of_a_node_that_was_lost(
    start: Start,
) -> None:
    start.write("srun", "#!/bin/bash\necho started >&2\nexec sleep 60\n")
    with start.begin() as process:
        assert process.stderr is not None
        while process.stderr.readline() != "started\n":
            pass
        process.kill()
    start.write("srun", "#!/bin/bash\nexit 3\n")
    for state, fault in (("ALLOCATED", False), ("DOWN*", True)):
        start.write("node", f"NodeName=localhost Arch=x86_64\n   State={state} ThreadsPerCore=1\n")
        _, said = start.run(SLURM_RESTART_COUNT="1")
        lost = "localhost has ended the last start by its own fault: it did not answer any more"
        assert (lost in said) == fault
        (start.checkpoints / "slurm-starts").write_text(
            '{"job": "7", "head": "localhost", "starts": [[0, 0, ""]]}'
        )


def test_a_requeue_that_slurm_refuses_is_reported_with_its_reason(start: Start) -> None:
    (start.place / "refuses").write_text("Job is held by an administrator\n")
    code, said = start.run(DDPGEN_SIGNAL="USR1")
    assert code == 75
    assert "(Job is held by an administrator)" in said


def test_a_cancelled_job_says_so_before_slurm_kills_it_in_a_long_step(start: Start) -> None:
    start.write("srun", "#!/bin/bash\necho started >&2\nexec sleep 60\n")
    with start.begin() as process:
        assert process.stderr is not None
        while process.stderr.readline() != "started\n":
            pass
        start.job("COMPLETING")
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 60
        while start.status().startswith("running ") and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert (
        start.status() == "stopped slurm.7.0 0 no clean stop within Slurm's KillWait; cancelled\n"
    )
