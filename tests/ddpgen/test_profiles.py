"""The layers below a spec and above it: what wins, where a fault is, and what a bundle keeps of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpgen import job
from ddpgen.cli.shared import cli
from ddpgen.errors import SpecInvalidError, report
from ddpgen.render import Renderer
from ddpgen.reproduce import again
from ddpgen.site import profiles, show
from ddpgen.site.layers import VARIABLE, Chosen
from ddpgen.spec.groups import Group
from ddpgen.tiers.registry import MODELS, TIERS, read
from tests.ddpgen.conftest import GPT, ROOT, Run

# Files whose layers have a fault, under its place and the decisive word. The first file is the spec.
WRONG: list[tuple[dict[str, str], str, str]] = [
    ({"job.yaml": f"extends: no.yaml\n{GPT}"}, "job.yaml:1:10: extends:", "No such file"),
    ({"job.yaml": f"extends: [.]\n{GPT}"}, "job.yaml:1:11: extends[0]:", "directory"),
    ({"job.yaml": f"extends: '-'\n{GPT}"}, "job.yaml:1:10: extends:", "No such file"),
    ({"job.yaml": f"extends: /dev/zero\n{GPT}"}, "job.yaml:1:10: extends:", "no file"),
    ({"job.yaml": f"extends: {{a: b}}\n{GPT}"}, "job.yaml:1:10: extends:", "a mapping"),
    ({"job.yaml": f"extends: job.yaml\n{GPT}"}, "job.yaml:1:10: extends:", "already"),
    (
        {"job.yaml": f"extends: a/b.yaml\n{GPT}", "a/b.yaml": "extends: ../job.yaml\n"},
        "a/b.yaml:1:10: extends:",
        "already",
    ),
    ({"job.yaml": f"extends: b.yaml\n{GPT}", "b.yaml": "a: [1\n"}, "b.yaml:1:4:", "bracket"),
    ({"job.yaml": f"extends: b.yaml\n{GPT}", "b.yaml": "- a\n"}, "b.yaml:1:1:", "mapping"),
    (
        {"job.yaml": f"extends: b.yaml\n{GPT}", "b.yaml": "restarts: 1\nnods: 2\n"},
        "b.yaml:2:1: nods:",
        "nodes",
    ),
]
# The same with a profile next to the spec.
LAB = ".ddpgen/lab.yaml"
WRONG_PROFILE: list[tuple[dict[str, str], str, str]] = [
    ({"job.yaml": f"profile: lba\n{GPT}"}, "job.yaml:1:10: profile:", "write that file"),
    ({"job.yaml": f"profile: lba\n{GPT}", LAB: ""}, "job.yaml:1:10: profile:", "one of lab"),
    ({"job.yaml": f"profile: ../lab\n{GPT}", LAB: ""}, "job.yaml:1:10: profile:", "letters"),
    ({"job.yaml": f"profile: [a, b]\n{GPT}"}, "job.yaml:1:10: profile:", "a list"),
    ({"job.yaml": f"profile: lab\n{GPT}", LAB: "profile: b\n"}, f"{LAB}:1:10: profile:", "extends"),
    (
        {"job.yaml": f"profile: lab\n{GPT}", LAB: "targets:\n  slurm:\n    partion: gpu\n"},
        f"{LAB}:3:5: targets.slurm.partion:",
        "partition",
    ),
    ({"job.yaml": f"profile: lab\n{GPT}", LAB: "\tx: 1\n"}, f"{LAB}:1:1:", "tab"),
]
# Overrides of OVERRIDDEN that are wrong, under their place and the decisive word.
OVERRIDDEN = f"{GPT}preflight: off\ntargets: {{slurm: {{time: 1h, env: {{A: b}}}}, hosts: {{hosts: [a, b]}}}}\n"
WRONG_SET = [
    ("train.lr=fast", "--set train.lr:", "a number above 0"),
    ("train.lr=", "--set train.lr:", "null"),
    ("train.lr.x=1", "--set train.lr:", "a mapping"),
    ("trian.lr=1", "--set trian:", "train"),
    ("train.lrr=1", "--set train.lrr:", "lr"),
    ("targets.slurm.time=2", "--set targets.slurm.time:", "2h"),
    ("targets.slrm.time=2h", "--set targets.slrm:", "slurm"),
    (
        "targets.hosts.hosts[0].nic=eth0",
        "--set targets.hosts.hosts[0].nic:",
        "'targets.hosts.hosts=",
    ),
    ("targets.hosts.hosts.0.nic=eth0", "--set targets.hosts.hosts.0.nic:", "'targets.hosts.hosts="),
    ("train.trackers.0=wandb", "--set train.trackers.0:", "whole list"),
    ("train.grad_clip=[1", "--set train.grad_clip:", "quotes"),
    ("env.A=one #two", "--set env.A:", "only a part"),
    ("env.A.B=1", "--set env:", "A.B"),
    ("preflight.ignor=X", "--set preflight.ignor:", "ignore"),
    ("train.epochs=0", "--set train.epochs:", "above 0"),
    ("train={}", "--set train:", "train.NAME=VALUE"),
    ("env={}", "--set env:", "null clears"),
    ("extends=a.yaml", "--set extends:", "in the spec"),
]


def write(files: Mapping[str, str], directory: Path) -> str:
    """Write these files, and return the path of the first one relative to `directory`."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return next(iter(files))


