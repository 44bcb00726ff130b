"""What ddpgen writes for the tier sky, from a spec and without a bundle around it.

Owns the shortest way from a spec to the files. Knows nothing of SkyPilot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ddpgen import job
from ddpgen.render import Renderer
from ddpgen.tiers.registry import TIERS, read

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    if "sky" in yaml.safe_load(path.read_text()).get("targets", {})
]
BASE: dict[str, Any] = {
    "name": "job",
    "procs_per_node": 2,
    "train": {"workload": "toy", "steps": 10, "global_batch_size": 8, "micro_batch_size": 1},
}


def spec(**fields: Any) -> dict[str, Any]:
    """A small job; `tier` holds what belongs below targets.sky, where a bucket is always named."""
    tier = {"bucket": "s3://my-checkpoints", **fields.pop("tier", {})}
    return {**BASE, **fields, "targets": {"sky": {k: v for k, v in tier.items() if v is not None}}}


def rendered(wanted: dict[str, Any], place: Path = ROOT) -> dict[str, str]:
    """The text of each file of the tier, by its path in the bundle; `place`: where the spec's code is.

    Raises:
        SpecInvalidError: no job for SkyPilot.
    """
    text = yaml.safe_dump(
        wanted, sort_keys=False
    ).encode()  # every odd letter of a text as its number
    reading = read(text, "job.yaml")["sky"]
    job.check([reading], place)
    return {each.path: each.text for each in TIERS["sky"].render(reading.job, Renderer())}


def laid_out(place: Path, wanted: dict[str, Any]) -> Path:
    """The files written below `place`; its sky.yaml."""
    for name, text in rendered(wanted).items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place / "sky.yaml"
