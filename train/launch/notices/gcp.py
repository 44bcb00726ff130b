"""Google Compute Engine: a Spot VM is told 30 seconds before it is stopped.

Owns `instance/preempted` and `instance/maintenance-event`, as in "Create and use Spot VMs" and "About VM
metadata". A maintenance that moves the running machine is no notice. A maintenance that ends the machine is one.
Machines with GPUs cannot be moved.
"""

from __future__ import annotations

import time

from train.launch.notices.service import AbsentError, Answer, Service, ServiceError

_FLAVOR = {"Metadata-Flavor": "Google"}
_INSTANCE = "/computeMetadata/v1/instance"
_SLACK_S = 3.0


class Gcp:
    """The metadata server of Compute Engine."""

    name = "gcp"

    def __init__(self, base: str, period_s: float) -> None:
        self._service = Service(base)
        self._wait_s = max(1, int(period_s))
        self._etag = ""

    def probe(self) -> None:
        if not self._get("id", timeout_s=1.0).text.isdecimal():
            raise ServiceError("an answer that makes no sense")

    def read_notice(self) -> str:
        preempted = self._preempted()
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if preempted == "TRUE":
            return f"gcp takes this machine back 30 s after {now}"
        if preempted != "FALSE":
            raise ServiceError("an answer that makes no sense")
        if self._get("maintenance-event", timeout_s=1.0).text == "TERMINATE_ON_HOST_MAINTENANCE":
            return f"gcp takes this machine back for maintenance, announced by {now}"
        return ""

    def _preempted(self) -> str:
        """Return `preempted`. From the second call on, wait for a change, so that none of the 30 seconds is lost."""
        path, timeout_s = "preempted", 1.0
        if self._etag:
            path += f"?wait_for_change=true&timeout_sec={self._wait_s}&last_etag={self._etag}"
            timeout_s = self._wait_s + _SLACK_S
        self._etag = ""  # after a fault the next look does not wait
        answer = self._get(path, timeout_s)
        etag = {key.lower(): value for key, value in answer.headers.items()}.get("etag", "")
        self._etag = etag if etag.isalnum() and etag.isascii() else ""
        return answer.text

    def _get(self, path: str, timeout_s: float) -> Answer:
        answer = self._service.request(
            f"{_INSTANCE}/{path}", _FLAVOR, timeout_s=timeout_s
        ).expect_ok()
        flavors = [
            value for key, value in answer.headers.items() if key.lower() == "metadata-flavor"
        ]
        if flavors != ["Google"]:
            raise AbsentError("an answer that is not Google's")
        return answer
