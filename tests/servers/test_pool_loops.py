"""StreamPool: its use by one loop after another, its end, and interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import (
    CaptureMode,
    Device,
    Event,
    PoolFullError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    StreamPool,
    drain,
    statistics,
)
from interrupts import at_line
from support import Gate, settle, spin
from waiters import drop_streams, end_lost_task, until


def waited_for(pool: StreamPool) -> tuple[asyncio.AbstractEventLoop, Stream, asyncio.Task[Stream]]:
    """A loop that is not running, the only stream, which a task of it has, and another task that
    waits for it.
    """
    loop = asyncio.new_event_loop()
    lent = loop.run_until_complete(pool.acquire())
    waiter = loop.create_task(pool.acquire())
    while pool.waiting == 0:
        loop.run_until_complete(asyncio.sleep(0))
    return loop, lent, waiter


# -------------------------------------------------------------------------------------- other loops


def test_another_loop_is_refused_while_the_pool_is_in_use() -> None:
    pool = StreamPool(2)

    async def take() -> Stream:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("the holder")
        tasks.append(task)
        return await pool.acquire()

    tasks: list[Any] = []
    first = asyncio.new_event_loop()
    stream = first.run_until_complete(take())

    async def use() -> None:
        async with pool.stream() as other:
            await other.synchronize_async()

    with pytest.raises(
        RuntimeError, match="in use in another event loop: 1 streams are lent to 'the holder'"
    ):
        asyncio.run(use())
    pool.release(stream)
    asyncio.run(use())
    first.run_until_complete(use())
    first.close()
    pool.close()


@pytest.mark.parametrize("state", ["waiting", "handed over"])
def test_another_loop_is_refused_while_a_task_waits(state: str) -> None:
    """Also while a stream was handed to a task that has not run since, because its loop was
    stopped.
    """
    pool = StreamPool(1)
    first, stream, waiter = waited_for(pool)
    if state == "handed over":
        pool.release(stream)

    async def use() -> None:
        async with pool.stream() as other:
            await other.synchronize_async()

    with pytest.raises(RuntimeError, match="in use in another event loop"):
        asyncio.run(use())
    if state == "waiting":
        pool.release(stream)
    pool.release(first.run_until_complete(waiter))
    asyncio.run(use())
    first.close()
    pool.close()


def test_stream_that_was_handed_to_a_task_of_a_dead_loop_comes_back() -> None:
    """It was the task's turn, and its loop was closed before the task could run."""
    pool = StreamPool(1)
    loop, lent, waiter = waited_for(pool)
    pool.release(lent)
    assert (pool.idle, pool.waiting) == (0, 0)
    loop.close()

    async def use() -> None:
        async with pool.stream() as stream:
            await stream.synchronize_async()
        assert pool.idle == 1

    asyncio.run(use())
    end_lost_task(waiter)  # as when it is collected: it must not give the stream back a second time
    assert pool.idle == 1
    pool.close()


def test_nothing_is_left_of_a_pool_whose_loop_died_with_waiters() -> None:
    pool = StreamPool(1)
    loop, lent, waiter = waited_for(pool)
    loop.close()
    end_lost_task(waiter)
    pool.release(lent)
    pool.close()
    assert settle(lambda: not internals.alarms())


def test_pool_that_is_kept_ends_its_watch_when_its_loop_dies() -> None:
    """The task that waits is kept too.

    The loop's queue is closed nevertheless, and the watcher stops reading the context's health.
    """
    pool = StreamPool(1)
    descriptors = len(os.listdir("/proc/self/fd"))
    loop, lent, waiter = waited_for(pool)
    assert len(internals.alarms()) == 1
    loop.close()
    del loop
    gc.collect()
    assert settle(lambda: not internals.alarms())
    assert settle(lambda: len(os.listdir("/proc/self/fd")) == descriptors)
    assert not waiter.done()
    end_lost_task(waiter)
    pool.release(lent)
    pool.close()


