"""Waiting for a stream: completion futures, synchronize_async, enqueue_async; once, in the own
loop, and cancelled at will.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys
import threading
import weakref
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import CompletionFuture, Stream, StreamClosedError
from support import EVENT_STRATEGIES, FULL, Gate, held_stream, spin

pytestmark = pytest.mark.all_loops

NO_LOOP = "no running event loop"


class Buffer:
    """Something that must not die while the GPU uses it."""


async def test_synchronize_async_waits_for_the_work() -> None:
    with Gate() as gate:
        async with held_stream(gate) as stream:
            event = aiostream.Event()
            event.record(stream)
            woken = []

            async def wait() -> None:
                await stream.synchronize_async()
                woken.append(event.query())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                assert woken == []
                gate.open()
            assert woken == [True]
            event.close()


@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
async def test_ready_waits_of_one_task_starve_no_other(strategy: Any) -> None:
    """asyncio runs a task until it yields: without fair turns the first task does all its waits
    before another one begins.
    """
    each, tasks = 5_000 if FULL else 800, 8
    done = [0] * tasks
    seen: list[list[int]] = []  # how far all were when one was at its end

    async def work(number: int) -> None:
        async with Stream(wait=strategy) as stream:
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


async def test_a_ready_stream_is_awaited_at_once() -> None:
    async with Stream() as stream:
        for _ in range(3):
            await stream.synchronize_async()


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
            assert early.done()
            assert not late.done()
            second.open()
            await late
            assert await early is None, "a future can be awaited again"
            assert late.result() is None
            assert late.exception() is None
            assert not late.cancelled()


async def test_several_tasks_await_one_future() -> None:
    with Gate() as gate:
        async with held_stream(gate) as stream:
            future = stream.completion_future()
            woken = []

            async def wait(number: int) -> None:
                await future
                woken.append(number)

            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(wait, number)
                await anyio.wait_all_tasks_blocked()
                assert woken == []
                gate.open()
            assert sorted(woken) == [0, 1, 2, 3, 4]


async def test_callbacks_run_in_the_loop_s_thread() -> None:
    called = anyio.Event()
    threads: list[int] = []

    def done(future: Any) -> None:
        threads.append(threading.get_ident())
        assert future.result() is None
        called.set()

    with Gate() as gate:
        async with held_stream(gate) as stream:
            future = stream.completion_future()
            future.add_done_callback(done)
            gate.open()
            await called.wait()
            called = anyio.Event()
            future.add_done_callback(done)  # also when it is done already
            await called.wait()
    assert threads == [threading.get_ident()] * 2


async def test_many_streams_are_awaited_at_once() -> None:
    finished = []

    async def one(number: int) -> None:
        async with Stream() as stream:
            spin(stream, 0.001)
            await stream.synchronize_async()
            finished.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(one, number)
    assert sorted(finished) == list(range(20))


# ------------------------------------------------------------------------------------ enqueue_async


async def test_enqueue_async_calls_now_and_settles_with_the_result() -> None:
    with Gate() as gate:
        async with held_stream(gate) as stream:
            calls = []

            def work(on: Stream, number: int, *, name: str) -> str:
                calls.append((on, number, name))
                return "result"

            future = stream.enqueue_async(work, 1, name="n")
            assert calls == [(stream, 1, "n")], "it is called before enqueue_async returns"
            assert not future.done()
            gate.open()
            assert await future == "result"


async def test_what_was_enqueued_lives_until_the_gpu_has_passed() -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        argument = Buffer()
        alive = [weakref.ref(argument)]

        def work(on: Stream, given: Buffer) -> Buffer:
            result = Buffer()
            alive.append(weakref.ref(result))
            return result

        future = stream.enqueue_async(work, argument)
        future.cancel()
        stream.close()
        del argument, future, stream
        gc.collect()
        assert all(reference() is not None for reference in alive)
        gate.open()
        while any(reference() is not None for reference in alive):
            await anyio.sleep(0.001)
            gc.collect()


async def test_arguments_of_a_function_that_raised_are_kept_likewise() -> None:
    def fails(on: Stream, given: Buffer) -> None:
        raise LookupError("after it has launched something")

    with Gate() as gate:
        async with held_stream(gate) as stream:
            argument = Buffer()
            alive = weakref.ref(argument)
            with pytest.raises(LookupError):
                stream.enqueue_async(fails, argument)
            del argument
            gc.collect()
            assert alive() is not None
            gate.open()
            while alive() is not None:
                await anyio.sleep(0.001)


async def test_a_function_may_close_its_own_stream() -> None:
    stream = Stream()
    future = stream.enqueue_async(lambda on: on.close())
    assert stream.closed
    await future


async def test_enqueue_async_refuses_before_it_calls() -> None:
    called: list[Stream] = []
    stream = Stream()
    with pytest.raises(TypeError, match="callable"):
        stream.enqueue_async(3)  # type: ignore[arg-type]

    async def coroutine(on: Stream) -> None: ...

    class Asynchronous:
        async def __call__(self, on: Stream) -> None: ...

        async def method(self, on: Stream) -> None: ...

    refused: list[Any] = [
        coroutine,
        functools.partial(coroutine),
        Asynchronous(),
        Asynchronous().method,
    ]
    if sys.version_info >= (3, 12):
        refused.append(inspect.markcoroutinefunction(lambda on: coroutine(on)))
    for each in refused:
        with pytest.raises(TypeError, match="cannot await"):
            stream.enqueue_async(each)
    stream.close()
    with pytest.raises(StreamClosedError):
        stream.enqueue_async(called.append)
    assert called == []


def test_without_a_loop_the_waits_are_refused() -> None:
    called: list[Stream] = []
    stream = Stream()
    for wait in (
        stream.completion_future,
        stream.checked_completion_future,
        lambda: stream.enqueue_async(called.append),
        lambda: stream.synchronize_async().send(None),
    ):
        with pytest.raises(RuntimeError, match=NO_LOOP):
            wait()
    assert called == []
    stream.close()


# ------------------------------------------------------------------------------------- cancellation


async def test_a_timeout_ends_the_wait_at_once_and_not_the_work() -> None:
    with Gate() as gate:
        async with held_stream(gate) as stream:
            before = aiostream.statistics()
            async with anyio.create_task_group() as tasks:
                with anyio.move_on_after(20) as scope:

                    async def run_out() -> None:  # when the task polls no more
                        while aiostream.statistics().points.pending == before.points.pending:
                            await anyio.sleep(0.001)
                        scope.deadline = anyio.current_time()

                    tasks.start_soon(run_out)
                    await stream.synchronize_async()
            assert scope.cancelled_caught
            assert not stream.query()
            now = aiostream.statistics()
            assert now.points.pending == before.points.pending + 1, (
                "the point stays until the GPU has passed it"
            )
            gate.open()
            await stream.synchronize_async()


async def test_a_cancelled_task_leaves_the_stream_usable() -> None:
    with Gate() as gate:
        async with held_stream(gate) as stream:
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(stream.synchronize_async)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            gate.open()
            await stream.synchronize_async()


async def test_cancelling_one_wait_leaves_the_others() -> None:
    with Gate() as gate:
        async with held_stream(gate) as stream:
            futures = [stream.completion_future() for _ in range(3)]
            assert futures[1].cancel()
            assert futures[1].cancelled()
            assert not futures[1].cancel(), "it was done already"
            gate.open()
            await futures[0]
            await futures[2]
            assert futures[0].done()


async def test_a_cancelled_future_raises_when_awaited(loop_kind: str) -> None:
    async with Stream() as stream:
        future = stream.completion_future()
        future.cancel()
        if loop_kind == "trio":
            import concurrent.futures

            with pytest.raises(concurrent.futures.CancelledError):
                await future
        else:
            with pytest.raises(asyncio.CancelledError):
                await future


async def test_a_future_that_nobody_holds_still_settles() -> None:
    """Only the library and the GPU know of it; the task that awaits it must not be garbage."""
    with Gate() as gate:
        async with held_stream(gate) as stream:
            woken = anyio.Event()

            async def wait() -> None:
                await stream.completion_future()
                woken.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                gc.collect()
                gate.open()
                await woken.wait()


# ------------------------------------------------------------------- trio's and asyncio's own rules


def test_every_await_is_a_checkpoint_on_trio() -> None:
    import trio
    import trio.testing

    async def main() -> None:
        stream = Stream()
        event = aiostream.Event()
        future = stream.completion_future()
        await future
        with trio.testing.assert_checkpoints():
            await future
        with trio.testing.assert_checkpoints():
            await stream.synchronize_async()
        with trio.testing.assert_checkpoints():
            await event.synchronize_async()
        with trio.testing.assert_checkpoints():
            async with stream:
                pass
        with trio.testing.assert_checkpoints():
            await stream.aclose()
        event.close()
        with trio.CancelScope() as scope:
            scope.cancel()
            await future
        assert scope.cancelled_caught, (
            "a cancelled wait raises at once, also when the future is done"
        )

    trio.run(main)


def test_trio_future_s_states() -> None:
    import concurrent.futures

    import trio

    async def main() -> None:
        with Gate() as gate:
            async with held_stream(gate) as stream:
                future = stream.completion_future()
                for read in (future.result, future.exception):
                    with pytest.raises(concurrent.futures.InvalidStateError):
                        read()
                gate.open()
                await future

    trio.run(main)


def test_asyncio_s_own_tools_work_on_the_futures() -> None:
    async def main() -> None:
        with Gate() as gate:
            async with held_stream(gate) as held, Stream() as free:
                slow, quick = held.completion_future(), free.completion_future()
                # The type checker must take this, too.
                done, pending = await asyncio.wait(
                    [slow, quick], return_when=asyncio.FIRST_COMPLETED
                )
                assert (done, pending) == ({quick}, {slow})
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await asyncio.shield(slow)
                assert not slow.cancelled()
                gate.open()
                assert list(await asyncio.gather(slow, quick)) == [None, None]
                async with asyncio.timeout(10):
                    await held.synchronize_async()

    asyncio.run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_an_eager_task_starts_its_wait_before_it_yields() -> None:
    async def main() -> None:
        eager: Any = getattr(asyncio, "eager_task_factory", None)
        asyncio.get_running_loop().set_task_factory(eager)
        with Gate() as gate:
            async with held_stream(
                gate, wait="hostfunc"
            ) as stream:  # the one strategy that arms at once
                before = aiostream.statistics().points.armed
                task = asyncio.ensure_future(stream.synchronize_async())
                assert aiostream.statistics().points.armed == before + 1
                gate.open()
                await task

    asyncio.run(main())
