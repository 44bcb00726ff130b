"""The tier slurm: what its batch script asks Slurm for, and what it refuses to ask."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpgen.plan import LaunchPlan, plan
from ddpgen.reader import read
from ddpgen.shell import directive, quote
from ddpgen.tables import as_json, as_text
from tests.ddpgen.conftest import GPT as SMALL
from tests.ddpgen.conftest import ROOT, Run

GPT = SMALL.replace("micro_batch_size: 4", "micro_batch_size: 1")


def planned(slurm: str = "", top: str = "") -> LaunchPlan:
    job = read(f"{GPT}{top}\ntargets: {{slurm: {{{slurm}}}}}\n".encode(), "j")["slurm"].job
    return plan(job, "slurm")


def directives(slurm: str = "", top: str = "") -> list[str]:
    batch = planned(slurm, top).slurm
    assert batch is not None
    return list(batch.directives)


@pytest.fixture
def script(run: Run, tmp_path: Path) -> Callable[..., str]:
    def script(slurm: str = "", top: str = "", base: str = GPT) -> str:
        (tmp_path / "job.yaml").write_text(f"{base}{top}\ntargets:\n  slurm: {{{slurm}}}\n")
        outcome = run("render", "job.yaml", "--target", "slurm", "--stdout")
        assert outcome.code == 0, outcome.err
        return outcome.out

    return script


@pytest.mark.parametrize("name", ["cluster", "cluster_gpu"])
def test_the_script_of_an_example(
    name: str, run: Run, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    outcome = run("render", f"examples/{name}.yaml", "--target", "slurm", "--stdout")
    assert (outcome.code, outcome.err) == (0, "")
    golden(f"{name}.slurm.sbatch", outcome.out)


def test_what_every_job_asks_for() -> None:
    assert directives() == [
        "--job-name=gpt",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--output=%x-%j.log",
        "--open-mode=append",
        "--requeue",
        "--signal=B:USR1@300",
    ]


@pytest.mark.parametrize(
    ("slurm", "asked"),
    [
        ("nodes: 3", "--nodes=3"),
        ("nodes: 2..4", "--nodes=2-4"),
        ("cpus_per_proc: 4", "--cpus-per-task=8"),
        ("train: {threads: 3, data_workers: 1}", "--cpus-per-task=8"),
        ("time: 12h", "--time=0-12:00:00"),
        ("time: 2-00:30:00", "--time=2-00:30:00"),
        ("time: 36:00:00", "--time=1-12:00:00"),
        ("time: 90s", "--time=0-00:01:30"),
        ("mem: 16G", "--mem=16G"),
        ("gpus_per_node: 2", "--gpus-per-node=2"),
        ("gpus_per_node: 2, gpu_type: a100", "--gpus-per-node=a100:2"),
        ("gpus_per_node: 2, gpu_request: gres", "--gres=gpu:2"),
        ("gpus_per_node: 2, gpu_request: gres, gpu_type: a100", "--gres=gpu:a100:2"),
        ("gpus_per_node: 2, gpu_request: gpus-per-task", "--gpus-per-task=2"),
        ("constraint: '[rack1|rack2]&ib*2'", "--constraint=[rack1|rack2]&ib*2"),
        ("exclude: 'node[1-3,7]'", "--exclude=node[1-3,7]"),
        ("nodelist: node4", "--nodelist=node4"),
        (
            "dependency: 'afterok:1?afterany:2'".replace("?", ","),
            "--dependency=afterok:1,afterany:2",
        ),
        ("array: 0-7%2", "--array=0-7%2"),
        ("array: 0-7", "--output=%x-%A_%a.log"),
        ("exclusive: true", "--exclusive"),
        ("comment: two words", "--comment=two words"),
        ("mail_to: a@b.c", "--mail-type=END,FAIL"),
        ("mail_to: a@b.c, mail_on: REQUEUE", "--mail-type=REQUEUE"),
        ("extra: --mem-per-gpu=4G", "--mem-per-gpu=4G"),
        ("step_time: 20s, write_time: 40s", "--signal=B:USR1@120"),
        ("warning: 90s", "--signal=B:USR1@90"),
        ("time: 9min", "--signal=B:USR1@180"),
    ],
)
def test_fields_become_directives(slurm: str, asked: str) -> None:
    assert asked in directives(slurm)


def test_gpus_are_not_asked_for_where_the_site_gives_whole_nodes() -> None:
    assert not [each for each in directives("gpus_per_node: 2, gpu_request: none") if "gpu" in each]


@pytest.mark.parametrize(
    ("slurm", "said"),
    [
        ("partitoin: gpu", "unknown key; did you mean partition?"),
        ("partition: a b", "write letters, digits and any of"),
        ("partition: 'a#b'", "does not fit"),
        ("partition: 'a\\b'", "does not fit"),
        ("partition: --wrap=x", "does not fit"),
        ("comment: 'a\"b'", "does not fit"),
        ("time: banana", '"banana" is no length of time'),
        ("time: 2:30", "2:30 may be hours and minutes, or minutes and seconds; write"),
        ("time: 90", "90 has no unit"),
        ("mem: lots", 'write a size like "16G"'),
        ("gpu_request: please", "is not known"),
        ("array: a-b", "write indices like"),
        ("mail_on: SOMETIMES", "write an event like END"),
        ("extra: mem=4G", "write an option of sbatch"),
        ("extra: --nodes=3", "--nodes is said by this tier itself; use the field for it"),
        ("extra: ['--open-mode=truncate']", "--open-mode is said by this tier itself"),
        (
            "nodes: 1..2, gpus_per_node: 2, gpu_request: gpus-per-task",
            "sbatch takes gpus-per-task only for a fixed number of nodes",
        ),
        ("gpu_type: a100", "names a type of GPU, and the job asks for none"),
        ("time: 5min, warning: 5min", "the warning comes 300 s before the end of 300 s"),
        ("time: 1min, step_time: 10s", "the warning comes 70 s before the end of 60 s"),
        ("environment: {conda: a, venv: ~/b}", "conda and venv are both given"),
        ("environment: {venv: b}", '"b" is another place on every node'),
        ("environment: {venv: ~you/b}", "is the home of another user"),
        ("environment: {modules: 'a; rm -rf x'}", "write a module's name"),
        ("setup: [DDPGEN_ACTIVATE]", "holds DDPGEN_ACTIVATE"),
        ("checkpoint: {shared: false}", "they have to find its checkpoints"),
        ("nodes: 2, nic: lo", "loopback leads every node to itself"),
        (
            "nodes: 1..2, train: {reduction: allreduce}",
            "a varying number of nodes changes its bits",
        ),
    ],
)
def test_what_slurm_would_refuse_or_misread_is_refused_here(
    run: Run, tmp_path: Path, slurm: str, said: str
) -> None:
    (tmp_path / "job.yaml").write_text(f"{GPT}targets:\n  slurm: {{{slurm}}}\n")
    outcome = run("render", "job.yaml", "--target", "slurm", "--stdout")
    assert outcome.code == 65
    assert outcome.err.startswith("job.yaml:9:")
    assert said in outcome.err


@pytest.mark.parametrize("option", ["--x=a#b", "--x=a\\b", "--x='", "--x=$(a)", "x=1", "--x=a\nb"])
def test_nothing_else_gets_into_a_directive(option: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in a directive"):
        directive(option)


def test_directives_stand_before_the_first_command(script: Callable[..., str]) -> None:
    lines = script("comment: two words, time: 1h").splitlines()
    commands = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    written = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert written == list(range(1, 1 + len(written)))
    assert written[-1] < commands[0]
    assert '#SBATCH --comment="two words"' in lines


SPECS = {
    "plain": "",
    "range": "nodes: 1..3, array: 0-3",
    "venv": "environment: {modules: [a/1, b], venv: ~/v}",
    "uv": 'environment: {uv: "/it\'s/here"}',
    "apptainer": "environment: {container: ~/i.sif}, gpus_per_node: 2",
    "pyxis": "environment: {container: {image: a/b:1, runtime: pyxis, mounts: [/data, '~/x:/x']}}",
    "setup": 'setup: [\'a "b" $c\', "it\'s"], preflight: off',
    "static": "nodes: 2, rendezvous: {launcher: torchrun-static}",
    "env": "nodes: 2, rendezvous: {launcher: env}, nic: ib0",
    "hostile": "checkpoint: {dir: '/$(touch x)/`y`'}, python: \"/it's here/python\"",
    "script": "",
}


@pytest.mark.parametrize("name", SPECS)
def test_scripts_are_clean_bash(name: str, script: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    path = tmp_path / "slurm.sbatch"
    base = "name: s\ntrain: {script: a.py}\n" if name == "script" else GPT
    path.write_text(script(SPECS[name], "code: .\n", base))
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    beside_python = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=beside_python)
    assert shellcheck, "shellcheck is missing; it comes with the [dev] extra"
    done = subprocess.run(
        [shellcheck, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    younger = (r"\bmapfile\b", r"\breadarray\b", r"declare -A", r"\$\{\w+@", r"\bwait -n\b", "&>>")
    assert not [pattern for pattern in younger if re.search(pattern, path.read_text())]


def test_a_stop_file_is_made_once_and_never_in_place_of_the_users(
    script: Callable[..., str], tmp_path: Path
) -> None:
    made = re.search(r"(?ms)^make_stop_file\(\) \{.*?^\}$", script())
    assert made is not None
    words = f'{made[0]}\njob=7 restart=0\nmake_stop_file "$1" "$2"'

    def stop(why: str, directory: Path) -> int:
        return subprocess.run(["bash", "-euc", words, "-", why, str(directory)]).returncode

    assert stop("TERM", tmp_path / "away") == 1
    for name, before in (("first", None), ("user", "")):
        place = tmp_path / name
        place.mkdir()
        if before is not None:
            (place / "stop").write_text(before)
        inode = os.stat(place / "stop").st_ino if before is not None else 0
        assert [stop("TERM", place), stop("USR1", place)] == [0, 0]
        assert (place / "stop").read_text() == ("slurm 7 0 TERM\n" if before is None else "")
        assert inode in (0, os.stat(place / "stop").st_ino)
        assert os.listdir(place) == ["stop"]


@pytest.mark.parametrize(
    ("preempted", "fate"),
    [("13:05:08", "ended"), ("13:05:07", "ended"), ("13:05:06", "over"), (None, "over")],
)
def test_a_preemption_of_this_start_is_told_from_scancel_and_from_an_earlier_start(
    script: Callable[..., str], preempted: str | None, fate: str
) -> None:
    found = re.search(r"(?ms)^fate\(\) \{.*?^\}$", script())
    assert found is not None
    at = f"2026-11-22T{preempted}" if preempted else "None"
    shown = (
        "JobId=7 JobState=COMPLETING Reason=None Restarts=0\n"
        "   StartTime=2026-11-22T13:05:07 EndTime=2026-11-22T13:06:00\n"
        f"   PreemptEligibleTime=2026-11-22T13:05:07 PreemptTime={at}\n"
    )
    stub = 'job=7 restart=0 term_at=1 answer=$1\nscontrol() { printf %s "$answer"; }'
    words = f"{found[0]}\n{stub}\nfate"
    done = subprocess.run(["bash", "-euc", words, "-", shown], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{fate}\n", "")


@pytest.mark.parametrize(
    ("shown", "patience"),
    [
        ("KillWait = 30 sec", "22"),
        ("KillWait = 17 sec", "9"),
        ("KillWait = 12 sec", "6"),
        ("", "22"),
    ],
)
def test_there_is_time_for_the_last_act_before_slurm_kills(
    script: Callable[..., str], shown: str, patience: str
) -> None:
    found = re.search(r"(?ms)^patience\(\) \{.*?^\}$", script())
    assert found is not None
    words = f'answer=$1\nscontrol() {{ echo "$answer"; }}\n{found[0]}\npatience'
    done = subprocess.run(["bash", "-euc", words, "-", shown], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{patience}\n", "")


@pytest.mark.parametrize(
    ("ended", "comes", "says"),
    [("69", "", "gone 69"), ("69 143", "", "gone 69"), ("69 143", "TERM", "back 69"),
     ("69 1", "TERM", "gone 69"), ("130", "TERM", "back 130")],
)  # fmt: skip
def test_what_a_signal_has_ended_is_no_fault_though_the_scripts_own_is_a_moment_behind(
    script: Callable[..., str], ended: str, comes: str, says: str
) -> None:
    found = re.search(r"(?ms)^cannot\(\) \{.*?^\}$", script())
    assert found is not None
    stubs = f"asked=\nsleep() {{ asked={comes}; }}\ncome_back() {{ echo back $2; exit; }}\n"
    words = f"{stubs}good_bye() {{ echo gone $1; exit; }}\n{found[0]}\ncannot {ended}"
    done = subprocess.run(["bash", "-euc", words], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{says}\n", "")


def test_checkpoints_that_were_set_aside_are_none(
    script: Callable[..., str], tmp_path: Path
) -> None:
    found = re.search(r"(?ms)^newest_step\(\) \{.*?^\}$", script())
    assert found is not None

    def newest() -> str:
        words = f'{found[0]}\ncheckpoint_dir=$1\nnewest=$(newest_step)\necho "$newest"'
        done = subprocess.run(
            ["bash", "-euc", words, "-", str(tmp_path)], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    assert newest() == "0"
    for name in ("step-000000008", "step-000000040.corrupt", "step-000000050.corrupt-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkpoint.json").touch()
    (tmp_path / "step-000000060").mkdir()  # one that is being removed
    assert newest() == "8"


def test_containers_get_the_bundle_the_checkpoints_and_what_is_mounted(
    script: Callable[..., str],
) -> None:
    text = script("gpus_per_node: 2, environment: {container: {image: ~/i.sif, mounts: /data}}")
    inside = text.partition("inside=(\n")[2].partition("\n)")[0].split()
    assert inside == [
        "apptainer", "exec", "--nv", '--bind="$bundle"', '--bind="$checkpoint_dir"', "--bind=/data",
        '--pwd="$bundle"', '"$HOME"/i.sif',
    ]  # fmt: skip
    text = script("environment: {container: {image: a/b:1, runtime: pyxis, mounts: ['~/x:/x']}}")
    assert "--container-image=a/b:1 \\\n" in text
    mounts = '"$bundle":"$bundle","$checkpoint_dir":"$checkpoint_dir","$HOME"/x:/x'
    assert f"--container-mounts={mounts} \\\n" in text.replace("':'", ":").replace("','", ",")


def test_activation_lines_run_in_the_container_and_modules_outside_of_it() -> None:
    batch = planned(
        "environment: {modules: m, conda: c, container: i.sif}", "python: {activate: a}\n"
    )
    assert batch.slurm is not None
    assert batch.slurm.activate_batch[-1:] == ("module load m",)
    assert batch.activate == (
        '. "$(conda info --base)/etc/profile.d/conda.sh"', "conda activate c", "a",
    )  # fmt: skip
    plain = planned("environment: {modules: m, venv: ~/v}")
    assert plain.slurm is not None
    assert plain.slurm.activate_batch == plain.activate
    assert plain.activate[-1] == '. "$HOME"/v/bin/activate'


def test_torchrun_meets_at_what_the_batch_script_has_found() -> None:
    words = " ".join(str(word) for word in planned("nodes: 2").torchrun)
    assert "--rdzv-backend=c10d" in words
    assert "'head_address'" in words
    assert "'port'" in words
    assert "--signals-to-handle=SIGINT,SIGHUP,SIGQUIT" in words
    assert "--elastic" not in words


def test_the_plan_adds_up_the_time(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GPT + "targets: {slurm: {time: 12h, requeues: 5}}\n")
    outcome = run("plan", "job.yaml", "--target", "slurm")
    assert "at most 6 starts: 3-00:00:00 in all" in outcome.out


def test_logs_in_the_bundle_survive_a_render(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GPT + "targets: {slurm: {}}\n")
    assert run("render", "job.yaml", "--target", "slurm").code == 0
    log = tmp_path / "build/gpt/gpt-17.log"
    with log.open("w") as job:  # which goes on writing
        job.write("before\n")
        (tmp_path / "job.yaml").write_text(GPT + "targets: {slurm: {time: 1h}}\n")
        assert run("render", "job.yaml", "--target", "slurm").code == 0
        job.write("after\n")
    assert log.read_text() == "before\nafter\n"


def test_each_task_of_an_array_keeps_its_checkpoints_in_a_store_of_its_own() -> None:
    def store(slurm: str) -> list[str]:
        words = map(quote, planned(slurm, "checkpoint: {dir: 's3://kept/gpt/'}").torchrun)
        return [word for word in words if word.startswith("--checkpoint-store")]

    assert store("") == ["--checkpoint-store=s3://kept/gpt/"]
    assert store("array: 0-3") == ['--checkpoint-store=s3://kept/gpt/"$SLURM_ARRAY_TASK_ID"']
    made = planned("array: 0-3", "checkpoint: {dir: 's3://kept'}")
    assert "kept in      s3://kept/<task>\n" in as_text(made)
    assert json.loads(as_json(made))["store"] == "s3://kept/<task>"
