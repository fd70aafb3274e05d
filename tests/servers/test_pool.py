"""StreamPool: the order in which tasks get streams, its end, and what its waits learn."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import PoolFullError, Stream, StreamClosedError, StreamPool, WaitStrategy, statistics
from interrupts import at_line
from support import STRATEGIES, Gate, spin
from waiters import until, use_once

POOL = [path.name for path in Path(aiostream.__file__).parent.rglob("*pool*.py")]


async def test_streams_come_back_and_the_last_one_is_used_again() -> None:
    """So a task uses a stream whose memory is warm, and few streams if few tasks use the pool."""
    async with StreamPool(3) as pool:
        async with pool.stream() as first, pool.stream() as second:
            assert pool.idle == 1
            handles = [first.handle, second.handle]
        for _ in range(3):
            async with pool.stream() as stream:
                assert pool.idle == 2
                assert stream.handle == handles[0]  # it came back after the second one
                spin(stream, 0)
                await stream.synchronize_async()
            assert pool.idle == 3
        async with pool.stream(), pool.stream() as again, pool.stream() as third:
            assert again.handle == handles[1]
            assert third.handle not in handles
        assert pool.size == 3
    assert pool.closed
    assert "closed" in repr(pool)
    with pytest.raises(StreamClosedError):
        async with pool:
            pass
    await pool.aclose()
    pool.close()


async def test_closed_pool_counts_only_what_tasks_hold() -> None:
    def counts() -> tuple[int, ...]:
        return pool.size, pool.idle, pool.busy, pool.lent

    pool = StreamPool(3)
    held = await pool.acquire()
    pool.close()
    assert counts() == (1, 0, 0, 1)
    pool.release(held)
    assert counts() == (0, 0, 0, 0)


async def test_a_cancelled_waiter_takes_nothing() -> None:
    async with StreamPool(1) as pool:
        held = await pool.acquire()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await pool.acquire()
        assert scope.cancelled_caught
        with anyio.move_on_after(0.01) as scope:
            await pool.acquire()
        assert scope.cancelled_caught
        pool.release(held)
        assert pool.idle == 1
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with pool.stream():
                await anyio.lowlevel.checkpoint()
        assert pool.idle == 1


async def test_a_block_is_an_awaitable_like_a_coroutine() -> None:
    async with StreamPool(1) as pool:
        lending = pool.stream()
        async with lending:
            with pytest.raises(RuntimeError, match="already awaited"):
                await lending.__aenter__()
        for use in ("send", "throw"):
            acquiring = pool.acquire()
            pool.release(await acquiring)
            with pytest.raises(RuntimeError, match="already awaited"):
                getattr(acquiring, use)(*([None] if use == "send" else [KeyError()]))
            acquiring.close()
        with pytest.raises(KeyError):
            pool.acquire().throw(KeyError())
        assert pool.idle == 1


async def test_closing_with_streams_in_use_and_tasks_waiting() -> None:
    """A stream that is busy, and one that comes back busy, are destroyed too."""
    open_before = statistics().handles.open
    pool = StreamPool(3)

    async def late() -> None:
        with pytest.raises(StreamClosedError, match=r"^the pool was closed$"):
            await pool.acquire()

    with Gate() as gate:
        async with pool.stream() as stream:
            gate.hold(stream)
        first, second = await pool.acquire(), await pool.acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(late)
            await until(lambda: pool.waiting == 1)
            pool.close()
        await first.synchronize_async()
        gate.hold(second)
        pool.release(first)
        pool.release(second)
        assert statistics().handles.open == open_before
        gate.open()
        assert await aiostream.drain(20)


async def test_an_error_of_the_body_wins() -> None:
    with pytest.raises(KeyError):
        async with StreamPool(1) as pool, pool.stream() as stream:
            spin(stream, 0)
            raise KeyError
    assert pool.closed


def test_wrong_numbers_are_refused() -> None:
    wrong: Any
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="at least one"):
            StreamPool(wrong)
    for wrong in (True, "3", 1.5):
        with pytest.raises(TypeError, match="size is an int"):
            StreamPool(wrong)
        with pytest.raises(TypeError, match="max_waiting is an int"):
            StreamPool(1, max_waiting=wrong)
    with pytest.raises(ValueError, match="fewer than 0"):
        StreamPool(1, max_waiting=-1)
    StreamPool(1, priority=0, non_blocking=False).close()


# ----------------------------------------------------------------------------- what its waits learn


async def timers_of_first_wait(first: Stream, second: Stream) -> int:
    """How many timers the first wait on one stream uses, after equal waits on another."""
    for _ in range(8):
        spin(first, 0.008)
        await first.synchronize_async()
    before = statistics().waits.by_timer
    spin(second, 0.008)
    await second.synchronize_async()
    return statistics().waits.by_timer - before


@pytest.mark.parametrize("use", ["lent", "borrowed"])
async def test_streams_of_a_pool_learn_from_each_other(use: str) -> None:
    """What the waits on one have learnt, the first wait on another uses, also through a stream that
    was borrowed by handle.
    """
    for _ in range(20):  # on a busy machine even equal waits may differ too much
        async with StreamPool(2) as pool, pool.stream() as first, pool.stream() as second:
            timers = await timers_of_first_wait(
                first, second if use == "lent" else Stream.borrow(second.handle)
            )
        if timers:
            return
    raise AssertionError(
        "after equal waits on another stream of the pool the first wait used no timer, 20 times"
    )


async def test_other_streams_learn_nothing_from_each_other() -> None:
    async with (
        StreamPool(1) as pool,
        StreamPool(1) as other,
        pool.stream() as first,
        other.stream() as second,
        Stream() as third,
    ):
        assert await timers_of_first_wait(first, second) == 0
        assert await timers_of_first_wait(first, third) == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_streams_have_the_wait_strategy_of_the_pool(strategy: Any) -> None:
    async with StreamPool(1, wait=strategy) as pool, pool.stream() as stream:
        assert stream.wait_strategy == WaitStrategy(strategy)
        assert stream.to_borrowed().wait_strategy == WaitStrategy(strategy)
        await stream.synchronize_async()


# -------------------------------------------------------------------------------- whose a stream is


async def test_callback_of_the_loop_takes_a_stream_and_gives_it_back() -> None:
    """It is no task, so no task is named, and any may give the stream back."""
    taken: list[Stream] = []

    def call() -> None:
        taken.append(pool.acquire_nowait())
        pool.release(taken[0])
        taken.append(pool.acquire_nowait())

    async with StreamPool(1) as pool, Stream() as other:
        await use_once(pool)
        other.completion_future().add_done_callback(lambda _: call())
        await until(lambda: len(taken) == 2)
        assert "1 lent, 0 waiting" in repr(pool)
        pool.release(taken[1])


async def test_only_the_pool_closes_its_streams() -> None:
    pool = StreamPool(1)
    async with pool.stream() as stream:
        with pytest.raises(RuntimeError, match=r"belongs to a pool.* close\(\) is refused"):
            stream.close()
        with pytest.raises(RuntimeError, match="aclose"):
            await stream.aclose()
        with pytest.raises(RuntimeError, match="shutdown"):
            stream.shutdown()
        with pytest.raises(RuntimeError, match="into_raw"):
            stream.into_raw()
        stream.to_borrowed().close()
        assert await stream.run(lambda: 3) == 3
    await pool.aclose()
    assert stream.closed
    stream.close()


async def test_what_was_not_taken_is_not_given_back(other: Stream) -> None:
    async with StreamPool(1) as pool, StreamPool(1) as another:
        stream = await pool.acquire()
        pool.release(stream)
        with pytest.raises(ValueError, match="given back before"):
            pool.release(stream)
        for never_taken in (other, None, await another.acquire()):
            with pytest.raises(ValueError, match="was not lent"):
                pool.release(never_taken)  # type: ignore[arg-type]
        assert (pool.idle, another.lent) == (1, 1)
        another.release(never_taken)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", ["late", "twice"])
async def test_an_end_of_a_block_that_comes_too_late_gives_nothing_back(times: str) -> None:
    """The stream is another task's by then."""
    async with StreamPool(1) as pool:
        block = pool.stream()
        stream = await block.__aenter__()
        if times == "twice":
            await block.__aexit__(None, None, None)
        else:
            pool.release(stream)
        async with pool.stream() as next_one:
            assert next_one == stream
            await block.__aexit__(None, None, None)
            assert pool.lent == 1
            with pytest.raises(PoolFullError):
                pool.acquire_nowait()
        assert pool.idle == 1


