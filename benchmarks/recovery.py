"""Seconds from a fault to the next step, the steps lost, and the bits at the end: ours and torchrun alone.

    python benchmarks/recovery.py [--rounds 5]                           local
    sudo python benchmarks/recovery.py --tier hosts|slurm|sky            on the rigs of tests/real

Our job and the baseline take turns. A step is a pause and a checkpoint comes every few steps, so
that other work on this machine changes the figures little. In each round a job meets each fault once:

  local   a worker, all workers, torchrun, and (ours) the supervisor are killed; if the command ends by that, it is
          launched again at once
  hosts   the power of a host, its cable, all of its processes frozen: an elastic job on three hosts
  slurm   a node without power, a preemption, a time limit: a job on two of three nodes
  sky     SkyPilot's machines are taken: a managed job on two machines, without a baseline

Printed are medians with the least and the most, and the stages of our recoveries as manifest.json has them. The weights
at the end must be those of an undisturbed run.

The baseline is torchrun with --max-restarts and a hand-written loop. The loop saves with torch.save, resumes from its
newest file, and gives up a silent peer after 20 s as our jobs do. torchrun alone restarts workers in place only with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, so it has that too. When torchrun is killed, its workers go on; the benchmark kills
them as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.real import batch, fleet, jobs, skyjob  # noqa: E402 - the checkout, put there above
from tests.real.rig import Host, Machine, Rig, sky, slurm, unavailable  # noqa: E402
from train.tools.report import history  # noqa: E402

STEPS, LONG, EVERY, PROCESSES = 300, 800, 5, 2
PORT = 29511
OURS, BARE = "ours", "torchrun alone"
NAMES = ("node1", "node2", "node3")
# In the environment: the directory, the steps, the interval of checkpoints, the pause and the file that ends the pauses.
LOOP = """
import datetime, hashlib, json, os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

directory, hurry = os.environ["DIRECTORY"], os.environ["HURRY"]
steps, every, pause = int(os.environ["STEPS"]), int(os.environ["EVERY"]), float(os.environ["PAUSE"])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank, newest = dist.get_rank(), f"{directory}/checkpoint.pt"
torch.manual_seed(0)
data, labels = torch.randn(512, 8), torch.randint(4, (512,))
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step = 0
if os.path.exists(newest):
    saved = torch.load(newest)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
