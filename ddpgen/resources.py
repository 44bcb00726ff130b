"""The paths of the templates, the training module and the guide: inside the wheel, or in a checkout next to ddpgen/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddpgen.errors import BugError


def resource(name: str) -> Path:
    """Return the directory `templates` or `train`. Raise BugError for a broken installation."""
    found = _find(name)
    if found is None or not found.is_dir():
        raise _missing(f"{name}/")
    return found


def document(name: str) -> str:
    """Return the text of a file of docs/ that is installed with ddpgen. Raise BugError for a broken installation."""
    found = _find(f"docs/{name}")
    if found is None:
        raise _missing(f"docs/{name}")
    return found.read_text("utf-8")


def _find(name: str) -> Path | None:
    package = Path(__file__).parent
    candidates = (package / "_data" / name, package.parent / name)
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _missing(name: str) -> BugError:
    return BugError(f"{name} is missing beside {Path(__file__).parent}; install ddpgen again")


def package_files(name: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of the package ddpgen.`name` as (file name, text), to copy them without importing them."""
    for path in sorted((Path(__file__).parent / name).glob("*.py")):
        yield path.name, path.read_text("utf-8")
