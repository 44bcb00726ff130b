"""Ask the clouds' metadata services whether the cloud will take this machine back.

Owns the three protocols, one module each. Knows nothing of training, and decides nothing. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# The address of the service in all three clouds. It is no name, because resolving a name may hang.
ADDRESS = "http://169.254.169.254"


class Cloud(Protocol):
    """One cloud's service, as this machine sees it."""

    @property
    def name(self) -> str:
        """The cloud's name, as in clouds()."""

    def probe(self) -> None:
        """Return when the service is there. Raises AbsentError when it is not, ServiceError in doubt."""

    def read_notice(self) -> str:
        """Return the cloud's notice as one line for people; "" without one.

        May wait for news, but not longer than the period that clouds() was given. Raises ServiceError if there is no
        answer, or if the answer makes no sense.
        """


def clouds() -> dict[str, Callable[[str, float], Cloud]]:
    """Return the classes of all clouds by name. Each takes the base of the service's URL and the period in seconds."""
    from train.launch.notices.aws import Aws
    from train.launch.notices.azure import Azure
    from train.launch.notices.gcp import Gcp

    return {"aws": Aws, "gcp": Gcp, "azure": Azure}
