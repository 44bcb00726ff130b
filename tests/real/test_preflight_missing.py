"""Before torch starts: hosts that do not come, do not stay, or are not who they should be, named on all.

Every fault is done to the hosts for real; see test_preflight.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.real import preflight
from tests.real.preflight import (
    WITHIN_S,
    Launch,
    Stage,
    edited,
    in_time,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
OTHERS = ["desk", "tower"]


# Hosts that do not come, or do not stay


def test_a_host_that_is_not_started_is_waited_for_by_name(stage: Stage) -> None:
    launch = stage.job(patience=preflight.MISSING_S).start("tower", "desk")
    launch.waits_for("laptop", on=OTHERS)
    launch.ends()
    for name in OTHERS:
        shown = launch[name].findings()
        assert [(one.code, one.host) for one in shown] == [("HOST001", "laptop")], launch.output
        assert in_time(shown[0].at - launch.began, preflight.MISSING_S + WITHIN_S)
    assert stage.rig.strays(within=5) == []


def test_a_host_that_is_switched_off(stage: Stage) -> None:
    job = stage.job(patience=preflight.MISSING_S)
    stage.rig["laptop"].power_off()
    launch = job.start("tower", "desk")
    launch.waits_for("laptop", on=OTHERS)
    stage.ends(launch)
    for name in OTHERS:
        assert "answer" in launch[name].text, launch.output


def test_a_host_that_comes_late_is_waited_for(stage: Stage) -> None:
    job = stage.job()
    first = job.start("desk", "tower")
    first.waits_for("laptop", on=OTHERS)
    last = job.start("laptop")
    first.ends(0)
    last.ends(0)
    first.names_only()


def test_a_head_that_is_not_started(stage: Stage) -> None:
    launch = stage.job(patience=preflight.MISSING_S).start("laptop", "tower")
    launch.waits_for("desk", on=["laptop", "tower"])
    stage.ends(launch)
    for name in ("laptop", "tower"):
        assert ("HOST001", "desk") in {(one.code, one.host) for one in launch[name].findings()}


def test_a_host_that_stops_in_the_middle(stage: Stage) -> None:
    # The last host is held back where its script has only the check before it: what comes before may
    # take longer than the head bears the silence of the stopped one.
    gate = stage.rig["tower"].path("gate")
    held_back = '[ ! -p "$HOME/gate" ] || read -r _ <"$HOME/gate"'
    job = stage.job(python={"interpreter": sys.executable, "activate": [held_back]})
    os.mkfifo(gate)
    gate.chmod(0o666)
    first = job.start("laptop")
    launch = job.start("desk")
    launch["desk"].until(r"waiting for tower\b")  # and for nobody else: laptop has checked in
    last = job.start("tower")
    with gate.open("w") as way:  # it stands there
        stage.rig["laptop"].freeze()
        last.began = time.monotonic()
        way.write("\n")
    gate.unlink()
    last.ends()
    launch.ends()
    for each in (launch, last):
        each.began = last.began
        each.names("HOST002", "laptop")
    stage.rig["laptop"].thaw()
    first.ends()


def test_a_script_that_is_ended_before_the_verdict(stage: Stage) -> None:
    job = stage.job()
    launch = job.start("laptop", "desk")
    launch.waits_for("tower", on=["desk"])
    (script,) = [p for p in stage.rig["laptop"].processes() if "supervise" in p.command]
    os.kill(script.pid, signal.SIGKILL)
    at = launch["desk"].until(r"HOST003 +laptop|waiting for .*laptop")
    assert in_time(at - launch.began, 2 * WITHIN_S)
    stage.rig["desk"].kill_all()


# Ranks


def test_one_hosts_script_on_two_hosts(stage: Stage) -> None:
    job = stage.job()
    launch = Launch([*(job.terminal(name) for name in ("desk", "laptop")),
                     job.terminal("tower", script="laptop")])  # fmt: skip
    stage.ends(launch)
    for terminal in launch.terminals.values():
        shown = [one for one in terminal.findings() if one.code == "RANK001"]
        assert len(shown) == 1, launch.output
        assert in_time(shown[0].at - launch.began)
        assert "192.168.7.2" in shown[0].text, launch.output
        assert "192.168.7.3" in shown[0].text, launch.output


def test_hosts_that_disagree_on_who_takes_part(stage: Stage) -> None:
    job = stage.job()
    launch = job.start("desk", "laptop", arguments={"laptop": ["--hosts=desk,laptop"]})
    stage.ends(launch)
    launch.names("RANK003", "laptop", "2", "3")


def test_a_host_of_another_job_is_told_and_does_no_harm(stage: Stage) -> None:
    job = stage.job()
    place = stage.rig["tower"].path("ddpgen/job/hosts/tower.sh")
    place.write_text(place.read_text().replace("--job=job ", "--job=another "))
    launch = job.start("desk", "laptop", "tower")
    launch["tower"].end()
    at = launch["desk"].until("another")
    assert in_time(at - launch.began)
    assert "RANK004" in launch["tower"].text, launch.output
    for name in ("desk", "laptop"):
        assert launch[name].process.poll() is None, launch.output
    place.write_text(place.read_text().replace("--job=another ", "--job=job "))
    job.start("tower").ends(0)
    assert [launch[name].end() for name in ("desk", "laptop")] == [0, 0], launch.output


def test_a_head_that_stops_in_the_middle(stage: Stage) -> None:
    job = stage.job()
    head = job.start("desk")
    launch = job.start("laptop")
    launch.waits_for("tower", on=["laptop"])
    stage.rig["desk"].freeze()
    launch.began = time.monotonic()
    launch.ends()
    launch.names("HOST002", "desk")
    stage.rig["desk"].thaw()
    stage.rig["desk"].kill_all()
    head["desk"].end()


def test_a_list_of_hosts_that_was_changed_on_one_host(stage: Stage) -> None:
    job = stage.job()
    more = '"hosts": [{"name": "attic", "address": "192.168.7.9", "procs": 1},'
    edited(job.at("tower", "hosts/hosts.json"), lambda text: text.replace('"hosts": [', more))
    launch = job.start(arguments={"tower": ["--head=desk"]})
    stage.ends(launch)
    launch.names("RANK003", "tower", "3", "4")
