"""What a user's script gets without an edit to it: steps counted, saves that are whole, no start over progress."""

from __future__ import annotations

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
from train import workdir
from train.integrations.order import Place, fault
from train.integrations.progress import BeginsAnewError, Progress, torn, whole
from train.integrations.session import Session
from train.integrations.stopping import StopAtStep
from train.lock import claim
from train.status import Status, read_status, write_status

ROOT = Path(__file__).parents[2]
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


class Job:
    """A script, started again and again as one rank of a job."""

    def __init__(self, home: Path) -> None:
        self.code, self.directory = home / "code", home / "checkpoints"
        self.code.mkdir(parents=True)
        self.directory.mkdir()
        self.attempt = claim(self.directory, "mine", os.getpid())
        write_status(self.directory, Status("running", self.attempt, 0))

    def begin(
        self, text: str, options: tuple[str, ...] = (), *arguments: str, **variables: str
    ) -> subprocess.Popen[str]:
        (self.code / "loop.py").write_text(text)
        words = ("script", *options, "code/loop.py", *arguments)
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "DDPGEN_CHECKPOINT_DIR": str(self.directory),
            "DDPGEN_ATTEMPT": self.attempt,
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "train", *words], cwd=self.code.parent, env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(
        self, text: str, options: tuple[str, ...] = (), *arguments: str, **variables: str
    ) -> tuple[int, str]:
        process = self.begin(text, options, *arguments, **variables)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    @property
    def status(self) -> Status:
        found = read_status(self.directory)
        assert found is not None
        return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_restart_that_begins_anew_over_its_own_checkpoint_is_refused(job: Job) -> None:
    assert job.run(LOOP, (), "--steps=10") == (0, "begins at 0\nends at 10\n")
    assert job.status == Status("done", job.attempt, 10)
    kept = (job.directory / "work" / "ckpt.pt").read_bytes()

    code, said = job.run(LOOP, (), "--steps=12")
    assert code == 1
    assert "ddpgen: the script begins anew, and an earlier start has saved" in said
    assert "train.resume" in said
    assert job.status.word == "failed"
    assert (job.directory / "work" / "ckpt.pt").read_bytes() == kept


def test_with_what_the_spec_adds_it_goes_on(job: Job) -> None:
    resume = (
        "--resume-exists=ckpt-*.pt",
        "--resume-exists=ckpt.pt",
        "--resume-arg=--init_from=resume",
    )
    assert job.run(LOOP, resume, "--steps=10") == (0, "begins at 0\nends at 10\n")
    assert job.run(LOOP, resume, "--steps=12") == (0, "begins at 10\nends at 12\n")
    assert job.status == Status("done", job.attempt, 12)


def test_a_script_that_resumes_by_itself_needs_nothing(job: Job) -> None:
    text = LOOP.replace('given.get("init_from") == "resume"', 'os.path.exists("ckpt.pt")')
    assert job.run(text, (), "--steps=10")[0] == 0
    assert job.run(text, (), "--steps=12") == (0, "begins at 10\nends at 12\n")


def test_who_says_so_may_begin_anew(job: Job) -> None:
    assert job.run(LOOP, ("--from-scratch",), "--steps=5")[0] == 0
    assert job.run(LOOP, ("--from-scratch",), "--steps=6") == (0, "begins at 0\nends at 6\n")


