"""Faults of `train.command` that are visible before the launch: in its words, and in the file that it starts."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddpgen.bundle import code
from ddpgen.errors import FileTroubleError
from ddpgen.lint.calls import warning
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

_SYSTEM = "(/usr/bin/|/bin/)?"
_NO_PROGRAM = re.compile(r"[/~].*/|/dev/null")
_MODULE = (
    r"(torch\.distributed\.(run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+)"
)
_LAUNCHER = re.compile(
    rf"(\S*/)?(torchrun|deepspeed|accelerate launch|salloc|srun|mpirun|mpiexec|horovodrun|aprun|ibrun|jsrun|composer|(colossalai|fabric|lightning) run)(?= |$)|.* -m {_MODULE}(?= |$)"
)
# Programs that start the command behind them.
_STARTERS = re.compile(
    r"((\S*/)?(env( \w+=\S*)*|nice( -n ?-?\d+)?|nohup|timeout( -[ks] \S+| -\S+)* \S+|(pipenv|poetry) run|uv run( -\S+)*"
    r"|conda run( -[np] \S+| --\S+)*|(apptainer|singularity) exec( --?(bind|B|env|pwd|home|H) \S+| -\S+)* \S+) )+"
)
# A command that starts a training with a launcher, and words of a script that starts one only at times.
_LAUNCHING = re.compile(
    r"(exec )?(torchrun|deepspeed|srun|mpirun|accelerate launch(?=.* (--num[_-]processes[ =]([2-9]|1\d)|--multi[_-]gpu)))"
    r" .*(\.py\b|python).*"
)
_AT_TIMES = re.compile(r"RANK|WORLD_SIZE|DDPGEN|<<|\bexit\b|\breturn\b")
_ONE_PROCESS = re.compile(r"--num[_-]processes[ =]1\b")
# Programs that start a command elsewhere and end before it, unless they are told to wait.
_ELSEWHERE = re.compile(rf"{_SYSTEM}(at|batch|bsub|oarsub|qsub|sbatch|screen|systemd-run|tmux)")
_WAITS = re.compile(r" -(-(wait|scope|pipe|pty)|sync|\w*[DIKW]\w*)\b|systemd-run .*-[PSt]\b")
_OTHER_USER = re.compile(rf"{_SYSTEM}(doas|su|sudo)")
# Programs whose command does not get their variables, and words that hand these on.
_NO_VARIABLES = re.compile(rf"{_SYSTEM}((docker|podman|kubectl) (run|exec)|ssh)(?= )")
_HANDS_ON = re.compile(r" -e| --env|SendEnv|RANK")
# The remedy for a file of code.
_UNIX = "run sed -i 's/\\r$//' {} in code"
_SHELL = re.compile(r"(ba|da|k|z)?sh")
_SHELL_FLAGS = re.compile(r"-[aefhklnpuvx]+")  # those without a value
_SHELL_OPTIONS = re.compile(r"-[a-zA-Z]+|--[a-z]+|errexit|nounset|pipefail|xtrace")
_SHELL_LINE = re.compile(rb"#!.*?[/ ]((?:ba|da|k|z)?sh)(?=\s|\Z)")
_TEXT_FLAG = re.compile(r"-[a-zA-Z]*c")
# A text of bash that reads the words behind it, or hands them to a file that does.
_READS_WORDS = re.compile(
    r"\$\{?[#!]?[0-9@*#]|\b(BASH_ARG|for|getopts|select|shift|source)|(^|[\s;&|])\.\s"
)
# A shell script with one of these, or a program that it starts, may fill in words itself.
_FILLS_IN = re.compile(
    rb"expand_?(user|vars)|environ|getenv|\beval\b|envsubst|Template|\s-\w*c\b|^\s*(exec )?\"?\$[@*{]",
    re.MULTILINE,
)
_MOST_BYTES = 1 << 20  # of a file that a person wrote


class ShellText(NamedTuple):
    """A text that a shell reads. `name`: its file, or "". `place`: else the word of the command that it is."""

    name: str
    place: int
    shell: str
    text: str


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of a command, and a launcher that a script `module:NAME` names."""
    train = job.train
    if train.command:
        yield from _program(job)
        yield from _file(job, home)
        yield from _behind_text(train.command)
        yield from _launcher_inside(job, home)
    elif re.fullmatch(f"module:{_MODULE}", train.script or ""):
        args = train.args
        words = [f"--{k}={v}" for k, v in args.items()] if isinstance(args, Mapping) else args
        if not _ONE_PROCESS.search(" ".join(words)):
            yield _launcher("train.script")


