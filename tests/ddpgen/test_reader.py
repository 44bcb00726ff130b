"""A spec's mistakes, all at once, each at its place with what to do about it."""

from __future__ import annotations

import json
import re
import time
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddpgen.errors import Position, SpecInvalidError, report
from ddpgen.spec import yamltree
from ddpgen.spec.fields import Leaf, NodeCount, Nodes
from ddpgen.spec.groups import FOREIGN_NAMES, Group, Groups
from ddpgen.spec.job import JobSpec
from ddpgen.spec.times import Period, StepsOrDuration, StepSpan
from ddpgen.tiers.registry import MODELS, read
from tests.ddpgen import drawn
from tests.ddpgen.conftest import GPT, faults, findings, named


def job(text: str, tier: str = "local") -> JobSpec:
    return read(text.encode(), "job.yaml")[tier].job


def with_train(line: str) -> str:
    """GPT with one more line under train; a field it has already is replaced."""
    name = line.partition(":")[0].strip()
    kept = [old for old in GPT.splitlines() if not old.startswith(f"  {name}:")]
    return "\n".join([*kept, f"  {line}"]) + "\n"


def test_the_smallest_spec_gets_every_default() -> None:
    read_job = job(GPT)
    assert (read_job.nodes, read_job.backend, read_job.restarts) == (1, "auto", 3)
    assert read_job.checkpoint.every == Period(None, 600.0)
    assert (read_job.rendezvous.timeout, read_job.rendezvous.collective_timeout) == (120, 300)
    assert (read_job.train.lr, read_job.train.reduction, read_job.train.log_every) == (
        1e-3,
        "tree",
        10,
    )
    assert read_job.micro_batches == 4


MISTAKES = """\
name: on
nods: 3
nodes: yes
procs_per_node: "2"
train:
  workload: gptt
  steps: 010
  epochs: 3
  optimizer: adamw2
  global_batch_size: 10
  micro_batch_size: 3
  args: {a: [1, yes, 2:00]}
rendezvous: {timeout: 2:00, port: 99999}
env: {A: on, B: 007, "x y": 3}
steps: 4
targets:
  local:
    train: {stps: 4}
  slrm: {}
"""


@pytest.mark.parametrize(
    ("tier", "overlay", "gpus", "procs"),
    [
        ("local", "", None, 1),
        ("local", "gpus_per_node: 0", 0, 1),
        ("local", "gpus_per_node: 2", 2, 2),
        ("local", "gpus_per_node: 2, procs_per_node: 1", 2, 1),
        ("slurm", "gpus_per_node: 4, time: 1h", 4, 4),
        ("sky", "bucket: s3://bbb, accelerators: [A100:4, H100:4]", 4, 4),
        ("sky", "bucket: s3://bbb, accelerators: A100:4, procs_per_node: 2", 4, 2),
    ],
)
def test_a_process_for_each_gpu_that_the_job_asks_for(
    tier: str, overlay: str, gpus: int | None, procs: int
) -> None:
    text = GPT.replace("procs_per_node: 2\n", "").replace(
        "micro_batch_size: 4", "micro_batch_size: 1"
    )
    made = job(f"{text}targets: {{{tier}: {{{overlay}}}}}\n", tier)
    assert (made.gpus_per_node, made.procs_per_node) == (gpus, procs)


@pytest.mark.parametrize(
    ("top", "hosts", "procs"),
    [
        ("gpus_per_node: 8", "[{name: a, gpus: 4}, {name: b}]", [4, 8]),
        ("gpus_per_node: 4", "[{name: a}, {name: b, gpus: 0}]", [4, 1]),
        ("", "[{name: a, gpus: 4}, {name: b, gpus: 2, procs: 1}, c]", [4, 1, 1]),
        ("procs_per_node: 2", "[{name: a, gpus: 4}, {name: b}]", [2, 2]),
    ],
)
def test_a_host_with_gpus_of_its_own_has_a_process_for_each(
    top: str, hosts: str, procs: list[int]
) -> None:
    text = GPT.replace("procs_per_node: 2\n", "").replace("batch_size: 4", "batch_size: 1")
    made = job(f"{text}backend: gloo\n{top}\ntargets: {{hosts: {{hosts: {hosts}}}}}\n", "hosts")
    assert [machine.procs for machine in made.machines] == procs


