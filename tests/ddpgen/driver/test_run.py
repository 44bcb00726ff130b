"""The driver over a fake ssh, with real bash and real rsync: how jobs start and end."""

from __future__ import annotations

import getpass
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ddpgen.driver.conftest import QUICK, TIMEOUT_S, Stage, rest, until

Make = Callable[..., Stage]


def table(output: str) -> dict[str, list[str]]:
    """Host → state and code, from the last table."""
    rows = output[output.rindex("ddpgen: host ") :].splitlines()
    cells = (re.split(r"  +", row.removeprefix("ddpgen: ").strip()) for row in rows)
    return {row[0]: row[1:] for row in cells if len(row) > 1}


def words(ours: Stage, host: str) -> list[str]:
    """What the driver has said to a host's script."""
    path = ours.home(host) / "words"
    return path.read_text().split() if path.exists() else []


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def plays(ours: Stage, **parts: str) -> Stage:
    for host, part in parts.items():
        ours.part(host, *part.split())
    return ours


def training(ours: Stage, *hosts: str, **options: Any) -> subprocess.Popen[str]:
    """A driver all of whose hosts train."""
    plays(ours, **dict.fromkeys(hosts, "listen"))
    process = ours.start(**options)
    until(process, *(f"{host:{max(map(len, hosts))}} | training" for host in hosts))
    return process


def ctrl_c(process: subprocess.Popen[str]) -> str:
    """What is said from here to the end."""
    process.send_signal(signal.SIGINT)
    return rest(process)


def at_pace(ours: Stage, was: str, becomes: str) -> dict[str, list[str]]:
    """The driver with another wait."""
    assert was in QUICK
    return {"command": [sys.executable, "-c", QUICK.replace(was, becomes), str(ours.bundle)]}


def test_a_job_is_sent_started_shown_kept_and_summed_up(stage: Make) -> None:
    ours = stage()
    ours.door("lap", "crowded 2")  # is tried again
    code, output = ours.play("--steps=5", "--arg=a='it''s\n$(touch x)'")
    assert code == 0, output
    assert "desk | out\n" in output, output
    assert "lap  | ddpgen: done at step 7; results are here\n" in output
    assert table(output)["desk"] == ["done", "0", "done at step 7; results are here"]
    (kept,) = ours.logs.glob("*/lap.log")
    assert kept.read_text() == "out\nddpgen: done at step 7; results are here\n"
    assert "looking at 2 hosts" in (kept.parent / "driver.txt").read_text()
    for host in ("desk", "lap"):
        sent = ours.home(host) / "ddpgen" / "pair"
        assert (sent / "train" / "__main__.py").read_text() == "it is a copy\n"
        assert (ours.home(host) / "place").read_text() == f"{sent}\n"
        given = (ours.home(host) / "arguments").read_bytes().split(b"\0")
        assert given[0].startswith(b"--driven=")
        assert given[1:] == [b"--steps=5", b"--arg=a='it''s\n$(touch x)'", b""]
        assert (ours.home(host) / "launches").read_text() == f"{kept.parent.name}\n"
    assert ours.alive() == []


