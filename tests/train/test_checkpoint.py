"""Half a checkpoint is never taken for a whole one, and a good one is never lost."""

from __future__ import annotations

import errno
import io
import itertools
import math
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from train.checkpoint import disk
from train.checkpoint.checkpointer import Checkpointer, SaveFailedError, best_interval
from train.checkpoint.copies import Copies
from train.checkpoint.disk import newest_valid
from train.run.config import Period
from train.run.layout import MARKER, step_directory, steps_on_disk

STATE = {"model.pt": {"w": torch.arange(6.0).view(2, 3)}, "optimizer.pt": {"lr": 0.1}}


def write(directory: Path, step: int, writer: str = "a-1", **more: Any) -> Path:
    publish = more.pop("may_publish", lambda: None)
    disk.write(directory, step, STATE, {"world_size": 2}, writer, publish)
    return step_directory(directory, step)


def newest(directory: Path) -> tuple[int | None, list[tuple[int, str]]]:
    rejected: list[tuple[int, str]] = []
    found = newest_valid(directory, lambda step, why: rejected.append((step, why)))
    return (found.step if found else None), rejected


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    place = write(tmp_path, 200)
    assert place.name == "step-000000200"
    assert sorted(os.listdir(place)) == [MARKER, "model.pt", "optimizer.pt"]
    found = disk.read(step_directory(tmp_path, 200), 200)
    assert torch.equal(found.load("model.pt")["w"], STATE["model.pt"]["w"])  # type: ignore[arg-type]
    assert found.load("optimizer.pt") == {"lr": 0.1}
    assert found.meta["world_size"] == 2
    assert os.listdir(tmp_path) == [place.name]


def truncate(place: Path) -> None:
    os.truncate(place / "model.pt", 100)


def flip_a_bit(place: Path) -> None:
    content = bytearray((place / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (place / "model.pt").write_bytes(content)


def remove_the_marker(place: Path) -> None:
    (place / MARKER).unlink()


def change_the_marker(pattern: str, by: str) -> Any:
    def damage(place: Path) -> None:
        text = (place / MARKER).read_text()
        (place / MARKER).write_text(re.sub(pattern, by, text, flags=re.DOTALL))

    return damage


def make_a_pipe_of(name: str) -> Any:
    def damage(place: Path) -> None:
        (place / name).unlink()
        os.mkfifo(place / name)

    return damage


def empty(place: Path) -> None:
    for name in os.listdir(place):
        (place / name).unlink()


def remove_a_file(place: Path) -> None:
    (place / "optimizer.pt").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "model.pt has 100 bytes instead of"),
        (flip_a_bit, "model.pt does not match its sha256"),
        (change_the_marker("$", "}"), "checkpoint.json is damaged"),
        (change_the_marker('"step": 300', '"step": 100'), "checkpoint.json is damaged"),
        (change_the_marker('"size": [0-9]+', '"size": 1e400'), "checkpoint.json is damaged"),
        (change_the_marker("^{", '{"settings": null,'), "checkpoint.json is damaged"),
        (change_the_marker(".*", '{"step": 300, "files": {}}'), "checkpoint.json is damaged"),
        (make_a_pipe_of(MARKER), "checkpoint.json cannot be read: it is no ordinary file"),
        (make_a_pipe_of("model.pt"), "model.pt cannot be read: it is no ordinary file"),
        (remove_a_file, "optimizer.pt cannot be read: No such file"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    tmp_path: Path, damage: Any, message: str
) -> None:
    write(tmp_path, 100)
    write(tmp_path, 200)
    damage(write(tmp_path, 300))
    step, ((bad, why),) = newest(tmp_path)
    assert (step, bad) == (200, 300)
    assert message in why
    aside = disk.set_aside(tmp_path, 300)
    assert aside.name == "step-000000300.corrupt"
    assert newest(tmp_path) == (200, [])
    damage(write(tmp_path, 300))
    assert disk.set_aside(tmp_path, 300).name == "step-000000300.corrupt-1"


@pytest.mark.parametrize("damage", [remove_the_marker, empty])
def test_a_directory_without_its_marker_is_no_checkpoint(tmp_path: Path, damage: Any) -> None:
    write(tmp_path, 100)
    damage(write(tmp_path, 300))
    damage(write(tmp_path, 400))
    assert steps_on_disk(tmp_path) == [100]
    assert newest(tmp_path) == (100, [])
    disk.prune(tmp_path, 1)
    assert newest(tmp_path) == (100, [])
    write(tmp_path, 300)
    assert newest(tmp_path) == (300, [])


def test_a_marker_that_cannot_be_read_is_a_checkpoint_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, 100)
    place = write(tmp_path, 200)
    (place / MARKER).unlink()
    (place / MARKER).symlink_to(MARKER)  # a circle, as it is no errno of an absent file
    assert steps_on_disk(tmp_path) == [100, 200]