def test_a_command_is_started_once_on_each_node() -> None:
    made = job("name: a\ngpus_per_node: 2\ntrain: {command: [echo], resume: by-itself}\n")
    assert made.procs_per_node == 1
    hosts = "targets: {hosts: {hosts: [{name: a, gpus: 2}]}}\n"
    made = job(f"name: a\ntrain: {{command: [echo], resume: by-itself}}\n{hosts}", "hosts")
    assert [machine.procs for machine in made.machines] == [1]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    assert [fault.where for fault in faults(MISTAKES)] == [
        "1:7 name",
        "2:1 nods",
        "3:8 nodes",
        "4:17 procs_per_node",
        "6:13 train.workload",
        "7:10 train.steps",
        "9:14 train.optimizer",
        "10:22 train.global_batch_size",
        "12:17 train.args.a[1]",
        "12:22 train.args.a[2]",
        "13:23 rendezvous.timeout",
        "13:35 rendezvous.port",
        "14:10 env.A",
        "14:22 env",
        "15:1 steps",
        "18:13 targets.local.train.stps",
        "19:3 targets.slrm",
    ]


def test_a_misspelt_field_is_not_missing_as_well() -> None:
    misspelt = "nme: a\nsteps: 5\ntrain: {model: gpt, batch_size: 4, micro_batch_size: 2}\n"
    words = ("mean name?", "train.steps", "workload?", "global_batch_size?")
    told = faults(misspelt)
    assert [fault.where for fault in told] == [
        "1:1 nme",
        "2:1 steps",
        "3:9 train.model",
        "3:21 train.batch_size",
    ]
    assert all(word in fault.text for fault, word in zip(told, words, strict=True))


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("scrpit", "script?"),
        ("comand", "command?"),
        ("cmd", "command?"),
        ("entrypoint", "script?"),
        ("workloda", "workload?"),
        ("module", "write script: module:NAME"),
    ],
)
def test_a_misspelt_program_is_the_only_error(key: str, remedy: str) -> None:
    (fault,) = faults(f"name: a\ntrain: {{{key}: x}}\n")
    assert fault.where == f"2:9 train.{key}"
    assert remedy in fault.text


def test_a_module_of_slurm_is_none_of_python() -> None:
    (fault,) = faults(f"{GPT}targets: {{slurm: {{environment: {{module: cuda}}}}}}\n")
    assert "modules?" in fault.text


def test_an_empty_command_is_nothing_to_train() -> None:
    (fault,) = faults("name: a\ntrain: {command: []}\n")
    assert fault.where == "2:18 train.command"


def field_names(group: Group | None = None) -> set[str]:
    """The names of all fields, of every tier and at any depth."""
    groups = [group] if group else [Group(model) for model in MODELS.values()]
    names = {name for group in groups for name in group.field_kinds}
    for kind in (kind for group in groups for kind in group.field_kinds.values()):
        kind = kind.group if isinstance(kind, Groups) else kind
        names |= field_names(kind) if isinstance(kind, Group) else set()
    return names


@pytest.mark.parametrize(
    ("tier", "key", "remedy"),
    [
        ("slurm", "ntasks-per-node", "procs_per_node?"),
        ("slurm", "ntasks_per_node", "procs_per_node?"),
        ("slurm", "gpus-per-task", "gpus_per_node?"),
        ("slurm", "cpus-per-task", "cpus_per_proc?"),
        ("slurm", "time-limit", "time?"),
        ("slurm", "mail_type", "mail_on?"),
        ("slurm", "mail-user", "mail_to?"),
        ("slurm", "requeue", "requeues?"),
        ("slurm", "wrap", "train.command"),
        ("slurm", "nice", "write extra: [--nice=VALUE]"),
        ("slurm", "threads_per_core", "write extra: [--threads-per-core=VALUE]"),
        ("slurm", "open_mode", "docs/spec.md"),
        ("sky", "cloud", "infra?"),
        ("sky", "zone", "infra?"),
        ("sky", "image_id", "image?"),
        ("sky", "use_spot", "spot?"),
        ("sky", "threads_per_core", "docs/spec.md"),
        ("local", "cloud", "write infra, which belongs to targets.sky"),
    ],
)
def test_a_name_of_slurm_or_skypilot_leads_to_the_field(tier: str, key: str, remedy: str) -> None:
    (fault,) = faults(f"{GPT}targets: {{{tier}: {{{key}: 1}}}}\n")
    assert fault.where == f"8:{14 + len(tier)} targets.{tier}.{key}"
    assert remedy in fault.text


