"""--fetch: bring the newest checkpoints and the metrics home, whole or not at all.

Owns where they go and what may replace what: nothing of the user's is deleted, and nothing is
replaced that the new file does not continue. What comes over the wire goes into a staging directory,
which a cut connection leaves for the next attempt; whole checkpoints are renamed out of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from pathlib import Path

from . import remote
from .asking import ask_all, told_troubles
from .child import run
from .ends import DONE, FAILED
from .pace import Pace
from .plan import Host, Plan
from .screen import Screen
from .session import Trouble
from .ssh import Ssh

MARKER, METRICS = "checkpoint.json", "metrics.jsonl"
MANIFEST, STATUS, BEST = "manifest.json", "status", "best.json"
PROBE = "probe.json"
_STEP = re.compile(r"step-\d{9,}")
_STAGE = ".fetched"
# A job that runs from a directory touches its lock every 5 s.
_LIVE_S = 60.0
_VANISHED = 24  # rsync: a file went away meanwhile, as the job prunes old checkpoints


class RefusedError(Exception):
    """Nothing was changed at home; the message says why."""


async def fetch(plan: Plan, ssh: Ssh, pace: Pace, screen: Screen, target: Path) -> int:
    """From the host with the newest checkpoint into `target`; the exit code."""
    answers = await ask_all(plan, ssh, pace, remote.status)
    told_troubles(answers, screen)
    newest, holder = _holder(plan, answers)
    if holder is None and await _bring_probe(plan, ssh, pace, target):
        screen.say(f"brought the figures of the probe to {target / PROBE}")
        return DONE
    if holder is None:
        screen.say(_where_to_look(plan, ssh, answers))
        return FAILED
    screen.say(f"step {newest} is on {holder.name}; bringing it to {target}")
    wire = _Wire(plan, ssh, pace, holder)
    try:
        _refuse_live(target)
        stage = target / _STAGE
        stage.mkdir(parents=True, exist_ok=True)
        await wire.bring(stage, [f"/step-*/{MARKER}", *_SMALL], ["/step-*/"])
        _refuse_other_run(stage, target)
        wanted = [name for name in _steps(stage) if not (target / name).exists()]
        await wire.bring(stage, [f"/{name}/**" for name in wanted], [f"/{n}/" for n in wanted])
        _place(stage, target, wanted, screen)
        shutil.rmtree(stage, ignore_errors=True)
    except RefusedError as refusal:
        screen.say(str(refusal))
        return FAILED
    except OSError as error:
        screen.say(f"{target}: {error.strerror}; make room, or give another place: --fetch DIR")
        return FAILED
    if not any(int(name.partition("-")[2]) >= newest for name in _steps(target)):
        screen.say(f"step {newest} did not arrive whole; fetch again")
        return FAILED
    return DONE


async def _bring_probe(plan: Plan, ssh: Ssh, pace: Pace, target: Path) -> bool:
    """A probe has no checkpoint: its figures are with rank 0, on whichever host that was."""
    target.mkdir(parents=True, exist_ok=True)
    for host in map(plan.host, plan.names):
        with contextlib.suppress(RefusedError):
            await _Wire(plan, ssh, pace, host).bring(target, [f"/{PROBE}"], [])
    return (target / PROBE).is_file()


_SMALL = (f"/{METRICS}", f"/{MANIFEST}", f"/{STATUS}", f"/{BEST}")


class _Wire:
    """rsync from one host's checkpoint directory."""

    def __init__(self, plan: Plan, ssh: Ssh, pace: Pace, host: Host) -> None:
        self._ssh, self._host, self._pace = ssh, host, pace
        self._way = ssh.shell_for_rsync(host, plan.checkpoints(host))

    async def bring(self, stage: Path, files: list[str], directories: list[str]) -> None:
        """Copy what matches, and nothing else, into the stage. Raises RefusedError."""
        if not files:
            return
        choice = [f"--include={pattern}" for pattern in (*directories, *files)]
        command = ["rsync", "-rt", "--exclude=*.corrupt*", *choice, "--exclude=*"]
        command += [f"--timeout={self._pace.stall:.0f}", *self._way, "host:./", "./"]
        outcome = await run(command, b"", None, str(stage))
        if outcome.code not in (0, _VANISHED):
            why = self._ssh.complaint(outcome.output, self._host)
            raise RefusedError(
                f"{self._host.name}: rsync (code {outcome.code}): {why}. What has come so far is "
                "kept; fetch again"
            )


