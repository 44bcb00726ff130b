"""The machine with a job's Slurm programs: the login node of the spec, else this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpgen.driver.plan import Plan, PlannedHost
from ddpgen.monitor.places import Machine, logins
from ddpgen.tiers.slurm.fields import SlurmJob


def control_machine(
    job: SlurmJob, bundle_parent: Path
) -> contextlib.AbstractContextManager[Machine]:
    """Return the login node of the spec, else this machine. Entering it raises TargetUnavailableError.

    `bundle_parent`: the directory that holds the bundle on this machine.
    """
    return machine(job.login, str(bundle_parent), job.dir, job.ssh_options)


@contextlib.contextmanager
def machine(
    login: str | None, base: str, login_base: str, ssh_options: Sequence[str]
) -> Iterator[Machine]:
    """Yield the login node, else this machine. `login_base` holds the bundles on the former, `base` on the latter."""
    if login is None:
        yield Machine(base)
        return
    host = PlannedHost(login, login, login_base, "slurm.sbatch")
    hosts_plan = Plan(login, "", None, 0, login, tuple(ssh_options), "", (host,))
    with logins(hosts_plan) as (login_node,):
        yield login_node