def test_the_names_of_other_tools_stand_for_fields_that_exist() -> None:
    assert set(FOREIGN_NAMES.values()) <= field_names()


NOT_YAML = [
    ("", "1:1", "empty"),
    ("# only a comment\n", "1:1", "empty"),
    ("- a\n- b\n", "1:1", "mapping"),
    ("just text\n", "1:1", "mapping"),
    ("name: a\n---\nname: b\n", "2:1", "second document"),
    ("name: a\n\tnodes: 1\n", "2:1", "tab stands in the indentation"),
    ("name: \t@a\n", "1:8", "tab stands in this line"),
    ("name: a\nnic: @x\n", "2:6", "'single quotes'"),
    ("name: a\nnic: *.pt\n", "2:7", "* and & have a meaning"),
    ('name: "C:\\Users"\n', "1:12", "a backslash has a meaning"),
    ("name: [,]\n", "1:8", "an entry is missing"),
    ("name: a: b\n", "1:8", "second colon"),
    ("a: {b: c, args: --x={newest}}\n", "1:4", "no quotes"),
    ("a: ['--x={newest}' --b]  # x{y}\n", "1:4", "never closed"),
    ("name: toy:\n", "1:10", "second colon"),
    ("name: a\nenv:\n  A: b:\n", "3:7", "second colon"),
    ("[?]]:", "1:1", "key: value"),
    ("name: 'a\n", "1:7", "quote"),
    ("name: [a\ncode: b\n", "1:7", "bracket"),
    ("name: 'a\nenv: {A: 'b'}\n", "1:7", "closes on line 2"),
    ('name: a\nenv: {A: "b}\ntrain: {workload: "gpt"}\n', "2:10", "close it on line 2"),
    ("name: a\nenv: {A: 'it's'}\n", "2:10", "''"),
    ("name:a\ncode: b\n", "1:1", "`key: value`"),
    ("name: a\n  code: b\n", "2:7", "indented below"),
    ("train:\n    steps: 1\n  seed: 2\n", "3:3", "indented differently"),
    ("name: a\nname: b\n", "2:1 name", "line 1"),
    ("name: &x a\n", "1:7 name", "&x"),
    ("name: a\nnic: *x\n", "2:6 nic", "*x"),
    ("name: a\n<<: {nodes: 1}\n", "2:1", "merge"),
    ("name: !!str a\n", "1:7 name", "tag:yaml.org,2002:str"),
    ("name: !!python/object:os.system a\n", "1:7 name", "os.system"),
    ("? [a]\n: b\n", "1:3", "key"),
    ('name: "a\\0b"\n', "1:7 name", "NUL"),
    (
        "name: " + "[" * 100_000,
        "1:30 name[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]",
        "nested",
    ),
    (b"name: a\nenv: {A: '\xff'}\n", "2:11", "0xff"),
    (b"name: a\x00\n", "1:8", "control"),
    (b"name: a\nnic: b\x07\n", "2:7", "control"),
    (b"#" * (1 << 21), "1:1", "1 MiB"),
]


def test_a_control_character_is_named_without_libyaml_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamltree, "_Loader", yaml.SafeLoader)
    assert named(faults(b"name: a\nnic: b\x07\n"), "2:7", "control")


@pytest.mark.parametrize(("text", "where", "word"), NOT_YAML)
def test_what_is_no_plain_yaml_mapping_is_refused_at_its_place(
    text: str | bytes, where: str, word: str
) -> None:
    assert named(faults(text), where, word), faults(text)


