"""Stands in for torch.distributed.run in a bundle: says what it was given, then acts a part.

Copied into a bundle as torch/distributed/run.py, where it is found before the real one; `train`
beside it is the real one, so lock and status are too. FAKE names the part:
done, stopped, failed, train (until the stop file appears), deaf (never ends; has a worker that is to die
with it), barrier (has failed, has no worker any more, and waits for other hosts without hearing a signal).
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from string import Template

from train.run.status import Status, write_status

DIRECTORY = Path(os.environ["DDPGEN_CHECKPOINT_DIR"])
WORKER = """
import signal, time
from train.base import processes
processes.die_with_parent(signal.SIGKILL)
print("up", flush=True)
time.sleep(600)
"""


def main() -> int:
    seen = {
        "argv": [as_torchrun_reads(word) for word in sys.argv],
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "pgrp": os.getpgrp(),
        "pid": os.getpid(),
    }
    part = os.environ.get("FAKE", "done")
    if part == "deaf":
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER], start_new_session=True, stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        worker.stdout.readline()
        seen["worker"] = worker.pid
    if part == "train":  # before the word that tests wait for
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(end("stopped", "SIGTERM")))
    temporary = DIRECTORY / ".seen"
    temporary.write_text(json.dumps(seen), "utf-8")
    temporary.rename(DIRECTORY / "seen.json")
    print("training", flush=True)
    return act(part)


def as_torchrun_reads(word: str) -> str:
    """torch.distributed.elastic's macros.substitute: every argument is a template."""
    text = os.fsencode(word).decode("utf-8", "surrogateescape")
    return Template(text).safe_substitute(local_rank="0", rank="0")


def act(part: str) -> int:
    if part == "barrier":
        end("failed", "a fault")
    if part in ("deaf", "barrier"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if part == "train":
        while not (DIRECTORY / "stop").exists():
            time.sleep(0.01)
        part = "stopped"
    return end(part, "it was to be")


def end(part: str, reason: str) -> int:
    write_status(DIRECTORY, Status(part, os.environ["DDPGEN_ATTEMPT"], 7, reason))
    return 1  # as torchrun's own: says nothing


if __name__ == "__main__":
    sys.exit(main())
