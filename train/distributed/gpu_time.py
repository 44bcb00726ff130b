"""The source of a step's times on a GPU.

A rank queues the work of a step long before its GPU does it. So a mark is an event in that queue. If the rank waits and
the GPU runs out of work, the seconds between two marks include this wait.
"""

from __future__ import annotations

from typing import Any

import torch

from train.distributed.timing import HostTime


class GpuTime(HostTime):
    """The times of the work in the current stream."""

    def mark(self) -> Any:
        """Return an event that the GPU reaches after all work queued so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two events that the GPU has reached."""
        return float(begin.elapsed_time(end)) / 1000

    def is_past(self, mark: Any) -> bool:
        """Return whether the GPU has reached this event."""
        return bool(mark.query())
