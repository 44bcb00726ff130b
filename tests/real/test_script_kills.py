"""Scripts in a framework's idiom, killed at random: they lose no more than an interval."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.real import jobs
from tests.real.scripts import LONG, SCRIPTS, Script, drafts, workers

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(1200)]


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
