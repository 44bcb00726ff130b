"""SkyPilot on a rig: its API server and `sky` on a desk, Slurm as the cloud, an S3 server, buckets mounted.

    from tests.real.rig.sky import Sky

    with Sky(nodes=3) as sky:
        bucket = sky.bucket("runs"); bucket.make()
        bundle = sky.bring(Path("build/job"))                # the path of a copy on the desk
        sky.run("jobs", "launch", "--yes", "--detach-run", "sky.yaml", cwd=bundle)    # see PROGRAM
        sky.wait(job, "RUNNING")
        lost = sky.slurm_job(job)
        sky.preempt(job)                                     # or sky.nodes_of(job)[0].power_off()
        sky.recovered(job, lost); sky.wait(job, "SUCCEEDED")

As a fixture (tests/real/conftest.py): `def sky(new_sky): return new_sky(nodes=3)`.

**What there is.** Everything of slurm.py's cluster, and two more hosts: `desk`, where trainer has SkyPilot
(.venv-sky, made by `make sky`) and its API server with the jobs controller in it, and `store`, an
S3 server (s3.py), which SkyPilot knows as vastdata://BUCKET. No cloud, no internet: a job of Slurm is
SkyPilot's virtual machine. What a machine that is gone leaves behind on a cloud (nothing), the epilog of
Slurm sees to: no process, no mount, no /tmp. /checkpoints is there to be mounted on.

Both ways to mount are SkyPilot's own commands: MOUNT_CACHED by the rclone it wants (1.68.2), MOUNT by
rclone too, under the name goofys, which is a download (rclone is what SkyPilot takes on ARM64). What it
installs on each machine (uv by curl, a Python, itself) is there already: curl and uv are stand-ins that
say so. inside/skypilot/sitecustomize.py shortens SkyPilot's intervals, each with its reason.

    .launch(file, *options, cwd=, cluster=) -> CompletedProcess  `sky launch`, to the end of the job
    .status(job) -> "PENDING", "STARTING", "RUNNING", "RECOVERING", "SUCCEEDED", "CANCELLED", "FAILED", ...
    .recoveries(job) -> int        .reason(job) -> why it failed
    .wait(job, *states, within=)   .recovered(job, lost, within=)   until it is so
    .logs(job) -> what it printed, all starts    .controller_log(job) -> what SkyPilot thought
    .slurm_job(job) -> number in Slurm, "" between two    .nodes_of(job) -> [Machine], the head first
    .preempt(job)                  scancel: TERM, KillWait, KILL
    .bucket(name) -> s3.Bucket     .bring(directory, name=) -> path on the desk
    .run(*words)                   any `sky ...` on the desk, as trainer; .environment: what that takes

Owns SkyPilot's files on these hosts and how one waits for its jobs. Knows nothing of ddpgen.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.real.rig import access, s3, slurm
from tests.real.rig.errors import RigError
from tests.real.rig.machine import Machine
from tests.real.rig.rig import ROOT
from tests.real.rig.slurm import Slurm
from tests.real.rig.spec import Host
from tests.real.rig.tools import TEST_ID, Upkeep, wait

ENVIRONMENT = ROOT / ".venv-sky"
BIN = ENVIRONMENT / "bin"
DESK, STORE = "desk", "store"
REGION = "rig"
MOUNT = "/checkpoints"
PATCHES = "/etc/skypilot"
QUERY = """\
import os, sqlite3, sys
database = sqlite3.connect(os.path.expanduser("~/.sky/spot_jobs.db"), timeout=10)
rows = database.execute(f"select {sys.argv[1]} from spot where spot_job_id = ?", sys.argv[2:])
print((rows.fetchone() or ("",))[0] or "", end="")
"""
AGAIN_S = 1.0  # a look takes a process; SkyPilot itself looks every 5 s
START_S = 240.0  # beside other stories it imports for two minutes
PATIENCE_S = 180.0
OVER = {"SUCCEEDED", "CANCELLED", "FAILED", "FAILED_SETUP", "FAILED_PRECHECKS", "FAILED_CONTROLLER"}


class SkyError(RigError):
    """SkyPilot refused, or a job did not come to where it should; with what SkyPilot said."""


class Sky(Upkeep):
    """See the module's docstring."""

    def __init__(self, nodes: int = 3, **words: Any) -> None:
        # A port of its own, although it has its own network: `sky api stop` anywhere on this machine
        # ends every server of this port that it finds among the processes.
        self._port = 47000 + secrets.randbelow(10000)
        self.slurm = Slurm(
            nodes,
            hosts=[desk(), s3.host(STORE, BIN / "rclone")],
            files=node_files(),
            services=[
                ("install", "-d", "-m", "777", MOUNT),
                ("chmod", "666", "/dev/fuse"),
            ],
            adopts=False,
            **{**DEFAULTS, **words},
        )

    def start(self) -> Sky:
        """Bring it up; returns when the API server answers."""
        reason = unavailable()
        if reason:
            raise RigError(reason)
        self.slurm.start()
        try:
            self._must("api", "start", timeout=START_S)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self.slurm.close()

    @property
    def rig(self) -> Any:
        return self.slurm.rig

    @property
    def desk(self) -> Machine:
        return self.slurm.node(DESK)

    # The desk

    def run(
        self, *words: Any, cwd: str | None = None, timeout: float = 120
    ) -> CompletedProcess[str]:
        """`sky ...` as trainer at the desk."""
        return self.desk.run([PROGRAM, *words], env=self.environment, cwd=cwd, timeout=timeout)

    def bring(self, directory: Path, name: str | None = None) -> str:
        """Copy a directory to the desk; its path there."""
        there = f"{self.desk.home}/{name or directory.name}"
        access.copy(directory, self.desk.path(there))
        return there

    def bucket(self, name: str) -> s3.Bucket:
        return s3.Bucket(self.slurm.node(STORE), name)

    # Clusters

    def launch(
        self, file: str, *options: Any, cwd: str, cluster: str, timeout: float = PATIENCE_S
    ) -> CompletedProcess[str]:
        """Returns when the job has ended; SkyPilot's exit code is the job's."""
        words = ("launch", "--yes", "--cluster", cluster, *options, file)
        return self.run(*words, cwd=cwd, timeout=timeout)

    # Managed jobs

    def status(self, job: int) -> str:
        return self._column(job, "status")

    def recoveries(self, job: int) -> int:
        return int(self._column(job, "recovery_count") or 0)

    def reason(self, job: int) -> str:
        return self._column(job, "failure_reason")

    def wait(self, job: int, *states: str, within: float = PATIENCE_S) -> str:
        """Until it is in one of them; SkyError when it ends in another."""

        def is_so() -> bool:
            now = self.status(job)
            if now in OVER and now not in states:
                raise SkyError(f"job {job} ended: {self._about(job)}")
            return now in states

        self._until(job, is_so, f"is {' or '.join(states)}", within)
        return self.status(job)

    def recovered(self, job: int, lost: str, within: float = PATIENCE_S) -> None:
        """Until it runs on other machines than those that this job of Slurm was.

        SkyPilot's own count does not tell: what it calls an emergency is none of its recoveries.
        """
        gone = ("", lost)
        self._until(job, lambda: self.slurm_job(job) not in gone, "has new machines", within)
        self.wait(job, "RUNNING", within=within)

    def logs(self, job: int) -> str:
        return self.run("jobs", "logs", "--no-follow", str(job)).stdout

    def controller_log(self, job: int) -> str:
        path = self.desk.path(f"sky_logs/jobs_controller/{job}.log")
        text = path.read_text(errors="replace") if path.exists() else ""
        return "".join(line for line in text.splitlines(True) if "<sky-payload" not in line)

    # What it runs on

    def slurm_job(self, job: int) -> str:
        """The job of Slurm that is its machines at present."""
        listed = self.slurm.run(["squeue", "-h", "-o", "%i %j", "-t", "RUNNING"]).stdout
        for line in listed.splitlines():
            number, name = line.split(maxsplit=1)
            if re.search(rf"-{job}-\w+$", name):
                return number
        return ""

    def nodes_of(self, job: int) -> list[Machine]:
        listed = self.slurm.show(self.slurm_job(job))["NodeList"]
        names = self.slurm.run(["scontrol", "show", "hostnames", listed]).stdout.split()
        return [self.slurm.node(name) for name in names]

    def preempt(self, job: int) -> None:
        """Take its machines away: TERM to all, SIGKILL after KillWait."""
        self.slurm.run(["scancel", self.slurm_job(job)], check=True)

    # How

    @property
    def environment(self) -> dict[str, str]:
        """What SkyPilot needs of it at the desk."""
        return {
            "PATH": f"/usr/local/bin:{BIN}:/usr/bin:/bin",
            # SkyPilot makes a wheel of itself. pip would fetch setuptools for that, which is there already;
            # it reads this variable the wrong way round (pip's issue 5735).
            "PIP_NO_BUILD_ISOLATION": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(self._port),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "NO_COLOR": "1",
            # The server that it starts is the rig's, not the test's that asks first.
            TEST_ID: "",
        }

    def _must(self, *words: Any, cwd: str | None = None, timeout: float = 120) -> str:
        done = self.run(*words, cwd=cwd, timeout=timeout)
        said = plain(done.stdout + done.stderr)
        if done.returncode:
            raise SkyError(f"sky {' '.join(map(str, words))}: ended with {done.returncode}\n{said}")
        return said

    def _column(self, job: int, name: str) -> str:
        """From the controller's own table: `sky jobs queue` is two seconds of a processor each time."""
        argv = [sys.executable, "-S", "-E", "-s", "-c", QUERY, name, str(job)]
        return self.desk.run(argv, check=True).stdout

    def _until(self, job: int, is_so: Callable[[], bool], what: str, within: float) -> None:
        failed = f"after {within:.0f} s no: job {job} {what}"
        wait(is_so, within, lambda: SkyError(f"{failed}; {self._about(job)}"), AGAIN_S)

    def _about(self, job: int) -> str:
        return f"{self.status(job)} {self.reason(job)}\n{self.controller_log(job)[-4000:]}"


