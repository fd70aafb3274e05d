"""StreamPool: tasks that held its streams when their loop was closed, and that are collected."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable
from typing import Any

import pytest

import aiostream
from aiostream import Stream, StreamPool, statistics
from support import Blind, Gate, new_uvloop, settle, spin
from waiters import until


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_uvloop, Blind])
def test_pool_comes_back_from_a_task_that_held_a_stream_and_waited_for_another(
    new_loop: Any,
) -> None:
    """Its loop is closed, so neither the task nor its place in the queue comes to an end."""
    pool = StreamPool(1)

    async def greedy() -> None:
        first = await pool.acquire()
        await pool.acquire()
        first.query()

    async def use() -> bool:
        async with pool.stream() as stream:
            return stream.query()

    loop = new_loop()
    task = loop.create_task(greedy())
    loop.run_until_complete(asyncio.sleep(0))
    loop.set_exception_handler(lambda *_: None)  # the task is destroyed while it is pending
    loop.close()
    del loop, task
    assert asyncio.run(use())
    pool.close()


def test_block_of_a_task_that_is_collected_raises_nothing() -> None:
    """The collector clears weak references first, and then ends the blocks of a dead task."""
    pool = StreamPool(1, wait="event")
    raised: list[Exception] = []

    async def request() -> None:
        try:
            async with pool.stream() as stream:
                spin(stream, 0.001)
                await stream.synchronize_async()
        except Exception as error:
            raised.append(error)

    async def use() -> bool:
        async with pool.stream() as stream:
            return stream.query()

    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # the task is destroyed while it is pending
        task = loop.create_task(request())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        del loop, task
        assert settle(lambda: gc.collect() >= 0 and pool.lent == 0)
        assert raised == []
        assert asyncio.run(use())
    pool.close()


def test_pool_may_be_used_before_the_block_of_a_collected_task_ends() -> None:
    """A finalizer of the same garbage uses it, and gets the stream that the pool took back."""
    pool = StreamPool(1)
    raised: list[Exception] = []
    used: list[bool] = []

    class Finalizer:
        def __del__(self) -> None:
            used.append(asyncio.run(use()))

    async def use() -> bool:
        async with pool.stream() as stream:
            return stream.query()

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


def leave_with_closed_loop(pool: StreamPool, request: Callable[[Stream], Any]) -> None:
    """Closes the loop of a task that holds a stream and waits in `request`."""

    async def hold() -> None:
        async with pool.stream() as stream:
            await request(stream)

    async def begin() -> None:
        asyncio.get_running_loop().create_task(hold())  # nothing else keeps it
        await until(lambda: pool.lent == 1)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task is destroyed while it is pending
    loop.run_until_complete(begin())
    loop.close()


def test_block_of_a_collected_task_that_has_closed_its_stream() -> None:
    pool = StreamPool(1)

    async def request(stream: Stream) -> None:
        stream.close()
        await asyncio.get_running_loop().create_future()

    leave_with_closed_loop(pool, request)
    gc.collect()
    asyncio.run(use_once(pool))
    assert (pool.lent, pool.idle) == (0, 1)
    pool.close()


async def wait_for_one(stream: Stream) -> None:
    await aiostream.wait([stream.completion_future()], timeout=math.inf)


async def wait_for_each(stream: Stream) -> None:
    async for _ in aiostream.as_completed([stream.completion_future()]):
        pass


async def drain(stream: Stream) -> None:
    stream.completion_future()
    await aiostream.drain()


@pytest.mark.parametrize("request_", [wait_for_one, wait_for_each, drain])
def test_pool_comes_back_from_a_task_that_waited_for_several(request_: Any) -> None:
    """anyio keeps a task that is in one of its scopes, so without a timeout there is none."""
    pool = StreamPool(1)
    with Gate() as gate:

        async def request(stream: Stream) -> None:
            gate.hold(stream)
            await request_(stream)

        leave_with_closed_loop(pool, request)
        gate.open()
        assert settle(lambda: gc.collect() >= 0 and statistics().futures.pending == 0)
    assert settle(lambda: gc.collect() >= 0 and pool.lent == 0)
    asyncio.run(use_once(pool))
    pool.close()


async def use_once(pool: StreamPool) -> None:
    async with pool.stream() as stream:
        await stream.synchronize_async()
