"""The lines that people read, deaf to what the network sends them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.base.console import plain
from train.preflight.finding import CODES, NOTE, SEVERITIES, Finding
from train.preflight.phrases import table as render

THREE = [
    Finding("PORT001", "desk", "port 29500 of desk is taken by server.py", "end it"),
    Finding("CLK001", "laptop", "its clock is 7 s ahead", "switch on NTP"),
    Finding("VER002", "vm3", "vm3 has Python 3.11.9", "none needed", NOTE),
]


def test_a_finding_is_a_line_with_its_remedy_below() -> None:
    assert render(THREE, False, Path("/ckpt/preflight.json")) == (
        "error    PORT001  desk  port 29500 of desk is taken by server.py\n"
        "  remedy: end it\n"
        "warning  CLK001   laptop  its clock is 7 s ahead\n"
        "  remedy: switch on NTP\n"
        "note     VER002   vm3  vm3 has Python 3.11.9\n"
        "  remedy: none needed\n"
        "more: ddpgen explain CLK001 PORT001 VER002\n"
        "all of it: /ckpt/preflight.json"
    )


def test_colour_is_put_on_severity_and_code_and_only_when_asked() -> None:
    coloured = render(THREE, True)
    assert "\x1b[1;31merror    PORT001\x1b[0m  desk" in coloured
    assert "\x1b[33mwarning  CLK001 \x1b[0m  laptop" in coloured
    assert "\x1b[2mnote     VER002 \x1b[0m  vm3" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(THREE, False)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("desk\r\nerror", r"desk\r\nerror"),
        ("\u202edesk\u200b", r"\u202edesk\u200b"),
        ("\x9b31m", r"\x9b31m"),
        ("a\udc80b", r"a\udc80b"),
        ("büro-漢", "büro-漢"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(sent: str, shown: str) -> None:
    assert plain(sent) == shown
    table = render([Finding("HOST001", sent, f"{sent}!", f"{sent}?")], False, Path(f"/{sent}"))
    assert table.count(shown) == 4


def test_hosts_that_find_the_same_stand_in_one_line() -> None:
    held = [Finding("DIR004", f"n{n}", "/ckpt is held by job 'a'", "wait for it") for n in (1, 2)]
    assert render([*held, THREE[1]], False).splitlines()[:3] == [
        "error    DIR004   n1 and n2  /ckpt is held by job 'a'",
        "  remedy: wait for it",
        "warning  CLK001   laptop  its clock is 7 s ahead",
    ]


def test_of_a_thousand_findings_the_first_are_shown_and_the_rest_counted() -> None:
    many = [Finding("HOST001", f"h{n}", f"{n}" + "x" * 10**5, "y") for n in range(1000)]
    table = render(many, False)
    assert "and 950 more" in table
    assert len(table) < 200_000


words = st.text(max_size=60)
found = st.builds(
    Finding, st.sampled_from(sorted(CODES)), words, words, words, st.sampled_from(SEVERITIES)
)


@given(st.lists(found, min_size=1, max_size=6), words)
def test_no_text_passes_a_control_character(findings: list[Finding], path: str) -> None:
    table = render(findings, False, Path(path))
    assert all(c == "\n" or c.isprintable() for c in table)
    rows = {(one.severity, one.code, one.cause, one.remedy) for one in findings}
    assert len(table.split("\n")) == 2 * len(rows) + 2