def test_a_save_that_fails_or_is_killed_leaves_the_one_before(job: Job) -> None:
    assert job.run(LOOP, (), "--steps=5")[0] == 0
    with open(job.directory / "work" / "ckpt.pt", "rb") as file:
        kept = file.read()
        again = "import torch\ntorch.load('ckpt.pt', weights_only=True)\ntorch.save(1, 'ckpt.pt')\n"
        assert job.run(again)[0] == 0
        file.seek(0)
        assert file.read() == kept  # the new one has another inode
    kept = (job.directory / "work" / "ckpt.pt").read_bytes()
    unpicklable = "import torch\ntorch.load('ckpt.pt', weights_only=True)\ntorch.save([torch.ones(9), lambda: 0], 'ckpt.pt')\n"
    assert job.run(unpicklable)[0] == 1
    assert sorted(os.listdir(job.directory / "work")) == ["ckpt.pt", "loop.py"]
    killed = "import os, torch\ntorch.load('ckpt.pt', weights_only=True)\nclass Kill:\n    def __reduce__(self): os.kill(os.getpid(), 9)\n"
    assert job.run(killed + "torch.save([torch.ones(9), Kill()], 'ckpt.pt')\n")[0] == -9
    assert (job.directory / "work" / "ckpt.pt").read_bytes() == kept
    assert len(os.listdir(job.directory / "work")) == 3  # what the kill has left
    assert job.run("print('ran')\n")[0] == 0
    assert sorted(os.listdir(job.directory / "work")) == ["ckpt.pt", "loop.py"]


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
    assert said.count("the metrics cannot be kept (IsADirectoryError") == 1
    assert said.count("the record of saves cannot be kept (") == 1


def test_a_module_that_refuses_its_arguments_is_named(job: Job) -> None:
    (job.code / "pkg.py").write_text("import sys\nsys.exit(2)\n")
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "DDPGEN_CHECKPOINT_DIR": str(job.directory),
        "DDPGEN_ATTEMPT": job.attempt,
    }
    words = [sys.executable, "-m", "train", "script", "module:pkg", "--x"]
    subprocess.run(words, cwd=job.code.parent, env=env, timeout=60, capture_output=True)
    assert job.status.reason == "pkg refused its arguments (exit code 2); correct train.args"


def test_a_stop_comes_after_the_next_save(job: Job) -> None:
    process = job.begin(LOOP, (), "--steps=100000", "--pause=0.01")
    assert process.stdout is not None
    assert process.stdout.readline() == "begins at 0\n"
    while not (job.directory / "script" / "saves-0.jsonl").exists():
        assert process.poll() is None
    (job.directory / "stop").write_text("enough\n")
    assert process.wait(60) == 0
    assert (job.status.word, job.status.reason) == ("stopped", "enough")
    assert job.status.step % 5 == 1  # at the end of the step after a save


@pytest.mark.parametrize(("saves", "waits"), [("never", False), ("step == 5", True)])
def test_a_stop_waits_for_a_save_only_where_one_may_come(job: Job, saves: str, waits: bool) -> None:
    text = LOOP.replace("step % 5 == 0", repr(saves) + " == ''" if saves == "never" else saves)
    process = job.begin(text, ("--stop-grace=2s",), "--steps=100000", "--pause=0.01")
    assert process.stdout is not None
    assert process.stdout.readline() == "begins at 0\n"
    while waits and not (job.directory / "script" / "saves-0.jsonl").exists():
        assert process.poll() is None
    (job.directory / "stop").write_text("enough\n")
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, job.status.word) == (0, "stopped")
    assert ("stopping after the script's next save, or in 1 s" in said) is waits


