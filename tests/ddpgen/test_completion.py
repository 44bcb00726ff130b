"""Completion as a shell asks for it, and in the terminals of bash, zsh and fish."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ci import do_without
from tests.ddpgen.conftest import GPT, ROOT, Run, check_bash, ddpgen

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(ddpgen completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u -D; eval "$(ddpgen completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "ddpgen completion fish | source"),
}  # fmt: skip
_ESCAPES = re.compile(
    r"\x1b\[[0-9;?>=]*[A-Za-z]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1bP[^\x1b]*\x1b\\|\x1b[()].|\x1b[=>]"
)
_PATIENCE_S = 30.0
HOSTS = "targets: {hosts: {hosts: [{name: left}, {name: right}]}}\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with files, profiles and hosts of ssh."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("config/ddpgen/lab.yaml", "examples/gpt.yaml", "examples/toy.yaml", "my job.yaml", "me/a.yaml"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "me/.ssh").mkdir()
    (tmp_path / "me/.ssh/config").write_text("Host gate other\n  User me\nHost *.local !x\n")
    (tmp_path / "job.yaml").write_text(GPT + HOSTS)
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts(run: Run, shell: str, tmp_path: Path) -> None:
    outcome = run("completion", shell)
    assert outcome.code == 0
    assert f"_DDPGEN_COMPLETE={shell}_complete" in outcome.out
    if shell == "bash":
        check_bash(outcome.out)


# The end of a line → the words that may stand there.
ASKED = [
    ("val", "validate"),
    ("validate examples/to", "file:examples/to"),
    ("status bu", "file:bu"),
    ("diff a b", "file:b"),
    ("render job.yaml --target s", "slurm sky"),
    ("render job.yaml --target=s", "slurm sky"),
    ("status job.yaml --target lo", "local"),
    ("launch job.yaml --set train.lr=1 --target h", "hosts"),
    ("launch job.yaml --target local -- da", "file:da"),
    ("bench job.yaml --plot=ex", "file:ex"),
    ("render job.yaml --templates ex", "dir:ex"),
    ("explain LINK", "LINK001 LINK004"),
    ("explain NIC001 link", "LINK001 LINK004"),
    ("render job.yaml --profile ", "lab"),
    ("validate job.yaml --profile=l", "lab"),
    ("site x --login ga", "gate"),
    ("predict job.yaml --step-time le", "left="),
    ("predict none.yaml --step-time le", ""),
    ("completion f", "fish"),
]


@pytest.mark.parametrize(
    ("shell", "line", "words"),
    [*(("bash", *asked) for asked in ASKED), ("zsh", *ASKED[2]), ("fish", *ASKED[2])],
)
def test_a_shell_is_told_the_words(shell: str, line: str, words: str, place: Path) -> None:
    *before, last = f"ddpgen {line}".split(" ")
    index = last if shell == "fish" else str(len(before))
    asked = {"_DDPGEN_COMPLETE": f"{shell}_complete", "COMP_WORDS": f"ddpgen {line}"}
    said = ddpgen(cwd=place, **asked, COMP_CWORD=index).stdout
    found = [each.split("\t") for each in filter(None, said.splitlines())]
    assert [f"{kind}:{word}".removeprefix("plain:") for kind, word, _ in found] == words.split()


class Terminal:
    """A shell in a terminal, with the completion of ddpgen switched on."""

    def __init__(self, shell: str, place: Path) -> None:
        argv, switch_on = SHELLS[shell]
        (place / "bin").mkdir()
        command = place / "bin/ddpgen"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ddpgen "$@"\n')
        command.chmod(0o755)
        self.seen = ""
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            os.chdir(place)
            path = f"{place}/bin:{os.environ['PATH']}"
            more = {"PATH": path, "PYTHONPATH": str(ROOT), "TERM": "xterm", "INPUTRC": "/dev/null", "HISTFILE": ""}  # fmt: skip
            os.execvpe(argv[0], argv, os.environ | more)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 150, 0, 0))
        self.type(f"{switch_on}; echo switched-'on'\n")
        self.wait(lambda text: "switched-on" in text)

    def completed(self, line: str) -> str:
        """Return what the shell makes of a line and a tab, by having it echo the words."""
        self.seen = ""
        self.type(line)
        self.read(1)
        self.type("\t")
        time.sleep(0.1)
        self.type("\x01echo '<'\x05'>'\n")
        self.wait(lambda text: re.search(r"<[^'<>]*>", text) is not None)
        (echoed,) = re.findall(r"<([^'<>]*)>", self.seen)
        return " ".join(echoed.split()).rstrip("/")  # zsh takes a last slash away

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait(self, shows: Callable[[str], bool]) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not shows(self.seen):
            assert time.monotonic() < end, self.seen
            self.read(0.2)

    def read(self, seconds: float) -> None:
        ready, _, _ = select.select([self.terminal], [], [], seconds)
        if not ready:
            return
        text = os.read(self.terminal, 65536).decode("utf-8", "replace")
        if re.search(r"\x1b\[0?c", text):  # fish asks for the terminal's abilities
            self.type("\x1b[?62;c")
        self.seen += _ESCAPES.sub("", text)

    def close(self) -> None:
        os.close(self.terminal)
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, place: Path) -> Iterator[Terminal]:
    shell = str(request.param)
    do_without(shell, "" if shutil.which(shell) else f"there is no {shell}")
    opened = Terminal(shell, place)
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.slow
def test_a_terminal_completes_words_and_files(terminal: Terminal, place: Path) -> None:
    for line, added in (
        ("rend", "er"),
        ("render exa", "mples"),
        ("render my", " job.yaml"),
        ("launch job.yaml --target h", "osts"),
        ("launch job.yaml --target=h", "osts"),
        ("bench job.yaml --plot=exa", "mples"),
        ("launch job.yaml --target local -- exa", "mples"),
        ("explain LINK004", ""),
        ("explain CL", "K001"),
        ("render job.yaml --profile l", "ab"),
        ("site x --login ga", "te"),
        ("predict job.yaml --step-time le", "ft="),
    ):
        assert terminal.completed(f"ddpgen {line}") == f"ddpgen {line}{added}"
    from_home = terminal.completed("ddpgen render ~/a")
    assert from_home == f"ddpgen render {place}/me/a.yaml"