rows = open(f"{directory}/rows.jsonl", "a", 1)
start = f"{os.uname().nodename} {os.getpid()} {time.time()}"
while step < steps:
    time.sleep(0 if os.path.exists(hurry) else pause)
    batch = torch.randperm(512, generator=torch.Generator().manual_seed(step))[rank * 8 : rank * 8 + 8]
    loss = torch.nn.functional.cross_entropy(model(data[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0:
        rows.write(json.dumps({"step": step, "time": time.time(), "start": start}) + "\\n")
    if step % every == 0:
        if rank == 0:
            content = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(content, newest + ".new")
            os.replace(newest + ".new", newest)
        dist.barrier()
if rank == 0:
    digest = hashlib.sha256()
    for tensor in model.module.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    open(f"{directory}/weights", "w").write(digest.hexdigest())
dist.destroy_process_group()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=5"]
PINS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
Row = Mapping[str, Any]


class Job:
    """A job of one round, which is running once it is made."""

    name = ""
    faults: Sequence[str] = ()

    def rows(self) -> list[Row]:
        """Return the rows of the steps in the order of their time, each with its start."""
        raise NotImplementedError

    def newest_start(self) -> Any:
        """Return the start of the newest row; None if there is no row."""
        rows = self.rows()
        return rows[-1]["start"] if rows else None

    def stages(self) -> Mapping[str, float]:
        """Return the seconds of the stages of the newest recovery; empty if they are not on record."""
        return {}

    def is_over(self) -> bool:
        """Return whether no more step will come."""
        raise NotImplementedError

    def strike(self, fault: str) -> float | None:
        """Let the job meet the fault. Returns the time of its beginning if that is another than now."""
        raise NotImplementedError

    def mend(self, fault: str) -> None:
        """Bring all hosts back. Raises TimeoutError if the job does not take them in."""

    def finish(self) -> str:
        """Hurry, and return the hash of the weights at the end. Raises RuntimeError, OSError or TimeoutExpired if the
        job does not come to its end."""
        raise NotImplementedError

    def weights(self) -> str:
        """Return the hash of the weights of a job that is done."""
        raise NotImplementedError


@dataclass(frozen=True)
class Recovery:
    """The seconds from a fault to the end of the next step, the steps done again, and the seconds of each stage.

    `seconds` and `lost` are None if the job never came back. The stages are ours only.
    """

    seconds: float | None = None
    lost: int | None = None
    stages: Mapping[str, float] = field(default_factory=dict)


class Ours(Job):
    """The common part of our jobs. `place`: the directory with the records, as seen from here."""

    name = OURS
    place: Path

    def directory(self) -> Path:
        return self.place

    def rows(self) -> list[Row]:
        return own_rows(self.directory())

    def stages(self) -> Mapping[str, float]:
        deadline = time.monotonic() + 5  # they are written just after the row of the first step
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if found := history.load(self.directory()).starts[-1].recovery:
                    return found
            time.sleep(0.05)
        return {}

    def weights(self) -> str:
        manifest = json.loads((self.directory() / "manifest.json").read_text())
        return str(manifest["starts"][-1]["weights"])


def own_rows(directory: Path) -> list[Row]:
    with contextlib.suppress(FileNotFoundError):
        rows = jobs.rows(directory)
        return [{**row, "start": (row["attempt"], row["generation"])} for row in rows]
    return []


class Bare(Job):
    """The common part of the baseline's jobs. `place`: the directory of the loop."""

    name = BARE
    place: Path

    def rows(self) -> list[Row]:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.place / "rows.jsonl").read_text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        return []

    def weights(self) -> str:
        return (self.place / "weights").read_text()


# --- local ----------------------------------------------------------------------------------------


class OnThisMachine(Job):
    """The common part of both jobs on this machine. They launch their process again if a fault ends it."""

    _process: subprocess.Popen[bytes]
    _hurry: Path
    _log: Path

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def finish(self) -> str:
        self._hurry.touch()
        if code := self._process.wait(120):
            log = self._log.read_text(errors="replace")
            raise RuntimeError(f"a job ended with {code}:\n{log[-3000:]}")
        return self.weights()

    def end(self) -> None:
        """Kill what still runs."""
        if not self.is_over():
            agents = jobs.children(self._process.pid)
            workers = [worker for agent in agents for worker in jobs.children(agent)]
            kill([self._process.pid, *agents, *workers])
            self._process.wait()


class LocalOurs(OnThisMachine, Ours):
    """Our job, launched by its local.sh."""

    faults = ("a worker", "all workers", "torchrun", "the supervisor")

    def __init__(self, place: Path, pause: float) -> None:
        train = {
            "workload": jobs.PACED,
            "steps": STEPS,
            "global_batch_size": 8 * PROCESSES,
            "micro_batch_size": 8,
            "optimizer": "adamw",
            "lr": 0.01,
            "args": {"pause": pause, "until": str(place / "hurry")},
        }
        about = {"procs_per_node": PROCESSES, "checkpoint": {"every": f"{EVERY} steps"}}
        self._bundle = jobs.render(place, jobs.spec(train, **about, restarts=5))
        self.place, self._hurry, self._log = (
            place / "checkpoints/job",
            place / "hurry",
            place / "log",
        )
        self.launch()

    def launch(self) -> None:
        self._process = started(["bash", str(self._bundle / "local.sh")], self._log)

    def strike(self, fault: str) -> None:
        supervisor = self._process.pid
        (agent,) = jobs.children(supervisor)[:1]
        first, *others = jobs.children(agent)
        victims = {"a worker": others, "all workers": [first, *others], "torchrun": [agent]}
        kill(victims.get(fault, [supervisor]))
        if fault in ("torchrun", "the supervisor"):
            self._process.wait(60)
            self.launch()


class LocalBare(OnThisMachine, Bare):
    """torchrun alone on this machine."""

    faults = ("a worker", "all workers", "torchrun")

    def __init__(self, place: Path, pause: float) -> None:
        make_directory(place)
        self.place, self._hurry, self._pause = place, place / "hurry", pause
        self._log = place / "log"
        self.launch()

    def launch(self) -> None:
        words = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={PROCESSES}"]
        command = [*TORCHRUN, *words, str(self.place / "loop.py")]
        self._process = started(
            command, self._log, **loop(self.place, self._hurry, STEPS, self._pause)
        )

    def strike(self, fault: str) -> None:
        agent = self._process.pid
        first, *others = jobs.children(agent)
        victims = {"a worker": others, "all workers": [first, *others]}
        kill(victims.get(fault, [agent, first, *others]))
        if fault == "torchrun":
            self._process.wait(60)
            self.launch()


def make_directory(of_loop: Path) -> None:
    """Make the directory of the hand-written loop. The users of all hosts may write to it."""
    of_loop.mkdir(parents=True)
    of_loop.chmod(0o777)
    (of_loop / "loop.py").write_text(LOOP)


def loop(directory: Path | str, hurry: Path | str, steps: int, pause: float) -> dict[str, str]:
    """Return the environment of the hand-written loop."""
    about = {"DIRECTORY": directory, "HURRY": hurry, "STEPS": steps, "EVERY": EVERY, "PAUSE": pause}
    return PINS | {name: str(value) for name, value in about.items()}


def started(command: list[str], log: Path, **env: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    with log.open("ab") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def local(options: argparse.Namespace, stack: ExitStack, place: Path) -> Iterator[Job]:
    """Yield an undisturbed job of each kind, then the jobs of each round."""
    for pause, turns in ((0.0, 1), (options.pause, options.rounds)):
        for turn in range(turns):
            for kind in (LocalOurs, LocalBare):
                job = kind(place / f"{kind.__name__}-{pause}-{turn}", pause)
                stack.callback(job.end)
                yield job


class Alone(Ours):
    """The undisturbed run of a job that other machines train: here, on one process."""

    def __init__(self, place: Path, wanted: dict[str, Any]) -> None:
        self.place = jobs.alone(place, wanted)

    def finish(self) -> str:
        return self.weights()


# --- hosts ----------------------------------------------------------------------------------------


class HostsOurs(Ours):
    """Our elastic job on three hosts. Each has its own disk."""

    faults = ("power off", "cable pulled", "frozen")

    def __init__(self, rig: Rig, place: Path, wanted: dict[str, Any]) -> None:
        self._rig, self._place = rig, place
        self._bundle = jobs.render(place, wanted, target="hosts")
        self._hurry = rig.shared / wanted["name"]
        self._kept = f"ddpgen/checkpoints/{wanted['name']}"
        self._driver = fleet.Driver(rig, self._bundle)
        self._driver.until("processes on 3 hosts")

    def directory(self) -> Path:
        """The one on rank 0's host, which has the newest rows."""
        places = [host.path(self._kept) for host in self._rig if host.up]
        return max(places, key=lambda place: own_rows(place)[-1]["time"] if own_rows(place) else 0)

    def is_over(self) -> bool:
        return self._driver.process.poll() is not None

    def strike(self, fault: str) -> None:
        first = self.directory()
        self._lost = [host for host in self._rig if host.path(self._kept) != first][-1]
        strike_host(self._lost, fault)

    def mend(self, fault: str) -> None:
        before = self.newest_start()
        mend_host(self._lost, fault)
        until(self, 0, before, 180.0)

    def finish(self) -> str:
        self._hurry.touch()
        if code := self._driver.end():
            raise RuntimeError(f"a job ended with {code}:\n{self._driver.output}")
        return self.weights()


class HostsBare(Bare):
    """torchrun alone on three hosts, which share the directory; started again by hand on a host that has come back."""

    faults = HostsOurs.faults

    def __init__(self, rig: Rig, name: str, pause: float) -> None:
        self._rig = rig
        self.place, self._hurry = rig.shared / name, rig.shared / f"{name}.go"
        make_directory(self.place)
        inside = f"/shared/{name}"
        self._env = loop(inside, f"{inside}.go", LONG, pause)
        self._command = [
            *TORCHRUN, "--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={NAMES[0]}:{PORT}",
            f"--rdzv-id={name}", f"{inside}/loop.py",
        ]  # fmt: skip
        self._processes = {host.name: self._start(host) for host in rig}

    def _start(self, host: Machine) -> subprocess.Popen[bytes]:
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        words = [*self._command[:-1], f"--local-addr={host.address}", self._command[-1]]
        return host.popen(words, env=self._env | {"GLOO_SOCKET_IFNAME": host.nic}, **quiet)

    def is_over(self) -> bool:
        return all(each.poll() is not None for each in self._processes.values())

    def strike(self, fault: str) -> None:
        # rank 0 writes the rows; its host's name is in them
        writer = self.newest_start().split()[0]
        self._lost = [host for host in self._rig if host.name not in (writer, NAMES[0])][-1]
        strike_host(self._lost, fault)

    def mend(self, fault: str) -> None:
        mend_host(self._lost, fault)
        self._lost.kill_all()
        self._processes[self._lost.name] = self._start(self._lost)
        until(self, 0, self.newest_start(), 60.0)

    def finish(self) -> str:
        self._hurry.touch()
        try:
            for each in self._processes.values():
                each.wait(180)
            return self.weights()
        finally:
            for host in self._rig:
                host.kill_all()


def strike_host(host: Machine, fault: str) -> None:
    {"power off": host.power_off, "cable pulled": host.unplug, "frozen": host.freeze}[fault]()


def mend_host(host: Machine, fault: str) -> None:
    {"power off": host.boot, "cable pulled": host.plug, "frozen": host.thaw}[fault]()


def hosts(options: argparse.Namespace, stack: ExitStack, place: Path) -> Iterator[Job]:
    def wanted(turn: int) -> dict[str, Any]:
        args = {"pause": options.pause, "until": f"/shared/ours{turn}"}
        train = {"steps": LONG, "args": args}
        every = {"every": f"{EVERY} steps"}
        return fleet.spec(
            NAMES, train, name=f"ours{turn}", tier={"nodes": "2..3"}, checkpoint=every
        )

    rig = stack.enter_context(Rig([Host(name, shared="/shared") for name in NAMES]))
    yield Alone(place / "alone", wanted(0))
    yield HostsBare(rig, "alone", 0.0)
    for turn in range(options.rounds):
        yield HostsOurs(rig, place / f"ours{turn}", wanted(turn))
        yield HostsBare(rig, f"bare{turn}", 2 * options.pause)  # as many as ours has micro-batches


# --- slurm ----------------------------------------------------------------------------------------


class OnSlurm(Job):
    """The common part of both jobs on Slurm: the number of the job, and the faults."""

    faults = ("node lost", "preemption", "time limit")
    cluster: slurm.Slurm
    id: str

    def is_over(self) -> bool:
        return self.cluster.show(self.id).get("JobState") in slurm.OVER - {"NODE_FAIL", "PREEMPTED"}

    def strike(self, fault: str) -> float | None:
        shown = self.cluster.show(self.id)
        if fault == "node lost":
            listed = self.cluster.run(["scontrol", "show", "hostnames", shown["NodeList"]]).stdout
            self._lost = self.cluster.node(listed.split()[1])
            self._lost.power_off()
            return None
        if fault == "preemption":
            all_nodes = f"--nodes={len(self.cluster.nodes)}"
            self.cluster.sbatch("--partition=high", all_nodes, "--exclusive", "--wrap=sleep 1")
            return None
        hours, minutes, _ = map(int, shown["RunTime"].split(":"))
        self._limit(hours * 60 + minutes + 1)
        before = self.newest_start()
        while self.cluster.show(self.id)["JobState"] == "RUNNING":
            time.sleep(0.5)
        return float(max(row["time"] for row in self.rows() if row["start"] == before))

    def mend(self, fault: str) -> None:
        if fault == "node lost":
            self._lost.boot()
            self.cluster.is_ready()
        if fault == "time limit" and not self.is_over():
            self._limit(60)

    def _limit(self, minutes: int) -> None:
        words = ["scontrol", "update", f"JobId={self.id}", f"TimeLimit={minutes}"]
        self.cluster.run(words, user="root", check=True)


class SlurmOurs(OnSlurm, Ours):
    """Our job in the partition that is preempted."""

    def __init__(self, cluster: slurm.Slurm, wanted: dict[str, Any]) -> None:
        self.cluster = cluster
        self._batch = batch.Batch(cluster, wanted, "--partition=low")
        self.id, self.place = self._batch.id, self._batch.directory
        self._hurry = cluster.rig.shared / f"{wanted['name']}.go"

    def finish(self) -> str:
        self._hurry.touch()
        if self._batch.ended()[0] != "COMPLETED":
            raise RuntimeError(self._batch.log)
        return self.weights()


class SlurmBare(OnSlurm, Bare):
    """torchrun alone, in a batch script that Slurm requeues."""

    def __init__(self, cluster: slurm.Slurm, name: str, pause: float) -> None:
        self.cluster = cluster
        self.place, self._hurry = cluster.rig.shared / name, cluster.rig.shared / f"{name}.go"
        make_directory(self.place)
        inside = f"{cluster.shared}/{name}"
        variables = loop(inside, f"{inside}.go", LONG, pause)
        words = [
            *TORCHRUN, "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"{inside}/loop.py",
        ]  # fmt: skip
        torchrun = f"{shlex.join(words[:-1])} --rdzv-endpoint=$head:{PORT} --rdzv-id=$SLURM_JOB_ID.$SLURM_RESTART_COUNT"
        script = [
            "#!/bin/bash",
            *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
            'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)',
            f"srun --kill-on-bad-exit=1 {torchrun} {words[-1]}",
        ]
        (self.place / "job.sh").write_text("\n".join(script) + "\n")
        options = ("--partition=low", "--nodes=2", "--ntasks-per-node=1", "--requeue", "--time=60")
        self.id = cluster.sbatch(*options, "--open-mode=append", "job.sh", cwd=inside)

    def finish(self) -> str:
        self._hurry.touch()
        self.cluster.ended(self.id)
        return self.weights()


def on_slurm(options: argparse.Namespace, stack: ExitStack, place: Path) -> Iterator[Job]:
    def wanted(turn: int) -> dict[str, Any]:
        made = batch.spec(f"ours{turn}", options.pause, nodes=2)
        args = {"pause": options.pause, "until": f"{slurm.SHARED}/ours{turn}.go"}
        made["train"] |= {"steps": LONG, "args": args}
        return made

    cluster = stack.enter_context(slurm.Slurm(nodes=3))
    yield Alone(place / "alone", wanted(0))
    yield SlurmBare(cluster, "alone", 0.0)
    for turn in range(options.rounds):
        yield SlurmOurs(cluster, wanted(turn))
        yield SlurmBare(cluster, f"bare{turn}", 3 * options.pause)


# --- sky ------------------------------------------------------------------------------------------


class SkyOurs(Ours):
    """Our managed job on SkyPilot, with Slurm for a cloud."""

    faults = ("machines taken",)

    def __init__(self, pilot: sky.Sky, wanted: dict[str, Any]) -> None:
        self._job = skyjob.SkyJob(pilot, wanted)
        self._job.launch()

    def directory(self) -> Path:
        """The one of the newest machines."""
        kept = f".sky_clusters/*/.ddpgen/{self._job.name}/*/metrics.jsonl"
        found = [each.parent for each in self._job.sky.rig.shared.glob(kept)]
        return max(found, key=lambda place: place.stat().st_mtime) if found else Path("/nowhere")

    def is_over(self) -> bool:
        return self._job.sky.status(self._job.id) in sky.OVER

    def strike(self, fault: str) -> None:
        self._job.sky.preempt(self._job.id)

    def finish(self) -> str:
        self._job.hurry()
        self._job.sky.wait(self._job.id, "SUCCEEDED", within=skyjob.WITHIN_S)
        return str(json.loads(self._job.get("manifest.json"))["starts"][-1]["weights"])


def on_sky(options: argparse.Namespace, stack: ExitStack, place: Path) -> Iterator[Job]:
    pilot = stack.enter_context(sky.Sky(nodes=4))
    pilot.bucket(skyjob.BUCKET).make()
    yield Alone(place / "alone", skyjob.spec("alone", options.pause))
    for turn in range(options.rounds):
        yield SkyOurs(pilot, skyjob.spec(f"ours{turn}", options.pause, mode="cached"))


# --- what all tiers share --------------------------------------------------------------------------


def until(job: Job, step: int, other_than: Any, within_s: float) -> list[Row]:
    """Wait for a row of this step or a later one, of another start than that one. Returns the rows of its start.

    Raises TimeoutError.
    """
    deadline = time.monotonic() + within_s
    while True:
        rows = job.rows()
        if rows and rows[-1]["step"] >= step and rows[-1]["start"] != other_than:
            return [row for row in rows if row["start"] == rows[-1]["start"]]
        if job.is_over() or time.monotonic() > deadline:
            raise TimeoutError(f"{job.name}: no such step")
        time.sleep(0.01)


def meets(job: Job, fault: str, chance: random.Random, within_s: float) -> Recovery:
    """Let the job meet a fault past the first checkpoint of its start, and wait until it has taken a step again."""
    try:
        begun = until(job, 0, None, within_s)[0]["step"]
        before = until(job, begun + EVERY + chance.randrange(EVERY), None, within_s)[0]["start"]
    except TimeoutError:  # an earlier fault has ended it
        return Recovery()
    began = time.time()
    began = job.strike(fault) or began
    recovery = Recovery()
    with contextlib.suppress(TimeoutError):
        first = until(job, 0, before, within_s)[0]
        reached = max(row["step"] for row in job.rows() if row["start"] == before)
        recovery = Recovery(first["time"] - began, reached - first["step"] + 1, job.stages())
    with contextlib.suppress(TimeoutError):
        job.mend(fault)
    return recovery


def at_its_end(job: Job) -> str:
    """Return the hash of the weights, or "none" if the job does not come to its end."""
    try:
        return job.finish()
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"  {job.name}: {error}", file=sys.stderr, flush=True)
        return "none"


@dataclass(frozen=True)
class Tier:
    """`jobs`: the undisturbed jobs, then those of each round. `unavailable`: why they cannot run here. `pause`: the
    seconds of a micro-batch. `within_s`: how long to wait for a job to come back."""

    jobs: Callable[[argparse.Namespace, ExitStack, Path], Iterator[Job]]
    unavailable: Callable[[], str]
    pause: float
    within_s: float


TIERS = {
    "local": Tier(local, lambda: "", 0.05, 60.0),
    "hosts": Tier(hosts, unavailable, 0.2, 180.0),
    "slurm": Tier(on_slurm, slurm.unavailable, 0.2, 180.0),
    "sky": Tier(on_sky, sky.unavailable, 0.5, skyjob.WITHIN_S),
}


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let the jobs live in turns. Returns a row for each fault and each job."""
    tier = TIERS[options.tier]
    found: dict[tuple[str, str], list[Recovery]] = {}
    bits: dict[str, str] = {}
    same: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        for number, job in enumerate(tier.jobs(options, stack, Path(scratch))):
            undisturbed = job.name not in bits
            for fault in () if undisturbed else job.faults:
                each = meets(job, fault, random.Random(f"{fault} {number // 2}"), tier.within_s)
                found.setdefault((fault, job.name), []).append(each)
                print(f"  {fault}, {job.name}: {each}", file=sys.stderr, flush=True)
            weights = job.finish() if undisturbed else at_its_end(job)
            same[job.name] = same.get(job.name, True) and weights == bits.setdefault(
                job.name, weights
            )
    return [summary(*key, recoveries, same[key[1]]) for key, recoveries in sorted(found.items())]


def summary(fault: str, name: str, recoveries: list[Recovery], same: bool) -> dict[str, Any]:
    on_record = [each.stages for each in recoveries if each.stages]
    return {
        "fault": fault,
        "job": name,
        "seconds": [each.seconds for each in recoveries],
        "lost": [each.lost for each in recoveries],
        "same_bits": same,
        "stages": {
            stage: statistics.median(stages.get(stage, 0.0) for stages in on_record)
            for stage in history.RECOVERY
            if any(stage in stages for stages in on_record)
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tier", choices=TIERS, default="local")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, help="seconds of a micro-batch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE, too")
    options = parser.parse_args()
    options.pause = TIERS[options.tier].pause if options.pause is None else options.pause
    if reason := TIERS[options.tier].unavailable():
        print(reason)
        return 0
    rows = measure(options)
    base = {row["fault"]: row["seconds"] for row in rows if row["job"] == BARE}
    for row in rows:
        print_row(row, base.get(row["fault"], []) if row["job"] == OURS else [])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["same_bits"] for row in rows if row["job"] == OURS) else 1


def print_row(row: Mapping[str, Any], base: Sequence[float | None]) -> None:
    seconds, lost = ([each for each in row[key] if each is not None] for key in ("seconds", "lost"))
    came_back = (
        ""
        if len(seconds) == len(row["seconds"])
        else f"{len(seconds)} of {len(row['seconds'])} came back  "
    )
    ratios = [a / b for a, b in zip(row["seconds"], base, strict=False) if a and b]
    text = f"{row['fault']:15} {row['job']:15} {came_back}"
    if seconds:
        text += (
            f"{statistics.median(seconds):6.2f} s ({min(seconds):.2f} … {max(seconds):.2f})  "
            f"{statistics.median(lost):g} steps lost ({min(lost)} … {max(lost)})  "
        )
    text += "same bits" if row["same_bits"] else "OTHER BITS"
    print(text + (f"  {statistics.median(ratios):.2f} × torchrun alone" if ratios else ""))
    if row["stages"]:
        print("    " + ", ".join(f"{name} {value:.2f}" for name, value in row["stages"].items()))


if __name__ == "__main__":
    sys.exit(main())
