"""The commands of the training module: `python -m train [run | script | check | claim | leash] …`.

Owns the choice among them. Each imports only what it needs: all but `run` and `script` run without
torch.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from train.errors import EXIT_FAILED, EXIT_UNAVAILABLE

_USAGE = """\
usage: python -m train [run] --workload=… …   train (see python -m train run --help)
       python -m train script FILE [ARG …]    run a training loop of your own
       python -m train check [--OPTION=… …]   look at the options of a run, and run nothing
       python -m train claim --checkpoint-dir=DIR --pid=PID
                                              take the checkpoint directory, print the attempt id
       python -m train leash -- COMMAND …     run COMMAND so that it ends with its starter
"""


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    command, *rest = argv or ["--help"]
    if command in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    if command == "claim":
        return _claim(rest)
    if command == "check":
        return _check(rest)
    if command == "leash":
        return _leash(rest)
    if command != "script" and command != "run" and not command.startswith("-"):
        print(_USAGE, end="", file=sys.stderr)
        print(f"python -m train: unknown command {command!r}", file=sys.stderr)
        return 2
    if command == "script":
        from train.script import main as script

        code = script(rest)
    else:
        from train.run import main as run

        code = run(rest if command == "run" else argv)
    _exit_now(code)
    return code


def _exit_now(code: int) -> None:
    """End the process without waiting for threads of torch.

    One may sit in a dead collective; and gloo's, alive while the interpreter is taken down, abort a
    process now and then that has finished its work.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # A closed terminal or a full log disk must not turn a good end into a bad one.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _claim(argv: Sequence[str]) -> int:
    from train.layout import steps_on_disk
    from train.lock import HeldByLiveJobError, claim
    from train.status import Status, write_status

    parser = argparse.ArgumentParser(prog="python -m train claim", allow_abbrev=False)
    parser.add_argument("--checkpoint-dir", required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the launch script")
    options = parser.parse_args(argv)
    if importlib.util.find_spec("torch") is None:
        return _refuse(
            f"torch is not installed for {sys.executable}; activate the virtual environment that has "
            "it, install it there, or set 'python' in the spec to an interpreter that has it"
        )
    directory = Path(options.checkpoint_dir).absolute()
    try:
        attempt = claim(directory, os.environ.get("DDPGEN_JOB", "?"), options.pid)
        (directory / "stop").unlink(missing_ok=True)
        newest = max(steps_on_disk(directory), default=0)
        write_status(directory, Status("running", attempt, newest))
    except HeldByLiveJobError as error:
        return _refuse(str(error))
    except OSError as error:
        about = f" ({error.filename})" if error.filename else ""
        remedy = "set checkpoint.dir to a place you can write to"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space there"
        print(
            f"ddpgen: the checkpoint directory {directory} cannot be used: "
            f"{error.strerror or error}{about}; {remedy}",
            file=sys.stderr,
        )
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    print(attempt)
    return 0


def _check(argv: Sequence[str]) -> int:
    """0 when `run` would take these options; 2, and one line that says why, when it would not.

    Prints nothing then but the options themselves, when they are asked for by --help.
    """
    from train.config import parse

    for word in argv:
        # The launch script has the directory claimed, watched for stop files and asked how it ended.
        if word.startswith(("--checkpoint-dir", "--code-dir")):
            where = "checkpoint.dir" if word.startswith("--checkpoint") else "code"
            print(
                f"ddpgen: {word} cannot be changed here: the launch script counts on it; "
                f"set {where} in the spec (or below targets) and render again",
                file=sys.stderr,
            )
            return 2
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parse([*argv, "--checkpoint-dir=."])
    except SystemExit as end:
        if end.code:
            why = said.getvalue().partition(" error: ")[2].strip()
            print(f"ddpgen: {why}; bash local.sh --help shows the options", file=sys.stderr)
        return 2 if end.code else 0
    return 0


def _refuse(why: str) -> int:
    print(f"ddpgen: {why}", file=sys.stderr)
    return EXIT_UNAVAILABLE


def _leash(argv: Sequence[str]) -> int:
    from train.leash import exec_leashed

    command = list(argv[1:] if argv[:1] == ["--"] else argv)
    if not command:
        print(_USAGE, end="", file=sys.stderr)
        return 2
    exec_leashed(command)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