def test_look_of_a_former_loop_leaves_the_pool_alone() -> None:
    """The former loop was to query a stream again. Another loop uses the pool by then."""
    pool, origin, forked = StreamPool(1), Stream(), Event()
    first = asyncio.new_event_loop()

    async def join_and_give_up() -> None:
        origin.begin_capture(CaptureMode.RELAXED)
        forked.record(origin)
        async with pool.stream() as stream:
            stream.wait_event(forked)
            spin(stream, 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await pool.acquire()

    async def use() -> None:
        waiter = asyncio.create_task(pool.acquire())
        while pool.waiting == 0:
            await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: first.run_until_complete(asyncio.sleep(0.02)))
        thread.start()
        await asyncio.to_thread(thread.join)
        with contextlib.suppress(StreamCaptureError):
            origin.end_capture()
        pool.release(await asyncio.wait_for(waiter, 20))

    first.run_until_complete(join_and_give_up())
    asyncio.run(use(), debug=True)  # which raises where a loop is used from another thread
    first.close()
    for thing in (pool, origin, forked):
        thing.close()


# ------------------------------------------------------------------------------ ends and interrupts


async def test_closing_twice_at_once() -> None:
    with Gate() as gate:
        pool = StreamPool(2)
        async with pool.stream() as stream:
            gate.hold(stream)
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(pool.aclose)
            while not pool.closed:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(anyio.lowlevel.checkpoint)
            gate.open()
    assert pool.closed


async def test_waiting_tasks_fail_when_closing_begins() -> None:
    told = anyio.Event()
    with Gate() as gate:
        pool = StreamPool(2)
        held = await pool.acquire()
        async with pool.stream() as stream:
            gate.hold(stream)

        async def wait() -> None:
            with pytest.raises(StreamClosedError):
                await pool.acquire()
            told.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(lambda: pool.waiting == 1)
            tasks.start_soon(pool.aclose)
            await told.wait()
            gate.open()
        pool.release(held)


async def test_cancelled_waiter_of_a_pool_that_closes_leaves_no_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = StreamPool(1)
    held = await pool.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool.acquire)
        await until(lambda: pool.waiting == 1)
        tasks.cancel_scope.cancel()
        pool.close()
    gc.collect()
    assert not caplog.records
    pool.release(held)


POOL = [path.name for path in Path(aiostream.__file__).parent.rglob("*pool*.py")]


def interrupted_at(line: int, function: Callable[[], Any]) -> bool:
    """Runs a function with a KeyboardInterrupt at that many lines of the pool's code; whether it
    got so far.
    """

    def strike() -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), at_line(line, strike, *POOL) as lines:
        function()
    return len(lines) >= line


@contextlib.contextmanager
def in_anothers_capture(stream: Stream) -> Iterator[None]:
    """Has the stream take part in the capture of another stream."""
    origin, forked, joined = Stream(), Event(), Event()
    with origin.capture(CaptureMode.RELAXED) as capture:
        forked.record(origin)
        stream.wait_event(forked)
        joined.record(stream)
        yield
        origin.wait_event(joined)
    assert capture.graph is not None
    for thing in (capture.graph, origin, forked, joined):
        thing.close()


@pytest.mark.parametrize("what", ["lend", "lend unreported", "return", "return busy"])
def test_interrupted_pool_loses_no_stream(what: str) -> None:
    """A KeyboardInterrupt at any line of lending or returning: the stream is found again."""

    async def at(line: int) -> bool:
        gate = Gate()
        pool = StreamPool(1)
        lent: list[Stream] = []
        if what != "lend":
            lent.append(pool.acquire_nowait())
        if what == "lend unreported":
            with in_anothers_capture(lent[0]):  # so no event can say when it is free
                pool.release(lent.pop())
        if what == "return busy":
            gate.hold(lent[0])
        act = (
            (lambda: lent.append(pool.acquire_nowait()))
            if what.startswith("lend")
            else (lambda: pool.release(lent[0]))
        )
        struck = interrupted_at(line, act)
        gate.open()
        if what.startswith("lend") and pool.lent and not lent:
            pool.close()
            return False  # the last line: it was lent, and only its caller could have lost it
        for stream in lent:
            with contextlib.suppress(ValueError):
                pool.release(stream)
        async with asyncio.timeout(20):
            async with pool.stream() as stream:
                await stream.synchronize_async()
            await pool.aclose()
            await drain()
        return struck

    line = 1
    while asyncio.run(at(line)):
        line += 1
    assert line > (2 if what == "return" else 10)  # that is one step of native code