def users_at_each_line(act: Callable[[StreamPool, list[Stream]], None]) -> None:
    """A handler uses the pool between any two lines of the library in `act`, as that of a signal
    may. Neither gets a stream that the other has.
    """

    async def at(line: int) -> bool:
        held, here = list[Stream](), list[Stream]()
        async with StreamPool(2) as pool:
            first = pool.acquire_nowait()

            def handle() -> None:
                for _ in range(3):
                    with contextlib.suppress(PoolFullError):
                        held.append(pool.acquire_nowait())
                if len(held) > 1:
                    pool.release(held.pop(0))

            here.append(first)
            with at_line(line, handle, *POOL) as lines:
                act(pool, here)
            everything = held + here
            assert len({stream.handle for stream in everything}) == len(everything), line
            assert pool.lent == len(everything), line
            for stream in everything:
                pool.release(stream)
            assert pool.idle == 2
            await use_once(pool)
        return len(lines) >= line

    line = 1
    while asyncio.run(at(line)):
        line += 1
    assert line > 5


def test_a_handler_that_uses_the_pool_while_it_gives_a_stream() -> None:
    def take(pool: StreamPool, here: list[Stream]) -> None:
        with contextlib.suppress(PoolFullError):
            here.append(pool.acquire_nowait())

    users_at_each_line(take)


