"""An environment is made once, whoever asks for it at the same moment, and one that is half made is made anew."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from train.base.errors import EXIT_UNAVAILABLE
from train.launch import install

WAIT_S = 30


class Maker:
    """Stands for venv and pip: what it makes is whole when it has ended."""

    def __init__(self) -> None:
        self.made: list[bool] = []  # for each time, whether something lay there
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def make(self, environment: Path, content: str, lock: Path | None) -> None:
        self.made.append(environment.exists())
        self.begun.set()
        assert self.may_end.wait(WAIT_S)
        (environment / "bin").mkdir(parents=True, exist_ok=True)
        (environment / "bin" / "python").touch(0o755)
        (environment / "requirements.txt").write_text(content)
        (environment / install.INSTALLED).write_text(content)


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    made = Maker()
    monkeypatch.setattr(install, "_make", made.make)
    return made


def asked(place: Path) -> int:
    return install.main([str(place), "--", "torch"])


def test_one_that_is_whole_is_not_made_again(maker: Maker, tmp_path: Path) -> None:
    assert [asked(tmp_path / "env"), asked(tmp_path / "env")] == [0, 0]
    assert maker.made == [False]


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("-r own.txt", "-r "),
        ("-c ~/code/own.txt", "-c "),
        ("--constraint=own.txt", "--constraint="),
    ],
)
def test_one_is_made_anew_when_a_file_that_it_reads_has_changed(
    line: str, option: str, maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "code" / "own.txt"
    file.parent.mkdir()

    def ask() -> int:
        return install.main([str(tmp_path / "env"), "--", "torch", line])

    assert ask() == EXIT_UNAVAILABLE
    for text in ("numpy==2.0", "numpy==2.0", "numpy==2.1"):
        file.write_text(text)
        assert ask() == 0
    assert maker.made == [False, True]
    listed = (tmp_path / "env" / "requirements.txt").read_text()
    assert listed.startswith(f"torch\n{option}{file}\n# sha256:")


@pytest.mark.parametrize("option", ["-f ", "-f", "--find-links=", "--find-links "])
def test_wheels_are_looked_for_in_the_directory_that_is_meant(
    option: str, maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    as_written = [
        f"{option}{place}" for place in ("https://x.org/wheels", "${WHEELS}", '"my wheels"')
    ]
    lines = [f"{option}.", *as_written, "torch"]
    assert install.main([str(tmp_path / "env"), "--", *lines]) == 0
    listed = (tmp_path / "env" / "requirements.txt").read_text()
    assert listed.splitlines() == [f"{option}{tmp_path}/code", *lines[1:]]


def test_one_is_made_anew_when_a_file_that_a_file_names_has_changed(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "code" / "base.txt"
    (tmp_path / "code" / "sub").mkdir(parents=True)
    (tmp_path / "code" / "sub" / "gpu.txt").write_text("torch\n-r ../base.txt\n-c none.txt\n")
    for text in ("numpy==2.0", "numpy==2.0", "numpy==2.1\n-r sub/gpu.txt"):
        base.write_text(text)
        assert install.main([str(tmp_path / "env"), "--", "-r sub/gpu.txt"]) == 0
    assert maker.made == [False, True]


def test_each_file_of_a_line_is_found_in_the_bundle(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    for name in ("a.txt", "b.txt"):
        (code / name).touch()
    line = "-ra.txt --constraint=b.txt -r https://x/c.txt # why"
    assert install.main([str(tmp_path / "env"), "--", line, "torch # -r no.txt"]) == 0
    first, *_, last = (tmp_path / "env" / "requirements.txt").read_text().splitlines()
    assert (first, last) == (
        f"-r{code}/a.txt --constraint={code}/b.txt -r https://x/c.txt",
        "torch",
    )


def test_a_path_of_a_requirement_starts_at_the_code_of_the_bundle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    ran: dict[str, str | None] = {}

    def fails(*command: str, directory: str | None = None) -> bool:
        ran[command[-1]] = directory
        (tmp_path / "env").mkdir(exist_ok=True)
        return len(ran) > 1

    monkeypatch.setattr(install, "_fails", fails)
    assert install.main([str(tmp_path / "env"), "--", "./x.whl"]) == EXIT_UNAVAILABLE
    assert ran == {str(tmp_path / "env"): None, str(tmp_path / "env" / "requirements.txt"): "code"}


@pytest.mark.parametrize("missing", [install.INSTALLED, "bin/python"])
def test_one_of_which_a_part_is_missing_is_made_anew(
    maker: Maker, tmp_path: Path, missing: str
) -> None:
    assert asked(tmp_path / "env") == 0
    (tmp_path / "env" / missing).unlink()
    assert asked(tmp_path / "env") == 0
    assert maker.made == [False, True]


def test_what_lies_half_made_is_removed_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    half = tmp_path / "env" / "lib"
    half.mkdir(parents=True)
    seen: list[bool] = []
    monkeypatch.setattr(install, "_fails", lambda *command: not seen.append(half.exists()))
    assert asked(tmp_path / "env") == 69
    assert seen == [False]


def test_who_comes_while_another_installs_waits_and_finds_it_made(
    maker: Maker, tmp_path: Path
) -> None:
    maker.may_end.clear()
    place = tmp_path / "env"
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(asked(place))) for _ in range(3)]
    threads[0].start()
    assert maker.begun.wait(WAIT_S)
    for thread in threads[1:]:
        thread.start()
    # They wait for the lock's file: nobody else gets it, and none of them has begun to make.
    lock = os.open(f"{place}.lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)
    assert len(maker.made) == 1
    maker.may_end.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert codes == [0, 0, 0]
    assert len(maker.made) == 1


def test_machines_whose_home_has_no_locks_make_one_each(
    maker: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither removes what the other is making."""

    def no_lock(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lock = tmp_path / "environment.lock"
    lock.write_text("torch==2.13.0\n")
    names = []
    for host in ("desk", "lap", "desk"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        names.append(install.of_lock(lock).name.partition("-")[2])
    assert names == ["desk", "lap", "desk"]
    assert maker.made == [False, False]
