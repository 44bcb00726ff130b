"""SkyPilot's API server on the rig: what it assumes of clouds and the internet, and the rig has not.

Found by Python's own mechanism (PYTHONPATH) and applied to SkyPilot's modules as they are imported. It
changes intervals, probes and places of files, and nothing that SkyPilot decides.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# A look at a job costs four seconds of a processor on its first node.
LOOK_S = 30


def network(module: Any) -> None:
    """Before it trusts a job's status the controller asks the internet whether it is there: its server."""
    port = os.environ["SKYPILOT_API_SERVER_LOCAL_PORT"]
    module._TEST_IP_LIST = [f"http://127.0.0.1:{port}/api/health"]


def start(module: Any) -> None:
    """A minute, in which a machine that runs other stories beside this one does not compile and import it all."""
    module.WAIT_APISERVER_START_TIMEOUT_SEC = 220


def constants(module: Any) -> None:
    """The nodes share the directory that SkyPilot makes ~ there; on a cloud each machine has its own."""
    module.RCLONE_MOUNT_CACHED_LOG_DIR = "/tmp/rclone_log"
    module.RCLONE_CACHE_DIR = "/tmp/rclone_cache"
    # How often a job that is done looks whether all is uploaded. The first machine that is through ends
    # all others, as Slurm's srun has it: the head's last checkpoint is to be up by then.
    module.RCLONE_CACHE_REFRESH_INTERVAL = 5


def mounting(module: Any) -> None:
    """For the same reason: every node writes its script under the same name, and removes it."""
    made = module.get_mounting_command

    def local(*arguments: Any, **options: Any) -> str:
        text: str = made(*arguments, **options)
        return text.replace("~/.sky/mount_", "/tmp/mount_")

    module.get_mounting_command = local


def controllers(module: Any) -> None:
    """As many as there is memory for, a dozen, each some seconds of a processor at the start: one."""
    module.get_number_of_jobs_controllers = lambda: 1


def workers(module: Any) -> None:
    """The same for the processes that wait for requests; more are started when they are needed."""
    module._max_long_worker_parallism = lambda *arguments, **options: 1
    module._max_short_worker_parallism = lambda *arguments, **options: 2


def daemons(module: Any) -> None:
    """Volumes, heartbeats to SkyPilot's makers, tokens: none here, and each daemon keeps one of those
    processes for itself, so that every request would start a new one, at four seconds of a processor.
    """
    kept = [each for each in module.INTERNAL_REQUEST_DAEMONS if "status" in each.id]
    module.INTERNAL_REQUEST_DAEMONS[:] = [each for each in kept if "volume" not in each.id]


def intervals(module: Any) -> None:
    """How often the controller looks at its job: made for days, and a test waits for it."""
    module.JOB_STATUS_CHECK_GAP_SECONDS = LOOK_S
    # Not shorter than need be: the machines have their start to do meanwhile.
    module.JOB_STARTED_STATUS_CHECK_GAP_SECONDS = 3


def patience(module: Any) -> None:
    """Ten seconds until it looks for new jobs: with one controller nobody else takes them."""

    class Asyncio:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(min(seconds, LOOK_S))

    module.asyncio = Asyncio()
    # Looks into the log of a job for addresses of dashboards, each time as dear as a look at its state.
    module._LIVE_LINK_MAX_ATTEMPTS = 0


def emergency(module: Any) -> None:
    """A minute after an error that it did not expect. It has one when a head loses its power at a bad
    moment: it takes what srun says of that for an answer of the machine.
    """
    module.EMERGENCY_RECOVERY_BACKOFF_BASE_SECONDS = 4


def retries(module: Any) -> None:
    """A minute before the next attempt where no machine is to be had."""
    module.StrategyExecutor.RETRY_INIT_GAP_SECONDS = 5


PATCHES: dict[str, Callable[[Any], None]] = {
    "sky.backends.backend_utils": network,
    "sky.jobs.constants": emergency,
    "sky.jobs.controller": patience,
    "sky.jobs.recovery_strategy": retries,
    "sky.jobs.utils": intervals,
    "sky.server.common": start,
    "sky.server.config": workers,
    "sky.server.daemons": daemons,
    "sky.skylet.constants": constants,
    "sky.utils.controller_utils": controllers,
    "sky.data.mounting_utils": mounting,
}


class Patching:
    """Finds nothing itself: has a module found by the others, and lets it be patched once it has run."""

    def __init__(self) -> None:
        self._left = dict(PATCHES)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = self._left.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Patching())  # type: ignore[arg-type]
