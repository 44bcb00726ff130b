"""The table that people read: as wide as their terminal, and deaf to what the network sends them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.preflight.finding import CODES, ERROR, NOTE, SEVERITIES, WARNING, Finding
from train.preflight.table import render, visible

TAKEN = Finding(
    "PORT001",
    "desk",
    "port 29500 of desk (192.168.7.1) is taken by python server.py (process 4711)",
    "end it, or set another rendezvous.port in the spec",
)
CLOCK = Finding("CLK001", "laptop", "its clock is 7 s ahead", "switch on NTP")
UPDATE = Finding("VER002", "vm3", "vm3 has Python 3.11.9", "none needed", NOTE)
THREE = [TAKEN, CLOCK, UPDATE]


def test_on_eighty_columns_what_is_wrong_stands_beside_its_host() -> None:
    assert render(THREE, 80, False, Path("/ckpt/preflight.json")) == (
        "error    PORT001  desk    port 29500 of desk (192.168.7.1) is taken by python\n"
        "                          server.py (process 4711)\n"
        "                          remedy: end it, or set another rendezvous.port in the\n"
        "                          spec\n"
        "warning  CLK001   laptop  its clock is 7 s ahead\n"
        "                          remedy: switch on NTP\n"
        "note     VER002   vm3     vm3 has Python 3.11.9\n"
        "                          remedy: none needed\n"
        "more: ddpgen explain CLK001 PORT001 VER002\n"
        "all of it: /ckpt/preflight.json"
    )


@pytest.mark.parametrize("width", [40, 12, 0])
def test_on_forty_columns_and_fewer_it_stands_under_it(width: int) -> None:
    assert render([TAKEN, CLOCK], width, False) == (
        "error    PORT001  desk\n"
        "  port 29500 of desk (192.168.7.1) is\n"
        "  taken by python server.py (process\n"
        "  4711)\n"
        "  remedy: end it, or set another\n"
        "  rendezvous.port in the spec\n"
        "warning  CLK001   laptop\n"
        "  its clock is 7 s ahead\n"
        "  remedy: switch on NTP\n"
        "more: ddpgen explain CLK001 PORT001"
    )


def test_colour_is_put_on_severity_and_code_and_only_when_asked() -> None:
    coloured = render(THREE, 80, True)
    assert "\x1b[1;31merror    PORT001\x1b[0m  desk" in coloured
    assert "\x1b[33mwarning  CLK001 \x1b[0m  laptop" in coloured
    assert "\x1b[2mnote     VER002 \x1b[0m  vm3" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(THREE, 80, False)
    assert "\x1b" not in render(THREE, 80, False)


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
    assert visible(sent) == shown
    table = render([Finding("HOST001", sent, f"{sent}!", f"{sent}?")], 80, False, Path(f"/{sent}"))
    assert table.count(shown) == 4


def test_columns_stay_in_line_beside_wide_letters_and_accents() -> None:
    hosts = ["漢", "e\u0301e", "desk"]
    lines = render([Finding("HOST001", h, "CAUSE", "x") for h in hosts], 80, False).split("\n")
    assert [line.split("CAUSE")[0][18:] for line in lines[:6:2]] == [
        "漢    ",
        "e\u0301e    ",
        "desk  ",
    ]


def test_a_long_name_leaves_the_cause_its_width() -> None:
    table = render([Finding("HOST001", "h" * 60, "it has not arrived", "start it")], 80, False)
    assert table.split("\n")[:2] == [f"error    HOST001  {'h' * 60}", "  it has not arrived"]


def test_a_path_or_a_command_is_never_broken() -> None:
    path = Path("/somewhere") / ("deep/" * 30) / "preflight.json"
    assert f"\n{path}" in render([TAKEN], 40, False, path)
    every = [Finding(code, "a", "b", "c") for code in CODES]
    commands = [x for x in render(every[:40], 80, False).split("\n") if x.startswith("more: ")]
    assert len(commands) > 1
    assert all(re.fullmatch(r"more: ddpgen explain( [A-Z]+\d{3})+", line) for line in commands)
    assert sorted(" ".join(commands).replace("more: ddpgen explain", "").split()) == sorted(
        list(CODES)[:40]
    )


def test_of_a_thousand_findings_the_first_are_shown_and_the_rest_counted() -> None:
    many = [Finding("HOST001", f"h{n}", "x" * 10**5, "y") for n in range(1000)]
    table = render(many, 80, False)
    assert "and 950 more" in table
    assert len(table) < 200_000


def test_nothing_to_tell_is_no_table() -> None:
    assert render([], 80, True, Path("/ckpt/preflight.json")) == ""


words = st.text(max_size=60)
found = st.builds(
    Finding, st.sampled_from(sorted(CODES)), words, words, words, st.sampled_from(SEVERITIES)
)


@given(st.lists(found, min_size=1, max_size=6), st.integers(0, 200), words)
def test_no_text_passes_a_control_character_or_a_line_wider_than_its_longest_word(
    findings: list[Finding], width: int, path: str
) -> None:
    table = render(findings, width, False, Path(path))
    assert all(c == "\n" or c.isprintable() for c in table)
    texts = [t for f in findings for t in (f.host, f.cause, f.remedy)] + [str(Path(path))]
    longest = max(len(word) for text in texts for word in (visible(text).split() or [""]))
    assert all(len(line) <= max(40, width, longest + 36) for line in table.split("\n"))
    first = [line for line in table.split("\n") if re.match(r"(error|warning|note) ", line)]
    assert len(first) >= len(findings)


def test_severities_have_a_colour_each() -> None:
    tables = {
        render([Finding("HOST001", "a", "b", "c", kind)], 80, True)[:5]
        for kind in (ERROR, WARNING, NOTE)
    }
    assert len(tables) == 3