def errors(files: Mapping[str, str], directory: Path, *overrides: str) -> list[str]:
    """Return the lines about these files, which are wrong; the first one is the spec, in the working directory."""
    try:
        job.load(write(files, directory), Chosen(overrides=overrides))
    except SpecInvalidError as error:
        return report(error.filename, error.findings)
    raise AssertionError(f"{files} is a spec")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    alone(monkeypatch)


def alone(monkeypatch: pytest.MonkeyPatch, system: str = "/nowhere/etc") -> None:
    """Keep the profiles of this machine and of its user out of a test."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere/config")
    monkeypatch.setattr(profiles, "SYSTEM", system)


@pytest.mark.parametrize(("files", "where", "word"), [*WRONG, *WRONG_PROFILE])
def test_a_fault_in_a_layer_is_at_its_file_and_line(
    files: dict[str, str], where: str, word: str, tmp_path: Path
) -> None:
    (line,) = errors(files, tmp_path)
    assert line.startswith(where)
    assert word in line


def test_faults_before_a_file_that_is_no_yaml_are_told_as_well(tmp_path: Path) -> None:
    files = {"job.yaml": f"extends: b.yaml\n{GPT}nodes: 1\nnodes: 2\n", "b.yaml": "a: [1\n"}
    first, second = errors(files, tmp_path)
    assert first.startswith("job.yaml:10:1: nodes:")
    assert second.startswith("b.yaml:1:4:")


def test_a_field_that_no_layer_has_is_missing_in_the_spec(tmp_path: Path) -> None:
    train = "train:\n  {}\n"
    files = {
        "job.yaml": f"extends: base.yaml\nname: a\n{train.format('steps: 3')}",
        "base.yaml": train.format("workload: gpt"),
    }
    lines = errors(files, tmp_path)
    assert {line.partition(": ")[0] for line in lines} == {"job.yaml:4:3"}


def test_a_file_in_the_home_is_named_as_the_spec_names_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files = {
        "job.yaml": f"extends: a/b.yaml\n{GPT}",
        "a/b.yaml": "extends: ~/team.yaml\n",
        "home/team.yaml": "restarts: 7\n",
    }
    assert job.load(write(files, tmp_path))["local"].job.restarts == 7
    assert run("render", "job.yaml", "--target", "local").code == 0
    named = set(listing(Path("build/gpt"))["layers"]["files"])
    assert named == {"job.yaml", "a/b.yaml", "~/team.yaml"}


def test_a_fault_in_a_layer_names_its_file_to_programs(run: Run, tmp_path: Path) -> None:
    write({"job.yaml": f"extends: b.yaml\n{GPT}", "b.yaml": "nods: 2\n"}, tmp_path)
    ((finding,),) = (
        each["findings"] for each in json.loads(run("validate", "--json", "job.yaml").out)
    )
    assert (finding["file"], finding["line"]) == ("b.yaml", 1)
    line = run("validate", "--format", "github", "job.yaml").out
    assert line.startswith("::error file=b.yaml,line=1,")


def listing(bundle: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((bundle / "bundle.json").read_text())
    return loaded


def test_the_later_layer_wins_field_by_field_and_lists_are_replaced(tmp_path: Path) -> None:
    files = {
        "job.yaml": f"extends: [one.yaml, team/two.yaml]\nenv: {{C: spec}}\n{GPT}",
        "one.yaml": "restarts: 1\nenv: {A: one, B: one, C: one}\ncode: [one, all]\n",
        "team/two.yaml": "extends: three.yaml\nenv: {B: two, C: two}\ncode: [two]\nnic: eth2\n",
        "team/three.yaml": "restarts: 3\nnic: eth3\n",
    }
    read = job.load(write(files, tmp_path))["local"].job
    assert read.env == {"A": "one", "B": "two", "C": "spec"}
    assert (read.restarts, read.code, read.nic, read.train.steps) == (3, ("two",), "eth2", 300)


def test_a_field_that_is_null_takes_the_place_of_no_other(tmp_path: Path) -> None:
    files = {"job.yaml": "extends: base.yaml\ntrain: {epochs: null}\n", "base.yaml": GPT}
    read = job.load(write(files, tmp_path))["local"].job
    assert (read.train.steps, read.train.epochs) == (300, None)


def test_one_of_two_fields_that_exclude_each_other_gives_way_to_the_later_layer(
    tmp_path: Path,
) -> None:
    files = {
        "job.yaml": "extends: base.yaml\ntrain: {epochs: 2}\ntargets: {slurm: {train: {steps: 7}}}\n",
        "base.yaml": f"{GPT}targets: {{slurm: {{train: {{epochs: 9}}, time: 2h}}}}\n",
    }
    read = job.load(write(files, tmp_path))
    assert [read["local"].job.train.steps, read["local"].job.train.epochs] == [None, 2]
    assert [read["slurm"].job.train.steps, read["slurm"].job.train.epochs] == [7, None]


@pytest.mark.parametrize("targets", ["", "targets:\n", "targets: {slurm: }\n"])
def test_a_tier_without_fields_keeps_those_of_the_layer_below(targets: str, tmp_path: Path) -> None:
    files = {
        "job.yaml": f"extends: base.yaml\n{GPT}{targets}",
        "base.yaml": "targets: {slurm: {time: 2h, partition: gpu}}\n",
    }
    assert vars(job.load(write(files, tmp_path))["slurm"].job)["partition"] == "gpu"


def test_what_two_files_extend_is_read_once(tmp_path: Path) -> None:
    files = {f"{n}.yaml": f"extends: [{n + 1}.yaml, ./{n + 1}.yaml]\n" for n in range(40)}
    files = {"job.yaml": f"extends: 0.yaml\n{GPT}", **files, "40.yaml": "restarts: 7\n"}
    assert job.load(write(files, tmp_path))["local"].job.restarts == 7


def test_a_bundle_names_the_layers_and_needs_none(run: Run, tmp_path: Path) -> None:
    files = {
        "here/job.yaml": f"extends: ../team/base.yaml\n{GPT}",
        "team/base.yaml": "targets: {slurm: {time: 2h, partition: gpu}}\n",
    }
    spec = write(files, tmp_path)
    assert run("render", tmp_path / spec, "--target", "all", "-o", "b").code == 0
    kept = listing(Path("b"))["layers"]
    assert kept["files"] == {
        name: hashlib.sha256(Path("here", name).read_bytes()).hexdigest()
        for name in ("job.yaml", "../team/base.yaml")
    }
    (tmp_path / "team/base.yaml").write_text("# another comment\n" + files["team/base.yaml"])
    assert "unchanged" in run("render", spec, "--target", "all", "-o", "b").err
    assert listing(Path("b"))["layers"] == kept
    (tmp_path / "team/base.yaml").unlink()
    assert vars(job.bundle_jobs(Path("b"))["slurm"])["partition"] == "gpu"
    assert run("status", "b", "--target", "local").code == 0


def test_the_bundle_of_a_spec_alone_names_no_layers(run: Run, tmp_path: Path) -> None:
    write({"job.yaml": GPT}, tmp_path)
    assert run("render", "job.yaml", "--target", "local").code == 0
    assert "layers" not in listing(Path("build/gpt"))


@pytest.mark.parametrize(("override", "where", "word"), WRONG_SET)
def test_a_fault_of_an_override_is_at_the_option(
    override: str, where: str, word: str, tmp_path: Path
) -> None:
    (line,) = errors({"job.yaml": OVERRIDDEN}, tmp_path, override)
    assert line.startswith(f"{where} ")
    assert word in line


def overridden(directory: Path, *overrides: str, spec: str = OVERRIDDEN) -> dict[str, Any]:
    readings = job.load(write({"job.yaml": spec}, directory), Chosen(overrides=overrides))
    return {tier: reading.job for tier, reading in readings.items()}


def test_an_override_is_typed_as_its_field_and_the_last_one_wins(tmp_path: Path) -> None:
    jobs = overridden(
        tmp_path, "train.lr=1e-4", "targets.slurm.time=2h", "targets.hosts.hosts=[c,d]",
        "train.lr=1e-5", "env.TAG=007", "preflight.ignore=NIC008", "train.args.width=64",
        "train.best={metric: f1, mode: max}", "train.eval_every=10 steps",
    )  # fmt: skip
    read = jobs["slurm"]
    assert (read.train.lr, read.time, read.env, read.train.args) == (
        1e-5, 7200, {"A": "b", "TAG": "007"}, {"width": 64},
    )  # fmt: skip
    assert [host.name for host in jobs["hosts"].hosts] == ["c", "d"]
    assert (read.preflight.enabled, read.preflight.ignore) == (False, ("NIC008",))
    assert (read.train.best.metric, read.train.best.mode) == ("f1", "max")


def test_an_override_of_one_part_keeps_the_other_parts(tmp_path: Path) -> None:
    off = f"{GPT}targets: {{slurm: {{preflight: off}}}}\n"
    jobs = overridden(tmp_path, "preflight.ignore=NIC008", spec=off)
    assert (jobs["slurm"].preflight.enabled, jobs["slurm"].preflight.ignore) == (False, ("NIC008",))
    jobs = overridden(tmp_path, "preflight=off", "preflight.ignore=NIC008", spec=GPT)
    assert (jobs["local"].preflight.enabled, jobs["local"].preflight.ignore) == (False, ("NIC008",))
    jobs = overridden(tmp_path, "env.A=1", "env={B: 2}", "env.A=3")
    assert jobs["local"].env == {"B": "2", "A": "3"}


def test_an_override_of_the_job_wins_over_every_tier_and_one_of_a_tier_over_both(
    tmp_path: Path,
) -> None:
    spec = f"{GPT}targets: {{local: {{}}, slurm: {{time: 1h, restarts: 9, train: {{epochs: 2, lr: 1}}}}}}\n"
    jobs = overridden(tmp_path, "restarts=1", "train.steps=20", spec=spec)
    assert (jobs["slurm"].restarts, jobs["slurm"].train.steps, jobs["slurm"].train.lr) == (1, 20, 1)
    assert jobs["slurm"].train.epochs is None
    jobs = overridden(tmp_path, "targets.slurm.restarts=4", "restarts=1", spec=spec)
    assert (jobs["local"].restarts, jobs["slurm"].restarts) == (1, 4)


def test_two_overrides_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    lines = errors({"job.yaml": GPT}, tmp_path, "train.steps=1", "train.epochs=1")
    assert [line.partition(": ")[0] for line in lines] == ["--set train.epochs"]


def test_a_name_of_an_argument_may_have_dots(tmp_path: Path) -> None:
    script = "name: s\ntrain: {script: t.py, args: {a.b: 1, c: {d: 2}}}\ncode: [t.py]\n"
    jobs = overridden(
        tmp_path, "train.args.a.b=3", "train.args.c.d=4", "train.args.e.f=5", spec=script
    )
    assert jobs["local"].train.args == {"a.b": "3", "c": '{"d": 4}', "e.f": "5"}


def test_a_missing_field_is_no_fault_of_the_option(tmp_path: Path) -> None:
    lines = errors({"job.yaml": "name: a\n"}, tmp_path, "train.steps=3")
    assert {line.partition(": ")[0] for line in lines} == {"job.yaml:1:1"}


# `launch`, `probe` and `bench` would train.
@pytest.mark.parametrize(
    "words", ["validate", "plan", "render --target local", "predict", "lock --container a"]
)
def test_each_command_with_a_spec_takes_overrides(words: str, run: Run, tmp_path: Path) -> None:
    name, *options = words.split()
    write({"job.yaml": GPT}, tmp_path)
    outcome = run(name, "job.yaml", *options, "--set", "train.lr=fast")
    assert (outcome.code, outcome.out) == (65, "")
    assert outcome.err.startswith("--set train.lr: ")
    for command in ("launch", "probe", "bench"):
        assert "overrides" in [each.name for each in cli.commands[command].params]


def test_an_override_without_a_value_is_a_wrong_command_line(run: Run, tmp_path: Path) -> None:
    write({"job.yaml": GPT}, tmp_path)
    for text in ("train.lr", "=1"):
        assert run("validate", "job.yaml", "--set", text).code == 2


def test_the_bundle_names_the_overrides(run: Run, tmp_path: Path) -> None:
    write({"job.yaml": GPT}, tmp_path)
    words = ("--set", "train.lr=1e-4", "--set", "name=other")
    assert run("render", "job.yaml", "--target", "local", *words).code == 0
    facts = listing(Path("build/other"))
    assert facts["layers"]["set"] == ["train.lr=1e-4", "name=other"]
    assert facts["spec"]["local"]["train"]["lr"] == 1e-4


PROFILE = "targets: {{slurm: {{time: 2h, partition: {0}, account: {0}}}}}\nrestarts: 8\n"


def partition(path: str = "work/job.yaml", profile: str | None = None) -> Any:
    readings = job.load(path, Chosen(profile))
    return vars(readings["slurm"].job)["partition"] if "slurm" in readings else None


def test_a_profile_is_found_above_the_spec_then_at_the_user_then_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(profiles, "SYSTEM", str(tmp_path / "etc"))
    write({"work/job.yaml": GPT}, tmp_path)
    for folder in ("etc", "config/ddpgen", ".ddpgen", "work/.ddpgen"):
        write({f"{folder}/lab.yaml": PROFILE.format(folder.strip(".").replace("/", "-"))}, tmp_path)
        assert partition(profile="lab") == folder.strip(".").replace("/", "-")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write({"home/.config/ddpgen/mine.yaml": PROFILE.format("mine")}, tmp_path)
    assert partition(profile="mine") == "mine"


def test_a_period_of_checkpoints_in_a_profile_is_for_other_jobs_than_a_script(
    tmp_path: Path,
) -> None:
    spec = "profile: lab\nname: a\ntrain: {script: /t.py}\ncheckpoint: {keep: 6}\n"
    files = {"job.yaml": spec, LAB: "checkpoint: {every: 5min, keep: 5}\n"}
    (warning,) = job.check([*job.load(write(files, tmp_path)).values()], tmp_path)
    assert (warning.path, warning.fatal) == ("checkpoint.keep", False)


def test_the_option_wins_over_the_variable_and_this_over_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"work/job.yaml": f"extends: b.yaml\n{GPT}", "work/b.yaml": "profile: a\n"}, tmp_path)
    write({f".ddpgen/{name}.yaml": PROFILE.format(name) for name in "abc"}, tmp_path)
    assert (partition(), partition(profile="c"), partition(profile="")) == ("a", "c", None)
    monkeypatch.setenv(VARIABLE, "b")
    assert (partition(), partition(profile="c")) == ("b", "c")
    monkeypatch.setenv(VARIABLE, "")
    assert (partition(), partition(profile="c")) == (None, "c")


def test_a_profile_lies_below_what_the_spec_extends(tmp_path: Path) -> None:
    files = {
        "work/job.yaml": f"profile: lab\nextends: base.yaml\n{GPT}nic: eth0\n",
        "work/base.yaml": "restarts: 5\nnic: eth1\n",
        ".ddpgen/lab.yaml": "extends: all.yaml\nrestarts: 6\nnic: eth2\n",
        ".ddpgen/all.yaml": "nic: eth3\nbackend: gloo\n",
    }
    read = job.load(write(files, tmp_path))["local"].job
    assert (read.nic, read.restarts, read.backend) == ("eth0", 5, "gloo")


@pytest.mark.parametrize("origin", ["--profile", VARIABLE])
def test_a_name_that_is_not_found_lists_the_places_and_the_profiles(
    origin: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"work/job.yaml": GPT, ".ddpgen/lab.yaml": "", "work/.ddpgen/team.yaml": ""}, tmp_path)
    if origin == "--profile":
        outcome = run("validate", "work/job.yaml", origin, "lap")
    else:
        monkeypatch.setenv(origin, "lap")
        outcome = run("validate", "work/job.yaml")
    assert outcome.code == 65
    assert outcome.err == (
        f"{origin} lap: there is no lap.yaml in work/.ddpgen or a .ddpgen above it, "
        "/nowhere/config/ddpgen or /nowhere/etc; write one of lab, team\n"
    )


def test_a_bundle_needs_its_profile_no_more(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / ".ddpgen/lab.yaml"
    write({"work/job.yaml": GPT, ".ddpgen/lab.yaml": PROFILE.format("gpu")}, tmp_path)
    words = ("render", "work/job.yaml", "--target", "all", "-o", "b", "--profile", "lab")
    assert run(*words).code == 0
    layers = listing(Path("b"))["layers"]
    assert (layers["profile"], set(layers["files"])) == ("lab", {"job.yaml", "../.ddpgen/lab.yaml"})
    assert str(tmp_path) not in Path("b/bundle.json").read_text()
    rendered = Path("b/slurm.sbatch").read_text()
    assert "#SBATCH --partition=gpu\n#SBATCH --account=gpu\n" in rendered
    profile.unlink()
    made = job.bundle_jobs(Path("b"))
    assert TIERS["slurm"].render(made["slurm"], Renderer())[0].text == rendered
    assert again.compared(Path("b")).endswith("renders the same bytes")
    shutil.copytree("b", "c")
    assert run("diff", "b", "c").code == 0
    assert run("status", "b", "--target", "local").code == 0
    assert run(*words).code == 65


def test_plan_resolved_names_the_origin_of_each_value(run: Run, tmp_path: Path) -> None:
    files = {
        "job.yaml": f"profile: lab\nextends: base.yaml\n{GPT}env: {{A: 'yes', B: 007}}\n",
        "base.yaml": "backend: gloo\ntargets:\n  hosts:\n    hosts: [a, {name: b, nic: eth0}]\n",
        LAB: "targets:\n  slurm:\n    partition: gpu\n    time: 1h\ncode: [job.yaml, base.yaml]\n",
    }
    words = ("--set", "targets.slurm.time=2h", "--set", "train.lr=1e-4")
    outcome = run("plan", write(files, tmp_path), "--resolved", *words)
    assert outcome.err == ""
    assert (
        outcome.out
        == """\
