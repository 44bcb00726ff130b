"""Which bytes a text is: any names, any encodings, any folder, the same order everywhere."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from train.base.errors import TrainError
from train.workloads.text import Text, read_text

ALL = 10**9


def content(text: Text) -> bytes:
    return text.bytes.numpy().tobytes()


def test_file_is_read_byte_for_byte_whatever_its_encoding(tmp_path: Path) -> None:
    every_byte = bytes(range(1, 256)) + "ä€😀".encode("utf-16")[:1]
    path = tmp_path / 'it\'s $(rm -rf) "so"\n-called'
    path.write_bytes(every_byte)
    text = read_text(str(path), ALL)
    assert content(text) == every_byte
    assert text.sha256 == hashlib.sha256(every_byte).hexdigest()
    assert text.origin == repr(str(path))


def test_folder_is_joined_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/b/c.txt", "ä.txt", "A.txt", " .txt", "-n"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / os.fsdecode(b"\xff\xfe")).write_bytes(b"no utf-8 \xff")
    text = read_text(str(tmp_path), ALL)
    assert content(text).split(b"\0") == [
        b" .txt",
        b"-n",
        b"A.txt",
        b"a/b/c.txt",
        b"a/z.txt",
        b"b.txt",
        "ä.txt".encode(),
        b"no utf-8 \xff",
    ]
    assert text.origin == f"{str(tmp_path)!r}, 8 files"


def test_hidden_binary_empty_and_special_files_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("text")
    for hidden in (".git/config", ".hidden", "__pycache__/a.pyc"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_text("hidden")
    (tmp_path / "picture").write_bytes(b"PNG\0\0\0")
    (tmp_path / "empty").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "round").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        monkeypatch.chdir(tmp_path)  # the address of a socket is short; pytest's folders are not
        sock.bind("socket")
        assert content(read_text(".", ALL)) == b"text"


def test_max_bytes_ends_the_text_inside_a_file_separators_counted(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name * 4)
    assert content(read_text(str(tmp_path), 7)) == b"aaaa\0bb"
    assert content(read_text(str(tmp_path), 5)) == b"aaaa"
    assert content(read_text(str(tmp_path), 14)) == b"aaaa\0bbbb\0cccc"


def test_standard_library_is_python_source_of_the_library_alone() -> None:
    text = read_text(None, ALL)
    assert 4_000_000 < len(text.bytes) < 30_000_000
    assert text.origin.startswith("Python's standard library, ")
    source = content(text)
    assert b"class OrderedDict(dict):" in source
    assert b"class TestResult" in source, "unittest is of the library, its own tests are not"
    assert b"build_time_vars" not in source.split(b"\0")[0], "_sysconfigdata differs by machine"
    assert read_text(None, ALL).sha256 == text.sha256


def test_no_text(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"no text found in "):
        read_text(str(tmp_path), ALL)


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"'no/such' does not exist below .* list the text under"):
        read_text("no/such", ALL)


def test_neither_file_nor_folder() -> None:
    with pytest.raises(TrainError, match="'/dev/null' is neither "):
        read_text("/dev/null", ALL)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file nobody can read")
def test_unreadable_file_is_named_and_not_left_out_in_silence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "broken").symlink_to("/proc/self/mem")
    with pytest.raises(TrainError, match=r"cannot read '.*broken': Input/output error; make it"):
        read_text(str(tmp_path), ALL)
