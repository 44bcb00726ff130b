"""What the real tests share: rigs and clusters, where this machine can have them (see tests/ci.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ci import do_without
from tests.real import preflight
from tests.real.rig import Rig, sky, slurm, unavailable
from tests.real.rig.sky import Sky
from tests.real.rig.slurm import Slurm

NewRig = Callable[..., Rig]
NewSlurm = Callable[..., Slurm]
NewSky = Callable[..., Sky]


@pytest.fixture(scope="session")
def rig_possible() -> None:
    """Ask for it where a test makes its rig itself."""
    do_without("rig of hosts", unavailable())


@pytest.fixture(scope="session")
def slurm_possible(rig_possible: None) -> None:
    """The same for a cluster."""
    do_without("Slurm cluster", slurm.unavailable())


@pytest.fixture(scope="session")
def sky_possible(slurm_possible: None) -> None:
    """And for SkyPilot on it."""
    do_without("SkyPilot", sky.unavailable())


def bring_up(make: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """What brings them up; they are down at the end of the module."""
    with contextlib.ExitStack() as stack:
        yield lambda *hosts, **options: stack.enter_context(make(*hosts, **options))


@pytest.fixture(scope="module")
def new_rig(rig_possible: None) -> Iterator[NewRig]:
    """Bring up a rig of these hosts."""
    yield from bring_up(lambda *hosts, **options: Rig(hosts, **options))


@pytest.fixture(scope="module")
def new_slurm(slurm_possible: None) -> Iterator[NewSlurm]:
    """Bring up a Slurm cluster."""
    yield from bring_up(Slurm)


@pytest.fixture(scope="module")
def new_sky(sky_possible: None) -> Iterator[NewSky]:
    """Bring up SkyPilot, its cloud and its storage."""
    yield from bring_up(Sky)


@pytest.fixture(scope="module")
def preflight_hosts(new_rig: NewRig) -> Rig:
    """The hosts of the stories about the preflight."""
    return new_rig(*preflight.hosts())


@pytest.fixture
def mended(preflight_hosts: Rig) -> Iterator[Rig]:
    """The same, for a story that breaks something: the next one finds them mended."""
    yield preflight_hosts
    preflight.mend(preflight_hosts)


@pytest.fixture
def stage(mended: Rig, tmp_path: Path) -> preflight.Stage:
    """Where such a story launches its jobs."""
    return preflight.Stage(mended, tmp_path)
