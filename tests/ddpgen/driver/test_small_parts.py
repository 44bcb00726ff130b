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
from ddpgen.driver.argv import DriverCommand, UsageError, parse
from ddpgen.driver.child import Completed
from ddpgen.driver.ends import End, Evidence, culprit, exit_code, judged, may_start_again
from ddpgen.driver.plan import Plan, PlannedHost, login_path, read
from ddpgen.driver.screen import MAX_LINE, Lines, Screen, shown
from ddpgen.driver.secret_values import Mask
from ddpgen.driver.session import failure_reason

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
    assert parse([]) == DriverCommand("run")
    assert parse(["--steps=5", "--status"]) == DriverCommand("run", None, ("--steps=5", "--status"))
    assert parse(["--", "--status", "--"]) == DriverCommand("run", None, ("--status", "--"))
    assert parse(["--preflight"]) == DriverCommand("run", None, ("--preflight",))
    assert parse(["--fetch=x y"]) == DriverCommand("fetch", "x y")
    assert parse(["--logs", "a"]) == DriverCommand("logs", "a")
    assert parse(["-h"]) == DriverCommand("help")
    for words in (["--status", "x"], ["--logs", "a", "b"], ["--fetch="]):
        with pytest.raises(UsageError):
            parse(words)


def test_places_start_from_the_login_directory() -> None:
    a, b = plan().hosts
    assert (plan().bundle(a), plan().bundle(b)) == ("./it's here/pair", "/data/pair")
    assert plan().checkpoints(b) == "/data/runs/pair"
    assert plan(checkpoint_dir="~/runs").checkpoints(b) == "./runs"
    assert [login_path(path) for path in ("~", "~/x", "-x", "/x")] == ["./", "./x", "./-x", "/x"]


HOSTILE = ["", "it's", "a\nb", "$(touch x)`y`", "\\", "-n", "é☃", "\x01\x7f", "'; exit; '", "\r\n"]


