"""A Slurm cluster on a rig: real daemons, a login node, and compute nodes with GPUs that are not there.

    from tests.real.rig.slurm import Slurm

    with Slurm(nodes=3, KillWait=5) as cluster:
        job = cluster.sbatch("--nodes=2", "job.sh", cwd=cluster.shared)     # as trainer, on the login node
        cluster.until(job, "RUNNING")
        cluster.nodes[1].power_off()
        assert cluster.ended(job) == ("COMPLETED", "0:0")

As a fixture (tests/real/conftest.py): `def cluster(new_slurm): return new_slurm(nodes=2)`.

**What there is.** `ctl` is login node and controller (slurmctld; with `accounting=True` slurmdbd and
MariaDB too, for sacct); `node1`, `node2`, ... run slurmd, each with another name for its NIC, 32 CPUs,
32000 MB and 4 GPUs of type `toy` (`/dev/gpu0`.. are /dev/null: --gpus-per-node works and sets
CUDA_VISIBLE_DEVICES, nothing is behind it). `/shared` is one directory on all of them. Everything else is
the rig's: users root and trainer, sshd everywhere, the interpreter of the tests, faults, no ssh needed.

    Slurm(nodes=3, accounting=False, **slurm.conf's own words)
      KillWait=5  SlurmdTimeout=10  MinJobAge=3000  AuthInfo="cred_expire=6" (how long a requeued job waits)
    Slurm(hosts=[Host("desk")], files={"/usr/local/bin/x": (text, 0o755)}, services=[...], adopts=True)
      more hosts in its network; files on login node and nodes; services on the nodes

Partitions: `work` (the default, neither preempts nor is preempted); `high` preempts `low`
(PreemptMode=REQUEUE), `lowc` (CANCEL) and `lowg` (CANCEL with GraceTime=20).

**The handle.** `.login`, `.nodes`: Machines; `.rig`; `.shared`: the directory there, `.rig.shared`: the
same from here.

    .sbatch(*argv, cwd=) -> job id; SlurmError with what sbatch said
    .run(argv, cwd=, ...)                   any command on the login node, as trainer
    .show(job) -> {"JobState": ..., ...}    scontrol's words; {} when the controller knows it no more
    .until(job, "RUNNING", "PENDING", timeout=60) -> .show's; any of the states will do
    .when(job, lambda shown: ..., timeout=60)     the same, for anything else that scontrol shows
    .ended(job, timeout=120) -> (state, exit code as Slurm writes it)
    .log(job) -> text of what the job printed; .wait_log(job, "words", timeout=60)
    .kill_slurmd(node), .start_slurmd(node)  SIGKILL to the daemon alone: its jobs go on
    .node(name), .is_ready(timeout)          all nodes idle, allocated or mixed

Slurm finds a job's processes by their parents here (proctrack/linuxproc: no cgroup is needed), and
slurmstepd adopts orphans (inside/stepd.py): none outlives its job, unless slurmstepd is killed. With
`adopts=False` it does not, and what a step leaves running goes on until something ends it.

Owns the cluster's configuration, its daemons and how one waits for a job. Knows nothing of ddpgen.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from subprocess import CompletedProcess
from typing import Any

from tests.real.rig import processes
from tests.real.rig.errors import RigError
from tests.real.rig.machine import Machine
from tests.real.rig.rig import Rig
from tests.real.rig.spec import Host
from tests.real.rig.tools import SEARCH, TEST_ID, Upkeep, program, wait

SHARED = "/shared"
LOGIN = "ctl"
NICS = ("enp1s0", "eth7", "ens5f0np0", "eno1")
CPUS, GPUS = 32, 4
AGAIN_S = 0.5  # a look takes four processes, and the controller's time
ANSWER_S = 30.0
READY_S = 60.0
# Debian's names for what brings them.
PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
# Where one word of a line of `scontrol show job` ends and the next begins.
WORD = re.compile(r" (?=[A-Z][\w/:]*=)")
# To the end of the line these are the user's own words, which may look like any field.
TEXTS = ("JobName=", "Command=", "WorkDir=", "Comment=", "StdErr=", "StdIn=", "StdOut=")
OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT",
}  # fmt: skip


class SlurmError(RigError):
    """A command of Slurm refused; the text is its own."""


class Slurm(Upkeep):
    """A cluster. See the module's docstring."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        accounting: bool = False,
        hosts: Sequence[Host] = (),
        files: Mapping[str, tuple[str, int]] | None = None,
        services: Sequence[Sequence[str]] = (),
        adopts: bool = True,
        **words: Any,
    ) -> None:
        names = [f"node{number}" for number in range(1, nodes + 1)]
        text = slurm_conf(names, words, accounting=accounting)
        common = {
            "/etc/munge/munge.key": (secrets.token_hex(64), 0o600),
            "/etc/slurm/slurm.conf": (text, 0o644),
            **(files or {}),
        }
        login = {**common, "/etc/slurm/slurmdbd.conf": (SLURMDBD_CONF, 0o600)}
        node = {**common, "/etc/slurm/gres.conf": (GRES_CONF, 0o644)}
        node[STEPD] = (f'#!/bin/sh\nexec {shlex.join(program("stepd"))} "$@"\n', 0o755)
        self._slurmd = SLURMD if adopts else ("slurmd",)
        started = (*MUNGE, *FAKE_GPUS, *services, (*self._slurmd, "-b"))
        cluster = [
            Host(LOGIN, shared=SHARED, files=login, services=controller(accounting=accounting)),
            *(
                Host(
                    name,
                    nic=NICS[number % len(NICS)],
                    shared=SHARED,
                    files=node,
                    services=started,
                )
                for number, name in enumerate(names)
            ),
        ]
        self.rig = Rig([*cluster, *hosts])
        self.shared = SHARED
        self._names = names
        self._logs: dict[str, str] = {}

    def start(self) -> Slurm:
        """Bring it up; returns when all nodes can take jobs."""
        reason = unavailable()
        if reason:
            raise RigError(reason)
        self.rig.start()
        try:
            self.is_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self.rig.close()

    @property
    def login(self) -> Machine:
        return self.rig[LOGIN]

    @property
    def nodes(self) -> list[Machine]:
        return [self.rig[name] for name in self._names]

    def node(self, name: str) -> Machine:
        return self.rig[name]

    def is_ready(self, timeout: float = READY_S) -> None:
        """Wait until every node is there for jobs, or busy with some."""

        def states() -> list[str]:
            # A star after the state: it does not answer (yet).
            return self.run(["sinfo", "-h", "-N", "-p", "work", "-o", "%t"]).stdout.split()

        def failure() -> SlurmError:
            return SlurmError(f"nodes are not ready: {states()}\n{self._daemons_logs()}")

        ready = {"idle", "alloc", "mix"}
        count = len(self._names)
        wait(lambda: [s in ready for s in states()] == [True] * count, timeout, failure, AGAIN_S)

    # Jobs

    def run(self, argv: list[Any], *, cwd: str = SHARED, **options: Any) -> CompletedProcess[str]:
        """A command on the login node, as trainer."""
        return self.login.run(argv, cwd=cwd, **options)

    def sbatch(self, *argv: Any, cwd: str = SHARED) -> str:
        done = self.run(["sbatch", "--parsable", *argv], cwd=cwd)
        if done.returncode:
            raise SlurmError(done.stderr)
        return done.stdout.split(";")[0].strip()

    def show(self, job: str) -> dict[str, str]:

        def asked() -> CompletedProcess[str] | None:
            # A busy controller may leave a question without an answer.
            done = self.run(["scontrol", "show", "job", job])
            return done if not done.returncode or "Invalid job id" in done.stderr else None

        failure = SlurmError(f"of job {job} Slurm says nothing")
        done = wait(asked, ANSWER_S, lambda: failure, AGAIN_S)
        return fields(done.stdout.partition("\n\n")[0])  # of an array the first

    def until(self, job: str, *states: str, timeout: float = 60) -> dict[str, str]:
        return self.when(job, lambda shown: shown.get("JobState") in states, timeout=timeout)

    def when(
        self, job: str, is_so: Callable[[dict[str, str]], bool], timeout: float = 60
    ) -> dict[str, str]:
        shown: dict[str, str] = {}

        def asked() -> bool:
            shown.clear()
            shown.update(self.show(job))
            return is_so(shown)

        still = f"job {job} is still"
        wait(asked, timeout, lambda: SlurmError(f"{still} {shown}\n{self.log(job)}"), AGAIN_S)
        return shown

    def ended(self, job: str, timeout: float = 200) -> tuple[str, str]:
        shown = self.until(job, *OVER, timeout=timeout)
        return shown["JobState"], shown["ExitCode"]

    def log(self, job: str) -> str:
        """What it printed so far; empty while it has not begun to."""
        place = self._logs.get(job) or self.show(job).get("StdOut", "")
        if not place:
            return ""
        self._logs[job] = place
        path = self.rig.shared / os.path.relpath(place, SHARED)
        if place.startswith(f"{SHARED}/"):
            return path.read_text(errors="replace") if path.exists() else ""
        inside = self.login.path(place)
        return inside.read_text(errors="replace") if inside.exists() else ""

    def wait_log(self, job: str, words: str, timeout: float = 60) -> str:
        """Until it has printed this."""
        lacks = f"job {job} has not printed {words!r}"
        failure = lambda: SlurmError(f"{lacks}: {self.show(job)}\n{self.log(job)}")  # noqa: E731
        wait(lambda: words in self.log(job), timeout, failure, AGAIN_S)
        return self.log(job)

    # Daemons

    def kill_slurmd(self, node: Machine) -> None:
        """SIGKILL to the daemon; slurmstepd and what it runs are left to themselves."""
        found = processes.running(node.pid, "slurmd")
        processes.send(found, signal.SIGKILL)
        deadline = time.monotonic() + READY_S
        if not all(processes.ends(pid, deadline) for pid in found):
            raise SlurmError(f"slurmd of {node.name} does not die")

    def start_slurmd(self, node: Machine) -> None:
        # Not marked as the test's that starts it: it belongs to the cluster.
        node.run(["env", f"--unset={TEST_ID}", *self._slurmd], user="root", check=True)

    def _daemons_logs(self) -> str:
        said = ""
        for machine in self.rig:
            for file in sorted(machine.path("/var/log/slurm").glob("*.log")):
                said += f"--- {machine.name} {file.name}\n{file.read_text()[-2000:]}\n"
        return said


