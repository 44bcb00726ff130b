"""The report of a run: what its files tell, and the page of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from train.launch.report import say_report
from train.run.status import Status, write_status
from train.tools.report import plots
from train.tools.report.command import main
from train.tools.report.history import History, history, load, read
from train.tools.report.page import page

HEAD = {"attempt": "a", "generation": 1}


def row(kind: str, step: int, at: float, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "time": at, **HEAD, **values}


def killed_and_preempted() -> list[dict[str, Any]]:
    """Ten steps: killed after the sixth, with a checkpoint of the fourth; stopped after the eighth."""
    rows = [row("start", 0, 100.0, world_size=2, last_step=10)]
    for n in range(1, 7):
        # The writer puts it just before the row of the step that follows.
        rows += [row("checkpoint", 4, 102.0 + n, seconds=0.5, stall=0.1)] if n == 5 else []
        rows += [row("step", n, 102.0 + n, loss=1 / n)]
    second = {"generation": 2}
    rows += [row("start", 4, 120.0, world_size=2, last_step=10, after="rank 1: gone", **second)]
    rows += [row("step", n, 120.0 + n, loss=1 / n, **second) for n in range(5, 9)]
    rows += [row("ranks", 8, 128.0, seconds=1.0, waiting=[0.3, 0.1], batches=[0.0, 0.1], **second)]
    rows += [row("stopped", 8, 128.5, reason="preempted", **second)]
    third = {"attempt": "b", "generation": 1}
    rows += [row("start", 8, 200.0, world_size=3, last_step=10, **third)]
    rows += [row("step", n, 200.0 + n, loss=1 / n, **third) for n in (9, 10)]
    rows += [row("eval", 10, 210.5, loss=0.25, **third), row("done", 10, 211.0, **third)]
    return rows


def test_a_step_counts_once_and_every_start_has_its_end() -> None:
    found = history(killed_and_preempted())
    assert [step.number for step in found.steps] == list(range(1, 11))
    assert [(s.end, s.reason, s.lost_steps) for s in found.starts] == [
        ("lost", "rank 1: gone", 2), ("stopped", "preempted", 0), ("done", "", 0),
    ]  # fmt: skip
    assert [(s.first_step, s.last_step, s.world_size) for s in found.starts] == [
        (0, 6, 2), (4, 8, 2), (8, 10, 3),
    ]  # fmt: skip
    assert found.lost_steps == 2
    assert found.total_steps == 10
    assert found.wall_s == 111.0
    # Of the first start steps 2 to 4 count (the first has no step before it), then 6 to 8, and 10.
    # The checkpoint held the training up for 0.1 s of them.
    assert found.useful_s == pytest.approx(6.9)
    assert found.goodput == pytest.approx(6.9 / 111)
    assert found.step_s == pytest.approx(1.0)
    assert [(c.step, c.seconds, c.stall) for c in found.checkpoints] == [(4, 0.5, 0.1)]
    assert found.ranks[0].waiting == [0.3, 0.1]


def test_a_step_takes_what_lies_between_it_and_the_step_before() -> None:
    rows = [row("start", 0, 100.0)]
    for n in range(1, 101):
        at = 101.0 + n + (5.0 if n > 50 else 0.0)
        rows += [row("checkpoint", n - 1, at, seconds=0.5, stall=0.0)] if n > 1 else []
        rows += [row("step", n, at, loss=1.0), row("ranks", n, at, waiting=[], batches=[])]
        rows += [row("eval", n, at + 5.0, loss=1.0)] if n == 50 else []
    found = history(rows)
    assert {step.seconds for step in found.steps} == {None, 1.0}
    assert found.step_s == 1.0
    assert found.goodput == pytest.approx(99 / 106)
    rows[-1] = row("step", 100, 0.0, loss=1.0)  # the clock was set back
    assert history(rows).steps[-1].seconds == 0.0


@pytest.mark.parametrize(
    ("status", "end", "reason"),
    [
        (Status("running", "a", 0), "running", ""),
        (Status("running", "a", 0, "rank 0: boom"), "lost", "rank 0: boom"),
        (Status("failed", "a", 0, "rank 0: boom"), "lost", "rank 0: boom"),
        (Status("running", "later", 0), "lost", ""),
        (None, "lost", ""),
    ],
)
def test_the_last_start_ends_as_the_status_says(
    status: Status | None, end: str, reason: str
) -> None:
    (start,) = history([row("start", 0, 1.0), row("step", 1, 2.0, loss=1.0)], status=status).starts
    assert (start.end, start.reason) == (end, reason)


def test_what_is_no_row_is_passed_over() -> None:
    lines = ["", "{", "[1]", '{"kind": "step"}', '{"kind": 1, "step": 1, "time": 1}']
    lines += [
        '{"kind": "step", "step": 1, "time": 2, "loss": "nan"}',
        '{"kind": "ranks", "step": 1, "time": 2}',
    ]
    rows = list(read(lines))
    assert [each["kind"] for each in rows] == ["step", "ranks"]
    found = history(rows)
    assert found.ranks == []
    assert found.steps[0].loss != found.steps[0].loss


class Parsed(HTMLParser):
    """The tags of a page, and whatever it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and not (value or "").startswith("#"):
                self.fetched.append(f"{tag} {name}={value}")


