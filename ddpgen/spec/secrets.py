"""How secrets are recognised in variables: by the name, or by the form of the value. Pure."""

from __future__ import annotations

import re

SHORTEST = 6  # a shorter one stands in other words as well
_NAME = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)(_|$)", re.IGNORECASE
)
# Tokens of Hugging Face, OpenAI, GitHub and AWS.
FORMS = re.compile(r"\bhf_\w{8,}|\bsk-[\w-]{16,}|\bgh[pousr]_\w{8,}|\bAKIA\w{12,}")


def is_secret(name: str, value: str) -> bool:
    """True if the name is one of a secret, or the value has the form of one."""
    return bool(_NAME.search(name) or FORMS.search(value))


def stands_in(name: str, value: str) -> bool:
    """True if `value` gives a secret away: a path, a number or a short word does not."""
    if FORMS.search(value):
        return True
    harmless = len(value) < SHORTEST or "/" in value[:2] or re.fullmatch(r"[\d.]+", value)
    return bool(_NAME.search(name)) and not harmless
