"""The points of a sweep: the command of one point, and the order in which one machine trains several.

For each point of each tier, points.json in the bundle has the words that the point adds to the program, and an id of its
whole training. A point has its own part of the checkpoint directory and of the store.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from train.base import typed
from train.base.console import say
from train.base.errors import EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_USAGE, Refusal
from train.base.files import replace_file
from train.base.words import first_few
from train.launch import directory
from train.launch.words import Command
from train.run.status import read_status

FILE = "points.json"
_TRAINING = "point.json"  # in the checkpoint directory of a point
_SWEEP, _POINT = "--points", "--point="
# The variable with the points that have failed so far, for the program that trains the next point.
_FAILED = "DDPGEN_FAILED_POINTS"


@dataclass(frozen=True)
class Point:
    """The words that one point adds to the program, and the id of its whole training."""

    words: tuple[str, ...]
    id: str


@dataclass(frozen=True)
class Training:
    """The training that a start of a point is for: the id of the point, and the arguments that the user added."""

    id: str
    arguments: tuple[str, ...]


def commands(command: Command, tier: str, bundle: Path) -> list[Command]:
    """Return the command of each point that --point=NAME names; on `local` without --point, of all points.

    A job that is no sweep has one command, which is `command`. Raises Refusal.
    """
    names = [o.partition("=")[2] for o in command.options if o.startswith(_POINT)]
    if _SWEEP not in command.options:
        if names:
            raise Refusal(EXIT_USAGE, f"{_POINT}{names[0]}: this job is no sweep; leave it out")
        return [command]
    listed = typed.read(dict[str, dict[str, Point]], bundle / FILE)
    if listed is None or not (points := listed.get(tier)):
        message = f"{bundle / FILE} cannot be read; copy the whole bundle, or render again"
        raise Refusal(EXIT_UNAVAILABLE, message)
    listing = f"the points are {first_few(list(points), 20)}"
    for name in names:
        if name not in points:
            raise Refusal(EXIT_USAGE, f"{_POINT}{name}: there is no such point; {listing}")
    if tier != "local" and len(names) != 1:
        raise Refusal(EXIT_USAGE, f"this job is a sweep; name one point by {_POINT}NAME; {listing}")
    return [_at_point(command, name, points[name]) for name in names or points]


def _at_point(command: Command, name: str, point: Point) -> Command:
    """Return the command of one point, as if its job were a spec of its own."""
    options = [o for o in command.options if o != _SWEEP and not o.startswith(_POINT)]
    for i, option in enumerate(options):
        if option.startswith(("--checkpoint-dir=", "--store=")):
            options[i] = f"{option.rstrip('/')}/{name}"
    options += [f"{_POINT}{name}", f"--point-id={point.id}"]
    return replace(command, options=tuple(options), program=(*command.program, *point.words))


def mark(checkpoint_dir: Path, training: Training) -> None:
    """Note in the checkpoint directory which training this start is for. Raises Refusal."""
    try:
        replace_file(checkpoint_dir / _TRAINING, json.dumps(asdict(training)).encode())
    except OSError as error:
        raise directory.unusable(checkpoint_dir, error) from None


def is_done(checkpoint_dir: Path, training: Training) -> bool:
    """True if exactly this training has been done in the directory."""
    status = read_status(checkpoint_dir)
    is_over = status is not None and status.word == "done"
    return is_over and typed.read(Training, checkpoint_dir / _TRAINING) == training


def train(command: Command, tier: str, run: Callable[[Command], int]) -> int:
    """Train the point that --point names, or one point after the other on `local`; return the exit code.

    The sweep goes on after a point that has failed. It ends with a point that was stopped, or could not begin. This
    process replaces its program for each further point, so that no point leaves anything to the next. `run`: runs the
    supervisor with the command of a point. Raises Refusal.
    """
    points = commands(command, tier, Path.cwd())
    if tier != "local" or "--preflight" in command.options:
        return run(points[0])
    failed = os.environ.pop(_FAILED, "").split()
    for i, point in enumerate(points):
        path, name, point_id = (
            _value(point, o) for o in ("--checkpoint-dir", "--point", "--point-id")
        )
        if is_done(directory.of(path), Training(point_id, point.arguments)):
            say(f"{name} is done")
            continue
        more = len(points) - i - 1
        say(f"training {name}{f'; {more} more to come' if more else ''}")
        code = run(point)
        if code not in (0, EXIT_FAILED):
            if i + 1 < len(points):
                say("the sweep ends here; the same command goes on with it")
            return code
        failed += [name] if code else []
        if rest := points[i + 1 :]:
            os.environ[_FAILED] = " ".join(failed)
            _become(command, [f"{_POINT}{_value(p, '--point')}" for p in rest])
    if failed:
        say(f"the sweep has ended; failed: {' '.join(failed)}; the reasons stand above")
        return EXIT_FAILED
    say("every point that was asked for is done")
    return 0


def _value(command: Command, option: str) -> str:
    return next(o.partition("=")[2] for o in command.options if o.startswith(f"{option}="))


def _become(whole: Command, points: Sequence[str]) -> None:
    """Replace the program of this process by one that trains these points."""
    options = [o for o in whole.options if not o.startswith(_POINT)]
    sections = (*options, *points), whole.launcher, whole.program, whole.arguments
    words = [word for section in sections for word in ("--", *section)][1:]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, "-m", "train", "supervise", *words])
