"""`pending()`: what waits, since when, for which stream, and which task."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.abc
import pytest

import aiostream
from aiostream import Event, PendingWait, Stream, StreamPool
from support import STRATEGIES, Gate, held_stream, run_on, settle, spin
from waiters import until


async def listed(number: int) -> list[PendingWait]:
    """What is pending, once it is that many."""
    await until(lambda: len(aiostream.pending()) == number)
    return aiostream.pending()


def named(found: list[PendingWait], name: str) -> PendingWait:
    [entry] = [each for each in found if name in each["stream"]]
    return entry


async def wait_for_it(stream: Stream) -> None:
    await stream.synchronize_async()


async def through_await(stream: Stream) -> None:
    await stream


async def through_a_generator(stream: Stream) -> None:
    async def steps() -> AsyncIterator[int]:
        await stream.synchronize_async()
        yield 1

    async for _ in steps():
        pass


async def through_a_generator_of_another(stream: Stream) -> None:
    async def inner() -> AsyncIterator[int]:
        await stream
        yield 1

    async def outer() -> AsyncIterator[int]:
        async for each in inner():
            yield each

    async for _ in outer():
        pass


async def through_a_limit(stream: Stream) -> None:
    with anyio.fail_after(60):
        await stream.synchronize_async()


@pytest.mark.parametrize(
    "awaiting",
    [
        wait_for_it,
        through_await,
        through_a_generator,
        through_a_generator_of_another,
        through_a_limit,
    ],
)
@pytest.mark.parametrize("wait", STRATEGIES)  # the task sleeps, or polls
async def test_wait_is_listed_with_its_task_and_line(
    awaiting: Callable[[Stream], Coroutine[Any, Any, None]], wait: Any, cuda_gate: Gate
) -> None:
    async with held_stream(cuda_gate, name="copies", wait=wait) as stream:
        async with anyio.create_task_group() as group:
            group.start_soon(awaiting, stream, name="a request")
            [entry] = await listed(1)
            cuda_gate.open()
        assert entry["stream"] == "stream 'copies' on device 0"
        assert entry["call"] == "Stream.synchronize_async"
        assert entry["task"] == "a request"
        assert entry["where"] is not None
        assert awaiting.__name__ in entry["where"]
        assert "test_pending.py:" in entry["where"]
        assert 0 <= entry["seconds"] < 30
        assert json.loads(json.dumps([entry])) == [entry]
    assert aiostream.pending() == []


async def test_run_names_its_function(cuda_gate: Gate) -> None:
    def forward() -> None:
        pass

    async def serve(stream: Stream) -> None:
        await stream.run(forward)

    async with held_stream(cuda_gate) as stream:
        async with anyio.create_task_group() as group:
            group.start_soon(serve, stream)
            [entry] = await listed(1)
            cuda_gate.open()
        assert entry["call"] == "Stream.run"
        assert entry["function"] is not None
        assert entry["function"].endswith("forward")
        assert entry["where"] is not None
        assert entry["where"].endswith("serve")


async def test_futures_and_events_are_listed(cuda_gate: Gate) -> None:
    async with (
        held_stream(cuda_gate, name="a") as first,
        held_stream(cuda_gate, name="b") as second,
    ):
        with Event() as event:
            event.record(first)
            async with anyio.create_task_group() as group:
                futures = [first.enqueue_async(lambda _: None), second.completion_future()]
                group.start_soon(event.synchronize_async, name="for an event")
                found = await listed(3)
                cuda_gate.open()
            for future in futures:
                await future
    of_event = named(found, "event 0x")
    assert (of_event["call"], of_event["task"]) == ("Event.synchronize_async", "for an event")
    assert named(found, "'a'")["call"] == "Stream.enqueue_async"
    assert named(found, "'a'")["function"] is not None
    assert named(found, "'b'")["call"] == "Stream.completion_future"


async def test_task_that_awaits_a_future_is_found(cuda_gate: Gate) -> None:
    async def take(future: Any) -> None:
        await future

    async with held_stream(cuda_gate) as stream:
        async with anyio.create_task_group() as group:
            group.start_soon(take, stream.enqueue_async(lambda _: None), name="taker")
            await until(lambda: aiostream.pending()[0]["task"] is not None)
            [entry] = aiostream.pending()
            cuda_gate.open()
        assert entry["task"] == "taker"


async def test_cancelled_wait_is_listed_without_a_task(cuda_gate: Gate) -> None:
    async with held_stream(cuda_gate, wait="event") as stream:
        with anyio.move_on_after(0.02):
            await stream.synchronize_async()
        [entry] = aiostream.pending()
        assert (entry["task"], entry["where"]) == (None, None)
        cuda_gate.open()
        assert await aiostream.drain(10)
    assert aiostream.pending() == []


async def test_oldest_comes_first_and_statistics_have_its_age(cuda_gate: Gate) -> None:
    async with (
        held_stream(cuda_gate, name="a") as first,
        held_stream(cuda_gate, name="b") as second,
    ):
        assert aiostream.statistics().waits.oldest == 0
        futures = [first.completion_future()]
        await anyio.sleep(0.02)
        futures.append(second.enqueue_async(lambda _: None))
        found = aiostream.pending()
        assert [named(found, "'a'"), named(found, "'b'")] == found
        assert found[0]["seconds"] >= 0.02 > found[1]["seconds"] or found[0]["seconds"] > 0.03
        assert aiostream.statistics().waits.oldest >= found[0]["seconds"]
        cuda_gate.open()
        for future in futures:
            await future
    assert aiostream.statistics().waits.oldest == 0


@pytest.mark.parametrize("begun", [False, True])
async def test_a_call_in_a_thread_is_listed_once(begun: bool) -> None:
    """While its function runs, and while its work does."""
    running, go_on = threading.Event(), threading.Event()
    async with Stream() as stream:
        with Gate() as gate:

            def fn() -> None:
                gate.hold(stream)
                running.set()
                begun or go_on.wait()

            async with anyio.create_task_group() as group:
                group.start_soon(stream.run_in_thread, fn)
                await until(running.is_set)
                await anyio.sleep(0.01)
                found = aiostream.pending()
                go_on.set()
                gate.open()
    assert len(found) == 1, found


async def test_what_the_history_expected() -> None:
    for _ in range(8):  # on a busy machine some of the waits may have been long
        async with Stream() as stream:
            for _ in range(8):
                spin(stream, 0.005)
                await stream.synchronize_async()
            with Gate() as gate:
                gate.hold(stream)
                async with anyio.create_task_group() as group:
                    group.start_soon(wait_for_it, stream)
                    [entry] = await listed(1)
                    gate.open()
        if entry["expected"] is not None and entry["expected"] < 0.1:
            break
    assert entry["expected"] is not None
    assert 0.004 < entry["expected"] < 0.1


async def test_stream_of_a_pool_has_its_name(cuda_gate: Gate) -> None:
    async with StreamPool(1, name="model") as pool:
        async with pool.stream() as stream:
            cuda_gate.hold(stream)
            future = stream.completion_future()
        found = aiostream.pending()  # the future, and the stream that came back with its work
        assert {each["stream"] for each in found} == {"stream 'model[0]' on device 0"}
        assert [each["call"] for each in found][1:] == ["StreamPool.release"]
        cuda_gate.open()
        await future


@pytest.mark.needs_gil("without it, `pending` looks at the tasks of its own loop alone")
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop", "trio"])
def test_another_thread_sees_the_tasks(loop_kind: str, cuda_gate: Gate) -> None:
    stream = held_stream(cuda_gate, name="held", wait="event")
    thread = threading.Thread(target=run_on, args=(loop_kind, wait_for_it, stream))
    thread.start()
    settle(lambda: [each["where"] is not None for each in aiostream.pending()] == [True])
    [entry] = aiostream.pending()
    cuda_gate.open()
    thread.join(20)
    stream.close()
    assert entry["where"] is not None
    assert "wait_for_it" in entry["where"]
    assert entry["task"] is not None


@pytest.mark.needs_gil("without it, `pending` looks at the tasks of its own loop alone")
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
def test_tasks_of_a_blocked_loop_are_found(loop_kind: str) -> None:
    """Also if a wait was handed back to its task, which the blocked loop has not noticed."""
    blocked, unblocks = threading.Event(), threading.Event()

    async def serve(gate: Gate) -> None:
        async with Stream() as stream:
            for _ in range(3):
                spin(stream, 0.005)
                await stream.synchronize_async()
            gate.hold(stream)
            tasks = []
            for name in ("first", "second"):
                tasks.append(asyncio.create_task(stream.synchronize_async(), name=name))
                await asyncio.sleep(0.001)
                spin(stream, 0.005)
            blocked.set()
            unblocks.wait(20)
            await asyncio.gather(*tasks)

    # The second wait is handed back in most rounds: when the first one's end says when it began.
    for _ in range(5):
        blocked.clear()
        unblocks.clear()
        with Gate() as gate:
            thread = threading.Thread(target=run_on, args=(loop_kind, partial(serve, gate)))
            thread.start()
            assert blocked.wait(20)
        began, seen = time.monotonic(), set()
        while time.monotonic() - began < 0.03:
            seen |= {each["task"] for each in aiostream.pending()}
        unblocks.set()
        thread.join(20)
        assert seen <= {"first", "second"}


begun = threading.Event()


def forward(stream: Stream, gate: Gate) -> None:
    begun.set()
    time.sleep(0.02)  # a thread may be here still when the task goes
    gate.hold(stream)


def halves(stream: Stream, gate: Gate) -> Iterator[None]:
    gate.hold(stream)
    begun.set()
    yield


CALLS: dict[str, Callable[[StreamPool[Any], Any, Gate], Coroutine[Any, Any, object]]] = {
    "Stream.run": lambda pool, fn, gate: pool.run(fn, gate),
    "Stream.run_in_thread": lambda pool, fn, gate: pool.run_in_thread(fn, gate),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("make", [forward, halves, partial(forward)])
async def test_request_that_timed_out_is_one_entry_with_its_task_and_line(
    call: str, make: Any, cuda_gate: Gate
) -> None:
    """The pool's stream that came back is not another one."""
    async with StreamPool(1, name="model", each=lambda stream: stream) as pool:
        begun.clear()
        async with anyio.create_task_group() as group:

            async def request() -> None:
                await CALLS[call](pool, make, cuda_gate)

            group.start_soon(request, name="request 7")
            await until(lambda: pool.lent == 1 and bool(aiostream.pending()))
            await until(begun.is_set)
            group.cancel_scope.cancel()
        [entry] = aiostream.pending()
        assert (entry["call"], entry["task"]) == (call, "request 7")
        assert entry["function"] == getattr(make, "func", make).__name__
        assert "request" in str(entry["where"])
        cuda_gate.open()
        assert await aiostream.drain(10)


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_request_in_a_task_of_wait_for_has_no_line(cuda_gate: Gate) -> None:
    """The task's first coroutine is the call itself. What runs the loop is not its line."""
    async with Stream() as stream:
        cuda_gate.hold(stream)
        task = asyncio.ensure_future(stream.run(int))
        await until(lambda: bool(aiostream.pending()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [entry] = aiostream.pending()
        assert (entry["function"], entry["where"]) == ("int", None)
        cuda_gate.open()


def test_entry_is_a_type_for_pydantic() -> None:
    """It refuses `typing.TypedDict` before Python 3.12."""
    has_new = sys.version_info >= (3, 12)
    assert (type(PendingWait).__module__ == "typing") == has_new
