"""StreamPool: its use by one loop after another, its end, and interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import (
    CaptureMode,
    Device,
    Event,
    PoolFullError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    StreamPool,
    statistics,
)
from captures import in_anothers_capture
from interrupts import at_line, is_finalizer
from support import Gate, settle, spin
from waiters import end_lost_task, until, use_once, waited_for

# -------------------------------------------------------------------------------------- other loops


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("lent", "1 streams are lent to 'a request', 0 tasks wait"),
        ("waited for", "1 streams are lent, 1 tasks wait"),
        # To a task that has not run since, because its loop was stopped.
        ("handed over", "1 streams are lent, 0 tasks wait"),
    ],
)
def test_another_loop_is_refused_while_the_pool_is_in_use(state: str, says: str) -> None:
    pool = StreamPool(1)
    if state == "lent":
        first, waiter = asyncio.new_event_loop(), None
        user = first.create_task(pool.acquire(), name="a request")
        stream = first.run_until_complete(user)
    else:
        first, stream, waiter = waited_for(pool)
    if state == "handed over":
        pool.release(stream)
    with pytest.raises(RuntimeError, match=f"in use in another event loop: {says}"):
        asyncio.run(use_once(pool))
    if state != "handed over":
        pool.release(stream)
    if waiter is not None:
        pool.release(first.run_until_complete(waiter))
    asyncio.run(use_once(pool))
    first.run_until_complete(use_once(pool))
    first.close()
    pool.close()


@pytest.mark.parametrize("is_handed_over", [False, True])
@pytest.mark.parametrize("end", ["release", "close"])
def test_loop_that_dies_with_a_task_that_waits(end: str, is_handed_over: bool) -> None:
    """The loop was closed before the task was cancelled, or before it could run although it was its
    turn. Its queue is closed, although the pool and the task are kept.
    """
    before, pool = statistics().handles.open, StreamPool(1)
    asyncio.run(use_once(pool))
    descriptors = len(os.listdir("/proc/self/fd"))
    loop, taken, waiter = waited_for(pool)
    if is_handed_over:
        pool.release(taken)
        assert (pool.idle, pool.waiting) == (0, 0)
    loop.close()
    del loop
    gc.collect()
    assert settle(lambda: len(os.listdir("/proc/self/fd")) == descriptors)
    assert not waiter.done()
    if end == "close":
        end_lost_task(waiter)
        pool.close()
    if not is_handed_over:
        pool.release(taken)
    if end == "close":
        assert statistics().handles.open == before
    else:
        asyncio.run(use_once(pool))
        end_lost_task(waiter)  # it must not give the stream back a second time
        assert pool.idle == 1
    pool.close()


def test_look_of_a_former_loop_leaves_the_pool_alone(other: Stream, event: Event) -> None:
    """The former loop was to query a stream again. Another loop uses the pool by then."""
    pool = StreamPool(1)
    first = asyncio.new_event_loop()

    async def join_and_give_up() -> None:
        other.begin_capture(CaptureMode.RELAXED)
        event.record(other)
        async with pool.stream() as stream:
            stream.wait_event(event)
            spin(stream, 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await pool.acquire()

    async def use() -> None:
        waiter = asyncio.create_task(pool.acquire())
        while pool.waiting == 0:
            await asyncio.sleep(0)
        await asyncio.to_thread(first.run_until_complete, asyncio.sleep(0.02))
        with contextlib.suppress(StreamCaptureError):
            other.end_capture()
        pool.release(await asyncio.wait_for(waiter, 20))

    first.run_until_complete(join_and_give_up())
    asyncio.run(use(), debug=True)  # which raises where a loop is used from another thread
    first.close()
    pool.close()


# ------------------------------------------------------------------------------ ends and interrupts


async def test_waiting_tasks_fail_when_closing_begins() -> None:
    """Here it begins twice at once."""
    reported = anyio.Event()
    with Gate() as gate:
        pool = StreamPool(2)
        held = await pool.acquire()
        async with pool.stream() as stream:
            gate.hold(stream)

        async def wait() -> None:
            with pytest.raises(StreamClosedError):
                await pool.acquire()
            reported.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(lambda: pool.waiting == 1)
            for _ in range(2):
                tasks.start_soon(pool.aclose)
            await reported.wait()
            gate.open()
        assert pool.closed
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
    got until then.
    """

    def strike() -> None:
        if not is_finalizer(sys._getframe(2)):
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), at_line(line, strike, *POOL) as lines:
        function()
    return len(lines) >= line


def at_each_line(at: Callable[[int], Coroutine[Any, Any, bool]], least: int = 10) -> None:
    """Runs it with 1, 2, 3 and so on, until it says that the code has no more lines."""
    line = 1
    while asyncio.run(at(line)):
        line += 1
    assert line > least


LOST = "ignore:.* was dropped and not given back:ResourceWarning"