def test_an_empty_directory_or_none_is_a_fresh_start(tmp_path: Path) -> None:
    assert newest(tmp_path) == (None, [])
    assert newest(tmp_path / "not there") == (None, [])
    (tmp_path / "step-12").mkdir()
    (tmp_path / "notes.txt").touch()
    assert newest(tmp_path) == (None, [])


def test_a_file_that_runs_code_when_unpickled_is_not_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.system, (f"touch {tmp_path}/pwned",))

    disk.write(tmp_path, 1, {"model.pt": Bomb()}, {}, "a-1", lambda: None)
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        disk.read(step_directory(tmp_path, 1), 1).load("model.pt")
    assert not (tmp_path / "pwned").exists()


def test_a_write_that_may_not_be_published_leaves_nothing(tmp_path: Path) -> None:
    def no() -> None:
        raise PermissionError("fenced off")

    write(tmp_path, 100)
    with pytest.raises(PermissionError):
        write(tmp_path, 200, may_publish=no)
    assert os.listdir(tmp_path) == ["step-000000100"]


def test_a_full_disk_leaves_the_checkpoint_before_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 100)

    class Full(disk._Hashing):
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "_Hashing", Full)
    with pytest.raises(OSError, match="No space left") as caught:
        write(tmp_path, 200)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == ["step-000000100"]


def test_a_second_writer_of_the_same_step_does_not_touch_the_first_ones(tmp_path: Path) -> None:
    place = write(tmp_path, 100, "old-1")
    inode = (place / "model.pt").stat().st_ino
    write(tmp_path, 100, "new-1")
    assert (place / "model.pt").stat().st_ino == inode
    assert os.listdir(tmp_path) == [place.name]


def test_a_good_checkpoint_replaces_a_bad_one_of_the_same_name(tmp_path: Path) -> None:
    truncate(write(tmp_path, 100))
    write(tmp_path, 100)
    assert newest(tmp_path) == (100, [])
    assert sorted(os.listdir(tmp_path)) == ["step-000000100", "step-000000100.corrupt"]


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    for step in range(100, 600, 100):
        write(tmp_path, step)
        disk.prune(tmp_path, 2)
    assert steps_on_disk(tmp_path) == [400, 500]


def test_what_dead_writers_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-step-000000100-dead-1").mkdir()
    (tmp_path / ".tmp-step-000000100-dead-1" / "model.pt").write_bytes(b"half")
    disk.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == []


def test_what_one_writer_has_begun_is_removed_even_while_it_writes(tmp_path: Path) -> None:
    (tmp_path / ".tmp-step-000000100-other-1").mkdir()

    def gone() -> None:
        disk.remove_leftovers(tmp_path, "slurm.4711.0-1")

    with pytest.raises(FileNotFoundError):
        disk.write(tmp_path, 100, {"model.pt": {}}, {}, "slurm.4711.0-1", gone)
    assert os.listdir(tmp_path) == [".tmp-step-000000100-other-1"]


def on_cpu() -> Copies:
    return Copies(torch.device("cpu"))


def test_a_copy_has_the_bytes_of_the_state_and_the_next_one_uses_its_memory() -> None:
    large = torch.arange(100_005, dtype=torch.float32)
    tensors = [
        torch.randn(3, 5, 7).permute(2, 0, 1), large, torch.tensor(2.5, dtype=torch.bfloat16), torch.zeros(0, 3),
        torch.randn(4).expand(3, 4), torch.ones(3, dtype=torch.bool), torch.arange(12)[::2], torch.randn(17),
        torch.ones(65, dtype=torch.bool), torch.randn(3),
    ]  # fmt: skip
    copies, places = on_cpu(), []
    for _ in range(2):
        copied = copies.take({"all": tensors})["all"]
        for one, other in zip(tensors, copied, strict=True):
            assert torch.equal(one, other)
            assert other.is_cpu
            assert other.data_ptr() != one.data_ptr() or not one.numel()
        kept, plain = io.BytesIO(), io.BytesIO()
        torch.save(copied, kept)
        torch.save([each.to("cpu", copy=True) for each in tensors], plain)
        assert kept.getvalue() == plain.getvalue()
        places.append([copied[n].data_ptr() for n in (0, 1, 2, 5, 7)])
        large += 1
    assert places[0] == places[1]
    ends = sorted(
        (at, at + tensors[n].nbytes) for at, n in zip(places[0], (0, 1, 2, 5, 7), strict=True)
    )
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