def whole() -> History:
    status = Status("done", "b", 10)
    manifest = {
        "settings": {"lr": 0.1},
        "facts": {"torch": "2.13.0"},
        "unit": "tokens",
        "units_per_step": 64,
        "code": "",
        "exact_on_any_world_size": False,
        "starts": [
            {"step": 8, "weights": "cd" * 32},
            {"step": 10, "weights": "ab" * 32, "receipt": "ef" * 32},
        ],
    }
    return history(killed_and_preempted(), Path("job"), status, manifest, "step-10/model.pt")


@pytest.mark.slow
def test_the_page_holds_everything_and_fetches_nothing() -> None:
    text = page(whole(), "a <job>")
    parsed = Parsed(text)
    assert parsed.fetched == []
    assert "script" not in parsed.tags
    assert parsed.tags.count("svg") == 5
    for said in (
        "a &lt;job&gt;", "10 of 10", "0.1000", "64", "tokens per second", "crashed or killed: rank 1: gone",
        "stopped: preempted", "2 steps", f"weights of step 10: sha256 <code>{'ab' * 32}", "ef" * 32, "2.13.0", "exact_on_any", "prefers-color-scheme: dark", "@media print",
    ):  # fmt: skip
        assert said in text, said
    assert text.count("<div><b>") % 4 == 0, "the tiles fill whole lines of four or two"
    assert "<th>code</th>" not in text, "a built-in workload has none"
    assert text.count("currentColor") > 20
    assert "#010203" not in text
    assert page(whole(), "a <job>") == text, "the same run gives the same page"


def test_without_matplotlib_the_page_has_all_but_the_curves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    text = page(whole(), "job")
    assert "matplotlib is not installed" in text
    assert "<svg" not in text
    assert "crashed or killed" in text


@pytest.mark.slow
def test_micro_batches_that_moved_have_a_table_and_others_none() -> None:
    assert "moved between ranks" not in page(whole(), "job")
    rows = [
        row("start", 0, 1.0),
        row("shares", 7, 2.0, shares=[5, 3]),
        row("shares", 8, 2.0, shares="x"),
    ]
    text = page(history(rows), "job")
    assert "<h2>Micro-batches that moved between ranks</h2>" in text
    assert "<th>from step</th>\n<th>rank 0</th><th>rank 1</th></tr>" in text
    assert text.count("<tr><td>8</td><td>5</td><td>3</td></tr>") == 1
    many = [row("shares", n, 2.0, shares=[5, 3]) for n in range(60)]
    text = page(history([rows[0], *many]), "job")
    assert "the last 50 of 60 changes" in text
    assert ("<tr><td>10</td>" in text, "<tr><td>11</td>" in text) == (False, True)