def test_billion_laughs_are_refused_without_being_told() -> None:
    lines = [f"    a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    text = with_train("args:") + "\n".join(["    a0: &a0 [ha, ha, ha]", *lines])
    with pytest.raises(SpecInvalidError) as caught:
        read(text.encode(), "job.yaml")
    written = {
        Position(number, found.start() + 1)
        for number, line in enumerate(text.splitlines(), 1)
        for found in re.finditer(r"[*&]a", line)
    }
    assert {finding.position for finding in caught.value.findings} == written
    assert len(caught.value.findings) == 2 * 9 * 11 + 12  # an alias is refused, and is no value


VALUES = [
    ("lr: 0", "8:7 train.lr", "range"),
    ("learning_rate: 1", "8:3 train.learning_rate", "lr?"),
    ("lr: .inf", "8:7 train.lr", "not a number"),
    ("lr: .nan", "8:7 train.lr", "not a number"),
    ("lr: 1e999", "8:7 train.lr", "finite"),
    ("lr: '0.1'", "8:7 train.lr", "quotes"),
    ("lr: '0,1'", "8:7 train.lr", "not a number"),
    ("steps: '1k'", "7:10 train.steps", "not a whole number"),
    ("lr:", "8:6 train.lr", "null"),
    ("lr: [1]", "8:7 train.lr", "list"),
    ("lr: {a: 1}", "8:7 train.lr", "mapping"),
    ("steps: 1.5", "7:10 train.steps", "whole"),
    ("steps: 0", "7:10 train.steps", "range"),
    ("steps: -3", "7:10 train.steps", "range"),
    (f"steps: {'9' * 30}", "7:10 train.steps", "9223372036854775807"),
    (f"steps: {'9' * 5000}", "7:10 train.steps", "long"),
    ("steps: 1:00", "7:10 train.steps", "base 60"),
    ("log_every: 10", "8:14 train.log_every", "unit"),
    ("log_every: 0", "8:14 train.log_every", '"10 steps"'),
    ("eval_every: 5min", "8:15 train.eval_every", "number of steps"),
    ("find_unused_parameters: 1", "8:27 train.find_unused_parameters", "true nor false"),
    ("precision: FP32", "8:14 train.precision", "fp32?"),
    ("comm_hook: null", "8:14 train.comm_hook", "null"),
    ("trackers: wandbb", "8:13 train.trackers", "wandb?"),
    ("profile: 20", "8:12 train.profile", "range of steps"),
    ("profile: 5..2", "8:12 train.profile", "range of steps"),
    ("profile: {steps: 0..2}", "8:20 train.profile.steps", "range of steps"),
    ("args: 3", "8:9 train.args", "mapping"),
    ("args: {depth: 010}", "8:17 train.args.depth", "octal"),
    ("args: {depth: 048}", "8:17 train.args.depth", "octal"),
    ("args: {depth: .inf}", "8:17 train.args.depth", "number"),
    ("args: {depth: 1e999}", "8:17 train.args.depth", "too large"),
    ("args: {depth: =}", "8:17 train.args.depth", "plain value"),
    ("args: {'': 1}", "8:10 train.args", "name"),
    ("workload: gpd", "7:13 train.workload", "gpd"),
    ("best: true\n  eval_every: 5 steps", "8:9 train.best", "name of a metric"),
    ("workload: a.py", "7:13 train.workload", "FILE.py:FUNCTION"),
    ("strategy: ddp", "8:3 train.strategy", "leave the key out"),
]


@pytest.mark.parametrize(("line", "where", "word"), VALUES)
def test_a_value_that_does_not_fit_is_refused(line: str, where: str, word: str) -> None:
    (fault,) = faults(with_train(line))
    assert fault.where == where
    assert word in fault.text


LINES = [
    ("rendezvous: {timeout: 120}", "8:23 rendezvous.timeout", "120min"),
    ("rendezvous: {timeout: 0}", "8:23 rendezvous.timeout", '"5min"'),
    ("checkpoint: {every: 0}", "8:21 checkpoint.every", '"5 steps"'),
    ("rendezvous: {timeout: 2:00:00}", "8:23 rendezvous.timeout", "base 60"),
    ("checkpoint: {every: 0 steps}", "8:21 checkpoint.every", "1 step or more"),
    ("rendezvous: {timeout: 5m}", "8:23 rendezvous.timeout", "length of time"),
    ("rendezvous: {timeout: 0s}", "8:23 rendezvous.timeout", "range"),
    ("rendezvous: {timeout: 999d}", "8:23 rendezvous.timeout", "366d"),
    ("rendezvous: {timeout: -5s}", "8:23 rendezvous.timeout", "length of time"),
    ("nodes: 2", "8:8 nodes", "one machine"),
    ("code: ''", "8:7 code", "empty"),
    ("targets: {slurm: {partitions: a}}", "8:19 targets.slurm.partitions", "partition?"),
    (
        "targets: {slurm: {limits: {partition: {}}}}",
        "8:28 targets.slurm.limits.partition",
        "partitions?",
    ),
    ("targets: {slurm: {mail_on: off}}", "8:28 targets.slurm.mail_on", "an event like END"),
    ("checkpoint: {dir: 's3:/b/x'}", "8:19 checkpoint.dir", "s3://b/x"),
    ("hosts: [a, b]", "8:1 hosts", "targets.hosts.hosts"),
    ("targets: {hosts: [a, b]}", "8:18 targets.hosts", "targets.hosts.hosts"),
    ("secrets: [HF-TOKEN]", "8:11 secrets[0]", "name of a variable"),
    ("secrets: [hf_abcdefgh1]", "8:11 secrets[0]", "may hold the secret"),
    ("secrets: [HF_TOKEN=hf_abcdefgh1]", "8:11 secrets[0]", "may hold the secret"),
    ("secrets: {HF-TOKEN: file:/x}", "8:11 secrets", "letters, digits and _"),
    ("secrets: {HF_TOKEN: ~/.hf_token}", "8:21 secrets.HF_TOKEN", "names no file"),
    ("secrets: {HF_TOKEN: file:.hf_token}", "8:21 secrets.HF_TOKEN", "names no file"),
    ("secrets: {HF_TOKEN: hf_abcdefgh1}", "8:21 secrets.HF_TOKEN", "names no file"),
    ("secrets: [{A: file:/a, B: file:/b}]", "8:11 secrets[0]", "dash"),
    ("checkpoint: {every: 200}", "8:21 checkpoint.every", "200 steps"),
    ('"a\\nb\\e[31m\u202e": 1', "8:1 a\nb\x1b[31m\u202e", "unknown"),
    ("rdzv_backend: c10d", "8:1 rdzv_backend", "did you mean rendezvous?"),
    ("env: {NCCL_IB_DISABLE: yes}", "8:24 env.NCCL_IB_DISABLE", "or 1 for a program"),
]


@pytest.mark.parametrize(("line", "where", "word"), LINES)
def test_a_wrong_line_at_the_top_is_refused(line: str, where: str, word: str) -> None:
    (fault,) = faults(f"{GPT}{line}\n")
    assert fault.where == where
    assert word in fault.text


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ("train: {lr: 1e-3}", "train.lr", 1e-3),
        ("train: {lr: 1E-3}", "train.lr", 1e-3),
        ("train: {lr: .5}", "train.lr", 0.5),
        ("train: {lr: 3}", "train.lr", 3.0),
        ("train: {lr: 1_000}", "train.lr", 1000.0),
        ("train: {lr: 1.5e+2}", "train.lr", 150.0),
        ("rendezvous: {timeout: 90s}", "rendezvous.timeout", 90),
        ("rendezvous: {timeout: 10min}", "rendezvous.timeout", 600),
        ("rendezvous: {timeout: 1h30min}", "rendezvous.timeout", 5400),
        ("rendezvous: {timeout: 1.5 h}", "rendezvous.timeout", 5400),
        ("rendezvous: {timeout: 1d}", "rendezvous.timeout", 86400),
        ("checkpoint: {every: 200 steps}", "checkpoint.every", Period(200, None)),
        ("checkpoint: {every: 1 step}", "checkpoint.every", Period(1, None)),
        ("checkpoint: {every: 10min}", "checkpoint.every", Period(None, 600)),
        ("python: ~/venv/bin/python", "python.interpreter", "~/venv/bin/python"),
        ("python: {activate: module load x}", "python.activate", ("module load x",)),
        ("code: src", "code", ("src",)),
        ("code: [a, b.py]", "code", ("a", "b.py")),
        ("code: null", "code", ()),
        ("train: {grad_clip: null}", "train.grad_clip", None),
        ("python: {activate: }", "python.activate", ()),
    ],
)
def test_values_are_read_as_people_write_them(written: str, field: str, value: Any) -> None:
    found = job(with_train("grad_clip: 1.0") + f"targets: {{local: {{{written}}}}}\n")
    assert attrgetter(field)(found) == value


