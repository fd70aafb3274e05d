"""wait, as_completed and drain."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import itertools
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

import aiostream
import internals
from aiostream import CudaError, Stream, statistics
from installed import installed
from support import BACKENDS, PLAIN_LOOPS, Gate, held_stream, run_on, settle
from waiters import until


async def test_waiting_for_all() -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as stream:
        futures = [stream.completion_future() for _ in range(5)]
        assert await aiostream.wait(futures, timeout=0) == (set(), set(futures))
        gate.open()
        assert await aiostream.wait(futures) == (set(futures), set())
        assert await aiostream.wait(iter(futures)) == (set(futures), set())


async def test_waiting_for_the_first(stream: Stream) -> None:
    """A future that is cancelled is done."""
    with Gate() as gate, contextlib.closing(held_stream(gate)) as held:
        never, soon = held.completion_future(), stream.completion_future()
        cancelled = held.completion_future()
        for _ in range(3):
            done, pending = await aiostream.wait([never, soon], return_when="FIRST_COMPLETED")
            assert (done, pending) == ({soon}, {never})
        cancelled.cancel()
        done, pending = await aiostream.wait([never, cancelled], return_when="FIRST_COMPLETED")
        assert (done, pending) == ({cancelled}, {never})
        gate.open()
        both = {never, cancelled}
        assert await aiostream.wait(both, return_when="FIRST_EXCEPTION") == (both, set())


@pytest.mark.simulator_only("lets a future fail on its own")
async def test_waiting_for_the_first_exception(stream: Stream) -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as held:
        never, fine = held.completion_future(), stream.completion_future()
        failing = held.enqueue_async(lambda _: None)
        # A future of this loop that fails, without a lost context.
        internals.fail_future(failing, CudaError(1, "CUDA_ERROR_INVALID_VALUE", "test"))
        done, pending = await aiostream.wait([never, fine, failing], return_when="FIRST_EXCEPTION")
        assert failing in done
        assert never in pending
        await fine
        found = await aiostream.wait([never, fine], timeout=0.01, return_when="FIRST_EXCEPTION")
        assert found == ({fine}, {never})
        async for each in aiostream.as_completed([failing]):
            with pytest.raises(CudaError, match="test reported"):
                each.result()
        gate.open()
        await never


async def test_a_cancelled_wait_leaves_the_futures() -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as stream:
        future = stream.completion_future()
        with anyio.move_on_after(0.01) as scope:
            await aiostream.wait([future])
        assert scope.cancelled_caught
        with anyio.CancelScope() as scope:
            scope.cancel()
            await aiostream.wait([future], timeout=5)
        assert scope.cancelled_caught
        assert not future.done()
        gate.open()
        await future


class Counted:
    """A future of no loop, which counts how often `wait` asks it."""

    asked = 0

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.ended = False

    def end(self) -> None:
        self.ended = True
        for callback in self.callbacks[:]:
            callback(self)

    def done(self) -> bool:
        Counted.asked += 1
        return self.ended

    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def remove_done_callback(self, callback: Any) -> None:
        self.callbacks.remove(callback)


# ------------------------------------------------------------------------------------- as_completed


async def test_futures_come_in_the_order_in_which_they_end() -> None:
    gates = [Gate() for _ in range(3)]
    streams = [held_stream(gate) for gate in gates]
    futures = [stream.completion_future() for stream in streams]
    ends = [2, 0, 1]
    gates[ends[0]].open()
    seen = []
    async for future in aiostream.as_completed(futures):
        seen.append(futures.index(future))
        assert future.done()
        if len(seen) < 3:
            gates[ends[len(seen)]].open()
    assert seen == ends
    for stream in streams:
        stream.close()


async def test_futures_that_are_done_come_at_once_and_each_once(stream: Stream) -> None:
    done = [stream.completion_future() for _ in range(3)]
    await aiostream.wait(done)
    done[1] = stream.completion_future()
    done[1].cancel()
    given = [each async for each in aiostream.as_completed([*done, *done], timeout=0)]
    assert given == done, "in the order in which they were passed"
    assert given[1].cancelled()
    assert [each async for each in aiostream.as_completed(list[Any]())] == []


async def test_timeout_ends_the_iteration_and_leaves_the_futures(stream: Stream) -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as held:
        never, soon = held.completion_future(), stream.completion_future()
        await soon
        given: list[Any] = []
        with pytest.raises(TimeoutError):
            async for future in aiostream.as_completed([never, soon], timeout=0.01):
                given.append(future)
        assert given == [soon]
        assert not never.done()
        gate.open()
        await never


async def test_cancelled_iteration_can_go_on_and_a_left_one_reports_nothing() -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as stream:
        futures = [stream.completion_future() for _ in range(2)]
        steps = aiostream.as_completed(futures)
        with anyio.move_on_after(0.01) as scope:
            await steps.__anext__()
        assert scope.cancelled_caught
        gate.open()
        assert await steps.__anext__() in futures
        del steps  # left early
        await aiostream.wait(futures)


async def test_wrong_iterations_are_refused() -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as stream:
        future = stream.completion_future()
        for wrong in (future, 5, [concurrent.futures.Future[None]()]):
            with pytest.raises(TypeError, match="as_completed takes"):
                aiostream.as_completed(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timeout is a number"):
            aiostream.as_completed([future], timeout="1")  # type: ignore[arg-type]
        steps = aiostream.as_completed([future])

        async def take() -> None:
            assert await steps.__anext__() is future

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="use one task"):
                await steps.__anext__()
            gate.open()


async def test_two_tasks_cannot_take_the_futures_that_are_done(stream: Stream) -> None:
    future = stream.completion_future()
    await future
    steps = aiostream.as_completed([future])
    ends: list[object] = []

    async def take() -> None:
        try:
            ends.append(await steps.__anext__())
        except (RuntimeError, StopAsyncIteration) as error:
            ends.append(type(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        tasks.start_soon(take)
    assert future in ends
    assert ends.count(future) == 1
    assert set(ends) - {future} <= {RuntimeError, StopAsyncIteration}


async def test_an_iteration_that_was_left_early_is_not_called_back() -> None:
    futures = [Counted() for _ in range(3)]
    steps = aiostream.as_completed(futures)
    assert [len(future.callbacks) for future in futures] == [1, 1, 1]
    del steps
    assert [len(future.callbacks) for future in futures] == [0, 0, 0]


@pytest.mark.parametrize("loop_kind", ["trio"])
async def test_each_step_of_the_iteration_is_a_checkpoint(stream: Stream) -> None:
    import trio.testing

    future = stream.completion_future()
    await future
    steps = aiostream.as_completed([future])
    with trio.testing.assert_checkpoints():
        await steps.__anext__()
    with trio.testing.assert_checkpoints(), pytest.raises(StopAsyncIteration):
        await steps.__anext__()


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_tasks_can_be_waited_for_too(stream: Stream) -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as held:
        task = asyncio.ensure_future(held.synchronize_async())
        future = stream.completion_future()
        given = []
        async for each in aiostream.as_completed([task, future]):
            given.append(each)
            gate.open()
        assert given == [future, task]
        assert await aiostream.wait(given) == ({task, future}, set())


# -------------------------------------------------------------------------------------------- drain


async def test_drain_waits_for_everything(stream: Stream) -> None:
    calls: list[int] = []
    with Gate() as gate:
        gate.hold(stream)
        futures = [stream.completion_future(), stream.enqueue_async(lambda _: 5)]
        stream.launch_host_func(calls.append, 1)
        stream.add_callback(lambda _: calls.append(2))
        assert await aiostream.drain(0) is False
        assert await aiostream.drain(0.01) is False
        assert calls == []
        with anyio.move_on_after(0.01) as scope:
            await aiostream.drain()
        assert scope.cancelled_caught
        gate.open()
        assert await aiostream.drain(30) is True
        assert calls == [1, 2]
        assert all(future.done() for future in futures)
    assert await aiostream.drain() is True
    assert await aiostream.drain(0) is True


async def test_drain_does_not_wait_for_graphs(stream: Stream) -> None:
    with stream.capture() as capture:
        stream.launch_host_func(print, "never")
    assert statistics().points.pending == statistics().points.captured == 1
    assert await aiostream.drain(30) is True
    capture.graph.close()


async def test_drain_waits_for_other_threads() -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as stream:
        thread = threading.Thread(target=lambda: asyncio.run(stream.synchronize_async()))
        thread.start()
        assert settle(lambda: statistics().futures.pending == 1 or statistics().points.pending == 1)
        assert await aiostream.drain(0.01) is False
        gate.open()
        assert await aiostream.drain(30) is True
        thread.join()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_drain_waits_for_what_a_task_polls(is_cancelled: bool) -> None:
    """The strategy "spin" arms nothing and makes no future: only the wait itself is pending. If it
    is cancelled, its work goes on, and no task waits for it.
    """
    with Gate() as gate, contextlib.closing(held_stream(gate, wait="spin")) as stream:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.synchronize_async)
            await until(lambda: statistics().waits.pending == 1)
            now = statistics()
            assert (now.points.pending, now.futures.pending) == (0, 0)
            assert await aiostream.drain(0) is False
            assert await aiostream.drain(0.01) is False
            if is_cancelled:
                tasks.cancel_scope.cancel()
            else:
                gate.open()
                assert await aiostream.drain(30) is True
        assert await aiostream.drain(0) is True
        assert stream.query() is not is_cancelled


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
def test_drain_does_not_wait_for_a_closed_loop_that_polled(run: Any, loop_kind: str) -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate, wait="spin")) as stream:
        loop = asyncio.new_event_loop()
        task: Any = loop.create_task(stream.synchronize_async())
        task._log_destroy_pending = False  # silences asyncio's own complaint, which is right
        loop.run_until_complete(asyncio.sleep(0))
        assert statistics().waits.pending == 1
        assert run(aiostream.drain, 0) is False
        loop.close()
        del task
        gc.collect()
        assert run(aiostream.drain, 10) is True


# ------------------------------------------------------------------------------------- many futures


@pytest.mark.parametrize("return_when", ["ALL_COMPLETED", "FIRST_EXCEPTION"])
async def test_a_wait_looks_at_each_future_a_few_times(return_when: Any) -> None:
    """It asked all of them at each end, which kept the loop for seconds with 8,000 futures."""
    futures = [Counted() for _ in range(1000)]
    futures[0].end()
    Counted.asked = 0
    async with anyio.create_task_group() as tasks:

        async def end_all() -> None:
            for future in futures[1:]:
                assert len(future.callbacks) == 1
                future.end()
            await anyio.lowlevel.checkpoint()

        async def wait_for_all() -> None:
            assert await aiostream.wait(futures, return_when=return_when) == (set(futures), set())

        tasks.start_soon(wait_for_all)
        while not futures[-1].callbacks:
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(end_all)
    assert Counted.asked <= 4 * len(futures)
    assert not any(future.callbacks for future in futures), "nothing stays behind"


async def test_what_cannot_be_waited_for(stream: Stream) -> None:
    future, coroutine = stream.completion_future(), stream.synchronize_async()
    not_several = r"wait takes several futures, as in wait\(\[first, second\]\), not"
    not_futures = r"wait takes futures of this loop, not .*asyncio.wrap_future"
    wrong: Any
    for wrong, error, says in (
        (future, TypeError, not_several),
        (None, TypeError, not_several),
        ([], ValueError, "nothing to wait for"),
        *(
            ([future, other], TypeError, not_futures)
            for other in (1, coroutine, concurrent.futures.Future[None]())
        ),
    ):
        with pytest.raises(error, match=says):
            await aiostream.wait(wrong)
    coroutine.close()
    with pytest.raises(ValueError, match="return_when"):
        await aiostream.wait([future], return_when="SOMETIME")  # type: ignore[arg-type]
    for call in (lambda timeout: aiostream.wait([future], timeout=timeout), aiostream.drain):
        for wrong in ("1", True, [1]):
            with pytest.raises(TypeError, match="a timeout is a number of seconds or None, not"):
                await call(wrong)
        with pytest.raises(ValueError, match="a timeout is a number of seconds or None, not nan"):
            await call(float("nan"))
    assert await aiostream.wait([future], timeout=float("inf")) == ({future}, set())
    assert await aiostream.drain(-1) is True


# ------------------------------------------------------------------------- futures of another loop


def in_another_loop(kind: str, function: Any) -> None:
    """Calls a function with a pending future of a loop that runs in another thread."""
    made, leave = threading.Event(), threading.Event()
    futures: list[Any] = []

    async def hold() -> None:
        with Gate() as gate, contextlib.closing(held_stream(gate)) as stream:
            futures.append(stream.completion_future())
            made.set()
            assert await anyio.to_thread.run_sync(leave.wait, 30)
            gate.open()
            await futures[0]  # nothing was lost, and no other loop's callback is called

    thread = threading.Thread(target=run_on, args=(kind, hold))
    thread.start()
    try:
        assert made.wait(30)
        function(futures[0])
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize("here", PLAIN_LOOPS)
@pytest.mark.parametrize("there", BACKENDS)
def test_pending_future_of_another_loop_is_refused(here: str, there: str) -> None:
    """Its callback would run in the other loop's thread, and this task would never hear of it."""

    async def refuse(future: Any) -> None:
        async with Stream() as stream:
            mine = stream.completion_future()
            with pytest.raises(RuntimeError, match=r"^wait takes futures of this loop.*another"):
                await aiostream.wait([mine, future], timeout=5)
            with pytest.raises(RuntimeError, match=r"as_completed takes futures of this loop"):
                aiostream.as_completed([mine, future])
            assert await aiostream.wait([mine]) == ({mine}, set())
        assert not future.done()

    in_another_loop(there, lambda future: run_on(here, refuse, future))


def test_without_a_loop_the_error_says_so() -> None:
    def refuse(*futures: Any) -> None:
        with pytest.raises(RuntimeError, match=r"no running event loop.*asyncio"):
            aiostream.as_completed(futures)

    refuse()
    in_another_loop("asyncio", refuse)


def test_future_of_another_loop_that_is_done_can_be_waited_for() -> None:
    made: list[Any] = []

    async def make() -> None:
        async with Stream() as stream:
            made.append(stream.completion_future())
            await made[-1]

    async def wait_for(future: Any) -> None:
        assert await aiostream.wait([future]) == ({future}, set())
        assert [each async for each in aiostream.as_completed([future])] == [future]

    for kind, other in itertools.product(installed(PLAIN_LOOPS), repeat=2):
        run_on(kind, make)
        run_on(other, wait_for, made.pop())
