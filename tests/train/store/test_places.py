"""A store is whole objects, wherever it is, and says in one line what is wrong with it."""

from __future__ import annotations

import builtins
import errno
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import _registry

from train.checkpoint.store import places
from train.checkpoint.store.places import (
    DirectoryStore,
    Store,
    StoreError,
    describe_error,
    open_store,
)


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    kinds = {
        "directory": str(tmp_path / "bucket"),
        "memory": f"memory://{uuid.uuid4().hex}/prefix",
    }
    return open_store(kinds[request.param])


def test_what_is_written_is_listed_and_read_back(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(100_000))
    assert store.list("") == {}
    store.put("step-000000001/model.pt", source)
    store.write("step-000000001/checkpoint.json", b"{}")
    store.write("metrics/1-2.jsonl", b"row\n")
    store.write("stop", b"")
    assert store.list("step-") == {
        "step-000000001/model.pt": 100_000,
        "step-000000001/checkpoint.json": 2,
    }
    assert store.list("metrics/") == {"metrics/1-2.jsonl": 4}
    store.get("step-000000001/model.pt", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    store.write("stop", b"a shorter one")
    store.write("stop", b"now")
    assert store.read("stop") == b"now"


def test_what_is_deleted_is_gone_and_may_be_deleted_again(store: Store) -> None:
    store.write("step-000000001/checkpoint.json", b"{}")
    store.delete("step-000000001/checkpoint.json")
    store.delete("step-000000001/checkpoint.json")
    assert store.list("") == {}
    with pytest.raises(FileNotFoundError):
        store.read("step-000000001/checkpoint.json")


def test_a_directory_that_can_do_nothing_but_write_whole_files_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.open

    def only_whole(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        if str(file).startswith(str(tmp_path / "bucket")) and ("a" in mode or "+" in mode):
            raise OSError(errno.ENOTSUP, "Operation not supported")
        return real(file, mode, *args, **named)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(builtins, "open", only_whole)
    for name in ("rename", "replace", "link", "symlink", "truncate", "fsync", "rmdir", "utime"):
        monkeypatch.setattr(os, name, refuse)
    store = open_store(str(tmp_path / "bucket"))
    (tmp_path / "model.pt").write_bytes(b"weights")
    store.put("step-000000001/model.pt", tmp_path / "model.pt")
    store.write("step-000000001/checkpoint.json", b"{}")
    store.delete("step-000000001/checkpoint.json")
    assert store.list("") == {"step-000000001/model.pt": 7}


@pytest.mark.parametrize("error", ["", "Input/output error"])
def test_an_upload_that_fails_or_comes_out_shorter_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    def half(path: Path, content: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content[:3])
        if error:  # as close() may
            raise OSError(errno.EIO, error)

    store = DirectoryStore(tmp_path / "run")
    store.write("status", b"running")
    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match=error or "3 bytes after 7 "):
        store.write("step-1/model.pt", b"content")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["status"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/not/there/at/all", "there is no directory /not/there/at; is the bucket mounted there?"),
        (
            "r2://bucket/x",
            (
                "r2:// is not a store that fsspec knows; for R2 and others that speak S3, use "
                "s3:// with AWS_ENDPOINT_URL set, or mount the bucket and give its directory"
            ),
        ),
    ],
)
def test_a_place_that_is_none_is_refused_with_a_remedy(place: str, message: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_store(place)
    assert describe_error(refused.value) == message


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)  # what a test before has loaded
    with pytest.raises(StoreError, match=r"^s3:// needs a package .*; pip install s3fs$"):
        open_store("s3://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(StoreError, match=r"gs://b/x needs fsspec, which .*; pip install gcsfs$"):
        open_store("gs://b/x")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "x"), "no space left there; "),
        (OSError(errno.EROFS, "x"), "it is read-only; "),
        (OSError(errno.EACCES, "x"), "no permission; whoever runs this has to list, read"),
        (OSError(errno.ENOTCONN, "x"), "the mount is gone; "),
        (PermissionError("Access Denied"), "no permission; whoever runs this has to list"),
        (FileNotFoundError("No such bucket"), "it is not there; create"),
        (OSError("odd"), "odd"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(error: OSError, words: str) -> None:
    assert describe_error(error).startswith(words)


def test_errors_of_other_packages_become_errors_of_the_store() -> None:
    class NoCredentialsError(Exception):
        pass

    with pytest.raises(StoreError, match="no credentials"), places._translated():
        raise NoCredentialsError("Unable to locate credentials")
    with pytest.raises(StoreError, match="EndpointConnectionError: refused"), places._translated():
        raise type("EndpointConnectionError", (Exception,), {})("refused")


def test_what_lies_below_a_mount_that_is_gone_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = {str(tmp_path)}
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) in mounted | {"/"})
    store = open_store(str(tmp_path / "run"))
    store.write("status", b"running")
    mounted.clear()
    gone = f"the mount at {tmp_path} is gone; mount the bucket again"
    for use in (
        lambda: store.write("step-1/model.pt", b"1"),
        lambda: store.delete("status"),
        lambda: store.read("status"),
        lambda: store.list(""),
        lambda: store.get("status", tmp_path / "here"),
    ):
        with pytest.raises(StoreError, match=gone):
            use()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["run", "status"]
    mounted.add(str(tmp_path))
    assert store.read("status") == b"running"
