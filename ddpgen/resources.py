"""Where templates, training module and guide lie: inside the wheel, or beside us in a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddpgen.errors import BugError


def resource(name: str) -> Path:
    """The directory `templates` or `train`. Raises BugError for a broken installation."""
    found = _find(name)
    if found is None or not found.is_dir():
        raise _missing(f"{name}/")
    return found


def document(name: str) -> str:
    """The text of a file of docs/ that travels with us. Raises BugError for a broken installation."""
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
    """The modules of the package ddpgen.`name`, as (file name, text): they are copied, not imported."""
    for path in sorted((Path(__file__).parent / name).glob("*.py")):
        yield path.name, path.read_text("utf-8")
