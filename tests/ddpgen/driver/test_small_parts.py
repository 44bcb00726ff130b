"""The pure parts of the driver: what was typed, the plan, texts for bash, lines, and judgements."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ddpgen.driver import remote, ssh
from ddpgen.driver.argv import UsageError, Wanted, parse
from ddpgen.driver.child import Outcome
from ddpgen.driver.ends import End, Evidence, culprit, exit_code, judged, may_start_again
from ddpgen.driver.lines import LONGEST, Lines, shown
from ddpgen.driver.plan import Host, Plan, at_login, read
from ddpgen.driver.screen import Screen
from ddpgen.driver.session import why_not
from train.config import build_parser

LISTING: dict[str, Any] = {
    "name": "pair",
    "launcher": "torchrun",
    "elastic": [1, 2],
    "restarts": 3,
    "head": "a",
    "ssh_options": ["-v"],
    "checkpoint_dir": "runs/pair",
    "hosts": [
        {"name": "a", "ssh": "ssh://me@a:2222", "dir": "~/it's here", "script": "hosts/a.sh"},
        {"name": "b", "ssh": "b", "dir": "/data", "script": "hosts/b.sh"},
    ],
}


def plan(**keys: Any) -> Plan:
    return read(json.dumps({**LISTING, **keys}))


def test_what_was_typed() -> None:
    assert parse([]) == Wanted("run")
    assert parse(["--steps=5", "--status"]) == Wanted("run", None, ("--steps=5", "--status"))
    assert parse(["--fetch=x y"]) == Wanted("fetch", "x y")
    assert parse(["--logs", "a"]) == Wanted("logs", "a")
    assert parse(["-h"]) == Wanted("help")
    for words in (["--status", "x"], ["--logs", "a", "b"], ["--fetch="]):
        with pytest.raises(UsageError):
            parse(words)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--statsu", "--status"),
        ("--fetsch=x", "--fetch"),
        ("--log", "--logs"),
        ("-stop", "--stop"),
        ("--HELP", "--help"),
    ],
)
def test_a_typo_of_an_option_of_ours_starts_nothing(typed: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"did you mean {meant}\?"):
        parse([typed])
    assert parse(["--steps=5", typed]).what == "run"
    assert parse(["--", typed, "--"]) == Wanted("run", None, (typed, "--"))


def test_no_option_of_the_training_is_taken_for_a_typo() -> None:
    options = [*build_parser()._option_string_actions]
    assert "--steps" in options
    for option in set(options) - {"-h", "--help"}:
        assert parse([f"{option}=1"]) == Wanted("run", None, (f"{option}=1",))


def test_places_start_from_the_login_directory() -> None:
    a, b = plan().hosts
    assert (plan().bundle(a), plan().bundle(b)) == ("./it's here/pair", "/data/pair")
    assert plan().checkpoints(b) == "/data/runs/pair"
    assert plan(checkpoint_dir="~/runs").checkpoints(b) == "./runs"
    assert [at_login(path) for path in ("~", "~/x", "-x", "/x")] == ["./", "./x", "./-x", "/x"]


HOSTILE = ["", "it's", "a\nb", "$(touch x)`y`", "\\", "-n", "é☃", "\x01\x7f", "'; exit; '", "\r\n"]


@pytest.mark.parametrize("text", HOSTILE)
def test_quoted_words_reach_a_program_byte_for_byte(text: str) -> None:
    script = f"printf '%s' {remote.quote(text)}".encode()
    done = subprocess.run(["bash", "-s"], input=script, capture_output=True, timeout=30)
    assert done.stdout == text.encode()


def test_texts_for_hosts_are_clean_bash() -> None:
    ours = plan(name="it's\nhere")
    host = ours.hosts[0]
    texts = [
        remote.prepare(ours, host, 5),
        remote.status(ours, host),
        remote.stop(ours, host),
        remote.start(ours, host, {"X": "y z"}, ["--a=b c"]),
    ]
    for text in texts:
        assert text.startswith(b"{\n")
        assert text.endswith(b"\nexit\n}\n")
        subprocess.run(["bash", "-n"], input=text, check=True, timeout=30)
        # Half of it does nothing.
        half = subprocess.run(
            ["bash", "-s"], input=text[: len(text) // 2], capture_output=True, timeout=30
        )
        assert half.stdout == b""


def test_a_host_without_room_is_told_what_is_needed(tmp_path: Path) -> None:
    ours = plan(hosts=[{**LISTING["hosts"][0], "dir": str(tmp_path)}])
    done = subprocess.run(
        ["bash", "-s"],
        input=remote.prepare(ours, ours.hosts[0], 10**15),
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 69
    assert "KiB and needs 1000000000000000; make room" in remote.troubles(done.stdout)


def test_the_users_options_come_before_what_they_may_know_better(tmp_path: Path) -> None:
    calls = ssh.Ssh(("ssh",), ("-o", "ConnectTimeout=60"), {"a": 0}, tmp_path)
    words = calls.command(Host("a", "ssh://me@a:2222", "x", "y"))
    assert words[-2:] == ["ssh://me@a:2222", "bash -s"]
    position = {word: number for number, word in enumerate(words)}
    assert position["BatchMode=yes"] < position["ConnectTimeout=60"] < position["ConnectTimeout=10"]
    assert {"ServerAliveInterval=5", "ServerAliveCountMax=6", "ControlMaster=auto"} <= set(words)


def test_advice_names_the_command_that_the_driver_uses(tmp_path: Path) -> None:
    host = Host("a", "ssh://me@a:2222", "x", "y")
    plain = ssh.Ssh(("ssh",), (), {"a": 0}, tmp_path)
    own = ssh.Ssh(("my ssh", "-v"), ("-i", "key"), {"a": 0}, tmp_path)
    said = b"Host key verification failed.\r\n"
    assert plain.complaint(said, host) == (
        "Host key verification failed; its key is not known here yet: log in once by hand and check "
        "it: ssh ssh://me@a:2222"
    )
    assert own.complaint(said, host).endswith("check it: 'my ssh' -v -i key ssh://me@a:2222")
    assert own.complaint(b"nc: proxy failed.", host).startswith(
        "nc: proxy failed; is it switched on"
    )
    taken = (
        b'rsync: [generator] mkdir "/data/x" failed: Permission denied (13)\nrsync error: code 11\n'
    )
    assert "ssh-copy-id" not in plain.complaint(taken, host)
    assert plain.complaint(taken, host).startswith('rsync: [generator] mkdir "/data/x" failed')
    denied = b"me@a: Permission denied (publickey).\nlost connection\n"
    assert plain.complaint(denied, host).startswith("me@a: Permission denied (publickey); nobody")
    changed = (
        b"@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        b"Offending ED25519 key in /home/me/.ssh/known hosts:7\r\n"
        b"Host key for [a]:2222 has changed and you have requested strict checking.\r\n"
        b"Host key verification failed.\r\n"
    )
    assert plain.complaint(changed, host).endswith(
        "remove its old key: ssh-keygen -R '[a]:2222' -f '/home/me/.ssh/known hosts'"
    )
    option = b"/home/me/.ssh/config: line 3: Bad configuration option: prot\nterminating, 1 bad\n"
    assert plain.complaint(option, host).startswith("/home/me/.ssh/config: line 3: Bad config")
    remote = b"Cannot execute command-line and remote command.\n"
    assert "RemoteCommand=none" in plain.complaint(remote, host)
    assert plain.rsync_source(Host("b", "b", "x", "y"), "./it's") == "'b:it'\"'\"'s/'"
    assert plain.rsync_source(host, "/c") == "-e 'ssh -p 2222' me@a:/c/"
    assert plain.rsync_source(Host("c", "ssh://me@[::1]", "x", "y"), "/c") == "'me@[::1]:/c/'"


def test_a_login_shell_that_does_not_come_to_an_end_is_quoted(tmp_path: Path) -> None:
    way, host = ssh.Ssh(("ssh",), (), {"a": 0}, tmp_path), Host("a", "a", "x", "y")
    why = why_not(Outcome(0, b"\r\nwelcome to a\r\n"), way, host, 5)
    assert why.startswith("the login shell there said 'welcome to a' and ended before ours began")
    assert "[[ $- == *i* ]] || return" in why
    assert why_not(Outcome(0, b""), way, host, 5).startswith("the login shell there ended before")
    asks = why_not(Outcome(None, b"which project? \n"), way, host, 5)
    assert asks.startswith("no answer within 5 s after 'which project?'; is it switched on")
    assert why_not(Outcome(69, b"hi\nddpgen: no rsync\n"), way, host, 5) == "no rsync"
    unclean = b"protocol version mismatch -- is your shell clean?\nrsync error: protocol incompatibility\n"
    assert way.complaint(unclean, host).startswith("protocol version mismatch -- is your shell")


def test_lines_of_any_bytes() -> None:
    lines = Lines()
    assert lines.feed(b"a\nb") == [b"a"]
    assert lines.feed(b"\xff\r\n\nc") == [b"b\xff\r", b""]
    assert lines.end() == [b"c"]
    assert lines.end() == []
    pieces = lines.feed(b"x" * (2 * LONGEST + 5) + b"\ny")
    assert [len(piece) for piece in pieces] == [2 * LONGEST + 5]
    assert len(b"".join(lines.feed(b"x" * LONGEST))) == LONGEST
    assert shown(b"10%\r20%\r") == "20%"
    assert shown(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x07 \xff") == "red ? \ufffd"


def heard(*lines: str) -> Evidence:
    evidence = Evidence()
    for line in lines:
        evidence.add(line)
    return evidence


def test_what_an_exit_means() -> None:
    verdict = heard("ddpgen: failed at step 7: b: no memory", "ddpgen: to go on: x")
    assert judged("a", 1, verdict, False) == End("a", "failed", 1, "b: no memory")
    assert judged("a", 0, heard("ddpgen: done at step 7"), False).state == "done"
    assert judged("a", 75, heard(), False).state == "stopped"
    assert judged("a", 69, heard("ddpgen: in use"), False) == End("a", "refused", 69, "in use")
    crashed = heard("ddpgen: crashed: rank 0: ValueError: odd", "ddpgen: to go on: x")
    assert judged("a", 1, crashed, False) == End("a", "crashed", 1, "rank 0: ValueError: odd")
    assert judged("a", 1, heard("Killed", "ddpgen: last"), False) == End("a", "crashed", 1, "last")
    assert judged("a", 1, heard(), True).state == "killed"
    lost = judged("a", 255, heard("loss 3", "Connection to a closed by remote host.", ""), False)
    assert lost.reason == "the connection was lost: Connection to a closed by remote host."
    assert judged("a", -9, heard(), False).state == "lost"
    assert judged("a", 1, heard("ddpgen: crashed: rank 0: lost a peer: reset"), False).follows


def test_the_cause_is_told_from_its_consequences() -> None:
    follows = End("a", "crashed", 1, "", follows=True)
    crashed = End("b", "crashed", 1, "")
    lost, forced = End("c", "lost", 255, ""), End("c", "lost", None, "", forced=True)
    verdict = End("a", "failed", 1, "b: no memory")
    names = ("a", "b", "c")
    assert culprit([follows, crashed], names) == crashed
    assert culprit([follows, crashed, lost], names) == lost
    assert culprit([follows, forced], names) == forced
    assert culprit([verdict, End("b", "failed", 1, "b: no memory")], names).host == "b"  # type: ignore[union-attr]
    assert culprit([End("a", "done", 0, "")], names) is None


def test_the_exit_code_of_the_whole() -> None:
    done, stopped = End("a", "done", 0, ""), End("b", "stopped", 75, "")
    lost, refused = End("c", "lost", 255, ""), End("c", "refused", 69, "")
    assert exit_code([done], None, False) == 0
    assert exit_code([done, stopped], None, False) == 75
    assert exit_code([done, lost], lost, False) == 1
    assert exit_code([done, lost], lost, True) == 0
    assert exit_code([lost], lost, True) == 1
    assert exit_code([refused], refused, False) == 69


def test_what_may_start_again() -> None:
    crashed, killed = End("a", "crashed", 1, ""), End("b", "killed", 1, "", forced=True)
    lost, failed = End("a", "lost", 255, ""), End("a", "failed", 1, "why")
    assert may_start_again([crashed, killed], "env", None)
    assert may_start_again([lost], "torchrun-static", None)
    assert not may_start_again([crashed, failed], "env", None)
    assert not may_start_again([crashed], "torchrun", None)
    assert may_start_again([lost, killed], "torchrun", "a")
    assert not may_start_again([lost, killed], "torchrun", "b")


def read_from(terminal: int, length: int) -> bytes:
    """The kernel hands over what was written in pieces of its own."""
    heard = b""
    while len(heard) < length:
        heard += os.read(terminal, 4096)
    return heard


def test_colours_on_a_terminal_and_only_there() -> None:
    main, side = pty.openpty()
    screen = Screen(["a", "longer"], {"TERM": "xterm"}, out=side, err=side)
    screen.lines("a", ["x"])
    screen.say("y")
    screen.close(5)
    wanted = b"\x1b[36ma      |\x1b[0m x\r\nddpgen: y\r\n"
    assert read_from(main, len(wanted)) == wanted
    plain = Screen(["a"], {"TERM": "xterm", "NO_COLOR": "1"}, out=side, err=side)
    plain.lines("a", ["x"])
    plain.close(5)
    assert read_from(main, 7) == b"a | x\r\n"
    os.close(main)
    os.close(side)


def test_nobody_waits_for_a_reader_that_does_not_read() -> None:
    reader, writer = os.pipe()
    screen = Screen(["a"], {}, out=writer, err=writer, logs="LOGS")
    for _ in range(10_000):
        screen.lines("a", ["x" * 1000])
    since = time.monotonic()
    screen.close(0.2)
    assert time.monotonic() - since < 30
    heard = b""
    while b"lines were not shown" not in heard:
        heard += os.read(reader, 1 << 16)
    assert b"this terminal is slow; they are in LOGS\n" in heard
    os.close(reader)
