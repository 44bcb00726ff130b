"""`ddpgen explain`: the guide's section of a code, on a terminal of any width, from any case."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpgen import guide, resources
from ddpgen.errors import BugError
from tests.ddpgen.conftest import ROOT, Run

GUIDE = """\
# Guide

Words before.

## Interfaces

Words of the family, which belong to no code.

### NIC001: no such *interface*

**Cause.** The `nic` of the spec is not
there; see [hosts](hosts.md).

**Proof.**

```bash
ip -br addr    # a comment stays, and a long line is not broken into two, so that it can be copied
# ## this is no heading
```

**Remedy.** Leave it out.

### NIC010: another

**Cause.** Text.

## Ports

### PORT001: taken

**Cause.** Last.
"""


def test_a_section_is_plain_text_with_commands_as_they_are() -> None:
    assert guide.listing(GUIDE) == (
        "NIC001   no such *interface*\nNIC010   another\nPORT001  taken"
    )
    assert guide.explained(GUIDE, ["port001", "NIC010", "Port001"], 40) == (
        "PORT001: taken\n\nCause. Last.\n\n\nNIC010: another\n\nCause. Text."
    )
    assert guide.explained(GUIDE, ["NIC001"], 40) == (
        "NIC001: no such *interface*\n"
        "\n"
        "Cause. The `nic` of the spec is not\n"
        "there; see hosts (hosts.md).\n"
        "\n"
        "Proof.\n"
        "\n"
        "    ip -br addr    # a comment stays, and a long line is not broken into two, so that it can "
        "be copied\n"
        "    # ## this is no heading\n"
        "\n"
        "Remedy. Leave it out."
    )


def test_the_command_prints_the_section_of_the_real_guide(run: Run) -> None:
    outcome = run("explain", "port005")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("PORT005: ")
    assert all(f"\n\n{part}. " in outcome.out for part in ("Cause", "Remedy"))


def test_without_a_code_all_are_listed(run: Run) -> None:
    outcome = run("explain")
    assert outcome.code == 0
    assert "\nHOST001  " in outcome.out


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("HOTS001", 'no code "HOTS001"; did you mean HOST001?'),
        ("zzzz", 'no code "zzzz"; `ddpgen explain` lists'),
        ("\x1b[2J", r"no code '\x1b[2J'; "),
    ],
)
def test_an_unknown_code_is_a_wrong_command_line(code: str, said: str, run: Run) -> None:
    outcome = run("explain", "nic001", code)
    assert (outcome.code, outcome.out, said in outcome.err) == (2, "", True), outcome.err


def test_a_guide_that_is_missing_is_a_broken_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resources.document("troubleshooting.md").startswith("# Troubleshooting\n")
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "ddpgen" / "resources.py"))
    with pytest.raises(BugError, match=r"docs/troubleshooting\.md is missing"):
        resources.document("troubleshooting.md")


def test_the_guide_in_the_wheel_is_found_where_the_wheel_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = tmp_path / "ddpgen" / "_data" / "docs" / guide.GUIDE
    placed.parent.mkdir(parents=True)
    placed.write_bytes((ROOT / "docs" / guide.GUIDE).read_bytes())
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "ddpgen" / "resources.py"))
    assert "### NIC001" in resources.document(guide.GUIDE)
