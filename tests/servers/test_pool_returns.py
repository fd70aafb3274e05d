"""StreamPool: streams that come back busy, capturing or failed, and tasks that wait."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator, Generator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import internals
from aiostream import (
    CaptureMode,
    CaptureStatus,
    ContextFailedError,
    Event,
    Graph,
    PoolFullError,
    Stream,
    StreamCaptureError,
    StreamPool,
    drain,
    statistics,
    trace,
)
from captures import in_anothers_capture
from interrupts import at_line
from support import PLAIN_LOOPS, Gate, is_at_rest, recover, settle, spin
from waiters import until, use_once, waited_for


async def give_up_on_held_work(pool: StreamPool, gate: Gate) -> None:
    """A request that is cancelled while the GPU holds its work."""
    with anyio.CancelScope() as scope:
        async with pool.stream() as stream:
            future = stream.enqueue_async(gate.hold)
            scope.cancel()
            try:
                await future
            finally:
                future.cancel()


async def serve(pool: StreamPool, served: list[bool]) -> None:
    """A request that notes whether it got a free stream."""
    async with pool.stream() as stream:
        served.append(stream.query())


# ------------------------------------------------------------------------------------- busy streams


async def test_cancelled_requests_do_not_delay_the_next() -> None:
    """Each leaves its work on a stream. The next request gets a stream only after that work."""
    with Gate() as gate:
        async with StreamPool(2) as pool:
            served: list[bool] = []
            for _ in range(2):
                await give_up_on_held_work(pool, gate)
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(serve, pool, served)
                await until(lambda: pool.waiting == 8)
                assert not served
                gate.open()
            assert served == [True] * 8


@pytest.mark.simulator_only("it counts the driver's calls")
@pytest.mark.parametrize("in_halves", [False, True])
async def test_cancelled_run_records_one_event(in_halves: bool) -> None:
    """It keeps what `run` was given, closes a function at its `yield`, and frees the stream."""
    began = list[Stream]()

    def launch(stream: Stream) -> None:
        gate.hold(stream)
        began.append(stream)

    def halves(stream: Stream) -> Generator[None, None, None]:
        launch(stream)
        yield

    async with StreamPool(1, each=lambda stream: stream) as pool:
        before = internals.simulated_calls()["cuEventRecordWithFlags"]
        with Gate() as gate:
            async with anyio.create_task_group() as group:
                group.start_soon(pool.run, halves if in_halves else launch)
                await until(lambda: bool(began) and internals.pending_waits() > 0)
                group.cancel_scope.cancel()
            assert (pool.idle, pool.busy) == (0, 1)
        await until(lambda: pool.idle == 1)
        assert internals.simulated_calls()["cuEventRecordWithFlags"] == before + 1


@pytest.mark.cuda_leaks(1)
async def test_a_thread_that_is_refused_behind_its_work_gives_its_stream_back() -> None:
    def capture(stream: Stream) -> None:
        gate.hold(stream)
        stream.begin_capture(CaptureMode.RELAXED)

    async with StreamPool(1, each=lambda stream: stream) as pool:
        with Gate() as gate, pytest.raises(StreamCaptureError):
            await pool.run_in_thread(capture)
        await until(lambda: pool.idle == 1)
        await pool.run(lambda _: None)


def test_what_a_run_has_left_touches_no_pool_whose_loop_is_gone() -> None:
    """The thread of another loop may just be in the pool. That loop asks for the stream itself."""

    async def leave() -> None:
        with anyio.move_on_after(0.001):
            await pool.run(gate.hold)

    with Gate() as gate:
        pool = StreamPool(1, each=lambda stream: stream)
        asyncio.run(leave())
    assert settle(is_at_rest)
    assert (pool.idle, pool.busy) == (0, 1)
    asyncio.run(use_once(pool))
    assert (pool.idle, pool.busy) == (1, 0)
    pool.close()


@pytest.mark.parametrize("is_waited_for", [False, True])
async def test_cancelled_call_in_a_thread_keeps_its_stream_to_its_end(is_waited_for: bool) -> None:
    """To the end of its work on the GPU. Then the pool's numbers say that the stream is free, also
    if no task uses the pool meanwhile.
    """
    began, may_end, served = threading.Event(), threading.Event(), list[bool]()

    def hold(_: Stream, handle: int) -> None:
        began.set()
        may_end.wait(30)
        gate.hold(Stream.borrow(handle))  # by its handle, because the release closes the object

    async def call() -> None:
        async with pool.stream() as stream:
            await stream.enqueue_in_thread(hold, stream.handle)

    with Gate() as gate:
        async with StreamPool(1) as pool, anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await until(began.is_set)
                group.cancel_scope.cancel()
            if is_waited_for:
                tasks.start_soon(serve, pool, served)
            for step in (may_end.set, gate.open):
                await anyio.sleep(0.03)
                assert (pool.idle, pool.busy, pool.lent, served) == (0, 1, 0, [])
                step()
            await until(lambda: (pool.idle, pool.busy) == (1, 0))
            assert served == [True] * is_waited_for
            assert await drain(10)


@pytest.mark.all_loops
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of trio, about one that is collected
@pytest.mark.parametrize("end", ["closed", "collected"])
async def test_stream_of_a_generator_that_is_left_early_becomes_idle(end: str) -> None:
    """The pool's numbers say so, also if no task uses the pool meanwhile."""

    async def tokens() -> AsyncIterator[int]:
        async with pool.stream() as stream:
            while True:
                yield await stream.run(int)

    async with StreamPool(1) as pool:
        left = tokens()
        async for _ in left:
            break
        assert pool.lent == 1
        if end == "closed":
            await left.aclose()  # type: ignore[attr-defined]
        del left
        gc.collect()
        await until(lambda: pool.idle == 1)


