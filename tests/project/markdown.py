"""Commands in Markdown, run as a reader would type them. The convention is in CONTRIBUTING.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"(?:^<!-- (?P<mark>run|run nightly|not run: .+?) -->\n)?^```(?P<language>console|bash)\n(?P<body>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of commands: where it stands, what it says, and its mark: `run`, `run nightly`, `not run: …`."""

    line: int
    language: str
    body: str
    mark: str | None

    @property
    def script(self) -> str:
        """What bash is given. In a console block the commands are the lines after `$ `."""
        if self.language == "bash":
            return self.body
        lines = self.body.splitlines()
        return "\n".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))

    @property
    def shown(self) -> list[str]:
        """The output that a console block shows; `...` stands for any number of lines."""
        if self.language == "bash":
            return []
        return [line for line in self.body.splitlines() if line and not line.startswith("$ ")]


def blocks(markdown: str) -> list[Block]:
    """Every console and bash block of a document, in order."""
    return [
        Block(
            line=markdown.count("\n", 0, found.start()) + 1,
            language=found["language"],
            body=found["body"],
            mark=found["mark"],
        )
        for found in FENCE.finditer(markdown)
    ]


def first_line_not_said(shown: list[str], said: str) -> str | None:
    """The first shown line that the output does not have, in order; None when all are there.

    Lines that the document leaves out need no `...` to stand for them: what is shown must be true,
    it need not be all.
    """
    rest = iter(line.rstrip() for line in said.splitlines())
    for line in shown:
        if line != "..." and line.rstrip() not in rest:
            return line
    return None


def documents(root: Path) -> list[Path]:
    """The documents whose commands are checked."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]
