"""Scripts in each framework's documented idiom, unchanged: launched, stopped, killed, and they end in the weights
of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.real import fleet, jobs
from tests.real.rig import Host, Rig

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
FRAMEWORKS = jobs.ROOT / ".venv-frameworks" / "bin"
nightly = pytest.mark.nightly

# Of each example: an argument that makes it long enough, and the weights it leaves.
SCRIPTS = {
    "huggingface": ("--epochs=4", "out/final/model.safetensors"),
    "lightning": ("--epochs=7", "final.pt"),
    "accelerate": ("--epochs=12", "final.pt"),
    "fabric": ("--epochs=12", "final.pt"),
    "nanogpt": ("--max_iters=1500", "out/ckpt.pt"),
    "resnet": ("--epochs=6", "checkpoint.pth.tar"),
}


# Long enough for ten kills.
LONG = {
    "huggingface": "--epochs=12",
    "lightning": "--epochs=40",
    "accelerate": "--epochs=40",
    "fabric": "--epochs=40",
    "nanogpt": "--max_iters=12000",
    "resnet": "--epochs=80",
}


class Script:
    """An example's bundle, started again and again."""

    def __init__(self, name: str, place: Path, procs: int = 2) -> None:
        self.argument, self.result = SCRIPTS.get(name, ("", ""))
        self.bundle = place / name
        spec = jobs.ROOT / "examples" / f"{name}.yaml"
        if procs != 2:
            spec, text = place / spec.name, spec.read_text()
            shutil.copytree(jobs.ROOT / "examples" / "code" / name, place / "code" / name)
            spec.write_text(text.replace("procs_per_node: 2", f"procs_per_node: {procs}"))
        done = jobs.ddpgen("render", spec, "--target", "local", "-o", self.bundle)
        assert done.returncode == 0, done.stderr
        self.move(place / "checkpoints" / name)

    def move(self, directory: Path) -> None:
        """Its checkpoint directory is this."""
        self.directory, self.work = directory, directory / "work"

    def start(self, **variables: str) -> jobs.Job:
        # Only make nightly makes that environment. A script without a framework takes the Python of the tests.
        path = f"{FRAMEWORKS}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {"PATH": path, **variables}
        return jobs.Job(self.bundle, *filter(None, [self.argument]), env=env)

    def run(self) -> jobs.Job:
        """From where it stands to its end."""
        job = self.start()
        assert job.end() == 0, job.output
        return job

    def rows(self) -> list[dict[str, float]]:
        return jobs.rows(self.directory) if (self.directory / "metrics.jsonl").exists() else []

    def saves(self) -> str:
        """The record of rank 0's."""
        record = self.directory / "script" / "saves-0.jsonl"
        return record.read_text() if record.exists() else ""

    def wait_for_rows(self, job: jobs.Job, count: int) -> None:
        """`count` rows more than there are: it takes steps."""
        before = len(self.rows())
        while len(self.rows()) < before + count:
            assert job.process.poll() is None, (job.end(), job.output)
            time.sleep(0.05)

    def weights(self) -> dict[str, torch.Tensor]:
        if self.result.endswith(".safetensors"):
            data = bytearray((self.work / self.result).read_bytes())
            return {"file": torch.frombuffer(data, dtype=torch.uint8)}
        loaded = torch.load(self.work / self.result, weights_only=True)
        return loaded.get("model", loaded.get("state_dict", loaded))


def drafts(script: Script) -> set[Path]:
    """What is being saved, or was when it was killed."""
    return set(script.work.rglob(".saves-*"))


def workers(job: jobs.Job) -> list[int]:
    """The processes of the ranks. Beside torchrun there is what keeps the output."""
    return [each for child in jobs.children(job.process.pid) for each in jobs.children(child)]


@nightly
@pytest.mark.parametrize(
    ("name", "argument"),
    [("nanogpt", "--max_iters=1200"), ("huggingface", "--epochs=2")],
)
def test_killed_in_the_middle_it_goes_on_to_the_same_weights(
    name: str, argument: str, tmp_path: Path
) -> None:
    whole, script = (Script(name, tmp_path / place, procs=1) for place in ("whole", "killed"))
    whole.argument = script.argument = argument
    assert whole.run().lines[-1].startswith("ddpgen: done at step ")

    job = script.start()
    script.wait_for_rows(job, 2)
    os.kill(job.process.pid, signal.SIGKILL)  # and with it all others
    assert job.end() == -signal.SIGKILL
    job = script.run()
    jobs.assert_same_bits(script.weights(), whole.weights())
    assert "does not resume where its checkpoint ends" not in job.output
    assert os.listdir(script.bundle / "code") == ["train.py"]
    kept = sorted((script.directory / "logs").iterdir())  # of both starts
    assert job.lines[-1] in kept[1].read_text()


