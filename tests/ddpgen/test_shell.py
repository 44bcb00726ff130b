"""Words reach a program byte for byte through a real bash."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddpgen.text.shell import JoinedWord, Var, comment_text, quote, sections
from tests.ddpgen.conftest import HOSTILE

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


def through_bash(words: list[str]) -> list[str]:
    """What a program gets when bash reads `words` as a command over several lines."""
    script = "exec " + sections([[sys.executable, "-c", PRINT_ARGUMENTS, *words]])
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, timeout=30, check=True, env={"LC_ALL": "C"}
    )
    return [word.decode() for word in done.stdout.split(b"\0")[:-1]]


PRINT_ARGUMENTS = "import os, sys\nfor a in sys.argv[1:]: os.write(1, os.fsencode(a) + b'\\0')"


def test_hostile_words_arrive_as_they_are() -> None:
    assert through_bash(HOSTILE) == HOSTILE


@settings(max_examples=40)
@given(st.lists(TEXTS, max_size=30))
@example(["--a=b", "c", "-d", ""])
def test_any_words_arrive_as_they_are(words: list[str]) -> None:
    assert through_bash(words) == words


@pytest.mark.parametrize("text", HOSTILE)
def test_a_quoted_word_stays_on_one_line_and_shows_no_hidden_character(text: str) -> None:
    source = quote(text)
    assert "\n" not in source
    assert comment_text(source) == source


@pytest.mark.parametrize("text", ["nul\0", "\ud800"])
def test_what_no_argument_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"NUL|surrogate"):
        quote(text)


@pytest.mark.parametrize(
    ("word", "source"),
    [
        ("plain-word_1.2/x:y@z", "plain-word_1.2/x:y@z"),
        ("200 steps", "'200 steps'"),
        ("--checkpoint-every=200 steps", "--checkpoint-every='200 steps'"),
        ("it's", r"'it'\''s'"),
        ("two\nlines", r"$'two\nlines'"),
        (Var("HOME"), '"$HOME"'),
        (JoinedWord((Var("HOME"), "/a b")), "\"$HOME\"'/a b'"),
        (JoinedWord(("--dir=", Var("dir"))), '--dir="$dir"'),
    ],
)
def test_words_are_written_the_way_a_person_would(word: str, source: str) -> None:
    assert quote(word) == source