def test_env_keeps_texts_and_numbers_as_they_are_written() -> None:
    text = "env: {A: 007, B: 1.10, C: 2:00, D: '', E: 'yes', F: 2026-01-01, G: 0x1F, H: x y}"
    written = ["007", "1.10", "2:00", "", "yes", "2026-01-01", "0x1F", "x y"]
    assert list(job(GPT + text).env.values()) == written
    assert [fault.where for fault in faults(GPT + "env: {A: , B: [1]}")] == [
        "8:10 env.A",
        "8:15 env.B",
    ]


def test_args_are_what_json_can_say() -> None:
    text = "args: {a: 1, b: 1e-3, c: [x, null, true], d: {z: 'no', y: 0x10}, e: '1', f: 2026-01-01}"
    own = with_train(text).replace("workload: gpt", "workload: mine.py:build") + "code: .\n"
    assert job(own).train.args == {
        "a": 1,
        "b": 1e-3,
        "c": ["x", None, True],
        "d": {"y": 16, "z": "no"},
        "e": "1",
        "f": "2026-01-01",
    }


@pytest.mark.parametrize("text", [".inf", ".nan", "NaN", "Infinity", "-Infinity"])
def test_a_workload_gets_no_number_that_json_does_not_have(text: str) -> None:
    own = with_train(f"args: {{a: {text}}}").replace("workload: gpt", "workload: mine.py:build")
    assert named(faults(own + "code: .\n"), "8:13 train.args.a", "quotes")


