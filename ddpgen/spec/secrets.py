"""How secrets are recognised in variables: by the name, or by the form of the value. Pure."""

from __future__ import annotations

import re

SHORTEST = 6  # a shorter one stands in other words as well
_NAME = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)(_|$)", re.IGNORECASE
)
# A number, a variable, a token of a tokenizer, a word or some.
_HARMLESS = re.compile(r"[\d.]+|\$\w+|\$\{\w+\}|[<\[].*[>\]]|[a-z]+([_-][a-z]+)*")
# Tokens of Hugging Face, OpenAI, GitHub and AWS.
FORMS = re.compile(r"\bhf_\w{8,}|\bsk-[\w-]{16,}|\bgh[pousr]_\w{8,}|\bAKIA\w{12,}")


def is_secret(name: str, value: str) -> bool:
    """True if the name is one of a secret, or the value has the form of one."""
    return bool(_NAME.search(name) or FORMS.search(value))


def stands_in(name: str, value: str) -> bool:
    """True if `value` gives a secret away: a path, a number, a word or another variable does not."""
    if FORMS.search(value):
        return any(digit in value for digit in "0123456789") or not value.islower()
    harmless = len(value) < SHORTEST or "/" in value or _HARMLESS.fullmatch(value)
    return bool(_NAME.search(name)) and not harmless
