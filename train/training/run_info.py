"""A worker process as it was started: its settings, its directory, its reporter, and the guards of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from train.distributed.failures import FatalErrorBroadcast
from train.health.reporter import Reporter
from train.run.config import RunConfig
from train.run.node import Node
from train.run.replaced import Replacement


@dataclass(frozen=True)
class RunInfo:
    """Made once by the worker.

    `argv`: the arguments that `config` was parsed from, for manifest.json. `attempt`: the id of this acquisition of the
    directory, "" if the process was started by hand. `node`, `failures`: None unless a supervisor on each of several
    hosts started the job. `reporter`: sends heartbeats. `replaced`: ends this process when a later start has taken
    over.
    """

    config: RunConfig
    argv: Sequence[str]
    directory: Path
    attempt: str
    node: Node | None
    failures: FatalErrorBroadcast | None
    reporter: Reporter
    replaced: Replacement