@pytest.mark.all_loops
async def test_timers_of_a_pool_that_is_always_waited_for_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In each turn of the loop a task comes too late for the pool's timer, and before it fires."""
    count, most = 0, 20
    kind = type(internals.current_bridge())
    call_later = kind.call_later

    def counted(*args: Any) -> bool:
        nonlocal count
        count += 1
        return bool(call_later(*args))

    async def block() -> None:
        time.sleep(0.006)

    monkeypatch.setattr(kind, "call_later", counted)
    async with StreamPool(1) as pool, anyio.create_task_group() as tasks:
        held = await pool.acquire()
        for _ in range(most):
            tasks.start_soon(block)
            tasks.start_soon(use_once, pool)
            await anyio.lowlevel.checkpoint()
        pool.release(held)
    assert 1 <= count <= 2 * most


async def come_back_and_ask(line: int) -> int:
    """Cancels a call in a thread. At a line of the pool, a handler asks for a stream then.

    Returns:
        How many lines there were.
    """
    began, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        may_end.wait(30)

    def ask() -> None:
        with contextlib.suppress(PoolFullError):
            pool.release(pool.acquire_nowait())

    async with StreamPool(1) as pool:
        async with anyio.create_task_group() as group:
            group.start_soon(pool.run_in_thread, hold)
            await until(began.is_set)
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), at_line(line, ask, "pool_core.py") as lines:
                await until(lambda: pool.busy == 1)
        may_end.set()
        with anyio.fail_after(5):
            await pool.run(int)
    return len(lines)


async def test_handler_that_asks_for_a_stream_while_one_comes_back() -> None:
    line = 1
    while line <= await come_back_and_ask(line):
        line += 1


async def test_pool_is_collected_while_a_stream_is_busy() -> None:
    open_before = statistics().handles.open
    with Gate() as gate:
        pool = StreamPool(1)
        async with pool.stream() as stream:
            gate.hold(stream)
        del pool, stream
        assert not await drain(0)
        gate.open()
        assert await drain(20)
        gc.collect()
        await until(lambda: statistics().handles.open == open_before)


