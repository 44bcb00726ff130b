"""Processes that do not outlive the one that started them.

Owns the kernel's parent-death signal. Knows nothing of torch: it runs before torch is imported, and
in front of torchrun itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: signal.Signals) -> None:
    """Have the kernel send `signum` to this process when its parent dies (prctl(2), Linux only).

    Elsewhere (macOS) nothing happens: there a killed launcher leaves its workers to the collective
    timeout.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the call; then nobody would ever send the signal.
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def exec_leashed(argv: list[str]) -> None:
    """Become `argv`, with SIGTERM (or SIGKILL) to come when the caller dies. Survives the exec (prctl(2)).

    Started by a launch script (DDPGEN_LAUNCHER_PID is set), it also leaves that one's process group:
    the terminal's Ctrl-C is the script's to handle, and would make torchrun kill its workers.
    """
    # Where SIGTERM is ignored (under Slurm, which sends it to everybody), it would leash nobody.
    ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    die_with_parent(signal.SIGKILL if ignored else signal.SIGTERM)
    launcher = os.environ.get("DDPGEN_LAUNCHER_PID")
    if launcher is not None and os.getppid() != int(launcher):
        sys.exit("ddpgen: the launch script has died already; not starting")
    if launcher is not None and os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"ddpgen: cannot start {argv[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
