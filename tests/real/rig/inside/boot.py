"""PID 1 of one host: `boot.py PLAN.json`. Makes this set of namespaces look like a machine.

Owns the host's file systems, the first boot (users, files of /etc), sshd and the start of services.
Prints three words, a line each: its process id as the outside knows it, `ready`, and by its end-of-file
that it is dead. Knows no network: the interfaces are plugged in from outside.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import shutil
import signal
import socket
import stat
import sys
import time
from typing import Any, NoReturn

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
SSHD_PID = "/run/sshd.pid"
SSHD_PATIENCE_S = CABLE_PATIENCE_S = 60.0
# What a machine's /dev has for everybody; an accelerator's devices come with it where there are any.
DEVICES = (
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "tty",
    "fuse",
    "nvidia*",
    "nvidia-caps/*",
    "kfd",
)
LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    # /proc is still the machine's: the number by which the outside knows this process.
    print(os.readlink("/proc/self"), flush=True)
    os.umask(0o022)
    socket.sethostname(plan["name"])
    first = not os.path.exists(plan["disk"])
    root = assemble(plan)
    enter(root)
    if first:
        furnish(plan)
    start_sshd(plan["sshd"])
    if plan["services"]:
        await_cable(plan["nic"])
        for argv in plan["services"]:
            start_service(argv)
    print("ready", flush=True)
    bury_orphans()


def assemble(plan: dict[str, Any]) -> str:
    """The host's root: an overlay of the machine's disk, and its own of everything that is personal."""
    disk = plan["disk"]
    root = f"{disk}/root"
    for name in ("root", "upper", "work", "fresh/root", "fresh/home"):
        os.makedirs(f"{disk}/{name}", exist_ok=True)
    mount("overlay", root, "overlay", 0, layers("/", f"{disk}/upper", f"{disk}/work"))
    for name in ("root", "home"):
        bind(f"{disk}/fresh/{name}", f"{root}/{name}")
    # The interpreter may lie below /root: others may pass through, as they may not list.
    os.chmod(f"{root}/root", 0o711)
    for place, mode in (("run", "755"), ("tmp", "1777")):
        mount("tmpfs", f"{root}/{place}", "tmpfs", MS_NOSUID | MS_NODEV, f"mode={mode}")
    os.makedirs(f"{root}/run/sshd")
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    # The machine's /sys shows the machine's interfaces, a new one those of this namespace.
    mount("sysfs", f"{root}/sys", "sysfs", MS_NOSUID | MS_NODEV)
    if os.path.isdir("/sys/fs/cgroup"):
        bind("/sys/fs/cgroup", f"{root}/sys/fs/cgroup", MS_REC)
    make_dev(f"{root}/dev")
    for number, path in enumerate(plan["needed"]):
        provide(path, root, f"{disk}/needed{number}")
    for source, target in plan["binds"]:
        os.makedirs(root + target, exist_ok=True)
        bind(source, root + target)
    return root


def make_dev(dev: str) -> None:
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755")
    # Bound, not made: a container may use devices and still not be allowed to make them.
    for pattern in DEVICES:
        for path in glob.glob(f"/dev/{pattern}"):
            if stat.S_ISCHR(os.stat(path).st_mode):
                target = dev + path.removeprefix("/dev")
                os.makedirs(os.path.dirname(target), exist_ok=True)
                open(target, "w").close()
                bind(path, target)
    os.mkdir(f"{dev}/pts")
    mount("devpts", f"{dev}/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=666,mode=620")
    os.mkdir(f"{dev}/shm")
    mount("tmpfs", f"{dev}/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links |= {name: f"fd/{n}" for n, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        os.symlink(target, f"{dev}/{name}")


def provide(path: str, root: str, disk: str) -> None:
    """Make a directory of the machine reachable where it is, for everyone, and keep it unharmed.

    What the overlay of the disk does not show (another file system, or below /root, /home, /tmp) gets
    an overlay of its own; either way the permissions that are changed are the host's.
    """
    there = root + path
    elsewhere = os.stat(path).st_dev != os.stat("/").st_dev
    # At a later boot the empty place for it is there already, and so is its layer.
    if elsewhere or os.path.exists(disk) or not os.path.exists(there):
        for name in ("upper", "work"):
            os.makedirs(f"{disk}/{name}", exist_ok=True)
        os.makedirs(there, exist_ok=True)
        mount("overlay", there, "overlay", 0, layers(path, f"{disk}/upper", f"{disk}/work"))
    while len(there) > len(root):
        mode = stat.S_IMODE(os.stat(there).st_mode)
        if not mode & stat.S_IXOTH:
            os.chmod(there, mode | stat.S_IXOTH | (stat.S_IROTH if there == root + path else 0))
        there = os.path.dirname(there)


def enter(root: str) -> None:
    os.chdir(root)
    # Old root and new on one spot: the old lies on top of the new and is taken off.
    run("pivot_root", ".", ".")
    if LIBC.umount2(b".", MNT_DETACH):
        fail("umount of the machine's root")
    os.chdir("/")


def furnish(plan: dict[str, Any]) -> None:
    """The first boot: users, and every file the plan has for this host."""
    user, uid, home = plan["user"], plan["uid"], plan["user_home"]
    # "*" and not "!": without PAM sshd refuses an account that looks locked.
    for path, line in (
        ("/etc/passwd", f"{user}:x:{uid}:{uid}::{home}:/bin/bash"),
        ("/etc/group", f"{user}:x:{uid}:"),
        ("/etc/shadow", f"{user}:*:19000:0:99999:7:::"),
        ("/etc/shadow", "root:*:19000:0:99999:7:::"),
    ):
        replace_account(path, line)
    os.chmod("/etc/shadow", 0o600)
    for place, owner in (("/root", 0), (home, uid)):
        if os.path.isdir("/etc/skel"):
            shutil.copytree("/etc/skel", place, dirs_exist_ok=True)
        os.makedirs(f"{place}/.ssh", mode=0o700, exist_ok=True)
        own(place, owner)
    os.chmod(home, 0o750)
    for file in plan["files"]:
        os.makedirs(os.path.dirname(file["path"]), exist_ok=True)
        if os.path.lexists(file["path"]):
            os.remove(file["path"])
        descriptor = os.open(file["path"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, file["mode"])
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(file["text"])
        os.chown(file["path"], file["owner"], file["owner"])


def replace_account(path: str, line: str) -> None:
    name, _, rest = line.partition(":")
    with open(path, encoding="utf-8", errors="surrogateescape") as stream:
        others = [other for other in stream if other.split(":")[0] != name]
    number = rest.split(":")[1]
    if path != "/etc/shadow":
        others = [other for other in others if other.split(":")[2] != number]
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines([line + "\n", *others] if name == "root" else [*others, line + "\n"])


def own(place: str, owner: int) -> None:
    os.chown(place, owner, owner)
    for directory, names, files in os.walk(place):
        if os.stat(directory).st_dev != os.stat(place).st_dev:
            names.clear()  # something of the machine's, provided below this home
            continue
        for name in (*names, *files):
            os.lchown(os.path.join(directory, name), owner, owner)


def start_sshd(sshd: str) -> None:
    pid = os.posix_spawn(sshd, [sshd, "-D", "-E", "/var/log/sshd.log"], os.environ, setsid=True, setsigdef=[signal.SIGPIPE],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1, 2)
        ],
    )  # fmt: skip
    deadline = time.monotonic() + SSHD_PATIENCE_S
    # It writes its number when it listens; there is nothing else of it to wait on.
    while not os.path.exists(SSHD_PID):
        if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > deadline:
            with open("/var/log/sshd.log", encoding="utf-8") as log:
                sys.exit("sshd does not start:\n" + log.read())
        time.sleep(0.002)


def await_cable(nic: str) -> None:
    """A service talks to others as soon as it starts: not before its interface leads anywhere."""
    deadline = time.monotonic() + CABLE_PATIENCE_S
    while True:
        with open("/proc/net/route", encoding="ascii") as routes:
            if any(line.split()[0] == nic for line in routes):
                return
        if time.monotonic() > deadline:
            sys.exit(f"no cable in {nic}")
        time.sleep(0.005)


def start_service(argv: list[str]) -> None:
    """It is in the background, and serves, when its command returns; what is wrong it says on stderr."""
    devices = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=devices)
    if status := os.waitpid(pid, 0)[1]:
        sys.exit(f"{' '.join(argv)}: ended with {status}")


def bury_orphans() -> NoReturn:
    """What PID 1 is for. Blocked, the signal stays pending: none is missed between look and wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


def layers(lower: str, upper: str, work: str) -> str:
    escaped = lower.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
    return f"lowerdir={escaped},upperdir={upper},workdir={work}"


def bind(source: str, target: str, flags: int = 0) -> None:
    mount(source, target, "none", MS_BIND | flags)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode())
    if LIBC.mount(*words, ctypes.c_ulong(flags), options.encode()):
        fail(f"mount of {kind} {source} on {target} ({options})")


def fail(what: str) -> NoReturn:
    sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def run(*argv: str) -> None:
    status = os.waitpid(os.posix_spawnp(argv[0], argv, os.environ), 0)[1]
    if status:
        sys.exit(f"{' '.join(argv)}: ended with {status}")


if __name__ == "__main__":
    main()