@nightly  # to import a Trainer takes each process ten seconds of processor
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_stop_keeps_what_was_trained(name: str, tmp_path: Path) -> None:
    script = Script(name, tmp_path)
    job = script.start()
    script.wait_for_rows(job, 2)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 75, job.output
    stopped = json.loads(script.saves().splitlines()[-1])
    last = int(job.lines[-1].partition("stopped at step ")[2].split(";")[0])
    assert last - stopped["step"] <= 2
    job = script.run()
    first = next(row for row in script.rows()[2:] if row["attempt"] != script.rows()[0]["attempt"])
    assert first["step"] > stopped["step"]
    if name != "lightning":  # which does not keep the place in an epoch
        whole = Script(name, tmp_path / "whole")
        whole.run()
        jobs.assert_same_bits(script.weights(), whole.weights())


@nightly
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_starts_unchanged_on_three_processes(name: str, tmp_path: Path) -> None:
    script = Script(name, tmp_path, procs=3)
    script.run()
    assert script.weights()


@nightly
def test_one_that_saves_nothing_begins_anew_and_may(tmp_path: Path) -> None:
    script = Script("classifier", tmp_path)
    job = script.start()
    job.until("epoch 0: loss")
    os.kill(job.process.pid, signal.SIGKILL)
    job.end()
    job = script.start()
    job.until("epoch 0: loss")
    assert job.end() == 0, job.output


COMMAND = """\
#!/bin/bash
trap 'exit 75' USR1
[ "$RANK" = 0 ] || { while [ ! -e over ]; do sleep 0.05; done; exit 0; }
step=$(ls -d ckpt-*/DONE 2>/dev/null | wc -l)
echo "begins at $step: $(echo ckpt-*) $1"
while ((step < 120)); do
  sleep 0.05
  mkdir "ckpt-$((++step))" || exit 9
  [ "$step" != 4 ] || [ -e torn ] || { touch torn; exit 9; } # which leaves it in the way
  touch "ckpt-$step/DONE"
done
touch over
"""


def test_a_command_is_restarted_stopped_and_goes_on(tmp_path: Path) -> None:
    train = {
        "command": ["./train.sh", "--port={port}"], "resume": "by-itself", "guard": "ckpt-*/DONE", "stop": "USR1",
    }  # fmt: skip
    bundle = jobs.render(tmp_path, jobs.spec(train, procs_per_node=2), {"train.sh": COMMAND})
    (bundle / "code" / "train.sh").chmod(0o755)
    job = jobs.Job(bundle)
    job.until(r"begins at 0: ckpt-\* --port=\d+")
    job.until("begins at 3: ckpt-1 ckpt-2 ckpt-3 --port=")
    os.kill(workers(job)[0], signal.SIGKILL)
    job.until("begins at ")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 75, job.output
    again = jobs.run(bundle)
    assert again.process.returncode == 0, again.output
    assert again.lines[-1].startswith("ddpgen: done")
    assert len(list((tmp_path / "checkpoints" / "job" / "work").glob("ckpt-*/DONE"))) == 120


@nightly
@pytest.mark.parametrize("name", SCRIPTS)
def test_ten_kills_at_random_lose_no_more_than_an_interval(name: str, tmp_path: Path) -> None:
    whole, script = Script(name, tmp_path / "whole"), Script(name, tmp_path / "killed")
    whole.argument = script.argument = LONG[name]
    whole.run()
    rng = random.Random(name)
    for _ in range(5):
        job = script.start()
        for kill_all in (False, True):  # torchrun restarts after the first kill
            script.wait_for_rows(job, 1)
            time.sleep(rng.uniform(0, 1))
            victim = job.process.pid if kill_all else rng.choice(workers(job))
            os.kill(victim, signal.SIGKILL)
        job.end()
    job = script.run()
    jobs.assert_same_bits(script.weights(), whole.weights())
    assert "does not resume where its checkpoint ends" not in job.output
    assert os.listdir(script.bundle / "code") == ["train.py"]


# A file that is saved is synced before it is renamed.
SLOW_SAVES = """\
import os, time
fsync = os.fsync
os.fsync = lambda number: (time.sleep(0.2), fsync(number))[1]
"""


@nightly
@pytest.mark.parametrize("name", ["huggingface", "lightning", "accelerate"])
def test_kills_in_the_middle_of_saves_lose_no_more_than_an_interval(
    name: str, tmp_path: Path
) -> None:
    whole, script = Script(name, tmp_path / "whole"), Script(name, tmp_path / "killed")
    whole.argument = script.argument = LONG[name]
    whole.run()
    rng, cut_off = random.Random(name), 0
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW_SAVES)
    for _ in range(5):
        job = script.start(PYTHONPATH=str(tmp_path / "slow"))
        script.wait_for_rows(job, 1)
        ranks, before = workers(job), drafts(script)  # those of earlier kills
        while drafts(script) <= before:
            assert job.process.poll() is None, (job.end(), job.output)
        time.sleep(rng.uniform(0, 0.3))
        for pid in (*ranks, job.process.pid):
            os.kill(pid, signal.SIGKILL)
        job.end()
        cut_off += bool(drafts(script) - before) or '"whole": false' in script.saves()
    assert cut_off
    job = script.run()
    jobs.assert_same_bits(script.weights(), whole.weights())


