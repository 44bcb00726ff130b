"""Why a launch does not begin, and with which exit code."""

from __future__ import annotations

EXIT_USAGE = 2


class Refusal(Exception):  # noqa: N818 - no failure: the host, or the arguments, are not as they have to be
    """The launch ends here. The message says what is wrong and what to do; "" where that was said."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
