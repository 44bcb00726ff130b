"""A program that was started: how its end is heard of."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpgen.driver.child import Child, run


@pytest.mark.parametrize("turns", range(8))
def test_a_cancellation_is_heard_as_the_program_ends(turns: int) -> None:
    async def main() -> None:
        child = await Child.start(["true"], lambda _: None)
        task = asyncio.create_task(child.ended_within(60))
        await asyncio.shield(child._ended)
        for _ in range(turns):
            await asyncio.sleep(0)
        heard = task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() is not heard

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(8))
def test_a_cancelled_start_waits_for_no_process_that_has_the_pipes(
    turns: int, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    reader = os.open(begun, os.O_RDWR)
    script = f"exec 3<&0; setsid sh -c 'echo >{begun}; cat' <&3 & wait"

    async def main() -> None:
        task = asyncio.create_task(run(["sh", "-c", script], b"", None))
        for _ in range(turns):
            await asyncio.sleep(0)
        # The loop stands still until the program has started another one, if the program itself has been started.
        select.select([reader], [], [], 1.0)
        task.cancel()
        await asyncio.wait_for(asyncio.wait([task]), 20)
        assert task.cancelled()

    asyncio.run(main())
    os.close(reader)


def test_an_end_that_does_not_come_in_time_is_waited_for_again() -> None:
    async def main() -> None:
        child = await Child.start(["cat"], lambda _: None)
        assert await child.ended_within(0.01) is None
        child.close_input()
        assert await child.ended_within(60) == 0
        assert await child.ended_within(None) == 0

    asyncio.run(main())


def test_a_log_that_cannot_be_written_does_not_hide_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> Callable[[int], None]:
        def broken(code: int) -> None:
            raise BrokenPipeError(code)

        return broken

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        child = await Child.start(["false"], lambda _: None)
        assert await child.ended_within(20) == 1

    monkeypatch.setattr("ddpgen.driver.trace.begin", begin)
    asyncio.run(main())
