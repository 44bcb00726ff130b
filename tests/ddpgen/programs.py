"""Slurm's and SkyPilot's programs on PATH, and what they answer: see fake_program.sh."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest


class Programs:
    """What they answer, and what they were asked."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *names: str):
        self.root, self.state, self.bin = root, root / "answers", root / "bin"
        self.state.mkdir()
        self.bin.mkdir()
        for name in names:
            (self.bin / name).symlink_to(Path(__file__).parent / "fake_program.sh")
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")

    def answers(self, name: str, text: str) -> None:
        """`text`: the exit code, then what it says."""
        (self.state / name).write_text(text)

    def calls(self, program: str) -> list[list[str]]:
        path = self.state / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [shlex.split(line)[1:] for line in lines if line.split()[0] == program]

    def forget_calls(self) -> None:
        (self.state / "calls").unlink()


def remembered(root: Path, tier: str) -> dict[str, str]:
    """What is on record of the launch of `gpt`, but for its time."""
    found = json.loads((root / "build" / "gpt.launched.json").read_text())
    launched: dict[str, str] = found[tier]
    assert launched.pop("time")
    return launched
