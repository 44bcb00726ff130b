"""The bundle: same spec, same bytes; replaced whole or not at all; nobody else's files are lost."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ddpgen.conftest import GPT, ROOT, Outcome, Run

Spec = Callable[..., Path]


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below, with its mode and content."""
    return {
        path.relative_to(directory).as_posix(): (
            stat.S_IMODE(path.stat().st_mode),
            path.read_bytes(),
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def render(run: Run, spec: Spec) -> Callable[..., Outcome]:
    """Render job.yaml for local."""

    def render(text: str = GPT, *options: str) -> Outcome:
        return run("render", spec(text), "--target", "local", *options)

    return render


Render = Callable[..., Outcome]


def test_a_bundle_holds_its_script_the_training_module_and_a_list_of_both(
    render: Render, tmp_path: Path
) -> None:
    outcome = render()
    assert outcome.code == 0
    assert outcome.out == "build/gpt\n"
    files = tree(tmp_path / "build" / "gpt")
    assert outcome.err == f"wrote build/gpt ({len(files)} files)\nnext: bash build/gpt/local.sh\n"
    assert {name.partition("/")[0] for name in files} == {"bundle.json", "local.sh", "train"}
    assert files["local.sh"][0] == 0o755
    listing = json.loads(files["bundle.json"][1])
    assert listing["files"] == {
        name: hashlib.sha256(content).hexdigest()
        for name, (_, content) in files.items()
        if name != "bundle.json"
    }
    assert (listing["name"], listing["schema"], listing["targets"]) == ("gpt", 1, ["local"])
    checkpoint = {"dir": None, "every": "600s", "keep": 3, "shared": None}
    assert listing["spec"]["local"]["checkpoint"] == checkpoint
    assert not [name for name in files if "__pycache__" in name]


def test_the_same_spec_gives_the_same_bytes_anywhere(
    render: Render, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render()
    first = tree(tmp_path / "build" / "gpt")
    old = os.umask(0o077)
    try:
        monkeypatch.setenv("HOME", "/elsewhere")
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        monkeypatch.setenv("PYTHONHASHSEED", "7")
        assert run("render", "job.yaml", "--target", "all", "-o", "some where").code == 0
    finally:
        os.umask(old)
    assert tree(tmp_path / "some where") == first
    for _, content in first.values():
        assert str(tmp_path).encode() not in content


def test_a_bundle_that_is_for_fewer_tiers_now_says_so(run: Run, spec: Spec) -> None:
    job = spec(GPT.replace("name: gpt", "name: gpt\ntargets: {hosts: {hosts: [a, b]}}"))
    assert "no longer" not in run("render", job, "--target", "all").err
    said = run("render", job, "--target", "local").err
    assert "no longer holds what was rendered for hosts" in said
    assert "no longer" not in run("render", job, "--target", "local").err


def test_a_bundle_is_left_alone_or_replaced_and_no_trace_stays(
    render: Render, tmp_path: Path
) -> None:
    built = tmp_path / "build/gpt"
    render()
    before = built.stat().st_ino
    (built / "train/__pycache__").mkdir()
    (built / "train/__pycache__/x.pyc").write_bytes(b"x")
    assert render().err.startswith("unchanged: build/gpt (")
    assert built.stat().st_ino == before
    for name in ("new", "old"):  # of renders that were killed
        (tmp_path / f"build/.gpt.ddpgen-{name}").mkdir()
        (tmp_path / f"build/.gpt.ddpgen-{name}/half").write_text("written")
    assert render(GPT + "restarts: 0\n").code == 0
    assert b"--max-restarts=0" in (built / "local.sh").read_bytes()
    assert os.listdir(tmp_path / "build") == ["gpt"]
    assert not (built / "train/__pycache__").exists()
    files = tree(built)
    built.rename(tmp_path / "build/.gpt.ddpgen-old")
    assert render(GPT + "restarts: 0\n").err.startswith("unchanged: build/gpt")
    assert tree(built) == files


@pytest.mark.parametrize("foreign", ["notes.txt", "train/mine.py", "empty/", ".hidden"])
def test_foreign_files_are_named_and_survive(render: Render, tmp_path: Path, foreign: str) -> None:
    render()
    path = tmp_path / "build/gpt" / foreign
    path.mkdir() if foreign.endswith("/") else path.write_text("precious")
    before = tree(tmp_path / "build")
    for options in ([], ["--force"]):
        refused = render(GPT + "restarts: 0\n", *options)
        assert refused.code == 73
        assert refused.err.startswith(f"{tmp_path}/build/gpt holds ")
        assert f" not write: {foreign}. " in refused.err
    assert tree(tmp_path / "build") == before
    assert path.exists()


def test_an_edited_file_is_named_and_given_up_only_by_force(render: Render, tmp_path: Path) -> None:
    render()
    script = tmp_path / "build/gpt/local.sh"
    script.write_text("edited")
    refused = render()
    assert refused.code == 73
    assert "edited by hand: local.sh. " in refused.err
    assert script.read_text() == "edited"
    assert render(GPT, "--force").code == 0
    assert script.read_text() != "edited"
    for name in (
        "local.sh",
        "train/checkpoint/store/__init__.py",
    ):  # deleted by hand: it comes back
        (tmp_path / "build/gpt" / name).unlink()
        assert render().code == 0
        assert (tmp_path / "build/gpt" / name).exists()


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("", 2, "it is empty"),
        ("/", 73, "/ cannot be a bundle; "),
        (".", 73, "you are standing in it"),
        ("..", 73, "you are standing in it"),
        ("file", 73, "/file is a file; "),
        ("link", 73, "/link is a symbolic link (to elsewhere)"),
        ("file/below", 74, "/file/below: File exists ("),
        ("photos", 73, "not write: me.jpg"),
    ],
)
def test_a_place_that_cannot_be_replaced_is_refused(
    render: Render, tmp_path: Path, output: str, code: int, said: str
) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/me.jpg").write_text("")
    (tmp_path / "photos/bundle.json").write_text("[]")
    refused = render(GPT, "-o", output, "--force")
    assert (refused.code, said in refused.err) == (code, True), refused.err
    assert sorted(os.listdir(tmp_path)) == ["file", "job.yaml", "link", "photos"]
    assert sorted(os.listdir(tmp_path / "photos")) == ["bundle.json", "me.jpg"]
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("place", ["gpt", "gpt/checkpoints", "{tmp_path}/build/gpt/x", "x/../gpt"])
def test_checkpoints_inside_the_bundle_are_refused(
    render: Render, tmp_path: Path, place: str
) -> None:
    refused = render(GPT + f"checkpoint: {{dir: {place.format(tmp_path=tmp_path)}}}\n")
    assert refused.code == 65
    assert ":8:19: checkpoint.dir: " in refused.err
    assert "is inside the bundle" in refused.err


def test_a_directory_of_the_jobs_name_is_free_where_the_bundle_lies_elsewhere(
    render: Render, tmp_path: Path
) -> None:
    spec = GPT + "checkpoint: {dir: gpt/checkpoints}\n"
    assert render(spec, "-o", tmp_path / "out").code == 0


def test_a_working_directory_inside_the_bundle_is_refused(render: Render) -> None:
    refused = render("name: a\ntrain: {script: /opt/t.py, workdir: a/work}\n")
    assert refused.code == 65
    assert ":2:37: train.workdir: " in refused.err


def test_checkpoints_of_any_tier_inside_the_bundle_are_refused(run: Run, spec: Spec) -> None:
    text = GPT + "targets: {local: {}, slurm: {checkpoint: {dir: gpt/checkpoints}}}\n"
    refused = run("render", spec(text), "--target", "all")
    assert refused.code == 65
    assert "job.yaml:8:48: targets.slurm.checkpoint.dir: " in refused.err


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("write_bytes", errno.ENOSPC, "{bundle}: No space left on device; free some space"),
        ("read_bytes", errno.EACCES, "{src}: cannot be read: Permission denied; "),
        ("write_bytes", errno.EROFS, "{bundle}: Read-only file system; give another place"),
    ],
)
def test_a_file_that_cannot_be_read_or_written_loses_nothing(
    render: Render,
    src: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    said: str,
) -> None:
    render(MODEL)
    before, real = tree(tmp_path / "build"), getattr(Path, call)

    def refuse(path: Path, *content: bytes) -> object:
        if path.name == "run.sh" and "build/gpt" not in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *content)

    with monkeypatch.context() as disk:
        disk.setattr(Path, call, refuse)
        refused = render(MODEL + "restarts: 0\n")
    assert refused.code == 74
    assert refused.err.startswith(said.format(bundle=tmp_path / "build/gpt", src=src / "run.sh"))
    assert (".ddpgenignore" in refused.err) == (call == "read_bytes")
    assert tree(tmp_path / "build") == before
    assert os.listdir(tmp_path / "build") == ["gpt"]


