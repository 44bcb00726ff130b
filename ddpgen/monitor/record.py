"""What was launched last from a bundle: build/<name>.launched.json.

Owns that file. A missing or spoilt one means that nothing is remembered, never an error.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ddpgen.errors import FileTroubleError


@dataclass(frozen=True)
class Launched:
    """One launch. Of Slurm: the job's id, its cluster where sbatch named one, where its output goes.

    `log` is a path at the login node if there is one.
    """

    tier: str
    job: str = ""
    cluster: str = ""
    log: str = ""
    login: str = ""


def path(bundle: Path) -> Path:
    """Where it is remembered, beside the bundle."""
    return bundle.with_name(f"{bundle.name}.launched.json")


def remember(bundle: Path, launched: Launched) -> None:
    """Raises FileTroubleError."""
    file = path(bundle)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(asdict(launched), indent=1) + "\n", "utf-8")
        os.replace(temporary, file)
    except OSError as error:
        raise FileTroubleError(f"{file}: {error.strerror}; make room, or give another -o") from None


def recall(bundle: Path) -> Launched | None:
    """The last launch, if one is remembered."""
    try:
        found = json.loads(path(bundle).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    names = [field.name for field in fields(Launched)]
    if not isinstance(found, dict) or not isinstance(found.get("tier"), str):
        return None
    return Launched(**{n: v for n in names if isinstance(v := found.get(n, ""), str)})
