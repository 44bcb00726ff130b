"""Combinations that cannot run, each refused where the user can change it."""

from __future__ import annotations

import pytest

from ddpgen.tiers.registry import read
from tests.ddpgen.conftest import faults

BASE = """\
name: a
nodes: {nodes}
procs_per_node: {procs}
backend: {backend}
gpus_per_node: {gpus}
{top}
train:
  {what}
  global_batch_size: {batch}
  micro_batch_size: {micro}
  {train}
"""
PLAIN = {
    "nodes": 1,
    "procs": 2,
    "backend": "auto",
    "gpus": "null",
    "top": "restarts: 3",
    "what": "{workload: gpt, steps: 100}",
    "batch": 16,
    "micro": 4,
    "train": "seed: 0",
}


def spec(**changes: object) -> str:
    values = {**PLAIN, **changes}
    values["what"] = str(values["what"]).strip("{}").replace(", ", "\n  ")
    return BASE.format(**values)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"procs": 5}, "3:17: procs_per_node: 5 processes share 4 micro-batches a step, so 1"),
        ({"batch": 10**18}, "10:22: train.global_batch_size: 1000000000000000000 is out of range"),
        ({"micro": 5}, "10:22: train.global_batch_size: 16 is not a multiple of 5"),
        ({"backend": "nccl"}, "4:10: backend: nccl talks between GPUs, and the job asks for"),
        ({"backend": "nccl", "gpus": 1}, "3:17: procs_per_node: 2 processes on 1 GPUs; each"),
        ({"what": "{workload: gpt, steps: 100, epochs: 2}"}, "10:11: train.epochs: steps and"),
        (
            {"what": "{workload: gpt, script: a.py, steps: 1}", "top": "code: ."},
            "9:11: train.script: workload and script are both given",
        ),
        (
            {"what": "{steps: 1}"},
            "8:3: train: nothing to train: workload, script and command are all",
        ),
        ({"train": "warmup_steps: 100"}, "12:17: train.warmup_steps: 100 steps of warm-up leave"),
        ({"train": "precision: fp16"}, "12:14: train.precision: fp16 needs a GPU, and the job"),
        ({"train": "comm_hook: fp16"}, "12:14: train.comm_hook: comm_hook fp16 would replace"),
        (
            {"train": "reduction: allreduce\n  comm_hook: powersgd"},
            "13:14: train.comm_hook: comm_hook powersgd needs nccl",
        ),
        (
            {"train": "early_stop: {patience: 2}"},
            "12:15: train.early_stop: does not say what is to",
        ),
        (
            {"train": "best: accuracy\n  eval_every: 5 steps"},
            '12:9: train.best: does not say whether less "accuracy" is better, or more',
        ),
        ({"train": "profile: 101..110"}, "12:12: train.profile: begins after the last of 100"),
        ({"train": "best: loss"}, "12:9: train.best: has one evaluation to choose from"),
        ({"procs": 3, "train": "reduction: allreduce"}, "3:17: procs_per_node: 4 micro-batches"),
        ({"what": "{workload: m.py:build, steps: 100}"}, "8:13: train.workload: m.py is a file"),
        ({"top": "env: {RANK: 0}"}, "6:13: env.RANK: is set by bash, torchrun or the launch"),
        ({"top": "env: {DDPGEN_X: 0}"}, "6:17: env.DDPGEN_X: is set by bash, torchrun or the"),
        ({"top": "env: {PET_NNODES: 2}"}, "6:19: env.PET_NNODES: is set by bash, torchrun or"),
        (
            {"top": "env: {GLOO_SOCKET_IFNAME: '^lo,docker0'}"},
            (
                "6:27: env.GLOO_SOCKET_IFNAME: would go past the preflight, which checks the interface of nic "
                "alone; write nic: with one exact name, like eth0, or leave nic: out"
            ),
        ),
        (
            {"top": "env: {NCCL_SOCKET_IFNAME: eth0}"},
            "6:27: env.NCCL_SOCKET_IFNAME: would go past",
        ),
        ({"top": "nic: 192.168.7.1"}, '6:6: nic: "192.168.7.1" does not fit; write one exact'),
        (
            {"top": "env: {MKL_CBWR: AVX2}", "train": "determinism: portable"},
            "6:17: env.MKL_CBWR: is set by determinism: portable",
        ),
        ({"top": "checkpoint: {dir: ~ann/runs}"}, '6:19: checkpoint.dir: "~ann/runs" is the'),
        ({"top": "python: .venv/bin/python"}, '6:9: python.interpreter: ".venv/bin/python" is'),
    ],
)
def test_a_combination_that_cannot_run_is_refused(changes: dict[str, object], fault: str) -> None:
    (found,) = faults(spec(**changes))
    assert found.startswith(fault)
    assert "; " in found  # and what to do about it


