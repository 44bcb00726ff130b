"""`--probe`: what it measures, on two processes and by itself, and what it makes of the figures."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.train import workers
from train.distributed import nccl
from train.tools.probe import figures, measure, wire
from train.tools.probe.figures import Collective, Figures, Nic, Pair

TOY = "toy"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sizes, hardly repeated; the processes are forked from this one."""
    monkeypatch.setattr(measure, "SIZES", (4096, 65536))
    monkeypatch.setattr(measure, "_BUDGET_S", 0.01)


def probed(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "probe.json").read_text())
    return found


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("processes", "shard"), [(2, "none"), (3, "optimizer")])
def test_a_probe_measures_checks_and_says_what_it_found(
    tmp_path: Path, processes: int, shard: str
) -> None:
    run = workers.run(tmp_path, TOY, processes, "--probe", f"--shard={shard}")
    assert run.codes == [0] * processes, run.output
    assert run.status.startswith("done ")
    found = probed(tmp_path)
    assert found["complete"]
    assert found["vectors"] == [[rank + 1, 2 * rank, 10] for rank in range(processes)]
    assert found["mean"] == [
        sum(column) / processes for column in zip(*found["vectors"], strict=True)
    ]
    kinds = [(each["kind"], each["bytes"], each["correct"]) for each in found["collectives"]]
    measured = ["all-reduce", "tree", "gather"][: 3 if shard == "optimizer" else 2]
    assert kinds == [(k, n, True) for n in (4096, 65536) for k in measured]
    for each in found["collectives"]:
        assert each["algorithm_bandwidth"] == pytest.approx(each["bytes"] / each["seconds"])
        factor = (1 if each["kind"] == "gather" else 2) * (processes - 1) / processes
        assert each["bus_bandwidth"] == pytest.approx(each["algorithm_bandwidth"] * factor)
    assert f"verdict: {found['verdict']}" in run.output
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.usefixtures("short")
def test_one_process_has_nothing_to_exchange(tmp_path: Path) -> None:
    run = workers.run(tmp_path, TOY, 1, "--probe")
    assert run.codes == [0], run.output
    assert "verdict: one process: " in run.output
    assert probed(tmp_path)["mean"] == [1, 0, 10]


@pytest.mark.usefixtures("short")
def test_a_wrong_sum_is_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = measure._weight
    # As if a rank's part were lost on the way: what arrives is not what was expected.
    monkeypatch.setattr(measure, "sum", lambda values: sum(values) + 1, raising=False)
    run = workers.run(tmp_path, TOY, 2, "--probe")
    assert right(0) == 1
    assert run.codes == [0, 0], run.output
    assert "WRONG SUMS" in run.output
    assert probed(tmp_path)["verdict"].startswith("all-reduce and tree gave wrong ")


def test_plain_tcp_counts_what_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SECONDS", 0.4)
    monkeypatch.setattr(wire, "_WARM_UP_S", 0.1)
    server = wire.listen("127.0.0.1")
    sender = threading.Thread(target=wire.send, args=(server.getsockname()[:2], "127.0.0.1"))
    sender.start()
    with server:
        bandwidth, round_trip = wire.serve(server)
    sender.join()
    assert 1e7 < bandwidth < 1e12
    assert 0 < round_trip < 0.1


def test_a_sender_that_goes_away_is_an_error_and_no_hang() -> None:
    server = wire.listen("127.0.0.1")
    client = wire.socket.create_connection(server.getsockname()[:2])
    client.close()
    with server, pytest.raises(OSError, match=r"closed the connection|reset"):
        wire.serve(server)


def of_two_hosts(seconds: float, **nics: Nic) -> Figures:
    pairs = [Pair("desk", "laptop", 118e6, 2e-4, 110e6, 3e-4)]
    largest = [Collective(kind, 256 << 20, seconds, 4, True) for kind in ("all-reduce", "tree")]
    return Figures(
        "j", "gloo", "cpu", "2", 4, ["desk", "laptop"], nics, pairs=pairs, collectives=largest
    )


def test_the_verdict_holds_what_a_host_sends_against_plain_tcp() -> None:
    # Two hosts send the whole result once each: 268 MB in 2.5 s are 107 MB/s, 91 % of the network.
    assert figures.verdict(of_two_hosts(2.5)) == (
        "all-reduce takes 91%, tree takes 91% of the 118 MB/s of plain TCP between desk and laptop"
    )
    slow = figures.verdict(of_two_hosts(7.5))
    assert slow.startswith("all-reduce takes 30%")
    assert slow.endswith(" that is usual")


@pytest.mark.parametrize(
    ("nic", "said"),
    [
        (Nic("wlan0", "10.0.0.2", "Wi-Fi", 0, (("eth0", "wired", 1000),)), "(Wi-Fi) and has eth0 (1000 Mbit/s)"),
        (Nic("eth1", "10.0.0.2", "wired", 100, (("eth0", "wired", 2500),)), "(wired, 100 Mbit/s) and has eth0"),
        (Nic("eth0", "10.0.0.2", "wired", 1000, (("wlan0", "Wi-Fi", 0),)), ""),
        # A virtual interface says nothing of its speed: nothing is known to be faster.
        (Nic("eth0", "10.0.0.2", "wired", 0, (("eth1", "wired", 1000),)), ""),
    ],
)  # fmt: skip
def test_a_host_on_the_slower_of_its_interfaces_is_named(nic: Nic, said: str) -> None:
    found = " ".join(figures.slow_interfaces({"laptop": nic}))
    assert bool(found) == bool(said)
    assert said in found


LOG = """\
vm:71:80 [0] NCCL INFO NET/IB : No device found.
vm:71:80 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
vm:71:80 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Socket/0
vm:71:80 [0] NCCL INFO Channel 01/0 : 8[0] -> 0[0] [send] via NET/IB/2/GDRDMA
"""


def test_nccl_records_what_hangs_unless_the_user_has_said_how(tmp_path: Path) -> None:
    env = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    nccl.record_collectives(env, tmp_path)
    assert env == {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/heartbeats/nccl-rank-",
    }


def test_what_nccl_chose_is_read_from_its_own_log(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    assert nccl.chosen(env) == []
    nccl.log_to_file(env, 3, tmp_path)
    assert env["NCCL_DEBUG"] == "INFO"
    Path(env["NCCL_DEBUG_FILE"]).write_text(LOG)
    assert nccl.chosen(env) == ["NET/IB", "NET/Socket", "P2P"]
    assert list(tmp_path.iterdir()) == []


def test_sockets_beside_infiniband_are_a_finding(tmp_path: Path) -> None:
    (tmp_path / "mlx5_0").mkdir()
    assert nccl.infiniband(tmp_path) == ["mlx5_0"]
    found = nccl.idle_infiniband("a", ["NET/Socket", "P2P"], ["mlx5_0"])
    assert found.startswith("NCCL on a uses sockets ")
    assert nccl.idle_infiniband("a", ["NET/IB"], ["mlx5_0"]) == ""
    assert nccl.idle_infiniband("a", ["NET/Socket"], []) == ""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (figures.size(4096), "4 KB"),
        (figures.size(256 << 20), "256 MB"),
        (figures.rate(118.2e6), "118 MB/s"),
        (figures.rate(12e9), "12 GB/s"),
        (figures.duration(0.00041), "410 us"),
        (figures.duration(0.0123), "12.3 ms"),
        (figures.duration(2.31), "2.31 s"),
    ],
)
def test_numbers_have_units_that_people_use(said: str, expected: str) -> None:
    assert said == expected
