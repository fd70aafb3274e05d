"""Futures of `enqueue_async` that tasks await, while the loop polls their work."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

import internals
from aiostream import CudaError, Stream, statistics
from support import (
    ASYNCIO_LOOPS,
    EVENT_STRATEGIES,
    PLAIN_LOOPS,
    STRATEGIES,
    Gate,
    Kept,
    run_on,
    settle,
)
from waiters import Waiter, turns, until

pytestmark = pytest.mark.usefixtures("default_prediction")


@pytest.fixture
def polled_stream() -> Iterator[Stream]:
    """A stream whose waits are polled from their beginning to their end."""
    stream = Stream(wait="spin")
    yield stream
    stream.close()


@pytest.mark.cuda_leaks(2)
@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
@pytest.mark.parametrize("loop", PLAIN_LOOPS)
def test_a_failed_await_keeps_nothing(breakable: Any, loop: str, strategy: Any) -> None:
    """The future has the error, whose traceback has the frames. They must not have the future."""
    stream = Stream(wait=strategy)

    async def request(is_late: bool) -> weakref.ref[Kept]:
        buffer = Kept()
        with Gate() as gate:
            gate.hold(stream)
            breakable.fail("cuEventQuery", 2)  # the driver refuses the poll of one event
            futures = [stream.enqueue_async(lambda _: None)]
            if is_late:
                await until(futures[0].done)
            with pytest.raises(CudaError):
                await futures.pop()
        return weakref.ref(buffer)

    async def main() -> None:
        for is_late in (False, True):
            kept = await request(is_late)
            await turns()
            assert kept() is None

    gc.disable()
    try:
        run_on(loop, main)
    finally:
        gc.enable()
        stream.shutdown()


async def test_cancelled_future_ends_its_task(polled_stream: Stream, loop_kind: str) -> None:
    things = [Kept()]
    watched = weakref.ref(things[0])
    outcome: list[BaseException] = []

    async def wait() -> None:
        try:
            await future
        except BaseException as error:
            outcome.append(error)

    with Gate() as gate:
        gate.hold(polled_stream)
        future = polled_stream.enqueue_async(lambda _, __: None, things.pop())
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await turns()
                assert future.cancel()
                assert not future.cancel()
        assert future.cancelled()
        assert "Cancelled" in type(outcome[0]).__name__
        gc.collect()
        assert watched() is not None, "the GPU has not passed"
    await until(lambda: watched() is None)


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
@pytest.mark.parametrize("what", ["the future", "another task"])
async def test_cancelled_future_ends_all_its_tasks(
    polled_stream: Stream, loop_kind: str, what: str
) -> None:
    """asyncio cancels the future of a cancelled task, so all tasks that await it end."""
    with Gate() as gate:
        gate.hold(polled_stream)
        future = polled_stream.enqueue_async(lambda _: None)
        first = asyncio.create_task(_wait(future))
        await turns()
        second = asyncio.create_task(_wait(future))
        await turns(2)
        assert (future if what == "the future" else second).cancel()
        done, _ = await asyncio.wait([first, second], timeout=20)
        assert done == {first, second}, "the GPU has not passed, and the tasks were cancelled"
        assert [first.cancelled(), second.cancelled()] == [True, True]
    await until(lambda: statistics().points.pending == 0)


def test_cancelled_task_leaves_its_future_on_trio(polled_stream: Stream) -> None:
    async def main() -> None:
        with Gate() as gate:
            gate.hold(polled_stream)
            future = polled_stream.enqueue_async(lambda _: 5)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_wait, future)
                await turns()
                tasks.cancel_scope.cancel()
            assert not future.cancelled()
            gate.open()
            with anyio.fail_after(20):
                assert await future == 5

    run_on("trio", main)


async def _wait(future: Any) -> Any:
    return await future


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_asyncio_takes_it_for_its_own(loop_kind: str, strategy: Any) -> None:
    stream = Stream(wait=strategy)

    def begin(result: int) -> Any:
        return stream.enqueue_async(lambda _: result)

    future = begin(1)
    assert isinstance(future, asyncio.Future)
    assert future.get_loop() is asyncio.get_running_loop()
    assert asyncio.ensure_future(future) is future
    assert await asyncio.wait_for(future, 20) == 1
    assert await asyncio.shield(begin(2)) == 2
    results: list[int] = await asyncio.gather(begin(3), begin(4), _wait(begin(5)))
    assert results == [3, 4, 5]
    done, _ = await asyncio.wait([begin(6), begin(7)], timeout=20)
    assert sorted(each.result() for each in done) == [6, 7]
    with Gate() as gate:
        gate.hold(stream)
        future = begin(8)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), 0.01)
        assert not future.cancelled()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)
        assert future.cancelled()
        called: list[Any] = []
        future = begin(9)
        future.add_done_callback(called.append)
        task = asyncio.ensure_future(_wait(future))
        await turns()
        gate.open()
        assert await task == 9
        await turns(1)
        assert called == [future]
    stream.close()


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
async def test_result_that_somebody_else_sets_wakes_the_task(loop_kind: str) -> None:
    """asyncio's futures have public setters."""
    waiter = Waiter("by timer", "future")
    with Gate() as gate:
        await waiter.hold(gate)
        for set_by in ("set_result", "set_exception"):
            future: Any = waiter.stream.enqueue_async(lambda _: None)
            task = asyncio.ensure_future(_wait(future))
            await turns()
            getattr(future, set_by)(ValueError("theirs"))
            with anyio.fail_after(20):
                if set_by == "set_result":
                    assert str(await task) == "theirs"
                else:
                    with pytest.raises(ValueError, match="theirs"):
                        await task
    await waiter.stream.synchronize_async()
    waiter.close()


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
async def test_future_of_another_loop_is_refused(polled_stream: Stream, loop_kind: str) -> None:
    with Gate() as gate:
        gate.hold(polled_stream)
        future = polled_stream.enqueue_async(lambda _: 1)
        with pytest.raises(RuntimeError, match="different loop"):
            await anyio.to_thread.run_sync(run_on, "asyncio", _wait, future)
        gate.open()
        with anyio.fail_after(20):
            await until(future.done)
        assert future.result() == 1


