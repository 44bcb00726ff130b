"""docs/mistakes.md: every transcript on the page is the output of its command, run in a directory of its own.

The page holds the commands, and `make golden` writes what they say. A block begins with the lines of the page's
job.yaml that it changes: `-` and `+` as in a diff, and a space before a line that stays. The comment
`<!-- with NAME -->` before a block names one of MACHINES.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddpgen import cli
from tests.ddpgen.programs import Programs
from tests.project.tree import ROOT
from train.base import processes

PAGE = ROOT / "docs" / "mistakes.md"
SPEC = re.compile(r"^```yaml\n(?P<text>name: (?:.*\n)*?)```\n", re.MULTILINE)
BLOCK = re.compile(
    r"^(?:<!-- with (?P<machine>.+) -->\n)?```(?:diff)?\n(?P<body>(?:[-+ ].*\n)*\$ (?:.*\n)*?)```\n",
    re.MULTILINE,
)
# The sections of the page that are no command's.
SCRIPTS = {"local.sh", "hosts/run.sh", "slurm.sbatch"}
# Programs that only the machines of MACHINES have.
SCHEDULERS = ("sbatch", "scontrol", "squeue", "sacct", "scancel", "sinfo", "srun", "sky", "ssh")

# The answers of programs by name: the exit code, then the output (tests/ddpgen/fake_program.sh).
MACHINES: Mapping[str, Mapping[str, str]] = {
    "a Slurm that refuses the account": {
        "test": "1\nallocation failure: Invalid account or account/partition combination specified\n",
        "sbatch": "1\n",
    },
    "a Slurm without jobs": {"scontrol": "1\n", "squeue": "0\n", "sacct": "0\n"},
    "SkyPilot 0.13": {"sky": "0\n", "version": "0\nskypilot, version 0.13.0\n"},
    "a host that is switched off": {
        "ssh": "255\nssh: connect to host 192.168.7.2 port 22: No route to host\n"
    },
    "a finished run": {},
}


def sections() -> dict[str, str]:
    """The page's sections by heading, with the line of the heading; what stands before the first has the name ""."""
    first, *rest = re.split(r"^(?=## )", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return {"": first, **{part.splitlines()[0].strip("# `"): part for part in rest}}


SECTIONS = sections()


def test_every_command_and_script_has_its_section() -> None:
    assert set(SECTIONS) == {"", *cli.cli.commands, *SCRIPTS}


@pytest.fixture(scope="module")
def programs_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine's programs, without those of SCHEDULERS."""
    made = tmp_path_factory.mktemp("bin")
    for directory in ("/bin", "/usr/bin"):
        for program in Path(directory).iterdir():
            if program.name not in SCHEDULERS and not (made / program.name).is_symlink():
                (made / program.name).symlink_to(program)
    return made


@pytest.mark.parametrize("heading", [heading for heading in SECTIONS if heading])
def test_the_transcripts(
    heading: str,
    tmp_path: Path,
    programs_of_this_machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    update_golden: bool,
) -> None:
    clean = [
        n
        for n in os.environ
        if n.startswith(("DDPGEN_S", "DDPGEN_LOG", "XDG_", "SLURM_", "SKYPILOT"))
    ]
    for name in clean:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "100")
    path = f"{Path(sys.executable).parent}:{programs_of_this_machine}"
    # A program that is not there is looked for in a login shell as well.
    (tmp_path / ".bash_profile").write_text(f"PATH={shlex.quote(path)}\n")
    count = 0

    def told(block: re.Match[str]) -> str:
        nonlocal count
        count += 1
        directory = tmp_path / str(count) / "work"
        directory.mkdir(parents=True)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", path)
            prepare(block["machine"], directory, patch)
            return block[0].replace(block["body"], transcript(block["body"], directory))

    made = BLOCK.sub(told, SECTIONS[heading])
    if update_golden:
        PAGE.write_text(PAGE.read_text("utf-8").replace(SECTIONS[heading], made), "utf-8")
    else:
        lines = SECTIONS[heading].splitlines(), made.splitlines()
        differs = "\n".join(difflib.unified_diff(*lines, "the page", "now", n=2, lineterm=""))
        assert not differs, f"make golden, after a look:\n{differs}"


