"""The validation of one spec as a value, and its forms for programs. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ddpgen import api
from ddpgen.errors import DdpgenError, Finding, SpecInvalidError, report
from ddpgen.site.layers import Chosen


class Validation(NamedTuple):
    """The result for one spec. `tiers`: those that it is valid for. `error`: None for a valid spec."""

    spec: str
    tiers: tuple[str, ...]
    findings: tuple[Finding, ...]
    error: DdpgenError | None


def validate(spec: str, target: str, chosen: Chosen, strict: bool) -> Validation:
    """Check a spec for the tiers that `target` means. `strict`: warnings are errors."""
    try:
        read = api.read(spec, chosen)
        tiers, findings = read.resolve(target), read.validate(target)
        if strict and findings:
            raise SpecInvalidError(spec, [each._replace(fatal=True) for each in findings])
    except SpecInvalidError as error:
        return Validation(spec, (), tuple(error.findings), error)
    except DdpgenError as error:
        return Validation(spec, (), (), error)
    return Validation(spec, tuple(tiers), tuple(findings), None)


def warnings(result: Validation) -> list[str]:
    """Return the findings of a valid spec as lines."""
    return report(result.spec, result.findings) if result.error is None else []


def as_json(results: list[Validation]) -> str:
    """Return all results as a JSON array, one object for each spec."""
    import json

    return json.dumps([_facts(result) for result in results], indent=2, ensure_ascii=False)


def _facts(result: Validation) -> dict[str, Any]:
    return {
        "spec": result.spec,
        "valid": result.error is None,
        "tiers": list(result.tiers),
        "findings": [
            {
                "severity": "error" if finding.fatal else "warning",
                "file": finding.position.file or result.spec,
                "line": finding.position.line,
                "column": finding.position.column,
                "field": finding.path,
                "problem": finding.problem,
                "remedy": finding.remedy,
            }
            for finding in result.findings
        ],
        "error": "" if result.error is None or result.findings else str(result.error),
    }


def github_annotations(result: Validation) -> Iterator[str]:
    """Yield each finding as a workflow command of GitHub, which shows it at its line of a pull request."""
    for finding in result.findings:
        kind = "error" if finding.fatal else "warning"
        line, column, file = finding.position
        place = {"file": file or result.spec, "line": line, "col": column, "title": finding.path}
        values = ",".join(f"{key}={_property(str(value))}" for key, value in place.items() if value)
        yield f"::{kind} {values}::{_message(f'{finding.problem}; {finding.remedy}')}"
    if result.error is not None and not result.findings:
        yield f"::error file={_property(result.spec)}::{_message(str(result.error))}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
