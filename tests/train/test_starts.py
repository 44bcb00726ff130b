"""What a start finds and cannot go on from: another job's settings, another world, other models, no GPU."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.real.jobs import checkpoints
from tests.train.workers import Run, run
from train.run import lock

DROPOUT = f"{Path(__file__).with_name('odd_models.py')}:dropout"


def reason(failed: Run) -> str:
    """Why it says that it has failed."""
    # Who starts after another has written the reason ends with 0: no restart would change it.
    assert {1} <= set(failed.codes) <= {0, 1}, failed.output
    word, _, _, why = failed.status.split(maxsplit=3)
    assert word == "failed"
    return why


def test_a_finished_job_that_is_started_again_says_so_and_changes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, DROPOUT, 2).codes == [0, 0]
    standing = json.loads((tmp_path / "progress.json").read_text())
    assert (standing["step"], standing["last_step"], len(standing["losses"])) == (6, 6, 6)
    assert standing["units_per_step"]
    assert standing["unit"]
    newest = checkpoints(tmp_path)[-1]
    inode = (newest / "model.pt").stat().st_ino
    again = run(tmp_path, DROPOUT, 2)
    assert again.codes == [0, 0], again.output
    assert "resuming at step 6 of 6" in again.output
    assert (newest / "model.pt").stat().st_ino == inode


def test_a_step_does_not_read_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, read_lock = tmp_path / "looks", lock.read_lock

    def read_and_note(directory: Path) -> lock.Holder | None:
        with looks.open("a") as file:
            file.write(f"{threading.current_thread().name}\n")
        return read_lock(directory)

    monkeypatch.setattr(lock, "read_lock", read_and_note)
    counts = []
    for steps in (6, 30):
        looks.write_text("")
        done = run(tmp_path / str(steps), DROPOUT, 1, f"--steps={steps}")
        assert done.codes == [0], done.output
        counts.append(looks.read_text().count("MainThread\n"))
    assert counts[0] == counts[1] > 0


def test_other_settings_are_not_mixed_into_a_run_unless_asked(tmp_path: Path) -> None:
    assert run(tmp_path, DROPOUT, 1, "--steps=4").codes == [0]
    refused = run(tmp_path, DROPOUT, 1, "--steps=8", "--lr=0.5")
    assert "other settings: lr: 0.05 -> 0.5" in reason(refused)
    assert "add --accept-changes" in reason(refused)
    more = run(tmp_path, DROPOUT, 1, "--steps=8")
    assert more.codes == [0], more.output
    changed = run(tmp_path, DROPOUT, 1, "--steps=10", "--lr=0.5", "--accept-changes")
    assert changed.codes == [0], changed.output


def test_a_world_of_another_size_than_planned_is_an_error(tmp_path: Path) -> None:
    failed = run(tmp_path, DROPOUT, 2, "--world-size=3")
    assert "3 processes and started as 2" in reason(failed)


def test_ranks_that_build_different_models_are_named_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import os, types, torch\n"
        "def build(context):\n"
        "    torch.manual_seed(int(os.environ['RANK']) // 2)\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    loss = lambda model, batch: model(batch).mean()\n"
        "    return types.SimpleNamespace(model=model, dataset=torch.zeros(9, 2), loss=loss)\n"
    )
    failed = run(tmp_path / "job", f"{tmp_path / 'model.py'}:build", 3, "--log-every=1")
    assert "rank(s) 2 hold other parameters" in reason(failed)
    assert "step  1/" not in failed.output


def test_more_gpus_asked_for_than_there_are_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    failed = run(tmp_path, DROPOUT, 2, "--backend=nccl")
    assert "backend nccl needs CUDA, " in reason(failed)


@pytest.mark.parametrize("name", ["metrics.jsonl", "manifest.json"])
def test_a_record_that_cannot_be_written_is_named_and_ends_the_job(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    why = reason(run(tmp_path, DROPOUT, 1))
    assert why.startswith(f"{tmp_path / name} cannot be written: ")