# ------------------------------------------------------------------------------ what a review found


def test_interrupt_before_a_loop_is_closed_leaves_its_queue_closed(
    monkeypatch: pytest.MonkeyPatch, default_prediction: None
) -> None:
    """What the loop was about to poll does not keep the rest from being released."""
    loop = asyncio.new_event_loop()
    things = [Kept(), Kept()]
    watched = [weakref.ref(thing) for thing in things]
    waiter, other = Waiter("by timer", "future"), Stream(wait="event")
    tasks: list[Any] = []

    async def main() -> None:
        waiter_gate.hold(waiter.stream)
        gate.hold(other)
        tasks.append(other.enqueue_async(lambda _, __: None, things.pop()))
        future: Any = waiter.stream.enqueue_async(lambda _, __: None, things.pop())
        task: Any = asyncio.ensure_future(_wait(future))
        task._log_destroy_pending = False  # asyncio's own complaint, which is right
        tasks.append(task)
        await asyncio.sleep(0.1)

    def strike(orphaned: bool, drain: Callable[[], None]) -> None:
        if not orphaned:
            raise KeyboardInterrupt
        drain()

    with Gate() as gate, Gate() as waiter_gate:
        loop.run_until_complete(waiter.prepare())
        internals.intercept_drain(monkeypatch, strike)
        try:
            loop.run_until_complete(main())
        except KeyboardInterrupt:
            pass
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            tasks.append(task)
        loop.close()
        monkeypatch.undo()
        gc.collect()
    assert settle(lambda: [reference() for reference in watched] == [None, None])
    tasks.clear()
    waiter.close()
    other.close()


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
def test_exception_that_is_kept_does_not_keep_a_dead_loop_s_futures(loop_kind: str) -> None:
    stream = Stream(wait="event")
    things = [Kept()]  # no frame of the traceback refers to it
    watched = weakref.ref(things[0])
    kept: list[BaseException] = []

    def fail(_: Stream) -> None:
        raise ValueError("kept")

    async def main() -> None:
        gate.hold(stream)
        stream.enqueue_async(lambda _, __: None, things.pop())
        try:
            stream.enqueue_async(fail)
        except ValueError as error:
            kept.append(error)

    with Gate() as gate:
        run_on(loop_kind, main)
        gc.collect()
    assert settle(lambda: watched() is None)
    assert str(kept[0]) == "kept"
    stream.close()
