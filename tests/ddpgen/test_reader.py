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

from ddpgen.errors import Position, SpecInvalidError
from ddpgen.spec import yamltree
from ddpgen.spec.fields import Leaf, Nodes
from ddpgen.spec.groups import ALSO_CALLED, Group
from ddpgen.spec.job import JobSpec, Train
from ddpgen.spec.times import Every, Period, StepSpan
from ddpgen.tiers.registry import MODELS, read
from tests.ddpgen import drawn
from tests.ddpgen.conftest import GPT, faults


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


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
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
    assert faults(text) == [
        '1:7: name: YAML reads on as true, not as text; write "on" in quotes',
        "2:1: nods: unknown key; did you mean nodes?",
        "3:8: nodes: YAML reads yes as true; write a whole number from 1 to 100000, or a range like 2..4",
        (
            '4:17: procs_per_node: "2" is a text, because of its quotes; '
            "write a whole number from 1 to 1024"
        ),
        (
            "6:13: train.workload: there is no built-in workload gptt; "
            "write one of gpt, mnist, toy, or FILE.py:FUNCTION for your own"
        ),
        "7:10: train.steps: YAML reads the leading zero of 010 as octal; write 10 without the zero",
        '9:14: train.optimizer: "adamw2" is not known; did you mean adamw?',
        (
            "10:22: train.global_batch_size: 10 is not a multiple of 3 (micro_batch_size); "
            "write global_batch_size: 9 or a micro_batch_size that divides it"
        ),
        (
            '12:17: train.args.a[1]: YAML reads yes as a truth value; write "yes" in quotes, '
            "or true/false"
        ),
        (
            "12:22: train.args.a[2]: YAML reads 2:00 as the number 120 (base 60); "
            'write "2:00" in quotes, or a plain number'
        ),
        (
            "13:23: rendezvous.timeout: YAML reads 2:00 as the number 120 (base 60); "
            'write the unit, like "2min" or "2h"'
        ),
        "13:35: rendezvous.port: 99999 is out of range; write a whole number from 1 to 65535",
        '14:10: env.A: YAML reads on as true, not as text; write "on" in quotes',
        '14:22: env: "x y" does not fit as a name; use letters, digits and _',
        "15:1: steps: unknown key; it belongs to train (train.steps)",
        "18:13: targets.local.train.stps: unknown key; did you mean steps?",
        "19:3: targets.slrm: unknown tier; did you mean slurm?",
    ]


def test_a_misspelt_field_is_not_missing_as_well() -> None:
    misspelt = "nme: a\nsteps: 5\ntrain: {model: gpt, batch_size: 4, micro_batch_size: 2}\n"
    assert faults(misspelt) == [
        "1:1: nme: unknown key; did you mean name?",
        "2:1: steps: unknown key; it belongs to train (train.steps)",
        "3:9: train.model: unknown key; did you mean workload?",
        "3:21: train.batch_size: unknown key; did you mean global_batch_size?",
    ]


