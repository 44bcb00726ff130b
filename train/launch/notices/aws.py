"""Amazon EC2: the interruption notice of a spot instance, two minutes before it is taken.

Owns IMDSv2 with its tokens and `spot/instance-action`, as in the EC2 User Guide ("Spot Instance interruption
notices", "Use IMDSv2"). Does not use the older version without tokens. A container behind a bridge is one network hop
further away, so the token needs an instance with a PUT response hop limit of 2 there.
"""

from __future__ import annotations

import re

from train.launch.notices.service import NOT_FOUND, UNAUTHORIZED, Answer, Service, ServiceError

_TOKEN = "/latest/api/token"
_DATA = "/latest/meta-data"
_LIFE_S = 21600  # the longest lifetime that a token can have
_ACTIONS = ("terminate", "stop", "hibernate")


class Aws:
    """The instance metadata service of EC2."""

    name = "aws"

    def __init__(self, base: str, period_s: float) -> None:
        self._service = Service(base)
        self._token = ""

    def probe(self) -> None:
        self._token = self._new_token()

    def read_notice(self) -> str:
        answer = self._get(f"{_DATA}/spot/instance-action")
        if answer.status == NOT_FOUND:
            return ""
        said = answer.expect_ok().mapping()
        if said.get("action") not in _ACTIONS:
            raise ServiceError("an answer that makes no sense")
        return f"aws takes this machine back at {_time(said.get('time'))}"

    def _get(self, path: str) -> Answer:
        self._token = self._token or self._new_token()
        answer = self._service.request(path, {"X-aws-ec2-metadata-token": self._token})
        if answer.status == UNAUTHORIZED:  # the token has expired
            self._token = self._new_token()
            answer = self._service.request(path, {"X-aws-ec2-metadata-token": self._token})
        return answer

    def _new_token(self) -> str:
        life = {"X-aws-ec2-metadata-token-ttl-seconds": str(_LIFE_S)}
        token = self._service.request(_TOKEN, life, method="PUT").expect_ok().text
        if not re.fullmatch(r"[!-~]{1,4096}", token):  # it goes into a header
            raise ServiceError("an answer that is no token")
        return token


def _time(text: object) -> str:
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
    return text if isinstance(text, str) and re.fullmatch(form, text) else "an unknown time"
