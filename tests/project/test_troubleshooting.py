"""The troubleshooting guide and the preflight's list of codes say the same, in both directions."""

from __future__ import annotations

import re
import subprocess

from ddpgen.guide import Section, sections
from tests.project.tree import ROOT
from train.preflight.finding import CODES

GUIDE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
SECTIONS = sections(GUIDE)
PARTS = ("Cause", "Proof", "Remedy")


def parts(section: Section) -> dict[str, str]:
    """The text of each part by its name, in the section's order."""
    _, *rest = re.split(r"^\*\*(\w+)\.\*\*", section.text, flags=re.MULTILINE)
    return dict(zip(rest[::2], map(str.strip, rest[1::2]), strict=True))


def commands(section: Section) -> str:
    return "".join(re.findall(r"^```bash\n(.*?)^```$", section.text, re.MULTILINE | re.DOTALL))


def test_every_code_has_its_section_and_every_section_its_code() -> None:
    assert {code: section.title for code, section in SECTIONS.items()} == {
        code: known.title for code, known in CODES.items()
    }
    assert list(SECTIONS) == list(CODES)
    assert len(re.findall(r"^### ", GUIDE, re.MULTILINE)) == len(CODES), "a heading is no code"


def test_each_section_has_cause_proof_and_remedy_and_is_short() -> None:
    wrong = [f"{code}: {fault}" for code, section in SECTIONS.items() for fault in form(section)]
    assert not wrong, "\n".join(wrong)


def form(section: Section) -> list[str]:
    """The faults in the form of a section."""
    found = parts(section)
    if tuple(found) != PARTS or not all(found.values()):
        return [f"has the parts {[name for name, text in found.items() if text]}, not {PARTS}"]
    said = {
        "the proof has no commands": "```bash\n" not in found["Proof"],
        "cause or remedy has commands": "```" in found["Cause"] + found["Remedy"],
        "is longer than 24 lines": len(section.text.splitlines()) > 24,
    }
    return [fault for fault, true in said.items() if true]


def test_the_commands_of_each_proof_are_bash() -> None:
    wrong = []
    for code, section in SECTIONS.items():
        script = commands(section)
        done = subprocess.run(
            ["bash", "-n"], input=script, capture_output=True, text=True, timeout=20
        )
        if done.returncode or done.stderr or not script.strip():
            wrong.append(f"{code}: {done.stderr or 'no commands'}")
    assert not wrong, "\n".join(wrong)


def test_codes_and_fields_of_the_spec_that_the_guide_mentions_exist() -> None:
    assert set(re.findall(r"\b[A-Z]{2,5}[0-9]{3}\b", GUIDE)) - set(CODES) == set()
    spec = (ROOT / "docs" / "spec.md").read_text("utf-8")
    named = set(re.findall(r"`((?:train|checkpoint|rendezvous|python|hosts\[\])\.\w+)\b", GUIDE))
    assert len(named) > 8
    assert {name for name in named if f"- **`{name}`**" not in spec} == set()
