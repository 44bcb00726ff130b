"""An ssh for tests: a destination is a directory, its home; what it runs, it runs here.

The directory's file `.door` says how the way there is: open, or one of the troubles below. Like sshd
it gives the command a session of its own, and the end of the connection leaves it running.
"""

from __future__ import annotations

import _signal as signal  # the module signal imports enum, which takes longer than all the rest
import os
import sys
import time

# Started a dozen times in every test: no import that takes longer than the rest.
HOMES = os.environ["FAKE_HOMES"]
TROUBLES = {
    "refused": "ssh: connect to host {} port 22: Connection refused",
    "denied": "{}: Permission denied (publickey,password).",
    "unknown": "Host key verification failed.",
    "nameless": "ssh: Could not resolve hostname {}: Name or service not known",
    "off": "ssh: connect to host {} port 22: No route to host",
}
# A jump host is off. For a connection that outlives its command, ssh discards the cause, as OpenSSH does.
JUMP = (
    "kex_exchange_identification: Connection closed by remote host\n"
    "Connection closed by UNKNOWN port 65535"
)
JUMP_CAUSE = "ssh: connect to host gate port 22: No route to host\n"


def main(words: list[str]) -> int:
    """What ssh would do with these words."""
    options, rest = [], list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        options.append(f"{option} {rest.pop(0)}" if option in ("-o", "-O", "-p", "-F") else option)
    destination, *command = rest
    with open(f"{HOMES}/calls", "a") as calls:
        calls.write(f"{destination} {options} {command}\n")
    socket = next((o.partition("=")[2] for o in options if "ControlPath=" in o), "")
    if "-O exit" in options:
        os.unlink(socket)
        return 0
    home = f"{HOMES}/{destination.replace('/', '_')}"
    door = ["open"]
    if os.path.exists(f"{home}/.door"):
        with open(f"{home}/.door") as file:
            door = file.read().split()
    if door[0] == "jump":
        keeps = any("ControlPersist=10" in option for option in options)
        print(JUMP if keeps else JUMP_CAUSE + JUMP, file=sys.stderr)
        return 255
    return enter(destination, home, door, socket, command)


def enter(destination: str, home: str, door: list[str], socket: str, command: list[str]) -> int:
    """Through the door, if it opens."""
    if door[0] in TROUBLES:
        print(TROUBLES[door[0]].format(destination), file=sys.stderr)
        return 255
    if door[0] == "silent":
        time.sleep(600)
    if door[0] == "crowded":
        left = int(door[1]) - 1
        with open(f"{home}/.door", "w") as file:
            file.write(f"crowded {left}" if left else "open")
        print("kex_exchange_identification: Connection closed by remote host", file=sys.stderr)
        return 255
    if not os.path.isdir(home):
        print(TROUBLES["nameless"].format(destination), file=sys.stderr)
        return 255
    if socket:
        open(socket, "a").close()
    if door[0] == "noisy":
        print("Welcome!\x1b[2J\nddpgen-fact", flush=True)
    return login(home, command)


def login(home: str, command: list[str]) -> int:
    """Run the command by the login shell."""
    assert command == ["bash -s"], command
    env = {"HOME": home, "PATH": os.environ["PATH"], "FAKE": "1"}
    # TERM ends ssh, not what it started.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(255))
    # The network is gone: ssh says so, and nobody tells the host.
    signal.signal(signal.SIGUSR2, cut)
    # Before the first word: whoever hears that looks here.
    write = 'echo "$0 $$" >>.sessions; exec bash -c "$1"'
    words = ["bash", "-c", write, str(os.getpid()), command[0]]
    os.chdir(home)
    shell = os.posix_spawnp("bash", words, env, setsid=True)
    code = os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1])
    return code if code >= 0 else 255


def cut(*_: object) -> None:
    os.write(2, b"client_loop: send disconnect: Broken pipe\r\n")
    os._exit(255)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