@pytest.mark.parametrize("end", ["in its loop", "without a loop"])
def test_loop_that_ends_leaves_its_busy_streams_to_the_next(end: str) -> None:
    with Gate() as gate:
        pool = StreamPool(1)

        async def take() -> Stream:
            stream = await pool.acquire()
            gate.hold(stream)
            if end == "in its loop":
                pool.release(stream)
            return stream

        stream = asyncio.run(take())
        if end == "without a loop":
            pool.release(stream)
        assert (pool.idle, pool.busy) == (0, 1)

        async def use() -> None:
            with pytest.raises(PoolFullError, match="1 still work"):
                pool.acquire_nowait()
            gate.open()
            async with pool.stream() as stream:
                assert stream.query()
            assert pool.idle == 1
            await pool.aclose()

        asyncio.run(use())
        assert settle(lambda: statistics().waits.pending == 0)


def test_stream_that_came_back_between_two_runs_of_its_loop_goes_to_a_waiting_task() -> None:
    with Gate() as gate:
        pool = StreamPool(1)
        loop, held, waiter = waited_for(pool)
        gate.hold(held)
        pool.release(held)
        gate.open()
        pool.release(loop.run_until_complete(asyncio.wait_for(waiter, 20)))
        loop.close()
        pool.close()


@pytest.mark.simulator_only("a GPU refuses nothing on command")
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
@pytest.mark.parametrize(("call", "times"), [("cuEventRecordWithFlags", 3), ("cuEventQuery", 1)])
async def test_waiting_task_gets_a_stream_after_a_refused_event(
    breakable: Any, call: str, times: int, loop_kind: str
) -> None:
    """No event says that the work is done, so the pool queries the stream again."""
    with Gate() as gate:
        async with StreamPool(1) as pool, anyio.create_task_group() as tasks:
            served: list[bool] = []
            async with pool.stream() as held:
                gate.hold(held)
                tasks.start_soon(serve, pool, served)
                await until(lambda: pool.waiting == 1)
                for nth in range(1, times + 1):
                    breakable.fail(call, 2, nth=nth)
            if call == "cuEventQuery":
                polls = statistics().waits.polls
                await until(lambda: statistics().waits.polls > polls + 3)
            assert not served
            gate.open()
            await until(lambda: bool(served))
            assert served == [True]
            breakable.clear_faults()


# --------------------------------------------------------------------------------------- full pools


async def test_numbers_while_a_stream_goes_from_one_task_to_the_next() -> None:
    """It counts in `pool.lent`, although the next task has not run yet, and so has no name here.
    And `acquire_nowait` does not overtake that task.
    """
    pool = StreamPool(2)
    first, second = pool.acquire_nowait(), pool.acquire_nowait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use_once, pool)
        await until(lambda: pool.waiting == 1)
        pool.release(first)
        assert (pool.idle, pool.busy, pool.lent, pool.waiting) == (0, 0, 2, 0)
        says = r"of 2 streams 2 are lent to '.+' and 1 more, 0 still work .+, and 0"
        with pytest.raises(PoolFullError, match=says):
            pool.acquire_nowait()
        assert " 2 lent to '" in repr(pool)
    pool.release(second)
    assert (pool.idle, pool.lent) == (2, 0)
    pool.close()


async def test_error_and_repr_name_the_tasks_that_hold_streams() -> None:
    pool = StreamPool(1, max_waiting=0)

    async def hold() -> None:
        async with pool.stream():
            with pytest.raises(PoolFullError) as caught:
                await pool.acquire()
            assert "to '" in str(caught.value)
            assert str(caught.value).split("to '")[1].split("'")[0] in repr(pool)
            assert "0 idle, 0 busy, 1 lent to '" in repr(pool)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold, name="a request")
    assert "1 idle, 0 busy, 0 lent, 0 waiting" in repr(pool)
    pool.close()


# ----------------------------------------------------------------------------------------- captures


@pytest.mark.parametrize("through", ["the taken stream", "another Stream of the handle"])
async def test_capture_that_a_user_has_left_ends(through: str) -> None:
    async with StreamPool(1) as pool:
        async with pool.stream() as stream:
            handle = stream.handle
            captured = stream if through == "the taken stream" else stream.to_borrowed()
            captured.begin_capture(CaptureMode.RELAXED)
            spin(stream, 0)
        async with pool.stream() as stream:
            assert stream.handle == handle
            assert stream.capture_status() is CaptureStatus.NONE
            spin(stream, 0)
            await stream.synchronize_async()


