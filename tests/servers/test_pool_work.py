"""StreamPool: how much code a wait runs in a large pool and behind many tasks."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import anyio
import pytest

from aiostream import PoolFullError, Stream, StreamPool
from interrupts import PACKAGE
from waiters import until, use_once

MANY = 200


class Work:
    """How many lines of the library this thread has run."""

    lines = 0


@contextmanager
def counted() -> Iterator[Work]:
    """Counts the lines of the library that this thread runs within the block."""
    work = Work()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        # A generator expression runs its one line for each element, so calls count too.
        work.lines += event in ("call", "line")
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield work
    finally:
        sys.settrace(former)


async def waits_for_one(pool: StreamPool, held: list[Stream]) -> None:
    """A task waits, gets the stream that is given back, and keeps it."""

    async def wait() -> None:
        held.append(await pool.acquire())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await until(lambda: pool.waiting == 1)
        pool.release(held.pop(0))


async def three_waits(size: int) -> int:
    """The tasks that wait are 0, 1, 0, 1: so it is in a pool whose last stream was just lent."""
    async with StreamPool(size) as pool:
        held = [pool.acquire_nowait() for _ in range(size)]
        await waits_for_one(pool, held)
        with counted() as work:
            for _ in range(3):
                await waits_for_one(pool, held)
        for stream in held:
            pool.release(stream)
    return work.lines


async def last_of_a_limited_queue(most: int) -> int:
    async with (
        StreamPool(1, max_waiting=most) as pool,
        anyio.create_task_group() as tasks,
        pool.stream(),
    ):
        for _ in range(most - 1):
            tasks.start_soon(use_once, pool)
        await until(lambda: pool.waiting == most - 1)
        with counted() as work:
            tasks.start_soon(use_once, pool)
            await until(lambda: pool.waiting == most)
        tasks.cancel_scope.cancel()
    return work.lines


async def refusal(size: int, most: int) -> int:
    """A server that is full refuses requests, and must not take long for each."""
    async with StreamPool(size, max_waiting=most) as pool, anyio.create_task_group() as tasks:
        held = [pool.acquire_nowait() for _ in range(size)]
        for _ in range(most):
            tasks.start_soon(use_once, pool)
        await until(lambda: pool.waiting == most)
        with counted() as work, pytest.raises(PoolFullError, match=f" {most} of at most"):
            await pool.acquire()
        tasks.cancel_scope.cancel()
        for stream in held:
            pool.release(stream)
    return work.lines


@pytest.mark.parametrize(
    ("work", "few"),
    [
        (three_waits, 4),
        (last_of_a_limited_queue, 4),
        (partial(refusal, 1), 10),
        (lambda number: refusal(number, 1), 10),
    ],
    ids=["waits", "limited queue", "refusal with many tasks", "refusal of many streams"],
)
async def test_work_does_not_grow_with_the_pool(work: Any, few: int) -> None:
    assert await work(MANY) - await work(few) < MANY - few, "less than a line for each further one"


@pytest.mark.parametrize("which", ["first", "last"])
async def test_each_stream_that_is_dropped_wakes_a_task_that_waits(which: str) -> None:
    """Whether it was lent before an earlier wait or after it."""
    pool = StreamPool(3)
    held = [pool.acquire_nowait() for _ in range(3)]
    for _ in range(2):
        await waits_for_one(pool, held)
        pool.release(held.pop(1))
        held.append(pool.acquire_nowait())

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use_once, pool)
            await until(lambda: pool.waiting == 1)
            del held[0 if which == "first" else -1]
            gc.collect()
    for stream in held:
        pool.release(stream)
    assert (pool.idle, pool.lent) == (3, 0)
    pool.close()


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_task_that_is_cancelled_leaves_the_queue_in_the_same_turn() -> None:
    """Before it has run. The tasks behind it stay in order."""
    async with StreamPool(1, max_waiting=4) as pool:
        held, served = await pool.acquire(), []

        async def wait(number: int) -> None:
            async with pool.stream():
                served.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(4)]
        await until(lambda: pool.waiting == 4)
        for number in (0, 2):
            tasks[number].cancel()
        assert pool.waiting == 2
        late = asyncio.create_task(wait(4))
        await until(lambda: tasks[2].done() and pool.waiting == 3)
        pool.release(held)
        await asyncio.gather(tasks[1], tasks[3], late)
        assert served == [1, 3, 4]
        assert [task.cancelled() for task in tasks] == [True, False, True, False]
    assert pool.waiting == 0
