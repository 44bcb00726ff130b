"""What a user's script gets without an edit to it: steps counted, saves that are whole, no start over progress."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.train.own_script import ROOT, ForkedJob, Job, wait_for_line
from train.script.hooks.order import DataPosition, order_fault
from train.script.hooks.progress import (
    BeginsAnewError,
    Progress,
    interrupted_saves,
    whole_checkpoints,
)
from train.script.hooks.session import Session
from train.script.hooks.stopping import StopAtStep

LOOP = """\
import os, sys, time
import torch
given = dict(word.lstrip("-").split("=") for word in sys.argv[1:])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
if given.get("init_from") == "resume":
    kept = torch.load("ckpt.pt", weights_only=True)
    model.load_state_dict(kept["model"])
    step = kept["step"]
print("begins at", step, flush=True)
while step < int(given["steps"]):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    step += 1
    time.sleep(float(given.get("pause", "0")))
    if step % 5 == 0:
        torch.save({"model": model.state_dict(), "step": step}, "ckpt.pt")
print("ends at", step, flush=True)
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return ForkedJob(tmp_path)


@pytest.fixture
def started(tmp_path: Path) -> Job:
    """In an interpreter of its own, where the script is the first to import torch."""
    return Job(tmp_path)


GO_ON = ("--resume-exists=ckpt-*.pt", "--resume-exists=ckpt.pt", "--resume-arg=--init_from=resume")
BY_ITSELF = ('given.get("init_from") == "resume"', 'os.path.exists("ckpt.pt")')
TO_AN_OPEN_FILE = ('"ckpt.pt")\nprint', 'open("ckpt.pt", "wb"))\nprint')


@pytest.mark.parametrize(
    ("change", "options", "begins"),
    [
        pytest.param(("", ""), GO_ON, 10, marks=pytest.mark.nightly),
        pytest.param(TO_AN_OPEN_FILE, (), None, marks=pytest.mark.nightly),
        pytest.param(BY_ITSELF, (), 10, marks=pytest.mark.nightly),
        pytest.param(("", ""), ("--from-scratch",), 0, marks=pytest.mark.nightly),
    ],
)
def test_a_restart_goes_on_from_what_was_saved_or_is_refused(
    started: Job, change: tuple[str, str], options: tuple[str, ...], begins: int | None
) -> None:
    text = LOOP.replace(*change)
    assert started.run(text, options, "--steps=10") == (0, "begins at 0\nends at 10\n")
    assert started.status == started.says("done", step=10)
    kept = (started.work / "ckpt.pt").read_bytes()
    code, said = started.run(text, options, "--steps=12")
    if begins is not None:
        assert (code, said) == (0, f"begins at {begins}\nends at 12\n")
        assert started.status == started.says("done", step=12)
        return
    assert (code, started.status.word) == (1, "failed")
    assert "ddpgen: the script starts over, " in said
    assert "train.resume" in said
    assert (started.work / "ckpt.pt").read_bytes() == kept


# Ways in which a script gives a file that it has saved under another name its own.
RENAMES = {
    "timm": "os.path.exists(to) and os.unlink(to); os.rename(tmp, to)",
    "replace": "os.replace(tmp, to)",
    "pathlib": "pathlib.Path(tmp).replace(to)",
    "move": "shutil.move(tmp, to)",
    "link": "os.path.exists(to) and os.unlink(to); os.link(tmp, to); os.unlink(tmp)",
    "bytes": "os.rename(os.fsencode(tmp), os.fsencode(to))",
    "directory": "shutil.rmtree('out', True); os.mkdir('new'); os.rename(tmp, 'new/' + tmp); os.rename('new', 'out')",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=() if way in ("timm", "move") else pytest.mark.nightly)
        for way in RENAMES
    ],
)
def test_a_save_that_is_renamed_is_not_trained_over(job: Job, way: str) -> None:
    save = f"tmp, to = 'tmp.pt', 'ckpt.pt'; torch.save([step], tmp); {RENAMES[way]}"
    text = LOOP.replace("import torch", "import pathlib, shutil, torch")
    text = re.sub(r"torch\.save\(.*\)", lambda _: save, text)
    assert job.run(text, (), "--steps=10")[0] == 0
    kept = job.work / ("out/tmp.pt" if way == "directory" else "ckpt.pt")
    before = kept.read_bytes()
    record = job.directory / "script" / "saves-0.jsonl"
    assert json.loads(record.read_text().splitlines()[-1])["path"] == str(kept)
    progress = Progress(record)
    progress.loaded(str(kept))
    assert progress.step == 10
    code, said = job.run(text, (), "--steps=12")
    assert (code, job.status.word) == (1, "failed")
    assert f" has saved {kept}; " in said
    assert kept.read_bytes() == before


