"""The preflight at the beginning of a launch: check this host, check in with the others, print the findings.

Owns the printed text and preflight.json. Says why nothing may start; the launch then ends with exit code 69.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from train.base.console import plain, say
from train.base.files import replace_file
from train.preflight import checks, compare, phrases
from train.preflight.checks import BackgroundCall
from train.preflight.directory import TOKEN
from train.preflight.finding import ERROR, WARNING, Finding, eased, ordered
from train.preflight.report import Link, PreflightResult, Report
from train.preflight.settings import Settings
from train.run import lock
from train.run.layout import node_directory

FILE = "preflight.json"
_VERSION = 1
_LOOK_S = 2.0
_KEEP_S = 5.0  # to write preflight.json if nothing is wrong


def run(settings: Settings, has_driver: bool = False) -> str:
    """Run the preflight and print its findings. Return the reason why nothing may start, or "" if the launch may go on.

    `has_driver`: hosts/run.sh shows all hosts on one terminal.
    """
    # A file server may not answer, or may fail. The checks find that out and report it.
    for directory in (
        BackgroundCall(lambda: list(_ending(settings))).result(time.monotonic() + _LOOK_S) or ()
    ):
        lock.await_last_words(directory)
    check = _Check(settings, one_log=has_driver or settings.scheduled is not None)
    outcome = check.meet()
    findings = check.publish(outcome)
    if any(finding.is_error for finding in findings):
        why = _failed(findings)
        # The driver quotes the last line of each host.
        if has_driver or not check.stands_in_log(outcome):
            say(why)
        return why
    _say_passed(settings, outcome, findings)
    return ""


class _Check:
    """One host's check, and the findings that it has shown. `one_log`: all hosts write to one log or terminal."""

    def __init__(self, settings: Settings, one_log: bool) -> None:
        self._settings, self._one_log = settings, one_log
        self._shown: list[Finding] = []
        self._published_findings: Sequence[Finding] | None = None
        # The head calls publish() in a thread, and may give up waiting for that thread.
        self._publishing = threading.Lock()

    def meet(self) -> PreflightResult:
        """Check this host, and check in with the others if there are any."""
        settings = self._settings
        if not settings.alone:
            from train.preflight import checkin  # slow to import, and not needed on one machine

            return checkin.meet(settings, self._examine, self._judge, self.publish, say)
        began = time.monotonic()
        report = self._report()
        took = time.monotonic() - began
        return PreflightResult(ordered(report.findings), [report], [], took, secrets.token_hex(8))

    def publish(self, outcome: PreflightResult) -> list[Finding]:
        """Write preflight.json, show the findings that were not shown yet, and return all findings."""
        findings = _apply_ignore(self._settings, outcome.findings)
        with self._publishing:
            if self._published_findings is not outcome.findings:
                self._published_findings = outcome.findings
                record_path = _write_record(self._settings, outcome, findings)
                if not self.stands_in_log(outcome):
                    self._show([f for f in findings if f not in self._shown], record_path)
        return findings

    def stands_in_log(self, outcome: PreflightResult) -> bool:
        """True if this host prints nothing, because the head shows the findings in the log that both write to."""
        return self._one_log and outcome.shown and not self._settings.is_head

    def _report(self) -> Report:
        report = checks.examine(self._settings)
        return replace(report, findings=_apply_ignore(self._settings, report.findings))

    def _examine(self) -> Report:
        report = self._report()
        if not self._one_log:  # with one log, the head shows all findings in one table
            # A paused terminal must not hold up the other hosts.
            show = BackgroundCall(lambda: self._show(report.findings, None))
            show.result(time.monotonic() + _LOOK_S)
        return report

    def _judge(self, reports: Sequence[Report], links: Sequence[Link]) -> list[Finding]:
        return _apply_ignore(self._settings, compare.judge(self._settings, reports, links))

    def _show(self, findings: Sequence[Finding], record_path: Path | None) -> None:
        if findings:
            self._shown.extend(findings)
            _print(findings, record_path)


def _ending(settings: Settings) -> Iterator[Path]:
    """Yield the directories held by workers that are about to end because their launch script was killed.

    Such workers are no finding: run() waits for their end first.
    """
    with contextlib.suppress(OSError):
        for directory in (
            settings.checkpoint_dir,
            node_directory(settings.checkpoint_dir, settings.host_name),
        ):
            if lock.ending(directory, settings.scheduler):
                yield directory


def _apply_ignore(settings: Settings, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, where an error that the spec ignores has become a warning."""
    return [
        replace(finding, severity=WARNING)
        if finding.code in settings.ignore and finding.severity == ERROR
        else finding
        for finding in eased(findings, settings.check_only)
    ]


def _print(findings: Sequence[Finding], record_path: Path | None) -> None:
    # https://no-color.org
    colourless = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    text = phrases.table(findings, sys.stderr.isatty() and not colourless, record_path)
    # The terminal may be gone by now. That must not change the exit code.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _failed(findings: Sequence[Finding]) -> str:
    errors = [f"{f.code} on {plain(f.host)}" for f in findings if f.is_error]
    more = f" and {len(errors) - 3} more" if len(errors) > 3 else ""
    return f"preflight: {', '.join(errors[:3])}{more}; nothing was started"


def _say_passed(settings: Settings, outcome: PreflightResult, findings: Sequence[Finding]) -> None:
    ignored = sum(finding.code in settings.ignore for finding in findings)
    live = settings.check_only and any(finding.code == "DIR004" for finding in findings)
    when = " when the live one has ended" if live else ""
    took = f"({outcome.seconds:.2f} s" + (f", {ignored} ignored)" if ignored else ")")
    if settings.alone:
        if settings.check_only:
            say(f"preflight: this machine can start the job{when} {took}")
    elif outcome.joined:
        say("preflight: this host is fine; joining the run under way")
    elif settings.is_head:
        say(f"preflight: {len(outcome.reports)} hosts can start the job{when} {took}")
    elif settings.check_only:
        say(f"preflight: the head says that all hosts can start the job{when}")


def _write_record(
    settings: Settings, outcome: PreflightResult, findings: Sequence[Finding]
) -> Path | None:
    """Write preflight.json. Return its path, or None if it was not written or a file server does not answer.

    Only the head writes into a shared directory, because another host of a large job knows only its own report.
    """
    if settings.shared and not settings.is_head and not settings.alone:
        return None
    failed = any(finding.is_error for finding in findings)
    # Leave the preflight.json of a live job as it is: the refusal of this launch says nothing about that job.
    if any(f.code in ("DIR004", "DIR006") and f.host == settings.host_name for f in findings):
        return None

    def keep() -> Path | None:
        kept = _write_file(settings, outcome, findings, failed)
        if settings.is_head and not failed:
            with contextlib.suppress(OSError):  # every host has read the token
                (settings.checkpoint_dir / TOKEN).unlink(missing_ok=True)
        return kept

    keep_s = _LOOK_S if failed else _KEEP_S  # the findings are printed only after this wait
    return BackgroundCall(keep).result(time.monotonic() + keep_s)


def _write_file(
    settings: Settings, outcome: PreflightResult, findings: Sequence[Finding], failed: bool
) -> Path | None:
    """Write preflight.json. Return its path, or None if it cannot be written."""
    path = settings.checkpoint_dir / FILE
    content = {
        "version": _VERSION,
        "job": settings.job,
        "launch": outcome.launch,
        "host": settings.host_name,
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
        replace_file(path, json.dumps(content, indent=1).encode() + b"\n", sync=False)
    except OSError:
        return None  # a finding of its own says why the directory cannot be written to
    return path
