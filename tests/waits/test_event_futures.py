"""Futures that end by an event: `enqueue_async`, `launch_async` and `upload_async`, on every loop,
and tasks that await them while the loop polls their work.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import ContextFailedError, CudaError, OutOfMemoryError, Stream, statistics
from internals import ENQUEUE_STEPS
from interrupts import Striker
from support import (
    ASYNCIO_LOOPS,
    EVENT_STRATEGIES,
    PLAIN_LOOPS,
    STRATEGIES,
    Gate,
    Kept,
    held_stream,
    is_at_rest,
    recover,
    run_on,
    settle,
    spin,
)
from waiters import Waiter, turns, until

pytestmark = pytest.mark.usefixtures("default_prediction")


async def test_earlier_futures_of_the_stream_are_done_before() -> None:
    def numbered(_: Stream, number: int) -> int:
        return number

    async with Stream() as stream:
        with Gate() as gate:
            gate.hold(stream)
            earlier = [stream.enqueue_async(numbered, n) for n in range(3)]
        assert settle(stream.query)  # no turn of the loop is between these lines
        assert stream.enqueue_async(lambda _: 3).done()
        assert [future.done() for future in earlier] == [True] * 3
        assert [await future for future in earlier] == [0, 1, 2]


@pytest.mark.simulator_only("a GPU refuses nothing on command, and its context is not recovered")
@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
@pytest.mark.parametrize("failure", ["the record is refused", "the context is lost"])
async def test_objects_of_a_failed_future_are_leaked(breakable: Any, failure: str) -> None:
    kept = Kept()
    watched = weakref.ref(kept)
    with Gate() as gate:
        stream = held_stream(gate)  # what is over at once needs no event
        if failure == "the record is refused":
            breakable.fail("cuEventRecordWithFlags", 2)
            with pytest.raises(OutOfMemoryError):
                stream.enqueue_async(lambda _, thing: None, kept)
        else:
            future = stream.enqueue_async(lambda _, thing: None, kept)
            breakable.break_context(700)
            with anyio.fail_after(20), pytest.raises(ContextFailedError):
                await future
            del future
        del kept
        gc.collect()
        assert watched() is not None
    recover()
    assert await stream.enqueue_async(lambda _: 1) == 1
    stream.close()


@pytest.mark.simulator_only("a GPU refuses nothing on command")
async def test_event_that_cannot_be_made_is_refused_before_the_function(breakable: Any) -> None:
    stream = Stream()
    called: list[int] = []
    with Gate() as gate:
        gate.hold(stream)
        futures = []
        for _ in range(internals.native_counters()[internals.WAITS_MADE] + 1):  # each is taken
            breakable.fail("cuEventCreate", 2)
            try:
                futures.append(stream.enqueue_async(lambda _: called.append(1)))
            except CudaError:
                break
        else:
            pytest.fail("no event was made")
        breakable.clear_faults()
        assert len(called) == len(futures)
        gate.open()
        for future in futures:
            await future
    stream.close()


@pytest.mark.simulator_only("a GPU does not count its calls")
async def test_graph_launches_and_uploads_end_by_an_event() -> None:
    from aiostream import simulator

    async with Stream() as stream:
        with stream.capture_executable() as capture:
            spin(stream, 0.0005)
        before = simulator.calls("cuLaunchHostFunc")
        for _ in range(20):
            await capture.executable.launch_async(stream)
            await capture.executable.upload_async(stream)
        assert simulator.calls("cuLaunchHostFunc") == before
        capture.executable.close()


async def test_waiting_is_a_coroutine_function_that_holds_its_stream(cuda_gate: Gate) -> None:
    assert inspect.iscoroutinefunction(Stream.synchronize_async)
    stream = held_stream(cuda_gate)
    watched = weakref.ref(stream)
    coroutine = stream.synchronize_async()
    del stream
    gc.collect()
    assert watched() is not None
    cuda_gate.open()
    await coroutine
    del coroutine
    gc.collect()
    assert watched() is None


# --------------------------------------------------------------------------------------- interrupts


def strikes() -> Iterator[Striker]:
    """One after another, until there is no such place any more."""
    number, missed = 0, 0
    while missed < 3:
        number += 1
        assert number < 500
        striker = Striker(number, codes=ENQUEUE_STEPS)
        yield striker
        missed = 0 if striker.has_struck else missed + 1


@pytest.mark.parametrize("raises", [False, True])
def test_interrupt_of_an_enqueue_loses_nothing(raises: bool) -> None:
    """What is enqueued later ends when the GPU has passed it, not with the interrupted future."""
    before = aiostream.Context.get_current()
    for striker in strikes():
        loop, stream = asyncio.new_event_loop(), Stream(wait="event")
        kept = [Kept()]
        watched = weakref.ref(kept[0])

        def work(own: Stream, thing: Kept) -> None:
            if raises:
                raise ValueError

        async def interrupted(stream: Stream, kept: list[Kept], striker: Striker) -> None:
            with striker:
                stream.enqueue_async(work, kept.pop())

        async def later(stream: Stream, first: Gate, second: Gate) -> None:
            second.hold(stream)
            future = stream.enqueue_async(lambda _: 7)
            first.open()
            await anyio.sleep(0.003)
            assert not future.done()
            second.open()
            with anyio.fail_after(5):
                assert await future == 7

        with Gate() as first, Gate() as second:
            first.hold(stream)
            with contextlib.suppress(KeyboardInterrupt, ValueError):
                loop.run_until_complete(interrupted(stream, kept, striker))
            assert aiostream.Context.get_current() == before
            kept.clear()  # the strike may have come before the call
            gc.collect()
            loop.run_until_complete(later(stream, first, second))
        gc.collect()
        assert settle(lambda watched=watched: watched() is None)
        loop.close()
        stream.close()
        assert settle(is_at_rest), statistics()


def test_interrupt_in_the_loop_s_call_soon_leaves_the_rest_to_the_next_drain() -> None:
    """asyncio calls it for a callback of a future, which the native drain settles."""

    class Loop(asyncio.SelectorEventLoop):
        strikes = 0

        def call_soon(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
            if self.strikes:
                self.strikes -= 1
                raise KeyboardInterrupt
            return super().call_soon(*args, **options)

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        with Gate() as gate:
            stream = held_stream(gate)
            futures = [stream.completion_future() for _ in range(3)]
            futures.append(stream.enqueue_async(lambda _: None))
            for future in futures:
                future.add_done_callback(lambda _: None)
            gate.open()
            stream.synchronize()
        drain = internals.current_bridge().drain
        for _ in range(2):
            loop.strikes = 1
            with pytest.raises(KeyboardInterrupt):
                drain()
        drain()
        assert [future.done() for future in futures[:3]] == [True] * 3
        await futures[3]
        stream.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def test_error_in_a_finalizer_of_what_was_kept_harms_no_other(unraisable: list[Any]) -> None:
    """The drain drops the objects of a future that is done. Python reports what a finalizer raises
    and goes on.
    """

    class Striking:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    async def main() -> None:
        stream = Stream(wait="event")
        futures = [stream.enqueue_async(lambda _, thing: None, Striking()) for _ in range(3)]
        for future in futures:
            await future
        stream.close()

    asyncio.run(main())
    gc.collect()
    assert [kind for kind, *_ in unraisable] == [KeyboardInterrupt] * 3


# ---------------------------------------- futures that tasks await, while the loop polls their work


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
async def test_cancelled_future_ends_all_its_tasks(polled_stream: Stream, what: str) -> None:
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


@pytest.mark.parametrize("loop_kind", ["trio"])
async def test_cancelled_task_leaves_its_future_on_trio(
    polled_stream: Stream, cuda_gate: Gate
) -> None:
    cuda_gate.hold(polled_stream)
    future = polled_stream.enqueue_async(lambda _: 5)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_wait, future)
        await turns()
        tasks.cancel_scope.cancel()
    assert not future.cancelled()
    cuda_gate.open()
    with anyio.fail_after(20):
        assert await future == 5


async def _wait(future: Any) -> Any:
    return await future


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_asyncio_takes_it_for_its_own(strategy: Any) -> None:
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
async def test_result_that_somebody_else_sets_wakes_the_task() -> None:
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
async def test_future_of_another_loop_is_refused(polled_stream: Stream, cuda_gate: Gate) -> None:
    cuda_gate.hold(polled_stream)
    future = polled_stream.enqueue_async(lambda _: 1)
    with pytest.raises(RuntimeError, match="different loop"):
        await anyio.to_thread.run_sync(run_on, "asyncio", _wait, future)
    cuda_gate.open()
    await until(future.done)
    assert future.result() == 1


# ------------------------------------------------------------------------------ what a review found


def test_interrupt_before_a_loop_is_closed_leaves_its_queue_closed(
    monkeypatch: pytest.MonkeyPatch,
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
        with contextlib.suppress(KeyboardInterrupt):
            loop.run_until_complete(main())
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