def _program(job: JobSpec) -> Iterator[Conflict]:
    """Yield a warning about programs that start another, and about Python, which is better as a script."""
    words = job.train.command
    text, first = " ".join(words), words[0]
    started = _STARTERS.sub("", f"{text} ", count=1) if _STARTERS.match(text) else text
    alone = _NO_VARIABLES.match(text) if job.world_size > 1 else None
    if _NO_PROGRAM.fullmatch(first):
        remedy = "name the program, or the file of code"
        yield Conflict(("train.command",), f"{first} is no program, and cannot be started", remedy)
    elif _LAUNCHER.match(started) and not _ONE_PROCESS.search(text):
        yield _launcher("train.command")
    elif _ELSEWHERE.fullmatch(first) and not _WAITS.search(text):
        problem = f"{first} ends before what it starts, and then the job is done"
        yield warning("train.command", problem, "name what it starts")
    elif _OTHER_USER.fullmatch(first):
        problem = f"{first} takes the job's variables away, and may wait for a password"
        yield warning("train.command", problem, f"leave {first} out, and launch as that user")
    elif alone and not _HANDS_ON.search(text):
        problem = f"{alone[0]} does not hand on the job's variables, and each process trains alone"
        remedy = f"name what {first} starts, or hand on RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        yield warning("train.command", problem, remedy)
    elif re.fullmatch(r"(\S*/)?python[0-9.]*", first) and len(words) > 1:
        problem = (
            "is Python, of which more is known as a script: its saves, its steps, its exceptions"
        )
        module = re.search(r"^(?:-\w+ )*?-m (\S+)", " ".join(words[1:]))
        file = next((word for word in words[1:] if not word.startswith("-")), "FILE.py")
        script = f"module:{module[1]}" if module else file
        yield warning("train.command", problem, f"write script: {script}, and the rest as args")


def _launcher(field: str) -> Conflict:
    problem = "is a launcher, and each process of the job would start it"
    remedy = "name what it launches (script: train.py); for accelerate launch add --num_processes=1"
    return warning(field, problem, remedy)


