"""`ddpgen site` with fake programs of Slurm: the file that it writes, and what validate says with it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from ddpgen import job
from ddpgen.tiers.slurm import survey
from ddpgen.tiers.slurm.fields import SlurmJob
from tests.ddpgen.conftest import GPT, ROOT, Run
from tests.ddpgen.programs import Programs
from tests.ddpgen.sites import UNIVERSITY

FAKE_SSH = [sys.executable, "-SE", str(Path(__file__).parent / "driver" / "fake_ssh.py")]
GOLDEN = ROOT / "tests" / "golden" / "site.university.yaml"
REFUSAL = "You are not running a supported accounting_storage plugin"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """The programs of the university."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    programs = Programs(tmp_path, monkeypatch, "sinfo", "scontrol", "sacctmgr")
    for name, argv in survey.questions("me").items():
        programs.answers(f"{argv[0]}.{argv[-1]}", f"0\n{getattr(UNIVERSITY, name)}")
    return programs


def test_a_profile_is_written_once_and_validate_uses_it(slurm: Programs, run: Run) -> None:
    written = run("site", "uni")
    file = slurm.root / "config/ddpgen/uni.yaml"
    assert (written.code, written.out) == (0, f"{file}\n"), written.err
    assert "validate SPEC --profile uni" in written.err
    assert file.read_text() == GOLDEN.read_text()
    (user,) = {argv[4] for argv in slurm.calls("sacctmgr") if "assoc" in argv}
    assert user.startswith("user=")
    assert len(user) > len("user=")

    Path("job.yaml").write_text(f"{GPT}targets:\n  slurm:\n    partition: gpu\n    time: 48h\n")
    refused = run("validate", "job.yaml", "--profile", "uni")
    assert refused.code == 65
    assert "job.yaml:11:11: targets.slurm.time: 48h is more than gpu's limit of 24h" in refused.err
    assert (
        run("validate", "job.yaml", "--profile", "uni", "--set", "targets.slurm.time=24h").code == 0
    )

    file.write_text("restarts: 1\n")
    assert run("site", "uni").code == 73
    assert file.read_text() == "restarts: 1\n"
    assert run("site", "uni", "--force").code == 0
    assert file.read_text() == GOLDEN.read_text()
    assert [path.name for path in file.parent.iterdir()] == ["uni.yaml"]


def test_a_bundle_holds_no_limits(slurm: Programs, run: Run) -> None:
    assert run("site", "-o", "here.yaml").code == 0
    Path("job.yaml").write_text(f"extends: here.yaml\n{GPT}")
    assert run("render", "job.yaml", "--target", "slurm").code == 0
    assert "bigmem" not in Path("build/gpt/bundle.json").read_text()
    assert "bigmem" not in Path("build/gpt/slurm.sbatch").read_text()
    assert run("render", "job.yaml", "--target", "slurm").err.startswith("unchanged")
    (held,) = job.bundle_jobs(Path("build/gpt")).values()
    assert isinstance(held, SlurmJob)
    assert (held.partition, held.limits) == ("cpu", None)


def test_a_command_that_is_missing_or_refused_stands_in_a_comment(
    slurm: Programs, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in slurm.state.glob("sacctmgr.*"):
        file.write_text(f"1\n\x1b[31m{REFUSAL}\n")
    refused = run("site", "-o", "a.yaml")
    assert refused.code == 0
    assert "\x1b" not in Path("a.yaml").read_text()
    for file in slurm.state.glob("sacctmgr.*"):
        file.write_text(f"1\n{REFUSAL}\n")
    refused = run("site", "-o", "a.yaml", "--force")
    assert f"show qos format=Name,MaxWall,MaxTRES,Flags ({REFUSAL})" in refused.err
    text = Path("a.yaml").read_text()
    assert text.count(f"({REFUSAL})") == 2
    assert "partition: cpu" in text
    assert "accounts: [physics" not in text

    (slurm.bin / "sacctmgr").unlink()
    (slurm.bin / "sinfo").unlink()
    only = f"{slurm.bin}:{without_slurm(slurm.root)}"
    monkeypatch.setenv("PATH", only)
    monkeypatch.setenv(
        "HOME", str(slurm.root)
    )  # of the login shell, which looks for programs as well
    (slurm.root / ".bash_profile").write_text(f"PATH={only}\n")
    assert run("site", "-o", "b.yaml").code == 0
    text = Path("b.yaml").read_text()
    assert text.count("there is no sacctmgr on this machine") == 2
    assert text.count("there is no sinfo on this machine") == 1
    assert "time: 24h" in text
    assert "cpus:" not in text

    (slurm.bin / "scontrol").unlink()
    nothing = run("site", "-o", "c.yaml")
    assert (nothing.code, nothing.out) == (69, "")
    assert "--login" in nothing.err
    assert not Path("c.yaml").exists()


def without_slurm(root: Path) -> Path:
    """A directory with the programs that a text needs, because this machine may have a Slurm of its own."""
    tools = root / "tools"
    tools.mkdir()
    for name in ("bash", "id", "env", "cat", "sed", "tr", "head", "mkdir", "ls", "stat", "uname"):
        for directory in ("/usr/bin", "/bin"):
            if os.path.exists(f"{directory}/{name}"):
                (tools / name).symlink_to(f"{directory}/{name}")
                break
    return tools


def test_a_site_is_read_through_its_login_node(
    slurm: Programs, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm.root / "homes" / "me@gate").mkdir(parents=True)
    monkeypatch.setenv("DDPGEN_SSH", shlex.join(FAKE_SSH))
    monkeypatch.setenv("FAKE_HOMES", str(slurm.root / "homes"))
    assert run("site", "uni", "--login", "me@gate").code == 0
    text = (slurm.root / "config/ddpgen/uni.yaml").read_text()
    assert text.replace('    login: "me@gate"\n', "", 1) == GOLDEN.read_text() != text


@pytest.mark.parametrize(
    ("argv", "word"),
    [((), "NAME"), (("a", "-o", "b.yaml"), "NAME"), (("../a",), "letters"), (("a", "--login", "-x"), "ssh")],
)  # fmt: skip
def test_a_name_or_a_file_is_needed(
    slurm: Programs, run: Run, argv: tuple[str, ...], word: str
) -> None:
    outcome = run("site", *argv)
    assert outcome.code == 2
    assert word in outcome.err
    assert slurm.calls("scontrol") == []
