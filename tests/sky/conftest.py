"""What the tests of the tier sky share: SkyPilot, where it is installed, and rendered jobs.

Owns the decision what happens where SkyPilot is not: in CI a failure, elsewhere a skip with the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ci import do_without
from tests.sky import environment
from tests.sky.skypilot import SkyPilot


@pytest.fixture(scope="session")
def sky_possible() -> None:
    """Ask for it where a test starts SkyPilot itself."""
    do_without("SkyPilot", environment.unavailable())


@pytest.fixture(scope="session")
def skypilot(sky_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyPilot]:
    """SkyPilot's own code, read strictly."""
    asked = SkyPilot(environment.make_home(tmp_path_factory.mktemp("sky-home")))
    try:
        yield asked
    finally:
        asked.close()
