"""The spec that a launch script becomes, and remarks about the rest of the script, by line.

Owns the spec's text. Takes out and reports each field that the spec's own rules refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

from ddpgen.adopt.expansion import plain
from ddpgen.errors import Finding, SpecInvalidError
from ddpgen.spec import secrets
from ddpgen.spec.job import INTERFACE
from ddpgen.spec.rules import INTERFACE_VARIABLES
from ddpgen.text.yamltext import scalar
from ddpgen.tiers.registry import TIERS, read

_ORDER = (
    "name", "nodes", "procs_per_node", "gpus_per_node", "nic", "restarts", "code", "env", "secrets", "python", "train",
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

    `default_field`: a field of the tier and its value, which the spec gets if the script sets no field of the tier.
    """

    def __init__(self, filename: str, *, default_field: tuple[str, Any] | None = None) -> None:
        self.filename, self._default_field = filename, default_field
        self.fields: dict[tuple[str, ...], Field] = {}
        self.put("name", PurePath(filename).stem)
        self._reports: set[tuple[int, str, str]] = set()
        self._secrets: set[str] = set()

    def put(self, path: str, value: Any, line: int = 0) -> None:
        """Set a field. `path`: its names, joined by dots."""
        self.fields[tuple(path.split("."))] = Field(value, line)

    def add(self, path: str, value: str, line: int) -> None:
        """Append a value to a field that is a list."""
        key = tuple(path.split("."))
        old = self.fields.get(key, Field([], line))
        self.fields[key] = Field([*old.value, value], old.line)

    def get(self, path: str) -> Any:
        field = self.fields.get(tuple(path.split(".")))
        return None if field is None else field.value

    def report_lost(self, line: int, text: str, remedy: str = "") -> None:
        """Report a part of the script that the spec does not have."""
        self._report(line, "not carried over", text, remedy)

    def report_trap(self, line: int, text: str, remedy: str) -> None:
        """Report a fault of the script, which the spec avoids or its user has to correct."""
        self._report(line, "trap", text, remedy)

    def report_needless(self, line: int, text: str) -> None:
        """Report a part of the script that is not needed, because ddpgen does it by itself."""
        self._report(line, "no longer needed", text, "")

    def is_secret(self, name: str, value: str) -> bool:
        """True if the variable's name or value looks like a secret. The value is then shown nowhere."""
        secret = secrets.is_secret(name, value)
        if secret and len(value) >= secrets.SHORTEST:
            self._secrets.add(value)
        return secret

    def is_secret_option(self, name: str, value: str) -> bool:
        """True if an option of the training command looks like a secret. The value is then shown nowhere."""
        secret = bool(_SECRET_OPTION.search(name) and value)
        if secret:
            self._secrets.add(value)
        return secret

    def variable(self, name: str, value: str, line: int) -> None:
        """Set a variable of the job. A secret's value is left out; its name goes into `secrets`."""
        if name in INTERFACE_VARIABLES:
            self._interface(name, value, line)
            return
        if not self.is_secret(name, value):
            self.fields["env", name] = Field(value, line)
            return
        self.secret(name, line)
        remedy = f"it stays out of every file: export {name} before the launch"
        if value:
            self.report_trap(
                line, f"{name} is a secret, and its value stands in the script", remedy
            )
        else:
            self.report_lost(line, name, remedy)

    def secret(self, name: str, line: int) -> None:
        """Add a name to `secrets`, once."""
        if name not in (self.get("secrets") or ()):
            self.add("secrets", name, line)

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
            self.report_lost(line, f"{name}={value}", remedy)

    def _report(self, line: int, kind: str, text: str, remedy: str) -> None:
        self._reports.add((line, kind, f"{text}; {remedy}" if remedy else text))

    def report(self) -> Iterator[str]:
        """Yield all reports by line, without secrets."""
        for line, kind, text in sorted(self._reports):
            location = f"{self.filename}:{line}" if line else self.filename
            yield self.hide(f"{location}: {kind}: {text}")

    def hide(self, text: str) -> str:
        """Return `text` as plain text, with *** for each secret, and for each word that looks like one."""
        text = plain(text)
        for value in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(value, "***")
        return secrets.TOKEN_FORMS.sub("***", text)

    def text(self) -> str:
        """Return the spec. Fields that its rules refuse are taken out; they and missing fields are reported."""
        while True:
            if self._default_field and not any(path[0] == "targets" for path in self.fields):
                self.put(*self._default_field)
            text = self._text()
            findings = self._refused(text)
            refused_fields = [
                (finding, path) for finding in findings if (path := self._field_of(finding.path))
            ]
            if not refused_fields:
                for finding in findings:
                    self.report_lost(0, f"{finding.path}: {finding.problem}", finding.remedy)
                return text
            # One finding for each field: without a refused item, the others of its list have new places.
            for path, finding in {path: finding for finding, path in refused_fields}.items():
                field = self.fields.pop(path)
                value, item = field.value, re.search(r"\[([0-9]+)\]$", finding.path)
                if isinstance(value, list) and item and path[0] == "targets":
                    others = [each for i, each in enumerate(value) if i != int(item[1])]
                    value = value[int(item[1])]
                    if others:
                        self.fields[path] = Field(others, field.line)
                text = f"{finding.path}: {value}: {finding.problem}"
                self.report_lost(field.line, text, finding.remedy)

    def _refused(self, text: str) -> list[Finding]:
        """Return the errors that `ddpgen validate` would report, without those about files that the spec names."""
        try:
            readings = read(text.encode(), "spec")
        except SpecInvalidError as error:
            return [finding for finding in error.findings if finding.fatal]
        conflicts = [
            (reading, conflict)
            for tier, reading in readings.items()
            for conflict in TIERS[tier].check(reading.job)
        ]
        return [
            finding
            for reading, conflict in conflicts
            if (finding := reading.locate(conflict)).fatal
        ]

    def _field_of(self, path: str) -> tuple[str, ...] | None:
        names = tuple(re.sub(r"\[.*", "", path).split("."))
        # A command stays: without it the spec is empty, and its finding asks for `resume` only.
        return names if names in self.fields and names != ("train", "command") else None

    def _shown(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shown(item) for item in value]
        return self.hide(value) if isinstance(value, str) else value

    def _text(self) -> str:
        tree: dict[str, Any] = dict.fromkeys(_ORDER)
        for path, field in self.fields.items():
            node = tree
            for name in path[:-1]:
                node[name] = node.get(name) or {}
                node = node[name]
            node[path[-1]] = Field(self._shown(field.value), field.line)
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
