"""The save from which a user's script would go on, on one host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from train.run.saves import Saved, digest, newest, newest_of, patterns, remedy


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("--resume-exists=a-*.pt --resume-exists=/d/b code/x.py --resume-exists=no", ["/c/work/a-*.pt", "/d/b"]),
        ("--workdir=../runs --resume-exists=a code/x.py", ["/b/../runs/a"]),
        ("--workdir=/runs --resume-exists=a --no-python ./x.sh", ["/runs/a"]),
        ("--resume-exists=a code/pkg/x.py", ["/c/work/pkg/a"]),
        ("--resume-exists=a --no-python code/pkg/x", ["/c/work/a"]),
        ("--resume-exists=a module:pkg.x", ["/c/work/a"]),
        ("--resume-exists=~/a /opt/x.py", [os.path.expanduser("~/a")]),
        ("code/x.py", []),
    ],
)  # fmt: skip
def test_the_patterns_lie_where_the_script_will_run(program: str, expected: list[str]) -> None:
    words = ["script", *program.split()]
    assert list(patterns(words, Path("/b"), Path("/c"))) == expected


def test_the_newest_save_has_the_step_that_any_rank_has_recorded(tmp_path: Path) -> None:
    assert newest([f"{tmp_path}/*.pt"], tmp_path) == Saved()
    for second, name in enumerate(("b.pt", "a.pt"), start=1):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (second, second))
    place = str(tmp_path / "a.pt")
    assert newest([f"{tmp_path}/*.pt"], tmp_path) == Saved(place, 0, digest(place))
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "saves-0.jsonl").write_text("no JSON")
    row = json.dumps({"path": place, "step": 20})
    (tmp_path / "script" / "saves-3.jsonl").write_text(f"{row}\n")
    assert newest([f"{tmp_path}/*.pt"], tmp_path) == Saved(place, 20, digest(place))


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["ckpt-9", "ckpt-100", "ckpt-20"], "ckpt-100"),
        (["out-2/ckpt-9", "out-2/ckpt-10"], "out-2/ckpt-10"),
        # A loss is no step, and a name may have no number: then the youngest, which is the last of these.
        (["loss0.9-ep1", "loss0.2-ep9"], "loss0.2-ep9"),
        (["ckpt-5", "last"], "last"),
        (["a", "b"], "b"),
        ([], ""),
    ],
)
def test_the_newest_save_by_its_number_or_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], newest: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for time, name in enumerate(names):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
        os.utime(name, (time, time))
    assert newest_of(names[::-1]) == newest


def test_copies_have_one_digest_and_other_contents_another(tmp_path: Path) -> None:
    for name, content in (("a", b"x" * 99999), ("b", b"x" * 99999), ("c", b"x" * 99998 + b"y")):
        (tmp_path / f"dir-{name}").mkdir()
        (tmp_path / f"dir-{name}" / content[-1:].decode()).write_bytes(content)
        (tmp_path / name).write_bytes(content)
    for prefix in ("", "dir-"):
        one, copy, other = (digest(str(tmp_path / f"{prefix}{name}")) for name in "abc")
        assert one == copy != other
    assert digest(str(tmp_path / "none")) == ""


def test_the_command_that_copies_it_is_quoted() -> None:
    assert "on laptop, `rsync -a 'desk:/my d/ckpt.pt' '/my d/'`; or set" in remedy(
        "/my d/ckpt.pt", "desk", "laptop"
    )
