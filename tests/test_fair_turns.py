"""P17: awaits that are over at once give the loop its turns, so timeouts and other tasks go on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import Stream, StreamPool

PATIENCE = 5.0  # seconds after which a loop without turns is given up


async def drain(stream: Stream, done: Any) -> None:
    await aiostream.drain(1)


async def wait(stream: Stream, done: Any) -> None:
    await aiostream.wait([done])


async def as_completed(stream: Stream, done: Any) -> None:
    async for _ in aiostream.as_completed([done]):
        pass


async def synchronize(stream: Stream, done: Any) -> None:
    await stream.synchronize_async()


async def end_again(stream: Stream, done: Any) -> None:
    closed = stream.to_borrowed()
    closed.close()
    await closed.aclose()


async def enter_a_block(stream: Stream, done: Any) -> None:
    async with stream.to_borrowed():
        pass


@pytest.mark.parametrize(
    "over_at_once", [drain, wait, as_completed, synchronize, end_again, enter_a_block]
)
async def test_a_timeout_ends_a_loop_of_awaits_that_are_over(
    over_at_once: Callable[[Stream, Any], Awaitable[None]],
) -> None:
    async with Stream() as stream:
        done = stream.enqueue_async(lambda stream: None)
        await done
        end = time.monotonic() + PATIENCE
        with anyio.move_on_after(0.05) as scope:
            while time.monotonic() < end:
                await over_at_once(stream, done)
        assert scope.cancelled_caught


async def test_a_drain_gives_turns_before_anything_else_was_awaited() -> None:
    end = time.monotonic() + PATIENCE
    with anyio.move_on_after(0.05) as scope:
        while time.monotonic() < end:
            await aiostream.drain(1)
    assert scope.cancelled_caught


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
