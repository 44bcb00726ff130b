"""Several hosts on one machine: for each a node directory, a claim, and a torchrun agent of its own.

Owns what a host's script does around the training, without the script: so that a test sees the
training module's side of several hosts alone. Knows nothing of what is being tested.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.real import jobs
from tests.real.rig import processes

TRAIN = (
    "--workload=gpt", "--steps=12", "--global-batch-size=8", "--micro-batch-size=1",
    "--optimizer=adamw", "--lr=0.001", "--grad-clip=1.0", "--seed=5", "--log-every=1",
    "--rendezvous-timeout=60s", "--collective-timeout=60s",
    "--arg=depth=1", "--arg=width=16", "--arg=heads=2", "--arg=seq_len=8", "--arg=dropout=0.2",
    "--arg=max_bytes=20000",
)  # fmt: skip
SCRIPT = """
import os, sys
from pathlib import Path
from train.run.layout import node_directory
from train.launch.directory import acquire
from train.base.errors import Refusal
whole, host = Path(sys.argv[1]), sys.argv[2]
held = node_directory(whole, host)
try:
    attempt = acquire(whole, held, "test", os.environ.get("DDPGEN_SCHEDULER", ""))
except Refusal as refusal:
    print("ddpgen:", refusal, file=sys.stderr)
    sys.exit(refusal.code)
os.environ |= {
    "DDPGEN_ATTEMPT": attempt, "DDPGEN_NODE": host, "DDPGEN_NODE_DIR": str(held), "DDPGEN_JOB": "test",
    "DDPGEN_LAUNCHER_PID": str(os.getpid()), "DDPGEN_CHECKPOINT_DIR": str(whole),
}
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""


class Host(jobs.Job):
    """One host: its claim, and then what `launcher` and `training` say."""

    def __init__(
        self,
        name: str,
        directory: Path,
        launcher: Sequence[str],
        training: Sequence[str],
        **env: str,
    ) -> None:
        self.name, self.directory = name, directory
        command = [
            sys.executable, "-c", SCRIPT, str(directory), name, *launcher,
            "-m", "train", "run", *TRAIN, *training, f"--checkpoint-dir={directory}",
        ]  # fmt: skip
        fixed = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        everything = {**os.environ, **fixed, **env}
        self.process = subprocess.Popen(command, env=everything, cwd=jobs.ROOT, **jobs.PIPED)
        self._listen()

    @property
    def status(self) -> str:
        """Word, step and reason, without the attempt id."""
        words = (self.directory / "nodes" / self.name / "status").read_text().split(maxsplit=3)
        return " ".join([words[0], *words[2:]]).strip()

    def workers(self) -> list[int]:
        """Process ids of the workers: what the script became is torchrun's agent itself."""
        return jobs.children(self.process.pid)

    def power_off(self) -> None:
        """All its processes at once, without a word."""
        if self.process.poll() is None:
            processes.send((self.process.pid, *self.workers()), signal.SIGKILL)
            self.process.wait(jobs.PATIENCE_S)


@contextmanager
def hosts(*started: Host) -> Iterator[None]:
    """Whatever happens in a test, no host outlives it."""
    with ExitStack() as stack:
        for host in started:
            stack.callback(host.power_off)
        yield


def until_step(of: Sequence[Host], step: int) -> None:
    """Read on until one of the hosts, that of rank 0, has said that `step` steps are complete."""
    _until(of, r"step +(\d+)/", lambda found: int(found[1]) >= step)


def until_met(of: Sequence[Host]) -> None:
    """Read on until all of these have met: an elastic run's first host may begin without the others."""
    _until(of, rf".*\b{len(of)} processes on {len(of)} hosts", lambda found: True)


def _until(hosts: Sequence[Host], pattern: str, is_it: Callable[[re.Match[str]], bool]) -> None:
    deadline = time.monotonic() + jobs.PATIENCE_S
    for host in itertools.cycle(hosts):
        with contextlib.suppress(TimeoutError):
            line = host.next(within=0.02)
            assert line is not None, f"ended before {pattern}:\n{host.output}"
            found = re.match(pattern, line)
            if found and is_it(found):
                return
        assert time.monotonic() < deadline, f"no {pattern} in {jobs.PATIENCE_S} s"


def c10d(port: int, procs: int, nodes: str, *, head: bool, restarts: int = 0) -> list[str]:
    """torchrun as the hosts' scripts start it by default."""
    return [
        "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={procs}",
        "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test",
        f"--rdzv-conf=is_host={str(head).lower()},join_timeout=60,last_call_timeout=1",
        "--local-addr=127.0.0.1", f"--max-restarts={restarts}", "--monitor-interval=0.1",
    ]  # fmt: skip


def static(port: int, procs: int, nodes: int, rank: int) -> list[str]:
    """torchrun with ranks and address given."""
    return [
        "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--node-rank={rank}",
        f"--nproc-per-node={procs}", "--master-addr=127.0.0.1", f"--master-port={port}",
        "--max-restarts=0", "--monitor-interval=0.1",
    ]  # fmt: skip
