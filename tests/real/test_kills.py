"""kill -9 at random steps, of one worker, of all, of torchrun's agent, of the launch script.

Whatever is killed, however often, and on however many processes the job goes on: it ends in the
weights of an undisturbed run, and its committed history has every sample exactly once. That no
process is left behind is checked after every test by tests/conftest.py.
"""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.real import jobs
from tests.real.rig import processes
from tests.train import workers

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

STEPS = 60
# The loss of a sample says which one it is: 4**-i for sample i, exact in float64. A step's loss is
# the mean over its samples, so the samples that went into it can be read off metrics.jsonl: as
# digits to the base 4, since a step across the end of an epoch may hold a sample twice.
SAMPLES = 24
MODEL = """
import os
import time
import types
import torch

class Ledger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 1))
    def forward(self, x):
        return self.layers(x)

class Data:
    def __init__(self):
        self.x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(3))
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return i, self.x[i]

calls = 0

def loss(model, batch):
    global calls
    calls += 1
    while calls > int(os.environ.get("HOLD_AFTER", "1000000")) and os.path.exists(os.environ["HOLD"]):
        time.sleep(0.005)
    ids, x = batch
    training = model(x).square().mean().double()
    # Its value is the ledger's entry, its gradient the training loss's.
    return torch.exp2(-2.0 * ids.double()).mean() + training - training.detach()

def build(context):
    return types.SimpleNamespace(model=Ledger(), dataset=Data(), loss=loss)
""".replace("SAMPLES", str(SAMPLES))
TRAIN: dict[str, Any] = {
    "workload": "model.py:build",
    "steps": STEPS,
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "optimizer": "adam",
    "lr": 1e-2,
    "schedule": "linear",
    "log_every": "1 steps",
}
MICRO_BATCHES = TRAIN["global_batch_size"] // TRAIN["micro_batch_size"]
HELD = 3  # steps that are done after the one that is waited for; four times 8 + 3 are not all


