"""What the generator's tests share: specs on disk, the command line in this process, goldens."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ddpgen import cli
from ddpgen.errors import Finding, SpecInvalidError
from ddpgen.job import check
from ddpgen.tiers.registry import read
from train.run.progress import ProgressFile

os.environ.pop("DDPGEN_PROFILE", None)  # of the developer
# Examples that a warning is right about.
TOLD_OF = ("classifier",)
ROOT = Path(__file__).resolve().parents[2]

GPT = """\
name: gpt
procs_per_node: 2
train:
  workload: gpt
  steps: 300
  global_batch_size: 16
  micro_batch_size: 4
"""

# Texts that a shell, YAML or a terminal might take for something else.
HOSTILE = [
    "",
    " ",
    "a b",
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME ${HOME} $1",
    'it\'s "quoted"',
    "'",
    "''",
    "back\\slash\\",
    "\\n",
    "line\nbreak\n",
    "tab\tand\rreturn",
    "-n",
    "--leading=dash it's",
    "--empty=",
    "=equals",
    "~",
    "~root/x",
    "*?[a-z]{1,2}",
    "!history!",
    "#no comment",
    "a;b&c|d<e>f",
    "éñ漢字🎉",
    "\u202ereversed\u2028line\ufeff",
    "\x01\x1b[31mred\x7f\x80",
    "$'x'",
    "%s %n",
    "é\x07",
]


class Outcome(NamedTuple):
    """What a command ended with and said."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def progress(rows: Iterable[Mapping[str, Any]], **about: Any) -> str:
    """progress.json as a run leaves it after these rows of metrics.jsonl."""
    with tempfile.TemporaryDirectory() as place:
        file = ProgressFile(Path(place), about, clock=itertools.count(step=10).__next__)
        for row in rows:
            file.add_row(row)
        return (Path(place) / "progress.json").read_text()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a ddpgen command as a user would, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDPGEN_LOG", "")  # its end deletes it, so that no -v reaches a later test
    monkeypatch.delenv("DDPGEN_LOG")

    def run(*argv: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ddpgen", *map(str, argv)])
        code = cli.run()
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], Path]:
    """Write a spec to job.yaml."""

    def spec(text: str = GPT) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return spec


@pytest.fixture
def golden(update_golden: bool) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME, byte for byte; a missing golden is a failure."""

    def golden(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if update_golden:
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; make golden writes it"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; make golden after a look"

    return golden


class Fault(NamedTuple):
    """A finding as tests compare it. `where`: LINE:COLUMN FIELD; `text`: the fault and its remedy."""

    where: str
    text: str

    @classmethod
    def of(cls, finding: Finding) -> Fault:
        line, column, _ = finding.position
        return cls(
            f"{line}:{column} {finding.path}".rstrip(), f"{finding.problem}; {finding.remedy}"
        )


def findings(text: str | bytes) -> list[Finding]:
    """Return the findings of a spec that is refused, or the warnings of a sound one."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    try:
        return check([*read(raw, "job.yaml").values()], Path())
    except SpecInvalidError as error:
        return error.findings


def faults(text: str | bytes) -> list[Fault]:
    """Return the errors of a spec, each once; nothing for a sound one."""
    return list(dict.fromkeys(Fault.of(each) for each in findings(text) if each.fatal))


def named(found: Iterable[Fault], where: str, word: str) -> bool:
    """True if one of the faults is at `where` and its text has the decisive word."""
    return any(fault.where == where and word in fault.text for fault in found)


# What the bash of macOS does not know.
YOUNGER = re.compile(
    r"\bmapfile\b|\breadarray\b|declare -A|\$\{\w+@|\$\{\w+,,|&>>|\bwait -n\b|\[\[ -v|EPOCH|BASHPID|;;&|\|&"
)


def check_bash(script: str, shell: str = "bash") -> None:
    """Assert that a script is sound bash, for shellcheck and for the bash of macOS."""
    beside_python = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=beside_python)
    assert shellcheck, "shellcheck is missing; it comes with the [dev] extra"
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=30)
    done = subprocess.run(
        [shellcheck, "--external-sources", f"--shell={shell}", "--exclude=SC1091", "-"],
        input=script, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert not YOUNGER.findall(script)


def ddpgen(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a ddpgen command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ddpgen", *words],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