@pytest.mark.slow
def test_each_recovery_has_its_stages_and_what_was_lost() -> None:
    # The launcher restarts its workers in place, then it is lost with them; the last step before each was at 108 and 128.5.
    second = {"launcher": 90.0, "process": 110.0, "torch import": 114.0, "first step": 121.0}
    third = {
        "launcher": 190.5,
        "process": 192.5,
        "torch import": 195.0,
        "rendezvous": 196.0,
        "first step": 209.0,
    }
    starts = [
        {"attempt": "a", "generation": 1, "stages": {"first step": 103.0}},
        {"attempt": "a", "generation": 2, "stages": second},
        {"attempt": "b", "generation": 1, "stages": third},
    ]  # fmt: skip
    found = history(killed_and_preempted(), manifest={"starts": starts})
    assert [start.recovery for start in found.starts] == [
        {},
        {"detection and clean-up": 2.0, "torch import": 4.0, "first step": 7.0},
        {
            "detection and clean-up": 62.0, "launch": 2.0, "torch import": 2.5, "rendezvous": 1.0, "first step": 13.0,
        },
    ]  # fmt: skip
    assert [start.repeated_s for start in found.starts] == [2.0, 0.0, 0.0]
    text = page(found, "job")
    cells = ["2", "2.00", "", "4.00", "", "7.00", "2.00", "15.00"]
    assert f"<tr>{''.join(f'<td>{each}</td>' for each in cells)}</tr>" in text
    strange = [{}, 1, {"attempt": "a", "generation": 2, "stages": {"process": "x"}}]
    for starts in (strange, None):  # type: ignore[assignment]
        assert "<h2>Recoveries</h2>" not in page(
            history(killed_and_preempted(), manifest={"starts": starts}), "job"
        )


def test_a_run_without_a_step_has_a_page() -> None:
    text = page(history([row("start", 0, 1.0)]), "job")
    assert "<svg" not in text
    assert "0%" in text


@pytest.mark.slow
def test_the_command_writes_the_page_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in killed_and_preempted())
    )
    write_status(tmp_path, Status("done", "b", 10))
    place = tmp_path / "step-000000010"
    place.mkdir()
    (place / "checkpoint.json").write_text("{}")
    start = {"step": 10, "weights": "cd" * 32}
    (tmp_path / "manifest.json").write_text(json.dumps({"starts": [start]}))
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/report.html\n"
    assert "cd" * 32 in (tmp_path / "report.html").read_text()
    assert load(tmp_path).checkpoint == "step-000000010/model.pt"


@pytest.mark.slow
def test_the_end_of_a_long_run_writes_it_and_never_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(lasted_s: float) -> str:
        say_report(tmp_path, lasted_s)
        return capsys.readouterr().err

    monkeypatch.chdir(Path(__file__).parents[2])
    assert said(100.0) == ""  # a script's run has no metrics
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in killed_and_preempted())
    )
    assert said(59.0) == ""
    assert not (tmp_path / "report.html").exists()
    assert said(61.0).endswith(f": {tmp_path}/report.html\n")
    assert "<svg" in (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    (tmp_path / "report.html").mkdir()
    assert said(61.0) == ""


def test_a_directory_without_a_run_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(
        f"python -m train report: {tmp_path}/metrics.jsonl: No such file"
    )
    assert list(tmp_path.iterdir()) == []


def width_in_browser(text: str, directory: Path, window: int) -> int:
    """The width of the page in a window of this width: larger if it has a horizontal bar."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium, "apt install chromium"
    script = "<script>document.title = document.documentElement.scrollWidth</script></body>"
    (directory / "page.html").write_text(text.replace("</body>", script))
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={window},2000",
         "--dump-dom", f"file://{directory}/page.html"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r"<title>(\d+)</title>", done.stdout)
    assert found is not None, done.stderr
    return int(found[1])


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize("width", [1200, 480])
def test_a_browser_shows_it_without_a_horizontal_bar(tmp_path: Path, width: int) -> None:
    # headless windows are 500 pixels wide at least
    assert width_in_browser(page(whole(), "job"), tmp_path, width) <= max(width, 500)
