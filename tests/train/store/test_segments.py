"""The rows of metrics.jsonl survive their machine, and no object is ever written twice."""

from __future__ import annotations

import json
from pathlib import Path

from train.checkpoint.segments import Segments
from train.checkpoint.store.places import DirectoryStore


def rows(file: Path) -> list[tuple[str, int]]:
    found = (json.loads(line) for line in file.read_text().splitlines())
    return [(row["kind"], row["step"]) for row in found]


def write(file: Path, *said: tuple[str, int]) -> None:
    with open(file, "a") as out:
        out.writelines(json.dumps({"kind": kind, "step": step}) + "\n" for kind, step in said)


def steps(first: int, last: int) -> list[tuple[str, int]]:
    return [("step", step) for step in range(first, last + 1)]


def test_a_new_machine_has_every_row_up_to_the_step_it_goes_on_from(tmp_path: Path) -> None:
    store, file = DirectoryStore(tmp_path / "store"), tmp_path / "metrics.jsonl"
    segments = Segments(store, file, [], 0)
    write(file, ("start", 0), *steps(1, 3))
    segments.upload(2)  # the training has gone on meanwhile
    write(file, *steps(4, 4), ("eval", 4), *steps(5, 6))
    segments.upload(4)
    assert sorted(store.list("")) == [
        "metrics/000000001-000000002.jsonl",
        "metrics/000000003-000000004.jsonl",
    ]
    elsewhere = tmp_path / "elsewhere" / "metrics.jsonl"
    elsewhere.parent.mkdir()
    again = Segments(store, elsewhere, store.list("metrics/"), 4)
    again.restore()
    assert rows(elsewhere) == [("start", 0), *steps(1, 4), ("eval", 4)]
    write(elsewhere, ("start", 4), *steps(5, 8), ("done", 8))
    again.upload(8)
    again.close()
    third = tmp_path / "third.jsonl"
    Segments(store, third, store.list("metrics/"), 8).restore()
    # The first machine's steps 5 and 6 are done again: the last row of a step counts.
    told = [("start", 0), *steps(1, 4), ("eval", 4), *steps(5, 6)]
    assert rows(third) == [*told, ("eval", 4), ("start", 4), *steps(5, 8), ("done", 8)]


def test_what_is_here_already_is_not_brought_again(tmp_path: Path) -> None:
    store, file = DirectoryStore(tmp_path / "store"), tmp_path / "metrics.jsonl"
    write(file, *steps(1, 6))
    Segments(store, file, [], 0).upload(6)
    short = tmp_path / "short.jsonl"
    write(short, *steps(1, 3))
    with open(short, "a") as out:
        out.write('{"kind": "step", "st')  # cut off by a crash
    Segments(store, short, store.list("metrics/"), 6).restore()
    kept = [line for line in short.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["step"] for line in kept] == [1, 2, 3, 4, 5, 6]
    before = short.read_bytes()
    Segments(store, short, store.list("metrics/"), 6).restore()
    assert short.read_bytes() == before


def test_of_steps_that_were_done_again_both_are_there_and_the_last_counts(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    for name, *said in (
        ("000000001-000000002", *steps(1, 2)),
        ("000000003-000000002", ("eval", 2)),
        ("000000003-000000005", *steps(3, 5)),  # its checkpoint was lost
        ("000000003-000000004", *steps(3, 4)),
        ("notes",),
    ):
        content = "".join(json.dumps({"kind": kind, "step": step}) + "\n" for kind, step in said)
        store.write(f"metrics/{name}.jsonl", content.encode())
    file = tmp_path / "metrics.jsonl"
    Segments(store, file, store.list("metrics/"), 4).restore()
    assert rows(file) == [*steps(1, 2), ("eval", 2), *steps(3, 4)]
    file.unlink()
    Segments(store, file, store.list("metrics/"), 5).restore()
    assert rows(file) == [*steps(1, 2), ("eval", 2), *steps(3, 4), *steps(3, 5)]