def test_interrupt_between_two_steps_of_handing_over_loses_nothing() -> None:
    """The stream was about to go to a task that waits: that task, or the next, gets it."""

    async def at(line: int) -> bool:
        pool = StreamPool(1)
        held = pool.acquire_nowait()
        waiter = asyncio.create_task(pool.acquire())
        while pool.waiting == 0:
            await asyncio.sleep(0)
        struck = interrupted_at(line, lambda: pool.release(held))
        with contextlib.suppress(ValueError):
            pool.release(held)
        second = asyncio.create_task(pool.acquire())
        done, pending = await asyncio.wait(
            [waiter, second], timeout=20, return_when="FIRST_COMPLETED"
        )
        assert done, f"nobody got the stream after an interrupt at line {line}"
        while done or pending:
            for task in done:
                pool.release(task.result())
            if not pending:
                break
            done, pending = await asyncio.wait(pending, timeout=20, return_when="FIRST_COMPLETED")
            assert done, f"the other did not get the stream after an interrupt at line {line}"
        await pool.aclose()
        return struck

    line = 1
    while asyncio.run(at(line)):
        line += 1
    assert line > 10


def test_acquire_nowait_finds_a_lost_stream() -> None:
    async def lose() -> None:
        pool = StreamPool(1)
        line = 1
        while interrupted_at(line, lambda: pool.release(pool.acquire_nowait())):
            with contextlib.suppress(PoolFullError):
                pool.release(pool.acquire_nowait())
            line += 1
            if pool.lent:
                break  # interrupted when all was done: it is lent, and its caller has lost it
        assert line > 10
        pool.close()

    asyncio.run(lose())


async def test_pool_may_change_while_another_thread_reads_its_numbers() -> None:
    """As a scrape of the metrics does. Here the change comes between any two steps of the read."""

    async def use() -> None:
        async with pool.stream() as stream:
            await stream.synchronize_async()

    async def changes_at(number: int) -> bool:
        held = await pool.acquire()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(use)
            await until(lambda: pool.waiting == 3)
            # It goes to the first task that waits.
            with at_line(number, lambda: pool.release(held), *POOL) as lines:
                text, numbers = repr(pool), (pool.idle, pool.busy, pool.lent, pool.waiting)
            if len(lines) < number:
                pool.release(held)
            assert numbers[3] in (2, 3), number
            assert sum(numbers[:3]) in (1, 2), number  # two: it moved between two of the reads
            assert " 2 waiting" in text or " 3 waiting" in text, number
        return len(lines) >= number

    async with StreamPool(1) as pool:
        number = 1
        while await changes_at(number):
            number += 1
        assert number > 10


async def test_pool_takes_back_a_stream_that_a_task_has_dropped() -> None:
    async with StreamPool(1) as pool:
        for _ in range(3):
            stream = await pool.acquire()
            handle = stream.handle
            del stream
            gc.collect()
            with anyio.fail_after(20):
                stream = await pool.acquire()
            assert stream.handle == handle
            pool.release(stream)
        assert (pool.idle, pool.lent) == (1, 0)


async def test_dropped_stream_waits_for_its_work() -> None:
    with Gate() as gate:
        async with StreamPool(1) as pool:
            stream = await pool.acquire()
            gate.hold(stream)
            del stream
            gc.collect()
            with pytest.raises(PoolFullError):
                pool.acquire_nowait()
            assert (pool.lent, pool.busy) == (0, 1)
            gate.open()
            async with pool.stream() as stream:
                assert stream.query()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("where", ["here", "in a thread"])
async def test_dropped_stream_goes_to_a_task_that_waits_already(where: str, busy: bool) -> None:
    with Gate() as gate:
        async with StreamPool(1) as pool:
            kept = [await pool.acquire()]
            if busy:
                gate.hold(kept[0])

            async def hold() -> None:
                async with pool.stream() as stream:
                    assert stream.query()

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(hold)
                await until(lambda: pool.waiting == 3)
                await drop_streams(kept, where)
                if busy:
                    await until(lambda: pool.busy == 1)
                    assert pool.waiting == 3
                    gate.open()
                with anyio.fail_after(20):
                    await until(lambda: pool.idle == 1)


async def test_each_of_several_drops_wakes_the_next_task() -> None:
    async with StreamPool(1) as pool:
        kept = [await pool.acquire()]

        async def drop() -> None:
            await pool.acquire()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(drop)
                await until(lambda: pool.waiting == 5)
                kept.clear()
                gc.collect()
        async with pool.stream():
            assert (pool.lent, pool.waiting) == (1, 0)


def test_dropped_stream_does_not_keep_the_pool_for_its_loop() -> None:
    pool = StreamPool(1)

    async def drop() -> None:
        await pool.acquire()

    async def use() -> None:
        async with pool.stream() as stream:
            await stream.synchronize_async()

    asyncio.run(drop())
    gc.collect()
    asyncio.run(use())
    pool.close()