async def test_graph_into_which_a_user_has_captured_lives_on(other: Stream) -> None:
    async with StreamPool(1) as pool:
        graph = Graph()
        async with pool.stream() as stream:
            stream.begin_capture_to_graph(graph)
            spin(stream, 0)
        executable = graph.instantiate()
        await executable.launch_async(other)
        executable.close()
        graph.close()


@pytest.mark.parametrize("before", ["nothing", "a capture of its own"])
async def test_stream_in_anothers_capture_is_used_again_when_that_has_ended(before: str) -> None:
    """The capture is valid, and goes on."""
    async with StreamPool(1) as pool:
        stream = pool.acquire_nowait()
        if before != "nothing":
            stream.begin_capture(CaptureMode.RELAXED)
            stream.end_capture().close()
        with in_anothers_capture(stream):
            pool.release(stream)
            assert (pool.idle, pool.busy) == (0, 1)
            with pytest.raises(PoolFullError):
                pool.acquire_nowait()
        async with pool.stream() as stream:
            assert stream.capture_status() is CaptureStatus.NONE
            spin(stream, 0)
            await stream.synchronize_async()


async def test_task_waits_until_anothers_capture_has_ended(other: Stream, event: Event) -> None:
    async with StreamPool(1) as pool, anyio.create_task_group() as tasks:
        served: list[bool] = []
        other.begin_capture(CaptureMode.RELAXED)
        event.record(other)
        async with pool.stream() as stream:
            stream.wait_event(event)
            spin(stream, 0)
        tasks.start_soon(serve, pool, served)
        await until(lambda: pool.waiting == 1)
        assert not served
        with pytest.raises(StreamCaptureError):  # the fork was not joined
            other.end_capture()
        await until(lambda: bool(served))


# ----------------------------------------------------------------------------------------- failures


@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
async def test_pool_of_a_failed_context_ends_with_one_error(breakable: Any) -> None:
    pool = StreamPool(3)
    with Gate() as gate:
        async with pool.stream() as stream:
            gate.hold(stream)
        breakable.break_context(719)
        with pytest.raises(ContextFailedError) as caught:
            await pool.aclose()
        assert caught.value.__context__ is None
        assert pool.closed
    recover()


@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
async def test_work_that_fails_after_its_stream_came_back_is_noticed(breakable: Any) -> None:
    pool = StreamPool(1)
    with Gate() as gate:
        await give_up_on_held_work(pool, gate)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(ContextFailedError):
                    await pool.acquire()

            tasks.start_soon(wait)
            await until(lambda: pool.waiting == 1)
            breakable.break_context(700)
        # All that is pending has failed, before the context is well again.
        await until(lambda: statistics().points.pending == 0)
    recover()
    await pool.aclose()


@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
async def test_idle_pool_asks_again_when_a_call_has_failed(breakable: Any) -> None:
    """It is refused as long as its context has failed, and works when the context does."""
    async with StreamPool(1) as pool, Stream() as other:
        breakable.break_context(700)
        with pytest.raises(ContextFailedError):
            other.query()
        for _ in range(2):
            with pytest.raises(ContextFailedError):
                await pool.acquire()
        assert (pool.idle, pool.lent) == (1, 0)
        recover()
        await use_once(pool)


@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
async def test_close_after_a_lost_context_raises_nothing(breakable: Any) -> None:
    """`health` says it, and the end of a server, or of a fixture, has its own errors."""
    pool = StreamPool(2)
    taken = await pool.acquire()
    breakable.break_context(719)
    with pytest.raises(ContextFailedError):
        await taken
    pool.close()
    pool.release(taken)
    assert (pool.closed, taken.closed) == (True, True)
    recover()


async def test_end_of_a_pool_that_was_closed_records_no_await() -> None:
    with trace.record() as recording:
        async with StreamPool(2) as pool:
            await pool.run(lambda: None)
            await drain(5)
            pool.close()
    assert {each.outcome for each in recording.awaits} == {"done"}
