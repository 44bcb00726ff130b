"""What srun's error output tells of the end of a step, as Slurm 22.05 prints it."""

from __future__ import annotations

import pytest

from train.launch.slurm.decision import Failure
from train.launch.slurm.step import StepErrors

SHELL = "ddpgen 2026-11-25 12:56:50 node2: node2 does not see /scratch/c/bundle-2"
REFUSED_IN_THE_SHELL = f"""\
{SHELL}
srun: error: node2: task 1: Exited with exit code 69
srun: launch/slurm: _step_signal: Terminating StepId=2.0
slurmstepd-node1: error: *** STEP 2.0 ON node1 CANCELLED AT 2026-11-25T12:56:50 ***
srun: error: node1: task 0: Terminated
srun: Force Terminated StepId=2.0
"""
PROLOG = """\
slurmstepd-node2: error: --task-prolog failed status=1
srun: error: node2: task 1: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=6.0
srun: error: node1: task 0: Killed
"""
CONTAINER = """\
FATAL:   could not open image /shared/no.sif
srun: error: node[2-3]: tasks 1-2: Exited with exit code 255
srun: error: node1: task 0: Terminated
"""
KILLED = """\
srun: error: node1: task 0: Killed
srun: error: node2: task 1: Exited with exit code 1
"""


def heard(text: str) -> StepErrors:
    """In pieces that end anywhere, as a pipe gives them."""
    errors = StepErrors()
    data = text.encode()
    for start in range(0, len(data), 7):
        errors.feed(data[start : start + 7])
    return errors


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (REFUSED_IN_THE_SHELL, Failure(69, "node2", "")),
        # The others, which srun has ended, may be reported first.
        ("srun: error: node1: task 0: Terminated\n" + REFUSED_IN_THE_SHELL, Failure(69, "node2", "")),
        (PROLOG, Failure(1, "node2", "")),
        (CONTAINER, Failure(255, "node[2-3]", "")),
        (KILLED, None),
        ("srun: error: node2: task 1: Terminated\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_task_that_failed_first_ended_the_step(text: str, failure: Failure | None) -> None:
    assert heard(text).failure == failure


def test_the_last_line_of_a_node_is_its_reason() -> None:
    errors = heard(REFUSED_IN_THE_SHELL + PROLOG.replace("node2", "node3") + CONTAINER)
    assert errors.last_line_of(["node2"]) == "node2 does not see /scratch/c/bundle-2"
    assert errors.last_line_of(["node9", "node3"]) == "--task-prolog failed status=1"
    assert errors.last_line_of(["node1"]) == ""
    ranks = heard("ddpgen 2026-11-25 12:56:50 node1 rank 3: ValueError: odd\n")
    assert ranks.last_line_of(["node1"]) == "ValueError: odd"


GRES = """\
srun: error: Step requested GRES but job doesn't have GRES
srun: error: Unable to create step for job 22: Invalid generic resource (gres) specification
"""
OPTION = """\
srun: unrecognized option '--container-image=x'
Try "srun --help" for more information
"""
LOST = """\
srun: error: Task launch for StepId=8.0 failed on node node2: Communication connection failure
srun: error: Application launch failed: Communication connection failure
"""
DOWN = "srun: error: Unable to create step for job 7: Required node not available (down, drained or reserved)\n"


@pytest.mark.parametrize(
    ("text", "code", "refusal"),
    [
        (GRES, 1, GRES.strip().replace("\n", "; ")),
        (OPTION, 255, "srun: unrecognized option '--container-image=x'"),
        ("srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive.\n", 1,
         "srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive."),
        (LOST, 1, ""),  # a node that is lost
        (DOWN, 1, ""),
        (GRES + "ddpgen 2026-11-25 12:56:50 node1: interface eth0\n", 1, ""),  # it has started something
        (REFUSED_IN_THE_SHELL, 143, ""),
        ("srun: error: node1: task 0: Exited with exit code 1\n", 1, ""),
        ("", 1, ""),
    ],
)  # fmt: skip
def test_an_srun_that_starts_nothing_says_why(text: str, code: int, refusal: str) -> None:
    assert heard(text).refusal(code) == refusal
