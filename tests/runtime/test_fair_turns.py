"""P17: awaits that are over at once give the loop its turns, so timeouts and other tasks go on."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import Event, Stream, StreamClosedError, StreamPool
from support import run_on, spin

pytestmark = pytest.mark.all_loops

PATIENCE = 5.0  # seconds after which a loop without turns is given up


async def as_completed(done: Any) -> None:
    async for _ in aiostream.as_completed([done]):
        pass


async def enter_and_leave(block: Any) -> None:
    async with block:
        pass


OVER_AT_ONCE: dict[str, Callable[[Stream, Any], Awaitable[Any]]] = {
    "drain": lambda stream, done: aiostream.drain(1),
    "wait": lambda stream, done: aiostream.wait([done]),
    "as_completed": lambda stream, done: as_completed(done),
    "synchronize": lambda stream, done: stream.synchronize_async(),
    "enqueue": lambda stream, done: stream.enqueue_async(lambda _: None),
    "end again": lambda stream, done: stream.aclose(),
    "enter a block": lambda stream, done: enter_and_leave(stream.to_borrowed()),
}


@pytest.mark.parametrize("name", OVER_AT_ONCE)
async def test_a_timeout_ends_a_loop_of_awaits_that_are_over(name: str) -> None:
    async with Stream() as stream:
        done = stream.enqueue_async(lambda stream: None)
        if name != "drain":  # which gives turns before anything else was awaited, too
            await done
        if name == "end again":
            stream.close()
        end = time.monotonic() + PATIENCE
        with anyio.move_on_after(0.05) as scope:
            while time.monotonic() < end:
                await OVER_AT_ONCE[name](stream, done)
        assert scope.cancelled_caught


class OwnRelease(StreamPool):
    def release(self, stream: Stream) -> None:
        super().release(stream)


async def acquire_and_release(pool: StreamPool) -> None:
    pool.release(await pool.acquire())


async def leave_work(pool: StreamPool) -> None:
    async with pool.stream() as stream:
        spin(stream, 1e-6)


@pytest.mark.parametrize("kind", [StreamPool, OwnRelease])
@pytest.mark.parametrize(
    "use", [lambda pool: enter_and_leave(pool.stream()), acquire_and_release, leave_work]
)
async def test_a_timeout_ends_a_loop_of_uses_that_take_no_turn(
    kind: type[StreamPool], use: Callable[[StreamPool], Awaitable[None]]
) -> None:
    async with kind(4) as pool:
        end = time.monotonic() + PATIENCE
        with anyio.move_on_after(0.05) as scope:
            while time.monotonic() < end:
                await use(pool)
        assert scope.cancelled_caught


@pytest.mark.alone
async def test_tasks_that_use_free_streams_share_a_turn() -> None:
    """Once the turn's time is over, each task does one step more, and not sixteen."""
    tasks, acquired, over = 200, 0, False
    by_turn: list[int] = []
    async with StreamPool(4) as pool, anyio.create_task_group() as group:

        async def use() -> None:
            nonlocal acquired
            while not over:
                async with pool.stream():
                    acquired += 1

        for _ in range(tasks):
            group.start_soon(use)
        for _ in range(40):
            before = acquired
            await anyio.lowlevel.checkpoint()
            by_turn.append(acquired - before)
        over = True
    assert statistics.median(by_turn) < 5 * tasks, by_turn


# ---------------------------------------------------------------------------- the entry of a block


@pytest.mark.parametrize("make", [Stream, Event, lambda: StreamPool(1)])
async def test_a_cancelled_entry_closes_what_the_block_would_have_closed(
    make: Callable[[], Any],
) -> None:
    thing = make()
    entered = False
    with anyio.move_on_after(0) as scope:
        async with thing:
            entered = True
            await anyio.sleep(20)
    assert scope.cancelled_caught
    assert thing.closed, f"the body has {'' if entered else 'not '}begun"


async def test_what_another_task_closes_is_not_entered() -> None:
    for _ in range(50):  # on asyncio the entry gives a turn from time to time only
        stream = Stream()

        async def close(stream: Stream = stream) -> None:
            stream.close()

        async with anyio.create_task_group() as group:
            group.start_soon(close)
            with contextlib.suppress(StreamClosedError):
                async with stream:
                    assert not stream.closed
        assert stream.closed


# ------------------------------------------------------------------------- drains of other threads


@pytest.mark.parametrize("loop_kind", ["asyncio", "trio"])
def test_a_drain_elsewhere_waits_for_what_is_being_enqueued(loop_kind: str) -> None:
    """From the function's end on, the future counts, also before its thread has got it."""
    phase, over, asked = 0, False, 0  # the phase is odd once the function has run
    missed: set[int] = set()  # phases
    at_once: set[int] = set()  # in which the future was done before its thread had got it

    def drain_elsewhere() -> None:
        nonlocal asked

        async def main() -> None:
            nonlocal asked
            while not over:
                before = phase
                if before % 2 == 0:
                    continue
                asked += 1
                sum(range(20_000))  # until the work is done, and the GIL is kept
                if await aiostream.drain(1) and phase == before:
                    missed.add(before)

        run_on("asyncio", main)

    async def enqueue() -> None:
        nonlocal phase, over

        def function(stream: Stream) -> None:
            nonlocal phase
            spin(stream, 0.0001)
            phase += 1

        end = time.monotonic() + 0.5
        async with Stream(wait="event") as stream:
            while time.monotonic() < end:
                future = stream.enqueue_async(function)
                if future.done():
                    at_once.add(phase)
                phase += 1  # before the await, so no other future has settled
                await future
        over = True

    thread = threading.Thread(target=drain_elsewhere)
    thread.start()
    run_on(loop_kind, enqueue)
    thread.join()
    assert not missed - at_once, f"{missed - at_once} of {asked}"


@pytest.mark.alone
def test_a_task_alone_has_whole_turns_again() -> None:
    """After turns that many tasks have shared. On trio each await is a turn."""
    count = 0

    async def turns() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    async def use(stream: Stream, times: int) -> None:
        for _ in range(times):
            await stream.synchronize_async()

    async def main() -> None:
        async with Stream() as stream:
            await asyncio.gather(*(use(stream, 100) for _ in range(100)))
            counting = asyncio.ensure_future(turns())
            await use(stream, 2000)
            counting.cancel()

    asyncio.run(main())
    assert count < 200
