"""A run as one HTML page. The form of all pages: self-contained, no script, for light and dark mode and for print."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from train.base.console import clock
from train.run.provenance import weights_of
from train.tools.report import plots
from train.tools.report.history import RECOVERY, History, Start

FILE = "report.html"
_MOST_ROWS = 50
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #fff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117; --card: #161b22; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; color: var(--soft); } code { font-size: .9em; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: .75rem; margin: 1.2rem 0 .75rem; }
@media (max-width: 45rem) { .cards { grid-template-columns: repeat(2, 1fr); } }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.cards b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; white-space: nowrap; } .cards span { color: var(--soft); }
.plots { display: grid; margin-top: 1.2rem; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; break-inside: avoid; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } .starts td { white-space: nowrap; }
.starts td:nth-child(3) { white-space: normal; min-width: 16rem; }
.lost, .failed { color: #d1242f; font-weight: 600; } .done { color: #1a7f37; font-weight: 600; }
@media print { body { max-width: none; padding: 0; } }
"""


def page(history: History, name: str) -> str:
    """Return the whole page. `name`: the job's name."""
    parts = [*_head(history, name), *_cards(history), *_curves(history), *_starts(history)]
    parts += [
        *_recoveries(history),
        *_moves(history),
        *_settings("Settings", history.manifest.get("settings")),
        *_facts(history),
    ]
    return document(name, parts)


def document(name: str, parts: Iterable[str], style: str = "") -> str:
    """Return a page of these parts. `style`: rules that only this page needs."""
    body = "\n".join(parts)
    title = f"<title>{escape(name)}: ddpgen report</title>"
    meta = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{meta}{title}<style>{_STYLE}{style}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _head(history: History, name: str) -> Iterator[str]:
    yield f"<h1>{escape(name)}</h1>"
    status = history.status
    word = status.word if status is not None else "unknown"
    reason = f": {escape(status.reason)}" if status is not None and status.reason else ""
    yield f'<p><span class="{escape(word)}">{escape(word)}</span>{reason}</p>'
    if history.checkpoint:
        yield f"<p>newest checkpoint: <code>{escape(history.checkpoint)}</code></p>"
    starts = history.manifest.get("starts")
    last = starts[-1] if isinstance(starts, list) and starts else None
    known = weights_of(last)
    if known is not None:
        yield f"<p>weights of step {known[0]}: sha256 <code>{escape(known[1])}</code></p>"
    if isinstance(last, dict) and isinstance(receipt := last.get("receipt"), str):
        yield f"<p>receipt of the steps: <code>{escape(receipt)}</code></p>"


def _cards(history: History) -> Iterator[str]:
    of = f" of {history.total_steps}" if history.total_steps else ""
    last = history.steps[-1] if history.steps else None
    per_step, unit = units(history)
    cards = [
        (f"{last.number if last else 0}{of}", "steps"),
        (f"{last.loss:.4f}" if last else "none", "loss"),
        (count(per_step / history.step_s) if history.step_s else "none", f"{unit} per second"),
        (f"{history.step_s * 1e3:.4g} ms" if history.step_s else "none", "median step"),
        (clock(history.wall_s), "from the first start"),
        (f"{history.goodput:.0%}", "goodput"),
        (str(len(history.starts)), "starts"),
        (str(history.lost_steps), "steps done twice"),
    ]
    yield '<div class="cards">'
    yield from (
        f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in cards
    )
    yield "</div>"
    yield (
        "<p>Goodput is the time in steps, as a part of all time from the first start. It leaves out each start up to the end of "
        "its first step, evaluations, waits for checkpoints, steps that were done again, and the time between two starts.</p>"
    )


def _curves(history: History) -> Iterator[str]:
    if not plots.available():
        yield "<p>No curves: matplotlib is not installed here (pip install matplotlib).</p>"
        return
    yield '<div class="plots">'
    if history.steps:
        yield figure("Loss", plots.loss(history))
        yield figure("Throughput", plots.speed(history, *units(history)))
    if history.ranks:
        yield figure("Where a step's time went", plots.step_time_parts(history))
        if len(history.ranks[-1].waiting) > 1:
            yield figure("The ranks compared", plots.ranks(history))
    if history.checkpoints:
        yield figure("Checkpoints", plots.checkpoints(history))
    yield "</div>"