def _holder(plan: Plan, answers: dict[str, dict[str, str] | Trouble]) -> tuple[int, Host | None]:
    """The newest step on any host, and a host that has it: the head, if it does."""
    steps = {
        name: int(answer.get("newest", "-1"))
        for name, answer in answers.items()
        if not isinstance(answer, Trouble)
    }
    newest = max(steps.values(), default=-1)
    if newest < 0:
        return newest, None
    holders = [name for name in (plan.head, *plan.names) if steps.get(name) == newest]
    return newest, plan.host(holders[0])


def _where_to_look(plan: Plan, ssh: Ssh, answers: dict[str, dict[str, str] | Trouble]) -> str:
    """No checkpoint of ours is anywhere; a script of the user's may have saved in a way of its own."""
    holders = [
        plan.host(name)
        for name, answer in answers.items()
        if not isinstance(answer, Trouble) and answer.get("own-files") == "yes"
    ]
    if not holders:
        return "no host that could be asked holds a checkpoint"
    commands = [
        f"{host.name}: rsync -a {ssh.rsync_source(host, plan.checkpoints(host))} DIR"
        for host in holders
    ]
    told = "no host holds a step-* checkpoint: the script keeps its files as it likes; bring them home by"
    return "\n".join([told, *commands])


def _refuse_live(target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if time.time() - (target / "lock").stat().st_mtime < _LIVE_S:
            raise RefusedError(
                f"a job on this machine runs in {target}, or did a minute ago; wait for its end, or "
                "give another place: --fetch DIR"
            )


def _refuse_other_run(stage: Path, target: Path) -> None:
    """The same step with another content is another run's: never to be mixed."""
    for name in _steps(stage):
        ours = target / name / MARKER
        if ours.exists() and ours.read_bytes() != (stage / name / MARKER).read_bytes():
            shutil.rmtree(stage, ignore_errors=True)
            raise RefusedError(
                f"{target} holds another run's {name}; nothing was changed. Move it away, or give "
                "another place: --fetch DIR"
            )


def _steps(stage: Path) -> list[str]:
    """Checkpoints in the stage whose marker has come."""
    names = sorted(name for name in os.listdir(stage) if _STEP.fullmatch(name))
    return [name for name in names if (stage / name / MARKER).is_file()]


def _place(stage: Path, target: Path, wanted: list[str], screen: Screen) -> None:
    """Give whole checkpoints their names, and files that continue ours our place."""
    brought = []
    for name in wanted:
        fault = _fault(stage / name)
        if fault:
            screen.say(f"{name} is left out: {fault}")
        else:
            os.rename(stage / name, target / name)
            brought.append(name)
    _put_small(stage, target, screen)
    what = ", ".join(brought) if brought else "no checkpoint that was not here already"
    screen.say(f"brought {what} and the metrics to {target}")


def _fault(directory: Path) -> str:
    """Why this is not a whole checkpoint, or "". The marker tells the others' sums."""
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


def _put_small(stage: Path, target: Path, screen: Screen) -> None:
    """The metrics and what belongs to them. Rows that the new ones do not begin with are kept."""
    new, old = stage / METRICS, target / METRICS
    if new.exists() and old.exists() and not _continues(new, old):
        for path in (old, target / MANIFEST):
            if path.exists():
                aside = _free(path)
                os.rename(path, aside)
                screen.say(f"{path.name} was another's, or more: it is kept as {aside.name}")
    for name in (METRICS, MANIFEST, STATUS, BEST):
        if (stage / name).is_file():
            os.rename(stage / name, target / name)


def _continues(new: Path, old: Path) -> bool:
    with open(new, "rb") as longer, open(old, "rb") as shorter:
        while chunk := shorter.read(1 << 20):
            if longer.read(len(chunk)) != chunk:
                return False
    return True


def _free(path: Path) -> Path:
    asides = (path.with_name(f"{path.name}.before-fetch-{number}") for number in itertools.count(1))
    return next(aside for aside in asides if not aside.exists())