def test_an_overlay_is_merged_first_and_blamed_at_its_own_line() -> None:
    text = GPT + "targets:\n  local:\n    procs_per_node: 4\n    train: {epochs: 2, lr: 0.5}\n"
    merged = job(text)
    assert (merged.procs_per_node, merged.train.lr) == (4, 0.5)
    assert (merged.train.epochs, merged.train.steps) == (2, None)
    assert merged.train.workload == "gpt"
    (fault,) = faults(GPT + "targets:\n  local:\n    procs_per_node: 9\n")
    assert fault.where == "10:21 targets.local.procs_per_node"


# Specs with a fault on some of their tiers, and its position.
OF_TIERS = [
    (
        "targets: {local: , slurm: {nodes: 40}}",
        ("8:35 targets.slurm.nodes", "80 processes on 40 nodes"),
    ),
    (
        "backend: nccl\ntargets: {local: , slurm: {gpus_per_node: 2}}",
        ("8:10 backend", "on local: nccl talks"),
    ),
    (
        "backend: nccl\ntargets: {local: , sky: {spot: no}, slurm: {gpus_per_node: 2}}",
        ("8:10 backend", "on local and sky: nccl talks"),
    ),
    ("backend: nccl\ntargets: {local: , sky: {spot: no}}", ("8:10 backend", "nccl talks")),
    (
        "targets: {local: {train: {precision: fp16}}, sky: {spot: no}}",
        ("8:38 targets.local.train.precision", "fp16 needs a GPU"),
    ),
    (
        "preflight: {ignore: NIC008}\ntargets: {local: {name: b}, slurm: {name: b, preflight: 3}}",
        ("9:57 targets.slurm.preflight", "neither"),
    ),
    # Each tier has a value of its own, and the one below is wrong.
    ("restarts: -1\ntargets: {local: {restarts: 1}}", ("8:11 restarts", "range")),
    (
        "checkpoint: {every: 5, kep: 1}\ntargets: {local: {checkpoint: {every: 5s, keep: 2}}}",
        ("8:21 checkpoint.every", "unit"),
        ("8:24 checkpoint.kep", "keep?"),
    ),
]


@pytest.mark.parametrize(("text", "expected"), [(text, told) for text, *told in OF_TIERS])
def test_a_fault_of_some_tiers_names_them_or_stands_in_their_overlay(
    text: str, expected: list[tuple[str, str]]
) -> None:
    told = faults(f"{GPT}{text}\n")
    assert [fault.where for fault in told] == [where for where, _ in expected]
    assert all(
        fault.text.startswith(word) or word in fault.text
        for fault, (_, word) in zip(told, expected, strict=True)
    )