def figure(caption: str, svg: str) -> str:
    """Return a drawing with its caption."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _starts(history: History) -> Iterator[str]:
    yield "<h2>Starts, restarts and stops</h2>"
    names = ("#", "steps", "end", "done again", "when", "for", "processes", "attempt")
    yield '<div class="scroll"><table class="starts"><tr>'
    yield "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    for start in history.starts:
        yield f"<tr>{''.join(cell(value) for value in _row(start))}</tr>"
    yield "</table></div>"


def _recoveries(history: History) -> Iterator[str]:
    restarts = [start for start in history.starts if start.recovery][-_MOST_ROWS:]
    if not restarts:
        return
    known = [stage for stage in RECOVERY if any(stage in start.recovery for start in restarts)]
    yield "<h2>Recoveries</h2>"
    yield "<p>Seconds from the last row before a start to its first step, and the time in the steps that were done again.</p>"
    names = ("#", *known, "steps done again", "lost in all")
    yield '<div class="scroll"><table><tr>'
    yield "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    for start in restarts:
        repeated_s = history.starts[start.number - 2].repeated_s
        values = [*(start.recovery.get(stage) for stage in known), repeated_s]
        values.append(sum(filter(None, values)))
        cells = "".join(f"<td>{'' if value is None else f'{value:.2f}'}</td>" for value in values)
        yield f"<tr><td>{start.number}</td>{cells}</tr>"
    yield "</table></div>"


def _moves(history: History) -> Iterator[str]:
    if not history.shares:
        return
    moves, more = history.shares[-_MOST_ROWS:], len(history.shares) - _MOST_ROWS
    yield "<h2>Micro-batches that moved between ranks</h2>"
    yield f"<p>share: auto{f', the last {_MOST_ROWS} of {len(history.shares)} changes' if more > 0 else ''}</p>"
    yield '<div class="scroll"><table><tr><th>from step</th>'
    size = max(len(counts) for _, counts in moves)
    yield "".join(f"<th>rank {rank}</th>" for rank in range(size)) + "</tr>"
    for step, counts in moves:
        cells = "".join(f"<td>{count}</td>" for count in counts)
        yield f"<tr><td>{step + 1}</td>{cells}</tr>"
    yield "</table></div>"


def _row(start: Start) -> Iterator[tuple[str, str]]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start.started))
    said = "crashed or killed" if start.end == "lost" else start.end
    yield str(start.number), ""
    yield f"{start.first_step} to {start.last_step}", ""
    yield f"{said}{': ' if start.reason else ''}{start.reason}", start.end
    yield f"{start.lost_steps} steps" if start.lost_steps else "", ""
    yield when, ""
    yield clock(start.ended - start.started), ""
    yield str(start.world_size or ""), ""
    yield f"{start.attempt} {start.generation}", ""


def cell(value: tuple[str, str]) -> str:
    """Return a cell of a table: its text, and its class or ""."""
    text, kind = value
    return f'<td class="{escape(kind)}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _facts(history: History) -> Iterator[str]:
    facts = history.manifest.get("facts")
    known = dict(facts) if isinstance(facts, Mapping) else {}
    for name in ("parameters", "code", "exact_on_any_world_size"):
        if history.manifest.get(name, "") != "":  # a built-in workload has no code of the user's
            known[name] = history.manifest[name]
    yield from _settings("What the bits depend on", known)


def _settings(title: str, values: Any) -> Iterator[str]:
    if not isinstance(values, Mapping) or not values:
        return
    yield f'<h2>{escape(title)}</h2><div class="scroll"><table>'
    for name, value in sorted(values.items()):
        shown = (
            ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, Mapping) else value
        )
        yield f"<tr><th>{escape(str(name))}</th><td><code>{escape(str(shown))}</code></td></tr>"
    yield "</table></div>"


def units(history: History) -> tuple[float, str]:
    """Return how much a step processes, and the unit: the workload's own, samples, or steps if nothing is known."""
    unit, per_step = history.manifest.get("unit"), history.manifest.get("units_per_step")
    if isinstance(unit, str) and isinstance(per_step, (int, float)):
        return float(per_step), unit
    settings = history.manifest.get("settings")
    size = settings.get("global_batch_size") if isinstance(settings, Mapping) else None
    return (float(size), "samples") if isinstance(size, int) else (1.0, "steps")


def count(number: float) -> str:
    """Return a number with three digits, or from 100 on with all digits before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
