"""--fetch: copy the newest checkpoints and the metrics to this machine, whole or not at all.

Owns their places here, and which file may replace another. No checkpoint is replaced. If the new metrics do not
continue the old ones, the old file is kept under another name. rsync copies into a staging directory. It stays after a
lost connection, so that the next fetch goes on with it. Whole checkpoints are renamed out of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from . import remote
from .asking import ask_all, show_messages
from .child import run
from .ends import DONE, FAILED
from .plan import PlannedHost
from .screen import Screen
from .session import Context

MARKER, METRICS, MANIFEST = "checkpoint.json", "metrics.jsonl", "manifest.json"
_METADATA = (METRICS, MANIFEST, "progress.json", "status", "best.json", "point.json")
BUNDLES = "bundles"  # archives of the bundles that ran; manifest.json names them
PROBE = "probe.json"
_STEP = re.compile(r"step-\d{9,}")
_STAGING = ".fetched"
# A job touches the lock of its checkpoint directory every 5 s.
_LIVE_S = 60.0
# rsync's exit code if a file vanished during the copy, because the job deletes old checkpoints.
_RSYNC_VANISHED = 24


class RefusedError(Exception):
    """The fetch was refused or failed. Only the staging directory has changed. The message has the reason."""


async def fetch(context: Context, operand: str | None) -> int:
    """Fetch from the host with the newest checkpoint into the directory `operand`, and return the exit code."""
    plan, say = context.plan, context.screen.say
    target = Path(operand or context.bundle.parent / "checkpoints" / plan.name).absolute()
    answers, troubles = await ask_all(plan, context.ssh, remote.status, context.pace.check)
    show_messages(context, troubles)
    steps = {host: int(answer.get("newest") or -1) for host, answer in answers.items()}
    newest = max(steps.values(), default=-1)
    if newest < 0:
        probe = await _fetch_probe(context, answers)
        if probe is not None:
            return _store_probe(probe, target, context.screen)
        say(
            "no host that could be asked holds a checkpoint; a script that names its files otherwise keeps "
            f"them in {plan.checkpoint_dir}, or where it likes: bring those home by rsync"
        )
        return FAILED
    holders = [host for host in plan.hosts if steps.get(host) == newest]
    holder = next((host for host in holders if host.name == plan.head), holders[0])
    context.screen.progress(f"step {newest} is on {holder.name}; bringing it to {target}")
    try:
        _refuse_live(target)
        stage = target / _STAGING
        stage.mkdir(parents=True, exist_ok=True)
        metadata = [f"/{name}" for name in _METADATA]
        metadata.append(f"/{BUNDLES}/*.tar.gz")
        await _copy_files(
            context, holder, stage, [f"/step-*/{MARKER}", *metadata], ["/step-*/", f"/{BUNDLES}/"]
        )
        _refuse_other_run(stage, target)
        new_steps = [name for name in _steps(stage) if not (target / name).exists()]
        contents = [f"/{name}/**" for name in new_steps]
        await _copy_files(context, holder, stage, contents, [f"/{name}/" for name in new_steps])
        _publish(stage, target, new_steps, context.screen)
        shutil.rmtree(stage, ignore_errors=True)
    except RefusedError as refusal:
        say(str(refusal))
        return FAILED
    except OSError as error:
        say(f"{target}: {error.strerror}; make room, or give another place: --fetch DIR")
        return FAILED
    if not any(int(name.partition("-")[2]) >= newest for name in _steps(target)):
        say(f"step {newest} did not arrive whole; fetch again")
        return FAILED
    return DONE


async def _fetch_probe(context: Context, hosts: Iterable[PlannedHost]) -> Path | None:
    """Copy probe.json from the host that was rank 0, which may be any; return the copy, or None if no host has one.

    A probe writes no checkpoint by which its host could be found.
    """
    stage = context.ssh.private / "probe"
    stage.mkdir()
    for host in hosts:
        with contextlib.suppress(RefusedError):
            await _copy_files(context, host, stage, [f"/{PROBE}"], [])
    return stage / PROBE if (stage / PROBE).is_file() else None


def _store_probe(probe: Path, target: Path, screen: Screen) -> int:
    """Put a probe's figures into `target`, and return the exit code."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(probe, target / PROBE)
    except OSError as error:
        screen.say(f"{target}: {error.strerror}; make room, or give another place: --fetch DIR")
        return FAILED
    screen.progress(f"brought the figures of the probe to {target / PROBE}")
    return DONE


