"""Write the lock files: the exact versions of all packages in the development environments.

pip resolves the requirements of pyproject.toml from the index that the user has configured.
requirements-dev.lock has the package itself and its extras train and dev. Each other lock has one extra, because
SkyPilot brings a hundred packages and pins other versions. No lock pins a package that depends on the hardware:
torch's own metadata pins its CUDA packages, and a torch without CUDA does not install them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "requirements-dev.lock": f"{ROOT}[train,dev]",
    "requirements-docs.lock": f"{ROOT}[docs-dev]",
    "requirements-frameworks.lock": f"{ROOT}[frameworks-dev]",
    "requirements-sky.lock": f"{ROOT}[sky-dev]",
}
HARDWARE_BOUND = re.compile(r"(nvidia|cuda|triton|pytorch-triton)(-|$)")

HEADER = """\
# Exact versions for development and CI, for Python 3.10 to 3.13. Written by `make lock` from the ranges
# in pyproject.toml; do not edit. Installs with plain pip: pip install -r {name}
# torch's CUDA packages are not listed: the torch builds that need them pin them themselves.
"""


def main() -> None:
    """Resolve each lock, add the packages for other Pythons and systems, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=ROOT, help="directory, default: %(default)s")
    into: Path = parser.parse_args().into
    for name, wanted in LOCKS.items():
        kept = lock(wanted)
        text = HEADER.format(name=name) + "\n".join(kept) + "\n"
        (into / name).write_text(text, encoding="utf-8")
        print(f"{into / name}: {len(kept)} packages")


def lock(wanted: str) -> list[str]:
    resolved = resolve(wanted)
    lines = {name: f"{name}=={version(found)}" for name, found in resolved.items()}
    for name, marker in needed_elsewhere(resolved).items():
        found = resolve(name, "--no-deps")[name]
        lines[name] = f"{name}=={version(found)} ; {marker}"
    lines.pop("ddpgen", None)
    return [lines[name] for name in sorted(lines) if not HARDWARE_BOUND.match(name)]


def resolve(requirement: str, *options: str) -> dict[str, dict[str, Any]]:
    """Return the packages that pip would install into an empty environment: their metadata, by canonical name."""
    print(f"+ pip resolves {requirement.replace(str(ROOT), '.')}", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    report = subprocess.run(
        [*command, *options, "--report", "-", requirement],
        stdout=subprocess.PIPE,
        check=True,
        timeout=1800,
    )
    found = [item["metadata"] for item in json.loads(report.stdout)["install"]]
    return {canonicalize_name(item["name"]): item for item in found}


def version(metadata: Mapping[str, Any]) -> str:
    """Return the version without its local part: torch 2.13.0+cpu here is 2.13.0 on another machine."""
    return Version(metadata["version"]).public


def needed_elsewhere(resolved: Mapping[str, Mapping[str, Any]]) -> dict[str, Marker]:
    """Return the packages that another supported Python or system needs, each with the marker that asks for it."""
    needed = {}
    for metadata in resolved.values():
        for requirement in map(Requirement, metadata.get("requires_dist", [])):
            name = canonicalize_name(requirement.name)
            if name not in resolved and requirement.marker and holds(requirement.marker):
                needed[name] = requirement.marker
    return needed


def holds(marker: Marker) -> bool:
    return any(marker.evaluate(environment) for environment in supported_environments())


def supported_environments() -> Iterator[dict[str, str]]:
    systems = (("Linux", "linux"), ("Darwin", "darwin"))
    for python, (system, platform) in itertools.product(("3.10", "3.11", "3.12", "3.13"), systems):
        yield default_environment() | {
            "extra": "",
            "python_version": python,
            "python_full_version": f"{python}.9",  # nobody runs its first releases
            "platform_system": system,
            "sys_platform": platform,
        }


if __name__ == "__main__":
    main()
