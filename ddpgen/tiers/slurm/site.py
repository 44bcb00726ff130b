"""Ask Slurm about its site, here or on a login node."""

from __future__ import annotations

from typing import NamedTuple

from ddpgen.errors import TargetUnavailableError
from ddpgen.monitor.places import Machine
from ddpgen.tiers.slurm import profile, survey
from ddpgen.tiers.slurm.place import machine


class Profile(NamedTuple):
    """A profile as text. `unknown`: the commands without an answer, each with the reason."""

    text: str
    unknown: tuple[str, ...]


def describe(login: str | None) -> Profile:
    """Return the profile of the cluster here, or behind a login node.

    Raises TargetUnavailableError if the login node cannot be reached, or has no Slurm.
    """
    answers, unknown = {}, []
    with machine(login, ".", "~", ()) as control:
        user = control.run(["id", "-un"]).output.strip()
        for name, argv in survey.questions(user).items():
            answers[name], problem = _answer(control, argv)
            if problem:
                unknown.append(f"{' '.join(argv)} ({problem})")
        if not any(answers.values()):
            place = control.name or "this machine"
            remedy = "name a login node of the cluster: --login user@host"
            raise TargetUnavailableError(
                f"Slurm gives no answer on {place}: {unknown[0]}; {remedy}"
            )
    site = survey.read(survey.Answers(**answers))
    return Profile(profile.as_yaml(site, login, unknown), tuple(unknown))


def _answer(control: Machine, argv: list[str]) -> tuple[str, str]:
    """Return the answer of a program, or "" and the reason for the silence."""
    try:
        answer = control.run(argv)
    except TargetUnavailableError as error:
        return "", str(error).partition("; ")[0]
    if answer.code == 0:
        return answer.output, ""
    lines = [line.strip() for line in answer.output.splitlines() if line.strip()]
    return "", lines[0] if lines else f"exit code {answer.code}"
