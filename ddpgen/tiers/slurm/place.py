"""The machine with a job's Slurm programs: the login node of the spec, else this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ddpgen.driver.plan import Plan, PlannedHost
from ddpgen.monitor.places import Place, logins
from ddpgen.tiers.slurm.fields import SlurmJob


@contextlib.contextmanager
def reach(job: SlurmJob, beside: Path) -> Iterator[Place]:
    """Yield the login node of the spec, else this machine. Raise TargetUnavailableError.

    `beside`: the directory that holds the bundle on this machine.
    """
    if job.login is None:
        yield Place(str(beside))
        return
    host = PlannedHost(job.login, job.login, job.dir, "slurm.sbatch")
    way = Plan(job.name, "", None, 0, job.login, job.ssh_options, "", (host,))
    with logins(way) as (login,):
        yield login
