"""Waiting for a stream: completion futures, synchronize_async, enqueue_async; once, and in the own
loop.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import CompletionFuture, Context, Stream
from support import FULL, STRATEGIES, Gate, Kept, held_stream
from waiters import turns, until

pytestmark = pytest.mark.all_loops


async def test_ready_waits_of_one_task_starve_no_other() -> None:
    """asyncio runs a task until it yields: without fair turns the first task does all its waits
    before another one begins.
    """
    each, tasks = 5_000 if FULL else 800, 8
    done = [0] * tasks
    seen: list[list[int]] = []  # how far all were when one was at its end

    async def work(number: int) -> None:
        async with Stream() as stream:
            await stream.synchronize_async()
            for _ in range(each):
                await stream.synchronize_async()
                done[number] += 1
            seen.append(list(done))

    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(work, number)
    assert done == [each] * tasks
    assert min(seen[0]) > each // 20, seen[0]


@pytest.mark.parametrize("method", ["completion_future", "checked_completion_future"])
async def test_a_future_marks_one_point(method: str) -> None:
    with Gate() as first, Gate() as second:
        async with held_stream(first) as stream:
            early: CompletionFuture[None] = getattr(stream, method)()
            second.hold(stream)
            late: CompletionFuture[None] = getattr(stream, method)()
            assert isinstance(early, CompletionFuture)
            assert not early.done()
            first.open()
            assert await early is None
            assert (early.done(), late.done()) == (True, False)
            second.open()
            await late
            assert await early is None, "a future can be awaited again"
            assert (late.result(), late.exception(), late.cancelled()) == (None, None, False)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_several_tasks_await_one_future(strategy: Any, cuda_gate: Gate) -> None:
    async with held_stream(cuda_gate, wait=strategy) as stream:
        future = stream.enqueue_async(lambda _: 7)
        results = []

        async def wait() -> None:
            results.append(await future)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(wait)
            await turns()
            assert results == []
            cuda_gate.open()
        assert results == [7] * 5


# ------------------------------------------------------------------------------------ enqueue_async


async def test_enqueue_async_calls_now_and_settles_with_the_result(cuda_gate: Gate) -> None:
    before = Context.get_current()
    async with held_stream(cuda_gate) as stream:
        calls = []

        def work(on: Stream, number: int, *, name: str) -> str:
            calls.append((on, number, name))
            assert Context.get_current() == stream.context
            return "result"

        future = stream.enqueue_async(work, 1, name="n")
        assert calls == [(stream, 1, "n")], "it is called before enqueue_async returns"
        assert Context.get_current() == before
        assert not future.done()
        cuda_gate.open()
        assert await future == "result"


async def test_what_was_enqueued_lives_until_the_gpu_has_passed(cuda_gate: Gate) -> None:
    stream = held_stream(cuda_gate)
    argument = Kept()
    alive = [weakref.ref(argument)]

    def work(on: Stream, given: Kept) -> Kept:
        result = Kept()
        alive.append(weakref.ref(result))
        return result

    future = stream.enqueue_async(work, argument)
    future.cancel()
    stream.close()
    del argument, future, stream
    gc.collect()
    assert all(reference() is not None for reference in alive)
    cuda_gate.open()
    await until(lambda: gc.collect() >= 0 and not any(reference() for reference in alive))


@pytest.mark.parametrize("strategy", ["auto", "hostfunc"])
@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
async def test_arguments_of_a_function_that_raised_are_kept_likewise(
    strategy: Any, error: type[BaseException]
) -> None:
    """It may have enqueued work, and the error comes in the middle of the native step."""

    def fails(on: Stream, given: Kept) -> None:
        assert Context.get_current() == on.context
        raise error

    before = Context.get_current()
    with Gate() as gate:
        async with held_stream(gate, wait=strategy) as stream:
            arguments = [Kept()]
            alive = weakref.ref(arguments[0])
            with pytest.raises(error):
                stream.enqueue_async(fails, arguments.pop())
            assert Context.get_current() == before
            gc.collect()
            assert alive() is not None
            gate.open()
            await until(lambda: alive() is None)
            assert await stream.enqueue_async(lambda _: 5) == 5


async def test_a_function_may_close_its_own_stream() -> None:
    stream = Stream()
    future = stream.enqueue_async(lambda on: on.close())
    assert stream.closed
    await future


def test_without_a_loop_the_waits_are_refused() -> None:
    called: list[Stream] = []
    stream = Stream()
    with stream.capture_executable() as capture:
        pass
    waits: list[Callable[[], Any]] = [
        stream.completion_future,
        stream.checked_completion_future,
        lambda: stream.enqueue_async(called.append),
        lambda: capture.executable.launch_async(stream),
    ]
    coroutines: list[Any] = [
        stream.synchronize_async(),
        stream.enqueue_in_thread(called.append),
        capture.executable.launch_and_wait(stream),
        aiostream.ready(lambda: False),
    ]
    waits += [partial(coroutine.send, None) for coroutine in coroutines]
    for wait in waits:
        with pytest.raises(RuntimeError, match="no running event loop"):
            wait()
    assert called == []
    capture.executable.close()
    stream.close()


async def test_a_future_without_a_reference_still_settles(cuda_gate: Gate) -> None:
    """Only the library and the GPU know of it; the task that awaits it must not be garbage."""
    async with held_stream(cuda_gate) as stream:
        woken = anyio.Event()

        async def wait() -> None:
            await stream.completion_future()
            woken.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            gc.collect()
            cuda_gate.open()
            await woken.wait()


# ------------------------------------------------------------------- trio's and asyncio's own rules


@pytest.mark.parametrize("loop_kind", ["trio"])
async def test_every_await_is_a_checkpoint_on_trio() -> None:
    import trio
    import trio.testing

    stream = Stream()
    future = stream.completion_future()
    await future
    with trio.testing.assert_checkpoints():
        await future
    with trio.testing.assert_checkpoints():
        async with stream:
            pass
    with trio.testing.assert_checkpoints():
        await stream.aclose()
    with trio.CancelScope() as scope:
        scope.cancel()
        await future
    assert scope.cancelled_caught, "a cancelled wait raises at once, also when the future is done"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("loop_kind", ["asyncio-eager"])
async def test_an_eager_task_starts_its_wait_before_it_yields(cuda_gate: Gate) -> None:
    # The one strategy that arms at once.
    async with held_stream(cuda_gate, wait="hostfunc") as stream:
        before = aiostream.statistics().points.armed
        task = asyncio.ensure_future(stream.synchronize_async())
        assert aiostream.statistics().points.armed == before + 1
        cuda_gate.open()
        await task
