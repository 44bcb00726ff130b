"""The keeper: PID 1 around all hosts of a rig. `keep.py DIRECTORY LIFETIME_S`.

Owns the switch (its network namespace), the disks (a tmpfs in its mount namespace) and the life of
everything in the rig: when its standard input ends, it ends, and the kernel ends the rest. Starts what
it is told to, one JSON object a line: {"argv": [...], "out": FIFO, "log": FILE}. What it starts writes
its news into the FIFO, whose end-of-file is its death. Knows nothing of what it starts.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time


def main() -> None:
    directory, lifetime_s = sys.argv[1], float(sys.argv[2])
    disks = f"{directory}/disks"
    run("mount", "-t", "tmpfs", "-o", "mode=755", "rig", disks)
    if not os.path.ismount(disks):
        sys.exit("no place for disks: mount failed")
    # /proc is still the machine's here: the number by which the outside knows this process.
    print(os.readlink("/proc/self"), flush=True)
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    serve(time.monotonic() + lifetime_s)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The maker may have been killed: what it left outside goes too.
    run("umount", "-l", disks)
    shutil.rmtree(directory, ignore_errors=True)


def serve(deadline: float) -> None:
    """Start what is asked for until the asker is gone or the rig has lived long enough."""
    pending = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([0], [], [], left)[0]:
            return
        piece = os.read(0, 65536)
        if not piece:
            return
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            request = json.loads(line)
            start(request["argv"], request["out"], request["log"])


def start(argv: list[str], out: str, log: str) -> int:
    return os.posix_spawnp(
        argv[0],
        argv,
        os.environ,
        # As a machine's init would start it, and not with what the maker's shell made it ignore.
        setsigdef=[signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        ],
    )


def run(*argv: str) -> None:
    os.waitpid(os.posix_spawnp(argv[0], argv, os.environ), 0)


def reap() -> None:
    """Collect whatever has ended: orphans of the hosts end up here as well."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
