"""manifest.json and what lies beside it: which starts a run had, on what, from which bundle and data."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import re
import struct
import sys
import tarfile
import threading
import time
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.workers import TIMEOUT_S, run
from tests.train.world import in_world
from train.base.errors import TrainError
from train.checkpoint import disk, weights
from train.distributed.agreement import assemble
from train.distributed.process_group import World
from train.run import bundle, manifest
from train.run.manifest import RunManifest, fingerprint
from train.run.node import Node
from train.run.provenance import merged, read_manifest
from train.training import numerics
from train.training.environment import distributions, identity

PARTS = Path(__file__).with_name("own_parts.py")


def made_bundle(place: Path, **files: str) -> Path:
    """As ddpgen writes one."""
    place.mkdir(exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    text = json.dumps({"files": sums, "name": "é"}, indent=2, sort_keys=True, ensure_ascii=False)
    (place / bundle.LISTING).write_text(text + "\n")
    return place


def short(start: dict[str, Any]) -> dict[str, Any]:
    """A start without what is another every time, or is long."""
    left_out = (
        "attempt", "started", "ended", "argv", "settings", "hosts", "data", "code", "tier", "stages",
    )  # fmt: skip
    return {name: value for name, value in start.items() if name not in left_out}


def test_each_start_is_on_record_and_each_checkpoint_names_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "PACKAGE_ROOT", made_bundle(tmp_path / "bundle", a="1"))
    monkeypatch.setenv("DDPGEN_TIER", "local")
    (name,) = {bundle.keep_archive(tmp_path, bundle.PACKAGE_ROOT)}
    directory, data = tmp_path / "run", tmp_path / "words"
    data.write_text("some words")

    def trained(processes: int, *arguments: str) -> list[int | None]:
        given = ["--checkpoint-every=4 steps", f'--arg=data_files=["{data}"]', *arguments]
        return run(directory, f"{PARTS}:described", processes, *given).codes

    with monkeypatch.context() as patch:
        patch.setattr(disk, "prune", lambda *_: os._exit(9))  # when a checkpoint is written
        assert trained(1) == [9]
    (killed,) = read_manifest(directory)["starts"]
    assert "end" not in killed  # nobody has looked yet
    data.write_text("other words")
    assert trained(2, "--steps=8", "--lr=0.1", "--accept-changes") == [0, 0]
    manifest = read_manifest(directory)
    first, second = manifest["starts"]
    assert short(first) == {
        "generation": 1, "from_step": 0, "last_step": 6, "bundle": name, "world_size": 1, "shares": [12],
        "end": "killed", "reason": "", "step": 4,
    }  # fmt: skip
    last = torch.load(directory / "step-000000008/model.pt", weights_only=True)
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
    assert short(second) == {
        "generation": 1, "from_step": 4, "last_step": 8, "bundle": name, "world_size": 2, "shares": [6, 6],
        "accepted": ["lr: 0.05 -> 0.1"], "end": "done", "reason": "", "step": 8,
        "loss": [row["loss"] for row in rows if row["kind"] == "step"][-1],
        "weights": weights.weights_sha256(last),
    }  # fmt: skip
    for start in (first, second):
        stages = start["stages"]
        assert sorted(stages, key=stages.get) == [
            "launcher", "process", "torch import", "rendezvous", "model", "restore", "checks", "first step",
        ]  # fmt: skip
        # The records are opened after the checks and before the first step.
        assert stages["checks"] <= start["started"] <= stages["first step"] <= time.time()
    assert second["stages"]["launcher"] == pytest.approx(first["stages"]["launcher"], abs=0.1)
    assert first["stages"]["first step"] < second["stages"]["process"]
    assert second["started"] < second["ended"]
    assert "--lr=0.1" in second["argv"]
    assert second["settings"] == manifest["settings"] != first["settings"]
    (here,) = manifest["environments"]
    ((host, about),) = second["hosts"].items()
    assert (host, about) == (
        os.uname().nodename,
        {"ranks": [0, 1], "nic": "lo", "environment": here},
    )
    assert first["hosts"][host]["ranks"] == [0]
    assert first["data"]["files"][str(data)]["sha256"] == hashlib.sha256(b"some words").hexdigest()
    assert second["data"] == {
        "files": {
            str(data): {
                "size": 11,
                "mtime": data.stat().st_mtime,
                "sha256": hashlib.sha256(b"other words").hexdigest(),
            }
        },
        "fingerprint": "points 1",
    }
    ends = ("ended", "end", "reason", "step", "loss", "weights")
    for step, start in ((4, first), (8, second)):
        marker = json.loads((directory / f"step-{step:09d}/checkpoint.json").read_text())
        assert marker["start"] == {k: v for k, v in start.items() if k not in ends}
        assert marker["environments"] == manifest["environments"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda text: text[: len(text) // 2],
            r"is no whole JSON \(\d+ bytes\): truncated, or edit",
        ),
        (lambda text: "{}", "has no schema: "),
        (lambda text: text.replace('"schema": 2', '"schema": 3'), "has schema 3, and this version"),
        (lambda text: text.replace('"shares": [', '"shares": 1, "x": ['), "is damaged: starts"),
        (lambda text: text.replace('"starts": ', '"starts": [], "x": '), "is damaged: starts"),
        (lambda text: re.sub('"environments": {', '"environments": 1, "x": {', text), "is damaged"),
        (None, "is not there; "),
    ],
)
def test_a_manifest_that_makes_no_sense_is_one_clear_error_and_stops_no_training(
    tmp_path: Path, change: Any, what: str
) -> None:
    path = tmp_path / "manifest.json"
    assert run(tmp_path, f"{PARTS}:described", 1).codes == [0]
    text = path.read_text()
    path.unlink()
    if change is not None:
        path.write_text(change(text))
    with pytest.raises(TrainError, match=f"^{path} {what}"):
        read_manifest(tmp_path)
    again = run(tmp_path, f"{PARTS}:described", 1, "--steps=7")
    assert again.codes == [0], again.output
    # What the checkpoint knows of the start that wrote it is not lost with the file.
    assert [start["last_step"] for start in read_manifest(tmp_path)["starts"]] == [6, 7]
    aside = list(tmp_path.glob("manifest.json.*"))
    assert len(aside) == ("aside as manifest.json.2" in again.output) == (change is not None)


def test_starts_known_from_several_places_are_one_each_in_their_order() -> None:
    def start(attempt: str, started: float, **more: Any) -> dict[str, Any]:
        about = {"attempt": attempt, "generation": 1, "started": started}
        return {**about, "bundle": "", "data": {}, **more}

    a, b, c = start("a", 1.0), start("b", 2.0), start("c", 3.0)
    ended = {**a, "end": "done"}
    assert merged([c, a, b, ended, a]) == [ended, b, c]
    # A checkpoint was written before the data files were hashed, or a stop came before that.
    hashed = {**a, "bundle": "0123456789ab", "data": {"fingerprint": "1"}}
    whole = {**hashed, "end": "done"}
    assert merged([hashed, ended]) == merged([ended, hashed]) == [whole]
    assert merged([a, hashed]) == merged([hashed, a]) == [hashed]
    staged = {**a, "stages": {"first step": 1.5}}
    assert merged([a, staged]) == merged([staged, a]) == [staged]


def test_nothing_waits_for_data_files_that_take_long_to_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "PACKAGE_ROOT", made_bundle(tmp_path / "bundle", a="1"))
    monkeypatch.setattr(manifest, "_CHECKPOINTS_S", 0.01)
    monkeypatch.setattr(manifest, "_END_S", 0.0)
    hashing = [threading.Event(), threading.Event()]
    monkeypatch.setattr(manifest, "fingerprint", lambda paths, known: paths[0].wait(60) and {})
    begun = [begun_manifest(tmp_path / name) for name in ("hashed", "too late")]
    for one, event in zip(begun, hashing, strict=True):
        one.complete_with([event], "points 1")  # type: ignore[list-item]
        assert one.marker()["start"]["data"] == {}
        assert one._left_s <= 0, "the next checkpoint waits no more"
    hashing[0].set()
    begun[0]._wait(60)
    begun[0].end("stopped", 3)
    begun[1].end("stopped", 3)
    hashing[1].set()
    begun[1]._wait(60)
    for name, data in (("hashed", {"fingerprint": "points 1"}), ("too late", {})):
        (start,) = read_manifest(tmp_path / name)["starts"]
        assert (start["data"], start["end"]) == (data, "stopped")
    assert begun[0].marker()["start"]["data"] == {"fingerprint": "points 1"}


def begun_manifest(directory: Path) -> RunManifest:
    directory.mkdir()
    start = {
        "attempt": "a", "generation": 1, "tier": "local", "started": 1.0, "from_step": 0, "last_step": 30, "bundle": "",
        "argv": [], "settings": {}, "code": "", "world_size": 1, "shares": [1], "hosts": {}, "data": {},
    }  # fmt: skip
    return RunManifest(directory, lambda: None, {}, start, {}, [])


def test_a_run_ends_while_its_data_files_are_still_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "PACKAGE_ROOT", made_bundle(tmp_path / "bundle", a="1"))
    monkeypatch.setattr(manifest, "_CHECKPOINTS_S", 0.5)
    monkeypatch.setattr(manifest, "_END_S", 0.5)
    monkeypatch.setattr(manifest, "fingerprint", lambda *_: time.sleep(2 * TIMEOUT_S))
    done = run(tmp_path / "run", f"{PARTS}:described", 1)
    assert done.codes == [0], done.output
    (start,) = read_manifest(done.directory)["starts"]
    assert (start["end"], start["step"], start["data"]) == ("done", 6, {})
    assert bundle.archive_path(done.directory, start["bundle"]).exists()


def test_the_kept_bundle_is_the_one_that_ran_even_if_it_was_edited(tmp_path: Path) -> None:
    source = made_bundle(tmp_path / "bundle", code="é", script="exit 0")
    (source / "script").chmod(0o755)
    (source / "a script's own output").touch()
    name = bundle.keep_archive(tmp_path, source)
    assert name == hashlib.sha256((source / "bundle.json").read_bytes()).hexdigest()[:12]
    archive = tmp_path / f"bundles/{name}.tar.gz"
    content, inode = archive.read_bytes(), archive.stat().st_ino
    os.utime(source / "code", (1, 1))
    assert bundle.keep_archive(tmp_path, source) == name
    assert archive.stat().st_ino == inode
    assert bundle.keep_archive(tmp_path / "bundles", source) == name
    assert (tmp_path / f"bundles/bundles/{name}.tar.gz").read_bytes() == content
    (source / "code").write_text("edited")
    (source / "script").unlink()
    edited = bundle.keep_archive(tmp_path, source)
    bundle.unpack(tmp_path, edited, tmp_path / "edited")
    assert sorted(os.listdir(tmp_path / "edited")) == ["bundle.json", "code"]
    # As if ddpgen had rendered it.
    assert bundle.keep_archive(tmp_path / "edited", tmp_path / "edited") == edited
    bundle.unpack(tmp_path, name, tmp_path / "again")
    assert (tmp_path / "again/code").read_text() == "é"
    assert (tmp_path / "again/script").stat().st_mode & 0o777 == 0o755
    assert bundle.keep_archive(tmp_path, tmp_path / "no bundle") == ""


def test_an_archive_that_is_not_whole_or_reaches_out_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"

    def refusal(content: bytes | None, name: str) -> str:
        (tmp_path / "bundles").mkdir(exist_ok=True)
        if content is not None:
            (tmp_path / f"bundles/{name}.tar.gz").write_bytes(content)
        with pytest.raises(TrainError) as error:
            bundle.unpack(tmp_path, name, target)
        assert not target.exists()
        return str(error.value).removeprefix(f"{tmp_path}/bundles/{name}.tar.gz ")

    source = made_bundle(tmp_path / "bundle", a="1")
    name = bundle.keep_archive(tmp_path, source)
    whole = (tmp_path / f"bundles/{name}.tar.gz").read_bytes()
    assert refusal(None, "none").startswith("is not there: ")
    assert refusal(whole[:-100], name).startswith("is damaged (")
    assert refusal(b"", name).startswith("is damaged (")
    assert refusal(whole, "0123456789ab").startswith("holds another bundle ")
    flipped = bytearray(gzip.decompress(whole))
    flipped[flipped.index(b"1", 512)] = ord("2")  # the content of a
    assert "does not match its sha256" in refusal(gzip.compress(bytes(flipped)), name)
    (tmp_path / "outside").write_text("1")
    listing = made_bundle(source, **{"a": "1", "../outside": "1"})
    assert "../outside leads out of it" in refusal(None, bundle.keep_archive(tmp_path, listing))


@pytest.mark.parametrize("where", ["file", "header", "many"])
def test_a_small_archive_that_unpacks_to_a_large_one_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(bundle, "_MOST_BYTES", 1 << 20)
    (tmp_path / "bundles").mkdir()
    zeros = "\0" * (64 << 20)
    with tarfile.open(tmp_path / "bundles/0123456789ab.tar.gz", "w:gz") as tar:
        for n in range(2000 if where == "many" else 1):
            info = tarfile.TarInfo(f"code/{n}")
            info.size = len(zeros) if where == "file" else 1000
            info.pax_headers = {"comment": zeros} if where == "header" else {}
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    tracemalloc.start()
    with pytest.raises(TrainError, match=r"is damaged \(it unpacks to more than 1 MiB\)"):
        bundle.contents(tmp_path, "0123456789ab")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_bundle_that_could_not_be_read_back_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_LARGEST", 9)
    with pytest.raises(OSError, match="more than 0 MiB"):
        bundle.keep_archive(tmp_path, made_bundle(tmp_path / "bundle", a="12345", b="67890"))
    assert bundle.keep_archive(tmp_path, made_bundle(tmp_path / "bundle", a="12345"))


class Watched:
    """A store that remembers what was put into it by this process."""

    def __init__(self, store: Any) -> None:
        self._store, self.names = store, list[str]()

    def set(self, name: str, value: str) -> None:
        self.names.append(name)
        self._store.set(name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_the_hosts_are_reaches_rank_0_once_for_those_that_are_the_same(tmp_path: Path) -> None:
    layout = {"a": [0, 1], "b": [2], "c": [3, 4], "d": [5]}
    processors = {"a": "i9", "b": "i5", "c": "i5", "d": "i9"}

    def body(world: World) -> Any:
        store: Any = Watched(world.store)
        world = dataclasses.replace(world, store=store)
        host = next(name for name, ranks in layout.items() if world.rank in ranks)
        mine = {"cpu": processors[host]}
        node = Node(host, tmp_path, f"attempt-{host}", "")
        met = assemble(world, Fraction(1), {}, identity(mine), tmp_path, node)
        return met.gather_environments(world, mine), store.names, met.hosts()

    found = in_world(6, body, list(layout.values()))
    i9, i5 = identity({"cpu": "i9"}), identity({"cpu": "i5"})
    assert found[0][0] == {i9: {"cpu": "i9"}, i5: {"cpu": "i5"}}
    assert [sent for _, sent, _ in found] == [[], [], [f"environment/{i5}"], [], [], []]
    assert found[0][2] == {
        host: {"ranks": ranks, "nic": "lo", "environment": i5 if host in "bc" else i9}
        for host, ranks in layout.items()
    }


def test_data_files_are_hashed_once_whole_or_by_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("small", 10), ("large", 40), ("more", 10)):
        (tmp_path / name).write_bytes(bytes(range(size)))
    monkeypatch.setattr(manifest, "_WHOLE_BYTES", 20)
    monkeypatch.setattr(manifest, "_ALL_BYTES", 15)
    monkeypatch.setattr(manifest, "_END_BYTES", 4)
    paths = [str(tmp_path / name) for name in ("small", "large", "more", "none")]
    found = fingerprint(paths)

    def sha256(*parts: range) -> str:
        return hashlib.sha256(b"".join(map(bytes, parts))).hexdigest()

    def entry(name: str, size: int, digest: str, **more: bool) -> dict[str, Any]:
        mtime = (tmp_path / name).stat().st_mtime
        return {"size": size, "mtime": mtime, "sha256": digest, **more}

    assert found == {
        paths[0]: entry("small", 10, sha256(range(10))),
        paths[1]: entry("large", 40, sha256(range(4), range(36, 40)), partial=True),
        paths[2]: entry("more", 10, sha256(range(4), range(6, 10)), partial=True),
        paths[3]: {"error": "No such file or directory"},
    }
    before = {path: {**each, "sha256": "as before"} for path, each in found.items()}
    os.utime(paths[1])
    again = fingerprint(paths, before)
    assert [each.get("sha256") for each in again.values()] == [
        "as before", found[paths[1]]["sha256"], "as before", None,
    ]  # fmt: skip


def test_what_is_no_path_costs_its_own_entry_only(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    found = fingerprint(["~nobody-of-this-name/a", "a\0b", str(tmp_path / "a")])
    assert ["error" in each for each in found.values()] == [True, True, False]


def test_the_hash_of_the_weights_is_as_it_is_documented() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t())
            self.register_buffer("n", torch.tensor(7))
            self.register_buffer("none", torch.zeros(0, 3, dtype=torch.bfloat16))

        def get_extra_state(self) -> str:
            return "anything"

    expected = (
        b"w\0float32\0" + b"2,2\0" + struct.pack("<4f", 1.0, 3.0, 2.0, 4.0)
        + b"n\0int64\0\0" + struct.pack("<q", 7)
        + b"none\0bfloat16\0" + b"0,3\0"
    )  # fmt: skip
    assert weights.weights_sha256(Odd().state_dict()) == hashlib.sha256(expected).hexdigest()


def test_the_installed_distributions_are_those_that_python_knows() -> None:
    known: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        known.setdefault(re.sub(r"[-_.]+", "-", each.name).lower(), each.version)
    assert distributions(sys.path) == dict(sorted(known.items()))


def test_the_users_code_has_a_name_by_the_files_of_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "PACKAGE_ROOT", tmp_path)
    assert numerics.code() == ""
    names = []
    for files in ({"train/x.py": "1"}, {"code/a.py": "1"}, {"code/a.py": "2", "train/x.py": "1"}):
        (tmp_path / "bundle.json").write_text(json.dumps({"files": files}))
        names.append(numerics.code())
    assert names[0] == ""
    assert len(set(names)) == 3
