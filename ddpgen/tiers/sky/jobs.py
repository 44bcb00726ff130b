"""Questions to SkyPilot about a managed job, as argv, and its answers, as values. Pure.

Owns the formats of SkyPilot 0.14's command line, and the meaning of its states and exit codes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ddpgen.driver.wording import clock, printable
from ddpgen.monitor.report import without_empty_columns

# SkyPilot's version, for which these formats and the rendered file are made.
VERSION = "0.14"

# Only the newest jobs are asked for, because a row takes 2 KB and a program's output is kept to a limit.
_MAX_JOBS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WAITING_STATES = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")
# Other states are shown in SkyPilot's own words.
_STATE_WORDS = {
    "PENDING": "queued",
    "SUBMITTED": "queued",
    "WINDING_DOWN": "running",
    "CANCELLING": "being cancelled",
    "SUCCEEDED": "done",
}
_STOPPED, _UNABLE = 130, 69  # exit codes of our script


class Managed(NamedTuple):
    """One managed job in SkyPilot. A text is "" if SkyPilot's answer lacks it.

    `recoveries`: how often it has come back. `duration_s`: seconds on machines, over all its starts.
    """

    id: str
    name: str
    state: str
    recoveries: int = 0
    infra: str = ""
    machines: str = ""
    duration_s: float = 0.0
    details: str = ""

    @property
    def waiting(self) -> bool:
        """True if the job has no processes: it has not begun, or is between two machines."""
        return self.state in _WAITING_STATES

    @property
    def ended(self) -> bool:
        """True if the job has ended for good."""
        return self.state.startswith(("SUCCEEDED", "CANCELLED", "FAILED"))

    @property
    def cancelling(self) -> bool:
        return self.state == "CANCELLING"

    @property
    def recovery_count_words(self) -> str:
        """The number of recoveries in words; "" for none."""
        return {0: "", 1: "once"}.get(self.recoveries, f"{self.recoveries} times")

    @property
    def duration(self) -> str:
        return clock(self.duration_s) if self.duration_s > 0 else ""

    @property
    def words(self) -> str:
        """The state for people."""
        if self.state == "FAILED" and _STOPPED in _codes(self.details):
            return "stopped"
        return _STATE_WORDS.get(self.state, self.state.lower().replace("_", " "))

    @property
    def reason(self) -> str:
        """The reason for the state, as far as SkyPilot knows."""
        if self.state != "FAILED":
            return self.details
        codes = _codes(self.details)
        if _STOPPED in codes:
            return "by the user"
        return f"it could not start: {self.details}" if _UNABLE in codes else self.details


def queue() -> list[str]:
    """Ask for this user's jobs, the newest first, with the reasons for their states."""
    return ["jobs", "queue", "--verbose", f"--limit={_MAX_JOBS}", "--output=json"]


def launch(name: str, secrets: Iterable[str], arguments: Sequence[str]) -> list[str]:
    """Launch the task in the working directory, and do not wait for its end."""
    secret_options = [f"--secret={secret}" for secret in secrets]
    argument_options = [f"--env=DDPGEN_ARGS={' '.join(arguments)}"] if arguments else []
    return [
        "jobs",
        "launch",
        "--yes",
        "--detach-run",
        f"--name={name}",
        *secret_options,
        *argument_options,
        "sky.yaml",
    ]


def cancel(ids: Sequence[str]) -> list[str]:
    """End jobs at once, and release their machines."""
    return ["jobs", "cancel", "--yes", *ids]


def logs(number: str, lines: int, follow: bool) -> list[str]:
    """Show the last lines of a job's output, at least one, because SkyPilot takes a tail of 0 for all lines."""
    mode = "--follow" if follow else "--no-follow"
    return ["jobs", "logs", mode, f"--tail={max(1, lines)}", number]


def plain(answer: str) -> str:
    """Return the text without colours."""
    return _COLOUR.sub("", answer).replace("\r", "")


def is_supported(answer: str) -> bool:
    """True if the answer to --version names the version of SkyPilot whose formats we know."""
    return re.search(rf"\bskypilot, version {re.escape(VERSION)}\b", plain(answer)) is not None


def submitted(answer: str) -> str | None:
    """Return the job's id in the output of a launch; None if it names none."""
    ids = re.findall(r"^Managed Job ID: (\d+)\s*$", plain(answer), re.MULTILINE)
    return ids[-1] if ids else None


def controller_is_down(answer: str) -> bool:
    """True if the answer says that SkyPilot's jobs controller is not up. Then no job runs."""
    return "ClusterNotUpError" in answer


def complaint(answer: str) -> str:
    """Return the most useful line of an answer: the last that names an error, else the last."""
    lines = [line.strip() for line in plain(answer).splitlines() if line.strip()]
    error_lines = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (error_lines or lines or ["it said nothing"])[-1].removeprefix("sky.exceptions.")


def from_queue(answer: str) -> list[Managed] | None:
    """Return the jobs in an answer, the newest first; None if it holds no list of jobs.

    SkyPilot may print other lines first, for example that it has started its server.
    """
    text = plain(answer)
    for begin in re.finditer(r"^\[", text, re.MULTILINE):
        try:
            rows, _ = json.JSONDecoder().raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return [_job(row) for row in rows if isinstance(row.get("job_id"), int)]
    return None


def table(jobs: Iterable[Managed]) -> list[tuple[str, ...]]:
    """Return the rows of a table for people, the heading first."""
    heads = ("job", "state", "came back", "where", "machines", "ran", "why")
    rows = [
        (j.id, j.words, j.recovery_count_words, j.infra, j.machines, j.duration, j.reason)
        for j in jobs
    ]
    return without_empty_columns([heads, *rows])


def _job(row: Mapping[str, Any]) -> Managed:
    recoveries, ran = row.get("recovery_count"), row.get("job_duration")
    details = _text(row, "details") or _text(row, "failure_reason")
    for before in ("Failure: ", "Recovering: "):
        details = details.removeprefix(before)
    return Managed(
        id=str(row["job_id"]),
        name=_text(row, "job_name"),
        state=_text(row, "status"),
        recoveries=recoveries if isinstance(recoveries, int) else 0,
        infra=_text(row, "infra"),
        machines=_text(row, "cluster_resources") or _text(row, "resources"),
        duration_s=float(ran) if isinstance(ran, (int, float)) else 0.0,
        details=details.replace("sky.exceptions.", ""),
    )


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    words = " ".join(plain(value).split()) if isinstance(value, str) else ""
    return "" if words == "-" else printable(words)


def _codes(details: str) -> list[int]:
    """Return the machines' exit codes from a text such as `exit code 1` or `exit codes [1, 130]`."""
    match = re.search(r"exit codes? (\d+|\[[\d, ]+\])", details)
    return list(map(int, re.findall(r"\d+", match[1]))) if match else []
