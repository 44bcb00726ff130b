"""`python -m train report`: write the page of a run, or one page of the points of a sweep."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from train.base.errors import EXIT_FAILED
from train.base.files import replace_file
from train.tools.report import plots, sweep
from train.tools.report.history import load
from train.tools.report.page import FILE, page


def main(argv: Sequence[str]) -> int:
    """Write the report of a checkpoint directory, or of several that are points of a sweep; return the exit code."""
    called = os.environ.get("DDPGEN_CALLED_AS", "python -m train report")
    parser = argparse.ArgumentParser(prog=called, allow_abbrev=False)
    many = "the checkpoint directory; several are the points of a sweep"
    parser.add_argument("directory", nargs="+", type=Path, help=many)
    where = f"the file  [default: {FILE} in the directory, or in the one that holds all of them]"
    parser.add_argument("-o", "--output", type=Path, help=where)
    options = parser.parse_args(argv)
    directories = [each.absolute() for each in options.directory]
    directory = Path(os.path.commonpath(directories))
    output = options.output or directory / FILE
    if any(os.path.isdir(each / "script") for each in directories):
        why = "is of a script of your own, of which a step a second is on record: its rows are in metrics.jsonl"
        print(f"{called}: {directory} {why}", file=sys.stderr)
        return EXIT_FAILED
    if output.exists() and not output.is_file():  # to replace a device would break the machine
        print(f"{called}: {output}: is no regular file; name another file with -o", file=sys.stderr)
        return EXIT_FAILED
    try:
        write(directories, directory, output)
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


def write(directories: Sequence[Path], whole: Path, output: Path) -> None:
    """Write the page of one run, or of the points of the sweep in `whole`.

    Raises OSError, and then leaves no half page.
    """
    if len(directories) == 1:
        text = page(load(whole), whole.name)
    else:
        points = [sweep.read(each, whole, output.absolute().parent) for each in directories]
        text = sweep.page(points, whole.name)
    replace_file(output, text.encode(), sync=False)
