"""The spec that a launch script becomes, and remarks about the rest of the script, by line.

Owns the spec's text. Takes out and reports each field that the spec's own rules refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

from ddpgen.errors import Finding, SpecInvalidError
from ddpgen.spec import secrets
from ddpgen.spec.job import INTERFACE
from ddpgen.spec.rules import INTERFACE_NAMES
from ddpgen.tiers.registry import TIERS, read
from ddpgen.yamltext import scalar

_ORDER = (
    "name", "nodes", "procs_per_node", "gpus_per_node", "nic", "restarts", "code", "env", "python", "train",
    "targets",
)  # fmt: skip
_SECRET_OPTION = re.compile(
    r"(api|access|secret|auth|hf|hub)[_-]?(key|token)|password|passwd|secret", re.IGNORECASE
)


class Field(NamedTuple):
    """A value of the spec, and the script's line that it comes from; 0 for no line."""

    value: Any
    line: int


class Draft:
    """A spec in the making. `fields`: its fields by their paths.

    `secrets`: the field that lists names of secrets, if the spec's tier has one. `least`: a field of the tier and its
    value, which the spec gets if the script sets no field of the tier.
    """

    def __init__(
        self, filename: str, *, secrets: str = "", least: tuple[str, Any] | None = None
    ) -> None:
        self.filename, self._secrets_field, self._least = filename, secrets, least
        self.fields: dict[tuple[str, ...], Field] = {}
        self.put("name", PurePath(filename).stem)
        self._said: set[tuple[int, str, str]] = set()
        self._secrets: set[str] = set()

    def put(self, path: str, value: Any, line: int = 0) -> None:
        """Set a field. `path`: its names, joined by dots."""
        self.fields[tuple(path.split("."))] = Field(value, line)

    def add(self, path: str, value: str, line: int) -> None:
        """Append a value to a field that is a list."""
        key = tuple(path.split("."))
        before = self.fields.get(key, Field([], line))
        self.fields[key] = Field([*before.value, value], before.line)

    def get(self, path: str) -> Any:
        found = self.fields.get(tuple(path.split(".")))
        return None if found is None else found.value

    def lost(self, line: int, what: str, remedy: str = "") -> None:
        """Report a part of the script that the spec does not have."""
        self._say(line, "not carried over", what, remedy)

    def trap(self, line: int, what: str, remedy: str) -> None:
        """Report a fault of the script, which the spec avoids or its user has to correct."""
        self._say(line, "trap", what, remedy)

    def needless(self, line: int, what: str) -> None:
        """Report a part of the script that is not needed, because ddpgen does it by itself."""
        self._say(line, "no longer needed", what, "")

    def is_secret(self, name: str, value: str) -> bool:
        """True if the variable's name or value looks like a secret. The value is then shown nowhere."""
        found = secrets.is_secret(name, value)
        if found and len(value) >= secrets.SHORTEST:
            self._secrets.add(value)
        return found

    def is_secret_option(self, name: str, value: str) -> bool:
        """True if an option of the training command looks like a secret. The value is then shown nowhere."""
        found = bool(_SECRET_OPTION.search(name) and value)
        if found:
            self._secrets.add(value)
        return found

    def variable(self, name: str, value: str, line: int) -> None:
        """Set a variable of the job. A secret's value is left out; its name is kept if the tier has a field for it."""
        if name in INTERFACE_NAMES:
            self._interface(name, value, line)
            return
        if not self.is_secret(name, value):
            self.fields["env", name] = Field(value, line)
            return
        if self._secrets_field:
            self.add(self._secrets_field, name, line)
        remedy = f"it stays out of every file: export {name} before the launch"
        if value:
            self.trap(line, f"{name} is a secret, and its value stands in the script", remedy)
        else:
            self.lost(line, name, remedy)

    def _interface(self, name: str, value: str, line: int) -> None:
        """Set `nic` if the value is one exact name. To NCCL `eth` is the beginning of a name, and `=eth0` a name."""
        interface = value.removeprefix("=")
        is_exact = re.fullmatch(INTERFACE.pattern, interface) and (
            name != "NCCL_SOCKET_IFNAME" or value != interface or re.search(r"[0-9]$", value)
        )
        if is_exact and self.get("nic") in (None, interface):
            self.put("nic", interface, line)
        else:
            remedy = "ddpgen finds the interface; to choose it, write nic: with one exact name"
            self.lost(line, f"{name}={value}", remedy)

    def _say(self, line: int, kind: str, what: str, remedy: str) -> None:
        self._said.add((line, kind, f"{what}; {remedy}" if remedy else what))

    def report(self) -> Iterator[str]:
        """Yield all reports by line, without secrets."""
        for line, kind, what in sorted(self._said):
            where = f"{self.filename}:{line}" if line else self.filename
            yield self.hide(f"{where}: {kind}: {what}")

    def hide(self, text: str) -> str:
        """Return `text` with *** for each secret, and for each word that looks like one."""
        for value in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(value, "***")
        return secrets.FORMS.sub("***", text)

    def text(self) -> str:
        """Return the spec. Fields that its rules refuse are taken out; they and missing fields are reported."""
        while True:
            if self._least and not any(path[0] == "targets" for path in self.fields):
                self.put(*self._least)
            text = self._text()
            refused = self._refused(text)
            wrong = [(each, path) for each in refused if (path := self._field_of(each.path))]
            if not wrong:
                for each in refused:
                    self.lost(0, f"{each.path}: {each.what}", each.remedy)
                return text
            for each, path in wrong:
                if field := self.fields.pop(path, None):
                    self.lost(field.line, f"{each.path}: {field.value}: {each.what}", each.remedy)

    def _refused(self, text: str) -> list[Finding]:
        """Return the errors that `ddpgen validate` would report, without those about files that the spec names."""
        try:
            readings = read(text.encode(), "spec")
        except SpecInvalidError as error:
            return [each for each in error.findings if each.fatal]
        told = [
            (each, check)
            for tier, each in readings.items()
            for check in TIERS[tier].check(each.job)
        ]
        return [found for reading, check in told if (found := reading.locate(check)).fatal]

    def _field_of(self, path: str) -> tuple[str, ...] | None:
        names = tuple(re.sub(r"\[.*", "", path).split("."))
        return names if names in self.fields else None

    def _shown(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shown(each) for each in value]
        return self.hide(value) if isinstance(value, str) else value

    def _text(self) -> str:
        tree: dict[str, Any] = dict.fromkeys(_ORDER)
        for path, field in self.fields.items():
            at = tree
            for name in path[:-1]:
                at[name] = at.get(name) or {}
                at = at[name]
            at[path[-1]] = Field(self._shown(field.value), field.line)
        head = f"# Adopted from {self.filename.rpartition('/')[2]}; `# 7` is the line there that a field comes from."
        return "\n".join([head, *_lines(tree, "")]) + "\n"


def _lines(tree: dict[str, Any], space: str) -> Iterator[str]:
    for name, node in tree.items():
        if isinstance(node, dict):
            yield f"{space}{scalar(name)}:"
            yield from _lines(node, f"{space}  ")
        elif node is not None:
            value, line = node
            origin = f"  # {line}" if line else ""
            if isinstance(value, list):
                yield f"{space}{scalar(name)}:{origin}"
                yield from (f"{space}  - {scalar(each)}" for each in value)
            else:
                yield f"{space}{scalar(name)}: {scalar(value)}{origin}"
