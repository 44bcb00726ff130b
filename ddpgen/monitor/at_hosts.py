"""status, logs and stop of a job on several hosts: hosts/run.sh asks them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ddpgen.driver.logs import newest
from ddpgen.errors import DdpgenError, TargetUnavailableError
from ddpgen.launch import START, become, output
from ddpgen.monitor import places
from ddpgen.monitor.record import Following


def status(following: Following, captured: bool) -> Iterator[str]:
    """What run.sh says of the hosts; without being `captured`, this process becomes it."""
    if not captured:
        become(_run_sh(following, "--status"))
    yield _table(following)


def stop(following: Following) -> NoReturn:
    """Become run.sh, which asks every host."""
    become(_run_sh(following, "--stop"))


def logs(following: Following, lines: int, follow: bool) -> NoReturn:
    """Become run.sh, or what shows every host's file of the newest launch as it grows."""
    if not follow:
        become(_run_sh(following, "--logs"))
    launch = newest_launch(following)
    if launch is None:
        raise DdpgenError("no host has said anything yet; see ddpgen logs without --follow")
    become(places.tail(sorted(map(str, launch.glob("*.log"))), lines, follow))


def lives(following: Following) -> bool:
    """Whether a host's script runs. Raises TargetUnavailableError."""
    return bool(re.search(r"^\S+ +yes ", _table(following), re.MULTILINE))


def newest_launch(following: Following) -> Path | None:
    """The logs of the newest launch in which a host said something."""
    return newest(following.beside / "logs" / following.job.name)


def _table(following: Following) -> str:
    """What run.sh --status says. Raises TargetUnavailableError when a host cannot be asked."""
    code, said = output(_run_sh(following, "--status"))
    if code != 0:
        raise TargetUnavailableError(f"{said}not every host could be asked")
    return said.rstrip("\n")


def _run_sh(following: Following, option: str) -> list[str]:
    script = following.bundle / START["hosts"]
    if not script.is_file():
        raise TargetUnavailableError(
            f"{script} is not there; render the job for hosts first, or name its bundle with -o"
        )
    return ["bash", places.as_argument(str(script)), option]