@pytest.mark.slow
def test_secrets_are_sent_over_standard_input_at_every_start_and_masked(
    stage: Make, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    pair = stage(launcher="env", secrets={"A_TOKEN": "", "B_TOKEN": str(file)})
    plays(pair, desk="listen spill", lap="crash-after-4 spill")  # run.sh starts all again
    code, output = pair.play()
    assert code == 69
    assert (
        "ddpgen: the secret A_TOKEN is not in your environment, or is empty there; export it"
        in output
    )
    assert f"ddpgen: the secret B_TOKEN cannot be read from {file}: No such" in output
    assert pair.started() == []
    file.write_text("it's f1le-secret\n")
    file.chmod(0o600)
    code, output = pair.play(env={"A_TOKEN": "5ecret"})
    assert code == 0, output
    for home in pair.homes.glob("*/"):
        assert (home / "secrets").read_text() == "5ecret it's f1le-secret\n"
        (home / "secrets").unlink()
    (kept,) = pair.logs.glob("*/lap.log")
    assert "my *** and ***: all\n" in output
    assert "my *** and ***: all\n" in kept.read_text()
    file.unlink()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert pair.homes / "calls" in written
    for secret in (b"5ecret", b"f1le-secret"):
        assert not [path for path in written if secret in path.read_bytes()]


@pytest.mark.slow
def test_what_the_lock_lists_is_installed_on_all_hosts_before_any_starts(stage: Make) -> None:
    pair = stage("desk", "laptop", locked=True)
    (pair.home("laptop") / "offline").touch()
    code, output = pair.play()
    assert code == 69
    assert "laptop: " in output
    assert "(PY004)" in output
    assert (pair.home("desk") / "installed").exists()
    assert pair.started() == []
    (pair.home("laptop") / "offline").unlink()
    code, output = pair.play()
    assert code == 0, output
    assert pair.started() == ["desk", "laptop"]


@pytest.mark.slow
def test_a_bundle_is_sent_over_an_earlier_one_and_over_nothing_else(stage: Make) -> None:
    ours = stage()
    assert ours.play()[0] == 0
    sent = ours.home("lap") / "ddpgen" / "pair"
    (sent / "train" / "__pycache__").mkdir()
    (sent / "old.py").touch()
    (sent / "bundle.json").write_text("")  # as a send that was cut short leaves it
    before = (sent / "train" / "__main__.py").stat().st_ino
    (ours.bundle / "new.py").touch()
    assert ours.play()[0] == 0
    assert sorted(os.listdir(sent)) == ["bundle.json", "hosts", "new.py", "train"]
    assert (sent / "train" / "__pycache__").is_dir()
    assert (sent / "train" / "__main__.py").stat().st_ino == before
    (sent / "bundle.json").rename(sent / "thesis.tex")
    code, output = ours.play()
    assert code == 69
    assert "lap: ./ddpgen/pair holds " in output
    assert "no bundle.json" in output
    assert (sent / "thesis.tex").exists()


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("it's here", marks=pytest.mark.nightly),
        'two  "blanks" and $(touch x) `touch y`',
        "new\nline\ttab",
        pytest.param("ünï ☃", marks=pytest.mark.nightly),
        pytest.param("-rf", marks=pytest.mark.nightly),
        "a;b&c|d>e<f*g?h[i]!j#k~l\\m",
        pytest.param("-o x=y:z@w", marks=pytest.mark.nightly),
    ],
)
def test_any_directory_is_reached_byte_for_byte(stage: Make, place: str) -> None:
    ours = stage("desk")
    ours.plan["hosts"][0]["dir"] = place
    ours.write()
    code, output = ours.play()
    assert code == 0, output
    assert (ours.home("desk") / "place").read_text() == f"{ours.home('desk')}/{place}/pair\n"
    assert (ours.home("desk") / place / "pair" / "train" / "__main__.py").is_file()
    ours.plan["hosts"][0]["dir"] = f"{ours.homes}/abs/{place}"
    ours.write()
    assert ours.play()[0] == 0
    assert (ours.homes / "abs" / place / "pair" / "bundle.json").is_file()
    assert not list(ours.homes.rglob("touch*")) + list(ours.homes.rglob("x"))


@pytest.mark.parametrize(
    ("door", "said"),
    [
        ("refused", "Connection refused; "),
        ("denied", "Permission denied (publickey,password); "),
        ("unknown", "Host key verification failed; "),
        ("nameless", "Name or service not known; "),
        ("nameless", "fake_ssh.py lap` right?"),
        ("off", "No route to host; "),
        ("jump", "ddpgen: lap: ssh: connect to host gate port 22: No route to host; "),
        ("silent", "no answer within 3 s; "),
    ],
)
def test_a_host_that_cannot_be_reached_is_named_and_nothing_is_started(
    stage: Make, door: str, said: str
) -> None:
    ours = stage("desk", "lap", "vm")
    ours.door("lap", door)
    (ours.home("vm") / "ddpgen").write_text("a file is in the way\n")
    code, output = ours.play(env={"CHECK_S": "3"} if door == "silent" else {})
    assert code == 69
    assert "ddpgen: lap: " in output
    assert said in output
    assert "ddpgen: vm: cannot make ./ddpgen/pair: Not a directory; " in output
    assert output.endswith("ddpgen: nothing was started\n")
    assert ours.started() == []


