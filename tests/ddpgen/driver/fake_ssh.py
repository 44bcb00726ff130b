"""An ssh for tests: a destination is a directory, its home; what it runs, it runs here.

The directory's file `.door` says how the way there is: open, or one of the troubles below. Like sshd
it gives the command a session of its own, and the end of the connection leaves it running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HOMES = Path(os.environ["FAKE_HOMES"])
TROUBLES = {
    "refused": "ssh: connect to host {} port 22: Connection refused",
    "denied": "{}: Permission denied (publickey,password).",
    "unknown": "Host key verification failed.",
    "nameless": "ssh: Could not resolve hostname {}: Name or service not known",
    "off": "ssh: connect to host {} port 22: No route to host",
    "jump": "Connection closed by UNKNOWN port 65535",
}


def main(words: list[str]) -> int:
    """What ssh would do with these words."""
    options, rest = [], list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        options.append(f"{option} {rest.pop(0)}" if option in ("-o", "-O", "-p", "-F") else option)
    destination, *command = rest
    with open(HOMES / "calls", "a") as calls:
        calls.write(f"{destination} {options} {command}\n")
    socket = next((o.partition("=")[2] for o in options if "ControlPath=" in o), "")
    if "-O exit" in options:
        os.unlink(socket)
        return 0
    home = HOMES / destination.replace("/", "_")
    door = (home / ".door").read_text().split() if (home / ".door").exists() else ["open"]
    return enter(destination, home, door, socket, command)


def enter(destination: str, home: Path, door: list[str], socket: str, command: list[str]) -> int:
    """Through the door, if it opens."""
    if door[0] in TROUBLES:
        print(TROUBLES[door[0]].format(destination), file=sys.stderr)
        return 255
    if door[0] == "silent":
        time.sleep(600)
    if door[0] == "crowded":
        left = int(door[1]) - 1
        (home / ".door").write_text(f"crowded {left}" if left else "open")
        print("kex_exchange_identification: Connection closed by remote host", file=sys.stderr)
        return 255
    if not home.is_dir():
        print(TROUBLES["nameless"].format(destination), file=sys.stderr)
        return 255
    if socket:
        Path(socket).touch()
    if door[0] == "noisy":
        print("Welcome!\x1b[2J\nddpgen-fact", flush=True)
    return login(home, command)


def login(home: Path, command: list[str]) -> int:
    """Run the command by the login shell."""
    assert command == ["bash -s"], command
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "FAKE": "1"}
    # TERM ends ssh, not what it started.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(255))
    # The network is gone: ssh says so, and nobody tells the host.
    signal.signal(signal.SIGUSR2, cut)
    # Before the first word: whoever hears that looks here.
    write = 'echo "$0 $$" >>.sessions; exec bash -c "$1"'
    words = ["bash", "-c", write, str(os.getpid()), command[0]]
    shell = subprocess.Popen(words, cwd=home, env=env, start_new_session=True)
    code = shell.wait()
    return code if code >= 0 else 255


def cut(*_: object) -> None:
    os.write(2, b"client_loop: send disconnect: Broken pipe\r\n")
    os._exit(255)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
