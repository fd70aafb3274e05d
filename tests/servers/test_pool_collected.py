"""StreamPool: tasks that held its streams when their loop was closed, and that are collected."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from typing import Any

import pytest

import aiostream
from aiostream import Stream, StreamPool, statistics
from support import Blind, Gate, new_uvloop, settle
from waiters import until, use_once


def test_pool_may_be_used_before_the_block_of_a_collected_task_ends() -> None:
    """A finalizer of the same garbage uses it, and gets the stream that the pool took back."""
    pool = StreamPool(1)
    raised: list[Exception] = []
    used: list[bool] = []

    class Finalizer:
        def __del__(self) -> None:
            asyncio.run(use_once(pool))
            used.append(True)

    async def request(kept: list[Any]) -> None:
        try:
            async with pool.stream():
                await asyncio.get_running_loop().create_future()
        except Exception as error:
            raised.append(error)

    def begin() -> None:
        finalizer: Any = Finalizer()
        finalizer.kept = kept = [finalizer]
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # the task is destroyed while it is pending
        kept.append(loop.create_task(request(kept)))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    begin()
    gc.collect()
    assert (used, raised) == ([True], [])
    assert (pool.lent, pool.idle) == (0, 1)
    pool.close()


async def wait_for_another(pool: StreamPool, stream: Stream) -> None:
    await pool.acquire()
    stream.query()


async def wait_for_work(pool: StreamPool, stream: Stream) -> None:
    await stream.synchronize_async()


async def wait_for_one(pool: StreamPool, stream: Stream) -> None:
    await aiostream.wait([stream.completion_future()], timeout=math.inf)


async def wait_for_each(pool: StreamPool, stream: Stream) -> None:
    async for _ in aiostream.as_completed([stream.completion_future()]):
        pass


async def drain(pool: StreamPool, stream: Stream) -> None:
    stream.completion_future()
    await aiostream.drain()


LOOPS = (asyncio.new_event_loop, new_uvloop, Blind)
REQUESTS = (wait_for_another, wait_for_work, wait_for_one, wait_for_each, drain)


@pytest.mark.parametrize(
    ("request_", "new_loop"),
    [*((wait_for_another, each) for each in LOOPS), *((each, LOOPS[0]) for each in REQUESTS[1:])],
)
def test_pool_comes_back_from_a_task_whose_loop_was_closed(request_: Any, new_loop: Any) -> None:
    """Neither the task nor its place in the queue comes to an end. The collector clears weak
    references first, and then ends the blocks of a dead task, which raises nothing. anyio keeps a
    task that is in one of its scopes, so without a timeout there is none.
    """
    pool = StreamPool(1, wait="event")
    raised: list[Exception] = []
    for _ in range(2):
        with Gate() as gate:

            async def hold(gate: Gate = gate) -> None:
                try:
                    async with pool.stream() as stream:
                        gate.hold(stream)
                        await request_(pool, stream)
                except Exception as error:
                    raised.append(error)

            async def begin() -> None:
                asyncio.get_running_loop().create_task(hold())  # nothing else keeps it
                await until(lambda: pool.lent == 1)

            loop = new_loop()
            loop.set_exception_handler(lambda *_: None)  # the task is destroyed while it is pending
            loop.run_until_complete(begin())
            loop.close()
            del loop
            gate.open()
            assert settle(lambda: gc.collect() >= 0 and statistics().futures.pending == 0)
        if request_ is not wait_for_another:  # whose loop only the next task asks
            assert settle(lambda: gc.collect() >= 0 and pool.lent == 0)
        asyncio.run(use_once(pool))
        assert (pool.lent, pool.idle, raised) == (0, 1, [])
    pool.close()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_task_that_nothing_keeps_gets_its_stream(new_loop: Any) -> None:
    """As it gets an `asyncio.Semaphore`. A server's request may be such a task."""
    served = list[int]()

    async def main() -> None:
        async with StreamPool(1) as pool:
            held = await pool.acquire()
            for number in range(3):
                asyncio.get_running_loop().create_task(pool.run(served.append, number))
            await until(lambda: pool.waiting == 3)
            gc.collect()
            pool.release(held)
            await until(lambda: len(served) == 3)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of asyncio
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("new_loop", "is_closed"),
    # uvloop keeps a loop that is not closed.
    [*((each, True) for each in LOOPS), (asyncio.new_event_loop, False), (Blind, False)],
)
def test_loop_that_ends_frees_a_task_that_waits(new_loop: Any, is_closed: bool) -> None:
    """Also if it is dropped, and the pool is not used again."""
    pool = StreamPool(1)

    class Owner:
        """What the request has."""

    async def request(owner: Owner) -> None:
        await pool.acquire()

    held = list[Stream]()

    async def begin() -> weakref.ref[Owner]:
        owner = Owner()
        held.append(await pool.acquire())
        asyncio.get_running_loop().create_task(request(owner))
        await until(lambda: pool.waiting == 1)
        return weakref.ref(owner)

    loop = new_loop()
    loop.set_exception_handler(lambda *_: None)  # the task is destroyed while it is pending
    owner = loop.run_until_complete(begin())
    if is_closed:
        loop.close()
    del loop
    assert settle(lambda: (gc.collect(), owner() is None)[1])
    asyncio.run(use_once(pool))  # the stream has come back
    pool.close()


def test_pools_that_have_ended_leave_nothing() -> None:
    async def use() -> None:
        async with StreamPool(2) as pool:
            for _ in range(8):
                await use_once(pool)
                await pool.run(int)

    def left() -> int:
        gc.collect()
        return len(gc.get_objects())

    asyncio.run(use())
    before = left()
    for _ in range(20):
        asyncio.run(use())
    assert left() - before < 20