def test_in_a_bucket_it_keeps_whole_objects_and_their_record(job: Job, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    text = LOOP.replace('"ckpt.pt"', 'os.environ["DDPGEN_CHECKPOINT_DIR"] + "/ckpt.pt"')
    resume = (f"--resume-exists={bucket}/ckpt.pt", "--resume-arg=--init_from=resume")
    variables = {"DDPGEN_CHECKPOINT_STORE": str(bucket)}
    assert job.run(text, resume, "--steps=10", **variables)[0] == 0
    assert sorted(path.name for path in bucket.rglob("*")) == ["ckpt.pt", "saves-0.jsonl", "script"]
    # Another machine has nothing but the bucket.
    other = Job(tmp_path / "other")
    assert "begins anew" in other.run(text, (), "--steps=12", **variables)[1]
    another = Job(tmp_path / "another")
    assert another.run(text, resume, "--steps=12", **variables)[1] == "begins at 10\nends at 12\n"


def test_a_script_that_does_not_react_is_killed_and_told_of(job: Job) -> None:
    text = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('here', flush=True)\ntime.sleep(60)\n"
    text = text.replace("time.sleep(60)", "[time.sleep(1) for _ in range(60)]")
    process = job.begin(text, ("--stop-grace=0.2s", "--term-grace=0.2s"))
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    (job.directory / "stop").touch()
    said, _ = process.communicate(timeout=60)
    assert "loop.py did not stop within 0.2 s and is killed" in said
    assert job.status.word == "stopped"


def test_the_signal_it_wants_is_what_it_gets(job: Job) -> None:
    text = """\
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
print('here', flush=True)
time.sleep(60)
"""
    process = job.begin(text, ("--stop-signal=USR1",))
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    (job.directory / "stop").write_text("enough\n")
    assert process.wait(60) == 0
    assert job.status == Status("stopped", job.attempt, 0, "enough")


@pytest.mark.parametrize(
    ("option", "handled", "ends"),
    [
        ("--stop-grace=0.2s", "signal.SIGTERM, lambda *_: sys.exit(0)", True),
        ("--stop-grace=0.2s", "signal.SIGUSR2, signal.SIG_IGN", False),  # it would die of TERM
        ("--stop-signal=USR1", "signal.SIGUSR1, lambda *_: sys.exit(0)", True),
        ("--stop-signal=INT", "signal.SIGUSR2, signal.SIG_IGN", True),  # KeyboardInterrupt
    ],
)
def test_a_signal_is_sent_to_who_listens(job: Job, option: str, handled: str, ends: bool) -> None:
    text = f"""\
import signal, sys, time
print('here', flush=True)
signal.signal({handled})
time.sleep(60)
"""
    process = job.begin(text, (option, "--term-grace=30s"))
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    (job.directory / "stop").write_text("enough\n")
    said, _ = process.communicate(timeout=50)
    assert ("and is killed" in said) is not ends
    assert job.status == Status("stopped", job.attempt, 0, "enough")
    assert process.returncode == 0


def test_a_crash_after_a_stop_was_asked_for_is_not_started_again(job: Job) -> None:
    (job.directory / "stop").write_text("enough\n")
    assert job.run("print('ran')", (), TORCHELASTIC_RESTART_COUNT="1") == (0, "")
    assert job.status == Status("stopped", job.attempt, 0, "enough")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", "SyntaxError: '(' was never closed"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "import torch\ntorch.ones(1).cuda()\n",
            "this host offers the job no GPU: set gpus_per_node",
        ),
    ],
)
def test_what_no_restart_cures_is_not_repeated(job: Job, text: str, said: str) -> None:
    code, output = job.run(text)
    assert (code, job.status.word) == (1, "failed")
    assert said in job.status.reason
    assert "runpy" not in output
    assert "train/script.py" not in output
    assert job.run("print('ran')") == (0, "")  # torchrun's restart


def test_the_same_crash_before_the_first_step_is_not_tried_a_third_time(job: Job) -> None:
    assert job.run("raise KeyError('data')")[0] == 1
    assert job.status.word == "running"
    assert job.run("raise KeyError('data')")[0] == 1
    assert job.status.reason.startswith(
        "crashed twice in the same way before its first step: KeyError"
    )
    assert job.status.word == "failed"


