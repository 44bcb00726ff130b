"""Command lines for OpenSSH and rsync, and remedies for ssh's complaints.

Owns the options, the shared connections and their private directory. Starts no program. The user's own
ssh_config, known_hosts and agent stay in force, so users set jump hosts, ports and keys there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .plan import Plan, PlannedHost
from .remote import QUIET, quote, run_in

# The line that has the reason → the remedy. {forget} is the command that removes a changed key.
_REMEDIES = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "make sure that it is the machine you mean, then remove its old key: {forget}",
    ),
    (
        r"Bad configuration option|[Bb]ad configuration options|Unsupported option",
        "correct that line, or take it out",
    ),
    (
        r"Cannot execute command-line and remote command",
        "ssh_options: [-o, RemoteCommand=none] in the spec, or in ~/.ssh/config for this host",
    ),
    (
        r"is your shell clean|protocol incompatibility",
        f"the login shell there prints something where nobody types: {QUIET}",
    ),
    (
        r"rsync: .*Permission denied",
        "correct the owner or the permissions of that path (ls -ld), or give the host another dir",
    ),
    (
        r"Host key verification failed",
        "its key is not known here yet: log in once by hand and check it: {login}",
    ),
    (
        r"Permission denied(?: \([a-z]|, please|\.)|Too many authentication failures",
        "nobody is there to type a password: install a key (ssh-copy-id {destination}), unlock it (ssh-add)",
    ),
    (
        r"Could not resolve hostname|Name or service not known",
        "is it switched on, and is `{login}` right? if not, correct its ssh: or ~/.ssh/config",
    ),
    (r"Connection refused", "is sshd running there, and is the port the right one?"),
    (
        # Unlike "connect to host X port 22: Connection timed out": this host answered first, and then was silent.
        r"Connection to \S+ port \d+ timed out",
        "the host answers, and larger packets may not reach it: behind a VPN lower the MTU (ip link set dev NAME mtu 1280)",
    ),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "is it switched on, and is `{login}` right? is the network (the VPN) up?",
    ),
    (r"bash: (?:command )?not found|bash: No such file", "install bash there"),
    # The last line if a jump host or a ProxyCommand could not connect.
    (
        r"(?i:proxy)|stdio forwarding failed|Connection (?:closed|reset) by|banner exchange",
        "is it switched on, and is `{login}` right?",
    ),
)
# The cause of a proxy's failure, in the words of the proxy's own ssh.
_CAUSE = re.compile(
    r"^ssh: |: Permission denied \(|^Host key verification failed|IDENTIFICATION HAS CHANGED"
)
# A jump host accepts about ten connections at a time and drops the others. A later try succeeds.
_TRANSIENT = re.compile(
    r"kex_exchange_identification|ssh_exchange_identification|banner exchange|proxy dialer"
)


@dataclass(frozen=True)
class Ssh:
    """The driver's calls of ssh. `words` begin every command; `private` is a directory for small files."""

    words: tuple[str, ...]
    options: tuple[str, ...]
    numbers: Mapping[str, int]
    private: Path

    def command(self, host: PlannedHost, *, keep: bool = True) -> list[str]:
        """Log in and run the commands that come through the input.

        `keep`: the connection outlives the command. If so, ssh discards the messages of a jump host or a ProxyCommand.
        """
        return [*self._to(host, [], keep=keep), "bash -s"]

    def login_command(self, host: PlannedHost) -> str:
        """Return the command with which a user logs in to see the fault."""
        return shlex.join([*self.words, *self.options, host.ssh])

    def complaint(self, output: bytes, host: PlannedHost) -> str:
        """Return the line with ssh's reason, and the remedy if we know one."""
        lines = _lines(output)
        return self.remedied(output, host) or (
            lines[-1].rstrip(".") if lines else "ssh said nothing"
        )

    def remedied(self, output: bytes, host: PlannedHost) -> str:
        """Return the line for which we know a remedy, with the remedy; else ""."""
        text, lines = output.decode("utf-8", "replace"), _lines(output)
        for pattern, remedy in _REMEDIES:
            decisive = next((line for line in lines if re.search(pattern, line)), "")
            if decisive:
                names = {
                    "login": self.login_command(host),
                    "destination": shlex.quote(host.ssh),
                    "forget": _forget_key(text),
                }
                return f"{decisive.strip('@ .')}; {remedy.format(**names)}"
        return ""

    def hang_up(self, host: PlannedHost) -> list[str]:
        """End the connection that the other commands share."""
        return self._to(host, ["-O", "exit"])

    def socket(self, host: PlannedHost) -> Path:
        """Return the path of the socket of the shared connection to `host`."""
        return self.private / str(self.numbers[host.name])

    def _to(self, host: PlannedHost, extra: list[str], *, keep: bool = True) -> list[str]:
        # ssh takes the first value of an option. Options that keep a launch from hanging come before the user's;
        # options that users may have a better value for come after.
        sharing = [
            "ControlMaster=auto",
            f"ControlPath={self.socket(host)}",
            f"ControlPersist={10 if keep else 'no'}",
        ]
        before_users = ["BatchMode=yes", *sharing, "ClearAllForwardings=yes"]
        after_users = ["ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=6"]
        return [
            *self.words,
            "-T",
            *_options(before_users),
            *self.options,
            *_options(after_users),
            *extra,
            host.ssh,
        ]

    def shell_for_rsync(self, host: PlannedHost, directory: str) -> list[str]:
        """Return rsync's option -e with our own script, which sends rsync's command through the input as well.

        So no login shell parses a path, rsync needs no option against that on either side, and it need
        not understand ssh://me@host:2222.
        """
        script = self.private / f"rsync-to-{self.numbers[host.name]}"
        script.write_text(
            "# rsync's connection to a host: its command, then its bytes, are the input of `bash -s`.\n"
            "shift # the host's name: a dummy\n"
            f"exec {shlex.join(self.command(host))} < <(\n"
            f"  printf '%s%s }}\\n' {quote(run_in(directory))} \"$*;\"\n"
            "  exec cat\n)\n",
            encoding="utf-8",
            errors="surrogateescape",
        )
        return ["-e", f"bash '{script}'"]


