"""StreamPool: how much code a wait runs in a large pool and behind many tasks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import Stream, StreamPool
from waiters import until

PACKAGE = str(Path(aiostream.__file__).parent)
FEW, MANY = 4, 200


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


async def test_wait_looks_at_the_streams_that_were_lent_since_the_last_one() -> None:
    """The tasks that wait are 0, 1, 0, 1: so it is in a pool whose last stream was just lent."""

    async def work_of_three_waits(size: int) -> int:
        async with StreamPool(size) as pool:
            held = [pool.acquire_nowait() for _ in range(size)]
            await waits_for_one(pool, held)
            with counted() as work:
                for _ in range(3):
                    await waits_for_one(pool, held)
            for stream in held:
                pool.release(stream)
        return work.lines

    few, many = await work_of_three_waits(FEW), await work_of_three_waits(MANY)
    assert many - few < MANY - FEW, "less than a line for each further stream"


@pytest.mark.parametrize("which", ["first", "last"])
async def test_each_stream_that_is_dropped_wakes_a_task_that_waits(which: str) -> None:
    """Whether it was lent before an earlier wait or after it."""
    pool = StreamPool(3)
    held = [pool.acquire_nowait() for _ in range(3)]
    for _ in range(2):
        await waits_for_one(pool, held)
        pool.release(held.pop(1))
        held.append(pool.acquire_nowait())

    async def wait() -> None:
        pool.release(await pool.acquire())

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(lambda: pool.waiting == 1)
            del held[0 if which == "first" else -1]
            gc.collect()
    for stream in held:
        pool.release(stream)
    assert (pool.idle, pool.lent) == (3, 0)
    pool.close()
