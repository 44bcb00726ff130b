"""The answers of Slurm's and SkyPilot's programs about a job, as their formats have it."""

from __future__ import annotations

import json
from typing import Any


def record(
    number: str, job_state: str, reason: str = "None", code: str = "0:0", **more: str
) -> str:
    """A job in an answer of `scontrol show job`."""
    array = "".join(f"{name}={value} " for name, value in more.items())
    nodes = "(null)" if job_state == "PENDING" else "node[1-2]"
    return (
        f"JobId={number} {array}JobName=gpt JobState=X\n   JobState={job_state} Reason={reason}\n   ExitCode={code} "
        f"RunTime=00:01:23 TimeLimit=02:00:00 StartTime=2026-01-01T10:00:00 NodeList={nodes}\n"
    )


def managed(number: int, status: str, **more: Any) -> dict[str, Any]:
    """A job in an answer of `sky jobs queue --verbose --output json`, as far as it is read."""
    return {
        "job_id": number, "task_id": 0, "job_name": "gpt", "job_duration": 0.0, "status": status,
        "resources": "1x[CPU:1]", "cluster_resources": "-", "infra": "-", "recovery_count": 0,
        "details": None, "failure_reason": None, "submitted_at": 1795298075.585699, **more,
    }  # fmt: skip


def answer(*rows: dict[str, Any], before: str = "") -> str:
    return f"0\n{before}{json.dumps(rows, indent=2)}\n"
