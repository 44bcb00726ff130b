"""Which class reads the job of a tier that has fields of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ddpgen.spec.job import HostsJob, JobSpec
from ddpgen.spec.sky import SkyJob
from ddpgen.spec.slurm import SlurmJob

MODELS: Mapping[str, type[JobSpec]] = {
    "hosts": HostsJob,
    "slurm": SlurmJob,
    "sky": SkyJob,
}
