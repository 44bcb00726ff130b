"""Where the templates and the training module lie: inside the wheel, or beside us in a checkout."""

from __future__ import annotations

from pathlib import Path

from ddpgen.errors import BugError


def resource(name: str) -> Path:
    """The directory `templates` or `train`. Raises BugError for a broken installation."""
    package = Path(__file__).parent
    for candidate in (package / "_data" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise BugError(f"{name}/ is missing beside {package}; install ddpgen again")
