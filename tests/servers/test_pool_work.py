"""StreamPool: how much code a wait runs in a large pool and behind many tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import anyio
import pytest

from aiostream import PoolFullError, StreamPool
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
        (last_of_a_limited_queue, 4),
        (partial(refusal, 1), 10),
    ],
    ids=["limited queue", "refusal with many tasks"],
)
async def test_work_does_not_grow_with_the_pool(work: Any, few: int) -> None:
    assert await work(MANY) - await work(few) < MANY - few, "less than a line for each further one"