# job.yaml with all its layers. A field that is not here has its default.
name: gpt                     # job.yaml:3
train:
  workload: gpt               # job.yaml:6
  steps: 300                  # job.yaml:7
  global_batch_size: 16       # job.yaml:8
  micro_batch_size: 4         # job.yaml:9
  lr: 1e-4                    # --set
procs_per_node: 2             # job.yaml:4
backend: gloo                 # base.yaml:1
env:
  A: "yes"                    # job.yaml:10
  B: 007                      # job.yaml:10
code: [job.yaml, base.yaml]   # .ddpgen/lab.yaml:5
targets:
  hosts:
    hosts:
      - a                     # base.yaml:4
      - {name: b, nic: eth0}  # base.yaml:4
  slurm:
    time: 2h                  # --set
    partition: gpu            # .ddpgen/lab.yaml:3
"""
    )
    assert run("plan", "job.yaml", "--resolved", "--json").code == 2


def test_a_resolved_list_of_words_is_read_again(run: Run, tmp_path: Path) -> None:
    script = "name: a\ncode: s.py\ntrain:\n  script: s.py\n  args:\n    - :x\n    - ?y\n    - --z\n"
    spec = write({"job.yaml": script, "s.py": ""}, tmp_path)
    shown = run("plan", spec, "--resolved").out
    assert read(shown.encode(), "shown")["local"].job.train.args == (":x", "?y", "--z")


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem
)
def test_a_resolved_spec_gives_the_same_jobs(example: Path) -> None:
    readings = job.load(str(example))
    text = show.as_yaml(readings["local"].whole, MODELS)
    again = read(text.encode(), "again.yaml")
    assert {tier: Group(MODELS[tier]).dump(each.job) for tier, each in again.items()} == {
        tier: Group(MODELS[tier]).dump(each.job) for tier, each in readings.items()
    }


def test_a_resolved_list_keeps_an_item_with_a_comma(tmp_path: Path) -> None:
    readings = job.load(write({"job.yaml": f"{GPT}code:\n  - a,b\n"}, tmp_path))
    assert 'code: ["a,b"]' in show.as_yaml(readings["local"].whole, MODELS)
