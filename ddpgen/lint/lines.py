"""The spec's own lines of bash (`activate`, `setup`), a command's shell script and words for ssh, before a launch.

`bash -n` and `ssh -G` read them. Runs bash or ssh only if the spec has such lines or words, and this machine has the
program. Nothing of the lines is run, no host is asked, and ssh reads no file of the user.
"""

from __future__ import annotations

import functools
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ddpgen.lint import commands
from ddpgen.lint.calls import warning
from ddpgen.spec import ssh
from ddpgen.spec.bashlines import lists_of
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

_TIMEOUT_S = 10.0
# A line that fails though `bash -n` accepts it, the problem, the remedy, and True if it fails on every host.
_TRAPS = (
    (
        r"^\s*(\.|source)\s+[\"']~/",
        "bash does not fill in ~ between quotes",
        'write it without quotes, or "$HOME/…"',
        True,
    ),
    (
        r"^\s*(\.|source)\s+\S*/activate\.(fish|csh|nu|ps1)\b",
        "is for another shell, and bash runs the line",
        "write bin/activate",
        True,
    ),
    (
        r"\A\s*(conda|mamba|micromamba) activate\b",
        "is a function of the login shell, which the job's bash does not have",
        'write `eval "$(conda shell.bash hook)"` in a line above it',
        False,
    ),
)
# The lines may turn on extglob, and `bash -n` does not run that command.
_BASH = ("bash", "--norc", "--noprofile", "-O", "extglob", "-n")
_LIKE_BASH = re.compile(r"(\S*/)?(ba|da)?sh")
_EXIT = re.compile(r"^exit\b", re.MULTILINE)
# ssh takes the first value of a -o, and the last one of a letter. With the first word it asks no name server.
_SSH_BEFORE = ("ssh", "-o", "CanonicalizeHostname=no")
_SSH_AFTER = ("-F", "/dev/null", "-E", "/dev/stderr", "-T", "-G", "--", "host")
_TALK_OF_SSH = re.compile("Warning: |OpenSSH_|debug|Can't specify both -y and -E")
# Complaints about a value that no version of ssh takes. Another version may know other names.
_NO_VALUE_OF_SSH = re.compile(
    "bad (?!configuration).*(port|number|forwarding)|invalid", re.IGNORECASE
)


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the faults of the lines of bash and of a command's shell script, and the fault that ssh finds in its words.

    `home`: the spec's directory.
    """
    yield from _bash(job)
    yield from _of_command(job, home)
    words = getattr(job, "ssh_options", ())
    if words and not any(ssh.options_faults(words)) and (fault := _ssh_fault(words)):
        yield Conflict(
            ("ssh_options",),
            f"ssh says: {fault}",
            "write it as ssh(1) and ssh_config(5) have it",
            fatal=bool(_NO_VALUE_OF_SSH.search(fault)),
        )


def _bash(job: JobSpec) -> Iterator[Conflict]:
    """Yield the faults of each list of lines: those that bash finds, and those of _TRAPS."""
    brings_conda = any(getattr(job.environment, name, None) for name in ("modules", "conda"))
    for field, lines in lists_of(job).items():
        script = "\n".join(lines)
        for pattern, problem, remedy, fatal in _TRAPS:
            trap = re.search(pattern, script, re.MULTILINE)
            if trap and (fatal or not brings_conda):
                entry = _entry(lines, script.count("\n", 0, trap.end()) + 1)
                yield Conflict((f"{field}[{entry}]", field), problem, remedy, fatal)
        if fault := _fault(script):
            number, words = fault
            yield Conflict(
                (f"{field}[{_entry(lines, number)}]", field),
                f"is no bash: {words}",
                "correct it; the lines of one list are one script",
                fatal=sys.platform != "darwin",  # macOS has an older bash than the hosts
            )


def _of_command(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the fault that bash finds in the text of `bash -c`, or in the shell script of `code` that a command starts."""
    read = commands.shell_text(job, home) if job.train.command else None
    # Another rule names the line ends of Windows.
    if read is None or not _LIKE_BASH.fullmatch(read.shell) or re.search("\0|\r\n", read.text):
        return
    number, words = _fault(read.text) or (0, "")
    # Behind an `exit`, a script may hold anything.
    if not words or _EXIT.search("\n".join(read.text.splitlines()[: number - 1])):
        return
    problem, remedy = f"is no bash: {words}", "correct it"
    if read.name:
        yield warning("train.command", f"{read.name}:{number} {problem}", remedy)
    else:
        fields = (f"train.command[{read.place}]", "train.command")
        yield Conflict(fields, problem, remedy, fatal=sys.platform != "darwin")


def _entry(lines: Sequence[str], number: int) -> int:
    """Return the index of the entry that holds this line of the script, or of the last one."""
    for i, text in enumerate(lines):
        number -= text.count("\n") + 1
        if number <= 0:
            return i
    return len(lines) - 1


@functools.cache
def _fault(script: str) -> tuple[int, str] | None:
    """Return the line and the words of bash's complaint; None if bash has no complaint, or is not installed."""
    # Without BASH_ENV, which bash would read first.
    lines = _complaint(_BASH, script.encode("utf-8", "surrogatepass"), {"LC_ALL": "C"})
    if not lines:
        return None
    match = re.search(r"line (\d+): (.*)", lines[0])
    return (int(match[1]), match[2]) if match else (1, lines[0])


@functools.cache
def _ssh_fault(words: tuple[str, ...]) -> str:
    """Return the complaint of ssh about its words; "" if it does not complain, or is not installed."""
    lines = _complaint((*_SSH_BEFORE, *words, *_SSH_AFTER))
    lines = [line for line in lines if not _TALK_OF_SSH.match(line)]
    return re.sub("^command-line:? line 0: ", "", lines[0]).rstrip(".") if lines else ""


def _complaint(
    command: Sequence[str], stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> list[str]:
    """Return the lines that a program writes when it fails; none if it succeeds, or is not installed."""
    path = shutil.which(command[0])
    if path is None:
        return []
    # Here, because most jobs have no such lines.
    import subprocess

    from ddpgen.driver import trace

    ended = trace.begin(command)
    try:
        done = subprocess.run(
            [path, *command[1:]],
            input=stdin,
            capture_output=True,
            env=env,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    ended(done.returncode)
    if done.returncode == 0:
        return []
    return done.stderr.decode("utf-8", "replace").splitlines() or [""]
