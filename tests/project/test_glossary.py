"""The glossary has each word once and only words in use, and no text says a retired word instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.project.tree import ROOT, project_files

GLOSSARY = "docs/glossary.md"
FILES = [name for name in project_files() if name.as_posix() != GLOSSARY]
DOCS = [name for name in FILES if name.as_posix() == "README.md" or name.parts[0] == "docs"]
CODE = [name for name in FILES if name.parts[0] in ("ddpgen", "train") and name.suffix == ".py"]
TEMPLATES = [name for name in FILES if name.parts[0] == "templates"]

# A pattern that means nothing else here, and the word to say instead.
RETIRED = {
    r"artifacts?": "artefact",
    r"(begin|begins|began|start|starts|starting) anew": "start over",
    r"to go on:": "to resume:",
    r"graceful(ly)?": "clean, cleanly",
    r"(lock|directory)'s holder": "owner",
    r"lockfile": "version lock",
    r"micro ?batch(es)?": "micro-batch",
    r"network cards?": "interface",
    r"(job|run|output) directory": "checkpoint directory",
    r"run's store": "TCPStore",
    r"stragglers?": "slow rank",
}


def words() -> list[str]:
    """The first column of the glossary's own tables."""
    ours = (ROOT / GLOSSARY).read_text("utf-8").partition("\n## Words of other tools\n")[0]
    rows = re.findall(r"^\| ([^|]+) \|", ours, re.MULTILINE)
    return [row for row in rows if row != "word"]


def test_each_word_of_the_glossary_stands_there_once_and_is_in_use() -> None:
    found = words()
    assert len(found) > 40
    assert len(found) == len(set(found))
    text = "\n".join((ROOT / name).read_text("utf-8") for name in DOCS + CODE)
    assert [w for w in found if not re.search(rf"\b{re.escape(w)}", text, re.IGNORECASE)] == []


def test_no_document_and_no_message_says_a_retired_word() -> None:
    wrong = [
        f"{name}:{line}: {said!r}; say {word}"
        for name in DOCS + CODE + TEMPLATES
        for line, text in (messages if name in CODE else lines)((ROOT / name).read_text("utf-8"))
        for said, word in retired(text)
    ]
    assert not wrong, "\n".join(wrong)


def lines(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """The string constants of a module that are no docstrings, with their lines."""
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


def retired(text: str) -> list[tuple[str, str]]:
    """The retired words in a text, each with the word to say instead."""
    return [
        (found[0], word)
        for pattern, word in RETIRED.items()
        for found in re.finditer(rf"\b{pattern}(?!\w)", text, re.IGNORECASE)
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('say(f"{why}; to go on: {again}")', [("to go on:", "to resume:")]),
        ('raise Error("two network cards")', [("network cards", "interface")]),
        ('"""Wait until the training may start anew."""', []),  # a docstring is no message
        ('say("training goes on with 3 micro-batches")', []),
    ],
)
def test_a_retired_word_is_found_in_a_message(source: str, found: list[tuple[str, str]]) -> None:
    assert [each for _, text in messages(source) for each in retired(text)] == found
