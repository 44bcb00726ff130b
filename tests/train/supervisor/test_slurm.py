"""The batch supervisor as slurm.sbatch becomes it, with a scontrol and an srun of a few lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.supervisor.test_slurm_job import shown
from train.scheduler import VARIABLE
from train.supervisor.slurm_directory import Directory

ROOT = Path(__file__).parents[3]
SCONTROL = """\
#!/bin/bash
echo "$*" >>asked
case "$1 $2" in
  "show hostnames") echo "$3" ;;
  "show job") [ "$(cat away 2>/dev/null)" != 1 ] && cat job ;;
  "requeue 7") cat refuses >&2 2>/dev/null && exit 1; exit 0 ;;
esac
"""
COMMAND = ("--", "torchrun", "--", "run", "--workload=gpt")


class Start:
    """One start of job 7, whose files lie in `place`."""

    def __init__(self, place: Path) -> None:
        self.place, self.checkpoints = place, place / "checkpoints"
        self.bundle = place / "bundle"
        self.bundle.mkdir()
        (self.bundle / "train").symlink_to(ROOT / "train")
        self.write("scontrol", SCONTROL.replace("asked", str(place / "asked")).replace("cat ", f"cd {place}; cat "))  # fmt: skip
        self.job()

    def write(self, name: str, text: str) -> None:
        (self.place / name).write_text(text)
        (self.place / name).chmod(0o755)

    def job(self, state: str = "RUNNING", old: str = "", new: str = "", **more: str) -> None:
        (self.place / "job").write_text(shown(state, **more).replace(old, new))

    def status(self, text: str = "") -> str:
        if text:
            self.checkpoints.mkdir(exist_ok=True)
            (self.checkpoints / "status").write_text(text)
        return (self.checkpoints / "status").read_text()

    def run(self, *options: str, **env: str) -> tuple[int, str]:
        """Its exit code, and its lines without time and host."""
        kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "localhost"}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "train", "supervise", "slurm", "--job=gpt", "--nic=lo", f"--checkpoint-dir={self.checkpoints}", *options, *COMMAND],
            env={**kept, **slurm, "PATH": f"{self.place}:{os.environ['PATH']}", **env},
            cwd=self.bundle, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        lines = done.stderr.splitlines()
        return done.returncode, "\n".join(line.split(": ", 1)[-1] if line.startswith("ddpgen ") else line for line in lines)  # fmt: skip


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
    ("signal", "state", "code", "status"),
    [
        ("USR1", "RUNNING", 75, "stopped slurm.7.0 20 USR1 came before the training began; it has been requeued 1 times"),
        ("TERM", "COMPLETING", 75, "stopped slurm.7.0 20 TERM came before the training began; cancelled\n"),
    ],
)  # fmt: skip
def test_a_signal_before_the_directory_is_taken_ends_the_job_that_an_earlier_start_began(
    start: Start, signal: str, state: str, code: int, status: str
) -> None:
    start.status("running slurm.7.0 20\n")
    (start.checkpoints / "slurm-job").write_text("7 0\n")
    Directory(start.checkpoints, "7", "7", 0).keep_snapshot(start.bundle, None)
    start.job(state)
    arguments = {"SLURM_RESTART_COUNT": "1", "DDPGEN_SIGNAL": signal}
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


def test_limits_that_the_site_has_rewritten_are_said_at_the_start(start: Start) -> None:
    start.write("srun", "#!/bin/bash\nexit 3\n")
    start.job(old="TimeLimit=02:00:00", new="TimeLimit=00:01:00")
    _, said = start.run("--warning=60")
    assert "warning: this job's time limit is 1:00 and it is warned 1:00 before the end" in said
    start.job(old="Requeue=1", new="Requeue=0")
    _, said = start.run("--warning=60")
    assert "this job's time limit" not in said
    assert "warning: Slurm does not requeue this job (Requeue=0, by the site or" in said
    # It is not said to go back, either.
    code, said = start.run(DDPGEN_SIGNAL="USR1")
    assert code == 75
    assert "back into the queue" not in said
    assert said.endswith("; Slurm does not requeue this job (Requeue=0); to go on: sbatch slurm.sbatch")  # fmt: skip


def test_a_requeue_that_slurm_refuses_is_reported_with_its_reason(start: Start) -> None:
    (start.place / "refuses").write_text("Job is held by an administrator\n")
    code, said = start.run(DDPGEN_SIGNAL="USR1")
    assert code == 75
    assert "Slurm does not requeue this job (Job is held by an administrator)" in said