def test_the_names_of_other_tools_stand_for_fields_that_exist() -> None:
    known = {name for model in MODELS.values() for name in Group(model).inner}
    assert set(ALSO_CALLED.values()) <= known | set(Group(Train).inner)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "1:1: the spec is empty; start with `name: my-job`; `ddpgen init` writes a spec"),
        ("# only a comment\n", "1:1: the spec is empty; "),
        ("- a\n- b\n", "1:1: the spec is not a mapping of keys to values; "),
        ("just text\n", "1:1: the spec is not a mapping of keys to values; "),
        ("name: a\n---\nname: b\n", "2:1: a second document begins here; keep one job in one file"),
        ("name: a\n\tnodes: 1\n", "2:1: a tab stands in the indentation; indent with spaces"),
        ("name: a: b\n", "1:8: a second `: ` stands in one line; put the value in quotes"),
        ("name: 'a\n", "1:7: a quote opens here and is never closed"),
        ("name: [a\ncode: b\n", "1:7: a bracket opens here and is never closed"),
        ("name:a\ncode: b\n", "1:1: this line is no `key: value`"),
        (
            "name: a\n  code: b\n",
            "2:7: this line is indented below a line that has a value already",
        ),
        ("train:\n    steps: 1\n  seed: 2\n", "3:3: this line is indented differently"),
        ("name: a\nname: b\n", "2:1: name: is given twice; the first is on line 1; keep one"),
        ("name: &x a\n", "1:7: name: the anchor &x is not supported; write the value out"),
        ("name: a\nnic: *x\n", "2:6: nic: the alias *x makes the value stand somewhere else"),
        ("name: a\n<<: {nodes: 1}\n", "2:1: merge keys are not supported: a value has to stand"),
        ("name: !!str a\n", "1:7: name: the tag tag:yaml.org,2002:str is not supported"),
        ("name: !!python/object:os.system a\n", "1:7: name: the tag tag:yaml.org,2002:python/"),
        ("? [a]\n: b\n", "1:3: a list or mapping stands where a key should be"),
        ('name: "a\\0b"\n', "1:7: name: holds a NUL or half of a surrogate pair"),
        ("name: " + "[" * 100_000, "1:30: name[0]"),
        (b"name: a\nenv: {A: '\xff'}\n", "2:11: byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"name: a\x00\n", "1:8: a control character that YAML does not allow stands here"),
        (b"name: a\nnic: b\x07\n", "2:"),
        (b"#" * (1 << 21), "1:1: the file has more than 1 MiB, far more than a job spec"),
    ],
)
def test_what_is_no_plain_yaml_mapping_is_refused_at_its_place(
    text: str | bytes, fault: str
) -> None:
    assert any(line.startswith(fault) for line in faults(text)), faults(text)


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
    assert {finding.place for finding in caught.value.findings} == written
    assert len(caught.value.findings) == 2 * 9 * 11 + 12  # an alias is refused, and is no value


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("lr: 0", "lr: 0 is out of range; write a number above 0"),
        ("learning_rate: 1", "learning_rate: unknown key; did you mean lr?"),
        ("lr: .inf", 'lr: ".inf" is not a number; write a number above 0'),
        ("lr: .nan", 'lr: ".nan" is not a number; write a number above 0'),
        ("lr: 1e999", "lr: is not a finite number; write a number above 0"),
        ("lr: '0.1'", 'lr: "0.1" is a text, because of its quotes; write a number above 0'),
        ("lr:", "lr: is empty (null); write a number above 0"),
        ("lr: [1]", "lr: is a list; write a number above 0"),
        ("lr: {a: 1}", "lr: is a mapping; write a number above 0"),
        ("steps: 1.5", 'steps: "1.5" is not a whole number; write a whole number from 1'),
        ("steps: 0", "steps: 0 is out of range; write a whole number from 1"),
        ("steps: -3", "steps: -3 is out of range; write a whole number from 1"),
        (f"steps: {'9' * 30}", f"steps: {'9' * 30} is out of range; write a whole number from 1"),
        (
            f"steps: {'9' * 5000}",
            'steps: "999999999999999999999999999999999999999999999999999999999..." is far too long; write a whole number from 1',
        ),
        ("steps: 1:00", "steps: YAML reads 1:00 as the number 60 (base 60); write a whole number"),
        ("log_every: 10", 'log_every: 10 has no unit; write "10 steps"'),
        ("eval_every: 5min", 'eval_every: "5min" is no number of steps; write a number of steps'),
        ("find_unused_parameters: 1", 'find_unused_parameters: "1" is neither true nor false'),
        ("precision: FP32", 'precision: "FP32" is not known; did you mean fp32?'),
        ("comm_hook: null", "comm_hook: is empty (null); write one of none, fp16, bf16, powersgd"),
        ("trackers: wandbb", 'trackers: "wandbb" is not known; did you mean wandb?'),
        ("profile: 20", 'profile: "20" is no range of steps; write a range of steps, like 20..25'),
        ("profile: 5..2", 'profile: "5..2" is no range of steps; write a range of steps, like'),
        ("profile: {steps: 0..2}", 'profile.steps: "0..2" is no range of steps; write a range'),
        ("args: 3", 'args: is "3"; write a mapping of names to values'),
        ("args: {depth: 010}", "args.depth: YAML reads the leading zero of 010 as octal"),
        ("args: {depth: .inf}", 'args.depth: ".inf" is not a number a program can be passed'),
        ("args: {'': 1}", 'args: "" does not fit as a name'),
        ("workload: gpd", "workload: there is no built-in workload gpd; write one of gpt"),
        ("workload: a.py", 'workload: "a.py" does not fit; write gpt, mnist, toy, or your own'),
    ],
)
def test_values_that_do_not_fit_are_explained(line: str, fault: str) -> None:
    (found,) = faults(with_train(line))
    assert found.partition(" train.")[2].startswith(fault)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("rendezvous: {timeout: 120}", '120 has no unit; write "120s", "120min" or "120h"'),
        ("rendezvous: {timeout: 2:00:00}", "YAML reads 2:00:00 as the number 7200 (base 60); "),
        ("rendezvous: {timeout: 5m}", '"5m" is no length of time; write a time with its unit'),
        ("rendezvous: {timeout: 0s}", '"0s" is out of range; write a time from 1ms to 366d'),
        ("rendezvous: {timeout: 999d}", '"999d" is out of range; write a time from 1ms to 366d'),
        ("rendezvous: {timeout: -5s}", '"-5s" is no length of time; write a time with its unit'),
        ("checkpoint: {every: 200}", '200 has no unit; write "200 steps", "200s" or "200min"'),
        ('"a\\nb\\e[31m\u202e": 1', r"8:1: a\nb\x1b[31m\u202e: unknown key; "),
    ],
)
def test_wrong_times_and_keys_are_explained(line: str, fault: str) -> None:
    (found,) = faults(f"{GPT}{line}\n")
    assert fault in found


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
    assert faults(GPT + "env: {A: , B: [1]}") == [
        "8:10: env.A: is empty (null); write a text",
        "8:15: env.B: is a list; write a text",
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


def test_an_overlay_is_merged_first_and_blamed_at_its_own_line() -> None:
    text = GPT + "targets:\n  local:\n    procs_per_node: 4\n    train: {epochs: 2, lr: 0.5}\n"
    merged = job(text)
    assert (merged.procs_per_node, merged.train.lr) == (4, 0.5)
    assert (merged.train.epochs, merged.train.steps) == (2, None)
    assert merged.train.workload == "gpt"
    (fault,) = faults(GPT + "targets:\n  local:\n    procs_per_node: 9\n")
    assert fault.startswith("10:21: targets.local.procs_per_node: 9 processes share 4 micro-batch")


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


def test_missing_fields_are_named_with_what_to_write() -> None:
    assert faults("nodes: 1\ntrain: {workload: gpt}\n") == [
        (
            "1:1: name: is missing; write name: with up to 63 letters, digits, `.`, `_` or `-`, "
            "starting with a letter or digit"
        ),
        "2:8: train: global_batch_size is missing; write global_batch_size: 32",
        "2:8: train: micro_batch_size is missing; write micro_batch_size: 32",
        "2:8: train: says neither steps nor epochs, so it would never end; write steps: 1000",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (with_train("profile: []"), "train.profile: is a list; write a mapping, or "),
        (with_train("early_stop: 3"), 'train.early_stop: is "3"; write a mapping'),
        (with_train("profile: {steps: 5}"), 'train.profile.steps: "5" is no range of steps; '),
        (GPT + "targets: {sky: {bucket: []}}\n", "targets.sky.bucket: is a list; write a "),
        (GPT + "targets: {hosts: {hosts: [[]]}}\n", "targets.hosts.hosts[0]: is a list; "),
    ],
)
def test_a_group_of_a_wrong_shape_is_refused_and_no_rule_looks_into_it(
    text: str, fault: str
) -> None:
    assert any(fault in line for line in faults(text))


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


