"""Before torch starts: ports, firewalls and links, named on every host's terminal.

Every fault is done to the hosts for real; see test_preflight.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.real import preflight
from tests.real.preflight import (
    NAMES,
    Stage,
    as_root,
    closed_but_for,
    in_time,
)
from tests.real.rig import Machine

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
PORT = 29500
OTHERS = ["desk", "tower"]
LISTENER = """
import contextlib, socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"SSH-2.0-nobody\\r\\n")
            connection.recv(100)
"""


def listen(machine: Machine, user: str = "trainer", **env: str) -> None:
    server = machine.popen(
        [sys.executable, "-c", LISTENER, str(PORT)], user=user, env=env, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"
    server.stdout.close()


# The port


def test_a_port_that_is_taken_by_another_program(stage: Stage) -> None:
    listen(stage.rig["desk"])
    launch = stage.launch()
    launch.ends()
    launch.names("PORT001", "desk", str(PORT), "process", "create_server")
    launch.names_only("PORT001")


def test_a_port_that_an_earlier_run_still_holds(stage: Stage) -> None:
    listen(stage.rig["desk"], DDPGEN_JOB="job")
    launch = stage.launch()
    launch.ends()
    launch.names("PORT002", "desk", str(PORT), "kill ")
    launch.names_only("PORT002")


def test_another_program_at_the_heads_port(stage: Stage) -> None:
    """No head is started, and somebody answers in its place."""
    listen(stage.rig["desk"])
    launch = stage.job(patience=preflight.MISSING_S).start("laptop", "tower")
    launch.ends()
    for name in ("laptop", "tower"):
        launch.names("PORT006", name, str(PORT), "desk", on=[name])


def test_a_port_where_the_head_may_not_listen(stage: Stage) -> None:
    """Where the others may not either, the head cannot call them: they say that it is not there."""
    job = stage.job(port=80, patience=preflight.MISSING_S)
    as_root(stage.rig["desk"], "sysctl", "-q", "net.ipv4.ip_unprivileged_port_start=1024")
    launch = job.start()
    stage.ends(launch)
    launch.names("PORT007", "desk", "port 80", on=["desk"])
    launch.waits_for("desk", "port 80", on=["laptop", "tower"])
    for name in ("laptop", "tower"):
        (shown,) = launch[name].findings()
        assert (shown.code, shown.host) == ("HOST001", "desk"), launch.output


def test_a_firewall_on_the_head_that_drops(stage: Stage) -> None:
    closed_but_for(stage.rig["desk"])
    launch = stage.launch()
    stage.ends(launch)
    launch.names("PORT003", "desk", str(PORT), "laptop")
    launch.names_only("PORT003")


def test_a_firewall_on_the_head_that_rejects(stage: Stage) -> None:
    stage.rig["desk"].reject(PORT)
    launch = stage.launch()
    stage.ends(launch)
    launch.names("PORT004", "desk", str(PORT), "laptop")
    launch.names_only("PORT004")


def test_a_firewall_on_one_hosts_way_out(stage: Stage) -> None:
    stage.rig["laptop"].drop(PORT, direction="out")
    launch = stage.launch()
    stage.ends(launch)
    launch.names("PORT003", "desk", str(PORT), "what laptop sends")
    launch.names_only("PORT003")


def test_a_firewall_in_both_directions(stage: Stage) -> None:
    for name in NAMES:
        closed_but_for(stage.rig[name])
    launch = stage.launch(patience=preflight.MISSING_S)
    launch.waits_for("laptop", on=["desk"])
    launch.waits_for("tower", on=["desk"])
    for name in ("laptop", "tower"):
        at = launch[name].until(r"no answer|firewall")
        assert in_time(at - launch.began), launch.output
    stage.ends(launch)


def test_ephemeral_ports_that_are_closed(stage: Stage) -> None:
    for name in NAMES:
        closed_but_for(stage.rig[name], PORT)
    launch = stage.launch()
    stage.ends(launch)
    shown = launch["desk"].findings()
    assert {one.code for one in shown} == {"PORT005"}, launch.output
    for one in shown:
        launch.names("PORT005", one.host, "ephemeral")


def test_no_route_to_the_head(stage: Stage) -> None:
    route = ["unreachable", f"{stage.rig['desk'].address}/32"]
    as_root(stage.rig["laptop"], "ip", "route", "add", *route)
    try:
        launch = stage.launch(patience=preflight.MISSING_S)
        stage.ends(launch)
    finally:
        as_root(stage.rig["laptop"], "ip", "route", "del", *route)
    launch.names("HOST004", "laptop", on=["laptop"])
    launch.waits_for("laptop", on=OTHERS)


# Links


def test_two_hosts_that_do_not_reach_each_other(stage: Stage) -> None:
    for one, other in (("laptop", "tower"), ("tower", "laptop")):
        there = stage.rig[other].address
        as_root(stage.rig[one], "iptables", "-A", "INPUT", "-s", there, "-j", "DROP")
    launch = stage.launch()
    stage.ends(launch)
    shown = launch["desk"].findings()
    assert [one.code for one in shown] == ["LINK004"], launch.output
    launch.names("LINK004", shown[0].host, "laptop", "tower")


def test_a_wire_that_swallows_large_packets(stage: Stage) -> None:
    stage.rig["laptop"].black_hole(1200)
    launch = stage.launch()
    stage.ends(launch)
    launch.names("LINK001", "laptop", "MTU")
    launch.names_only("LINK001")


@pytest.mark.nightly
def test_a_port_that_is_taken_by_another_users_program(stage: Stage) -> None:
    listen(stage.rig["desk"], user="root")
    launch = stage.launch()
    launch.ends()
    launch.names("PORT001", "desk", str(PORT), "ss -ltnp")


@pytest.mark.nightly
def test_ephemeral_ports_that_are_closed_on_one_host(stage: Stage) -> None:
    closed_but_for(stage.rig["laptop"], PORT)
    launch = stage.launch()
    stage.ends(launch)
    launch.names("PORT005", "laptop", "ephemeral")
    launch.names_only("PORT005")