@pytest.mark.slow
def test_a_refusal_names_the_crash_before_it(job: Job) -> None:
    assert job.run(LOOP + "raise ValueError('mine')\n", (), "--steps=10")[0] == 1
    kept = (job.work / "ckpt.pt").read_bytes()
    code, said = job.run(LOOP, (), "--steps=12")
    assert (code, job.status.word) == (1, "failed")
    assert "ddpgen: the script starts over, " in said
    assert "train.resume" in said
    assert "after this crash: rank 0: ValueError: mine (loop.py:" in job.status.reason
    assert (job.work / "ckpt.pt").read_bytes() == kept


def test_a_save_that_fails_or_is_killed_leaves_the_one_before(job: Job) -> None:
    assert job.run(LOOP, (), "--steps=5")[0] == 0
    with open(job.work / "ckpt.pt", "rb") as file:
        kept = file.read()
        again = "import torch\ntorch.load('ckpt.pt', weights_only=True)\ntorch.save(1, 'ckpt.pt')\n"
        assert job.run(again)[0] == 0
        file.seek(0)
        assert file.read() == kept  # the new one has another inode
    kept = (job.work / "ckpt.pt").read_bytes()
    unpicklable = "import torch\ntorch.load('ckpt.pt', weights_only=True)\ntorch.save([torch.ones(9), lambda: 0], 'ckpt.pt')\n"
    assert job.run(unpicklable)[0] == 1
    assert sorted(os.listdir(job.work)) == ["ckpt.pt", "loop.py"]
    killed = "import os, torch\ntorch.load('ckpt.pt', weights_only=True)\nclass Kill:\n    def __reduce__(self): os.kill(os.getpid(), 9)\n"
    assert job.run(killed + "torch.save([torch.ones(9), Kill()], 'ckpt.pt')\n")[0] == -9
    assert (job.work / "ckpt.pt").read_bytes() == kept
    assert len(os.listdir(job.work)) == 3  # what the kill has left
    assert job.run("print('ran')\n")[0] == 0
    assert sorted(os.listdir(job.work)) == ["ckpt.pt", "loop.py"]


def test_a_file_that_is_saved_has_the_bytes_that_torch_gives_it(job: Job) -> None:
    text = """\
import torch, torch.serialization
plain = torch.save.__wrapped__
torch.save({"a": torch.arange(9)}, "a.pt")
with_hook = open("a.pt", "rb").read()
plain({"a": torch.arange(9)}, "a.pt")
assert open("a.pt", "rb").read() == with_hook
import pickle
assert pickle.loads(pickle.dumps(torch.save)) is torch.save
"""
    assert job.run(text) == (0, "")


def test_what_the_hooks_cannot_write_costs_the_script_nothing(job: Job) -> None:
    (job.directory / "metrics.jsonl").mkdir()
    (job.directory / "script").write_text("in the way")
    code, said = job.run(LOOP, (), "--steps=30", "--pause=0.05")
    assert (code, said.splitlines()[-1]) == (0, "ends at 30")
    assert said.count("metrics cannot be kept (IsADirectoryError") == 1
    assert said.count("saves cannot be kept (File exists)") == 1


