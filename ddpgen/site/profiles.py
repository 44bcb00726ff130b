"""Find a profile by its name: NAME.yaml above the spec, in the user's configuration, or in the machine's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

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
    config = os.environ.get("XDG_CONFIG_HOME")
    name = "$XDG_CONFIG_HOME/ddpgen" if config else "~/.config/ddpgen"
    yield Folder(os.path.join(config or os.path.expanduser("~/.config"), "ddpgen"), name)
    yield Folder(SYSTEM, SYSTEM)


def known(spec: str) -> list[str]:
    """Return the names of all profiles of a spec."""
    found: set[str] = set()
    for folder in folders(spec):
        if os.path.isdir(folder.path):
            files = [name for name in os.listdir(folder.path) if name.endswith(".yaml")]
            found.update(name.removesuffix(".yaml") for name in files)
    return sorted(found)