def test_a_script_takes_no_settings_of_our_loop() -> None:
    text = "name: a\ncode: .\ntrain: {script: a.py, lr: 0.1, threads: 2, args: {x: 1}}\n"
    assert faults(text) == [
        (
            "3:27: train.lr: has no effect on a script, which has its own loop; "
            "move it to train.args as lr"
        )
    ]


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"procs": 3}, "procs_per_node: 4 micro-batches do not divide evenly among 3 processes"),
        ({"gpus": 4}, "gpus_per_node: 2 of 4 GPUs on each node stay idle"),
        ({"train": "momentum: 0.5"}, "train.momentum: momentum has no effect on adamw"),
    ],
)
def test_what_is_only_unwise_is_a_warning(changes: dict[str, object], warning: str) -> None:
    reading = read(spec(**changes).encode(), "job.yaml")["local"]
    (found,) = reading.warnings
    assert f"warning: {warning}" in found.line("job.yaml")


def test_a_fault_in_one_field_raises_no_second_complaint_about_it() -> None:
    assert len(faults(spec(micro="four", procs=9))) == 1


@pytest.mark.parametrize(
    ("train", "what"),
    [
        ("precision: fp16", "train.precision: fp16 needs a GPU, and b uses none"),
        (
            "{reduction: allreduce, comm_hook: powersgd}",
            "train.comm_hook: comm_hook powersgd needs nccl, and the job runs on gloo",
        ),
    ],
)
def test_the_gpus_of_each_host_decide_what_needs_one(train: str, what: str) -> None:
    def text(top: int, a: int, b: int) -> str:
        return spec(procs=1, gpus=top, train=train.strip("{}").replace(", ", "\n  ")) + (
            f"targets: {{hosts: {{hosts: [{{name: a, gpus: {a}}}, {{name: b, gpus: {b}}}]}}}}\n"
        )

    assert set(read(text(0, 1, 1).encode(), "job.yaml")) == {"hosts"}
    (fault,) = faults(text(1, 1, 0))
    assert what in fault


def test_a_name_that_a_built_in_workload_does_not_know() -> None:
    (fault,) = faults(spec(train="args: {dept: 4, width: 128}"))
    assert fault == ("12:16: train.args.dept: is unknown to workload gpt; did you mean depth?")


def test_a_job_of_more_processes_than_a_plan_can_list_is_refused() -> None:
    job = spec(nodes=100_000, procs=1024, what="{script: t.py}", batch="null", micro="null")
    fault = "2:8: nodes: 102400000 processes are more than ddpgen plans for; start at most 1048576"
    assert fault in faults(job)


@pytest.mark.parametrize(
    ("variable", "warned"),
    [
        ("HF_TOKEN: hf_abcdefgh12", True),
        ("X: hf_abcdefgh12", True),
        ("WANDB_API_KEY: 0123456789abcdef", True),
        ("HF_TOKEN_PATH: /run/secrets/hf", False),
        ("TOKEN_LIMIT: 100000", False),
        ("KEY: x", False),
        ("TOKENIZERS_PARALLELISM: 'false'", False),
        ("PAD_TOKEN: '<|endoftext|>'", False),
        ("SORT_KEY: timestamp", False),
        ("CACHE_KEY_PATH: data/hf/key.txt", False),
        ("TOKEN_STORE: s3://kept/tokens", False),
        ("AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", True),
        ("DB_PASSWORD: correct-horse-battery", True),
        ("MODEL: hf_internal_testing", False),
    ],
)
def test_a_secret_in_env_is_warned_of_without_its_value(variable: str, warned: bool) -> None:
    (reading,) = read(spec(top=f"env: {{{variable}}}").encode(), "job.yaml").values()
    told = [finding.line("job.yaml") for finding in reading.warnings]
    assert len(told) == warned
    assert all("looks like a secret" in line and "hf_a" not in line for line in told)
    assert all(line.startswith("job.yaml:6:") for line in told)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        (
            {"top": "checkpoint: {dir: $SCRATCH/ck}"},
            '6:19: warning: checkpoint.dir: "$SCRATCH/ck" is taken',
        ),
        (
            {"top": "checkpoint: {dir: '/x/${USER}'}"},
            "taken as it is written: ${USER} is not filled in",
        ),
        (
            {"top": "env: {PATH: '/opt/bin:$PATH'}"},
            "6:13: warning: env.PATH: is taken as it is written: $PATH",
        ),
        ({"top": "env: {A: $PATH}"}, ""),
        ({"top": "checkpoint: {dir: a$b/$1}"}, "$b is not filled in"),
        ({"top": "checkpoint: {dir: a$1}"}, ""),
    ],
)
def test_a_variable_that_nothing_fills_in_is_warned_of(
    changes: dict[str, object], warning: str
) -> None:
    (reading,) = read(spec(**changes).encode(), "job.yaml").values()
    told = [finding.line("job.yaml") for finding in reading.warnings]
    assert len(told) == bool(warning)
    assert all(warning in line for line in told)
