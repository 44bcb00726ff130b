"""metrics.jsonl: a run's rows for other programs. progress.json follows from these rows.

Owns the row format. Knows nothing of the source of the numbers.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from train.base.console import say
from train.health.stacks import innermost_user_line
from train.run.progress import ProgressFile

# The keys of every row; no metric may have one of these names.
RESERVED = ("kind", "step", "attempt", "generation", "time")


class MetricsLog:
    """Appends rows to metrics.jsonl: each row is one JSON object on a line of its own, in a single write.

    A crash or a full disk can cut a line off. The next row then starts on a new line. A full disk costs rows but does
    not end the run. `log` passes every row to the user's code, and an error there does not end the run either.
    """

    def __init__(
        self,
        path: Path,
        log: Callable[[dict[str, Any]], None] | None = None,
        run: Mapping[str, Any] | None = None,
    ) -> None:
        """`run`: see ProgressFile. Raises OSError."""
        self._log = log
        self._progress = ProgressFile(path.parent, run)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        self._line_is_torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        self._warned = self._callback_warned = False

    def write(self, row: dict[str, Any]) -> None:
        known = {k: as_json_value(v) for k, v in row.items()}
        line = (json.dumps(known) + "\n").encode()
        data = b"\n" + line if self._line_is_torn else line
        try:
            self._line_is_torn = os.write(self._fd, data) != len(data)
        except OSError as error:
            self._line_is_torn = True
            if not self._warned:
                say(f"metrics.jsonl cannot be written ({error.strerror}); training goes on", 0)
                self._warned = True
        self._progress.add_row(known)
        if self._log is not None:
            self._pass_on(self._log, row)

    def _pass_on(self, log: Callable[[dict[str, Any]], None], row: dict[str, Any]) -> None:
        try:
            log(dict(row))
        except Exception as error:  # noqa: BLE001 - the user's code; only its first error is reported
            if not self._callback_warned:
                self._callback_warned = True
                where = innermost_user_line(error.__traceback__)
                say(
                    f"the workload's log failed with {type(error).__name__}: {error}"
                    f"{f' ({where})' if where else ''}; training goes on, and this is not told again",
                    0,
                )

    def close(self) -> None:
        os.close(self._fd)


def as_json_value(value: Any) -> Any:
    """The value in a form that JSON can hold: a float that is not finite becomes text."""
    if isinstance(value, list):
        return [as_json_value(each) for each in value]
    # JSON has no NaN; a loss that diverged is still worth a row that every parser reads.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
