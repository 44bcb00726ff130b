"""status --watch: what the screen shows, when it asks again, and how it ends."""

from __future__ import annotations

import io
import math
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ddpgen.cli.verbosity import begin
from ddpgen.driver import state
from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor import watch
from ddpgen.monitor.report import JobStatus, Report
from ddpgen.monitor.screen import View
from tests.clocks import give_time
from tests.ddpgen.conftest import ROOT, Run, progress

Spec = Callable[..., Path]
Golden = Callable[[str, str], None]


def row(kind: str, step: int, **more: Any) -> dict[str, Any]:
    head = {"kind": kind, "step": step, "attempt": "a", "generation": 2}
    return {**head, "time": 1000 + step / 2, **more}


def loss(step: int) -> float:
    return 4 * math.exp(-step / 60) + 0.1 * math.sin(step)


ABOUT = {"last_step": 400, "unit": "tokens", "units_per_step": 8192}
EVALUATED = row("eval", 100, loss=2.25)
RANKS = row(
    "ranks", 120, seconds=0.5, waiting=[0.01, 0.21], batches=[0.0, 0.1],
    slow={"name": "rank 0 on desk", "cost": 0.42},
)  # fmt: skip
STEPS = [row("step", step, loss=loss(step)) for step in range(41, 121)]


def report(word: str = "running a 0", runs: bool | None = True, **facts: str) -> Report:
    """The report of a run at step 120 of 400."""
    found = {
        "there": "yes", "status": word, "newest": "100", "now": "1061",
        "progress": progress([*STEPS, EVALUATED, RANKS], **ABOUT),
        "lock": '{"attempt": "a", "generation": 2}',
    }  # fmt: skip
    return Report("build/checkpoints/gpt", state.read({**found, **facts}), runs)


QUEUE = ["job   state    nodes      runs", "4711  RUNNING  node[1-2]  00:01:23"]
DOWN = (
    "gate: ssh: connect to host gate port 22: Network is unreachable; is the network (the VPN) up?"
)
SPEED = "speed 2 steps/s, 16,384 tokens/s, time left 2:20"
DIVERGED = progress(
    [*(row("step", n, loss=[1.0, 4.0, "nan"][n // 8]) for n in range(24)), EVALUATED, RANKS],
    **ABOUT,
)
ARRAY = [report(), report("done a 400", False)]
REASON = "failed a 120 desk: NIC001: eth7 is not there; name one of enp5s0, lo"
VIEWS = [
    View("gpt on local", JobStatus([report()], False), "12:03:11", 1),
    View("gpt on slurm", JobStatus([*QUEUE, report(), "log: gpt-4711.log"], False), "12:03:11", 10, DOWN, 83),
    View("gpt on slurm", JobStatus([*QUEUE, *ARRAY], False), "12:03:11", 10),
    View("gpt on local", JobStatus([report(now="1160", progress=DIVERGED)], False), "12:03:11", 1),
    View("gpt on local", JobStatus([report(now="1160", lock='{"attempt": "b"}')], False), "12:03:11", 1),
    View("gpt on hosts", JobStatus([report(REASON, False)], True), "12:03:11", 5),
    View("gpt on local", JobStatus([Report("build/gpt", state.read({}), None)], False), "12:03:11", 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "width", "encoding"),
    [
        ("watch.100.txt", 100, "utf-8"),
        ("watch.60.txt", 60, "ascii"),
    ],
)
def test_the_screen(golden: Golden, name: str, width: int, encoding: str) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    for view in VIEWS:
        console.print(view)
    out.flush()
    text = raw.getvalue().decode(encoding)
    golden(name, "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


def test_the_document_shows_the_real_screen() -> None:
    first, _, _ = (ROOT / "tests/golden/watch.100.txt").read_text().partition("gpt on slurm")
    assert f"```\n{first}```\n" in (ROOT / "docs/cli.md").read_text()


class Clock:
    """The time, which passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 43_391.0  # 12:03:11 of some day
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


LATER = progress([row("step", 121, loss=0.5, steps_per_s=2)], **ABOUT)


def test_in_a_pipe_there_is_a_line_for_each_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    give_time(monkeypatch, watch, time=clock.time, sleep=clock.sleep, localtime=time.gmtime)
    nothing = Report("d", state.read({}), None)
    answers: Iterator[JobStatus | Exception] = iter([
        JobStatus([nothing], False, "4711 PENDING (Priority)"),
        JobStatus([nothing], False, "4711 PENDING (Priority)"),
        JobStatus([report()], False, "4711 RUNNING"),
        TargetUnavailableError(DOWN),
        TargetUnavailableError(DOWN),
        JobStatus([report(progress=LATER)], False, "4711 RUNNING"),
        JobStatus([report("done a 400", False)], True, "4711 COMPLETED"),
    ])  # fmt: skip

    def ask() -> JobStatus:
        answer = next(answers)
        clock.now += 8 if isinstance(answer, Exception) else 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    begin()  # so that messages go to stderr, whatever an earlier test has set up
    watch.watch(ask, "gpt on slurm", 10)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "12:03:11 4711 PENDING (Priority)",
        "12:03:11 d: the checkpoint directory is not there yet",
        "12:03:31 4711 RUNNING",
        f"12:03:31 build/checkpoints/gpt: running, step 120 of 400, loss 0.5994, {SPEED}",
        f"12:04:07 build/checkpoints/gpt: running, step 121 of 400, loss 0.5000, {SPEED}",
        "12:04:17 4711 COMPLETED",
        "12:04:17 build/checkpoints/gpt: done at step 400, step 400 of 400",
    ]
    assert err == f"12:03:41 no answer, going on: {DOWN}\n"
    assert clock.slept == [9, 9, 9, 5, 5, 9]  # who takes long to answer is left alone for a while


def test_what_cannot_be_asked_at_first_is_an_error(run: Run, spec: Spec) -> None:
    hosts = spec(spec().read_text() + "targets: {hosts: {hosts: [desk, laptop]}}\n")
    refused = run("status", hosts, "--target=hosts", "--watch")
    assert (refused.code, refused.out) == (69, "")
    assert refused.err.startswith("build/gpt/hosts/run.sh is not there; ")
    for words in (["--interval=5"], ["--watch", "--json"], ["--watch", "--interval=0"]):
        assert run("status", hosts, *words).code == 2


def test_a_terminal_without_rich_is_told_what_to_install(spec: Spec, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['rich'] = None\n"
        f"sys.argv = ['ddpgen', 'status', {str(spec())!r}, '--watch']\n"
        "from ddpgen import cli; cli.main()"
    )
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=slave, stdout=slave, stderr=subprocess.PIPE, text=True,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}, timeout=60,
    )  # fmt: skip
    os.close(slave)
    os.close(master)
    assert done.returncode == 69
    assert done.stderr.startswith("--watch draws with rich, ")
    assert "pip install" in done.stderr
