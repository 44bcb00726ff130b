"""Questions to SkyPilot about a managed job, as argv, and its answers, as values. Pure.

Owns the formats of SkyPilot 0.14's command line, and the meaning of its states and exit codes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ddpgen.driver.wording import clock, printable
from ddpgen.monitor.report import telling

FITS = "0.14"  # the version that these formats and the rendered file are for
# Ask for so many of the newest jobs: a row takes 2 KB, and a program's output is kept to a limit.
_MOST = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WAITING = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")
# Other states are shown in SkyPilot's own words.
_WORDS = {
    "PENDING": "queued",
    "SUBMITTED": "queued",
    "WINDING_DOWN": "running",
    "CANCELLING": "being cancelled",
    "SUCCEEDED": "done",
}
_STOPPED, _UNABLE = 130, 69  # exit codes of our script


class Managed(NamedTuple):
    """One managed job in SkyPilot. A text is "" if SkyPilot's answer lacks it.

    `recoveries`: how often it has come back. `ran_s`: seconds on machines, over all its starts.
    """

    id: str
    name: str
    state: str
    recoveries: int = 0
    where: str = ""
    machines: str = ""
    ran_s: float = 0.0
    why: str = ""

    @property
    def waits(self) -> bool:
        """True if the job has no processes: it has not begun, or is between two machines."""
        return self.state in _WAITING

    @property
    def over(self) -> bool:
        """True if the job has ended for good."""
        return self.state.startswith(("SUCCEEDED", "CANCELLED", "FAILED"))

    @property
    def ending(self) -> bool:
        return self.state == "CANCELLING"

    @property
    def returns(self) -> str:
        """The number of recoveries in words; "" for none."""
        return {0: "", 1: "once"}.get(self.recoveries, f"{self.recoveries} times")

    @property
    def ran(self) -> str:
        return clock(self.ran_s) if self.ran_s > 0 else ""

    @property
    def words(self) -> str:
        """The state for people."""
        if self.state == "FAILED" and _STOPPED in _codes(self.why):
            return "stopped"
        return _WORDS.get(self.state, self.state.lower().replace("_", " "))

    @property
    def reason(self) -> str:
        """The reason for the state, as far as SkyPilot knows."""
        if self.state != "FAILED":
            return self.why
        codes = _codes(self.why)
        if _STOPPED in codes:
            return "by the user"
        return f"it could not start: {self.why}" if _UNABLE in codes else self.why


def queue() -> list[str]:
    """Ask for this user's jobs, the newest first, with the reasons for their states."""
    return ["jobs", "queue", "--verbose", f"--limit={_MOST}", "--output=json"]


def launch(name: str, secrets: Iterable[str], arguments: Sequence[str]) -> list[str]:
    """Launch the task in the working directory, and do not wait for its end."""
    given = [f"--secret={secret}" for secret in secrets]
    added = [f"--env=DDPGEN_ARGS={' '.join(arguments)}"] if arguments else []
    return ["jobs", "launch", "--yes", "--detach-run", f"--name={name}", *given, *added, "sky.yaml"]


def cancel(ids: Sequence[str]) -> list[str]:
    """End jobs at once, and release their machines."""
    return ["jobs", "cancel", "--yes", *ids]


def logs(number: str, lines: int, follow: bool) -> list[str]:
    """Show the last lines of a job's output, at least one: SkyPilot takes a tail of 0 for all of them."""
    how = "--follow" if follow else "--no-follow"
    return ["jobs", "logs", how, f"--tail={max(1, lines)}", number]


def plain(said: str) -> str:
    """Return the text without colours."""
    return _COLOUR.sub("", said).replace("\r", "")


def fits(said: str) -> bool:
    """True if the answer to --version names the version of SkyPilot whose formats we know."""
    return re.search(rf"\bskypilot, version {re.escape(FITS)}\b", plain(said)) is not None


def submitted(said: str) -> str | None:
    """Return the job's id in the output of a launch; None if it names none."""
    found = re.findall(r"^Managed Job ID: (\d+)\s*$", plain(said), re.MULTILINE)
    return found[-1] if found else None


def nothing_up(said: str) -> bool:
    """True if the answer says that SkyPilot's jobs controller is not up; then no job is either."""
    return "ClusterNotUpError" in said


def complaint(said: str) -> str:
    """Return the most useful line of an answer: the last that names an error, else the last."""
    lines = [line.strip() for line in plain(said).splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (told or lines or ["it said nothing"])[-1].removeprefix("sky.exceptions.")


def from_queue(said: str) -> list[Managed] | None:
    """Return the jobs in an answer, the newest first; None if it holds no list of jobs.

    SkyPilot may print other lines first, for example that it has started its server.
    """
    text = plain(said)
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
    rows = [(j.id, j.words, j.returns, j.where, j.machines, j.ran, j.reason) for j in jobs]
    return telling([heads, *rows])


def _job(row: Mapping[str, Any]) -> Managed:
    recoveries, ran = row.get("recovery_count"), row.get("job_duration")
    why = _text(row, "details") or _text(row, "failure_reason")
    for before in ("Failure: ", "Recovering: "):
        why = why.removeprefix(before)
    return Managed(
        id=str(row["job_id"]),
        name=_text(row, "job_name"),
        state=_text(row, "status"),
        recoveries=recoveries if isinstance(recoveries, int) else 0,
        where=_text(row, "infra"),
        machines=_text(row, "cluster_resources") or _text(row, "resources"),
        ran_s=float(ran) if isinstance(ran, (int, float)) else 0.0,
        why=why.replace("sky.exceptions.", ""),
    )


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    words = " ".join(plain(value).split()) if isinstance(value, str) else ""
    return "" if words == "-" else printable(words)


def _codes(why: str) -> list[int]:
    """Return the machines' exit codes from a text such as `exit code 1` or `exit codes [1, 130]`."""
    found = re.search(r"exit codes? (\d+|\[[\d, ]+\])", why)
    return list(map(int, re.findall(r"\d+", found[1]))) if found else []