def test_a_script_of_each_tier_may_have_arguments_that_a_workload_may_not() -> None:
    overlays = "targets: {local: {train: {script: /a.py}}, slurm: {train: {script: /b.py}}}"
    assert not faults(f"name: a\ntrain: {{args: {{id: 007}}}}\n{overlays}\n")


TOY = "workload: toy, global_batch_size: 4, micro_batch_size: 4"


@pytest.mark.parametrize(
    ("base", "overlay", "expected"),
    [
        (f"{TOY}, steps: 9", "epochs: 2", {"workload": "toy", "epochs": 2}),
        (f"{TOY}, epochs: 2", "steps: null", {"workload": "toy", "epochs": 2}),
        ("command: [./x], resume: scratch", "script: t.py", {"script": "t.py"}),
        ("script: t.py", "command: [./x], resume: scratch", {"command": ("./x",)}),
        ("workload: gpt", "command: [./x], resume: scratch", {"command": ("./x",)}),
        ("command: [./x]", f"{TOY}, steps: 9", {"workload": "toy", "steps": 9}),
    ],
)
def test_a_field_of_an_overlay_takes_the_place_of_its_rivals(
    base: str, overlay: str, expected: dict[str, Any]
) -> None:
    text = f"name: a\ncode: .\ntrain: {{{base}}}\ntargets: {{local: {{train: {{{overlay}}}}}}}\n"
    train = vars(job(text).train)
    rivals = ("workload", "script", "command", "steps", "epochs")
    assert {name: train[name] for name in rivals if train[name]} == expected


INCOMPLETE = "nodes: 1\ntrain: {workload: gpt}\n"


def test_missing_fields_are_named_with_what_to_write() -> None:
    found = faults(INCOMPLETE)
    assert [fault.where for fault in found] == ["1:1 name", *["2:8 train"] * 3]
    remedies = ["63 letters", "global_batch_size: 32", "micro_batch_size: 32", "steps: 1000"]
    assert [word in fault.text for word, fault in zip(remedies, found, strict=True)] == [True] * 4


SHAPES = [
    (with_train("profile: []"), "8:12 train.profile", "list"),
    (with_train("early_stop: 3"), "8:15 train.early_stop", "mapping"),
    (with_train("profile: {steps: 5}"), "8:20 train.profile.steps", "range of steps"),
    (GPT + "targets: {sky: {bucket: []}}\n", "8:25 targets.sky.bucket", "list"),
    (GPT + "targets: {hosts: {hosts: [[]]}}\n", "8:27 targets.hosts.hosts[0]", "list"),
]


@pytest.mark.parametrize(("text", "where", "word"), SHAPES)
def test_a_group_of_a_wrong_shape_is_refused_and_no_rule_looks_into_it(
    text: str, where: str, word: str
) -> None:
    assert named(faults(text), where, word), faults(text)


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_at_all_ends_in_a_spec_or_in_findings(text: str | bytes) -> None:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    try:
        read(raw, "job.yaml")
    except SpecInvalidError as error:
        refused = str(error)
    else:
        return
    assert all(re.match(r"job\.yaml:\d+:\d+: ", line) for line in refused.split("\n"))


@pytest.mark.slow
@given(drawn.job(yaml.safe_load(GPT)) | drawn.one_field(yaml.safe_load(GPT)) | drawn.ANYTHING)
def test_any_value_in_any_field_ends_in_a_job_that_a_bundle_holds_or_in_findings(data: Any) -> None:
    text = yaml.safe_dump(data, allow_unicode=True)
    try:
        readings = read(text.encode("utf-8", "surrogatepass"), "job.yaml")
    except SpecInvalidError as error:
        findings = error.findings
    else:
        for tier, reading in readings.items():
            kind = Group(MODELS[tier])
            held = json.dumps(kind.dump(reading.job))
            assert json.dumps(kind.dump(kind.load(json.loads(held)))) == held
        return
    last = len(text.splitlines()) + 1  # YAML 1.1 has more line breaks than \n
    assert findings
    assert all(
        1 <= each.position.line <= last and each.problem and each.remedy for each in findings
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Nodes(9), "2..4"), (Nodes(9), "3"), (StepsOrDuration(), "20 steps"), (StepsOrDuration(), "90s"), (StepSpan(), "2..5")],
)  # fmt: skip
def test_a_value_comes_back_from_a_bundle_as_it_was(kind: Leaf, text: str) -> None:
    value = kind.parse_text(text)
    again = kind.load(json.loads(json.dumps(kind.dump(value))))
    assert (type(again), str(again)) == (type(value), text)


