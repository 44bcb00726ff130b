"""What the hosts of a launch speak through: nothing that was said is lost, and whoever is told to end does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from train.preflight.wire import Conn, Listener, WireError, bind, dial, within

# A word wakes whoever awaits it in steps: the socket, the reader, the task between. Each is one turn.
TURNS = range(12)


async def turn(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def finished(main: Callable[[], Awaitable[None]]) -> None:
    """Run it; that it hangs is told, and not by a limit of somebody else's."""

    async def guarded() -> None:
        task = asyncio.ensure_future(main())
        done, _ = await asyncio.wait([task], timeout=20)
        assert done, "it hangs"
        await task

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(guarded())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.close()


@pytest.mark.parametrize("turns", TURNS)
def test_a_cancellation_is_heard_whatever_comes_at_the_same_time(turns: int) -> None:
    async def main() -> None:
        word: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def work() -> str:
            return await word

        async def caller() -> str:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(work(), 10)
            await turn(5)
            return "it goes on"

        task = asyncio.create_task(caller())
        await turn(3)
        word.set_result("a word")
        await turn(turns)
        ended = task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert await task == "it goes on"
            assert ended

    finished(main)


def test_what_fails_as_its_caller_is_cancelled_is_nobodys_news() -> None:
    said: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

        async def work() -> None:
            raise OSError("the network is gone")

        task = asyncio.create_task(within(work(), 10))
        await turn(2)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    finished(main)
    assert said == []


def test_what_takes_too_long_has_ended_when_that_is_said() -> None:
    ended: list[bool] = []

    async def main() -> None:
        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await turn(3)
                ended.append(True)

        with pytest.raises(asyncio.TimeoutError):
            await within(work(), 0.01)
        assert ended == [True]

    finished(main)


@pytest.mark.parametrize("turns", TURNS)
def test_a_door_closes_while_somebody_speaks(turns: int) -> None:
    async def main() -> None:
        heard: list[str] = []

        async def answer(conn: Conn) -> None:
            conn.send("identity")
            heard.append((await conn.receive(10))["kind"])
            await conn.until_closed()

        door = Listener(answer, 4)
        port = await door.open(bind(0))
        conn = await dial("127.0.0.1", port, 10)
        assert (await conn.receive(10))["kind"] == "identity"
        conn.send("call")
        await turn(turns)
        await door.close()
        conn.abort()

    finished(main)


def test_what_was_said_before_the_connection_broke_is_read() -> None:
    async def main() -> None:
        async def answer(conn: Conn) -> None:
            for text in ("one", "two"):
                conn.send("wait", text=text)
            conn.write(b'{"kind": "hal')
            conn.close()

        door = Listener(answer, 4)
        conn = await dial("127.0.0.1", await door.open(bind(0)), 10)
        while (
            not conn._writer.is_closing()
        ):  # until the other's system has said that nobody listens
            conn.send("still")
            await asyncio.sleep(0.01)
        await turn(3)
        assert [(await conn.receive(10))["text"] for _ in range(2)] == ["one", "two"]
        with pytest.raises(WireError, match="broken"):
            await conn.receive(10)
        await door.close()

    finished(main)