def test_a_handler_that_uses_the_pool_while_a_stream_comes_back() -> None:
    users_at_each_line(lambda pool, here: pool.release(here.pop()))


def test_a_handler_that_uses_the_pool_while_a_loop_adopts_it() -> None:
    async def leave() -> None:
        lost.append(await pool.acquire())

    async def at(line: int) -> bool:
        held, here = list[Stream](), list[Stream]()
        handle = lambda: held.append(pool.acquire_nowait())  # noqa: E731
        files = "pool.py", "pool_core.py"  # and no finalizers of earlier loans
        with contextlib.suppress(PoolFullError), at_line(line, handle, *files) as lines:
            here.append(pool.acquire_nowait())
        for stream in held + here:
            pool.release(stream)
        assert len(held + here) == len({stream.handle for stream in held + here})
        assert (pool.idle, pool.lent) == (2, 0)
        return len(lines) >= line

    line, goes_on = 1, True
    while goes_on:
        pool, lost = StreamPool(2), list[Stream]()
        asyncio.run(leave())
        goes_on = asyncio.run(at(line))
        pool.close()
        line += 1
    assert line > 10


@pytest.mark.parametrize("size", [1, 2])
def test_a_finalizer_that_uses_the_pool_while_it_lends(size: int) -> None:
    """The collector runs it at any allocation."""

    class Buffer:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            with contextlib.suppress(PoolFullError, RuntimeError):
                pool.release(pool.acquire_nowait())

    async def use() -> None:
        for number in range(300):
            gc.set_threshold(1 + number % 50)
            Buffer()
            held = list[Stream]()
            for _ in range(size):
                with contextlib.suppress(PoolFullError):
                    held.append(pool.acquire_nowait())
            assert len({stream.handle for stream in held}) == len(held)
            for stream in held:
                pool.release(stream)
            assert pool.idle == size

    thresholds, pool = gc.get_threshold(), StreamPool(size)
    try:
        asyncio.run(use())
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    pool.close()


async def test_requests_that_are_cancelled_at_every_moment() -> None:
    """In the queue, as they wake, in the block, as they give back. No stream is lost or shared."""
    held = set[int]()

    async def request(number: int, scope: anyio.CancelScope) -> None:
        with scope:
            for turn in range(number % 5):
                await anyio.sleep(0)
                if turn == number % 7:
                    scope.cancel()
            if number % 2:
                await pool.run(work)
            else:
                async with pool.stream() as stream:
                    assert stream.handle not in held
                    held.add(stream.handle)
                    try:
                        if number % 4:
                            spin(stream, 0.0001)
                            await stream.synchronize_async()
                        await anyio.sleep(0)
                    finally:
                        held.discard(stream.handle)

    def work() -> None:
        """Nothing, on a stream."""

    async with StreamPool(3) as pool:
        for _ in range(30):
            scopes = [anyio.CancelScope() for _ in range(100)]
            async with anyio.create_task_group() as tasks:
                for number, scope in enumerate(scopes):
                    tasks.start_soon(request, number, scope)
                for turn in range(20):
                    await anyio.sleep(0)
                    for scope in scopes[turn::20]:
                        scope.cancel()
        await until(lambda: pool.idle == 3)
        assert (pool.lent, pool.waiting, pool.busy) == (0, 0, 0)