def _lines(output: bytes) -> list[str]:
    lines = output.decode("utf-8", "replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def interrupted(first: str) -> str:
    """Return the message if a login shell ended before it began ours. `first`: the first line that it printed."""
    printed = f" said {first!r} and" if first else ""
    return f"the login shell there{printed} ended before ours began, by an exit or exec of its own: {QUIET}"


def _forget_key(text: str) -> str:
    """Return the command that removes the changed key from the user's known_hosts."""
    name = re.search(r"Host key for (\S+) has changed", text)
    file = re.search(r"Offending .*key in (.+):\d+", text)
    words = ["ssh-keygen", "-R", *([name[1]] if name else [])]
    return shlex.join([*words, *(["-f", file[1]] if file else [])])


def _options(values: list[str]) -> list[str]:
    return [word for value in values for word in ("-o", value)]


@contextlib.contextmanager
def ready(plan: Plan, environment: Mapping[str, str]) -> Iterator[Ssh]:
    """Yield the calls of ssh for a plan, and remove the private directory at the end. Raise ValueError."""
    try:
        words = tuple(shlex.split(environment.get("DDPGEN_SSH", "") or "ssh"))
    except ValueError as error:
        raise ValueError(f"DDPGEN_SSH is not a command: {error}") from None
    numbers = {host.name: number for number, host in enumerate(plan.hosts)}
    # A socket's path has 104 bytes on macOS, where TMPDIR alone takes half of them.
    parent = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None
    try:
        directory = tempfile.TemporaryDirectory(
            prefix=f"ddpgen-{os.getuid()}-", dir=parent, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise ValueError(f"there is no room for small files: {error}; set TMPDIR") from None
    with directory as private:
        yield Ssh(words, plan.ssh_options, numbers, Path(private))


def is_transient(output: bytes) -> bool:
    """True if ssh failed perhaps because the host had too many connections at once."""
    lines = _lines(output)
    return any(map(_TRANSIENT.search, lines)) and not any(map(_CAUSE.search, lines))
