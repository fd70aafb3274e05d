"""StreamPool: the order in which tasks get streams, its end, and what its waits learn."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import PoolFullError, Stream, StreamClosedError, StreamPool, WaitStrategy, statistics
from support import STRATEGIES, Gate, spin
from waiters import until


async def test_streams_come_back_and_the_last_one_is_lent_again() -> None:
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
            assert stream.closed
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


async def test_closing_or_returning_a_stream_twice_does_not_affect_the_pool(other: Stream) -> None:
    async with StreamPool(1) as pool:
        stream = await pool.acquire()
        stream.close()
        pool.release(stream)
        with pytest.raises(ValueError, match="given back before"):
            pool.release(stream)
        for never_lent in (other, None):
            with pytest.raises(ValueError, match="was not lent"):
                pool.release(never_lent)  # type: ignore[arg-type]
        async with pool.stream() as stream:
            with pytest.raises(ValueError, match="borrowed"):
                stream.into_raw()
            assert stream.capture_status() is aiostream.CaptureStatus.NONE
        with pytest.raises(StreamClosedError):
            stream.query()


@pytest.mark.parametrize("kept", ["object", "attribute", "weak reference", "operation"])
async def test_nothing_of_one_task_reaches_the_next(kept: str) -> None:
    """The pool lends an object again if no task has kept it. Each task must find a new one."""
    async with StreamPool(1) as pool:
        async with pool.stream() as stream:
            found: Any = {
                "object": lambda stream: stream,
                "attribute": lambda stream: setattr(stream, "of_the_first", True),
                "weak reference": weakref.ref,
                "operation": Stream.synchronize_async,
            }[kept](stream)
        for _ in range(3):
            del stream
            async with pool.stream() as stream:
                assert stream is not found
                assert not hasattr(stream, "of_the_first")
                assert stream.query()
            if kept == "object":
                assert found.closed
                with pytest.raises(StreamClosedError):
                    found.query()
        if kept == "weak reference":
            assert found() is None
        if kept == "operation":
            with pytest.raises(StreamClosedError):
                await found


class Counting(StreamPool):
    """Has a `release` of its own, and attributes as users may choose them."""

    released = 0

    def release(self, stream: Stream) -> None:
        self.released += 1
        super().release(stream)


async def test_each_return_calls_the_release_of_a_subclass() -> None:
    async with Counting(1) as pool:
        for name in ("_loop", "_futures"):
            setattr(pool, name, None)
        for _ in range(3):
            async with pool.stream():
                pass
        assert pool.released == 3


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


@pytest.mark.parametrize("act", ["close", "acquire"])
async def test_a_finalizer_that_uses_the_pool_while_it_lends(act: str) -> None:
    """The collector runs it, because the loan allocates."""
    pool = StreamPool(1)
    for _ in range(2):
        async with pool.stream():
            pass
    taken: list[Stream] = []

    class Owner:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            if act == "close":
                pool.close()
            else:
                with contextlib.suppress(PoolFullError):
                    taken.append(pool.acquire_nowait())

    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        with anyio.move_on_after(0.05):
            acquiring = pool.acquire()
            Owner()
            gc.set_threshold(1, 1, 1)
            gc.enable()
            taken.append(await acquiring)
    except StreamClosedError:
        assert pool.closed
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()  # without the GIL the loan may not have run it
    assert len(taken) <= 1
    for stream in taken:
        pool.release(stream)
    await pool.aclose()


async def test_closing_with_streams_lent_and_tasks_waiting() -> None:
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
