"""Scripts in each framework's documented idiom, unchanged: launched, stopped, killed, and they end in the weights
of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.real import jobs
from tests.real.scripts import LONG, SCRIPTS, Script, workers

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
nightly = pytest.mark.nightly


@nightly
@pytest.mark.parametrize(
    ("name", "argument"),
    [("nanogpt", "--max_iters=6000"), ("huggingface", "--epochs=2")],
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
    script, whole = (Script(name, tmp_path / place) for place in ("stopped", "whole"))
    script.argument = whole.argument = LONG[name]
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
