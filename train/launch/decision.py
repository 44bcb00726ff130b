"""Pure decisions: how to react to a signal, and how to report the end of the workers.

Owns the exit codes, and the decisions that all tiers share. Reads no file and no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from train.base.errors import EXIT_FAILED, EXIT_STOPPED
from train.run.status import Status

GO_ON, ANEW, AGAIN = "to resume", "to start over", "to start it again"
# The kinds of end. The first three are final statuses.
DONE, STOPPED, FAILED = "done", "stopped", "failed"
NOT_BEGUN, KILLED, CRASHED, TAKEN = "not begun", "killed", "crashed", "taken over"
# The exit codes of a launch by a user; for the other kinds EXIT_FAILED. Tiers with a scheduler have their own.
CODES = {DONE: 0, STOPPED: EXIT_STOPPED, NOT_BEGUN: EXIT_STOPPED}
_NOT_BEGUN, _NO_REASON = "stopped before the training began", "no reason given"


@dataclass(frozen=True)
class Request:
    """The reaction to a signal. `action`: stop (after the current step), end (the launcher, because nobody looks for a
    stop file yet), leave (end the launcher; the other hosts go on) or kill. `message`: the line to print; "" if it was
    printed before. `words`: the stop file's first line."""

    action: str
    message: str
    words: str = ""


@dataclass(frozen=True)
class End:
    """How the workers of this host ended.

    `code`: the launcher's exit code, 128 + N for signal N. `status`: the last status of the attempt; None if the file
    is unreadable or another attempt's. `met`: True if the processes of all hosts have met. `next`: the purpose of
    another start (see goes_on); "" if this host does not know it.
    """

    code: int
    status: Status | None
    stops: int = 0
    killed: bool = False
    met: bool = True
    next: str = GO_ON


@dataclass(frozen=True)
class ExitReport:
    """The exit code of the supervisor, and its last lines. `reason`: why it ended, for the status and for the driver of
    several hosts; "" if the first line says it. `crashed`: another start may cure it. `comes_back`: the scheduler
    starts the job again."""

    code: int
    lines: tuple[str, ...] = ()
    reason: str = ""
    crashed: bool = False
    comes_back: bool = False

    @property
    def why(self) -> str:
        """The reason in one line: `reason`, or else the first line; "" without both."""
        return self.reason or "".join(self.lines[:1])


def on_signal(name: str, stops: int, met: bool, driven: bool = False) -> Request:
    """React to a signal in a user's own launch: stop at the first one, kill at the second Ctrl-C or TERM.

    A second HUP does not kill, because a closing terminal may send two. KILL is the driver's word. `stops`: how often a
    stop was asked for before. `driven`: a driver sent the signal, and tells the user itself how to kill.
    """
    if name == "KILL" or (stops and name != "HUP"):
        return Request("kill", "killing the job; what it has not saved is lost")
    if not met:
        return Request("end", f"{name}: stopping before the training begins")
    kill = "" if driven else "; again to kill"
    return Request("stop", f"{name}: asking for a clean stop{kill}")


class Outcome(NamedTuple):
    """The judgement of an end, which all tiers share.

    `kind`: one of the kinds above. `line`: the sentence for the user. `reason`: why it ended, for the status; "" if the
    line says it.
    """

    kind: str
    line: str
    reason: str = ""


def judge(end: End) -> Outcome:
    """Judge the end of the workers. The status decides, because torchrun's exit code is 1 for nearly everything."""
    status = end.status
    if status is not None and status.word in (DONE, STOPPED, FAILED):
        return Outcome(status.word, final(status), status.reason)
    if end.stops and not end.killed and not end.met:
        return Outcome(NOT_BEGUN, _NOT_BEGUN, _NOT_BEGUN)
    if status is None:
        return Outcome(TAKEN, "the status is not of this attempt: another job has taken over")
    if end.killed:
        # A driver kills this host if another one crashed or was lost. This host may have noted that as its own crash.
        noted = f"; the last crash: {status.reason}" if status.reason else ""
        return Outcome(KILLED, "killed", f"killed, as it was asked to{noted}")
    why = _crash(end.code, status)
    return Outcome(CRASHED, f"crashed: {why}", why)


def final(status: Status) -> str:
    """Return the final status as a sentence without its period."""
    at = f" at step {status.step}" if status.step else ""  # a user's script counts its steps itself
    if status.word == DONE:
        early = f" ({status.reason})" if status.reason else ""
        return f"done{at}{early}"
    if status.word == FAILED:
        return f"failed{at}: {status.reason or _NO_REASON}"
    return f"{status.word}{at}"


def at_end(end: End, results: str = "", again: str = "") -> ExitReport:
    """Turn the end of the workers into a report. `results`: where the results are, in words. `again`: the command that
    starts the job again."""
    kind, line, reason = judge(end)
    starts_again = (f"{end.next}: {again}",) if again and end.next else ()
    if kind == NOT_BEGUN:
        return not_begun(again)
    if kind == DONE and results:
        line = f"{line}; {results}"
    if kind in (STOPPED, KILLED):
        line = "; ".join((line, *starts_again))
    lines = (line, *starts_again) if kind == CRASHED else (line,)
    why = (reason or _NO_REASON) if kind in (FAILED, KILLED, CRASHED) else ""
    code = CODES.get(kind, EXIT_FAILED)
    return ExitReport(code, lines, why, crashed=kind in (KILLED, CRASHED))


def word_of(code: int) -> str:
    """Return the final status for an exit code, for a job whose processes have left the status at `running`."""
    return {0: DONE, EXIT_STOPPED: STOPPED}.get(code, FAILED)


def _crash(code: int, status: Status) -> str:
    """Return why workers without a final status have ended: the last crash that they noted, or the launcher's code."""
    if status.reason:
        return status.reason
    if code > 128:
        return f"the launcher was killed by signal {code - 128}"
    return f"the launcher ended with code {code} and no process said why, as when one is killed"


def goes_on(program: Sequence[str], saved: bool) -> str:
    """Return the purpose of another start of `program`, the words of the command: GO_ON or ANEW, or AGAIN if nobody can
    know. `saved`: a checkpoint was written, or a user's script was seen to save something."""
    options = list(itertools.takewhile(lambda word: word.startswith("--"), program[1:]))
    if "--probe" in options or "--from-scratch" in options:
        return ANEW
    if saved:
        return GO_ON
    if program[0] != "script":
        return f"{ANEW}, as no checkpoint was written"
    # ddpgen does not see the saves of a program, nor all the files that `resume.exists` may name.
    unseen = "--no-python" in options or any(o.startswith("--resume-exists") for o in options)
    return AGAIN if unseen else f"{ANEW}, as nothing was seen to be saved"


def not_begun(again: str) -> ExitReport:
    """Report a stop before the workers were started, or before they had met."""
    starts = f"; to start it: {again}" if again else ""
    return ExitReport(CODES[NOT_BEGUN], (f"{_NOT_BEGUN}{starts}",), _NOT_BEGUN)
