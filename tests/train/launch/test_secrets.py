"""The secrets of a job, as the supervisor and the driver find them; and messages without them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ddpgen.driver import secret_values
from train.base.console import SECRETS, plain
from train.base.errors import Refusal
from train.launch import options, secrets


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".token"


@pytest.mark.parametrize(
    ("content", "value"), [("hf_1\n", "hf_1"), (" \0two\nlines é \r\n", " two\nlines é ")]
)
def test_a_file_gives_its_secret_alike_on_a_host_and_to_the_driver(
    content: str, value: str, file: Path
) -> None:
    file.write_text(content, "utf-8", newline="")
    file.chmod(0o600)
    here = {"B": "stale"}
    assert secret_values.read({"B": "~/.token"}, here) == ({"B": value}, [])
    secrets.load(options.secrets("B=~/.token"), here, "")
    assert here == {"B": value, SECRETS: "B"}


@pytest.mark.parametrize(
    ("content", "mode", "word"),
    [
        ("hf_1\n", 0o640, "chmod 600"),
        ("hf_1\n", 0o604, "chmod 600"),
        ("\n", 0o600, "is empty"),
        (None, 0o600, "No such file"),
    ],
)
def test_a_file_that_is_no_secret_is_refused_alike(
    content: str | None, mode: int, word: str, file: Path
) -> None:
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(Refusal, match=word) as refused:
        secrets.load(options.secrets("B=~/.token"), {"B": "stale"}, "")
    assert refused.value.code == 69
    assert secret_values.read({"B": "~/.token"}, {"B": "stale"}) == ({}, [str(refused.value)])


def test_a_pipe_is_refused_alike_without_a_wait(file: Path) -> None:
    os.mkfifo(file, 0o600)
    with pytest.raises(Refusal, match="no regular file") as refused:
        secrets.load(options.secrets("B=~/.token"), {}, "")
    assert secret_values.read({"B": "~/.token"}, {}) == ({}, [str(refused.value)])


def test_every_secret_that_is_missing_is_named_with_its_remedy() -> None:
    with pytest.raises(
        Refusal,
        match=re.escape(
            "secret A is not set, or is empty; set A; the secret B is not set, or is empty; set B"
        ),
    ):
        secrets.load((("A", ""), ("C", ""), ("B", "")), {"A": "", "C": "c"}, "set {name}")


def test_a_process_that_was_handed_the_value_reads_no_file() -> None:
    secrets.load((("A", "/no/such"),), here := {"A": "a"}, "", handed_on=True)
    assert here["A"] == "a"


def test_a_message_shows_the_name_in_place_of_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRETS, "A_TOKEN,SHORT")
    monkeypatch.setenv("A_TOKEN", "abcdef")
    monkeypatch.setenv("SHORT", "at")
    assert plain("401: abcdef at https://host/abcdef") == "401: $A_TOKEN at https://host/$A_TOKEN"


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_stream_is_masked_however_it_is_cut(size: int) -> None:
    mask = secret_values.Mask(["abcabd", "é longer one", "short"])
    data = "xabcabd abcabcabd é longer one abcab short é".encode()
    fed = [mask.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert b"".join([*fed, mask.end()]).decode() == "x*** abc*** *** abcab short é"


def test_of_two_secrets_the_longer_is_masked_whole() -> None:
    assert secret_values.Mask(["abcdef", "abcdefgh"]).feed(b"abcdefgh\n") == b"***\n"
