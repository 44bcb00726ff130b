"""The command that trains: its launcher and the launcher's options. Sources: the options of torchrun and accelerate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddpgen.adopt.bash import Command, option

_LAUNCHERS = {
    ("torchrun",): "torchrun",
    ("python", "-m", "torch.distributed.run"): "torchrun",
    ("python", "-m", "torch.distributed.launch"): "torchrun",
    ("accelerate", "launch"): "accelerate",
    ("python",): "python",
}
_LAUNCHER_FLAGS = frozenset([
    "standalone", "module", "m", "no-python", "run-path", "use-env", "multi-gpu", "cpu", "same-network",
    "use-deepspeed", "use-fsdp",
])  # fmt: skip


class Launch(NamedTuple):
    """The command that trains.

    `kind`: its launcher. `options`: the launcher's. `rest`: the training script with its arguments. `srun`: True if
    srun starts it. `env`: the variables that are set for it alone. `directory`: the one it starts in, relative to the
    launch script's.
    """

    kind: str
    command: Command
    options: Mapping[str, str]
    rest: Sequence[str]
    srun: bool
    env: Sequence[str]
    directory: str = ""


def launched(words: list[str], command: Command) -> Launch | None:
    """Return the training that `words` start by a launcher or by Python; None if they start none."""
    words[:1] = [re.sub(r"^(\S*/)?python[0-9.]*$", "python", word) for word in words[:1]]
    if words[:2] == ["python", "-u"]:
        del words[1]
    starts = (start for start in _LAUNCHERS if tuple(words[: len(start)]) == start)
    start = max(starts, key=len, default=())
    kind, rest = _LAUNCHERS.get(start, ""), words[len(start) :]
    options: dict[str, str] = {}
    while rest and rest[0].startswith("-") and "m" not in options:
        name, value = option(rest, {}, frozenset() if kind == "python" else _LAUNCHER_FLAGS)
        options[name.replace("_", "-")] = value
    script = rest[0] if rest else ""
    if not kind or (kind == "python" and [*options] != ["m"] and not script.endswith(".py")):
        return None
    return Launch(kind, command, options, rest, False, ())