def prepare(machine: str | None, directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Bring about what the block's comment says."""
    if machine == "a finished run":
        kept = directory / "build" / "checkpoints" / "gpt"
        kept.mkdir(parents=True)
        (kept / "status").write_text("done local.1.1 300\n")
        ended = [1 << 30, 1]  # no process has this number
        lock = {"attempt": "local.1.1", "boot": processes.machine(), "launcher": ended}
        (kept / "lock").write_text(json.dumps(lock))
    elif machine:
        programs = Programs(directory.parent, patch, *MACHINES[machine])
        for name, answer in MACHINES[machine].items():
            programs.answers(name, answer)


def transcript(body: str, directory: Path) -> str:
    """The block, with what its commands say now."""
    lines = body.splitlines()
    made = lines[: next(i for i, line in enumerate(lines) if line.startswith("$ "))]
    (directory / "job.yaml").write_text(changed(made))
    for command in [line[2:] for line in lines if line.startswith("$ ")]:
        before = {*directory.rglob("*")}
        code, said = run(command, directory)
        made += [f"$ {command}", *normal(said, directory)]
        assert "Traceback" not in said, said
        if code:
            made.append(f"exit code {code}")
            assert not (halves := half_written({*directory.rglob("*")} - before)), halves
    return "".join(f"{line}\n" for line in made)


def changed(lines: list[str]) -> str:
    """The page's job.yaml with these changes."""
    found = SPEC.search(SECTIONS[""])
    assert found, "the page shows no job.yaml"
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] in "- ")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] in "+ ")
    assert not lines or found["text"].count(old) == 1, f"not once in job.yaml:\n{old}"
    return found["text"].replace(old, new) if lines else found["text"]


def run(command: str, directory: Path) -> tuple[int, str]:
    """Run a line as a shell would, and return its exit code and its output."""
    if command.startswith("ddpgen "):
        return forked(shlex.split(command), directory)
    done = subprocess.run(
        ["bash", "-c", command], cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout


def forked(argv: list[str], directory: Path) -> tuple[int, str]:
    """Run ddpgen's console script in a child of this process, which has imported it already."""
    log = directory.parent / "log"
    log.write_text("")
    with warnings.catch_warnings():
        # A thread of pytest-xdist waits in a read; the child never touches it.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            os.chdir(directory)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 1)
            os.dup2(1, 2)
            sys.argv = argv
            sys.stdin = os.fdopen(0)
            # Line by line, as on a terminal: so the two streams keep their order.
            sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
            cli.main()
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), log.read_text()


def normal(said: str, directory: Path) -> list[str]:
    """The output's lines, without what differs from machine to machine and from day to day."""
    for name, shown in (
        (str(directory), "/home/you/work"),
        (str(directory.parents[1]), "/home/you"),
        (str(ROOT), "/home/you/ddpgen"),
        (socket.gethostname(), "desk"),
    ):
        said = said.replace(name, shown)
    said = said.expandtabs(4)
    said = re.sub(r"\(\d+ files\)", "(180 files)", said)
    said = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-01 12:00:00", said)
    said = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "20260101-120000-abc123", said)
    return re.sub(r"(?<=\.submitted/gpt-)[0-9a-f]+", "0123456789ab", said).splitlines()


def half_written(new: set[Path]) -> list[Path]:
    """The files that a failed command has left, but for whole bundles and the logs of a launch."""
    whole = [path.parent for path in new if path.name == "bundle.json"]
    loose = [p for p in new if p.is_file() and not any(p.is_relative_to(place) for place in whole)]
    return [p for p in loose if not {"logs", "__pycache__"} & {*p.parts} and p.suffix != ".json"]