@pytest.mark.slow
def test_a_render_killed_at_any_moment_leaves_the_old_bundle_or_the_new_one(
    render: Render, tmp_path: Path
) -> None:
    render()
    old = tree(tmp_path / "build/gpt")
    (tmp_path / "job.yaml").write_text(GPT + "restarts: 0\n")
    command = [sys.executable, "-m", "ddpgen", "render", "job.yaml", "--target", "local"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    for delay in (0.05, 0.08, 0.1, 0.11, 0.12, 0.13, 0.14, 0.16):
        process = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(delay)  # no event to wait for: any moment is the point
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        # Between its two renames the old one is beside: the next render brings it back.
        files = tree(tmp_path / "build/gpt") or tree(tmp_path / "build/.gpt.ddpgen-old")
        changed = {name for name in old if files[name] != old[name]}
        assert files.keys() == old.keys()
        assert changed in (set(), {"local.sh", "bundle.json"})
    assert render(GPT + "restarts: 0\n").code == 0
    assert os.listdir(tmp_path / "build") == ["gpt"]


@pytest.mark.slow
def test_renders_at_the_same_moment_take_turns(render: Render, tmp_path: Path) -> None:
    specs = []
    for restarts in range(4):
        specs.append(tmp_path / f"job{restarts}.yaml")
        specs[-1].write_text(GPT + f"restarts: {restarts}\n")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "ddpgen", "render", specs[i % 4], "--target", "local"],
            cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for i in range(12)
    ]  # fmt: skip
    for process in started:
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0, said
    assert os.listdir(tmp_path / "build") == ["gpt"]
    listing = json.loads((tmp_path / "build/gpt/bundle.json").read_bytes())
    for name, digest in listing["files"].items():
        content = (tmp_path / "build/gpt" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest


MODEL = GPT.replace("workload: gpt", "workload: my_model.py:build") + "code: src\n"


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """A user's code with all that comes to lie beside it."""
    src = tmp_path / "src"
    for name in (
        "my_model.py",
        "data/words.txt",
        "run.sh",
        ".git/config",
        "__pycache__/my_model.pyc",
        ".venv/bin/python",
        "node_modules/x.js",
        "sub/deep/__pycache__/y.pyc",
        "sub/deep/z.py",
    ):
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_text(name)
    (src / "run.sh").chmod(0o711)
    (src / "my_model.py").write_text("def build(context): ...")
    (src / "my_model.py").chmod(0o600)
    return src


def git(where: Path, *words: str) -> str:
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *me, *words], cwd=where, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def test_the_bundle_names_the_commit_and_what_differs_from_it(
    render: Render, src: Path, tmp_path: Path
) -> None:
    def source() -> dict[str, object]:
        assert render(MODEL).code == 0
        found = json.loads((tmp_path / "build/gpt/bundle.json").read_bytes()).get("source")
        return found or {}

    shutil.rmtree(src / ".git")
    assert source() == {}  # no repository
    git(tmp_path, "init")
    (src / "run.sh").write_text("1")
    assert source() == {}  # no commit
    (tmp_path / ".gitignore").write_text("/build\n*.txt\n")
    (src / "caf\u00e9 [1].py").write_text("")
    git(tmp_path, "add", "src", ".gitignore")
    git(tmp_path, "commit", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    (src / "sub/deep/z.py").write_text("edited")
    (src / "new.py").touch()
    git(src, "mv", "run.sh", "begin.sh")
    changed = ["begin.sh", "data/words.txt", "new.py", "sub/deep/z.py"]
    assert source() == {
        "commit": head, "branch": "main", "changed": [f"code/{name}" for name in changed],
    }  # fmt: skip
    # A commit of the very files makes no other bundle: a job may be running from it.
    listing = (tmp_path / "build/gpt/bundle.json").read_bytes()
    git(src, "add", "-f", ".")
    git(src, "commit", "-m", "second")
    assert source()["commit"] == head
    assert (tmp_path / "build/gpt/bundle.json").read_bytes() == listing
    (src / "new.py").write_text("1")
    git(src, "checkout", "--detach")
    second = git(tmp_path, "rev-parse", "HEAD")
    assert source() == {"commit": second, "branch": "detached", "changed": ["code/new.py"]}


def code_of(bundle: Path) -> list[str]:
    return sorted(name[5:] for name in tree(bundle) if name.startswith("code/"))


def test_code_travels_without_caches_environments_and_what_is_ignored(
    render: Render, src: Path, tmp_path: Path
) -> None:
    (src / "data/bundle.json").write_text('{"files": []}')  # the user's own
    assert render(MODEL).code == 0
    built = tmp_path / "build/gpt"
    ours = ["data/bundle.json", "data/words.txt", "my_model.py", "run.sh", "sub/deep/z.py"]
    assert code_of(built) == ours
    modes = {name: mode for name, (mode, _) in tree(built).items() if name.startswith("code/")}
    assert modes["code/run.sh"] == 0o755
    assert modes["code/my_model.py"] == 0o644
    (src / ".ddpgenignore").write_text("# big\ndata/\n*.sh\nsub/deep\n.ddpgenignore\n")
    assert render(MODEL).code == 0
    assert code_of(built) == ["my_model.py"]


def test_the_whole_directory_travels_without_bundles_checkpoints_and_leftovers(
    render: Render, run: Run, src: Path, tmp_path: Path
) -> None:
    text = MODEL.replace("code: src", "code: .").replace("my_model", "src/my_model")
    assert render(text).code == 0
    for name in (
        "build/checkpoints/gpt/step-000000007/checkpoint.json",
        "runs/old/lock",
        "runs/old/status",
        "build/.gpt.ddpgen-new/half",
        "build/.gpt.ddpgen-old/half",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("huge")
    assert run("render", "job.yaml", "--target", "local", "-o", "elsewhere").code == 0
    assert render(text + "restarts: 0\n").code == 0
    roots = {name.partition("/")[0] for name in code_of(tmp_path / "build/gpt")}
    assert roots == {"job.yaml", "src"}


def test_secrets_stay_behind_with_a_warning_unless_code_names_them(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    write_files(
        tmp_path, "src/t.py", "src/.env", "src/sub/.env.prod", "src/.ssh/id_rsa", "src/a.env"
    )
    done = run("render", spec(GPT + "code: src\n"), "--target", "local")
    assert code_of(tmp_path / "build" / "gpt") == ["a.env", "t.py"]
    assert "8:7: warning: code: src/.env, src/.ssh, src/sub/.env.prod may hold secrets" in done.err
    (tmp_path / "src" / ".ddpgenignore").write_text(".env\n.env.*\n.ssh\n")
    done = run("render", spec(GPT + "code: [src, src/.env]\n"), "--target", "local")
    assert "warning" not in done.err
    assert code_of(tmp_path / "build" / "gpt") == [".ddpgenignore", ".env", "a.env", "t.py"]


def test_the_file_of_a_secret_never_travels(run: Run, spec: Spec, tmp_path: Path) -> None:
    (tmp_path / "mine/keys").mkdir(parents=True)
    token = tmp_path / "mine/keys/tok"
    token.write_text("hf_1\n")
    for code in (".", "mine", "mine/keys/tok"):
        spec(GPT + f"code: [{code}]\nsecrets: {{T: 'file:{token}'}}\n")
        refused = run("validate", "job.yaml")
        assert refused.code == 65
        assert "the bundle would hold T" in refused.err
    spec(GPT + f"code: [mine]\nsecrets: {{T: 'file:{token}'}}\n")
    (tmp_path / "mine/.ddpgenignore").write_text("keys\n")
    assert run("validate", "job.yaml").code == 0


@pytest.mark.parametrize("hidden", ["my_model.py", "venv/my_model.py"])
def test_a_model_that_would_stay_behind_is_a_fault_of_the_spec(
    render: Render, src: Path, hidden: str
) -> None:
    (src / "venv").mkdir()
    (src / "venv/my_model.py").write_text("")
    (src / ".ddpgenignore").write_text("my_*\n")
    refused = render(MODEL.replace("my_model.py", hidden))
    assert refused.code == 65
    assert f": train.workload: {hidden} is there, but is left out " in refused.err
    assert ".ddpgenignore" in refused.err


def test_links_within_the_directory_are_followed(render: Render, src: Path, tmp_path: Path) -> None:
    (src / "alias.py").symlink_to("my_model.py")
    (src / "more").symlink_to("data")
    assert render(MODEL).code == 0
    files = tree(tmp_path / "build/gpt")
    assert files["code/alias.py"][1] == b"def build(context): ..."
    assert files["code/more/words.txt"][1] == b"data/words.txt"
    assert not (tmp_path / "build/gpt/code/alias.py").is_symlink()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere", "src/link is a symbolic link to nowhere, "),
        ("link", "src/link is a symbolic link to link, "),
        ("..", "directory it is in"),
        ("/etc/hosts", ", to /etc/hosts; copy"),
        ("", "neither a file nor a directory"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    render: Render, src: Path, target: str, said: str
) -> None:
    if target:
        (src / "link").symlink_to(target if target != ".." else src)
    else:
        os.mkfifo(src / "link")
    refused = render(MODEL)
    assert (refused.code, said in refused.err) == (74, True), refused.err


@pytest.mark.parametrize(
    ("name", "code"), [(".ddpgenignore", 74), ("sub/bundle.json", 74), ("../job.lock", 65)]
)
def test_a_pipe_is_never_opened(render: Render, src: Path, name: str, code: int) -> None:
    os.mkfifo(src / name)
    locked = "environment: locked\n" if "lock" in name else ""
    refused = render(MODEL + locked)
    assert (refused.code, Path(name).name in refused.err) == (code, True), refused.err


def test_a_name_that_is_not_utf_8_is_refused(render: Render, src: Path) -> None:
    (src / os.fsdecode(b"b\xff.txt")).write_text("")
    (src / "é.txt").write_text("")
    refused = render(MODEL)
    assert refused.code == 74
    assert r"src/b\xff.txt': the name is not UTF-8" in refused.err


def test_too_much_code_names_the_largest_files(render: Render, src: Path) -> None:
    with open(src / "data.bin", "wb") as file:
        file.truncate(3 << 20)
    refused = render(MODEL, "--max-code-mib", "2")
    assert refused.code == 74
    assert refused.err.startswith("code has 3 MiB, more than 2; ")
    assert "data.bin (3 MiB), " in refused.err
    assert render(MODEL, "--max-code-mib", "4").code == 0


def test_two_files_of_one_name_are_refused(render: Render, src: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "my_model.py").write_text("def build(context): ...")
    refused = render(MODEL.replace("code: src", "code: [src, other]"))
    assert refused.code == 65
    assert "job.yaml:8:7: code: " in refused.err
    assert "both become code/my_model.py; " in refused.err
    (tmp_path / "other" / "my_model.py").rename(tmp_path / "other" / "more.py")
    for folder in (src, tmp_path / "other"):
        (folder / ".ddpgenignore").write_text("*.tmp\n")
    assert render(MODEL.replace("code: src", "code: [src, other]")).code == 0


def write_files(where: Path, *names: str) -> None:
    for name in names:
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(name)


@pytest.mark.parametrize(
    ("first", "second", "files"),
    [
        ("[]", "[a]", ["t.py"]),
        ("[a]", "[]", ["t.py"]),
        ("[a]", "[b]", ["t.py", "u.py"]),
        ("[a]", "[./a, b]", ["t.py", "u.py"]),
    ],
)
def test_a_bundle_for_several_tiers_has_the_code_of_each(
    run: Run, spec: Spec, tmp_path: Path, first: str, second: str, files: list[str]
) -> None:
    write_files(tmp_path, "a/t.py", "b/u.py")
    job = spec(GPT + f"code: {first}\ntargets: {{local: , slurm: {{code: {second}}}}}\n")
    assert run("render", job, "--target", "all").code == 0
    assert code_of(tmp_path / "build" / "gpt") == files


def test_tiers_that_disagree_on_a_file_of_the_bundle_are_refused(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    write_files(tmp_path, "a/t.py", "b/t.py")
    spec(GPT + "code: a\ntargets: {local: , slurm: {code: b}}\n")
    refused = run("render", "job.yaml", "--target", "all")
    assert (refused.code, refused.out) == (65, "")
    assert refused.err.startswith("job.yaml:9:34: targets.slurm.code: code/t.py ")
    assert "b/t.py for slurm, and a/t.py for local; " in refused.err
    assert refused.err.endswith(" --target slurm -o DIR\n")
    assert not (tmp_path / "build").exists()
    assert run("render", "job.yaml", "--target", "slurm").code == 0
    assert (tmp_path / "build" / "gpt" / "code" / "t.py").read_text() == "b/t.py"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (MODEL.replace("src", "sorce"), "8:7: code: sorce does not exist"),
        (MODEL.replace("code: src", "code: /etc"), "8:7: code: /etc is not relative; "),
        (MODEL.replace("code: src", "code: ../.."), "8:7: code: ../.. leads out "),
        (
            MODEL.replace("my_model", "my_modle"),
            "4:13: train.workload: my_modle.py is not in code (src); ",
        ),
        (
            MODEL.replace("my_model", "../my_model"),
            "4:13: train.workload: ../my_model.py leads out of code; ",
        ),
    ],
)
def test_code_that_is_not_there_is_a_fault_of_the_spec(
    run: Run, spec: Spec, src: Path, text: str, fault: str
) -> None:
    spec(text)
    refused = run("validate", "job.yaml")
    assert refused.code == 65
    assert refused.err.startswith(f"job.yaml:{fault}")


def test_a_pipe_that_code_names_is_a_fault_of_the_spec(
    run: Run, spec: Spec, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = run("validate", spec(GPT + "code: pipe\n"))
    assert refused.code == 65
    assert ":8:7: code: pipe is neither " in refused.err


def test_a_system_without_locks_renders_the_same_bytes(run: Run, tmp_path: Path) -> None:
    """Windows, as far as it can be had here: no fcntl, and a directory cannot be opened."""
    (tmp_path / "job.yaml").write_text(GPT)
    assert run("render", "job.yaml", "--target", "local", "-o", "here").code == 0
    program = (
        "import sys, click, jinja2, shutil, tempfile\n"
        "sys.platform, sys.modules['fcntl'] = 'win32', None\n"
        "import os; del os.O_DIRECTORY\n"
        "from ddpgen import cli\n"
        "for _ in range(2):\n"
        "    sys.argv = ['ddpgen', 'render', 'job.yaml', '--target', 'local', '-o', 'there']\n"
        "    assert cli.run() == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = [path.relative_to("here") for path in Path("here").rglob("*") if path.is_file()]
    assert all(Path("here", n).read_bytes() == Path("there", n).read_bytes() for n in names)
