"""What the clouds' metadata services say of a machine that is to be taken back.

Owns the three protocols, one module each. Knows nothing of trainings, and decides nothing. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# All three clouds serve it under this address, so that no name has to be resolved, which may hang.
ADDRESS = "http://169.254.169.254"


class Cloud(Protocol):
    """One cloud's service, as this machine sees it."""

    @property
    def name(self) -> str:
        """As in --only."""

    def probe(self) -> None:
        """Return when the service is there. Raises AbsentError when it is not, ServiceError in doubt."""

    def look(self) -> str:
        """Its notice, one line for people; "" without one. Raises ServiceError when that cannot be had, or makes
        no sense.

        May wait for news, but not longer than the period it was made with.
        """


def clouds() -> dict[str, Callable[[str, float], Cloud]]:
    """All of them by name, to be made with the base of the service's URL and the period in seconds."""
    from train.launch.notices.aws import Aws
    from train.launch.notices.azure import Azure
    from train.launch.notices.gcp import Gcp

    return {"aws": Aws, "gcp": Gcp, "azure": Azure}