def bash(text: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-s"], input=text, capture_output=True, timeout=30)


def test_quoted_words_reach_a_program_byte_for_byte() -> None:
    words = " ".join(map(remote.quote, HOSTILE))
    said = bash(f"printf '%s\\0' {words}".encode()).stdout
    assert said.decode().split("\0")[:-1] == HOSTILE


def test_half_a_text_for_a_host_does_nothing() -> None:
    ours = plan(name="it's\nhere")
    host = ours.hosts[0]
    texts = [
        remote.prepare(ours, host, 5),
        remote.status(ours, host),
        remote.stop(ours, host),
        remote.start(ours, host, {"X": "y z"}, ["--a=b c"]),
    ]
    for text in texts:
        subprocess.run(["bash", "-n"], input=text, check=True, timeout=30)
        assert bash(text[: len(text) // 2]).stdout == b""


def test_a_login_file_that_reads_our_words_is_named() -> None:
    ours = plan()
    text = remote.prepare(ours, ours.hosts[0], 5)
    done = bash(text.split(b"\n", 1)[1])
    assert done.returncode == 69
    why = remote.troubles(done.stdout)
    assert "'read'" in why


def test_a_host_without_room_is_told_what_is_needed(tmp_path: Path) -> None:
    ours = plan(hosts=[{**LISTING["hosts"][0], "dir": str(tmp_path)}])
    done = bash(remote.prepare(ours, ours.hosts[0], 10**15))
    assert done.returncode == 69
    assert "KiB and needs 1000000000000000; make room" in remote.troubles(done.stdout)


HOST = PlannedHost("a", "ssh://me@a:2222", "x", "y")
PLAIN = ssh.Ssh(("ssh",), (), {"a": 0}, Path("/private"))


def test_the_users_options_come_before_what_they_may_know_better() -> None:
    calls = ssh.Ssh(("ssh",), ("-o", "ConnectTimeout=60"), {"a": 0}, Path("/private"))
    words = calls.command(HOST)
    assert words[-2:] == ["ssh://me@a:2222", "bash -s"]
    position = {word: number for number, word in enumerate(words)}
    assert position["BatchMode=yes"] < position["ConnectTimeout=60"] < position["ConnectTimeout=10"]
    assert {"ServerAliveInterval=5", "ServerAliveCountMax=6", "ControlMaster=auto"} <= set(words)


CHANGED = b"""\
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Offending ED25519 key in /home/me/.ssh/known hosts:7\r
Host key for [a]:2222 has changed and you have requested strict checking.\r
Host key verification failed.\r
"""


@pytest.mark.parametrize(
    ("said", "begins", "ends"),
    [
        (
            b"Host key verification failed.\r\n",
            "Host key verification failed; ",
            " ssh ssh://me@a:2222",
        ),
        (
            CHANGED,
            "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!; ",
            " ssh-keygen -R '[a]:2222' -f '/home/me/.ssh/known hosts'",
        ),
        (b"nc: proxy failed.", "nc: proxy failed; ", "right?"),
        (
            b'rsync: [generator] mkdir "/data/x" failed: Permission denied (13)\nrsync error: 11\n',
            'rsync: [generator] mkdir "/data/x" failed: Permission denied (13); ',
            "another dir",
        ),
        (
            b"me@a: Permission denied (publickey).\nlost connection\n",
            "me@a: Permission denied (publickey); nobody",
            "unlock it (ssh-add)",
        ),
        (
            b"/home/me/.ssh/config: line 3: Bad configuration option: prot\nterminating, 1 bad\n",
            "/home/me/.ssh/config: line 3: Bad config",
            "take it out",
        ),
        (
            b"Cannot execute command-line and remote command.\n",
            "Cannot execute",
            "for this host",
        ),
        (
            b"protocol version mismatch -- is your shell clean?\nrsync error: incompatibility\n",
            "protocol version mismatch -- ",
            "|| return`",
        ),
        (
            b"Connection to 192.168.7.2 port 22 timed out\r\n",  # a path that loses large packets
            "Connection to 192.168.7.2 port 22 timed out; ",
            "mtu 1280)",
        ),
        (
            b"ssh: connect to host a port 22: Connection timed out\r\n",
            "ssh: connect to host a port 22: Connection timed out; ",
            "up?",
        ),
        (b"", "ssh said nothing", ""),
    ],
)
def test_what_ssh_complains_of_and_what_to_do(said: bytes, begins: str, ends: str) -> None:
    advice = PLAIN.complaint(said, HOST)
    assert advice.startswith(begins)
    assert advice.endswith(ends)


def test_advice_names_the_command_that_the_driver_uses() -> None:
    own = ssh.Ssh(("my ssh", "-v"), ("-i", "key"), {"a": 0}, Path("/private"))
    assert own.login_command(HOST) == "'my ssh' -v -i key ssh://me@a:2222"


@pytest.mark.parametrize(
    ("outcome", "begins"),
    [
        (Completed(0, b"\r\nwelcome to a\r\n"), "the login shell there said 'welcome to a'"),
        (Completed(0, b""), "the login shell there ended"),
        (Completed(None, b"which project? \n"), "no answer within 5 s after 'which project?'; "),
        (
            Completed(1, b"open terminal failed: not a terminal\n"),  # `exec tmux` in ~/.bashrc
            "the login shell there said 'open terminal failed: ",
        ),
        (Completed(127, b"bash: command not found\n"), "bash: command not found; "),
        (Completed(1, b"This account is currently not available.\n"), "This account is currently"),
        (
            Completed(1, b"bash: line 3: /tmp/x: No space left on device\n"),
            "bash: line 3: /tmp/x: No space",
        ),
        (Completed(3, b""), "the login shell there ended"),
        (Completed(255, b"odd\n"), "odd"),
        (Completed(137, b"Killed\n"), "Killed"),
        (Completed(69, b"hi\nddpgen: no rsync\n"), "no rsync"),
    ],
)
def test_a_login_shell_that_does_not_come_to_an_end_is_quoted(
    outcome: Completed, begins: str
) -> None:
    assert failure_reason(outcome, PLAIN, HOST, 5).startswith(begins)


def test_lines_of_any_bytes() -> None:
    lines = Lines()
    assert lines.feed(b"a\nb") == [b"a"]
    assert lines.feed(b"\xff\r\n\nc") == [b"b\xff\r", b""]
    assert lines.end() == [b"c"]
    assert lines.end() == []
    pieces = lines.feed(b"x" * (2 * MAX_LINE + 5) + b"\ny")
    assert [len(piece) for piece in pieces] == [2 * MAX_LINE + 5]
    assert len(b"".join(lines.feed(b"x" * MAX_LINE))) == MAX_LINE
    assert shown(b"10%\r20%\r") == "20%"
    assert shown(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x07 \xff") == "red ? \ufffd"


@pytest.mark.parametrize(
    ("code", "said", "state", "reason"),
    [
        (0, ["ddpgen: done at step 7"], "done", "done at step 7"),
        (75, [], "stopped", ""),
        (69, ["ddpgen: in use"], "refused", "in use"),
        (1, ['ddpgen-end t {"crashed": false, "reason": "b: odd"}', "late"], "failed", "b: odd"),
        (1, ['ddpgen-end t {"crashed": true, "reason": "rank 0: odd"}'], "crashed", "rank 0: odd"),
        (
            69,
            ["ddpgen: NIC001", 'ddpgen-end t {"crashed": false, "reason": ""}'],
            "refused",
            "NIC001",
        ),
        # No report: its supervisor was killed. All else is what a user's program may print, too.
        (1, ["Killed", "ddpgen: last"], "crashed", "last"),
        (1, ["ddpgen: failed: x"], "crashed", "failed: x"),
        (1, ['ddpgen-end u {"crashed": false, "reason": "x"}'], "crashed", ""),
        (1, ["ddpgen-end t 7"], "crashed", ""),
        (
            255,
            ["loss 3", "Connection to a closed by remote host.", ""],
            "lost",
            "the connection was lost: Connection to a closed by remote host.",
        ),
        (-9, [], "lost", "the connection was lost: ssh was killed by signal 9"),
    ],
)
def test_what_an_exit_means(code: int, said: list[str], state: str, reason: str) -> None:
    evidence = Evidence("t")
    for line in said:
        assert evidence.add(line) != line.startswith("ddpgen-end t ")
    cut = reason.startswith("the connection was lost: Connection to a closed")
    assert judged("a", code, evidence, False) == End("a", state, code, reason, is_cut=cut)


def test_a_report_counts_behind_a_line_that_a_program_has_left_open() -> None:
    evidence = Evidence("t")
    assert not evidence.add('50%|### ddpgen-end t {"crashed": false, "reason": "odd"}')
    assert judged("a", 1, evidence, False).state == "failed"


def test_what_an_exit_means_after_a_kill_or_the_loss_of_a_peer() -> None:
    assert judged("a", 1, Evidence(), True).state == "killed"
    evidence = Evidence("t")
    evidence.add('ddpgen-end t {"crashed": true, "reason": "rank 0: lost a peer: reset"}')
    assert judged("a", 1, evidence, False).is_consequence
    assert judged("a", 1, evidence, True).state == "killed"


def test_the_cause_is_told_from_its_consequences() -> None:
    follows = End("a", "crashed", 1, "", is_consequence=True)
    crashed = End("b", "crashed", 1, "")
    lost, forced = End("c", "lost", 255, ""), End("c", "lost", None, "", forced=True)
    verdict, named = End("a", "failed", 1, "b: no memory"), End("b", "failed", 1, "b: no memory")
    victim, first = End("a", "crashed", 1, "b: rank 1: odd"), End("b", "crashed", 1, "rank 1: odd")
    # Rank 0 has moved to `a`, which gives up because of what struck on `b`.
    twice = End("a", "failed", 1, "a: crashed twice; giving up. The last crash: b: rank 0: odd.")
    for ends, cause in (
        ([follows, crashed], crashed),
        ([follows, crashed, lost], lost),
        ([follows, forced], forced),
        ([verdict, named], named),
        ([victim, first], first),
        ([twice, first], first),
        ([End("a", "done", 0, "")], None),
    ):
        assert culprit(ends) == cause


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


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"TERM": "xterm"}, b"\x1b[36ma      |\x1b[0m x\r\nddpgen: y\r\n"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, b"a      | x\r\nddpgen: y\r\n"),
    ],
)
def test_colours_on_a_terminal_and_only_there(environment: dict[str, str], wanted: bytes) -> None:
    main, side = pty.openpty()
    screen = Screen(["a", "longer"], environment, "LOGS", out=side, err=side)
    screen.lines("a", ["x"])
    screen.say("y")
    screen.close(5)
    assert read_from(main, len(wanted)) == wanted
    os.close(main)
    os.close(side)


def test_nobody_waits_for_a_reader_that_does_not_read() -> None:
    reader, writer = os.pipe()
    screen = Screen(["a"], {}, "LOGS", out=writer, err=writer)
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


def test_a_secret_is_masked_however_the_output_is_cut() -> None:
    secrets, text = ("abcdef", "abcdefgh-rest"), b"x abcdefgh-rest y abcdef z abcdefg"
    for cut in range(len(text) + 1):
        for second in range(cut, len(text) + 1):
            mask = Mask(secrets)
            parts = [mask.feed(part) for part in (text[:cut], text[cut:second], text[second:])]
            assert b"".join([*parts, mask.end()]) == b"x *** y *** z ***g"
