"""What ends one process for good ends all of them, whatever they wait for."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch.distributed as dist

from tests.ports import free_port
from train.distributed.failures import FatalErrorBroadcast


def stores(count: int) -> list[dist.TCPStore]:
    port = free_port()
    return [
        dist.TCPStore("127.0.0.1", port, count, rank == 0, timedelta(seconds=20), False)
        for rank in range(count)
    ]


class Heard:
    """What a process has received."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.event = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self.event.set()


def test_all_others_hear_the_first_reason_with_the_host_it_came_from() -> None:
    heard = [Heard() for _ in range(4)]
    broadcasts = [FatalErrorBroadcast(f"host{n}", n, each) for n, each in enumerate(heard)]
    met = stores(4)  # kept: the first one serves the others
    for failures, store in zip(broadcasts, met, strict=True):
        failures.listen(store, 4)
    assert broadcasts[2].broadcast("no space") == ("host2: no space", True)
    assert heard[3].event.wait(10)
    assert broadcasts[3].broadcast("no peer") == ("host2: no space", False)
    for rank in (0, 1):
        assert heard[rank].event.wait(10)
        assert heard[rank].reasons == ["host2: no space"]
    assert not heard[2].reasons
    broadcasts[0].wait_until_read()
    assert met[0].add("failure/first/read", 0) == 4


def test_who_has_heard_a_reason_has_the_time_to_write_it_down() -> None:
    heard = threading.Event()
    failures = FatalErrorBroadcast("a", 0, lambda _: heard.set())
    store = stores(1)[0]
    failures.listen(store, 1)
    store.set("failure/first", "final 1 b: no space")
    assert heard.wait(10)
    waiting = threading.Thread(target=failures.wait_for_word, args=[0.05], daemon=True)
    waiting.start()
    waiting.join(1)
    assert waiting.is_alive()  # the main thread does not end the process meanwhile


def test_who_loses_a_process_that_has_crashed_knows_why_and_may_go_on() -> None:
    heard = [Heard() for _ in range(3)]
    broadcasts = [FatalErrorBroadcast(f"host{n}", n, each) for n, each in enumerate(heard)]
    met = stores(3)
    for failures, store in zip(broadcasts, met, strict=True):
        failures.listen(store, 3)
    broadcasts[0].broadcast_crash(
        "rank 0: NameError: x"
    )  # the store ends with this process: it waits for all
    broadcasts[1].broadcast_crash("rank 1: ValueError: y")
    for failures in broadcasts:
        failures.wait_for_word()
        assert failures.cause == "host0: rank 0: NameError: x"
    assert not any(each.reasons for each in heard)
    # A failure for good still ends all.
    assert broadcasts[2].broadcast("no space") == ("host2: no space", True)
    for each in heard[:2]:
        assert each.event.wait(10)
        assert each.reasons == ["host2: no space"]
    broadcasts[0].wait_until_read()
    assert met[0].add("failure/final/read", 0) == 3


def test_a_crash_after_a_failure_for_good_does_not_take_its_place() -> None:
    heard = Heard()
    failures = FatalErrorBroadcast("a", 0, heard)
    store = stores(1)[0]
    failures.listen(store, 1)
    store.set("failure/first", "final 1 b: no space")
    assert heard.event.wait(10)
    crashing = threading.Thread(target=failures.broadcast_crash, args=["odd"], daemon=True)
    crashing.start()
    crashing.join(1)
    assert crashing.is_alive()  # the thread that has heard the reason ends the process
    assert (failures.cause, heard.reasons) == ("", ["b: no space"])


def test_after_a_good_end_nobody_listens_any_more() -> None:
    heard = Heard()
    first, second = (
        FatalErrorBroadcast("a", 0, heard),
        FatalErrorBroadcast("b", 1, lambda reason: None),
    )
    met = stores(2)
    for failures, store in zip((first, second), met, strict=True):
        failures.listen(store, 2)
    first.close()
    first.wait_for_word()
    second.broadcast("too late")
    assert not heard.event.wait(1)


def test_before_the_world_has_met_there_is_nobody_to_tell() -> None:
    failures = FatalErrorBroadcast("a", 0, Heard())
    assert failures.broadcast("why") == ("a: why", True)
    failures.wait_until_read()
    failures.wait_for_word()
