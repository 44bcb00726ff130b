"""What slurmd takes for slurmstepd: `stepd.py ...`. Adopts orphans, then becomes the real one.

proctrack/linuxproc knows a job's processes by their parents. An orphan whose parent is the host's PID 1
would be lost to it, and outlive its job, as it cannot on a cluster with cgroups.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys

PR_SET_CHILD_SUBREAPER = 36

ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
found = shutil.which("slurmstepd") or "slurmstepd"
os.execv(found, [found, *sys.argv[1:]])
