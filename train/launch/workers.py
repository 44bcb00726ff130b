"""The workers of this host: one launcher process (torchrun or spawn) in its own process group.

Owns the launcher's environment (the pinned variables, with their reasons), its start and its signals. Makes sure that
the launcher does not outlive this process. Knows nothing of the reason for which it is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from train.base.processes import adopt_orphans, children, die_with_parent

# A process that the workers leave behind may be about to end by itself. After so many seconds it gets TERM, then KILL.
_LEFTOVERS = ((2.5, signal.SIGKILL), (1.0, signal.SIGTERM))
_LEFTOVERS_S = 4.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class Pin:
    """A variable that has a fixed value in every worker, and the reason for it."""

    name: str
    value: str
    reason: str


def pins(nic: str, threads: int, over_network: bool) -> Iterator[Pin]:
    """Yield the pinned variables. `threads`: of each process. `over_network`: the job uses a network."""
    yield Pin("GLOO_SOCKET_IFNAME", nic, "gloo may otherwise pick docker0 or a VPN and hang")
    yield Pin("NCCL_SOCKET_IFNAME", f"={nic}", "the same for NCCL; = takes the name exactly")
    yield Pin(
        "OMP_NUM_THREADS", str(threads), "threads per process: another number gives other bits"
    )
    yield Pin(
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        "1",
        "restarted workers would read the dead ones' addresses from a shared TCPStore",
    )
    yield Pin("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "cuBLAS repeats its bits only with it")
    if over_network:
        yield Pin("TORCH_CPP_LOG_LEVEL", "ERROR", "torch warns at every address that has no name")
    yield Pin("PYTHONUNBUFFERED", "1", "the last lines of a crashed process are the ones needed")


def for_workers(
    inherited: Mapping[str, str], pinned: Collection[Pin], launch: Mapping[str, str]
) -> dict[str, str]:
    """Return the workers' environment: the supervisor's own, the pins, and the variables of the launch.

    The variables PET_… are dropped, because torchrun takes its options' defaults from them. A Kubernetes operator may
    leave PET_NNODES=2, which makes torchrun wait for a second node that never comes.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith("PET_")}
    return {**kept, **{pin.name: pin.value for pin in pinned}, **launch}


class Workers:
    """The launcher process, from its start on."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        inherited_fds: Sequence[int] = (),
        ignored: Sequence[signal.Signals] = (),
        stderr: int | None = None,
    ) -> None:
        """Start the launcher. `inherited_fds`: descriptors that it inherits. `ignored`: signals that it ignores. `stderr`:
        a descriptor for its error output; by default this process's own. Raises OSError."""
        # The kernel signals the parent's death. If the launcher ignores TERM, that signal has to be KILL.
        last = signal.SIGKILL if signal.SIGTERM in ignored else signal.SIGTERM

        def prepare() -> None:
            for signum in ignored:
                signal.signal(signum, signal.SIG_IGN)
            die_with_parent(last)
            os.setpgid(0, 0)  # the supervisor alone handles the terminal's Ctrl-C

        adopt_orphans()
        self._process = subprocess.Popen(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=tuple(inherited_fds),
            preexec_fn=prepare,  # noqa: PLW1509 - only the main thread forks, and no other has begun
        )
        self.pid = self._process.pid
        self._ignores_term = signal.SIGTERM in ignored

    def end(self) -> None:
        """Ask the launcher to end its processes; kill it if it ignores TERM."""
        if self._ignores_term:
            self.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the launcher and its group at once. Its processes have asked the kernel to die with it."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, signal.SIGKILL)

    def has_no_process(self) -> bool:
        """Return True if no process of the launcher runs. Return False without /proc, because nothing is known then."""
        return os.path.isdir("/proc/self") and not children(self.pid)

    def ended(self, code: int) -> None:
        """Note the exit code. From now on another process may have the pid."""
        self._process.returncode = code

    def end_leftovers(self) -> int:
        """End the processes that the workers have started and left behind; return their number.

        The kernel has made them children of this process. Other children of this process are in its session, and not in
        the launcher's group.
        """
        began, asked = time.monotonic(), dict[int, signal.Signals]()
        while left := [pid for pid in children() if self._is_left(pid)]:
            spent = time.monotonic() - began
            signum = next((signum for after, signum in _LEFTOVERS if spent >= after), None)
            if spent > _LEFTOVERS_S:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    if not os.waitpid(pid, os.WNOHANG)[0] and signum and asked.get(pid) != signum:
                        asked[pid] = signum
                        os.kill(pid, signum)
            time.sleep(_LOOK_S)  # no event reports that a process has become an orphan
        return len(asked)

    def _is_left(self, pid: int) -> bool:
        with contextlib.suppress(ProcessLookupError):
            return os.getsid(pid) != os.getsid(0) or os.getpgid(pid) == self.pid
        return False