def rendered(place: Path, processes: int, **job: Any) -> Path:
    """A bundle that shares its checkpoint directory with those for other process counts."""
    job = {"checkpoint": {"dir": str(place / "ckpt"), "every": "2 steps"}, **job}
    return jobs.render(
        place / f"on{processes}",
        jobs.spec(TRAIN, procs_per_node=processes, **job),
        {"model.py": MODEL},
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of one process that nothing has launched."""
    place = tmp_path_factory.mktemp("undisturbed")
    (place / "model.py").write_text(MODEL)
    settings = {**TRAIN, "log_every": 1}
    del settings["workload"]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    done = workers.run(place / "ckpt", f"{place}/model.py:build", 1, *flags)
    assert done.codes == [0], done.output
    return done.tensors()


def samples_of(row: dict[str, Any]) -> list[int]:
    """How often each sample went into the step."""
    total, counts = row["loss"] * TRAIN["global_batch_size"], []
    for sample in range(SAMPLES):
        count = int(total * 4**sample)
        total -= count * 4.0**-sample
        counts.append(count)
    assert total == 0, row
    return counts


def assert_every_sample_is_there_once(directory: Path) -> None:
    history = jobs.committed(directory)
    assert [row["step"] for row in history] == list(range(1, STEPS + 1))
    size = TRAIN["global_batch_size"]
    assert [row["samples"] for row in history] == [[s * size, (s + 1) * size] for s in range(STEPS)]
    consumed = [samples_of(row) for row in history]
    assert all(sum(counts) == size for counts in consumed)
    # Three steps are an epoch: each of them holds every sample once.
    for epoch in range(0, STEPS, 3):
        assert [sum(c) for c in zip(*consumed[epoch : epoch + 3], strict=True)] == [1] * SAMPLES


def kill(victim: str, job: jobs.Job, dice: random.Random) -> None:
    ranks = job.workers()
    if victim == "worker":
        os.kill(dice.choice(ranks), signal.SIGKILL)
    elif victim == "all workers":
        processes.send(ranks, signal.SIGKILL)
    elif victim == "agent":
        os.kill(job.agent(), signal.SIGKILL)
    else:
        os.kill(job.process.pid, signal.SIGKILL)


VICTIMS = ["worker", "all workers", "agent", "launch script"]


@pytest.mark.parametrize(
    "victims",
    [
        # In the day an agent is killed in test_verify.py.
        pytest.param(["worker", "launch script"], id="two"),
        pytest.param(["worker", "agent", "launch script"], marks=pytest.mark.nightly, id="each"),
        *(pytest.param([each] * 4, marks=pytest.mark.nightly, id=each) for each in VICTIMS),
    ],
)
def test_killed_and_relaunched_on_other_process_counts(
    tmp_path: Path, victims: list[str], undisturbed: dict[str, torch.Tensor]
) -> None:
    dice = random.Random(f"{victims} {os.environ.get('DDPGEN_TEST_SEED', '0')}")
    bundles = {n: rendered(tmp_path, n, restarts=0) for n in (1, 2, 3)}
    directory, hold, processes = tmp_path / "ckpt", tmp_path / "hold", 0
    for victim in victims:
        processes = dice.choice([n for n in (1, 2) if n != processes])
        steps = dice.randint(2, 8)
        # All that is left takes less than a tenth of a second: it does not get far without the kill.
        hold.touch()
        after = str((steps + HELD) * -(-MICRO_BATCHES // processes))
        job = jobs.Job(bundles[processes], env={"HOLD": str(hold), "HOLD_AFTER": after})
        for _ in range(steps):
            job.until(r"^step +\d+/")
        kill(victim, job, dice)
        hold.unlink()
        code = job.end()
        if victim == "launch script":
            assert code == -signal.SIGKILL
        else:
            assert code == 1, job.output
            # The first kill may come before the first checkpoint.
            assert re.search(
                r"to (resume|start over, as no checkpoint was written): bash ", job.output
            )
    last = jobs.run(bundles[3])
    assert last.process.returncode == 0, last.output
    jobs.assert_same_bits(jobs.final_tensors(directory), undisturbed)
    assert_every_sample_is_there_once(directory)


@pytest.mark.nightly
def test_torchrun_restarts_crashed_workers_by_itself(
    tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    # Slow enough for it not to be over before the last kill.
    slow = MODEL.replace("def loss(model, batch):", "def loss(model, batch):\n    time.sleep(0.05)")
    bundle = jobs.render(
        tmp_path / "slow",
        jobs.spec(
            TRAIN,
            procs_per_node=2,
            restarts=3,
            checkpoint={"dir": str(tmp_path / "ckpt"), "every": "2 steps"},
        ),
        {"model.py": slow},
    )
    job = jobs.Job(bundle)
    dice, newest = random.Random(1), ""
    for step in (7, 17, 27):
        job.until_step(step)
        job.until_committed(tmp_path / "ckpt", newest)  # two crashes without one end it
        kill("worker", job, dice)
        resumed = job.until(r"resuming at step (\d+)")
        newest = f"step-{int(resumed[1]):09}"
    assert job.end() == 0, job.output
    jobs.assert_same_bits(jobs.final_tensors(tmp_path / "ckpt"), undisturbed)
    assert_every_sample_is_there_once(tmp_path / "ckpt")
    assert {row["generation"] for row in jobs.rows(tmp_path / "ckpt")} == {1, 2, 3, 4}


@pytest.mark.nightly
def test_it_gives_up_when_nothing_is_committed_between_two_crashes(tmp_path: Path) -> None:
    crashing = MODEL.replace(
        "    calls += 1\n", "    calls += 1\n    assert calls < 40, 'the bug of the user'\n"
    )
    bundle = jobs.render(
        tmp_path,
        jobs.spec({**TRAIN, "steps": 500}, restarts=9, checkpoint={"every": "1h"}),
        {"model.py": crashing},
    )
    job = jobs.run(bundle)
    assert job.process.returncode == 1
    assert job.output.count("AssertionError: the bug of the user") > 0
    # Two crashes, then a start that sees them; nine restarts were allowed.
    assert len(jobs.rows(tmp_path / "checkpoints" / "job", "start")) == 2
    assert "crashed twice without committing a step after step 0; giving up" in job.output
    status = (tmp_path / "checkpoints" / "job" / "status").read_text()
    assert status.startswith("failed ")
    assert "giving up" in job.lines[-1]


@pytest.mark.nightly
def test_a_fault_that_no_restart_can_cure_is_met_once(tmp_path: Path) -> None:
    bundle = jobs.render(
        tmp_path,
        jobs.spec({**TRAIN, "args": {"dept": 3}}, procs_per_node=2, restarts=3),
        {"model.py": f"{MODEL}\nglobals()\n"},  # so that validate does not know which names it has
    )
    job = jobs.run(bundle)
    assert job.process.returncode == 1
    assert "train.args.dept: workload 'model.py:build' has no such argument" in job.output
    assert 'Traceback (most recent call last):\n  File "train' not in job.output
    # Started once, told by each rank at most once, and the reason stands in the last lines.
    assert job.output.count("2 processes, backend gloo") == 1
    assert 1 <= job.output.count(": train.args.dept: workload") - 1 <= 2
    assert "failed: train.args.dept" in job.output
