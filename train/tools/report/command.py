"""`python -m train report`: write the page of a run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from train.base.errors import EXIT_FAILED
from train.base.files import replace_file
from train.tools.report import plots
from train.tools.report.history import load
from train.tools.report.page import page

FILE = "report.html"


def main(argv: Sequence[str]) -> int:
    """Write the report of a checkpoint directory, and return the exit code."""
    called = os.environ.get("DDPGEN_CALLED_AS", "python -m train report")
    parser = argparse.ArgumentParser(prog=called, allow_abbrev=False)
    parser.add_argument("directory", type=Path, help="the checkpoint directory")
    parser.add_argument("-o", "--output", type=Path, help=f"the file  [default: DIRECTORY/{FILE}]")
    options = parser.parse_args(argv)
    directory = options.directory.absolute()
    output = options.output or directory / FILE
    if (directory / "script").is_dir():
        why = "is of a script of your own, of which a step a second is on record: its rows are in metrics.jsonl"
        print(f"{called}: {directory} {why}", file=sys.stderr)
        return EXIT_FAILED
    if output.exists() and not output.is_file():  # to replace a device would break the machine
        print(f"{called}: {output}: is no regular file; name another file with -o", file=sys.stderr)
        return EXIT_FAILED
    try:
        write(directory, output)
    except OSError as error:
        file = Path(error.filename or output)
        recorded = (
            "no step is on record yet"
            if file.name == "metrics.jsonl"
            else "name another file with -o"
        )
        print(f"{called}: {file}: {error.strerror}; {recorded}", file=sys.stderr)
        return EXIT_FAILED
    if not plots.available():
        print(f"{called}: no curves, as matplotlib is not installed here", file=sys.stderr)
    print(output)
    return 0


def write(directory: Path, output: Path) -> None:
    """Write the page of the run in `directory`; after an error no half page is left. Raises OSError."""
    found = load(directory)
    replace_file(output, page(found, directory.name).encode(), sync=False)