def test_a_stop_comes_after_the_next_save(job: Job) -> None:
    process = job.begin(LOOP, (), "--steps=100000", "--pause=0.01")
    assert wait_for_line(process) == "begins at 0"
    while not (job.directory / "script" / "saves-0.jsonl").exists():
        assert process.poll() is None
    (job.directory / "stop").write_text("enough\n")
    assert process.wait(60) == 0
    assert (job.status.word, job.status.reason) == ("stopped", "enough")
    assert job.status.step % 5 == 1  # at the end of the step after a save


@pytest.mark.parametrize(
    ("saves", "waits"),
    [pytest.param("never", False, marks=pytest.mark.nightly), ("step == 5", True)],
)
def test_a_stop_waits_for_a_save_only_where_one_may_come(job: Job, saves: str, waits: bool) -> None:
    text = LOOP.replace("step % 5 == 0", repr(saves) + " == ''" if saves == "never" else saves)
    process = job.begin(text, ("--stop-grace=2s",), "--steps=100000", "--pause=0.01")
    assert wait_for_line(process) == "begins at 0"
    while waits and not (job.directory / "script" / "saves-0.jsonl").exists():
        assert process.poll() is None
    (job.directory / "stop").write_text("enough\n")
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, job.status.word) == (0, "stopped")
    assert ("next save, or in 1 s" in said) is waits


