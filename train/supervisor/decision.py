"""What a signal means, and what the end of the workers means: functions over values.

Owns the decisions that all tiers share and the exit codes. Reads no file and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from train.errors import EXIT_FAILED, EXIT_STOPPED
from train.status import Status


@dataclass(frozen=True)
class Request:
    """What is to be done about a signal. `action`: stop (after the current step), end (the launcher, as
    nobody looks for a stop file yet), kill. `message`: "" where it was said before. `words`: the stop
    file's first line."""

    action: str
    message: str
    words: str = ""


@dataclass(frozen=True)
class End:
    """How the workers of this host ended.

    `code`: the launcher's exit code, 128 + N for signal N. `status`: what the attempt wrote last; None
    when that is another attempt's, or unreadable. `met`: whether the processes of all hosts have met.
    """

    code: int
    status: Status | None
    stops: int = 0
    killed: bool = False
    met: bool = True


@dataclass(frozen=True)
class Outcome:
    """The exit code of the supervisor, and its last lines. `failure`: why it failed, for the status that the
    workers have left at `running`; "" where that is not known."""

    code: int
    lines: tuple[str, ...] = ()
    failure: str = ""


def on_signal(name: str, stops: int, met: bool, driven: bool = False) -> Request:
    """What a signal means to a user's own launch: a stop, then at the second Ctrl-C or TERM a kill.

    A closing terminal may send HUP twice. KILL is a driver's word. `stops`: how often a stop was asked for
    before. `driven`: a driver sent it, which says by itself how to kill.
    """
    if name == "KILL" or (stops and name != "HUP"):
        return Request("kill", "killing the job; the next start goes on from its newest checkpoint")
    if not met:
        return Request("end", f"{name}: stopping before the training begins")
    kill = "" if driven else "; again to kill"
    return Request("stop", f"{name}: asking for a clean stop{kill}")


def at_end(end: End, results: str = "", again: str = "") -> Outcome:
    """What the end of the workers means. torchrun's exit code says 1 for nearly everything: what counts is the
    status. `results`: where they are, in words; `again`: what to type to go on."""
    status = end.status
    if status is None:
        taken = "the status is not of this attempt: another job has taken over"
        return Outcome(EXIT_FAILED, (taken,))
    at = f" at step {status.step}" if status.step else ""  # a user's script counts its steps itself
    if status.word == "done":
        early = f" ({status.reason})" if status.reason else ""
        where = f"; {results}" if results else ""
        return Outcome(0, (f"done{at}{early}{where}",))
    if status.word == "stopped":
        return Outcome(EXIT_STOPPED, (f"stopped{at}; to go on: {again}",))
    if status.word == "failed":
        return Outcome(EXIT_FAILED, (f"failed{at}: {status.reason or 'no reason given'}",))
    if end.stops and not end.killed and not end.met:
        return not_begun(again)
    goes_on = (f"to go on: {again}",) if again else ()
    # The driver takes "failed: " and "crashed: " for the reason of a host's end (ddpgen/driver/ends.py).
    if end.killed:
        return Outcome(
            EXIT_FAILED, ("; ".join(("killed", *goes_on)),), "killed, as it was asked to"
        )
    return Outcome(EXIT_FAILED, (f"crashed: {crash(end)}", *goes_on), status.reason)


def crash(end: End) -> str:
    """Why the workers have ended, who have not said that it is for good: the last crash they noted, if any."""
    if end.status is not None and end.status.reason:
        return end.status.reason
    if end.code > 128:
        return f"the launcher was killed by signal {end.code - 128}"
    return f"the launcher ended with code {end.code} and no process said why, as when one is killed"


def not_begun(again: str) -> Outcome:
    """A stop before the workers were started, or had met."""
    goes_on = f"; to go on: {again}" if again else ""
    return Outcome(EXIT_STOPPED, (f"stopped before the training began{goes_on}",))
