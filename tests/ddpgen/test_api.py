"""A job in Python: what load() takes, what its methods return and raise, and that the commands say the same."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ddpgen
from ddpgen.programs import in_foreground
from ddpgen.spec import yamltree
from ddpgen.spec.fields import NodeCount
from ddpgen.text import yamltext
from tests.ddpgen.conftest import GPT, ROOT, Run
from tests.ddpgen.test_local_sh import Stage
from tests.ddpgen.test_monitor_slurm import Cluster

Write = Callable[[str], Path]
MAPPING: dict[str, Any] = {
    "name": "gpt",
    "procs_per_node": 2,
    "train": {
        "workload": "gpt",
        "steps": 300,
        "global_batch_size": 16,
        "micro_batch_size": 4,
    },
}
SLURM = {**MAPPING, "targets": {"slurm": {"nodes": "1..2", "time": "2h"}}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_a_file_and_a_mapping_give_the_same_bundle(spec: Write) -> None:
    from_file = ddpgen.load(spec(GPT)).render("local", output="a")
    from_mapping = ddpgen.load(MAPPING).render("local", output="b")
    assert (from_file.directory, from_file.tiers) == (Path("a"), ("local",))
    assert from_file.artefacts == from_mapping.artefacts
    assert (from_file.changed, from_file.warnings, from_file.dropped) == (True, (), ())
    assert from_file.starts == ["bash a/local.sh"]
    script = from_file.artefacts[0]
    assert Path("a", script.path).read_text() == script.text
    kept = [json.loads(Path(each, "bundle.json").read_text()) for each in "ab"]
    assert kept[0]["spec"] == kept[1]["spec"]
    assert not ddpgen.load(MAPPING).render("local", output="b").changed


def test_a_mapping_has_the_layers_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text("restarts: 7\n")
    (tmp_path / ".ddpgen").mkdir()
    (tmp_path / ".ddpgen" / "lab.yaml").write_text("targets: {slurm: {partition: gpu}}\n")
    spec = ddpgen.load(
        {**SLURM, "extends": Path("team.yaml")},
        profile="lab",
        set={"train.lr": 1e-5, "code": ["src", "data"], "env.A": "1e3"},
    )
    job = spec.job("slurm")
    assert spec.tiers == ("local", "slurm")
    assert (job.restarts, job.train.lr, job.code, job.env) == (
        7,
        1e-5,
        ("src", "data"),
        {"A": "1e3"},
    )
    assert (vars(job)["partition"], job.nodes) == ("gpu", NodeCount(2, 1))


def test_the_warnings_are_those_about_the_code_as_well(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / ".env").touch()
    (warning,) = ddpgen.load({**MAPPING, "code": "src"}).render().warnings
    assert (warning.path, ".env may hold secrets" in warning.problem) == ("code", True)


def test_a_wrong_spec_is_an_error_with_its_findings(tmp_path: Path) -> None:
    train = {**MAPPING["train"], "lr": "fast", "steps": math.nan}
    with pytest.raises(ddpgen.SpecInvalidError) as refused:
        ddpgen.load({**MAPPING, "train": train, "nods": 2}, set={"restarts": "many"})
    assert [finding.path for finding in refused.value.findings] == [
        "train.steps", "train.lr", "nods", "restarts",
    ]  # fmt: skip
    assert str(refused.value).startswith("<mapping>:3:")
    assert "\n--set restarts: " in str(refused.value)
    with pytest.raises(ddpgen.SpecUnreadableError, match=r"no\.yaml"):
        ddpgen.load(tmp_path / "no.yaml")
    with pytest.raises(TypeError, match="no value of a spec"):
        ddpgen.load({**MAPPING, "code": {"src"}})
    with pytest.raises(ddpgen.DdpgenError, match="ther"):
        ddpgen.load({**MAPPING, "code": ["ther"]}).render()


def test_a_tier_that_is_not_there_is_an_error() -> None:
    spec = ddpgen.load(MAPPING)
    calls: list[Callable[[str], object]] = [
        spec.job, spec.validate, spec.render, spec.launch, spec.status, spec.stop,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ddpgen.TargetUnavailableError, match=r"no targets\.slurm"):
            call("slurm")
        with pytest.raises(ddpgen.OptionRefusedError, match="there is no tier slrum"):
            call("slrum")
    with pytest.raises(ddpgen.OptionRefusedError, match="one tier"):
        spec.launch("all")


def test_nothing_is_printed_and_the_logger_has_all(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("ddpgen").handlers.clear()  # those of commands that ran in this process
    logging.getLogger("ddpgen").propagate = True
    doubtful = {**MAPPING, "env": {"HF_TOKEN": "hf_" + "x1" * 17}}
    program = f"import ddpgen; ddpgen.load({doubtful!r}).render()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with caplog.at_level(logging.INFO, "ddpgen"):
        spec = ddpgen.load(doubtful)
        (warning,) = spec.validate()
        assert (warning.path, warning.fatal) == ("env.HF_TOKEN", False)
        assert spec.render().warnings == (warning,)
    assert capfd.readouterr() == ("", "")
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO"]


def test_a_job_is_submitted_followed_and_taken_out_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    spec = ddpgen.load(SLURM)
    launched = spec.launch("slurm", ["--steps=5"])
    assert (launched.tier, launched.job, launched.exit_code) == ("slurm", "4711", None)
    assert launched.bundle.directory == Path("build/gpt")
    assert [words[-1] for words in cluster.calls("sbatch")] == ["--steps=5", "--steps=5"]
    cluster.has("4711 PENDING Priority")
    status = spec.status()
    assert (status.tier, status.runs[0]["there"], status.ended) == ("slurm", "no", False)
    assert "4711" in "\n".join(status.said)
    shown = run("status", "build/gpt", "--json")
    assert json.loads(shown.out) == status._asdict()
    assert "4711 PENDING (Priority)" in run("status").out
    assert spec.stop()[0] == "taken out of the queue: 4711"
    cluster.answers("test", "1\nsbatch: error: no partition\n")
    with pytest.raises(ddpgen.TargetUnavailableError, match="no partition\nsbatch refuses the job"):
        spec.launch("slurm")


def test_a_launch_overwrites_an_edit_with_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cluster(tmp_path, monkeypatch)
    spec = ddpgen.load(SLURM)
    spec.render("slurm")
    Path("build/gpt/slurm.sbatch").write_text("#!/bin/bash\n")
    with pytest.raises(ddpgen.BundleRefusedError, match=r"slurm\.sbatch"):
        spec.launch("slurm")
    assert spec.launch("slurm", force=True).job == "4711"


def test_a_job_that_is_to_stop_now_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpgen.tiers.commands.stop", lambda run, now: [run.tier, str(now)])
    spec = ddpgen.load(MAPPING)
    assert (spec.stop(), spec.stop(now=True)) == (["local", "False"], ["local", "True"])


def test_a_job_that_is_not_recorded_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    Cluster(tmp_path, monkeypatch)
    (tmp_path / "build" / "gpt.launched.json").mkdir(parents=True)
    with pytest.raises(ddpgen.FileTroubleError, match="4711 was submitted all the same"):
        ddpgen.load(SLURM).launch("slurm")


def test_a_local_job_runs_in_the_foreground_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ddpgen.load({**MAPPING, "python": sys.executable})
    commands: list[list[str]] = []

    def acted(command: Any) -> int:
        commands.append(list(command))
        Stage(Path("build/gpt").absolute())  # from now on torchrun is an actor
        monkeypatch.setenv("FAKE", "stopped")
        return in_foreground(command)

    launched = spec.launch("local", ["--steps=5"], run=acted)
    assert commands == [["bash", "build/gpt/local.sh", "--steps=5"]]
    assert (launched.exit_code, launched.job) == (75, "")
    status = spec.status()
    assert (status.tier, status.ended, status.runs[0]["state"]) == (
        "local", True, "stopped at step 7: it was to be",
    )  # fmt: skip
    assert spec.stop()[0].startswith("nothing to stop")


def test_status_and_stop_work_where_an_event_loop_runs_as_in_a_notebook() -> None:
    async def cell() -> tuple[Any, list[str]]:
        spec = ddpgen.load(MAPPING)
        return spec.status(), spec.stop()

    status, told = asyncio.run(cell())
    assert status.runs == [{"directory": "build/checkpoints/gpt", "there": "no"}]
    assert told[0].startswith("nothing to stop")


@pytest.mark.parametrize("thread", [False, True])
def test_a_signal_ends_the_job_first_and_is_raised_then(thread: bool, tmp_path: Path) -> None:
    waits = "trap 'touch ended; exit 75' INT; echo >began; while :; do sleep 0.05; done"
    os.mkfifo(tmp_path / "began")
    codes: list[int] = []

    def interrupt() -> None:
        (tmp_path / "began").read_text()  # waits until the job has written it
        os.kill(os.getpid(), signal.SIGINT)

    if thread:  # Python hears no signal there
        other = threading.Thread(
            target=lambda: codes.append(in_foreground(["bash", "-c", "exit 3"]))
        )
        other.start()
        other.join()
        assert codes == [3]
        return
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        in_foreground(["bash", "-c", waits])
    assert (tmp_path / "ended").exists()


def test_a_value_is_read_back_from_its_yaml() -> None:
    for value in (None, True, -3, 1e-5, 1e300, "1e-5", "2:00", "yes", "a: #b", "é\n\x7f🎉", ""):
        for nested in ([value, [value]], {"a b": value}):
            root, findings = yamltree.parse(f"x: {yamltext.flow(nested)}\n".encode())
            assert not findings
            assert plain(root.entries["x"]) == json.loads(json.dumps(nested), parse_float=str)


def plain(node: Any) -> Any:
    """The value of a node, a number with a point as text."""
    if isinstance(node, yamltree.Table):
        return {name: plain(each) for name, each in node.entries.items()}
    if isinstance(node, yamltree.Listing):
        return [plain(each) for each in node.items]
    if node.quoted or node.tag in ("str", "float"):
        return node.text
    return json.loads(node.text)


def test_all_names_are_there_and_an_import_loads_nothing() -> None:
    for name in ddpgen.__all__:
        assert getattr(ddpgen, name).__name__ == name
    with pytest.raises(AttributeError, match="lod"):
        _ = ddpgen.lod
    done = subprocess.run(
        [sys.executable, "-c", "import sys, ddpgen; print(*sys.modules)"],
        env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert [each for each in done.stdout.split() if each.startswith("ddpgen.")] == []


def test_the_page_about_python_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.has("4711 PENDING Priority")
    spec(GPT).rename("gpt.yaml")
    Path(".ddpgen").mkdir()
    Path(".ddpgen/lab.yaml").write_text("targets: {slurm: {nodes: 1}}\n")
    page = (ROOT / "docs" / "python.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    shown = capsys.readouterr().out
    assert shown.startswith("('local', 'slurm')\n4711\nFalse [None]\nbuild/gpt True\n#!/")
    assert shown.endswith("procs_per_nod | unknown key | did you mean procs_per_node? | 5\n")
    assert cluster.calls("scancel")
    named = set(re.findall(r"`(\w+Error)`", page)) - {"TypeError", "ValueError"}
    assert named | {"DdpgenError"} == {each for each in ddpgen.__all__ if each.endswith("Error")}