class Wrapped(torch.Tensor):
    """A tensor that, like a DTensor, is not copied into a plain one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.Tensor.copy_
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_of_other_kinds_are_copied_by_torch() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8)
    wrapped = torch.ones(3).as_subclass(Wrapped)
    copies = on_cpu()
    for _ in range(2):
        copied = copies.take([quantized, wrapped, torch.ones(2)])
        assert torch.equal(copied[0].dequantize(), quantized.dequantize())
        assert (type(copied[1]), copied[1].tolist()) == (Wrapped, [1, 1, 1])
    grown = copies.take([torch.ones(100_000)])
    assert grown[0].sum() == 100_000


def test_tied_weights_are_copied_and_stored_once() -> None:
    weight = torch.zeros(1000)
    copies = on_cpu().take({"a": weight, "b": weight.view(1000), "c": [weight[:10], (3, None)]})
    weight.fill_(1)
    assert copies["a"].data_ptr() == copies["b"].data_ptr()
    assert copies["a"].sum() == 0
    assert copies["c"][0].sum() == 0
    assert copies["c"][1] == (3, None)


class Moments(NamedTuple):
    first: torch.Tensor
    count: int


def test_named_tuples_and_the_versions_of_modules_come_back(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    state = {"model": model.state_dict(), "moments": [Moments(torch.ones(2), 3)]}
    files = {"model.pt": on_cpu().take(state)}
    disk.write(tmp_path, 1, files, {}, "a-1", lambda: None)
    found = disk.read(step_directory(tmp_path, 1), 1).load("model.pt")
    (moments,) = found["moments"]
    assert isinstance(moments, Moments)
    assert (moments.first.tolist(), moments.count) == ([1.0, 1.0], 3)
    # Without it BatchNorm takes the state for one of 2018, and makes up what that did not have.
    assert found["model"]._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    assert found["model"]._metadata["0"] == {"version": 2}
    assert type(on_cpu().take((1, [torch.zeros(1)]))) is tuple


@pytest.fixture
def checkpointer(tmp_path: Path) -> Checkpointer:
    fence: Any = SimpleNamespace(check=lambda: None, attempt="a", generation=1)
    manifest: Any = SimpleNamespace(marker=dict)
    return Checkpointer(tmp_path, fence, Period(mean_s=7200.0), 3, manifest)


def state(step: int) -> Any:
    part, model = SimpleNamespace(state_dict=dict), torch.nn.Linear(2, 2)
    selection = SimpleNamespace(metric="")
    return SimpleNamespace(
        model=model, step=step, selection=selection, optimizers=(part,), scaler=part
    )


def test_the_state_may_change_as_soon_as_it_is_copied(
    checkpointer: Checkpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, write, at = threading.Event(), disk.write, state(1)

    def slow(*arguments: Any) -> None:
        assert go_on.wait(10)
        write(*arguments)

    monkeypatch.setattr(disk, "write", slow)
    before = at.model.weight.detach().clone()
    checkpointer.save(at)
    checkpointer.wait_copied()
    at.model.weight.data.fill_(7)
    assert not checkpointer.due(10**6), "one at a time"
    go_on.set()
    checkpointer.finish(at)
    assert torch.equal(disk.read(step_directory(tmp_path, 1), 1).load("model.pt")["weight"], before)


def test_a_failed_write_is_told_and_does_not_block_the_next(
    checkpointer: Checkpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "x")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        checkpointer.save(state(1))
        checkpointer.settle()
        with pytest.raises(SaveFailedError, match=r"of step 2 could not be .*: no space left on"):
            checkpointer.finish(state(2))
    said = capsys.readouterr().err
    assert "step 1 could not be written (no space left " in said
    checkpointer.finish(state(3))
    assert steps_on_disk(tmp_path) == [3]


@pytest.mark.parametrize(
    ("cost", "mean", "interval"),
    [
        (10.0, 7200.0, math.sqrt(2 * 10 * 7200)),  # Young
        (100.0, 120.0, 200.0),  # slower than it is interrupted: half of the time is for checkpoints
        (0.5, 100.0, 10.0),
        (40.0, 100.0, 89.44271909999159),
        (0.0, 7200.0, 0.0),
    ],
)
def test_youngs_interval_and_its_bounds(cost: float, mean: float, interval: float) -> None:
    assert best_interval(cost, mean) == pytest.approx(interval)


def test_the_interval_follows_what_a_checkpoint_takes_and_is_said_when_it_matters(
    checkpointer: Checkpointer, capsys: pytest.CaptureFixture[str]
) -> None:
    for cost in (10.0, 12.0, 40.0):
        checkpointer._measured(cost, 7200.0)
    for line, cost, interval in zip(
        capsys.readouterr().err.splitlines(), ("10.0", "40.0"), (379, 759), strict=True
    ):
        assert f" {cost} s and " in line
        assert " 7200 s: " in line
        assert line.endswith(f" {interval} s apart")
