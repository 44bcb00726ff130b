"""How plain torchrun reports a launch that cannot work, and after how many seconds.

Every case brings up hosts of its own (tests/real/rig), makes the fault of its name, and starts `torchrun` as
torchrun's documentation shows. The script joins the group, adds up one tensor of a megabyte and saves it. The
benchmark records the lines of each host that tell of a fault, with the seconds since the start of the last host. It
also records if a host was still waiting at the end of the time. A pattern decides if a line names the cause. A reader
may judge otherwise, so the JSON has all lines. docs/preflight.md shows the result next to the preflight's report of
the same faults.

The benchmark mostly waits, for 18 minutes, so it measures only with --run. It needs root, as the rig does. Without
--run or root it prints the reason and measures nothing. There are no GPU faults.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.real.preflight import (  # noqa: E402 - the checkout, put there above
    NAMES,
    Terminal,
    as_root,
    closed_but_for,
)
from tests.real.rig import Host, Machine, Rig, unavailable  # noqa: E402

CAP_S = 180.0
# Cases mostly wait. But importing torch is work for two cores, so few cases run at once and their starts are apart.
AT_ONCE, APART_S = 6, 8.0
PORT = 29500
JOB = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
batch = torch.ones(int(os.environ.get("NUMBERS", 1 << 18)))
if "LOADER" in os.environ:
    batches = torch.utils.data.DataLoader([torch.ones(1 << 20)] * 4, num_workers=1)
    for _ in batches: pass
dist.all_reduce(batch)
torch.save(batch, os.environ.get("CHECKPOINT", "checkpoint.pt"))
print(f"ok {int(batch[0])}", flush=True)
dist.destroy_process_group()
"""
# Shifts the clock in Python, because namespaces cannot shift a machine's clock.
SHIFT_S = 60
CLOCK = f"""
import datetime, time
now, real = time.time, datetime.datetime
time.time = lambda: now() + {SHIFT_S}
class Shifted(real):
    now = classmethod(lambda cls, tz=None: super(Shifted, cls).now(tz) + datetime.timedelta(seconds={SHIFT_S}))
    utcnow = classmethod(lambda cls: super(Shifted, cls).utcnow() + datetime.timedelta(seconds={SHIFT_S}))
# What is pickled is to be a datetime to who unpickles it.
Shifted.__module__, Shifted.__qualname__ = "datetime", "datetime"
datetime.datetime = Shifted
"""
LISTENER = f"""
import socket
with socket.create_server(("", {PORT})) as server:
    print("listening", flush=True)
    held = []
    while True:
        held.append(server.accept())
"""
TELLING = re.compile(
    r"error|timed? ?out|refused|unable|cannot|can't|not found|no such|fail|no route|denied|warn|killed"
    r"|unreachable|mismatch|^ok ",
    re.IGNORECASE,
)
# Frames of a traceback, and the summary that torchrun prints after every failure.
NOISE = re.compile(
    r"^\s+File |^\s+raise |^\s+\w+ = |frame #|error_file|https?://|Exception raised from"
    r"|client socket cannot be retrieved|ChildFailedError|FAILED|Failures:|NO_OTHER_FAILURES"
    r"|Root Cause|^[^a-z]*failed \(exitcode"
)
LINES = 12


def close_other_ports(rig: Rig) -> None:
    for host in rig:
        closed_but_for(host, PORT)


@dataclass(frozen=True)
class Start:
    """How one host starts torchrun. The defaults are those of a host without a fault."""

    env: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    nodes: int = 0
    node_rank: int | None = None
    python: str = sys.executable
    absent: bool = False


@dataclass(frozen=True)
class Case:
    """A fault: its hosts, the change to them, and the differences of the launch.

    `names`: a pattern for the lines that name the cause to a reader who understands them.
    """

    fault: str
    codes: str
    names: str = ""
    hosts: int = 2
    spec: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inject: Callable[[Rig], Any] = lambda rig: None
    starts: Mapping[str, Start] = field(default_factory=dict)
    static: bool = False
    meanwhile: Callable[[Rig], None] | None = None


def started(machine: Machine, line: str, env: Mapping[str, str]) -> Terminal:
    """Start torchrun on one host, and return its output with times."""
    return Terminal(machine, ["bash", "-c", line], env={"OMP_NUM_THREADS": "1", **env})


