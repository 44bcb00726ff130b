"""What the tests of the store change for all processes, and leave as it was."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine (faults.py) says in the environment which start of which job it is."""
    monkeypatch.setenv("DDPGEN_SCHEDULER", "")