@pytest.mark.filterwarnings(LOST)
@pytest.mark.parametrize("what", ["take", "take unreported", "return", "return busy"])
def test_interrupted_pool_hands_out_no_stream_twice(what: str) -> None:
    """A KeyboardInterrupt at any line: the stream is free, or it counts in `pool.lent` until the
    pool is closed.
    """

    async def at(line: int) -> bool:
        taken = list[Stream]()
        if what != "take":
            taken.append(pool.acquire_nowait())
        if what == "take unreported":
            with in_anothers_capture(taken[0]):  # so no event can say when it is free
                pool.release(taken.pop())
        if what == "return busy":
            gate.hold(taken[0])
        takes = what.startswith("take")
        take = lambda: taken.append(pool.acquire_nowait())  # noqa: E731
        act = take if takes else (lambda: pool.release(taken[0]))
        struck = interrupted_at(line, act)
        gate.open()
        with contextlib.suppress(PoolFullError):
            taken += [pool.acquire_nowait()]
            taken += [pool.acquire_nowait()]
            raise AssertionError("one stream was given twice")
        assert pool.lent in (0, 1)
        return struck

    line, goes_on = 1, True
    while goes_on:
        gate, pool = Gate(), StreamPool(1)
        goes_on = asyncio.run(at(line))
        assert pool.idle + pool.lent + pool.busy == 1
        pool.close()
        line += 1
    assert line > 4


@pytest.mark.filterwarnings(LOST)
def test_interrupt_leaves_no_task_waiting_for_a_free_stream() -> None:
    """At each line of a release: the stream goes to the task that waits, or is lost with the
    interrupt, and then the task gets it after the other stream comes back.
    """

    async def at(line: int) -> bool:
        pool = StreamPool(2)
        held, other = pool.acquire_nowait(), pool.acquire_nowait()
        waiter = asyncio.create_task(pool.acquire())
        while pool.waiting == 0:
            await asyncio.sleep(0)
        struck = interrupted_at(line, lambda: pool.release(held))
        await asyncio.wait([waiter], timeout=0.05)
        is_free = pool.lent < 2 or waiter.done()
        if not waiter.done():
            assert not is_free, f"a task waits while a stream is free: line {line}"
            pool.release(other)
        stream = await asyncio.wait_for(waiter, 20)
        pool.release(stream)
        await pool.aclose()
        return struck

    at_each_line(at, 4)


@pytest.mark.filterwarnings(LOST)
def test_close_destroys_a_stream_that_an_interrupt_has_lost() -> None:
    before = statistics().handles.open

    async def at(line: int) -> bool:
        pool: Any = StreamPool(1)
        struck = interrupted_at(line, lambda: pool.release(pool.acquire_nowait()))
        pool.close()
        if pool.lent:  # a task got it, and only its caller could have lost it
            pool = None
            gc.collect()
        assert settle(lambda: statistics().handles.open == before), line
        return struck

    at_each_line(at)


@pytest.mark.parametrize("way", ["run", "run_in_thread", "block", "acquire"])
def test_one_run_after_another_with_the_loop_closed_in_the_middle(way: str) -> None:
    """The former loop was closed while a task of it held the stream. The task is kept, but what it
    had is void, and its late end gives nothing back.
    """
    with Gate() as gate:
        pool = StreamPool(1, each=lambda stream: stream)

        def launch(stream: Stream) -> None:
            gate.hold(stream)
            held.append(True)

        async def hold() -> None:
            if way.startswith("run"):
                function = getattr(pool, way)
                await function(launch)
            elif way == "block":
                async with pool.stream() as stream:
                    await asyncio.get_running_loop().create_future()
                    stream.query()
            else:
                stream = await pool.acquire()
                await asyncio.get_running_loop().create_future()
                stream.query()

        loop, held = asyncio.new_event_loop(), list[bool]()
        task = loop.create_task(hold())
        while not (held if way.startswith("run") else pool.lent):  # a thread may take a while
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.run_until_complete(asyncio.sleep(0.02))
        loop.close()
        gate.open()

        async def use() -> None:
            async with asyncio.timeout(20):
                async with pool.stream():
                    assert pool.lent == 1
                    end_lost_task(task)
                    assert (pool.lent, pool.idle) == (1, 0)

        asyncio.run(use())
        asyncio.run(use_once(pool))
        assert (pool.idle, pool.lent) == (1, 0)
        pool.close()


async def test_pool_may_change_while_another_thread_reads_its_numbers() -> None:
    """As a scrape of the metrics does. Here the change comes between any two steps of the read."""

    async def changes_at(number: int) -> bool:
        held = await pool.acquire()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(use_once, pool)
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


@pytest.mark.all_loops
@pytest.mark.parametrize("call", ["acquire", "run"])
async def test_a_pool_that_is_closed_when_it_has_woken_a_task_refuses_it(call: str) -> None:
    """The task has yet to run then, so its future cannot get the error."""
    pool, refused = StreamPool(1), []
    stream = await pool.acquire()

    async def ask() -> None:
        try:
            await (pool.acquire() if call == "acquire" else pool.run(int))
        except StreamClosedError as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await until(lambda: pool.waiting == 1)
        pool.release(stream)
        pool.close()
    assert len(refused) == 1
