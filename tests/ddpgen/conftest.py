"""What the generator's tests share: specs on disk, the command line in this process, goldens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ddpgen import cli

ROOT = Path(__file__).resolve().parents[2]

GPT = """\
name: gpt
procs_per_node: 2
train:
  workload: gpt
  steps: 300
  global_batch_size: 16
  micro_batch_size: 4
"""


class Outcome(NamedTuple):
    """What a command ended with and said."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a ddpgen command as a user would, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ddpgen", *map(str, argv)])
        code = cli.run()
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], Path]:
    """Write a spec to job.yaml."""

    def spec(text: str = GPT) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return spec


@pytest.fixture
def golden(update_golden: bool) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME, byte for byte; a missing golden is a failure."""

    def golden(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if update_golden:
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; make golden writes it"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; make golden after a look"

    return golden