def test_its_steps_are_in_the_metrics(job: Job) -> None:
    text = """\
import time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
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


def test_what_it_writes_does_not_get_into_the_bundle(job: Job) -> None:
    (job.code / "data").mkdir()
    (job.code / "data" / "words.txt").write_text("abc")
    text = "open('out.txt', 'w').write(open('data/words.txt').read())\nopen('data/new.txt', 'w')\n"
    assert job.run(text)[0] == 0
    assert sorted(path.name for path in job.code.rglob("*")) == ["data", "loop.py", "words.txt"]
    assert (job.directory / "work" / "out.txt").read_text() == "abc"


def test_the_working_directory_follows_the_code(tmp_path: Path) -> None:
    code, work = tmp_path / "a" / "code", tmp_path / "work"
    code.mkdir(parents=True)
    for name in ("one.py", "two.py"):
        (code / name).write_text(name)
    workdir.make(code, work)
    (work / "two.py").unlink()
    (work / "two.py").write_text("the script's own")
    (code / "one.py").unlink()
    (tmp_path / "a").rename(tmp_path / "b")
    workdir.make(tmp_path / "b" / "code", work)
    assert os.listdir(work) == ["two.py"]
    assert (work / "two.py").read_text() == "the script's own"


def test_the_draft_of_another_process_may_go_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").touch()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".draft").symlink_to(tmp_path / "code" / "a.py")
    look = os.scandir

    def looked(place: Path) -> list[os.DirEntry[str]]:
        entries = list(look(place))
        for entry in entries:
            if entry.name == ".draft":
                os.unlink(entry.path)
        return entries

    monkeypatch.setattr(os, "scandir", looked)
    monkeypatch.setattr(os, "walk", lambda place: [(str(place), [], ["a.py"])])
    workdir.make(tmp_path / "code", tmp_path / "work")
    assert os.listdir(tmp_path / "work") == ["a.py"]


def test_a_directory_whose_saving_was_cut_off_is_known(tmp_path: Path) -> None:
    record = tmp_path / "saves-0.jsonl"
    first, second = tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"
    for place in (first, second):
        place.mkdir()
        progress = Progress(record)
        progress.begins_saving(str(place))
        if place is first:
            progress.saved(str(place), "transformers")
    assert torn(record) == [str(second)]
    assert whole(record) == {str(first): "transformers"}
    progress.saved(str(second))
    assert list(whole(record)) == [str(first), str(second)]


def test_a_save_to_an_open_file_counts_as_well(job: Job) -> None:
    text = LOOP.replace('"ckpt.pt")\nprint', 'open("ckpt.pt", "wb"))\nprint')
    assert text != LOOP
    assert job.run(text, (), "--steps=10")[0] == 0
    code, said = job.run(text, (), "--steps=12")
    assert (code, job.status.word) == (1, "failed")
    assert "begins anew" in said


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
    assert (progress.step, progress.taken) == (10, 1)
    early = Progress(record, from_scratch=True)
    early.stepped()
    early.loaded(str(place / "model.pt"))  # to compare with, say
    assert early.step == 1


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
    assert stops[0].look()
    assert both() == [False, False]
    ranks[0].saved("b")
    assert both() == [False, False]  # rank 1 has not looked yet
    assert "ddpgen/last-step" not in store
    assert stops[1].look()
    assert both() == [False, False]
    assert both() == [False, False]  # not all ranks looked when it saved
    ranks[0].saved("c")
    assert both() == [False, False]  # names the next step
    assert both() == [True, True]
    assert ranks[0].taken == ranks[1].taken


def test_a_hook_comes_after_the_import_and_the_module_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("import lib.inner\nVALUE = lib.inner.VALUE\n")
    (tmp_path / "lib" / "inner.py").write_text("VALUE = 1\n")
    code = """\
from train.integrations.imports import after_import
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


def test_each_training_of_a_script_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    record = tmp_path / "saves-0.jsonl"

    def start() -> Session:
        progress = Progress(record)
        return Session(progress, StopAtStep(progress, lambda: False, 1.0, 0, 1), whole(record))

    first = start()
    for place in ("fold-1", "fold-2"):
        (tmp_path / place).mkdir()
        with first.training_by("lightning", ""):
            assert first.resume_from() is None
            first.saved(str(tmp_path / place), first.framework)
    (tmp_path / "final").mkdir()
    first.saved(str(tmp_path / "final"), first.framework)

    again = start()
    for place in ("fold-1", "fold-2"):
        with again.training_by("lightning", ""):
            assert again.resume_from() == str(tmp_path / place)
    with again.training_by("lightning", ""):
        assert again.resume_from() is None
    with again.training_by("transformers", ""):
        assert again.resume_from() is None


