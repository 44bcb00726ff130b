"""What tests need of a machine, and what happens where it has not got it.

Owns that decision: in CI a failure, elsewhere a skip, with the reason.
"""

from __future__ import annotations

import os

import pytest


def do_without(what: str, reason: str) -> None:
    """Nothing when `reason` is empty."""
    if reason and os.environ.get("CI"):
        pytest.fail(f"no {what}, and CI does not do without: {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)