@given(drawn.job(yaml.safe_load(GPT)) | drawn.ANYTHING)
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
    last = text.count("\n") + 1
    assert findings
    assert all(1 <= each.place.line <= last and each.what and each.remedy for each in findings)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Nodes(9), "2..4"), (Nodes(9), "3"), (Every(), "20 steps"), (Every(), "90s"), (StepSpan(), "2..5")],
)  # fmt: skip
def test_a_value_comes_back_from_a_bundle_as_it_was(kind: Leaf, text: str) -> None:
    value = kind.parse_text(text)
    again = kind.load(json.loads(json.dumps(kind.dump(value))))
    assert (type(again), str(again)) == (type(value), text)


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
    found = faults(f"name: a\n{line}\nnodes: x\n")
    assert time.monotonic() - began < 5
    assert all(len(fault) < 1000 for fault in found)


def test_of_very_many_faults_the_first_are_told() -> None:
    found = faults(GPT + "".join(f"unknown_{i}: 1\n" for i in range(80)))
    assert len(found) == 51
    assert found[0].startswith("8:1: unknown_0: unknown key")
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
        (
            f"train: {{{WHOLE}, reduction: allreduce, comm_hook: powersgd}}",
            "gpus_per_node: 2",
        ),
    ],
)
def test_local_is_judged_only_where_the_spec_means_it(top: str, slurm: str) -> None:
    readings = read(f"{{name: a, {top}, targets: {{slurm: {{{slurm}}}}}}}".encode(), "job.yaml")
    assert set(readings) == {"slurm"}
    assert faults(f"{{name: a, {top}, targets: {{local: , slurm: {{{slurm}}}}}}}")
    assert faults(f"{{name: a, {top}}}")


def test_a_wrong_value_is_wrong_whatever_a_tier_writes_over_it() -> None:
    (fault,) = faults(with_train("lr: high") + "targets: {slurm: {train: {lr: 0.1}}}\n")
    assert fault.startswith('8:7: train.lr: "high" is not a number')


def test_a_misspelt_targets_is_known() -> None:
    (fault,) = faults(GPT + "target: {slurm: {nodes: 2}}\n")
    assert fault == "8:1: target: unknown key; did you mean targets?"
    (fault,) = faults(GPT + "targets: {slurm: {targts: 2}}\n")
    assert "targets?" not in fault
