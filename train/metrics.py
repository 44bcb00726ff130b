"""metrics.jsonl: what a run says of itself to programs.

Owns the row format. Knows nothing of where the numbers come from.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from train.console import say


class MetricsLog:
    """Appends one JSON object a line to metrics.jsonl, each in a single write.

    A crash can cut off the last line at most, so the first row of a run starts on a new line. A
    disk that is full costs rows, never the run.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        self._warned = False

    def write(self, row: dict[str, Any]) -> None:
        line = (json.dumps({k: _plain(v) for k, v in row.items()}) + "\n").encode()
        data = b"\n" + line if self._torn else line
        try:
            self._torn = os.write(self._fd, data) != len(data)
        except OSError as error:
            self._torn = True
            if not self._warned:
                say(f"metrics.jsonl cannot be written ({error.strerror}); training goes on", 0)
                self._warned = True

    def close(self) -> None:
        os.close(self._fd)


def _plain(value: Any) -> Any:
    # JSON has no NaN; a loss that diverged is still worth a row that every parser reads.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
