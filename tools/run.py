"""`python tools/run.py SCRIPT`: run a bundle's local.sh as `make run` does.

A job that stopped because it was asked to is no error of make, so its exit code 75 becomes 0 here. However this process
is ended, the job is asked to stop. Unless it was killed, this process waits for the job's end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from train.base import processes
from train.base.errors import EXIT_STOPPED

# The commands to type after a run that is done. {}: the bundle.
_NEXT = {
    ". .venv/bin/activate": "put ddpgen on the PATH of this terminal",
    "ddpgen status {}": "how it ended, and where the weights are",
    "ddpgen report {}": "the run as one page",
    "ddpgen verify {}": "compute the last steps again, and compare the bits",
}
_AGAIN = (
    "Give the spec another name and another procs_per_node, and train it: the weights are the same."
)


def main(script: str) -> int:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # until the job has started, Ctrl-C ends this process without a traceback
    processes.die_with_parent(signal.SIGTERM)
    job = subprocess.Popen(
        ["bash", script],
        preexec_fn=lambda: processes.die_with_parent(signal.SIGTERM),  # noqa: PLW1509 (one thread)
    )
    # A terminal's Ctrl-C and hang-up reach the job by themselves. make's SIGTERM comes only to this process.
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: job.terminate())
    code = job.wait()
    if code == EXIT_STOPPED:
        print("ddpgen: `make run` resumes from there")
        return os.EX_OK
    if code == os.EX_OK:
        commands = {line.format(os.path.dirname(script)): does for line, does in _NEXT.items()}
        width = max(map(len, commands))
        print(
            "try next:",
            *(f"  {line:<{width}}  {does}" for line, does in commands.items()),
            _AGAIN,
            sep="\n",
        )
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