def result(terminal: Terminal, zero: float) -> dict[str, Any]:
    said: dict[str, float] = {}
    for at, line in zip(terminal.times, terminal.lines, strict=False):
        short = trimmed(line)
        if TELLING.search(short) and not NOISE.search(line) and len(said) < LINES:
            said.setdefault(short, round(at - zero, 1))
    ended = terminal.ended_at
    return {
        "said": [{"s": at, "line": line} for line, at in said.items()],
        "ended_s": None if ended is None else round(ended - zero, 1),
        "exit": None if ended is None else terminal.end(),
    }


def trimmed(line: str) -> str:
    """Return a line without the parts that differ from run to run: times, process ids, directories, C++ files."""
    line = re.sub(r"^\[rank\d+\]:|^[IWE]\d{4} [\d:.]+ \d+ \S+\]? ?", "", line.strip()).strip()
    line = re.sub(r"^\[[WEI]\d+ [\d:.]+ (\S+\.cpp):\d+\]", "", line).strip()
    line = re.sub(r"/\S*/((?:site-packages|gloo|bin)/)", r"…/\1", line)
    return line if len(line) <= 240 else line[:239] + "…"


def listen(rig: Rig) -> None:
    server = rig["desk"].popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()


def earlier_run(rig: Rig) -> None:
    """Leave one of two hosts of an earlier run running: its torchrun still waits for the other."""
    machine = rig["desk"]
    left = started(machine, command(machine, Start(), 2, Case("", "")), {})
    while not has_connection(machine):
        if left.ended_at is not None:
            raise RuntimeError(f"the earlier run ended: {left.lines}")
        time.sleep(0.1)


def has_connection(machine: Machine) -> bool:
    listening = machine.run(["ss", "-Hltn", f"sport = :{PORT}"]).stdout
    return bool(listening.strip())


def freeze_at_rendezvous(rig: Rig) -> None:
    deadline = time.monotonic() + 60
    wanted = ["ss", "-Htn", f"dport = :{PORT}"]
    while not rig["laptop"].run(wanted).stdout.strip() and time.monotonic() < deadline:
        time.sleep(0.1)
    rig["laptop"].freeze()


def fake_clock(rig: Rig) -> None:
    place = rig["laptop"].path("shift")
    place.mkdir()
    (place / "sitecustomize.py").write_text(CLOCK)
    place.chmod(0o755)


def pin(nic: str) -> Start:
    return Start(env={"GLOO_SOCKET_IFNAME": nic})


def all_pin(nic: str) -> dict[str, Start]:
    return {name: pin(nic) for name in NAMES}


TWO_NETS = {"desk": {"networks": {"lan": ("eth0", None), "vpn": ("tailscale0", None)}},
            "laptop": {"networks": {"lan": ("eth0", None), "vpn": ("tailscale0", None)}}}  # fmt: skip
