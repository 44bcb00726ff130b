"""The secrets of a job, which a spec only names, and variables that look like a secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ddpgen.spec.fields import FieldSchema, Kind, Refused, Text
from ddpgen.spec.groups import Pairs, Path, Walk
from ddpgen.spec.yamltree import Listing, Node, Scalar, Table, dotted

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
# Tokens of Hugging Face, OpenAI, GitHub and AWS, and the key of a `wandb login`.
TOKEN_FORMS = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}\b|\bsk-[\w-]{16,}|\bgh[pousr]_[A-Za-z0-9]{8,}\b|\bAKIA\w{12,}|(?<=wandb login )[0-9a-f]{40}\b|(?<=--relogin )[0-9a-f]{40}\b"
)
# A URL with a password in it.
_LOGIN = re.compile(r"(?<=\w)://[^/@\s:]*:(?![$<{*])[^/@\s]+@")
_FILE = "file:"


class _File(Text):
    """The file of a secret. Its refusal does not show the text, because that may be the secret itself."""

    def __init__(self) -> None:
        # A comma separates the secrets in an option of the supervisor.
        super().__init__(
            r"file:~?/(?!dev/(?:null|zero|u?random|tty|std\w+)$)[^\0-\x1f,]*[^\0-\x1f,/]",
            "file:~/PATH or file:/PATH, without a comma",
        )

    def parse(self, raw: Scalar) -> str:
        if not re.fullmatch(self.pattern, raw.text):
            raise Refused("names no file", f"write {self.allowed}; no spec holds a secret itself")
        return raw.text


class _Name(Text):
    """The name of a secret. Its refusal does not show a text that may be the secret itself."""

    def parse(self, raw: Scalar) -> str:
        if exposes_secret("", raw.text) or "=" in raw.text or ":" in raw.text:
            raise Refused("may hold the secret itself", f"write {self.allowed} alone")
        return super().parse(raw)


_VARIABLE = _Name(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable")
_FILES = Pairs(_VARIABLE.pattern, "letters, digits and _", _File())


class Secret(NamedTuple):
    """A variable of the job whose value is in no file of ddpgen.

    `file`: the user's own file that holds the value; "" if the environment of the launch has it.
    """

    name: str
    file: str = ""


class Secrets(Kind):
    """Names of secrets. A name alone takes its value from the environment, and `NAME: file:~/PATH` from a file."""

    allowed = f"{_VARIABLE.allowed}, or NAME: file:~/PATH, or a list of them"
    sample = ()

    def read(self, node: Node, path: Path, walk: Walk) -> tuple[Secret, ...]:
        if not isinstance(node, Listing):
            return tuple(self._read(node, path, walk))
        for item in node.items:
            if isinstance(item, Table) and len(item.entries) != 1:
                problem = f"{len(item.entries)} secrets are behind one dash"
                walk.refuse(item, Refused(problem, "write a dash before each"))
                walk.invalid_fields.add(dotted(path))
        return tuple(secret for item in node.items for secret in self._read(item, path, walk))

    def _read(self, node: Node, path: Path, walk: Walk) -> Iterator[Secret]:
        if isinstance(node, Table):
            for name, file in _FILES.read(node, path, walk).items():
                yield Secret(name, file.removeprefix(_FILE))
        else:
            yield Secret(walk.value(_VARIABLE, node, path))

    def schema(self, path: str, field_schema: FieldSchema) -> dict[str, Any]:
        files = _FILES.schema(path, field_schema)
        files["additionalProperties"] = _FILES.leaf.schema(path, field_schema)
        items = [_VARIABLE.schema(path, field_schema), files]
        return {"anyOf": [*items, {"type": "array", "items": {"anyOf": items}}]}

    def dump(self, value: tuple[Secret, ...]) -> list[Any]:
        return [{s.name: f"{_FILE}{s.file}"} if s.file else s.name for s in value]

    def load(self, stored: list[Any]) -> tuple[Secret, ...]:
        pairs = (each if isinstance(each, dict) else {each: _FILE} for each in stored)
        return tuple(
            Secret(name, file.removeprefix(_FILE)) for pair in pairs for name, file in pair.items()
        )


def is_secret(name: str, value: str) -> bool:
    """True if the variable's name says that it is a secret, or its value has the form of a secret."""
    return bool(_NAME.search(name) or TOKEN_FORMS.search(value))


def exposes_secret(name: str, value: str) -> bool:
    """True if `value` gives a secret away. A path, a number, a word or another variable does not."""
    if TOKEN_FORMS.search(value):
        named = _NAME.search(name) is not None
        return named or any(digit in value for digit in "0123456789") or not value.islower()
    if _LOGIN.search(value):
        return True
    words = _PLAIN_WORDS.fullmatch(value) and not _PASSPHRASE.search(name)
    harmless = len(value) < SHORTEST or words or _HARMLESS.fullmatch(value)
    return bool(_NAME.search(name)) and not harmless