@nightly
@pytest.mark.usefixtures("rig_possible")
@pytest.mark.parametrize("name", SCRIPTS)
def test_on_two_hosts_that_share_the_directory_it_is_stopped_killed_and_goes_on(
    name: str, tmp_path: Path
) -> None:
    whole, script = Script(name, tmp_path / "whole"), Script(name, tmp_path / "hosts")
    whole.argument = script.argument = LONG[name]
    whole.run()  # two processes, as on the hosts
    spec = yaml.safe_load((jobs.ROOT / "examples" / f"{name}.yaml").read_text())
    code = {"train.py": (jobs.ROOT / "examples" / "code" / name / "train.py").read_text()}
    spec |= {
        "python": str(FRAMEWORKS / "python"),
        "procs_per_node": 1,
        "targets": {"hosts": {"hosts": ["desk", "laptop"], "dir": "/shared/ddpgen"}},
    }
    bundle = jobs.render(tmp_path / "hosts", spec, code, target="hosts")
    with Rig([Host(each, shared="/shared") for each in ("desk", "laptop")]) as rig:
        script.move(rig.shared / "ddpgen" / "checkpoints" / name)
        driver = fleet.Driver(rig, bundle, LONG[name])
        script.wait_for_rows(driver, 3)
        driver.process.send_signal(signal.SIGINT)
        assert driver.end() == 75, driver.output
        driver = fleet.Driver(rig, bundle, LONG[name])
        script.wait_for_rows(driver, 3)
        rig["laptop"].kill_all()
        assert driver.end() != 0, driver.output
        driver = fleet.Driver(rig, bundle, LONG[name])
        assert driver.end() == 0, driver.output
        assert rig.strays(within=10) == []
        if name == "lightning":  # a stop in mid-epoch changes its bits
            assert script.weights().keys() == whole.weights().keys()
        else:
            jobs.assert_same_bits(script.weights(), whole.weights())


APART = """\
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
if {goes_on}:
    kept = torch.load("ckpt.pt", weights_only=True)
    model.load_state_dict(kept["model"])
    step = kept["step"]
print("begins at", step, flush=True)
while step < 100000:
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    step += 1
    time.sleep(0.05)
    if step % 10 == 0 and dist.get_rank() == 0:
        torch.save({{"model": model.state_dict(), "step": step}}, "ckpt.pt")
"""
BY_ARGUMENT = "'--resume' in sys.argv", {"exists": "ckpt.pt", "args": "--resume"}
BY_ITSELF = "os.path.exists('ckpt.pt')", {}


@nightly
@pytest.mark.usefixtures("rig_possible")
@pytest.mark.parametrize(
    ("goes_on", "resume", "code", "says"),
    [
        (*BY_ARGUMENT, 69, "DIR007   laptop  desk has {kept} of step {step}, and laptop has none"),
        (*BY_ITSELF, 1, "desk resumes from {kept} of step {step}, and laptop begins at step 0; copy it"),
    ],
)  # fmt: skip
def test_hosts_of_which_one_lacks_the_checkpoint_do_not_train_over_it(
    goes_on: str, resume: dict[str, str], code: int, says: str, tmp_path: Path
) -> None:
    spec = fleet.spec(["desk", "laptop"], rendezvous={"launcher": "env"})
    spec |= {"code": "code", "train": {"script": "loop.py", "resume": resume}}
    text = APART.format(goes_on=goes_on)
    bundle = jobs.render(tmp_path, spec, {"loop.py": text}, target="hosts")
    with Rig([Host("desk"), Host("laptop")]) as rig:
        place = f"{rig['desk'].home}/ddpgen/checkpoints/job/work/ckpt.pt"
        kept, copy = rig["desk"].path(place), rig["laptop"].path(place)
        driver = fleet.Driver(rig, bundle)
        while not kept.exists():
            assert driver.process.poll() is None, driver.output
            time.sleep(0.1)
        driver.process.send_signal(signal.SIGINT)
        assert driver.end() == 75, driver.output

        before = kept.read_bytes()
        step = torch.load(kept, weights_only=True)["step"]
        driver = fleet.Driver(rig, bundle)
        assert driver.end() == code, driver.output
        assert says.format(kept=place, step=step) in driver.output
        assert kept.read_bytes() == before

        copy.write_bytes(before)
        driver = fleet.Driver(rig, bundle)
        for _ in range(2):
            driver.until(f"begins at {step}")
        while kept.read_bytes() == before:
            assert driver.process.poll() is None, driver.output
            time.sleep(0.1)
        driver.process.send_signal(signal.SIGINT)
        assert driver.end() == 75, driver.output
        assert rig.strays(within=30) == []
