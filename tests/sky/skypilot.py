"""SkyPilot as the tests see it: what it makes of a task file, and the bash that it runs for one.

Owns the process that answers (helper.py). Knows nothing of what is being tested.
"""

from __future__ import annotations

import json
import select
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.sky import environment

# To import SkyPilot takes two seconds on an idle machine.
PATIENCE_S = 90.0
HELPER = Path(__file__).with_name("helper.py")


class RefusedError(Exception):
    """SkyPilot's words for why it does not take a file."""


class SkyPilot:
    """One process of SkyPilot's code, which reads files as its server does."""

    def __init__(self, home: Path) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (read when it dies, closed with it)
        self._process = subprocess.Popen(
            [environment.PYTHON, "-I", HELPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment.variables(home),
            encoding="utf-8",
        )
        self.version = self._answer()["version"]

    def load(
        self, path: Path, secrets: dict[str, str] | None = None, mounts: bool = False
    ) -> dict[str, Any]:
        """What it understands of the file, read from inside its own directory; `mounts`: as before it mounts them.

        Raises:
            RefusedError: it does not take the file.
        """
        where = str(path.parent)
        answer = self._ask("load", path=str(path), cwd=where, secrets=secrets or {}, mounts=mounts)
        if "refused" in answer:
            raise RefusedError(answer["refused"])
        return {**answer["task"], "warnings": answer["warnings"]}

    def script(self, text: str, variables: dict[str, str], kind: str) -> str:
        """The file that it gives to a node's bash; `kind`: "setup", "vm" or "slurm"."""
        answer = self._ask("script", text=text, variables=variables, kind=kind)
        found: str = answer["script"]
        return found

    def keys(self) -> dict[str, dict[str, list[str]]]:
        """The keys of a task file by section ("" for its top, and "resources"), with the types of their values."""
        return self._ask("keys")

    def without(self) -> dict[str, list[str]]:
        """The clouds that lack each feature, by its name in CloudImplementationFeatures."""
        return self._ask("without")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _ask(self, what: str, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ask": what, **question}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        # One answer to each question: nothing can be left in the reader's buffer meanwhile.
        ready, _, _ = select.select([out], [], [], PATIENCE_S)
        line = out.readline() if ready else ""
        if not line:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._log.seek(0)
            raise AssertionError(f"SkyPilot's code gave no answer:\n{self._log.read()}")
        found: dict[str, Any] = json.loads(line)
        return found