def fields(record: str) -> dict[str, str]:
    """The fields of a record of `scontrol show job`; a value may hold spaces."""
    words: list[str] = []
    for line in map(str.strip, record.splitlines()):
        own, name, text = line.partition("JobName=")
        if name:
            words += [*own.split(), name + text]
        else:
            words += [line] if line.startswith(TEXTS) else WORD.split(line)
    pairs = (word.partition("=") for word in words)
    return {name: value for name, _, value in pairs if name}


def unavailable() -> str:
    """Why there can be no cluster here, with the remedy; empty when there can. See also tools."""
    lacking = sorted({PACKAGES[name] for name in PACKAGES if not shutil.which(name, path=SEARCH)})
    return f"a Slurm cluster needs more: apt install {' '.join(lacking)}" if lacking else ""


# Texts and command lines

STEPD = "/usr/local/sbin/adopting-slurmstepd"
# At a boot with -b, "the node was rebooted": by the kernel's clock, which all hosts share, it was not.
SLURMD = ("slurmd", "-d", STEPD)
# As root in the host: who else is there to keep a secret from?
MUNGE = (
    ("mkdir", "-p", "/run/munge", "/var/log/slurm", "/var/lib/slurm/state", "/var/lib/slurm/spool"),
    ("munged", "--force", "--log-file=/var/log/munged.log", "--seed-file=/var/lib/munged.seed"),
)
# slurmd takes nothing but devices for GPUs. Bound, not made: see boot.py.
FAKE_GPUS = tuple(
    words
    for number in range(GPUS)
    for words in (
        ("touch", f"/dev/gpu{number}"),
        ("mount", "--bind", "/dev/null", f"/dev/gpu{number}"),
    )
)
DEFAULTS: dict[str, Any] = {
    # Slurm's own is 120 s: so long a requeued job would wait until it may start again.
    "AuthInfo": "cred_expire=6",
    "KillWait": 5,
    "SlurmdTimeout": 15,
    "MinJobAge": 3000,
    "ReturnToService": 2,
    # Two seconds, and not a minute: a test waits for them.
    "SchedulerParameters": "sched_interval=2,bf_interval=2,batch_sched_delay=0",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "JobRequeue": 1,
    "LaunchParameters": "",
}
FIXED = f"""\
ClusterName=rig
SlurmctldHost={LOGIN}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/lib/slurm/state
SlurmdSpoolDir=/var/lib/slurm/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
GresTypes=gpu
# Believe what is written here, not what the machine has.
SlurmdParameters=config_overrides
"""
GRES_CONF = f"Name=gpu Type=toy File=/dev/gpu[0-{GPUS - 1}]\n"
SLURMDBD_CONF = f"""\
AuthType=auth/munge
DbdHost={LOGIN}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""
# slurmctld gives up on a database that does not answer at its first start.
WAIT_FOR_ACCOUNTING = "until sacctmgr --noheader list cluster >/dev/null 2>&1; do sleep 0.05; done"


def controller(*, accounting: bool) -> list[tuple[str, ...]]:
    """The login node's services, in order."""
    started = list(MUNGE)
    if accounting:
        started += [
            (*program("database"), "/var/lib/slurm/database"),
            ("slurmdbd",),
            ("timeout", "50", "sh", "-c", WAIT_FOR_ACCOUNTING),
        ]
    return [*started, ("slurmctld",)]


def slurm_conf(nodes: list[str], words: Mapping[str, Any], *, accounting: bool) -> str:
    """The one file that is the same everywhere."""
    chosen = {**DEFAULTS, **words}
    text = FIXED + "".join(f"{name}={value}\n" for name, value in chosen.items() if value != "")
    if accounting:
        text += (
            f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost={LOGIN}\n"
        )
    for name in nodes:
        text += f"NodeName={name} CPUs={CPUS} RealMemory=32000 Gres=gpu:toy:{GPUS} State=UNKNOWN\n"
    low = "Nodes=ALL MaxTime=2:00:00 PriorityTier=1 GraceTime="
    return text + (
        "PartitionName=work Nodes=ALL Default=YES MaxTime=2:00:00 PriorityTier=5 PreemptMode=OFF\n"
        "PartitionName=high Nodes=ALL MaxTime=2:00:00 PriorityTier=10 PreemptMode=OFF\n"
        f"PartitionName=low {low}0 PreemptMode=REQUEUE\n"
        f"PartitionName=lowc {low}0 PreemptMode=CANCEL\n"
        f"PartitionName=lowg {low}20 PreemptMode=CANCEL\n"
    )
