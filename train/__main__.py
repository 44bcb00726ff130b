"""The commands of the training module: `python -m train [run | script | supervise | …] …`.

Owns the choice among them. Each command imports only what it needs: all but `run` and `script` run
without torch. The code up to the check of Python's version runs on any Python 3.
"""

import sys

if sys.version_info < (3, 9):  # noqa: UP036 - the system Python of a cluster may well be older
    sys.stderr.write(
        "ddpgen: "
        + sys.executable
        + " is Python "
        + sys.version.split()[0]
        + ", and this needs 3.10 "
        "(3.9 to start containers); load a newer one by environment.modules, or set python: in the "
        "spec (PY003)\n"
    )
    sys.exit(69)

import os
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

from train.base.errors import exit_now, run_tool

_USAGE = """\
usage: python -m train [run] --workload=… …   train (see python -m train run --help)
       python -m train script FILE [ARG …]    run a training loop of your own
       python -m train supervise TIER … -- LAUNCHER … -- run … [-- ARGUMENT …]
                                              one host's attempt, from its checks to its exit code
       python -m train doctor CHECKPOINT_DIR [--json]
                                              say which rank holds a training up, and where each stands
       python -m train report CHECKPOINT_DIR [CHECKPOINT_DIR …] [-o FILE]
                                              write a run, or the points of a sweep, as one page
       python -m train verify CHECKPOINT_DIR [--from=STEP] [--steps=K] [--procs=N]
                                              compute steps of a run again, and compare the bits
       python -m train diff A B [--json]      say where two runs part, and what differed there
       python -m train spawn --procs=N --first-rank=N --world-size=N -- COMMAND …
                                              run COMMAND once for each of these ranks
       python -m train notice --stop-file=FILE
                                              make the stop file, as this machine is taken back, and wait
                                              until the job has ended
       python -m train install LOCK           make the virtual environment of a lock, unless it is there
       python -m train install DIR -- REQUIREMENT …
                                              the same, in DIR and with these
"""
# The commands that run without torch: module and function of each.
_SMALL = {
    "supervise": ("train.launch.command", "main"),
    "doctor": ("train.tools.doctor", "main"),
    "report": ("train.tools.report.command", "main"),
    "verify": ("train.tools.verify.command", "main"),
    "replay": ("train.tools.verify.replay", "main"),
    "diff": ("train.tools.verify.diff", "main"),
    "spawn": ("train.launch.spawn", "main"),
    "notice": ("train.launch.notice", "main"),
    "install": ("train.launch.install", "main"),
}


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # a host need not have it
    command, *rest = argv or ["--help"]
    if command in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    if command in _SMALL:
        module, function = _SMALL[command]
        main_of: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
        return run_tool(main_of, rest) if ".tools." in module else main_of(rest)
    if command not in ("script", "run") and not command.startswith("-"):
        print(_USAGE, end="", file=sys.stderr)
        print(f"python -m train: unknown command {command!r}", file=sys.stderr)
        return 2
    if command == "script":
        from train.script.script import main as script

        code = script(rest)
    else:
        code = run(rest if command == "run" else argv)
    exit_now(code)
    return code


def run(argv: Sequence[str]) -> int:
    """Run one worker, which trains or measures, and return its exit code."""
    from train.run.config import parse

    config = parse(argv)
    if config.probe:
        from train.tools.probe.command import work
    else:
        from train.worker import work
    return work(config, argv)


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))  # a thread may still wait for a name server or a file server
