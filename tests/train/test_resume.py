"""Every process gets the newest checkpoint that any host has, from its own disk or in pieces from another's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.train.world import in_world
from train.base.errors import TrainError
from train.checkpoint import disk, resume
from train.distributed.process_group import World
from train.run.layout import step_directory

FILES = ("model.pt", "optimizer.pt")
# Three hosts, with one, two and two processes.
LAYOUT = [[0], [1, 2], [3, 4]]


def content(seed: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    return {name: {"w": torch.rand(1000, generator=made)} for name in FILES}


def write(directory: Path, step: int, seed: int) -> None:
    disk.write(directory, step, content(seed), {"run": seed}, "a-1", lambda: None)


def resumed(place: Path, layout: list[list[int]] = LAYOUT) -> list[Any]:
    """Of each rank: step, holder, whether the content is that of the seed, how many pieces came."""

    def body(world: World) -> Any:
        host = next(n for n, ranks in enumerate(layout) if world.rank in ranks)
        pieces: list[int] = []
        pass_on = resume.SentCheckpoint._pass_on

        def counted(self: Any, piece: Any) -> None:
            if self._host:
                pieces.append(len(piece))
            pass_on(self, piece)

        resume.SentCheckpoint._pass_on = counted  # type: ignore[method-assign]
        found = resume.find_newest(place / str(host), world, lambda: None)
        if found is None:
            return None
        loaded = {name: found.source.load(name) for name in FILES}
        wanted = content(found.source.meta["run"])
        same = all(torch.equal(loaded[name]["w"], wanted[name]["w"]) for name in FILES)
        return found.source.step, found.rank, same, len(pieces)

    return in_world(sum(map(len, layout)), body, layout)


@pytest.mark.parametrize(
    ("on_disk", "expected"),
    [
        ({}, [None] * 5),
        # The same everywhere, as with a shared directory: nothing is sent.
        ({0: [(5, 1)], 1: [(5, 1)], 2: [(5, 1)]}, [(5, 0, True, 0)] * 5),
        # On the second host alone: one process of each other host gets it, and hands it on.
        ({1: [(5, 1)]}, [(5, 1, True, 2), *[(5, 1, True, 0)] * 2, *[(5, 1, True, 2)] * 2]),
        # The newest one counts, and who has an older one gets it.
        (
            {0: [(5, 1)], 1: [(5, 1)], 2: [(5, 1), (9, 2)]},
            [*[(9, 3, True, 2)] * 3, *[(9, 3, True, 0)] * 2],
        ),
        # A step of the same number and of other content is another one: the first host's counts.
        ({0: [(5, 1)], 2: [(5, 3)]}, [(5, 0, True, 0), *[(5, 0, True, 2)] * 4]),
    ],
    ids=["nowhere", "everywhere", "on_one", "newer_on_one", "of_two_runs"],
)
def test_all_get_the_newest(
    on_disk: Mapping[int, list[tuple[int, int]]], expected: list[Any], tmp_path: Path
) -> None:
    for host, held in on_disk.items():
        for step, seed in held:
            write(tmp_path / str(host), step, seed)
    assert resumed(tmp_path) == expected


def test_a_large_one_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "PIECE_BYTES", 1000)
    write(tmp_path / "0", 5, 1)
    size = sum((tmp_path / "0" / "step-000000005" / name).stat().st_size for name in FILES)
    first, *others = resumed(tmp_path, [[0], [1, 2]])
    assert first == (5, 0, True, 0)
    for step, holder, same, pieces in others:
        assert (step, holder, same) == (5, 0, True)
        assert pieces >= size // 1000


def test_nobody_is_in_a_collective_while_a_host_still_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those end by the collective timeout, at every restart again."""
    look, wait_for = resume._newest_on_disk, World.wait_for

    def waits(self: World, name: str, timeout_s: float) -> bool:
        self.store.set("test/waits", "yes")
        return wait_for(self, name, timeout_s)

    def body(world: World) -> Any:
        def slow(directory: Path, rank: int, may_tidy: Any) -> Any:
            if rank == 0:  # it reads until the other one has come to where it waits
                world.store.wait(["test/waits"], timedelta(seconds=20))
            return look(directory, rank, may_tidy)

        monkeypatch.setattr(resume, "_newest_on_disk", slow)
        monkeypatch.setattr(World, "wait_for", waits)
        found = resume.find_newest(tmp_path, world, lambda: None)
        return found and found.source.step

    write(tmp_path, 5, 1)
    assert in_world(2, body, [[0], [1]]) == [5, 5]


def test_what_changes_on_its_way_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 5, 1)
    whole = disk.read(step_directory(tmp_path, 5), 5)
    monkeypatch.setattr(resume.SentCheckpoint, "_pass_on", lambda *pieces: None)  # all zeros, then
    sent = resume.SentCheckpoint(
        whole, SimpleNamespace(rank=1, new_group=lambda *words: None), 0, [(1,)]
    )  # type: ignore[arg-type]
    with pytest.raises(TrainError, match="of step 5 changed on its way"):
        sent.load("model.pt")