APART = {"laptop": {"networks": {"lan": ("eth0", None), "lab": ("eth1", None)}}}
DISK = {"desk": {"small_disk": {"/data": 8}}}
SAVE = {"desk": Start(env={"CHECKPOINT": "/data/ckpt/step.pt"})}
CASES = (
    Case("nothing is wrong", ""),
    Case(
        "interface does not exist on one host",
        "NIC001",
        "find address for",
        starts={"laptop": pin("enp9s9"), "desk": pin("eth0")},
    ),
    Case(
        "interface down on one host",
        "NIC002",
        "is down|find address for|unreachable",
        starts=all_pin("eth0"),
        inject=lambda rig: as_root(rig["laptop"], "ip", "link", "set", "eth0", "down"),
    ),
    Case(
        "cable unplugged on one host",
        "NIC003",
        "carrier|unreachable|No route",
        starts=all_pin("eth0"),
        inject=lambda rig: rig["laptop"].unplug(),
    ),
    Case(
        "interface without an address on one host",
        "NIC004",
        "find address for|unreachable",
        starts=all_pin("eth0"),
        inject=lambda rig: as_root(rig["laptop"], "ip", "addr", "flush", "dev", "eth0"),
    ),
    Case("docker0 chosen on all hosts", "NIC006", "docker0|172.17", starts=all_pin("docker0")),
    Case(
        "docker0 chosen on one host",
        "NIC006",
        "docker0|172.17",
        starts={"laptop": pin("docker0"), "desk": pin("eth0")},
    ),
    Case("loopback chosen on all hosts", "NIC005", r"127\.0\.0\.1", starts=all_pin("lo")),
    Case(
        "chosen interfaces on networks that do not meet",
        "NIC008",
        r"10\.77",
        spec=APART,
        starts={"laptop": pin("eth1"), "desk": pin("eth0")},
    ),
    Case(
        "head's name unknown to one host",
        "NAME001",
        r"addresses of \(desk|resolve|not known",
        spec={"laptop": {"resolves": {"desk": None}}},
    ),
    Case(
        "head's name is 127.0.1.1 on the head",
        "NAME002",
        r"127\.0\.1\.1",
        spec={"desk": {"resolves": {"desk": "127.0.1.1"}}},
    ),
    Case(
        "head's name is 127.0.0.1 on another host",
        "NAME003",
        r"127\.0\.0\.1",
        spec={"laptop": {"resolves": {"desk": "127.0.0.1"}}},
    ),
    Case(
        "head's name leads to another host",
        "NAME004",
        r"192\.168\.7\.3",
        hosts=3,
        spec={"laptop": {"resolves": {"desk": "192.168.7.3"}}},
    ),
    Case(
        "head's name resolves differently on two hosts",
        "NAME005",
        "$^",
        spec={
            "desk": TWO_NETS["desk"],
            "laptop": {**TWO_NETS["laptop"], "resolves": {"desk": "100.64.0.1"}},
        },
    ),
    Case("port taken on the head", "PORT001", "in use", inject=listen),
    Case(
        "port taken on the head, static ranks",
        "PORT001",
        "in use|EADDRINUSE",
        inject=listen,
        static=True,
    ),
    Case("earlier run still waits on the head", "PORT002", "$^", inject=earlier_run),
    Case(
        "port dropped by the head's firewall",
        "PORT003",
        "$^",
        inject=lambda rig: rig["desk"].drop(PORT),
    ),
    Case(
        "port rejected by the head's firewall",
        "PORT004",
        "refused",
        inject=lambda rig: rig["desk"].reject(PORT),
    ),
    Case(
        "port dropped on one host's way out",
        "PORT003",
        "$^",
        inject=lambda rig: rig["laptop"].drop(PORT, direction="out"),
    ),
    Case(
        "other ports dropped between hosts",
        "PORT005",
        "$^",
        inject=close_other_ports,
    ),
    Case(
        "no route to the head",
        "HOST004",
        "No route|unreachable",
        inject=lambda rig: as_root(
            rig["laptop"], "ip", "route", "add", "unreachable", "192.168.7.1/32"
        ),
    ),
    Case(
        "one host is not started",
        "HOST001",
        r"\d/3 clients",
        hosts=3,
        starts={"tower": Start(absent=True)},
    ),
    Case(
        "one host is not started, static ranks",
        "HOST001",
        r"\d/3 clients",
        hosts=3,
        static=True,
        starts={"tower": Start(absent=True)},
    ),
    Case(
        "two hosts with node rank 0, static ranks",
        "RANK001",
        "$^",
        static=True,
        starts={"laptop": Start(node_rank=0)},
    ),
    Case(
        "node rank out of range, static ranks",
        "RANK002",
        "out of range|node.rank|group_rank",
        static=True,
        starts={"laptop": Start(node_rank=2)},
    ),
    Case("node counts disagree", "RANK003", "$^", starts={"laptop": Start(nodes=3)}),
    Case(
        "node counts disagree, static ranks",
        "RANK003",
        "$^",
        static=True,
        starts={"laptop": Start(nodes=3)},
    ),
    Case(
        "another script on one host",
        "VER005",
        "$^",
        starts={"laptop": Start(env={"NUMBERS": "1000"})},
    ),
    Case("checkpoint directory missing", "DIR001", "does not exist|No such", starts=SAVE),
    Case(
        "checkpoint directory read-only",
        "DIR002",
        "denied|cannot be opened|Read-only",
        starts=SAVE,
        inject=lambda rig: as_root(rig["desk"], "mkdir", "-p", "/data/ckpt"),
    ),
    Case(
        "checkpoint directory full",
        "DIR003",
        "No space|space left|file write failed",
        spec=DISK,
        starts={"desk": Start(env={"CHECKPOINT": "/data/step.pt"})},
        inject=lambda rig: rig["desk"].fill("/data"),
    ),
    Case(
        "large packets vanish on one host's link",
        "LINK001",
        "$^",
        inject=lambda rig: rig["laptop"].black_hole(1200),
    ),
    Case(
        "two hosts do not reach each other",
        "LINK004",
        "$^",
        hosts=3,
        inject=lambda rig: as_root(
            rig["laptop"], "iptables", "-A", "INPUT", "-s", "192.168.7.3", "-j", "DROP"
        ),
    ),
    Case(
        f"clock {SHIFT_S} s ahead on one host",
        "CLK001",
        "clock",
        inject=fake_clock,
        starts={"laptop": Start(env={"PYTHONPATH": "shift"})},
    ),
    Case(
        "64 open files allowed",
        "LIM001",
        "Too many open files",
        starts={"laptop": Start(before="ulimit -n 64; ")},
    ),
    Case(
        "/dev/shm of 1 MiB",
        "LIM003",
        "shared memory",
        starts={name: Start(env={"LOADER": "1"}) for name in NAMES},
        inject=lambda rig: as_root(rig["laptop"], "mount", "-o", "remount,size=1m", "/dev/shm"),
    ),
    Case(
        "interpreter missing on one host",
        "PY001",
        "No such file",
        starts={"laptop": Start(python="/nowhere/python3")},
    ),
    Case(
        "torch missing on one host",
        "PY002",
        "No module named",
        starts={"laptop": Start(python="/usr/bin/python3 -S")},
    ),
    Case(
        "one host stops in the middle (SIGSTOP)",
        "HOST002",
        "$^",
        hosts=3,
        meanwhile=freeze_at_rendezvous,
        starts={"tower": Start(before="sleep 8; ")},
    ),
)


