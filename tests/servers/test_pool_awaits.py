"""What `pool.stream()` and its steps return, awaited in other ways than by `async with`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from aiostream import StreamPool

pytestmark = pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])


@pytest.fixture(autouse=True)
def without_the_collector() -> Iterator[None]:
    """What comes back does so without it: nothing calls it while a task waits for a stream."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def use(pool: StreamPool) -> None:
    async with pool.stream():
        assert pool.lent == 1


async def times_out(step: Any) -> None:
    await asyncio.wait_for(step, 0)


async def is_cancelled(step: Any) -> None:
    task = asyncio.ensure_future(step)
    task.cancel()
    await task


async def is_cancelled_among_others(step: Any) -> None:
    gathered = asyncio.gather(step)
    gathered.cancel()
    await gathered


async def is_closed(step: Any) -> None:
    step.close()


async def throws(step: Any) -> None:
    step.throw(ValueError("thrown"))


ENDS = [times_out, is_cancelled, is_cancelled_among_others, is_closed, throws]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("step", [StreamPool.acquire, lambda pool: pool.stream().__aenter__()])
async def test_a_stream_that_no_task_has_got_comes_back(step: Any, end: Any) -> None:
    async with StreamPool(1) as pool:
        await use(pool)  # the next ones are one native step
        with suppress(TimeoutError, asyncio.CancelledError, ValueError):
            await end(step(pool))
        await use(pool)


async def test_each_step_is_awaited_once() -> None:
    async with StreamPool(2) as pool:
        await use(pool)
        lending = pool.acquire()
        stream = await lending
        with pytest.raises(RuntimeError, match="already awaited"):
            await lending
        pool.release(stream)
        with pytest.raises(TypeError, match="iterable"):
            list(pool.acquire())  # type: ignore[call-overload]