def test_a_range_of_nodes_may_stand_in_quotes() -> None:
    found = read(f"{GPT}nodes: '1..2'\ntargets: {{slurm: {{}}}}\n".encode(), "job.yaml")
    assert found["slurm"].job.nodes == NodeCount(2, 1)


def test_the_pure_python_parser_finds_the_same_faults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = GPT + "nodes: yes\nenv: {A: on}\nenv: {}\n"
    expected = faults(text)
    monkeypatch.setattr(yamltree, "_Loader", yaml.SafeLoader)
    assert faults(text) == expected


NINES = "9" * 900_000


@pytest.mark.parametrize(
    "line",
    [
        f"train: {{steps: {NINES}}}",
        f"train: {{lr: {NINES}}}",
        f"train: {{log_every: {NINES}}}",
        f"{NINES}: 1",
        f"train: {{optimizer: {NINES}}}",
        f"train: {{args: {{x: {NINES}}}}}",
        f"checkpoint: {{every: {NINES}}}",
        f"rendezvous: {{timeout: {NINES}}}",
    ],
    ids=lambda line: line[:24],
)
def test_a_value_of_a_megabyte_is_refused_at_once_and_not_repeated(line: str) -> None:
    began = time.monotonic()
    found = findings(f"name: a\n{line}\nnodes: x\n")
    assert time.monotonic() - began < 5
    assert found
    assert all(len(each.line("job.yaml")) < 1000 for each in found)


def test_of_very_many_faults_the_first_are_told() -> None:
    found = report("j", findings(GPT + "".join(f"unknown_{i}: 1\n" for i in range(80))))
    assert len(found) == 51
    assert found[0].startswith("j:8:1: unknown_0: ")
    assert found[-1] == "and 30 more"


BATCH = "global_batch_size: 8, micro_batch_size: 1"
WHOLE = f"workload: gpt, steps: 9, {BATCH}"


@pytest.mark.parametrize(
    ("top", "slurm"),
    [
        (f"backend: nccl, train: {{{WHOLE}}}", "gpus_per_node: 2"),
        (f"gpus_per_node: 1, procs_per_node: 2, train: {{{WHOLE}}}", "procs_per_node: 1"),
        (f"procs_per_node: 9, train: {{{WHOLE}}}", "train: {global_batch_size: 18}"),
        (f"procs_per_node: 9, train: {{{WHOLE}}}", "procs_per_node: 1"),
        (f"train: {{workload: gpt, {BATCH}}}", "train: {steps: 9}"),
        (f"train: {{steps: 9, {BATCH}}}", "train: {workload: gpt}"),
        ("train: {workload: gpt, steps: 9}", f"train: {{{BATCH}}}"),
        (f"train: {{{WHOLE}, precision: fp16}}", "gpus_per_node: 2"),
        (f"train: {{{WHOLE}, reduction: allreduce, comm_hook: powersgd}}", "gpus_per_node: 2"),
    ],
)
def test_local_is_judged_only_where_the_spec_means_it(top: str, slurm: str) -> None:
    readings = read(f"{{name: a, {top}, targets: {{slurm: {{{slurm}}}}}}}".encode(), "job.yaml")
    assert set(readings) == {"slurm"}
    assert faults(f"{{name: a, {top}, targets: {{local: , slurm: {{{slurm}}}}}}}")
    assert faults(f"{{name: a, {top}}}")


def test_a_wrong_value_is_wrong_whatever_a_tier_writes_over_it() -> None:
    (fault,) = faults(with_train("lr: high") + "targets: {slurm: {train: {lr: 0.1}}}\n")
    assert fault.where == "8:7 train.lr"
    assert '"high"' in fault.text


def test_a_misspelt_targets_is_known() -> None:
    (fault,) = faults(GPT + "target: {slurm: {nodes: 2}}\n")
    assert fault.where == "8:1 target"
    assert "targets?" in fault.text
    (fault,) = faults(GPT + "targets: {slurm: {targts: 2}}\n")
    assert "targets?" not in fault.text