def command(machine: Machine, start: Start, nodes: int, case: Case) -> str:
    rank = NAMES.index(machine.name) if start.node_rank is None else start.node_rank
    words = [f"--nnodes={start.nodes or nodes}", "--nproc-per-node=1"]
    if case.static:
        words += [f"--node-rank={rank}", "--master-addr=desk", f"--master-port={PORT}"]
    else:
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=desk:{PORT}", "--rdzv-id=job"]
    return f"{start.before}exec {start.python} -m torch.distributed.run {' '.join(words)} job.py"


def measure(case: Case) -> dict[str, Any]:
    names = NAMES[: case.hosts]
    with Rig([Host(name, **case.spec.get(name, {})) for name in names]) as rig:
        for machine in rig:
            machine.path("job.py").write_text(JOB)
        case.inject(rig)
        terminals = []
        for machine in rig:
            start = case.starts.get(machine.name, Start())
            if not start.absent:
                line = command(machine, start, case.hosts, case)
                terminals.append(started(machine, line, start.env))
        zero = time.monotonic()
        if case.meanwhile:
            case.meanwhile(rig)
        for each in terminals:
            each.ended(max(0.0, zero + CAP_S - time.monotonic()))
        hosts = {each.host: result(each, zero) for each in terminals}
    return {"fault": case.fault, "codes": case.codes, **judged(case, hosts), "hosts": hosts}


def judged(case: Case, hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the first line that names the cause, the first that tells of trouble, and the hosts that hang."""
    said = sorted(
        (each["s"], name, each["line"]) for name, of in hosts.items() for each in of["said"]
    )
    naming = [each for each in said if case.names and re.search(case.names, each[2])]
    trouble = [each for each in said if not each[2].startswith("ok ")]
    keys = ("s", "host", "line")
    return {
        "named": dict(zip(keys, naming[0], strict=True)) if naming else None,
        "first": dict(zip(keys, trouble[0], strict=True)) if trouble else None,
        "hanging": [name for name, of in hosts.items() if of["ended_s"] is None],
        "passed": all(of["exit"] == 0 for of in hosts.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--run", action="store_true", help="measure: that takes 18 minutes")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    options = parser.parse_args()
    if not options.run:
        print("takes 18 minutes, so only when asked: sudo python benchmarks/faults.py --run")
        return
    if reason := unavailable():
        print(reason)
        return
    chosen = [case for case in CASES if options.only in case.fault]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        turn = threading.Lock()

        def in_turn(case: Case) -> dict[str, Any]:
            with turn:
                time.sleep(APART_S)
            return measure(case)

        results = []
        for result in pool.map(in_turn, chosen):
            results.append(result)
            print_result(result)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def print_result(result: Mapping[str, Any]) -> None:
    print(f"\n{result['fault']} ({result['codes'] or 'no fault'})", flush=True)
    if result["passed"]:
        print("  runs through")
    for what in ("named", "first"):
        if result[what] and (what == "named" or not result["named"]):
            print(
                f"  {what}: {result[what]['s']:6.1f} s  {result[what]['host']}: {result[what]['line']}"
            )
    for name, of in result["hosts"].items():
        state = (
            "still waiting" if of["ended_s"] is None else f"exit {of['exit']} at {of['ended_s']} s"
        )
        print(f"  {name}: {state}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
