"""The whole text of every error and warning of a spec, in tests/golden/errors.txt.

The test of each rule compares the place and the decisive word. The wording is compared here alone, so that a
better sentence changes one file.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from ddpgen.driver.wording import printable
from ddpgen.errors import Finding, report
from ddpgen.lint import (
    arguments,
    commands,
    decorated,
    devices,
    lightning,
    loops,
    outside,
    own_script,
    own_workload,
    packages,
    processes,
    program,
    saves,
    shared_places,
    source,
    subcommands,
    trainer_settings,
    workloads,
)
from ddpgen.site import layers
from ddpgen.spec import (
    bashlines,
    fields,
    groups,
    overrides,
    places,
    reader,
    rules,
    ssh,
    sweep,
    times,
    unwise,
    yamltree,
)
from ddpgen.spec.fields import Refused
from ddpgen.spec.merge import LAYERS
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.hosts import render as hosts
from ddpgen.tiers.local import tier as local
from ddpgen.tiers.registry import TIERS
from ddpgen.tiers.sky import machines, requirement, requirement_files
from ddpgen.tiers.sky import render as sky
from ddpgen.tiers.slurm import container, notation
from ddpgen.tiers.slurm import render as slurm
from tests.ddpgen import (
    test_command_lines,
    test_hosts,
    test_huggingface,
    test_loops,
    test_outside,
    test_own_script,
    test_packages,
    test_places,
    test_profiles,
    test_reader,
    test_requirement_files,
    test_rules,
    test_sky,
    test_slurm,
    test_sweep,
    test_workload_arguments,
)
from tests.ddpgen import test_read_script as scripts
from tests.ddpgen.conftest import GPT, ROOT, findings
from tests.ddpgen.test_reader import field_names

MODULES = (
    arguments,
    bashlines,
    loops,
    own_workload,
    outside,
    commands,
    container,
    decorated,
    devices,
    fields,
    groups,
    hosts,
    layers,
    lightning,
    local,
    machines,
    notation,
    overrides,
    own_script,
    packages,
    places,
    processes,
    program,
    reader,
    requirement,
    requirement_files,
    rules,
    saves,
    shared_places,
    sky,
    slurm,
    source,
    ssh,
    subcommands,
    sweep,
    times,
    trainer_settings,
    unwise,
    workloads,
    yamltree,
)


# A spec for each kind of error and warning, under the part of it that is wrong.
SPECS: list[tuple[str, str | bytes]] = [
    ("all mistakes at once", test_reader.MISTAKES),
    ("incomplete", test_reader.INCOMPLETE),
    *((repr(text), text) for text, *_ in test_reader.NOT_YAML),
    *((text, text) for text, *_ in test_reader.SHAPES),
    *((line, test_reader.with_train(line)) for line, *_ in test_reader.VALUES),
    *((line, f"{GPT}{line}\n") for line, *_ in test_reader.LINES),
    *((str(each), test_rules.spec(**each)) for each, *_ in test_rules.CONFLICTS),
    *((str(each), test_rules.spec(**each)) for each, *_ in test_rules.UNWISE),
    *((str(each), test_rules.spec(**each)) for each, where, _ in test_rules.UNFILLED if where),
    *((text, text) for text, *_ in test_workload_arguments.TOLD),
    ("a variable of 128 KiB", test_rules.spec(top=f"env: {{A: {test_rules.BIG}}}")),
    ("more processes than a plan can list", test_rules.TOO_MANY),
    *((train, test_own_script.with_train(train)) for train, *_ in test_own_script.REFUSED),
    *(
        (f"hosts: {text}", test_hosts.hosts(text))
        for text, *_ in (*test_hosts.WARNED, *test_hosts.REFUSED)
    ),
    *((f"ssh: {ssh}", test_hosts.with_ssh(ssh)) for ssh, _ in test_hosts.NO_ADDRESS),
    *((text, text) for text, *_ in test_places.REFUSED),
    ("shares of a script", test_hosts.SHARES),
    *((f"slurm: {tier}", test_slurm.on_slurm(tier)) for tier, *_ in test_slurm.REFUSED),
    *(
        (f"slurm: {tier}", test_slurm.on_slurm(tier))
        for tier, where, _ in test_slurm.WARNED
        if where
    ),
    *((spec, spec) for spec, *_ in test_outside.NOT_THERE),
    *(
        (f"requirements: {lines}", test_requirement_files.spec(lines))
        for lines, problems in test_requirement_files.TOLD
        if problems
    ),
    ("name: logs", GPT.replace("name: gpt", "name: logs")),
    *((f"sky: {tier}", test_sky.on_sky(tier, top)) for tier, top, *_ in test_sky.REFUSED),
    *((f"sky: {tier}", test_sky.on_sky(tier)) for tier, *_ in test_sky.WARNED),
    *(
        (f"command: {command}", scripts.with_command(command))
        for command, expected in scripts.COMMANDS
        if expected
    ),
]
# The same for what the text of a script, or of its arguments, gives away.
HYDRA = test_command_lines.HYDRA.replace('"conf"', '"confs"')
SCRIPTS = [
    *((text, spec, text) for spec, text, *_ in scripts.NOT_THERE if "\0" not in text),
    *((text, spec, text) for spec, text, _ in scripts.NO_PYTHON[:1]),
    *((text, scripts.with_args("{}"), text) for text, *_ in scripts.SURPRISES),
    (scripts.MISSPELT, scripts.with_args(scripts.MISSPELT), scripts.PARSER),
    ("no arguments", scripts.with_args("{}"), scripts.PARSER),
    *((args, scripts.with_args(args), scripts.CHOICES) for args, *_ in scripts.UNREADABLE),
    *(
        (args, scripts.with_args(f"{{}}\n  resume: {{exists: {args}, args: --go}}"), scripts.SAVES)
        for args, told_of in scripts.PATTERNS
        if told_of
    ),
    *(
        (
            f"{pattern}, {text}",
            scripts.with_args(f"{args}\n  resume: {{exists: {pattern}, args: --go}}"),
            scripts.SAVES_TO.format(text),
        )
        for args, pattern, text, remedy in scripts.PATTERN_PLACES
        if remedy
    ),
    *(
        (args, scripts.with_args(args), scripts.WITH_POSITIONALS)
        for args, *_ in scripts.UNREADABLE_WORDS
    ),
    *(
        (args, scripts.with_args(args), scripts.NANOGPT)
        for args, words in scripts.OF_CONFIGURATOR
        if words
    ),
    *(
        (f"{value} for {kind}", scripts.with_width(value), scripts.with_annotation(kind))
        for value, kind, remedy in scripts.ANNOTATED
        if remedy
    ),
    *(
        (f"{train}, saves {saves}", scripts.in_array(train), scripts.array_script(saves))
        for train, saves, field in scripts.PLACES
        if field
    ),
    *(
        (f"{top}, {text}", scripts.on_nodes(top), text)
        for top, text, field, _ in scripts.PROCESSES
        if field
    ),
    *((text, scripts.WORKLOAD, text) for text, words in scripts.SIGNATURES if words),
    ("globals", scripts.with_args("{batch_siz: 2, iter_num: 3}"), scripts.NANOGPT),
    (scripts.WORDS, scripts.with_args(scripts.WORDS), scripts.saving("path")),
    (scripts.BRACES, scripts.with_args(scripts.BRACES), scripts.saving("path")),
    *((text, f"name: a\n{text}\n", "") for text, *_ in scripts.UNFILLED),
    *((spec, spec, "") for spec in scripts.LAUNCHERS),
    *((f"{text} {spec}", spec, text) for spec, text in scripts.SAME),
    *((args, scripts.with_args(args), scripts.PLAIN) for args, _ in scripts.NO_SHELL),
    *(
        (f"{args} {text}", scripts.with_args(args), text)
        for text, args, field, _ in test_command_lines.OTHERWISE
        if field
    ),
    *(
        (command, f"code: code\n{scripts.with_command(command)}", "")
        for command, expected in scripts.FILES
        if expected
    ),
    *(
        (f"hydra with code: {code}", scripts.with_args("[a=1]").replace(": code", f": {code}"), HYDRA)
        for code in ("code", "[code/t.py]")
    ),
    *(
        (command, f"code: code\n{scripts.with_command(command)}", "")
        for command, text, field, _ in scripts.BASH
        if field and not text
    ),
    ("{newest}", scripts.with_args("{a: '{newest}'}"), scripts.saving("path")),
    ("only by --resume", scripts.with_args("{}"), scripts.RESUMES),
    *(
        (f"sky{train}, saves {saves}", scripts.SKY.format(train=train), scripts.saving(saves))
        for train, saves, field, _ in scripts.LOST
        if field
    ),
    *(
        (f"{a} {text}", scripts.with_args(a), text)
        for text, a, field in scripts.SWITCHED_OFF
        if field
    ),
    *(
        (text.removeprefix(test_loops.TRAINS), spec, text)
        for spec, text, words in test_loops.TOLD
        if words
    ),
    *(
        (f"{wanted} {text}", test_packages.with_requirements(wanted), text)
        for wanted, text, _ in test_packages.MISSING
    ),
    *(
        (f"sky {args} {text}", scripts.SKY.format(train=f", args: {args}"), text)
        for text, args, field in scripts.DEFAULT_PLACES
        if field
    ),
    *(
        (args, test_huggingface.with_model(args), text)
        for text, args, field, _ in test_huggingface.OPTIONS
        if field
    ),
    ("no fields", scripts.with_args("{}"), test_huggingface.PARSER),
    *((text, scripts.with_args("{}"), text) for text, words in test_huggingface.CALLS if words),
    ("by an argument", scripts.with_args("{mixed_precision: fp16}"), scripts.MIXED),
    ("idle", f"{test_huggingface.with_model('use_cpu: true')}gpus_per_node: 2\n", test_huggingface.PARSER),
]  # fmt: skip


def makers(module: ModuleType) -> Iterator[range]:
    """Yield the lines of each expression that makes an error or a warning."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Call(
                func=ast.Name(id="Conflict" | "Finding" | "Refused" | "_warning" | "warning")
            ):
                yield range(node.lineno, (node.end_lineno or node.lineno) + 1)


