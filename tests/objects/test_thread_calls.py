"""enqueue_in_thread: calls that wait for a token count as pending, and their errors are read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import Stream, simulator, statistics
from interrupts import run_interrupted
from support import settle
from waiters import until


async def test_drain_waits_for_calls_that_wait_for_their_token() -> None:
    """They share a limiter with other code, as the default one is shared in a server."""
    limiter = anyio.CapacityLimiter(1)
    calls: list[int] = []
    async with Stream() as stream:
        await limiter.acquire_on_behalf_of("other code")

        async def call(number: int) -> None:
            await stream.enqueue_in_thread(lambda _: calls.append(number), limiter=limiter)

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(call, number)
            await until(lambda: limiter.statistics().tasks_waiting == 3)
            assert statistics().futures.pending == 3
            assert statistics().balanced
            assert not await aiostream.drain(0.01)
            assert calls == []
            limiter.release_on_behalf_of("other code")
            assert await aiostream.drain(10)
            assert sorted(calls) == [0, 1, 2]


async def test_call_that_is_cancelled_before_it_has_a_token_is_pending_no_more() -> None:
    limiter = anyio.CapacityLimiter(1)
    async with Stream() as stream:
        await limiter.acquire_on_behalf_of("other code")
        with anyio.move_on_after(0.01) as scope:
            await stream.enqueue_in_thread(lambda _: None, limiter=limiter)
        assert scope.cancelled_caught
        assert await aiostream.drain(10)
        assert limiter.borrowed_tokens == 1
        limiter.release_on_behalf_of("other code")
        assert limiter.borrowed_tokens == 0


async def test_call_whose_stream_is_closed_while_it_waits_for_its_token() -> None:
    limiter = anyio.CapacityLimiter(1)
    stream = Stream()
    await limiter.acquire_on_behalf_of("other code")
    refused: list[BaseException] = []

    async def call() -> None:
        with pytest.raises(aiostream.StreamClosedError) as raised:
            await stream.enqueue_in_thread(lambda _: None, limiter=limiter)
        refused.append(raised.value)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await until(lambda: limiter.statistics().tasks_waiting == 1)
        stream.close()
        limiter.release_on_behalf_of("other code")
    assert len(refused) == 1
    assert await aiostream.drain(10)


def test_call_whose_loop_is_closed_while_it_waits_for_its_token() -> None:
    """Only its task holds it, so that the collector can end both."""
    limiters: list[anyio.CapacityLimiter] = []

    async def call() -> None:
        limiters.append(limiter := anyio.CapacityLimiter(1))
        await limiter.acquire_on_behalf_of("other code")
        await Stream().enqueue_in_thread(lambda _: None, limiter=limiter)

    async def begin() -> None:
        asyncio.get_running_loop().create_task(call())  # nothing else keeps it
        await until(lambda: bool(limiters) and limiters[0].statistics().tasks_waiting == 1)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task is destroyed while it is pending
    loop.run_until_complete(begin())
    loop.close()
    del loop
    limiters.clear()
    assert settle(lambda: gc.collect() >= 0 and statistics().handles.open == 0)

    async def drain() -> None:
        assert await aiostream.drain(10)

    asyncio.run(drain())
    assert statistics().balanced


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # anyio's
def test_interrupt_anywhere_in_a_call_that_is_cancelled_while_it_waits_for_its_token() -> None:
    async def main() -> None:
        limiter = anyio.CapacityLimiter(1)
        await limiter.acquire_on_behalf_of("other code")
        task = asyncio.create_task(stream.enqueue_in_thread(lambda _: None, limiter=limiter))
        await until(lambda: limiter.statistics().tasks_waiting == 1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def later() -> None:
        gc.collect()  # what the frames of the interrupt's traceback held
        assert await aiostream.drain(10)

    stream = Stream()
    struck = 0
    for number in range(1, 80):  # more than there are, because some Pythons trace late
        striker = run_interrupted("asyncio", number, main, later, cancels=True)
        struck += striker.has_struck
    assert struck > 10
    stream.close()


@pytest.mark.cuda_leaks(1)
@pytest.mark.simulator_only("a GPU's context cannot be recovered")
def test_failure_of_a_call_that_is_cancelled_is_not_reported() -> None:
    """The context is lost while the function runs, and the loop is busy until it has returned."""
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, report: reported.append(report))
        stream = Stream()
        begun, goes_on = threading.Event(), threading.Event()

        def function(_: Stream) -> None:
            begun.set()
            goes_on.wait(10)

        task = asyncio.create_task(stream.enqueue_in_thread(function))
        await until(begun.is_set)
        simulator.break_context(700)
        loop.call_later(0, task.cancel)
        goes_on.set()
        # Blocks the loop, so that the failure and the cancellation come in one turn.
        assert settle(lambda: statistics().waits.pending == 0)
        with pytest.raises(asyncio.CancelledError):
            await task
        simulator.recover()
        stream.close()

    asyncio.run(main())
    assert reported == []