async def test_pool_that_is_closed_destroys_a_dropped_stream() -> None:
    before = statistics().handles.open
    pool = StreamPool(2)
    stream = await pool.acquire()
    del stream
    gc.collect()
    pool.close()
    assert statistics().handles.open == before


async def test_aclose_awaits_the_work_of_a_dropped_stream() -> None:
    done: list[int] = []
    pool = StreamPool(1)
    stream = await pool.acquire()
    spin(stream, 0.02)
    stream.launch_host_func(done.append, 1)
    del stream
    gc.collect()
    await pool.aclose()
    assert (done, pool.lent) == ([1], 0)


@pytest.mark.parametrize("where", ["here", "in a thread"])
async def test_stream_that_is_dropped_after_the_close_is_destroyed(where: str) -> None:
    """The program keeps the pool, and the other task its stream."""
    before = statistics().handles.open
    pool = StreamPool(2)
    kept, held = [await pool.acquire()], await pool.acquire()
    await pool.aclose()
    assert (pool.lent, statistics().handles.open) == (2, before + 2)

    await drop_streams(kept, where)
    assert settle(lambda: statistics().handles.open == before + 1)
    assert pool.lent == 1
    pool.release(held)
    assert (pool.lent, statistics().handles.open) == (0, before)


async def test_stream_that_is_dropped_after_the_close_lets_go_of_its_owner() -> None:
    owner = Stream()
    owners = weakref.ref(owner)
    pool = StreamPool.borrow([owner])
    del owner
    stream = await pool.acquire()
    pool.close()
    assert owners() is not None
    del stream
    gc.collect()
    assert owners() is None
    assert pool.closed


async def test_stream_on_its_way_when_the_pool_closes_is_destroyed_when_it_is_dropped() -> None:
    before = statistics().handles.open
    pool = StreamPool(1)
    held = await pool.acquire()

    async def drop() -> None:
        await pool.acquire()

    async with anyio.create_task_group() as group:
        group.start_soon(drop)
        await until(lambda: pool.waiting == 1)
        pool.release(held)
        pool.close()
        assert pool.lent == 1
    gc.collect()
    assert settle(lambda: statistics().handles.open == before)


def test_close_destroys_a_stream_on_its_way_to_a_task_of_a_dead_loop() -> None:
    before = statistics().handles.open
    pool = StreamPool(1)
    loop, lent, waiter = waited_for(pool)
    pool.release(lent)
    loop.close()
    pool.close()
    assert statistics().handles.open == before
    end_lost_task(waiter)


def test_close_destroys_a_stream_that_an_interrupt_has_lost() -> None:
    """At each line of lending: the stream is in none of the pool's lists."""
    before = statistics().handles.open

    async def at(line: int) -> bool:
        pool = StreamPool(1)
        struck = interrupted_at(line, pool.acquire_nowait)
        gc.collect()
        pool.close()
        assert settle(lambda: statistics().handles.open == before), line
        return struck

    line = 1
    while asyncio.run(at(line)):
        line += 1
    assert line > 10


@pytest.mark.parametrize("first", ["completion_future", "enqueue_async"])
@pytest.mark.parametrize("second", ["completion_future", "enqueue_async"])
def test_pool_of_the_per_thread_stream_in_two_threads(first: str, second: str) -> None:
    """It is another stream in each thread, so the end of one says nothing about the other."""
    loop, futures = asyncio.new_event_loop(), list[Any]()
    with Device(0).primary_context.as_current():
        # The watcher polls only the oldest wait of a list.
        pool = StreamPool.borrow([Stream.per_thread()], wait="event")
    with Gate() as gate:

        async def mark(stream: Stream, kind: str) -> None:
            arguments = [lambda _: None] if kind == "enqueue_async" else []
            futures.append(getattr(stream, kind)(*arguments))

        async def hold() -> Stream:
            stream = await pool.acquire()
            gate.hold(stream)
            await mark(stream, first)
            return stream

        async def pass_by(stream: Stream) -> None:
            await mark(stream, second)
            await futures[-1]
            assert not futures[0].done()

        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
            stream = one.submit(loop.run_until_complete, hold()).result(20)
            other.submit(loop.run_until_complete, pass_by(stream)).result(20)
            gate.open()
            one.submit(loop.run_until_complete, futures[0]).result(20)
            pool.release(stream)
            one.submit(loop.run_until_complete, pool.aclose()).result(20)
    loop.close()
