"""Where SkyPilot is: an environment of its own beside the project's, made by `make sky`.

Owns the place of that environment, and what stands in a process's environment when SkyPilot runs in it
for a test: a home of its own, so that nobody's clusters and credentials are seen or touched. Knows
nothing of what is being tested.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-sky" / "bin" / "python"
CATALOGS = Path(__file__).with_name("catalogs")
# What a person's own settings would decide otherwise.
_THEIRS = ("SKYPILOT_", "SKY_", "AWS_", "BOTO_", "GOOGLE_", "AZURE_", "CLOUDSDK_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def unavailable() -> str:
    """Why SkyPilot cannot be asked here, with the remedy; empty when it can."""
    if PYTHON.exists():
        return ""
    return f"there is no SkyPilot at {PYTHON.relative_to(ROOT)}: `make sky` makes its environment"


def make_home(home: Path) -> Path:
    """Lay out a home for SkyPilot, with a small list of what clouds sell: it would fetch the whole one."""
    shutil.copytree(CATALOGS, home / ".sky" / "catalogs" / "v8")
    return home


def variables(home: Path, **more: str) -> dict[str, str]:
    """The environment of a process of SkyPilot's: nothing of the person's, and nothing sent to anybody."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(_THEIRS) and name.lower() not in _PROXIES
    }
    return {
        **kept,
        "AWS_EC2_METADATA_DISABLED": "true",  # else boto asks a machine of AWS that is not there, for long
        "HOME": str(home),
        "PATH": os.pathsep.join([str(PYTHON.parent), os.environ["PATH"]]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        **more,
    }