@pytest.mark.slow
def test_a_bundle_that_a_job_runs_from_is_not_replaced_under_it(stage: Make) -> None:
    ours = stage()
    first = training(ours, "desk", "lap")
    code, output = ours.play()
    assert code == 69
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    by = rf"started by {re.escape(me)}, \d{{4}}-\d\d-\d\d \d\d:\d\d"
    assert re.search(rf"desk, lap: a job runs from \./ddpgen/pair there, {by}; ", output)
    # A driver that is gone did not start what somebody has started by hand since.
    told = ours.home("desk") / "ddpgen/checkpoints/pair/nodes/desk/started-by"
    told.write_text(f"{2**22 + 1} {told.read_text().partition(' ')[2]}")
    assert "desk: a job runs from ./ddpgen/pair there; " in ours.play()[1]
    assert first.poll() is None
    assert "stopped" in ctrl_c(first)
    assert first.returncode == 75


def test_when_one_host_fails_the_others_end_and_its_last_lines_are_shown(stage: Make) -> None:
    ours = plays(stage("desk", "lap", "vm"), desk="listen", lap="fail", vm="listen")
    process = ours.start(stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert " lines of lap:\nlap  | 13\nlap  | 14\n" in err
    assert out.count("lap  | 30\n") == 1
    states = table(err)
    assert states["lap"] == ["failed", "1", "lap: out of memory"]
    assert states["desk"][0] == states["vm"][0] == "killed"
    assert words(ours, "vm")[-1] == "kill"
    assert ours.alive() == []


def test_a_host_that_ends_with_the_one_that_failed_has_crashed_and_is_not_killed(
    stage: Make,
) -> None:
    ours = plays(stage(), desk="lonely", lap="fail")
    code, output = ours.play(**at_pace(ours, "after_failure=0.5", f"after_failure={TIMEOUT_S}"))
    assert code == 1
    states = table(output)
    assert states["lap"] == ["failed", "1", "lap: out of memory"]
    assert states["desk"][0] == "crashed"


@pytest.mark.parametrize(("part", "code"), [("busy", 69), ("usage", 2)])
def test_a_host_that_refuses_to_start_ends_the_launch_with_its_code(
    stage: Make, part: str, code: int
) -> None:
    ended, output = plays(stage(), desk="listen", lap=part).play()
    assert ended == code
    assert table(output)["lap"][:2] == ["refused", str(code)]


@pytest.mark.slow
def test_a_script_killed_on_its_host_and_a_cut_connection_are_losses(stage: Make) -> None:
    ours = plays(stage("desk", "lap", "vm"), desk="listen", lap="listen", vm="die")
    code, output = ours.play()
    assert code == 1
    assert table(output)["vm"][:2] == ["lost", "255"]
    process = training(ours, "desk", "lap", "vm")
    ours.cut("vm")
    output = rest(process)
    assert process.returncode == 1
    assert table(output)["vm"][:2] == ["lost", "255"]
    assert table(output)["vm"][2].endswith(": client_loop: send disconnect: Broken pipe")
    assert table(output)["desk"][0] == "stopped"  # vm may still train: with a checkpoint, then
    assert " lines of vm:" in output
    wait_for(lambda: "gone" in words(ours, "vm"))
    assert "--status" not in output


def test_the_report_of_a_host_is_for_the_driver_alone(stage: Make) -> None:
    ours = plays(stage("desk"), desk="crash")
    code, output = ours.play()
    assert (code, table(output)["desk"]) == (1, ["crashed", "1", "rank 0: ValueError: odd"])
    (kept,) = ours.logs.glob("*/desk.log")
    said = [line for line in kept.read_text().splitlines() if line.startswith("ddpgen-end ")]
    assert said[-1] not in output
    for words in (["--logs"], ["--logs", "desk"]):
        shown = ours.play(*words)[1]
        assert "ddpgen: crashed: rank 0: ValueError: odd" in shown
        assert "ddpgen-end " not in shown


def test_a_driver_that_loses_all_hosts_says_how_to_ask_them(stage: Make) -> None:
    ours = plays(stage(), desk="listen", lap="listen")
    process = training(ours, "desk", "lap")
    ours.cut("desk")
    ours.cut("lap")
    output = rest(process)
    assert process.returncode == 1
    assert "may go on there" in output
    assert "to ask: bash hosts/run.sh --status" in output


@pytest.mark.parametrize("part", ["listen", "slow-stop"])  # a second after its peer
def test_ctrl_c_stops_cleanly(stage: Make, part: str) -> None:
    ours = plays(stage(), desk="listen", lap=part)
    process = ours.start()
    until(process, "desk | training", "lap  | training")
    output = ctrl_c(process)
    assert process.returncode == 75
    assert "INT: asking all hosts for a clean stop; Ctrl-C again" in output
    assert " lines of desk:" not in output
    assert " lines of lap:" not in output
    assert table(output)["desk"][:2] == table(output)["lap"][:2] == ["stopped", "75"]
    assert words(ours, "desk")[-1] == "stop"
    assert set(words(ours, "desk")[:-1]) <= {"beat"}


def test_a_host_that_is_stopped_before_all_have_met_stops_the_others(stage: Make) -> None:
    ours = plays(stage(), desk="stopped", lap="listen")
    process = ours.start()
    wait_for(lambda: ours.started() == ["desk", "lap"])
    (ours.home("desk").parent / "over").touch()
    output = rest(process)
    assert process.returncode == 75, output
    assert table(output)["lap"][:2] == ["stopped", "75"]


def test_a_second_ctrl_c_kills_and_a_host_that_is_deaf_is_left(stage: Make) -> None:
    ours = plays(stage(), desk="deaf", lap="deaf")
    process = ours.start(**at_pace(ours, "after_kill=60", "after_kill=2"))
    wait_for(lambda: ours.started() == ["desk", "lap"])
    process.send_signal(signal.SIGINT)
    until(process, "INT: asking")
    process.send_signal(signal.SIGTERM)
    output = rest(process)
    assert process.returncode == 1
    assert "TERM: killing " in output
    assert table(output)["lap"][0] == "lost"
    assert "answer" in table(output)["lap"][1]


def test_a_ctrl_c_that_a_wrapper_passes_on_as_well_is_one(stage: Make) -> None:
    ours = stage()
    process = training(
        ours, "desk", "lap", **at_pace(ours, "signal_repeat=0.0", "signal_repeat=60")
    )
    process.send_signal(signal.SIGINT)
    until(process, "INT: asking")
    process.send_signal(signal.SIGINT)
    assert "killing" not in rest(process)
    assert process.returncode == 75


def test_a_third_ctrl_c_leaves_at_once(stage: Make) -> None:
    ours = plays(stage("desk"), desk="deaf")
    process = ours.start()
    wait_for(lambda: ours.started() == ["desk"])
    for said in ("asking", "killing", "leaving"):
        process.send_signal(signal.SIGINT)
        until(process, f"INT: {said}")
    output = rest(process)
    assert process.returncode == 1
    assert table(output)["desk"] == ["lost", "left to itself"]


def test_ctrl_c_before_the_start_starts_nothing(stage: Make) -> None:
    ours = stage()
    ours.door("lap", "silent")
    process = ours.start()
    until(process, "looking at 2 hosts")
    assert ctrl_c(process).startswith("ddpgen: stopped before ")
    assert process.returncode == 75
    assert ours.started() == []


def test_the_hosts_notice_that_the_driver_was_killed(stage: Make) -> None:
    ours = stage()
    process = training(ours, "desk", "lap")
    process.kill()
    rest(process)
    for host in ("desk", "lap"):
        wait_for(lambda host=host: "gone" in words(ours, host))
    wait_for(lambda: ours.alive() == [])


def test_a_closed_terminal_asks_for_a_clean_stop_and_kills_nobody(stage: Make) -> None:
    ours = stage()
    process = training(ours, "desk", "lap")
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    assert process.wait(TIMEOUT_S) == 75
    (summary,) = ours.logs.glob("*/driver.txt")
    assert "HUP: asking " in summary.read_text()


def test_what_was_started_by_nohup_lives_on_when_the_terminal_closes(stage: Make) -> None:
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = training(stage("desk"), "desk", preexec_fn=ignore)
    process.send_signal(signal.SIGHUP)
    status = Path(f"/proc/{process.pid}/status")
    pending = re.compile(r"^ShdPnd:\s+(\w+)$", re.MULTILINE)
    # Of two that are pending the later one is handled first.
    wait_for(lambda: not int(pending.findall(status.read_text())[0], 16))
    assert ctrl_c(process).startswith("ddpgen: INT: asking ")
    assert process.returncode == 75


@pytest.mark.slow
def test_a_reader_that_stops_or_is_slow_ends_nothing_and_costs_no_line_of_the_logs(
    stage: Make,
) -> None:
    ours = plays(stage(*"abcd"), **dict.fromkeys("abcd", "loud"))
    process = ours.start()

    def kept(host: str) -> bool:
        return any(log.read_bytes().endswith(b"the end") for log in ours.logs.glob(f"*/{host}.log"))

    wait_for(lambda: all(map(kept, "abcd")))
    output = rest(process)
    assert process.returncode == 0
    assert "d | the end\n" in output or "lines were not shown" in output
    process = ours.start()
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(TIMEOUT_S) == 0


def test_bytes_from_a_host_are_kept_as_they_are_and_shown_harmless(stage: Make) -> None:
    ours = plays(stage("desk"), desk="loud")
    code, output = ours.play()
    assert code == 0
    (kept,) = ours.logs.glob("*/desk.log")
    raw = kept.read_bytes()
    assert raw.startswith(b"a\xff\xfeb\x1b[2Jc\r10%\r20%\nno newline at the endxxx")
    assert raw.count(b"a line like many others\n") == 20000
    assert "desk | 20%\n" in output
    assert output.count("a line like many others\n") == 20000
    assert "\x1b" not in output
    assert "desk | the end\nddpgen: " in output


def test_a_disk_that_is_full_at_home_ends_nothing(stage: Make) -> None:
    ours = stage("desk")
    ours.logs.parent.mkdir(parents=True)
    ours.logs.write_text("a file where the logs belong\n")
    code, output = ours.play()
    assert code == 0
    assert output.count("shown here but not all of it is kept") == 1
    assert "desk | out\n" in output, output


def test_connections_are_shared_and_closed_in_the_end(stage: Make) -> None:
    ours = stage(ssh_options=["-p", "2222", "-o", "ProxyJump=gate"])
    assert ours.play()[0] == 0
    calls = (ours.homes / "calls").read_text().splitlines()
    assert sum("-O exit" in call for call in calls) == 2
    paths = {
        match[1] for call in calls for match in [re.search(r"ControlPath=([^']*)", call)] if match
    }
    assert len(paths) == 2
    assert all(len(path) < 60 for path in paths)
    assert all("-p 2222" in call and "-o BatchMode=yes" in call for call in calls)
    # Other drivers may have theirs there at the same time.
    (private,) = {Path(path).parent for path in paths}
    assert private.match(f"/tmp/ddpgen-{os.getuid()}-*")
    assert not private.exists()


def test_a_missing_ssh_is_named(stage: Make) -> None:
    ours = stage()
    code, output = ours.play(env={"DDPGEN_SSH": "no-such-ssh -v"})
    assert code == 69
    assert "desk, lap: cannot start no-such-ssh: " in output
    assert ours.play(env={"DDPGEN_SSH": "'"})[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun-static", "env"])
def test_without_torchruns_rendezvous_a_crash_starts_all_anew(stage: Make, launcher: str) -> None:
    ours = plays(stage(launcher=launcher), desk="crash-after-4 done", lap="listen done")
    code, output = ours.play()
    assert code == 0, output
    assert "starting again, 1 of 3" in output
    launches = {(ours.home(host) / "launches").read_text() for host in ("desk", "lap")}
    assert len(launches) == 1
    first, second = launches.pop().split()
    assert first == second


@pytest.mark.parametrize(
    ("launcher", "desk", "said"),
    [
        ("env", "crash", "not started again: no checkpoint is newer"),
        ("env", "crash-after-4 crash-after-5 done", "not started again: restarts is 1"),
        ("env", "fail done", ""),  # a verdict
        ("torchrun", "crash-after-4 done", ""),  # which restarts by itself
    ],
)
def test_when_it_is_not_started_again(stage: Make, launcher: str, desk: str, said: str) -> None:
    ours = plays(stage(launcher=launcher, restarts=1), desk=desk, lap="listen")
    code, output = ours.play()
    assert code == 1
    assert said in output
    assert ("starting again" in output) == bool(said)


ELASTIC = ("desk", "lap", "vm")


def elastic(stage: Make) -> Stage:
    return stage(*ELASTIC, elastic=[2, 3])


@pytest.mark.slow
def test_an_elastic_job_goes_on_without_a_host_and_takes_it_back(stage: Make) -> None:
    ours = elastic(stage)
    process = training(ours, *ELASTIC)
    ours.door("vm", "refused")
    ours.cut("vm")
    until(process, "going on with 2 hosts; ", "vm: not back yet: ")
    ours.door("vm", "open")
    until(process, "vm is back", "vm   | training")
    assert process.poll() is None
    output = ctrl_c(process)
    assert process.returncode == 75, output
    assert table(output)["vm"][:2] == ["stopped", "75"]
    assert len((ours.home("desk") / "launches").read_text().split()) == 1
    assert len(set((ours.home("vm") / "launches").read_text().split())) == 1


def test_an_elastic_job_ends_when_fewer_than_it_needs_are_left(stage: Make) -> None:
    ours = elastic(stage)
    process = training(ours, *ELASTIC)
    for host in ("lap", "vm"):
        ours.door(host, "refused")
        ours.cut(host)
    output = rest(process)
    assert process.returncode == 1
    assert {table(output)[host][0] for host in ("lap", "vm")} <= {"lost", "unreachable"}


@pytest.mark.slow
def test_when_the_head_is_lost_the_rest_starts_anew_with_another(stage: Make) -> None:
    ours = elastic(stage)
    process = training(ours, *ELASTIC)
    ours.door("desk", "refused")
    ours.cut("desk")
    until(process, "starting again, 1 of 3", "starting on 2 hosts", "vm   | training")
    assert b"--head=lap" in (ours.home("vm") / "arguments").read_bytes()
    ours.door("desk", "open")
    until(process, "desk is back", "desk | training")
    assert b"--head=lap" in (ours.home("desk") / "arguments").read_bytes()
    output = ctrl_c(process)
    assert process.returncode == 75, output


@pytest.mark.slow
def test_ctrl_c_before_the_rest_starts_anew_starts_nothing(stage: Make) -> None:
    ours = elastic(stage)
    process = training(ours, *ELASTIC, **at_pace(ours, "retry=0.2", "retry=0.2, reminder=1"))
    ours.door("desk", "silent")
    ours.cut("desk")
    until(process, "starting again, 1 of 3", "still waiting for desk (")  # the others are ready
    output = ctrl_c(process)
    assert process.returncode == 1, output  # what was done since the newest checkpoint is lost
    assert "not started again: a stop " in output
    assert "starting on" not in output
    assert len(set((ours.home("lap") / "launches").read_text().split())) == 1


def test_hosts_may_share_their_directory(stage: Make) -> None:
    ours = stage("desk", "lap", "vm")
    for host in ours.plan["hosts"]:
        host["dir"] = str(ours.homes / "shared")
    for number in range(40):
        (ours.bundle / f"file-{number}").write_text("x" * number)
    ours.write()
    code, output = ours.play()
    assert code == 0, output
    assert sorted(os.listdir(ours.homes / "shared" / "pair")) == sorted(os.listdir(ours.bundle))


@pytest.mark.nightly
def test_fifty_hosts_at_once(stage: Make) -> None:
    names = tuple(f"node-{number:02d}" for number in range(50))
    ours = stage(*names)
    code, output = ours.play()
    assert code == 0, output
    assert ours.started() == list(names)
    assert [table(output)[name][0] for name in names] == ["done"] * 50


@pytest.mark.slow
def test_run_sh_finds_its_driver_from_anywhere_and_through_a_link(
    stage: Make, tmp_path: Path
) -> None:
    ours = stage("desk")
    link = tmp_path / "else where" / "go"
    link.parent.mkdir()
    link.symlink_to(ours.bundle / "hosts" / "run.sh")
    code, output = ours.play(command=["bash", "go", "--steps=2"], cwd=link.parent)
    assert code == 0, output
    assert b"--steps=2" in (ours.home("desk") / "arguments").read_bytes()
    code, output = ours.play(command=["bash", link, "--help"])
    assert (code, "--fetch [DIR]" in output) == (0, True)
    assert ours.play("--logs", "a", "b")[0] == 2
    (ours.bundle / "hosts" / "hosts.json").write_text("{}")
    code, output = ours.play()
    assert code == 69
    assert "hosts.json cannot be read (KeyError: 'hosts'); " in output
