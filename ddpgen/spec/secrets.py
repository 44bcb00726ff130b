"""Recognise secrets in variables, by the name or by the form of the value. Pure."""

from __future__ import annotations

import re

SHORTEST = 6  # characters; a shorter value also occurs within other words
_NAME = re.compile(
    r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)(_|$)", re.IGNORECASE
)
# A number, a variable, a tokenizer's token such as <pad>, a path, a URL, or the name of a file.
_HARMLESS = re.compile(
    r"[\d.]+|\$\w+|\$\{\w+\}|[<\[].*[>\]]|((~|\.{1,2})?/|\w+://).*|[\w./-]+\.[a-z]{1,5}"
)
# One or several words: the name of a thing, or a passphrase.
_PLAIN_WORDS = re.compile(r"[a-z]+([_-][a-z]+)*")
_PASSPHRASE = re.compile(r"PASSWORD|PASSWD|SECRET", re.IGNORECASE)
# Tokens of Hugging Face, OpenAI, GitHub and AWS.
TOKEN_FORMS = re.compile(r"\bhf_\w{8,}|\bsk-[\w-]{16,}|\bgh[pousr]_\w{8,}|\bAKIA\w{12,}")


def is_secret(name: str, value: str) -> bool:
    """True if the variable's name says that it is a secret, or its value has the form of a secret."""
    return bool(_NAME.search(name) or TOKEN_FORMS.search(value))


def exposes_secret(name: str, value: str) -> bool:
    """True if `value` gives a secret away. A path, a number, a word or another variable does not."""
    if TOKEN_FORMS.search(value):
        return any(digit in value for digit in "0123456789") or not value.islower()
    words = _PLAIN_WORDS.fullmatch(value) and not _PASSPHRASE.search(name)
    harmless = len(value) < SHORTEST or words or _HARMLESS.fullmatch(value)
    return bool(_NAME.search(name)) and not harmless
