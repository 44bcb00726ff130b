"""Jobs on spot machines, by SkyPilot itself: its server, its commands, its mounts, on a cloud of our own.

What is rendered is what runs; the command line says only where (--infra slurm/rig --no-use-spot). A launch
takes a minute of processor, nearly all of it SkyPilot's own. So the day has one launch, the night has what
becomes of one, and tests/sky shows the rest with SkyPilot's bash alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.real import batch, jobs, planted, skyjob
from tests.real.conftest import NewSky
from tests.real.rig.sky import Sky, plain
from tests.real.skyjob import EVERY, STEPS, WITHIN_S, SkyJob
from train.run import provenance

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
PAUSE_S = 0.5
SHORT = 20  # steps
# The optimizer is two mebibytes then, the weights one: on a slow wire there are seconds between the two.
BIG = 12_000


@pytest.fixture(scope="module")
def sky(new_sky: NewSky) -> Sky:
    made = new_sky(nodes=5)
    made.bucket(skyjob.BUCKET).make()
    return made


def test_a_job_on_two_machines_ends_in_the_bits_of_one(sky: Sky, tmp_path: Path) -> None:
    wanted = skyjob.spec("once", mode="cached", steps=SHORT, procs_per_node=1)
    wanted["secrets"] = [{"WANDB_API_KEY": "file:~/token"}]
    job = SkyJob(sky, wanted)
    token = sky.desk.path("token")
    planted.plant(token, batch.access.UID)
    # SkyPilot itself puts the values of secrets into arguments of srun and ssh where a Slurm cluster is the cloud.
    with planted.in_no_argument(foreign="SKYPILOT_TASK_ID"):
        job.launch()
        alone = jobs.alone(tmp_path, {**wanted, "secrets": []})
        assert sky.wait(job.id, "SUCCEEDED", within=WITHIN_S) == "SUCCEEDED"
    found = planted.in_files(sky.desk.path("."), sky.rig.shared, job.bucket.path)
    assert [each for each in found if ".sky" not in str(each)] == [token]
    assert job.checkpoints()[-1] == SHORT
    jobs.assert_same_bits(job.final_tensors(), jobs.final_tensors(alone))


@pytest.mark.nightly
def test_a_job_comes_back_from_all_that_takes_its_machines_and_stays_away_after_a_stop(
    sky: Sky, tmp_path: Path
) -> None:
    wanted = skyjob.spec("spot", PAUSE_S, mode="cached", hidden=BIG)
    job = SkyJob(sky, wanted)
    job.launch()
    # With Slurm below, SkyPilot gets one exit code for all machines, and no machine's own if one ended a
    # moment before the others: whether a notice's is acted on, a job of one machine shows.
    single = SkyJob(sky, skyjob.spec("single", PAUSE_S, nodes=1))
    single.launch()
    alone = jobs.alone(tmp_path, wanted)
    job.until_checkpoint(EVERY, WITHIN_S)
    sky.wait(job.id, "RUNNING")
    told = job.types("status")
    assert re.search(rf"(?m)^{job.id} .*running", told), told

    single.until_checkpoint(EVERY, WITHIN_S)
    noticed = sky.slurm_job(single.id)
    single.told("preempted: the cloud takes this machine back")

    job.lose(lambda: sky.preempt(job.id))

    sky.recovered(single.id, noticed, within=WITHIN_S)
    single.hurry()
    log = sky.controller_log(single.id) + sky.logs(single.id)
    assert "Exit code 175 matched recover_on_exit_codes" in log, log

    head = sky.nodes_of(job.id)[0]
    job.bucket.slow(kib_per_s=200)
    left: dict[str, int] = {}

    def power_off() -> None:
        # One that was begun before may be whole in a moment.
        before = {*job.begun(), *job.checkpoints()}
        job.until(lambda: bool({*job.begun()} - before))
        head.power_off()
        job.bucket.fast()  # drops the packets that are still on the way to the slow bucket
        left.update(cut_off=job.begun()[-1], whole=job.checkpoints()[-1])

    job.lose(power_off)
    said = sky.logs(job.id)
    assert re.search(rf"the checkpoint of step {left['cut_off']} in .* is not whole", said), said
    assert f"using the checkpoint of step {left['whole']}" in said, said

    recoveries = sky.recoveries(job.id)
    assert "asked for a clean stop" in job.types("stop")
    assert sky.wait(job.id, "FAILED", within=WITHIN_S) == "FAILED"
    assert re.search(r"exit code (130|143) ", sky.reason(job.id)), sky.reason(job.id)
    assert sky.recoveries(job.id) == recoveries
    stopped = job.checkpoints()[-1]
    told = job.types("status")
    assert f"stopped at step {stopped}" in told, told

    # On from there, on a cluster that the user looks after, with the bucket mounted the other way.
    job.hurry()
    job.write(skyjob.spec("spot", PAUSE_S, mode="mount", hidden=BIG))
    job.types("render", "--target", "sky", "-o", "bundle")
    done = sky.launch("sky.yaml", cwd=f"{job.at}/bundle", cluster="try", timeout=2 * WITHIN_S)
    said = plain(done.stdout)
    assert done.returncode == 0, said + done.stderr
    assert "4 processes on 2 hosts" in said
    assert f"the checkpoint of step {stopped} comes from /checkpoints/spot" in said, said
    assert job.get("status").decode().split()[0] == "done"
    assert "spot/stop" not in job.bucket.objects()
    assert job.checkpoints()[-1] == STEPS > stopped
    jobs.assert_same_bits(job.final_tensors(), jobs.final_tensors(alone))
    # A cluster counts its jobs from 1, so the starts of several clusters have that number in common.
    starts = [provenance.key_of(each) for each in json.loads(job.get("manifest.json"))["starts"]]
    assert len(starts) == len(set(starts)) > 2, starts

    assert sky.wait(single.id, "SUCCEEDED", within=WITHIN_S) == "SUCCEEDED"
    small = jobs.alone(tmp_path / "small", skyjob.spec("single", nodes=1))
    jobs.assert_same_bits(single.final_tensors(), jobs.final_tensors(small))
