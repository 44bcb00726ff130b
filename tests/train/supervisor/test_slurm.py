"""What the supervisor on the first node works out from what it was told."""

from __future__ import annotations

import pytest

from train.supervisor.slurm import is_step, store_of


@pytest.mark.parametrize(
    ("store", "task", "place"),
    [
        ("s3://kept/gpt", "", "s3://kept/gpt"),
        ("s3://kept/gpt", "3", "s3://kept/gpt/3"),
        ("s3://kept/gpt/", "3", "s3://kept/gpt/3"),
    ],
)
def test_each_task_of_an_array_has_a_store_of_its_own(store: str, task: str, place: str) -> None:
    assert store_of(store, task) == place


@pytest.mark.parametrize(
    ("env", "parent", "step"),
    [
        ({}, "slurmstepd: [7.batch]", False),
        ({"SLURM_STEP_ID": "4294967291"}, "slurmstepd: [7.batch]", False),
        ({"SLURM_STEP_ID": "0", "SLURM_TASK_PID": "5"}, "slurmstepd: [7.0]", True),
        ({"SLURM_STEP_ID": "0", "SLURM_TASK_PID": "5"}, "slurmstepd: [7.batch]", False),
        ({"SLURM_STEP_ID": "0", "SLURM_TASK_PID": "4"}, "bash", True),
    ],
)
def test_a_step_of_srun_is_told_from_the_batch_script(
    env: dict[str, str], parent: str, step: bool
) -> None:
    assert is_step(env, 5, parent) is step
