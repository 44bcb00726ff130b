"""The preflight as a launch begins with it: look at this host, check in with the others, say what is wrong.

Owns what is printed, preflight.json and the exit code: 0 go on, 69 something is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from train import lock
from train.console import plain, say
from train.errors import EXIT_UNAVAILABLE
from train.files import replace_file
from train.layout import node_directory
from train.preflight import checks, compare, phrases
from train.preflight.checks import Look
from train.preflight.directory import TOKEN
from train.preflight.finding import ERROR, WARNING, Finding, ordered
from train.preflight.report import Link, PreflightResult, Report
from train.preflight.settings import Settings

FILE = "preflight.json"
_VERSION = 1
_LOOK_S = 2.0
_KEEP_S = 5.0  # where it is all that is still to be done


def run(settings: Settings, only: bool, driven: bool = False) -> int:
    """Check, and say what is wrong; the exit code. `only`: nothing will be started after it. `driven`:
    all hosts speak on one terminal."""
    # A file server may not answer, or complain; that is found out, and said, by the checks.
    for place in Look(lambda: list(_ending(settings))).result(time.monotonic() + _LOOK_S) or ():
        lock.await_last_words(place)
    own: list[Finding] = []
    outcome = _meet(settings, own)
    findings = _judged(settings, outcome.findings)
    failed = any(finding.is_error for finding in findings)
    kept = _kept(settings, outcome, findings, failed)
    # Driven, all hosts speak on one terminal: the head tells what concerns all.
    brief = driven and not settings.is_head and any(f.host != settings.me for f in findings)
    shown = [f for f in findings if f.host == settings.me] if brief else findings
    if fresh := [f for f in shown if f not in own]:
        _show(fresh, kept)
    if failed:
        _say_failed(findings)
        return EXIT_UNAVAILABLE
    ignored = [f for f in findings if f.code in settings.ignore]
    _say_passed(settings, outcome, only, f", {len(ignored)} ignored" if ignored else "")
    return 0


def _ending(settings: Settings) -> Iterator[Path]:
    """Where workers whose launch script was killed are about to end: they are no fault of this launch."""
    with contextlib.suppress(OSError):
        for place in (
            settings.checkpoint_dir,
            node_directory(settings.checkpoint_dir, settings.me),
        ):
            holder = lock.read_lock(place)
            if (
                holder
                and not lock.is_same_job(holder, settings.scheduler)
                and lock.is_ending(holder)
            ):
                yield place


def _meet(settings: Settings, own: list[Finding]) -> PreflightResult:
    """`own`: gets what this host found by itself and has shown already, if it has to meet others."""

    def examine() -> Report:
        report = checks.examine(settings)
        return replace(report, findings=_judged(settings, report.findings))

    def examine_and_show() -> Report:
        report = examine()
        if report.findings:
            own.extend(report.findings)
            # A terminal may be paused: that holds up nobody else.
            Look(lambda: _show(report.findings, None)).result(time.monotonic() + _LOOK_S)
        return report

    def judge(reports: Sequence[Report], links: Sequence[Link]) -> list[Finding]:
        return _judged(settings, compare.judge(settings, reports, links))

    if not settings.alone:
        from train.preflight import checkin  # slower to import, and one machine needs none

        return checkin.meet(settings, examine_and_show, judge, say)
    began = time.monotonic()
    report = examine()
    took = time.monotonic() - began
    return PreflightResult(ordered(report.findings), [report], [], took, secrets.token_hex(8))


def _judged(settings: Settings, findings: Sequence[Finding]) -> list[Finding]:
    """What the spec ignores is still told, as a warning."""
    return [
        replace(finding, severity=WARNING)
        if finding.code in settings.ignore and finding.severity == ERROR
        else finding
        for finding in findings
    ]


def _show(findings: Sequence[Finding], kept: Path | None) -> None:
    # https://no-color.org
    colourless = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    text = phrases.table(findings, sys.stderr.isatty() and not colourless, kept)
    # The terminal may be gone by now; that is no reason to fail otherwise than we do.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _say_failed(findings: Sequence[Finding]) -> None:
    errors = [f"{f.code} on {plain(f.host)}" for f in findings if f.is_error]
    more = f" and {len(errors) - 3} more" if len(errors) > 3 else ""
    say(f"preflight: {', '.join(errors[:3])}{more}; nothing was started")


def _say_passed(settings: Settings, outcome: PreflightResult, only: bool, ignored: str) -> None:
    if settings.alone:
        if only:
            say(f"preflight: this machine can start the job ({outcome.seconds:.2f} s{ignored})")
    elif outcome.joined:
        say("preflight: this host is fine; joining the run under way")
    elif settings.is_head:
        count = len(outcome.reports)
        say(f"preflight: {count} hosts can start the job ({outcome.seconds:.2f} s{ignored})")
    elif only:
        say("preflight: the head says that all hosts can start the job")


def _kept(
    settings: Settings, outcome: PreflightResult, findings: Sequence[Finding], failed: bool
) -> Path | None:
    """Where preflight.json lies; None where it does not, or where a file server does not answer."""
    # A live job's own record stays; that this one was refused is no news of that one.
    if any(f.code in ("DIR004", "DIR006") and f.host == settings.me for f in findings):
        return None

    def keep() -> Path | None:
        kept = _keep(settings, outcome, findings, failed)
        if settings.is_head and not failed:
            with contextlib.suppress(OSError):  # every host has read it
                (settings.checkpoint_dir / TOKEN).unlink(missing_ok=True)
        return kept

    keep_s = _LOOK_S if failed else _KEEP_S  # what is wrong is told after it
    return Look(keep).result(time.monotonic() + keep_s)


def _keep(
    settings: Settings, outcome: PreflightResult, findings: Sequence[Finding], failed: bool
) -> Path | None:
    """Write preflight.json; where it lies, or None where it cannot be written."""
    kept = settings.checkpoint_dir / FILE
    content = {
        "version": _VERSION,
        "job": settings.job,
        "launch": outcome.launch,
        "host": settings.me,
        "head": settings.head,
        "port": settings.port,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(outcome.seconds, 3),
        "ok": not failed,
        "findings": [vars(finding) for finding in findings],
        "hosts": [asdict(report) for report in outcome.reports],
        "links": [vars(link) for link in outcome.links],
    }
    try:
        replace_file(kept, json.dumps(content, indent=1).encode() + b"\n", sync=False)
    except OSError:
        return None  # why the directory cannot be written to is a finding by itself
    return kept