async def _copy_files(
    context: Context, host: PlannedHost, stage: Path, files: list[str], directories: list[str]
) -> None:
    """Copy the matching files of a host's checkpoint directory, and no others, into the stage. Raise RefusedError."""
    if not files:
        return
    choice = [f"--include={pattern}" for pattern in (*directories, *files)]
    shell = context.ssh.shell_for_rsync(host, context.plan.checkpoints(host))
    command = ["rsync", "-rt", "--exclude=*.corrupt*", *choice, "--exclude=*"]
    command += [f"--timeout={context.pace.stall:.0f}", *shell, "host:./", "./"]
    outcome = await run(command, b"", None, str(stage))
    if outcome.code not in (0, _RSYNC_VANISHED):
        complaint = context.ssh.complaint(outcome.output, host)
        raise RefusedError(
            f"{host.name}: rsync (code {outcome.code}): {complaint}. What has come so far is kept; fetch again"
        )


def _refuse_live(target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if time.time() - (target / "lock").stat().st_mtime < _LIVE_S:
            raise RefusedError(
                f"a job on this machine runs in {target}, or did a minute ago; wait for its end, or "
                "give another place: --fetch DIR"
            )


def _refuse_other_run(stage: Path, target: Path) -> None:
    """Raise RefusedError if a step in `target` has another content, because then another run wrote it."""
    for name in _steps(stage):
        our_marker = target / name / MARKER
        if our_marker.exists() and our_marker.read_bytes() != (stage / name / MARKER).read_bytes():
            shutil.rmtree(stage, ignore_errors=True)
            raise RefusedError(
                f"{target} holds another run's {name}; nothing was changed. Move it away, or give "
                "another place: --fetch DIR"
            )


def _steps(stage: Path) -> list[str]:
    """Return the checkpoints in the stage whose marker has arrived."""
    names = sorted(name for name in os.listdir(stage) if _STEP.fullmatch(name))
    return [name for name in names if (stage / name / MARKER).is_file()]


def _publish(stage: Path, target: Path, steps: list[str], screen: Screen) -> None:
    """Move whole checkpoints, the metrics and the files that belong to them from the stage to `target`."""
    published = []
    for name in steps:
        fault = _fault(stage / name)
        if fault:
            screen.say(f"{name} is left out: {fault}")
        else:
            os.rename(stage / name, target / name)
            published.append(name)
    new, old = stage / METRICS, target / METRICS
    if new.exists() and old.exists() and not new.read_bytes().startswith(old.read_bytes()):
        for name in (METRICS, MANIFEST):
            aside = f"{name}.before-fetch-{time.time_ns()}"
            with contextlib.suppress(FileNotFoundError):
                os.rename(target / name, target / aside)
                screen.say(f"{name} was another's, or more: it is kept as {aside}")
    archives = [f"{BUNDLES}/{path.name}" for path in stage.glob(f"{BUNDLES}/*")]
    if archives:
        (target / BUNDLES).mkdir(exist_ok=True)
    for name in (*_METADATA, *archives):
        if (stage / name).is_file():
            os.rename(stage / name, target / name)
    fetched = ", ".join(published) if published else "no checkpoint that was not here already"
    screen.progress(f"brought {fetched} and the metrics to {target}")


def _fault(directory: Path) -> str:
    """Return why this is not a whole checkpoint, or "". The marker holds the sha256 of the other files."""
    try:
        files = json.loads((directory / MARKER).read_bytes())["files"]
        for name, expected in files.items():
            with open(directory / name, "rb") as file:
                digest = hashlib.sha256()
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
            if digest.hexdigest() != expected["sha256"]:
                return f"{name} does not match its sha256"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} did not come: the job removed it meanwhile"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {MARKER} is damaged"
    return ""
