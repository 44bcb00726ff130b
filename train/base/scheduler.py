"""Which start of which scheduler's job this is, as the launch script says it in DDPGEN_SCHEDULER.

Owns the form `slurm 4711 0` (the scheduler, the job's id, how often it was started before), which
start replaces which, and the words for it. Asks no scheduler anything, and looks at no process: a
scheduler that starts a job anew has given the earlier start up, whether or not it still runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VARIABLE = "DDPGEN_SCHEDULER"
SCHEDULERS = ("slurm", "sky")
# It comes from a file that anybody may have written, and goes into commands that people copy.
_FORM = re.compile(r"([a-z]{1,20}) ([A-Za-z0-9][A-Za-z0-9_.-]{0,63}) ([0-9]{1,9})")


@dataclass(frozen=True)
class Scheduled:
    """One start of a job. `restarts`: 0 for its first one."""

    scheduler: str
    job: str
    restarts: int

    @classmethod
    def parse(cls, text: object) -> Scheduled | None:
        """None for what says nothing, or nothing that makes sense: a job that no scheduler started."""
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        return cls(found[1], found[2], int(found[3])) if found else None

    def is_same_job(self, other: Scheduled | None) -> bool:
        """Whether both are starts of one job."""
        return other is not None and (self.scheduler, self.job) == (other.scheduler, other.job)

    def is_replaced_by(self, other: Scheduled | None) -> bool:
        """Whether `other` is a later start of this very job."""
        return other is not None and self.is_same_job(other) and other.restarts > self.restarts

    @property
    def name(self) -> str:
        """`Slurm job 4711`."""
        return f"{self.scheduler.capitalize()} job {self.job}"

    @property
    def cancel(self) -> str:
        """What to type to end it at once; empty where that is not known."""
        return f"scancel {self.job}" if self.scheduler == "slurm" else ""

    @property
    def ask(self) -> str:
        """What to type to see how it is; empty where that is not known."""
        return f"squeue --job {self.job}" if self.scheduler == "slurm" else ""