def _file(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the faults of the file that a command starts. A working directory on the hosts may have any file."""
    program = job.train.command[0]
    if job.train.workdir or not program or program.startswith(("/", "~")):
        return
    path = posixpath.normpath(program)
    file = code.find(job.code, home, path).get(path)
    if file and "/" not in program:
        problem = f"{program} is looked for on the PATH, and not in code"
        yield warning("train.command", problem, f"write ./{program}")
    elif file and not file.stat().st_mode & 0o100:
        problem = f"{program} cannot be started: its owner may not execute it"
        remedy = f"run chmod +x {path} in code, or write the program that reads it in front"
        yield warning("train.command", problem, remedy)
    elif file:
        yield from _first_line(program, file)
    elif name := _read_by_shell(job.train.command):
        path = posixpath.normpath(name)
        file = code.find(job.code, home, path).get(path)
        if file and _ends_as_on_windows(_text(file)):
            problem = f"{name} ends its lines as on Windows, and the shell takes that for a part of each last word"
            yield warning("train.command", problem, _UNIX.format(shlex.quote(path)))
    script = _read_by_shell(job.train.command)
    here = script.endswith(".sh") and not script.startswith(("/", "~", "{"))
    if here:
        path = posixpath.normpath(script)
        if job.code and path not in code.find(job.code, home, path):
            problem = f"{script} is not in code ({', '.join(job.code)})"
            yield warning("train.command", problem, "create it, or correct the path")


def _launcher_inside(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield a warning if the text of `bash -c`, or a shell script of `code`, surely starts a launcher in each process."""
    read = shell_text(job, home)
    if read is None or job.procs_per_node < 2 or _AT_TIMES.search(read.text):
        return
    if launcher := next(filter(None, map(_LAUNCHING.fullmatch, _commands(read.text))), None):
        problem = f"{read.name or 'its text'} starts {launcher[2].split()[0]}, and each process of the job would do so"
        remedy = "start the training itself there, like python3 train.py, or write script: train.py"
        yield warning("train.command", problem, remedy)


def shell_text(job: JobSpec, home: Path) -> ShellText | None:
    """Return what a shell reads: the text of `bash -c`, or a shell script of `code`; None without one."""
    words = job.train.command
    flag = next((i for i, word in enumerate(words) if _TEXT_FLAG.fullmatch(word)), 0)
    shell, *options = _STARTERS.sub("", f"{' '.join(words[:flag])} ", count=1).split() or [""]
    if _SHELL.fullmatch(posixpath.basename(shell)) and all(map(_SHELL_OPTIONS.fullmatch, options)):
        return ShellText("", flag + 1, shell, "".join(words[flag + 1 : flag + 2]))
    name = _read_by_shell(words) or (words[0] if words and "/" in words[0] else "")
    if not name or job.train.workdir or name.startswith(("/", "~")):
        return None
    path = posixpath.normpath(name)
    file = code.find(job.code, home, path).get(path)
    text = _text(file) if file else b""
    line = _SHELL_LINE.match(text)
    shell = words[0] if name != words[0] else line[1].decode() if line else ""
    return ShellText(name, 0, shell, text.decode("utf-8", "replace")) if shell else None


def _commands(text: str) -> Iterator[str]:
    """Yield the commands of a text of bash. Skip a line within a condition, or with quotes that it does not close."""
    for line in text.replace("\\\n", " ").splitlines():
        if line[:1].isspace():
            continue
        words = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        words.whitespace_split = True
        command: list[str] = []
        try:
            for word in (*words, ";"):
                if word.strip(";&|"):
                    command.append(word)
                else:
                    yield " ".join(command)
                    command = []
        except ValueError:
            continue


def _read_by_shell(words: Sequence[str]) -> str:
    """Return the file that a command gives to a shell; "" without one."""
    file = next((word for word in words[1:] if not _SHELL_FLAGS.fullmatch(word)), "")
    return file if _SHELL.fullmatch(posixpath.basename(words[0])) else ""


def _ends_as_on_windows(text: bytes) -> bool:
    return text.partition(b"\n")[0].endswith(b"\r")


def _first_line(program: str, file: Path) -> Iterator[Conflict]:
    """Yield the fault of a file's first line, if the kernel cannot start the file because of it."""
    head = _text(file)[:4096]
    interpreter, problem = head.startswith(b"#!"), ""
    if not interpreter and head.strip() and b"\0" not in head:
        problem = f"{program} cannot be started: its first line does not begin with #!"
        remedy = "write the interpreter there, like #!/bin/bash, or in front in the command"
    elif interpreter and _ends_as_on_windows(head):
        problem = f"{program} cannot be started: its lines end as on Windows"
        remedy = _UNIX.format(shlex.quote(posixpath.normpath(program)))
    if problem:
        yield warning("train.command", problem, remedy)


def _behind_text(words: Sequence[str]) -> Iterator[Conflict]:
    """Yield a warning about words behind the text of `bash -c` that the text does not read."""
    flag = next((i for i, word in enumerate(words) if _TEXT_FLAG.fullmatch(word)), 0)
    options, text, rest = words[1:flag], "".join(words[flag + 1 : flag + 2]), words[flag + 2 :]
    shell = flag and _SHELL.fullmatch(posixpath.basename(words[0]))
    # A single word may be there as the name that the shell has in its own messages.
    given = len(rest) > 1 or (rest and re.match(r"--?[A-Za-z]", rest[0]))
    if not shell or not given or not all(map(_SHELL_OPTIONS.fullmatch, options)):
        return
    if not text.startswith(("-", "+")) and not _READS_WORDS.search(text):
        lost = " ".join(rest)
        problem = f"no program gets {lost}: the text of {words[flag]} reads no word that follows"
        remedy = "write these words into the text, within its quotes"
        yield warning("train.command", problem, remedy)


def passes_words_on(job: JobSpec, home: Path) -> bool:
    """True if the command starts a shell script of `code`, and no file of `code` fills in words as a shell would."""
    command = job.train.command
    path = posixpath.normpath(_read_by_shell(command) or command[0])
    try:
        files = {} if job.train.workdir else code.find(job.code, home, ".")
    except FileTroubleError:
        return False
    if path not in files or any(map(_TEXT_FLAG.fullmatch, command)):
        return False
    shell = _read_by_shell(command) or re.match(rb"#!.*sh\b", _text(files[path]))
    return bool(shell) and not any(_FILLS_IN.search(_text(file)) for file in files.values())


def _text(file: Path) -> bytes:
    """Return the text of a file; an empty one if it cannot be read, or is too large for a text."""
    try:
        return file.read_bytes() if file.stat().st_size <= _MOST_BYTES else b""
    except OSError:
        return b""
