"""`make pictures`: docs/report-example.html, the report of a run of examples/gpt.yaml that was killed twice and
preempted once. Takes a minute or two on a machine with nothing else to do; needs Linux.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.real.jobs import ROOT, Job
from train.base.errors import EXIT_STOPPED
from train.run.stop import PREEMPTED, create_stop_file

PAGE = ROOT / "docs/report-example.html"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        bundle, kept = Path(place) / "gpt", Path(place) / "checkpoints/gpt"
        ddpgen("render", "examples/gpt.yaml", "--target", "local", "-o", str(bundle))
        job = Job(bundle)
        job.until_step(110)
        os.kill(job.workers()[1], signal.SIGKILL)
        job.until_step(230)
        for pid in (job.process.pid, job.agent(), *job.workers()):
            os.kill(pid, signal.SIGKILL)
        job.end()
        job = Job(bundle)
        job.until_step(320)
        # On a notice, the supervisors of other tiers write this file. On local, a signal would count as the user's.
        create_stop_file(kept / "stop", f"{PREEMPTED}: the scheduler takes this machine back")
        expect(job, EXIT_STOPPED)
        expect(Job(bundle), 0)
        ddpgen("report", str(kept), "-o", str(PAGE))
    lines = PAGE.read_text().replace(f" on {socket.gethostname()} ", " on desk ").splitlines()
    PAGE.write_text("".join(f"{line.rstrip()}\n" for line in lines))


def expect(job: Job, code: int) -> None:
    if job.end() != code:
        sys.exit(f"the run ended in another way:\n{job.output}")


def ddpgen(*words: str) -> None:
    command = [sys.executable, "-m", "ddpgen", *words]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "TZ": "UTC"}, check=True)


if __name__ == "__main__":
    main()
