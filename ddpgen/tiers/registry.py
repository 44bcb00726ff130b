"""All tiers. A new tier needs a folder next to this file, a template, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddpgen.spec import reader
from ddpgen.spec.merge import Models
from ddpgen.spec.reader import Reading
from ddpgen.tiers.hosts.tier import Hosts
from ddpgen.tiers.local.tier import Local
from ddpgen.tiers.sky.tier import Sky
from ddpgen.tiers.slurm.tier import Slurm
from ddpgen.tiers.tier import Tier

# A spec without `targets` is for the first tier.
TIERS: Mapping[str, Tier[Any]] = {
    "local": Local(),
    "hosts": Hosts(),
    "slurm": Slurm(),
    "sky": Sky(),
}
DEFAULT_TIER = next(iter(TIERS))
MODELS: Models = {name: tier.model for name, tier in TIERS.items()}


def read(raw: bytes, filename: str) -> dict[str, Reading]:
    """Return the job for each tier that the spec can be read for. Raise SpecInvalidError with every error."""
    return reader.read(raw, filename, MODELS)
