"""Find a profile by its name: NAME.yaml above the spec, in the user's configuration, or in the machine's. Write one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddpgen.errors import BundleRefusedError, FileTroubleError

SYSTEM = "/etc/ddpgen"


class Folder(NamedTuple):
    """A directory of profiles. `name`: as bundle.json writes it, without a path of this machine."""

    path: str
    name: str


def folders(spec: str) -> Iterator[Folder]:
    """Yield the directories where the profiles of a spec may lie. The first that has the profile wins."""
    yield Folder(os.path.join(os.path.dirname(spec), ".ddpgen"), ".ddpgen")
    directory, name = os.path.dirname(os.path.abspath(spec)), "../.ddpgen"
    while (above := os.path.dirname(directory)) != directory:
        yield Folder(os.path.join(above, ".ddpgen"), name)
        directory, name = above, f"../{name}"
    yield _of_user()
    yield Folder(SYSTEM, SYSTEM)


def _of_user() -> Folder:
    config = os.environ.get("XDG_CONFIG_HOME")
    name = "$XDG_CONFIG_HOME/ddpgen" if config else "~/.config/ddpgen"
    return Folder(os.path.join(config or os.path.expanduser("~/.config"), "ddpgen"), name)


def known(spec: str) -> list[str]:
    """Return the names of all profiles of a spec."""
    names: set[str] = set()
    for folder in folders(spec):
        if os.path.isdir(folder.path):
            paths = (os.path.join(folder.path, name) for name in os.listdir(folder.path))
            files = [
                os.path.basename(p) for p in paths if p.endswith(".yaml") and os.path.isfile(p)
            ]
            names.update(name.removesuffix(".yaml") for name in files)
    return sorted(names)


def user_file(name: str) -> Path:
    """Return the file of a profile in the user's configuration."""
    return Path(_of_user().path, f"{name}.yaml")


def refuse_existing(file: Path) -> None:
    """Raise BundleRefusedError if the file exists."""
    if os.path.lexists(file):
        raise BundleRefusedError(f"{file} exists already; replace it with --force, or give another")


def write(file: Path, text: str) -> None:
    """Write a profile, and make the directory for it. Raise FileTroubleError."""
    new = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, "utf-8")
        os.replace(new, file)
    except OSError as error:
        raise FileTroubleError(f"{file}: {error.strerror}; give another file with -o") from None
