"""The cost of the heartbeats of a large job: bytes a second at the store, and processor time of a look.

A simulation: the store is a dictionary that counts the bytes in and out. One process of each kind (rank 0, and the
first process of another host) is real, and its cost counts for all processes of the kind. Every beat is of a rank that
waits in an exchange, with a stack. Two ways are compared: all hosts read all beats, as in a small job, and the way of
a job of this size.

  B/s       at the store: beats that are put, and beats that all hosts read once every `look` seconds
  rank 0    processor time of one look of rank 0; elsewhere: of another host's look
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.train.counting_store import Store  # noqa: E402
from train.health.exchange import Exchange  # noqa: E402
from train.health.heartbeats import Beat  # noqa: E402
from train.health.phase import EXCHANGE  # noqa: E402
from train.health.reporter import Reporter  # noqa: E402

HOSTS, EACH, ROUNDS = (2, 16, 100, 1000), 8, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    os.environ["LOCAL_WORLD_SIZE"] = str(EACH)
    rows = []
    for hosts in HOSTS:
        for everybody in (True, False):
            rows.append(measure(hosts, everybody))
            print(
                "{hosts:5} hosts x 8, {who:16} {bytes_per_s:12,.0f} B/s, a look every {look_s:4.1f} s, "
                "rank 0 {rank_0_ms:7.1f} ms, elsewhere {elsewhere_ms:7.1f} ms".format(**rows[-1]),
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(hosts: int, everybody: bool) -> dict[str, Any]:
    size = hosts * EACH
    store: Any = Store()
    zero, other = (Exchange(store, beat(rank, size)) for rank in (0, EACH))
    other.reads = other.reads or everybody
    times: dict[str, list[float]] = {"rank_0_ms": [], "elsewhere_ms": []}
    for _ in range(ROUNDS):
        before = store.moved
        for rank in range(size):
            zero._put_beat(beat(rank, size))
        put, before = store.moved - before, store.moved
        times["rank_0_ms"].append(processor_ms(zero._read_beats))
        read, before = store.moved - before, store.moved
        times["elsewhere_ms"].append(processor_ms(other._read_beats) if other.reads else 0.0)
        elsewhere = store.moved - before
    every = Reporter(Path(), {"WORLD_SIZE": str(size)}).beat.every
    return {
        "hosts": hosts,
        "who": "all read all" if everybody else "as the job does",
        "bytes_per_s": put / every + (read + (hosts - 1) * elsewhere) / zero.read_interval_s,
        "look_s": zero.read_interval_s,
        **{name: statistics.median(each) for name, each in times.items()},
    }


def beat(rank: int, size: int) -> Beat:
    host, now = f"host{rank // EACH}", time.monotonic()
    made = Beat(rank, rank % EACH, size, host, 100 + rank, f"machine {host}", world="w")
    return replace(
        made, time=time.time(), monotonic=now, born=time.time() - 500, step=120, phase=EXCHANGE,
        waits=True, where="train/distributed/step_exchange.py:58 in receive", in_step=20.0,
        in_phase=20.0, usual=0.1, stack=("train/trainer.py:310 in train_step",) * 8,
    )  # fmt: skip


def processor_ms(action: Callable[[], None]) -> float:
    began = time.process_time()
    action()
    return (time.process_time() - began) * 1e3


if __name__ == "__main__":
    main()