def makers_that_run(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, int]]:
    """Return a set that gets the file and the line of each expression that makes an error from now on."""
    ran: set[tuple[str, int]] = set()
    new = {each: each.__new__ for each in (Conflict, Finding, Refused)}

    def noted(cls: Any, *args: Any, **kwargs: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        for _ in range(2):  # a function like warning() may stand between
            if frame is not None:
                ran.add((frame.f_code.co_filename, frame.f_lineno))
                frame = frame.f_back
        return new[cls](cls, *args, **kwargs)

    for each in new:
        monkeypatch.setattr(each, "__new__", staticmethod(noted))
    return ran


def test_the_text_of_every_error(
    golden: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test_profiles.alone(monkeypatch)
    test_requirement_files.write(tmp_path)
    scripts.write_programs(tmp_path)
    test_outside.write(tmp_path)
    (tmp_path / "code/confs").mkdir()
    (tmp_path / "code/confs/fast.yaml").touch()
    files = {inspect.getfile(module): module for module in MODULES}
    ran = makers_that_run(monkeypatch)
    text = ""
    for title, spec, script in (*((title, spec, "") for title, spec in SPECS), *SCRIPTS):
        for place in (tmp_path, tmp_path / "code"):
            (place / "t.py").write_text(script)
        shown = printable(title if len(title) < 100 else f"{title[:97]}...")
        text += "\n".join([shown, *report("  job.yaml", findings(spec)), "", ""])
    for number, (wrong, *_) in enumerate([*test_profiles.WRONG, *test_profiles.WRONG_PROFILE]):
        (place := tmp_path / f"layers{number}").mkdir()
        monkeypatch.chdir(place)
        lines = [f"  {line}" for line in test_profiles.errors(wrong, place)]
        text += "\n".join([*(f"{k}: {v!r}" for k, v in wrong.items()), *lines, "", ""])
    for override, *_ in test_profiles.WRONG_SET:
        files_of_spec = {"job.yaml": test_profiles.OVERRIDDEN}
        lines = [f"  {line}" for line in test_profiles.errors(files_of_spec, place, override)]
        text += "\n".join([f"--set {override}", *lines, "", ""])
    for wrong, *_ in test_sweep.WRONG:
        lines = [f"  {line}" for line in test_sweep.errors(f"{test_sweep.TOY}{wrong}\n")]
        text += "\n".join([wrong[:100], *lines, "", ""])
    for train, top, _ in test_sweep.WORKDIRS[:1]:
        lines = [f"  {line}" for line in test_sweep.errors(test_sweep.with_workdir(train, top))]
        text += "\n".join([f"sweep, {train}", *lines, "", ""])
    for top, tier in test_sweep.WITH_ARRAY:
        lines = [f"  {line}" for line in test_sweep.errors(test_sweep.on_slurm(top, tier))]
        text += "\n".join([f"{top} slurm: {tier}", *lines, "", ""])
    golden("errors.txt", text)
    left = [
        f"{file}:{lines.start}"
        for file, module in files.items()
        for lines in makers(module)
        if not any((file, line) in ran for line in lines)
    ]
    assert not left, "no spec of this test makes the error of " + ", ".join(left)


# A name with a colon in a remedy, where a spec would have it: write NAME: …, {NAME: …, NAME: …}.
ADVISED = re.compile(r"(?:(?:write|set|or|and) |[{(] ?|, )`?([a-z_]+(?:\.[a-z_]+)*):(?= )")
BELONGS = re.compile(r"(?:did you mean|belongs to .*\(|\bset |\bwrite )([a-z_]+(?:\.[a-z_]+)+)")


def test_every_field_that_an_error_advises_exists() -> None:
    known = {*field_names(), *TIERS, *LAYERS, "targets", *workloads.arguments_of("gpt")}
    remedies = [
        line.partition("; ")[2]
        for line in (ROOT / "tests/golden/errors.txt").read_text().splitlines()
        if re.match(r"  (--set|\S+:\d+:\d+:) ", line)
    ]
    advised = {
        name
        for remedy in remedies
        for pattern in (ADVISED, BELONGS)
        for path in pattern.findall(remedy)
        for name in path.split(".")
    }
    assert len(advised) > 40
    assert advised <= known
