"""Hosts that would begin at different steps, each from what lies on its own disk, do not go on together."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.train.own_script import ForkedJob
from train.run.lock import claim
from train.run.status import Status, read_status, write_status
from train.script.hooks import starts
from train.script.hooks.progress import Progress
from train.script.hooks.starts import Start, Starts, UnlikeStartsError, difference

DESK = Start("desk", 20, "/d/ckpt.pt", "aa")
NONE = Start("laptop")


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([DESK, NONE], "desk resumes from /d/ckpt.pt of step 20, and laptop begins at step 0; copy it: on laptop, `rsync -a desk:/d/ckpt.pt /d/`"),
        ([NONE, DESK], "desk resumes from /d/ckpt.pt of step 20, and laptop begins at step 0"),
        ([DESK, NONE._replace(step=10, path="/d/ckpt.pt", digest="bb")], "and laptop resumes from /d/ckpt.pt of step 10"),
        # Each has loaded it.
        ([DESK, DESK._replace(host="laptop")], ""),
        ([DESK, DESK._replace(host="laptop", path="/d/rank-1.pt", digest="bb")], ""),
        ([DESK, NONE._replace(path="/d/ckpt.pt", digest="aa")], ""),  # a copy; no record tells its step
        ([DESK, NONE._replace(path="/d/pretrained.pt", digest="cc")], "and laptop has read /d/pretrained.pt, of which no step is known"),
        # Only the first rank of a host loads, or only rank 0, which sends the state or leaves it to DDP.
        ([DESK, DESK._replace(step=0, path=""), NONE, DESK._replace(host="laptop")], ""),
        ([DESK._replace(optimizer=21), NONE._replace(optimizer=21)], ""),
        ([DESK._replace(optimizer=21), NONE._replace(optimizer=1, has_same=True)], "laptop begins at step 0"),
        ([DESK._replace(optimizer=1), NONE._replace(optimizer=1, has_same=True)], ""),
        ([DESK, NONE._replace(has_same=True)], ""),
        ([DESK._replace(resumes=True), NONE._replace(has_same=True)], "laptop begins at step 0"),
        # Saves that no hook has seen: only the arguments tell.
        ([Start("desk", resumes=True), NONE], "desk resumes, as train.resume says, and laptop begins at step 0; copy it to laptop; or"),
        # Nothing is loaded, and rank 0 is on another host than before.
        ([Start("desk"), NONE], ""),
        ([Start("desk"), NONE._replace(saved_path="/d/ckpt.pt", saved_step=20)], "all hosts begin at step 0, and laptop has /d/ckpt.pt of step 20; copy it: on desk, `rsync"),
        ([Start("desk", saved_path="/d/ckpt.pt"), NONE._replace(saved_path="/d/ckpt.pt")], ""),
        ([Start("desk", path="/e/ckpt.pt"), NONE._replace(saved_path="/d/ckpt.pt")], ""),  # a copy
        # A data set that all have read is no save.
        ([Start("desk", path="/d/data.pt"), NONE._replace(path="/d/data.pt", saved_path="/d/ckpt.pt", saved_step=20)], "all hosts begin at step 0"),
    ],
)  # fmt: skip
def test_which_starts_must_not_go_on_together(ranks: list[Start], says: str) -> None:
    found = difference(ranks)
    assert says in found
    assert bool(found) == bool(says)


class Store(dict[str, Any]):
    """Where the processes of a test meet."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:
        return bytes(self[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self[key] for key in keys]

    def add(self, key: str, count: int) -> int:
        self[key] = dict.get(self, key, 0) + count
        return int(self[key])


class Adam:
    """An optimizer after so many steps."""

    def __init__(self, steps: int) -> None:
        self.state = {"weight": {"step": float(steps)}} if steps else {}


def started(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch, steps: tuple[int, int] = (0, 0)
) -> list[str]:
    """The message on each of two hosts after the first step. Each loads what lies on its own disk."""
    store = Store()
    monkeypatch.setattr(starts, "rendezvous_store", lambda: store)
    heard = ["", ""]

    def step(rank: int) -> None:
        record = homes[rank] / "script" / f"saves-{rank}.jsonl"
        progress = Progress(record, head=record.with_name("saves-0.jsonl"))
        if (homes[rank] / "ckpt.pt").exists():
            progress.loaded(str(homes[rank] / "ckpt.pt"))
        try:
            talks[rank].compare(progress, Adam(steps[rank]))
        except UnlikeStartsError as error:
            heard[rank] = str(error)

    talks = []
    for rank, name in enumerate(("desk", "laptop")):
        talks.append(Starts(name, rank, 2, homes[rank], resumes=False))
    threads = [threading.Thread(target=step, args=(rank,)) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return heard


@pytest.fixture
def homes(tmp_path: Path) -> list[Path]:
    """The disks of desk and laptop; rank 0 has saved on desk's after step 20."""
    both = [tmp_path / "desk", tmp_path / "laptop"]
    for home in both:
        (home / "script").mkdir(parents=True)
    saver = Progress(both[0] / "script" / "saves-0.jsonl")
    saver.step = 20
    (both[0] / "ckpt.pt").write_bytes(b"weights" * 99999)
    saver.saved(str(both[0] / "ckpt.pt"))
    return both


def test_both_hosts_hear_that_one_lacks_the_checkpoint(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = started(homes, monkeypatch)
    assert heard[0] == heard[1]
    assert f"{homes[0]}/ckpt.pt of step 20, and laptop begins at step 0" in heard[0]


def test_a_copy_of_the_checkpoint_is_enough_and_an_older_one_is_not(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (homes[1] / "ckpt.pt").write_bytes((homes[0] / "ckpt.pt").read_bytes())
    assert started(homes, monkeypatch) == ["", ""]
    (homes[1] / "ckpt.pt").write_bytes(b"weights of an earlier step" * 99999)
    assert (
        f"of step 20, and laptop has read {homes[1]}/ckpt.pt, of which no step is known"
        in (started(homes, monkeypatch)[1])
    )


def test_rank_0_may_send_what_it_has_loaded(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert started(homes, monkeypatch, (21, 21)) == ["", ""]
    assert all(started(homes, monkeypatch, (21, 1)))


def test_where_only_rank_0_steps_it_goes_on(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    monkeypatch.setattr(starts, "rendezvous_store", lambda: store)
    monkeypatch.setattr(starts, "_WAIT_S", 0.1)
    alone = Starts("desk", 0, 2, homes[0], resumes=False)
    progress = Progress(homes[0] / "script" / "saves-0.jsonl")
    alone.compare(progress, None)
    late = Starts("laptop", 1, 2, homes[1], resumes=True)
    # Rank 1 comes later, and rank 0 looks again at its next step.
    with contextlib.suppress(UnlikeStartsError):
        late.compare(progress, None)
    with pytest.raises(UnlikeStartsError, match="desk"):
        alone.compare(progress, None)


LOOP = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.path.exists("ckpt.pt"):
    step = torch.load("ckpt.pt")
print("begins at", step, flush=True)
for _ in range(3):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    step += 1
    if rank == 0:
        torch.save(step, "ckpt.pt")
"""


def run_on_two_hosts(hosts: list[ForkedJob]) -> list[tuple[int, str]]:
    """The exit code and the output of the script's process on each host."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = []
    for rank, job in enumerate(hosts):
        node = job.directory / "nodes" / job.home.name
        node.mkdir(parents=True, exist_ok=True)
        (node / "lock").unlink(missing_ok=True)  # of the start before
        attempt = claim(node, "mine", os.getpid())
        write_status(node, Status("running", attempt, 0))
        own = {"DDPGEN_NODE_DIR": str(node), "DDPGEN_NODE": node.name, "DDPGEN_ATTEMPT": attempt}
        processes.append(job.begin(LOOP, RANK=str(rank), LOCAL_RANK="0", **own, **world))
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    return [(process.returncode, said) for process, said in zip(processes, outputs, strict=True)]


def test_two_processes_of_which_one_lacks_the_checkpoint_end_before_a_save(tmp_path: Path) -> None:
    hosts = [ForkedJob(tmp_path / "desk"), ForkedJob(tmp_path / "laptop")]
    ends = run_on_two_hosts(hosts)
    assert [code for code, _ in ends] == [0, 0], ends
    kept = hosts[0].work / "ckpt.pt"
    before = kept.read_bytes()
    ends = run_on_two_hosts(hosts)
    assert kept.read_bytes() == before
    says = f"desk resumes from {kept} of step 3, and laptop begins at step 0; copy it: on laptop"
    for job, (code, said) in zip(hosts, ends, strict=True):
        status = read_status(job.directory / "nodes" / job.home.name)
        assert status is not None
        assert (code, status.word) == (1, "failed")
        assert says in said
        assert says in status.reason
