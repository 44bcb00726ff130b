"""The scheduler's job and the number of its start, from the variable DDPGEN_SCHEDULER of the launch script.

Owns the form `slurm 4711 0` (the scheduler, the job's id, how often it was started before). Owns the rule that a later
start replaces an earlier one, and the job's name and commands for messages. Asks no scheduler and looks at no process:
a scheduler that starts a job again has given up the earlier start, even if that start still runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VARIABLE = "DDPGEN_SCHEDULER"
SCHEDULERS = ("slurm", "sky")
# Strict, because the text comes from a file that anybody may have written, and goes into commands that people copy.
_FORM = re.compile(r"([a-z]{1,20}) ([A-Za-z0-9][A-Za-z0-9_.-]{0,63}) ([0-9]{1,9})")


@dataclass(frozen=True)
class Scheduled:
    """One start of a job. `restarts`: how often the job was started before, 0 for its first start."""

    scheduler: str
    job: str
    restarts: int

    @classmethod
    def parse(cls, text: object) -> Scheduled | None:
        """Parse the variable's text. Return None if it is empty or has another form: there is no scheduler."""
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        return cls(match[1], match[2], int(match[3])) if match else None

    def is_same_job(self, other: Scheduled | None) -> bool:
        """Return True if both are starts of one job."""
        return other is not None and (self.scheduler, self.job) == (other.scheduler, other.job)

    def is_replaced_by(self, other: Scheduled | None) -> bool:
        """Return True if `other` is a later start of the same job."""
        return other is not None and self.is_same_job(other) and other.restarts > self.restarts

    @property
    def name(self) -> str:
        """The job's name for messages: `Slurm job 4711`."""
        return f"{self.scheduler.capitalize()} job {self.job}"

    @property
    def cancel_command(self) -> str:
        """The command that ends the job at once; "" if it is not known."""
        return f"scancel {self.job}" if self.scheduler == "slurm" else ""

    @property
    def query_command(self) -> str:
        """The command that shows the job's state; "" if it is not known."""
        return f"squeue --job {self.job}" if self.scheduler == "slurm" else ""
