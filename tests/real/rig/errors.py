"""The one error of the rig: the machine below it did not do as asked."""

from __future__ import annotations


class RigError(RuntimeError):
    """A rig could not be brought up, or a fault not brought about."""
