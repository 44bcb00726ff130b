"""The judgement whose fault the end of a start was, and the file that a person edits."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.launch import bad_nodes
from train.launch.bad_nodes import Fault, bad, note, of_reason, read

GPU = Fault("node2", "GPU006: the GPU driver does not answer")
BITS = "as the hosts compute other bits on node3 than on node1 in gemm (usual cause: MKL)"


def refused(findings: str) -> str:
    return f"preflight: {findings}; nothing was started"


@pytest.mark.parametrize(
    ("reason", "nodes", "fault"),
    [
        (refused("GPU006 on node2"), 4, GPU),
        (refused("GPU006 on node2"), 1, GPU),
        (refused("GPU001 on node2"), 2, Fault("node2", "GPU001: fewer GPUs than processes")),
        (refused("GPU006 on node2, GPU001 on node2"), 2, Fault("node2", "GPU001: fewer GPUs than processes, GPU006: the GPU driver does not answer")),
        (refused("DIR003 on node2"), 2, Fault("node2", "DIR003: there is no room for checkpoints")),
        # Without a peer that passes, the spec may ask for too many GPUs, or fill a disk that all nodes share.
        (refused("GPU001 on node2"), 1, None),
        (refused("DIR003 on node2"), 1, None),
        # Two nodes: a setting, or something that they share.
        (refused("GPU006 on node1, GPU006 on node2"), 4, None),
        (refused("DIR003 on node1, DIR003 on node2"), 2, None),
        (refused("GPU006 on node1, GPU006 on node2, GPU006 on node3 and 5 more"), 9, None),
        # Not the node's own, or not its own alone.
        (refused("GPU003 on node2"), 4, None),  # an earlier run of this job
        (refused("HOST001 on node2"), 4, None),  # nobody knows why it has not come
        (refused("NIC001 on node2"), 4, None),
        (refused("VER001 on node2"), 4, None),
        (refused("GPU006 on node2, NIC001 on node2"), 4, None),
        # Two of three agree. With two, each may be the right one.
        (BITS, 3, Fault("node3", "it computes other bits than its peers")),
        (BITS, 2, None),
        (f"{BITS}; other bits on node2 than on node1 in sum", 4, None),
        ("other bits on node3, node4 than on node1 in gemm", 9, None),
        # The training's own ends, kills, and the consequences of another node's end.
        ("rank 3: ValueError: odd (model.py:7 in forward)", 4, None),
        ("rank 0 on node1: CUDA out of memory", 4, None),
        ("crashed: rank 1 on node2: OSError: No space left on device", 4, None),
        ("the launcher was killed by signal 9", 4, None),
        ("rank 0 on node1 lost a peer: rank 1 on node2", 4, None),
        ("rank 1: ValueError: preflight: GPU006 on node2; nothing was started", 4, None),
        ("setup of the spec failed; its output is above", 4, None),
        ("", 4, None),
    ],
)  # fmt: skip
def test_whose_fault_an_end_was(reason: str, nodes: int, fault: Fault | None) -> None:
    assert of_reason(reason, nodes) == fault


def test_a_node_is_bad_after_two_faults_until_a_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / bad_nodes.FILE
    assert read(path) == []
    first, second = (Fault("node2", "GPU006:\nno answer", f"2026-11-26T0{n}:00:00") for n in (1, 2))
    note(path, first)
    note(path, Fault("node1", "it did not answer any more"))
    assert bad(read(path)) == []
    note(path, second)
    assert bad(read(path)) == [Fault("node2", "GPU006: no answer", second.when)]
    lines = path.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["#", "node2", "node1", "node2"]
    path.write_text("\n".join(lines[:-1]))  # a person removes a line
    assert bad(read(path)) == []
    note(path, second)
    assert path.read_text().splitlines() == lines


def test_a_file_that_a_person_has_written_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / bad_nodes.FILE
    path.write_bytes(b"# mine\n\n  node7\nnode7 yesterday\n\xff\xfe x y\n")
    assert bad(read(path)) == [Fault("node7", "", "yesterday")]
    path.unlink()
    path.mkdir()
    assert read(path) == []
    note(path, GPU)  # cannot be written, which is no reason to fail
    assert path.is_dir()


def test_the_driver_of_the_hosts_reads_and_writes_the_same_file(tmp_path: Path) -> None:
    """Neither may import the other: the driver runs where there is no train/, and train/ where there is no driver."""
    from ddpgen.driver import bad_nodes as drivers
    from ddpgen.driver.fault_list import FaultList

    assert (drivers.FILE, drivers.HEADER, drivers.STARTS) == (
        bad_nodes.FILE, bad_nodes.HEADER, bad_nodes.STARTS,
    )  # fmt: skip
    by_supervisor, by_driver = tmp_path / "supervisor", FaultList(tmp_path / "driver")
    for node, why in ((GPU.node, GPU.why), (GPU.node, GPU.why), ("node3", "it was lost")):
        note(by_supervisor, Fault(node, why))
        by_driver.add(node, why)
    expected = [(GPU.node, GPU.why)]
    for path in (by_supervisor, by_driver.path):
        assert [(f.node, f.why) for f in bad(read(path))] == expected
        assert [(f.node, f.why) for f in drivers.bad(FaultList(path).read())] == expected
        assert path.read_text().startswith(bad_nodes.HEADER)
