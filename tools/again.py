"""`python tools/again.py`: run the failed tests again, one at a time, if all of them are real.

For CI (.ci/run) and `make nightly`, after a run of pytest that failed: a real engine on a busy machine may miss a test's
deadline once. A test that passes now is listed as "passed only alone". A test that fails again, or that does not
start a real engine, is a failure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FAILED = Path(".pytest_cache/v/cache/lastfailed")


class Again:
    """A plugin of pytest: runs the failed tests only if all of them are real, and lists those that pass."""

    def __init__(self, failed: set[str]) -> None:
        self._failed = failed
        self.final: list[str] = []
        self._again: set[str] = set()
        self._run: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        real = {item.nodeid for item in items if item.get_closest_marker("real")}
        self.final = sorted(self._failed - real)
        if self.final:
            items.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._again.add(report.nodeid)
        if report.when == "teardown":
            self._run.append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self.final:
            terminalreporter.write_line(f"not run again, as it starts no real engine: {name}")
        for name in self._run:
            if name not in self._again:
                terminalreporter.write_line(f"passed only alone: {name}", yellow=True)


def main() -> int:
    if not FAILED.exists():
        print("again.py: it was not a test that failed", file=sys.stderr)
        return 1
    failed = set(json.loads(FAILED.read_text()))
    # A run without tests ends with an exit code of its own, which is not 0 and so a failure.
    return pytest.main(["--last-failed"], plugins=[Again(failed)])


if __name__ == "__main__":
    sys.exit(main())
