"""The machine with a job's Slurm programs: the login node of the spec, else this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ddpgen.driver.plan import Plan, PlannedHost
from ddpgen.monitor.places import Machine, logins
from ddpgen.tiers.slurm.fields import SlurmJob


@contextlib.contextmanager
def control_machine(job: SlurmJob, bundle_parent: Path) -> Iterator[Machine]:
    """Yield the login node of the spec, else this machine. Raise TargetUnavailableError.

    `bundle_parent`: the directory that holds the bundle on this machine.
    """
    if job.login is None:
        yield Machine(str(bundle_parent))
        return
    host = PlannedHost(job.login, job.login, job.dir, "slurm.sbatch")
    hosts_plan = Plan(job.name, "", None, 0, job.login, job.ssh_options, "", (host,))
    with logins(hosts_plan) as (login_node,):
        yield login_node
