"""The report of a sweep: the order of its points, their curves over each other, and the page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.train.test_report import Parsed, row, width_in_browser
from train.run.status import Status, write_status
from train.tools.report import plots, sweep
from train.tools.report.command import main
from train.tools.report.history import history
from train.tools.report.plots import Curve
from train.tools.report.sweep import Best, Point

NAN = math.nan


def at(name: str, loss: float, evaluation: float | None = None, best: Any = None) -> Point:
    row = {} if evaluation is None else {"step": 9, "time": 1.0, "loss": evaluation}
    chosen = Best("accuracy", best[0], best[1], 9) if best else None
    return Point(name, None, "9", loss, row, best=chosen)


# The points as they are declared, their names in order, and the measure.
ORDERS: list[tuple[list[Point], str, str]] = [
    ([at("a", 3), at("b", 1), Point("c"), at("d", NAN), at("e", 2)], "b e a d c", "newest training loss"),
    ([at("a", 1), at("b", 1)], "a b", "newest training loss"),
    ([at("a", 1, 2), at("b", 2, 1), at("c", 0), at("d", 0, NAN), at("e", 0, -math.inf)], "b a d e c", "newest evaluation loss"),
    ([at("a", 1, 1, ("max", 0.1)), at("b", 2, 2, ("max", 0.9)), at("c", 3, 3)], "b a c", "best accuracy"),
    ([at("a", 1, 1, ("min", 0.1)), at("b", 2, 2, ("min", 0.9))], "a b", "best accuracy"),
    ([at("a", 1, 1, ("min", 0.9)), at("b", 2, 2, ("max", 0.1))], "a b", "newest evaluation loss"),
    ([Point("a", best=Best("accuracy", "max", 1.0, 3)), at("b", 1, 1, ("max", 0.1))], "b a", "best accuracy"),
]  # fmt: skip


@pytest.mark.parametrize(("points", "names", "measure"), ORDERS)
def test_the_best_point_comes_first(points: list[Point], names: str, measure: str) -> None:
    ranking = sweep.ranked(points)
    assert " ".join(point.name for point in ranking.points) == names
    assert ranking.measure == measure
    assert len(ranking.values) == len(points)


def test_ten_lines_look_different_and_all_others_are_grey() -> None:
    pens = [plots.pen(place) for place in range(60)]
    assert len({(color, dash) for color, _, dash in pens[:10]}) == 10
    assert {pen.color for pen in pens[10:]} == {plots.GREY}
    assert plots.GREY not in {pen.color for pen in pens[:10]}
    assert pens[0].width > 1.5 * max(pen.width for pen in pens[1:])


def test_a_long_curve_is_drawn_by_means_with_a_gap_where_it_is_not_finite() -> None:
    values = [float(n % 5) for n in range(1000)]
    values[500], values[999] = NAN, math.inf
    steps, means = plots.averaged(range(1, 1001), values)
    assert (len(steps), steps[0], steps[-1], means[0]) == (200, 3.0, 998.0, 2.0)
    assert [n for n, mean in enumerate(means) if math.isnan(mean)] == [100, 199]
    assert plots.averaged([1, 2], [5.0, 4.0]) == ([1, 2], [5.0, 4.0])


LIMITS: list[tuple[list[list[float]], tuple[float | None, float | None]]] = [
    ([[2.0, 1.0], [3.0, 2.0]], (0.9, 3.1)),
    ([[2.0, 1.0], [3.0, 1e9]], (0.9, 3.1)),
    ([[2.0, NAN, 1.0], [3.0, NAN]], (0.9, 3.1)),
    ([[NAN], [2.0, 1.0], [1e9]], (0.95, 2.05)),
    ([[0.0], [0.0]], (None, None)),
    ([[NAN], [NAN]], (None, None)),
]


@pytest.mark.parametrize(("curves", "expected"), LIMITS)
def test_a_curve_that_diverges_leaves_the_picture(
    curves: list[list[float]], expected: tuple[float | None, float | None]
) -> None:
    drawn = [Curve(n, range(len(values)), values) for n, values in enumerate(curves)]
    assert plots.limits(drawn) == pytest.approx(expected)
    assert plots.overlaid(drawn).startswith("<svg")


def trained(directory: Path, status: str, steps: int, loss: float = 1.0, every: int = 2) -> Path:
    """The directory of a point. `loss`: of its last step, nan if it has diverged halfway."""
    directory.mkdir(parents=True)
    rows = [row("start", 0, 100.0, world_size=1, last_step=8)]
    for n in range(1, steps + 1):
        value = loss + steps - n
        shown = (
            "nan" if math.isnan(value) and n > steps / 2 else 5.0 if math.isnan(value) else value
        )
        rows.append(row("step", n, 100.0 + n, loss=shown))
        if n % every == 0:
            rows.append(row("eval", n, 100.0 + n, loss=shown, accuracy=0.1 * n, confusion=[1, 2]))
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (directory / "metrics.jsonl").write_text(text + '{"kind": "st')  # the row that is being written
    word, _, reason = status.partition(": ")
    write_status(directory, Status(word, "a", steps, reason))
    (directory / "manifest.json").write_text('{"settings": {"global_batch_size": 8}}')
    return directory


@pytest.mark.slow
def test_the_page_has_every_point_in_each_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "grid"
    shorter = trained(grid / "lr=1", "running: rank 1: gone", 4, 2.0)
    done = trained(grid / "lr=2", "done", 8)
    (done / "report.html").touch()
    diverged = trained(grid / "lr=9", "failed: rank 0: <nan>", 6, NAN)
    broken = grid / "lr=0"
    (broken / "metrics.jsonl").mkdir(parents=True)
    missing = grid / "lr=3"
    points = [str(each) for each in (broken, missing, diverged, shorter, done)]
    assert main(points) == 0
    assert capsys.readouterr().out == f"{grid}/report.html\n"
    text = (grid / "report.html").read_text()
    parsed = Parsed(text)
    assert parsed.fetched == ["a href=lr=2/report.html"]
    assert "script" not in parsed.tags
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert captions == ["Training loss", "Evaluation: accuracy", "Evaluation: loss"]
    table = text.partition("<h2>Points</h2>")[2]
    rows = [
        [re.sub("<.*?>", "", each).strip() for each in re.findall(r"<t[hd].*?</t[hd]>", line)]
        for line in re.findall(r"(?s)<tr>.*?</tr>", table)
    ]
    assert rows == [
        ["point", "state", "step", "loss", "evaluation", "speed", "page"],
        ["lr=2", "done", "8 of 8", "1.0000", "loss 1.0000, accuracy 0.8000 at step 8", "8 samples/s", "report"],
        ["lr=1", "running", "4 of 8", "2.0000", "loss 2.0000, accuracy 0.4000 at step 4", "8 samples/s", ""],
        ["lr=9", "failed: rank 0: &lt;nan&gt;", "6 of 8", "nan", "loss nan, accuracy 0.6000 at step 6", "8 samples/s", ""],
        ["lr=0", "unreadable: it is no ordinary file", "", "", "", "", ""],
        ["lr=3", "waiting", "", "", "", "", ""],
    ]  # fmt: skip
    assert "best: <b>lr=2</b>, newest evaluation loss 1.0000" in text
    assert (
        "5 points: 1 done, 1 running, 1 failed, 1 unreadable, 1 waiting; in the order of the newest"
        in text
    )
    keys = text[text.index('<div class="keys">') : text.index('<div class="plots">')]
    assert re.sub("<.*?>", "", keys).split() == ["lr=2", "lr=1", "lr=9"]
    assert main([*points, "-o", str(tmp_path / "elsewhere.html")]) == 0
    assert Parsed((tmp_path / "elsewhere.html").read_text()).fetched == [
        "a href=grid/lr=2/report.html"
    ]


def test_the_best_by_train_best_has_its_own_column(tmp_path: Path) -> None:
    for name, accuracy in (("a", 0.5), ("b", 0.75)):
        directory = trained(tmp_path / name, "done", 4)
        best = {"metric": "accuracy", "mode": "max", "value": accuracy, "step": 2, "weights": "w"}
        (directory / "best.json").write_text(json.dumps(best))
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "best: <b>b</b>, best accuracy 0.7500" in text
    assert text.index("<th>best accuracy</th>") < text.index("<td>0.7500 at step 2</td>")
    assert text.index("<td>0.7500 at step 2</td>") < text.index("<td>0.5000 at step 2</td>")


def sixty() -> str:
    rows = [row("step", n, 100.0 + n, loss=1.0 / n) for n in range(1, 9)]
    return sweep.page([sweep.point(history(rows), f"seed={n}") for n in range(60)], "grid")


def test_sixty_points_are_ten_names_and_one_for_the_others() -> None:
    text = sixty()
    keys = text[text.index('<div class="keys">') : text.index('<div class="plots">')]
    names = re.sub("<.*?>", " ", keys).split()
    assert names == [*(f"seed={n}" for n in range(10)), "50", "others"]
    assert text.count('<svg class="key"') == 11 + 60
    assert sixty() == text, "the same sweep gives the same page"


def test_without_matplotlib_the_page_has_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    text = sixty()
    assert "matplotlib is not installed" in text
    assert "<svg" not in text
    assert text.count("<tr>") == 61


def test_points_without_a_step_have_a_page_and_scripts_of_ones_own_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(tmp_path / name) for name in ("a", "b")]
    assert main(names) == 0
    text = (tmp_path / "report.html").read_text()
    assert "2 points: 2 waiting; " in text
    assert "<svg" not in text
    (tmp_path / "b" / "script").mkdir(parents=True)
    assert main(names) == 1
    assert "script of your own" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize("width", [1200, 480])
def test_a_browser_shows_sixty_points_without_a_horizontal_bar(tmp_path: Path, width: int) -> None:
    assert width_in_browser(sixty(), tmp_path, width) <= max(width, 500)
