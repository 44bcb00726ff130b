"""Whole runs in a second: `python -m train run`, forked from this process instead of started.

Owns starting the workers of one run with torchrun's variables and waiting for their end. There are
no restarts here; those are torchrun's, and are tested with it in tests/real.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import multiprocessing
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.ports import free_port
from tests.real.jobs import checkpoints
from train.__main__ import run as main
from train.checkpoint.checkpointer import Checkpointer
from train.run.lock import claim

# A run imports these modules later. Its forks find them imported.
for _module in [
    "encodings.idna",
    "numpy.random",
    "torch.utils.serialization.config",
    "train.trainer",
    "train.worker",
]:
    with contextlib.suppress(ModuleNotFoundError):  # torch 2.4 has no utils.serialization
        importlib.import_module(_module)

TIMEOUT_S = 90.0
_port = functools.cache(free_port)  # one run at a time, and there are many
DEFAULTS = (
    "--global-batch-size=12", "--micro-batch-size=1", "--optimizer=sgd", "--lr=0.05",
    "--checkpoint-every=1000 steps", "--rendezvous-timeout=30s", "--collective-timeout=30s",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """How a run ended: each rank's exit code, all they printed, and where the checkpoints are."""

    codes: list[int | None]
    output: str
    directory: Path

    @property
    def status(self) -> str:
        return (self.directory / "status").read_text()

    def tensors(self) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = torch.load(
            checkpoints(self.directory)[-1] / "model.pt", weights_only=True
        )
        return loaded


def run(directory: Path, workload: str, processes: int, *arguments: str) -> Run:
    """Train `workload` (file:function, the file absolute or relative to the tests) to its end."""
    torch.set_num_threads(1)
    directory.mkdir(parents=True, exist_ok=True)
    # This process goes on living, so for the lock the run before this one does as well.
    (directory / "lock").unlink(missing_ok=True)
    attempt = claim(directory, "test", os.getpid())
    length = [] if any(a.startswith("--epochs") for a in arguments) else ["--steps=6"]
    argv = [
        *DEFAULTS,
        *length,
        f"--workload={workload}",
        f"--checkpoint-dir={directory}",
        *arguments,
    ]
    fork = multiprocessing.get_context("fork")
    log = directory / "output"
    env = {"MASTER_PORT": str(_port()), "WORLD_SIZE": str(processes), "DDPGEN_ATTEMPT": attempt}
    workers = [
        fork.Process(target=_work, args=(rank, processes, env, argv, log))
        for rank in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(TIMEOUT_S)
        if worker.exitcode is None:
            worker.kill()
            worker.join()
    return Run([w.exitcode for w in workers], log.read_text(errors="replace"), directory)


def import_compiler() -> None:
    """Import what torch imports for an optimizer that a workload makes itself, and for a profile.

    Each fork would import it by itself, which takes three seconds of processor.
    """
    import torch._dynamo  # noqa: F401


_due = Checkpointer.due


def due(checkpointer: Checkpointer, step: int) -> bool:
    """Wait for the checkpoint before, because these steps take less than a write. So each one that is due is taken."""
    checkpointer.settle(60.0)
    return _due(checkpointer, step)


def _work(rank: int, processes: int, env: dict[str, str], argv: list[str], log: Path) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    faulthandler.dump_traceback_later(TIMEOUT_S - 10)  # where it hangs, before it is killed
    os.environ.update(
        env, MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", RANK=str(rank),
        LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(processes),
    )  # fmt: skip
    Checkpointer.due = due  # type: ignore[method-assign]
    try:
        code = main(argv)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    except BaseException:  # noqa: BLE001 - shown to whoever reads the log
        traceback.print_exc()
        code = 99
    os._exit(code)
