"""The real sbatch and srun and `validate` know the same options, and refuse the same values."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpgen.tiers.slurm.container import SRUN_OPTIONS
from ddpgen.tiers.slurm.sbatch_options import FLAGS, VALUES
from tests.ddpgen.conftest import GPT, findings

pytestmark = pytest.mark.real

TIMES = "5 60 1:30 1:30:00 1-0 1-2:3 1-2:3:4 infinite UNLIMITED x2 1h 90min 1.5 :5"
MOMENTS = (
    "now now+1 now+60 now+1hour now+2days now+5minutes now+1week today tomorrow midnight noon fika teatime 16:00 4:30pm 23:59:59 "
    "2037-01-02 2037-01-02T12:34 2037-01-02T12:34:56 2037-01-02-12:34 010237 01/02/37 01/02 01.02.37 "
    "now+5min tomorrow+1 today+1hour noon+1hour yesterday 16 4pm 16:0 24:00 2:60 2037-13-01 2037-1-2 now+ 0"
)
SIZES = "0 4 4G 4g 4GB 4T 4X 4P a 1.5 -1"
NUMBERS = "1 2 10 0 -1 a 1.5"
TRIED = {
    "begin": MOMENTS,
    "deadline": MOMENTS,
    "time-min": TIMES,
    "delay-boot": TIMES,
    "mem-per-cpu": SIZES,
    "tmp": SIZES,
    "distribution": "block cyclic * *:* block:cyclic:fcyclic plane=4 block,pack Block,NoPack plane diagonal block:x",
    "hint": "compute_bound memory_bound nomultithread compute_bound,nomultithread fast",
    "kill-on-invalid-dep": "yes no maybe",
    "nice": "0 5 -5 2147483645 -2147483645 3000000000",
    "switches": "1 1@10 2@1:00:00 0 a @3",
    "wait-all-nodes": "0 1 2 a",
    "cpu-freq": "low highm1 2000000 low-high 1000-2000:performance OnDemand quick low-quick low:performance",
    "exclusive": "user mcs USER nobody",
    "gpu-bind": "closest none single:2 per_task:1 map_gpu:0,1 mask_gpu:0x1 verbose,closest v,single:1 single map:0",
    "gres-flags": "enforce-binding disable-binding binding",
    "profile": "all none task,energy Energy network,lustre filesystem",
    "core-spec": "0 2 a -1",
    "propagate": "ALL NONE MEMLOCK STACK,CORE MEMLCK all stack",
    "mem-bind": "local verbose,local none no rank,sort map_mem:0,1 mask_mem:0x1 quiet,map_mem:0 prefer nosort q,v locals",
    "acctg-freq": "30 0 task=30 Task=30,energy=0 gpu=3 task=x task",
    "no-kill": "off OFF yes",
    **dict.fromkeys(
        [
            "cores-per-socket",
            "sockets-per-node",
            "threads-per-core",
            "ntasks-per-core",
            "ntasks-per-socket",
            "mincpus",
            "thread-spec",
        ],
        NUMBERS,
    ),
}
# sbatch takes any text, and reads 0.
ANY_TEXT = {"priority"}
# sbatch without GPUs in its configuration refuses the option.
NEEDS_GPUS = {"gres", "mem-per-gpu"}
# sbatch 22.05 lacks these.
NEWER = {"consolidate-segments", "oom-kill-step", "spread-segments", "stepmgr"}


@pytest.fixture
def is_taken(tmp_path: Path) -> Callable[[str], bool]:
    """True if sbatch takes the option. sbatch then looks for its controller, and none runs."""
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=x(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\nMessageTimeout=2\n"
        "NodeName=n CPUs=2\nPartitionName=p Nodes=n Default=YES\n"
    )
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\ntrue\n")

    def ask(option: str) -> bool:
        run = subprocess.run(
            ["sbatch", option, str(script)],
            env={**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return "Unable to contact slurm controller" in run.stderr

    return ask


def is_valid(option: str) -> bool:
    text = f"{GPT}targets: {{slurm: {{extra: ['{option}']}}}}\n"
    return not [each for each in findings(text) if each.fatal]


@pytest.mark.parametrize("name", sorted(VALUES.keys() - ANY_TEXT - NEEDS_GPUS - NEWER))
def test_the_values_that_sbatch_refuses_are_refused_before(
    name: str, is_taken: Callable[[str], bool]
) -> None:
    options = [f"--{name}={value}" for value in TRIED[name].split()]
    taken = [option for option in options if is_taken(option)]
    assert 0 < len(taken) < len(options)
    assert [option for option in options if is_valid(option)] == taken


def test_an_option_without_a_value_takes_none(is_taken: Callable[[str], bool]) -> None:
    for name in sorted(FLAGS - NEWER):
        assert (is_taken(f"--{name}"), is_taken(f"--{name}=x")) == (True, False), name


def test_the_options_of_srun_are_known(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=x(127.0.0.1)\n")
    taken = {
        program: set(
            re.findall(
                r"(?m)^ +(?:-\w, )?(--[a-z][a-z-]+)",
                subprocess.run(
                    [program, "--help"],
                    env={**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")},
                    capture_output=True, text=True, timeout=60,
                ).stdout,
            )
        )
        for program in ("srun", "sbatch")
    }  # fmt: skip
    assert len(taken["srun"]) > 100
    assert taken["srun"] <= SRUN_OPTIONS
    assert not (taken["sbatch"] - taken["srun"]) & SRUN_OPTIONS