def test_a_save_that_was_refused_leaves_the_checkpoint_that_is_there(tmp_path: Path) -> None:
    record, place = tmp_path / "saves-0.jsonl", tmp_path / "checkpoint_4"
    place.mkdir()
    progress = Progress(record)
    progress.saved(str(place), "transformers 1")
    for name in (place, tmp_path / "checkpoint_5"):
        progress.begins_saving(str(name))
        progress.failed_saving(str(name))
    assert torn(record) == []
    assert whole(record) == {str(place): "transformers 1"}


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


def test_a_distributed_checkpoint_that_was_cut_off_is_moved_to_where_nothing_looks(
    job: Job,
) -> None:
    assert job.run(DISTRIBUTED, (), "kill")[0] == 9
    assert sorted(os.listdir(job.directory / "work" / "out")) == ["0", "1"]
    code, said = job.run(DISTRIBUTED)
    assert code == 0, said
    assert "['0'] ['1']\n" in said
    assert "out/1 was cut off; it is now" in said
    anew = DISTRIBUTED.replace("if found", "if False")
    assert "begins anew" in job.run(anew)[1]


def test_a_second_optimizer_is_counted_when_the_first_has_ended(job: Job) -> None:
    text = """\
import torch
weight = torch.nn.Parameter(torch.ones(1))
def train(*optimizers, steps):
    for _ in range(steps):
        for optimizer in optimizers:
            weight.sum().backward()
            optimizer.step()
made = [torch.optim.SGD([weight], lr=0.1) for _ in range(3)]
train(made[0], made[1], steps=10)
train(made[2], steps=10)
torch.save(1, "a.pt")
"""
    assert job.run(text)[0] == 0
    assert job.status == Status("done", job.attempt, 19)


def test_a_refusal_names_the_crash_before_it_and_a_crash_takes_back_that_all_is_done(
    job: Job,
) -> None:
    assert job.run(LOOP + "raise ValueError('mine')\n", (), "--steps=10")[0] == 1
    assert job.run(LOOP, (), "--steps=10")[0] == 1
    assert "after this crash: rank 0: ValueError: mine (loop.py:" in job.status.reason

    write_status(job.directory, Status("done", job.attempt, 9))
    assert job.run("raise OSError('late')", RANK="1", LOCAL_RANK="1")[0] == 1
    late = Status("running", job.attempt, 9, "rank 1: OSError: late (loop.py:1 in <module>)")
    assert job.status == late
    # Rank 0 is not done either when that has happened since it began, and is when it was before.
    kept = job.directory / "status"
    then = f"import os\nopen({str(kept)!r}, 'w').write({late.line!r})\n"
    kept.write_text(f"running {job.attempt} 9\n")
    assert job.run(then)[0] == 1
    assert job.status == late
    assert job.run("pass\n")[0] == 0
    assert job.status.word == "done"


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


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("skips", ""),
        ("begins", "the epoch begins again: its first 6 batches are trained on twice"),
        ("other order", "the samples come in another order than before"),
    ],
)
def test_who_goes_on_at_another_sample_is_told(job: Job, how: str, said: str, workers: str) -> None:
    assert job.run(EPOCHS, (), "first", workers)[0] == 9
    code, told = job.run(EPOCHS, (), how, workers)
    expected = f"ddpgen: the script does not go on where its checkpoint ends: {said}\n"
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
    assert fault(Place(batches, "a", "c", "d"), list(given)) == expected
    assert fault(Place(batches, "a", "c", ""), ["x"]) == ""


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
    assert "train/integrations" not in said
    assert 'loop.py", line 12, in <module>' in said


def test_who_only_loses_a_peer_does_not_hide_the_cause(job: Job) -> None:
    write_status(job.directory, Status("running", job.attempt, 3, "rank 1: ValueError: the cause"))
    text = "import torch\nw = torch.nn.Parameter(torch.ones(1))\no = torch.optim.SGD([w], 1)\no.step()\n"
    assert job.run(text + "raise RuntimeError('Connection closed by peer [127.0.0.1]')")[0] == 1
    assert job.status.reason == "rank 1: ValueError: the cause"