def unavailable() -> str:
    """Why there can be no SkyPilot here, with the remedy; empty when there can. See also slurm, tools."""
    lacking = [path for path in ("sky", "rclone") if not (BIN / path).exists()]
    if lacking:
        return "SkyPilot needs an environment of its own: make sky"
    if not shutil.which("fusermount3"):
        return "mounting buckets needs more of this machine: apt install fuse3"
    if not os.path.exists("/dev/fuse"):
        return "mounting buckets needs /dev/fuse, which this machine (a container?) has not"
    return slurm.unavailable()


def plain(text: str) -> str:
    """Without the colours, which SkyPilot writes to pipes too."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


# Texts

EPILOG_AT, FORGET_AT = "/etc/slurm/epilog", "/etc/slurm/forget"
DEFAULTS: dict[str, Any] = {
    "Epilog": EPILOG_AT,
    "EpilogSlurmctld": FORGET_AT,
    "SlurmdTimeout": 10,
    "KillWait": 5,
}
EPILOG = f"""\
#!/bin/bash
# A job is a machine to SkyPilot, and a machine that is gone leaves nothing running, mounted or on disk.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
pkill -KILL -u {access.USER}
umount -l {MOUNT} 2>/dev/null
find /tmp -xdev -mindepth 1 -delete # what is mounted there, as a checkout, is none of the job's
exit 0
"""
FORGET = f"""\
#!/bin/bash
# The same for the directory in which the machines of a job have their ~: it lies on the shared disk, and a
# batch script whose node has lost its power does not remove it.
[[ -z $SLURM_JOB_NAME ]] || rm -rf "{slurm.SHARED}/.sky_clusters/$SLURM_JOB_NAME"
"""
CURL = """\
#!/bin/bash
# Answers the one address from which SkyPilot installs uv on a node.
for word in "$@"; do
  if [[ $word == https://astral.sh/uv/install.sh ]]; then
    echo 'mkdir -p "$UV_INSTALL_DIR" && cp /usr/local/lib/uv "$UV_INSTALL_DIR/uv"'
    exit
  fi
done
exec /usr/bin/curl "$@"
"""
PROGRAM = "/usr/local/bin/sky"
ON_THE_RIG = f"""\
#!/bin/bash
# SkyPilot's program. What is launched is launched here, whatever place its file names.
case "$1 $2" in
"jobs launch") set -- jobs launch --infra slurm/{REGION} --no-use-spot "${{@:3}}" ;;
launch*) set -- launch --infra slurm/{REGION} --no-use-spot "${{@:2}}" ;;
esac
PYTHONPATH={PATCHES} exec {BIN}/sky "$@"
"""
UV = f"""\
#!/bin/bash
# What SkyPilot does with uv on a node: a Python for itself, and itself in it. Both are there already.
case "$1 $2" in
venv*)
  for word in "$@"; do [[ $word != /* ]] || place=$word; done
  mkdir -p "$place/bin"
  printf '#!/bin/bash\\nexec {BIN}/python "$@"\\n' >"$place/bin/python"
  chmod +x "$place/bin/python"
  ln -s python "$place/bin/python3"
  printf 'export VIRTUAL_ENV=%q PATH=%q:$PATH\\n' "$place" "$place/bin" >"$place/bin/activate"
  ;;
"pip list") echo "skypilot is in {ENVIRONMENT}" ;;
esac
"""
GOOFYS = """\
#!/bin/bash
# SkyPilot's options for goofys, as rclone's.
options=()
words=()
while (($#)); do
  case $1 in
  --endpoint) options+=(--s3-endpoint "$2") && shift ;;
  --region) options+=(--s3-region "$2") && shift ;;
  --stat-cache-ttl) options+=(--dir-cache-time "$2") && shift ;;
  # With a log file rclone's daemon keeps the standard error that it was started with, too, and Slurm
  # waits a minute for the end of that.
  --log-file | --type-cache-ttl) shift ;;
  -o) [[ $2 != ro ]] || options+=(--read-only); shift ;;
  *) words+=("$1") ;;
  esac
  shift
done
exec rclone mount ":s3:${words[0]}" "${words[1]}" "${options[@]}" \\
  --s3-provider Other --s3-env-auth --daemon --allow-other
"""


def node_files() -> dict[str, tuple[str, int]]:
    """What SkyPilot asks of a machine and finds on every image of a cloud."""
    sshd = access.sshd_config(22) + "MaxSessions 200\nMaxStartups 200\n"
    programs = {
        "/usr/local/bin/curl": CURL,
        "/usr/local/lib/uv": UV,
        "/usr/local/bin/goofys": GOOFYS,
        "/usr/local/bin/rclone": f'#!/bin/sh\nexec {BIN}/rclone "$@"\n',
        "/usr/local/bin/sudo": '#!/bin/sh\nexec "$@"\n',
        EPILOG_AT: EPILOG,
        FORGET_AT: FORGET,
    }
    return {path: (text, 0o755) for path, text in programs.items()} | {
        "/etc/fuse.conf": ("user_allow_other\n", 0o644),
        # SkyPilot opens many sessions on one connection, and many connections.
        "/etc/ssh/sshd_config": (sshd, 0o644),
    }


def desk() -> Host:
    home = access.HOME
    patches = Path(__file__).parent / "inside" / "skypilot" / "sitecustomize.py"
    texts = {
        f"{home}/.slurm/config": SSH_CONFIG,
        f"{home}/.sky/config.yaml": SKY_CONFIG,
        f"{home}/.sky/catalogs/v8/common/accelerators.csv": ACCELERATORS,
        f"{PATCHES}/sitecustomize.py": patches.read_text(),
    }
    files = {path: (text, 0o644) for path, text in texts.items()} | s3.credentials(STORE)
    files[PROGRAM] = (ON_THE_RIG, 0o755)
    return Host(DESK, files=files, services=[("chown", "-R", f"{access.USER}:", home)])


SSH_CONFIG = f"""\
Host {REGION}
  HostName {slurm.LOGIN}
  Port 22
  User {access.USER}
  IdentityFile {access.HOME}/.ssh/id_ed25519
  IdentitiesOnly yes
"""
SKY_CONFIG = f"""\
# Asking two dozen clouds for credentials that are not there takes half a minute.
allowed_clouds: [slurm, vastdata]
slurm:
  cluster_configs:
    {REGION}: {{workdir: {slurm.SHARED}}}
jobs:
  controller: {{consolidation_mode: true}}
  status_check: {{min_elapsed_seconds: 5, min_retries: 2}}
"""
# Otherwise it would be downloaded; without a checksum beside it, it is taken as it is.
ACCELERATORS = "AcceleratorName,Clouds\nA100,\"['AWS', 'GCP']\"\n"