@pytest.mark.nightly
def test_in_a_bucket_it_keeps_whole_objects_and_their_record(job: Job, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    text = LOOP.replace('"ckpt.pt"', 'os.environ["DDPGEN_CHECKPOINT_DIR"] + "/ckpt.pt"')
    resume = (f"--resume-exists={bucket}/ckpt.pt", "--resume-arg=--init_from=resume")
    variables = {"DDPGEN_CHECKPOINT_STORE": str(bucket)}
    assert job.run(text, resume, "--steps=10", **variables)[0] == 0
    assert sorted(path.name for path in bucket.rglob("*")) == ["ckpt.pt", "saves-0.jsonl", "script"]
    # Another machine has nothing but the bucket.
    other = Job(tmp_path / "other")
    assert "the script starts over" in other.run(text, (), "--steps=12", **variables)[1]
    another = Job(tmp_path / "another")
    assert another.run(text, resume, "--steps=12", **variables)[1] == "begins at 10\nends at 12\n"


def test_its_steps_are_in_the_metrics(job: Job) -> None:
    text = """\
import time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
time.sleep(2)
for _ in range(30):
    for _ in range(4):  # gradient accumulation
        scaler.scale(((weight + 6) / 4).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    time.sleep(0.05)
"""
    assert job.run(text)[0] == 0
    rows = [json.loads(line) for line in (job.directory / "metrics.jsonl").read_text().splitlines()]
    assert rows
    assert {row["attempt"] for row in rows} == {job.attempt}
    assert all(row["kind"] == "step" and 0 < row["step"] <= 30 for row in rows)
    assert {row["loss"] for row in rows} == {6.0}
    assert rows[0]["steps_per_s"] > 1  # without what came before the first step


GROUP = "torch.distributed.is_initialized = lambda: True\n"


@pytest.mark.parametrize(
    ("begins", "variables", "told"),
    [
        ("", {"WORLD_SIZE": "2"}, True),
        # Once is enough.
        pytest.param("", {"WORLD_SIZE": "2", "RANK": "1"}, False, marks=pytest.mark.nightly),
        pytest.param("", {"WORLD_SIZE": "1"}, False, marks=pytest.mark.nightly),
        (GROUP, {"WORLD_SIZE": "2"}, False),
    ],
)
def test_processes_that_train_each_for_itself_are_told_of(
    begins: str, variables: dict[str, str], told: bool, job: Job
) -> None:
    text = LOOP.replace("import torch\n", f"import torch\n{begins}")
    code, said = job.run(text, (), "--steps=3", **variables)
    assert (code, "ends at 3" in said) == (0, True)
    assert said.count(", each for itself") == told
    assert "cannot be" not in said


def test_who_loads_from_its_checkpoint_goes_on_and_knows_the_step(tmp_path: Path) -> None:
    record, place = tmp_path / "saves-0.jsonl", tmp_path / "checkpoint-9"
    place.mkdir()
    progress = Progress(record)
    for _ in range(9):
        progress.stepped()
    progress.saved(str(place))

    other = Progress(record)
    other.loaded("/pretrained/model.pt")
    with pytest.raises(BeginsAnewError):
        other.check(str(place))
    with pytest.raises(BeginsAnewError):
        other.stepped()
    progress = Progress(record)
    progress.loaded(str(place / "model.pt"))
    progress.stepped()
    assert (progress.step, progress.steps_taken) == (10, 1)
    early = Progress(record, from_scratch=True)
    early.stepped()
    early.loaded(str(place / "model.pt"))  # to compare with, say
    assert early.step == 1


def test_a_fresh_start_renames_nothing_over_what_was_saved(tmp_path: Path) -> None:
    record, kept = tmp_path / "saves-0.jsonl", tmp_path / "ckpt.pt"
    kept.touch()
    Progress(record).saved(str(kept))
    anew = Progress(record)
    anew.renamed(str(kept), str(tmp_path / "ckpt.pt.1"))  # of its own accord
    anew.renamed(str(tmp_path / "unknown"), str(kept))
    anew.saved(str(tmp_path / "tmp.pt"))
    with pytest.raises(BeginsAnewError):
        anew.renamed(str(tmp_path / "tmp.pt"), str(kept))


def test_a_start_that_renames_an_earlier_save_and_loads_it_goes_on(tmp_path: Path) -> None:
    record, kept, renamed = (tmp_path / name for name in ("saves-0.jsonl", "last.pt", "resume.pt"))
    kept.touch()
    saver = Progress(record)
    saver.stepped()
    saver.saved(str(kept))
    for own in (
        record,
        tmp_path / "saves-1.jsonl",
    ):  # rank 0, and another one, which has saved nothing
        on = Progress(own, head=record)
        on.renamed(str(kept), str(renamed))
        on.loaded(str(renamed))
        on.stepped()
        assert on.step == 2


def test_a_rank_knows_the_step_of_a_checkpoint_that_rank_0_has_saved(tmp_path: Path) -> None:
    head, place = tmp_path / "saves-0.jsonl", tmp_path / "ckpt.pt"
    place.touch()
    saver = Progress(head)
    for _ in range(9):
        saver.stepped()
    saver.saved(str(place))

    other = Progress(tmp_path / "saves-1.jsonl", head=head)
    other.loaded(str(place))
    other.stepped()
    assert (other.step, other.steps_taken) == (10, 1)
    other.loaded(str(place))  # to compare with, say
    assert other.step == 10
    anew = Progress(tmp_path / "saves-1.jsonl", head=head)
    anew.stepped()  # what rank 0 has saved is rank 0's to guard
    assert anew.step == 1


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        pytest.param("", "BeginsAnewError: the script starts over, ", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_ends_by_itself_says_so_to_the_others(job: Job, end: str, said: str) -> None:
    assert job.run(LOOP, (), "--steps=5")[0] == 0
    text = LOOP.replace(*BY_ITSELF) + end if end else LOOP
    assert job.run(text, (), "--steps=10")[0] != 0
    (beat,) = (job.directory / "heartbeats").glob("rank-*")
    assert said in beat.read_text()


def test_where_nothing_can_be_renamed_the_record_is_written_in_its_place(tmp_path: Path) -> None:
    for in_bucket in (True, False):
        record = tmp_path / f"{in_bucket}" / "saves-0.jsonl"
        progress = Progress(record, in_bucket=in_bucket)
        progress.saved("a")
        with open(record) as first:
            progress.saved("b")
            assert (record.stat().st_ino == os.fstat(first.fileno()).st_ino) is in_bucket


class Store(dict[str, Any]):
    """What the ranks meet in."""

    set = dict.__setitem__

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def add(self, key: str, count: int) -> int:
        self[key] = self.get(key, 0) + count
        return int(self[key])


def test_all_ranks_end_after_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, asked = Store(), [False, False]
    monkeypatch.setattr(StopAtStep, "_store", lambda self: store)
    ranks = [Progress(tmp_path / f"saves-{rank}.jsonl") for rank in range(2)]

    def asker(rank: int) -> Callable[[], bool]:
        return lambda: asked[rank]

    stops = [StopAtStep(p, asker(rank), 60.0, rank, 2) for rank, p in enumerate(ranks)]

    def step(rank: int) -> bool:
        ranks[rank].stepped()
        return stops[rank].due()

    def both() -> list[bool]:
        return [step(0), step(1)]

    ranks[0].saved("a")
    assert both() == [False, False]
    asked[0] = True
    assert stops[0].check_request()
    assert both() == [False, False]
    ranks[0].saved("b")
    assert both() == [False, False]  # rank 1 has not looked yet
    assert "ddpgen/last-step" not in store
    assert stops[1].check_request()
    assert both() == [False, False]
    assert both() == [False, False]  # not all ranks looked when it saved
    ranks[0].saved("c")
    assert both() == [False, False]  # names the next step
    assert both() == [True, True]
    assert ranks[0].steps_taken == ranks[1].steps_taken


def test_a_hook_comes_after_the_import_and_the_module_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("import lib.inner\nVALUE = lib.inner.VALUE\n")
    (tmp_path / "lib" / "inner.py").write_text("VALUE = 1\n")
    code = """\
from train.script.hooks.imports import after_import
after_import({"lib.inner": lambda module: setattr(module, "VALUE", 2), "json": lambda m: print(m.__name__)})
import lib, importlib.resources
print(lib.VALUE, type(lib.inner.__loader__).__name__, lib.inner.__spec__.loader is lib.inner.__loader__)
"""
    said = subprocess.run(
        [sys.executable, "-c", "import json\n" + code],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert said == "json\n2 SourceFileLoader True\n"


LIGHTNING_FILE = """\
import os, signal, sys
import torch
from lightning.fabric.utilities.cloud_io import _atomic_save
_atomic_save({"step": 1}, "last.ckpt")
fsync = os.fsync
os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
_atomic_save({"step": 2}, "last.ckpt")
"""


def test_a_file_of_lightning_is_never_torn(job: Job) -> None:
    package = job.code / "lightning" / "fabric" / "utilities"
    package.mkdir(parents=True)
    (package / "cloud_io.py").write_text(
        "import io, os, torch\n"
        "def _atomic_save(checkpoint, filepath):\n"
        "    data = io.BytesIO()\n"
        "    torch.save(checkpoint, data)\n"
        "    with open(filepath, 'wb') as file:\n"  # as a move to another file system does
        "        file.write(data.getvalue()[:100])\n"
        "        os.fsync(file.fileno())\n"
        "        file.write(data.getvalue()[100:])\n"
    )
    code, said = job.run(LIGHTNING_FILE)
    assert code == -9, said
    text = "import torch\nprint('step', torch.load('last.ckpt')['step'])"
    assert "step 1\n" in job.run(text)[1]


def test_each_training_of_a_script_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    record = tmp_path / "saves-0.jsonl"

    def start() -> Session:
        progress = Progress(record)
        return Session(
            progress, StopAtStep(progress, lambda: False, 1.0, 0, 1), whole_checkpoints(record)
        )

    first = start()
    for place in ("fold-1", "fold-2"):
        (tmp_path / place).mkdir()
        with first.training_by("lightning", ""):
            assert first.resume_from() is None
            first.progress.saved(str(tmp_path / place), first.framework)
    (tmp_path / "final").mkdir()
    first.progress.saved(str(tmp_path / "final"), first.framework)

    again = start()
    for place in ("fold-1", "fold-2"):
        with again.training_by("lightning", ""):
            assert again.resume_from() == str(tmp_path / place)
    with again.training_by("lightning", ""):
        assert again.resume_from() is None
    with again.training_by("transformers", ""):
        assert again.resume_from() is None


def test_the_record_knows_what_is_whole_and_what_was_cut_off(tmp_path: Path) -> None:
    record = tmp_path / "saves-0.jsonl"
    places = [str(tmp_path / f"checkpoint-{number}") for number in (1, 2, 3)]
    for place in places[:2]:
        os.mkdir(place)
    progress = Progress(record)
    with progress.saving(places[0], "transformers 1"):
        assert interrupted_saves(record) == [places[0]]
    for place in (places[0], places[2]):  # refused: what is there is what was there before
        with contextlib.suppress(OSError), progress.saving(place):
            raise OSError
    with pytest.raises(KeyboardInterrupt), progress.saving(places[1]):
        raise KeyboardInterrupt
    assert interrupted_saves(record) == [places[1]]
    assert whole_checkpoints(record) == {places[0]: "transformers 1"}
    progress.saved(places[1])
    assert list(whole_checkpoints(record)) == places[:2]


DISTRIBUTED = """\
import os, sys, torch
import torch.distributed.checkpoint as dcp
model = torch.nn.Linear(2, 2)
found = sorted(each for each in os.listdir("out") if each != "torn") if os.path.exists("out") else []
print(found, os.path.exists("torn") and os.listdir("torn"), flush=True)
if found:
    dcp.load(model.state_dict(), checkpoint_id=f"out/{found[-1]}")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(len(found), len(found) + 2):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    if step == 1 and "kill" in sys.argv:
        os.rename = lambda *_: os._exit(9)  # before its .metadata is there
    dcp.save(model.state_dict(), storage_writer=dcp.FileSystemWriter(f"out/{step}"))
"""


def test_a_file_of_a_checkpoint_that_was_cut_off_is_no_progress(tmp_path: Path) -> None:
    place, record = tmp_path / "checkpoint-50", tmp_path / "saves-1.jsonl"
    place.mkdir()
    (place / "rng_state_1.pth").touch()
    killed = Progress(record)
    with contextlib.ExitStack() as killing:
        killing.enter_context(killed.saving(str(place)))
        killed.saved(str(place / "rng_state_1.pth"))
        killing.pop_all()  # and never ends
    # Rank 0 moves the directory away at any time from now on.
    Progress(record).stepped()


def test_a_checkpoint_whose_save_failed_is_no_progress(tmp_path: Path) -> None:
    """Another rank was killed, so rank 0's save ended with an exception after it had written its files."""
    place, record = tmp_path / "checkpoint-50", tmp_path / "saves-0.jsonl"
    place.mkdir()
    failing = Progress(record)
    with contextlib.suppress(RuntimeError), failing.saving(str(place)):
        (place / "optimizer.pt").touch()
        failing.saved(str(place / "optimizer.pt"))
        raise RuntimeError("Connection closed by peer")
    assert interrupted_saves(record) == [str(place)]
    Progress(record).stepped()


@pytest.mark.slow
def test_a_distributed_checkpoint_that_was_cut_off_is_moved_to_where_nothing_looks(
    job: Job,
) -> None:
    assert job.run(DISTRIBUTED, (), "kill")[0] == 9
    assert sorted(os.listdir(job.work / "out")) == ["0", "1"]
    code, said = job.run(DISTRIBUTED)
    assert code == 0, said
    assert "['0'] ['1']\n" in said
    assert "out/1 was cut off; " in said
    anew = DISTRIBUTED.replace("if found", "if False")
    assert "the script starts over" in job.run(anew)[1]


EPOCHS = """\
import os, sys, torch
from torch.utils.data import DataLoader
how = sys.argv[1]
torch.manual_seed(1 if how == "other order" else 0)
data = DataLoader(torch.arange(64.0), batch_size=4, shuffle=True, num_workers=int(sys.argv[2]))
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = torch.load("ckpt.pt", weights_only=True)["done"] if os.path.exists("ckpt.pt") else 0
for i, batch in enumerate(data):
    if i < done and how == "skips":
        continue
    model(batch).sum().backward()
    optimizer.step()
    if i == 5:
        torch.save({"done": i + 1}, "ckpt.pt")
    if i == 8 and not done:
        os._exit(9)
for _ in DataLoader(torch.arange(8)):
    pass
"""


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("skips", ""),
        ("begins", "the epoch begins again: its first 6 batches are trained on twice"),
        pytest.param(
            "other order",
            "the samples come in another order than before",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_who_goes_on_at_another_sample_is_told(job: Job, how: str, said: str, workers: str) -> None:
    assert job.run(EPOCHS, (), "first", workers)[0] == 9
    code, told = job.run(EPOCHS, (), how, workers)
    expected = f"ddpgen: the script does not resume where its checkpoint ends: {said}\n"
    assert (code, told) == (0, expected if said else "")


@pytest.mark.parametrize(
    ("batches", "given", "expected"),
    [
        (3, "d", ""),  # the sampler has skipped
        (3, "cd", ""),  # the loop was one batch ahead
        (3, "abcd", ""),  # the loop has skipped
        (3, "a", "the epoch begins again: its first 3 batches are trained on twice"),
        (3, "e", "the samples come in another order than before"),
        (3, "", ""),
        (0, "e", ""),
    ],
)
def test_where_a_start_goes_on(batches: int, given: str, expected: str) -> None:
    assert order_fault(DataPosition(batches, "a", "c", "d"), list(given)) == expected
    assert order_fault(DataPosition(batches, "a", "c", ""), ["x"]) == ""


SAMPLED = """\
import sys, torch
from torch.utils.data import DataLoader, DistributedSampler
data = torch.arange(32.0)
sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle="fixed" not in sys.argv)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
next(iter(loader))
for epoch in range(3):
    if "set" in sys.argv:
        sampler.set_epoch(epoch)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("forgets", 1),
        ("set", 0),
        pytest.param("fixed", 0, marks=pytest.mark.nightly),
    ],
)
def test_an_epoch_in_the_order_of_the_one_before_is_told_once(
    job: Job, how: str, told: int
) -> None:
    code, said = job.run(SAMPLED, (), how)
    assert (code, said.count("the same batch as the one before")) == (0, told)


FULL = """\
import errno, tempfile, torch
class Cut:
    def __reduce__(self): raise RuntimeError("unexpected pos 704 vs 598")
def full(**_): raise OSError(errno.ENOSPC, "No space left on device")
tempfile.TemporaryFile = full
torch.save([Cut()], "ckpt.pt")
"""


def test_a_save_on_a_full_disk_says_so(job: Job) -> None:
    assert job.run(FULL)[0] == 1
    full = f"no space is left on the disk of {job.work}; free some, or save elsewhere"
    noted = f"rank 0: RuntimeError: {full} (unexpected pos 704 vs 598) (loop.py:3 in __reduce__)"
    assert job.status == job.says("running", noted)


STOPS = """\
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
def load(step):
    if step == 3 and dist.get_rank() == 1:
        time.sleep(60)
dist.init_process_group("gloo", timeout=timedelta(seconds=3))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    load(step)
    model(torch.ones(4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.nightly
def test_who_waits_in_vain_names_the_rank_and_the_line_that_it_waited_for(job: Job) -> None:
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    both = [job.begin(STOPS, RANK=str(rank), LOCAL_RANK=str(rank), **world) for rank in (0, 1)]
    said, _ = both[0].communicate(timeout=60)
    both[1].kill()
    both[1].communicate(timeout=60)
    stands = re.compile(r"rank 1 on \S+ stands at step 4, the script, loop.py:6 in load for \d+ s")
    assert stands.search(said), said
    assert stands.search(job.status.reason), job.status
    assert "rank 0 waited in step 4, backward" in said
    assert "train/script/hooks" not in said
    assert 'loop.py", line 12, in <module>' in said
