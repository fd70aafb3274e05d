"""wait, as_completed and drain, and the listeners of a lost context."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time
from typing import Any

import pytest

import aiostream
import internals
from aiostream import CudaError, Stream, statistics
from installed import installed
from support import PLAIN_LOOPS, Gate, held_stream, run_on, settle, succeed


async def test_waiting_for_all() -> None:
    with Gate() as gate:
        stream = Stream()
        gate.hold(stream)
        futures = [stream.completion_future() for _ in range(5)]
        done, pending = await aiostream.wait(futures, timeout=0)
        assert (done, pending) == (set(), set(futures))
        gate.open()
        assert await aiostream.wait(futures) == (set(futures), set())
        assert await aiostream.wait(iter(futures)) == (set(futures), set())
    stream.close()


async def test_waiting_for_the_first() -> None:
    with Gate() as gate:
        held, free = Stream(), Stream()
        gate.hold(held)
        never, soon = held.completion_future(), free.completion_future()
        for _ in range(3):
            done, pending = await aiostream.wait([never, soon], return_when="FIRST_COMPLETED")
            assert (done, pending) == ({soon}, {never})
        gate.open()
        await never
    held.close()
    free.close()


@pytest.mark.simulator_only("lets a future fail on its own")
async def test_waiting_for_the_first_exception() -> None:
    with Gate() as gate:
        held, free = Stream(), Stream()
        gate.hold(held)
        never, fine = held.completion_future(), free.completion_future()
        failing = held.enqueue_async(lambda _: None)
        # A future of this loop that fails, without a lost context.
        internals.fail_future(failing, CudaError(1, "CUDA_ERROR_INVALID_VALUE", "test"))
        done, pending = await aiostream.wait([never, fine, failing], return_when="FIRST_EXCEPTION")
        assert failing in done
        assert never in pending
        await fine
        done, pending = await aiostream.wait(
            [never, fine], timeout=0.01, return_when="FIRST_EXCEPTION"
        )
        assert (done, pending) == ({fine}, {never})
        gate.open()
        await never
    held.close()
    free.close()


async def test_a_cancelled_wait_leaves_the_futures() -> None:
    import anyio

    with Gate() as gate:
        stream = Stream()
        gate.hold(stream)
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
    stream.close()


async def test_a_cancelled_future_is_done() -> None:
    with Gate() as gate:
        stream = Stream()
        gate.hold(stream)
        first, second = stream.completion_future(), stream.completion_future()
        first.cancel()
        done, pending = await aiostream.wait([first, second], return_when="FIRST_COMPLETED")
        assert (done, pending) == ({first}, {second})
        gate.open()
        done, pending = await aiostream.wait([first, second], return_when="FIRST_EXCEPTION")
        assert (done, pending) == ({first, second}, set())
    stream.close()


async def test_wrong_waits_are_refused() -> None:
    stream = Stream()
    future = stream.completion_future()
    with pytest.raises(ValueError, match="nothing to wait for"):
        await aiostream.wait([])
    with pytest.raises(ValueError, match="return_when"):
        await aiostream.wait([future], return_when="SOMETIME")  # type: ignore[arg-type]
    await future
    stream.close()


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_tasks_can_be_waited_for_too() -> None:
    stream = Stream()
    task = asyncio.ensure_future(stream.synchronize_async())
    future = stream.completion_future()
    assert await aiostream.wait([task, future]) == ({task, future}, set())
    stream.close()


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


async def test_futures_that_are_done_come_at_once_and_each_once() -> None:
    async with Stream() as stream:
        done = [stream.completion_future() for _ in range(3)]
        await aiostream.wait(done)
        done[1] = stream.completion_future()
        done[1].cancel()
        given = [each async for each in aiostream.as_completed([*done, *done], timeout=0)]
        assert given == done, "in the order in which they were passed"
        assert given[1].cancelled()
    none: list[Any] = []
    assert [each async for each in aiostream.as_completed(none)] == []


@pytest.mark.simulator_only("lets a future fail on its own")
async def test_failed_future_is_given_and_not_raised() -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as stream:
        failing: Any = stream.enqueue_async(lambda _: None)
        internals.fail_future(failing, CudaError(1, "CUDA_ERROR_INVALID_VALUE", "test"))
        futures: list[Any] = [failing]
        async for future in aiostream.as_completed(futures):
            with pytest.raises(CudaError, match="test reported"):
                future.result()


async def test_timeout_ends_the_iteration_and_leaves_the_futures() -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as held:
        async with Stream() as free:
            never, soon = held.completion_future(), free.completion_future()
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
    import anyio

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
    import anyio

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


async def test_two_tasks_cannot_take_the_futures_that_are_done() -> None:
    import anyio

    async with Stream() as stream:
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
    class Counted:
        """A future as another library's, which shows its callbacks."""

        def __init__(self) -> None:
            self.callbacks: list[object] = []

        def done(self) -> bool:
            return False

        def add_done_callback(self, callback: object) -> None:
            self.callbacks.append(callback)

        def remove_done_callback(self, callback: object) -> None:
            self.callbacks.remove(callback)

    futures = [Counted() for _ in range(3)]
    steps = aiostream.as_completed(futures)
    assert [len(future.callbacks) for future in futures] == [1, 1, 1]
    del steps
    assert [len(future.callbacks) for future in futures] == [0, 0, 0]


@pytest.mark.parametrize("loop_kind", ["trio"])
async def test_each_step_of_the_iteration_is_a_checkpoint() -> None:
    import trio.testing

    async with Stream() as stream:
        future = stream.completion_future()
        await future
        steps = aiostream.as_completed([future])
        with trio.testing.assert_checkpoints():
            await steps.__anext__()
        with trio.testing.assert_checkpoints(), pytest.raises(StopAsyncIteration):
            await steps.__anext__()


def test_iteration_needs_a_loop() -> None:
    with pytest.raises(RuntimeError, match="asyncio"):
        aiostream.as_completed([])


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_tasks_come_in_the_order_in_which_they_end_too() -> None:
    with Gate() as gate, contextlib.closing(held_stream(gate)) as held:
        task = asyncio.ensure_future(held.synchronize_async())
        async with Stream() as free:
            future = free.completion_future()
            given = []
            async for each in aiostream.as_completed([task, future]):
                given.append(each)
                gate.open()
            assert given == [future, task]


# -------------------------------------------------------------------------------------------- drain


async def test_drain_waits_for_everything() -> None:
    import anyio

    calls: list[int] = []
    with Gate() as gate:
        stream = Stream()
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
    stream.close()


async def test_drain_does_not_wait_for_graphs() -> None:
    stream = Stream()
    with stream.capture() as capture:
        stream.launch_host_func(print, "never")
    assert statistics().points.pending == statistics().points.captured == 1
    assert await aiostream.drain(30) is True
    capture.graph.close()
    stream.close()


async def test_drain_waits_for_other_threads() -> None:
    with Gate() as gate:
        stream = Stream()
        gate.hold(stream)
        thread = threading.Thread(target=lambda: asyncio.run(stream.synchronize_async()))
        thread.start()
        assert settle(lambda: statistics().futures.pending == 1 or statistics().points.pending == 1)
        assert await aiostream.drain(0.01) is False
        gate.open()
        assert await aiostream.drain(30) is True
        thread.join()
    stream.close()


async def test_drain_waits_for_what_a_task_polls() -> None:
    """The strategy "spin" arms nothing and makes no future: only the wait itself is pending."""
    import anyio

    with Gate() as gate:
        stream = Stream(wait="spin")
        gate.hold(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.synchronize_async)
            while statistics().waits.pending == 0:
                await anyio.lowlevel.checkpoint()
            now = statistics()
            assert (now.points.pending, now.futures.pending, now.waits.pending) == (0, 0, 1)
            assert await aiostream.drain(0) is False
            assert await aiostream.drain(0.01) is False
            gate.open()
            assert await aiostream.drain(30) is True
        assert await aiostream.drain(0) is True
    stream.close()


async def test_drain_does_not_wait_for_cancelled_polls() -> None:
    """Their work goes on, and no task waits for it."""
    import anyio

    with Gate() as gate:
        stream = Stream(wait="spin")
        gate.hold(stream)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(stream.synchronize_async)
            while statistics().waits.pending < 3:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert await aiostream.drain(0) is True
        assert not stream.query()
    stream.close()


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
def test_drain_does_not_wait_for_a_closed_loop_that_polled(run: Any, loop_kind: str) -> None:
    with Gate() as gate:
        stream = Stream(wait="spin")
        gate.hold(stream)
        loop = asyncio.new_event_loop()
        task = loop.create_task(stream.synchronize_async())
        # Silences asyncio's own complaint, which is right.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.sleep(0))
        assert statistics().waits.pending == 1
        assert run(aiostream.drain, 0) is False
        loop.close()
        del task
        gc.collect()
        assert run(aiostream.drain, 10) is True
    stream.close()


# ----------------------------------------------------------------------------------- a lost context


def test_listeners_are_told_once(driver_kind: str) -> None:
    """In a thread of the library, and each with its own copy of the error."""
    script = """
        import asyncio, threading
        import aiostream
        from aiostream import Stream
        import internals
        from support import settle
        told = []
        def tell(error):
            told.append((type(error).__name__, error.code, threading.current_thread().name))
        aiostream.on_context_failed(tell)
        quiet = aiostream.on_context_failed(lambda error: told.append("not this one"))
        quiet()
        quiet()
        def broken(error):
            raise ValueError("listener")
        import sys
        hooked = []
        sys.unraisablehook = lambda args: hooked.append(str(args.exc_value))
        aiostream.on_context_failed(broken)
        stream = Stream()
        async def main():
            future = stream.completion_future()
            await future
            assert not told
            internals.launch_kernel(stream, "trap")
            try:
                await stream.completion_future()  # refused at once if the fault has shown already
            except aiostream.ContextFailedError as error:
                print("failed", error.code)
        asyncio.run(main())
        assert settle(lambda: len(told) == 1), told
        for _ in range(3):
            try:
                stream.synchronize()
            except aiostream.ContextFailedError:
                pass
        late = []
        aiostream.on_context_failed(late.append)
        assert settle(lambda: len(late) == 1)
        print(*told[0], len(told), late[0].code, *hooked)
    """
    lines = succeed(driver_kind, script).splitlines()
    assert lines[0] == "failed 719"
    assert lines[1] == "ContextFailedError 719 aiostream-listener 1 719 listener"


def test_a_listener_must_be_callable() -> None:
    with pytest.raises(TypeError, match="takes a callable, not int"):
        aiostream.on_context_failed(5)  # type: ignore[arg-type]
    aiostream.on_context_failed(print)()


def test_time_is_measured_by_the_loop() -> None:
    """A drain without anything pending returns at once, whatever the timeout."""
    began = time.monotonic()
    assert asyncio.run(aiostream.drain(60)) is True
    assert time.monotonic() - began < 30


@pytest.mark.simulator_only("breaks a context")
def test_a_registration_is_ended_by_its_own_function_alone() -> None:
    """Also if the same listener is registered twice, and one function is called twice."""
    script = """
        import aiostream
        from aiostream import simulator
        from support import settle
        told = []
        listener = lambda error: told.append(error.code)
        first, second = aiostream.on_context_failed(listener), aiostream.on_context_failed(listener)
        first()
        first()
        stream = aiostream.Stream()
        simulator.break_context(719)
        assert settle(lambda: told)
        print(told)
        """
    assert succeed("simulator", script) == "[719]\n"


# ------------------------------------------------------------------------------------- many futures


class Counted:
    """A future of no loop, which counts how often `wait` looks at it."""

    looks = 0

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.ended = False

    def end(self) -> None:
        self.ended = True
        for callback in self.callbacks[:]:
            callback(self)

    def done(self) -> bool:
        Counted.looks += 1
        return self.ended

    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def remove_done_callback(self, callback: Any) -> None:
        self.callbacks.remove(callback)


@pytest.mark.parametrize("return_when", ["ALL_COMPLETED", "FIRST_EXCEPTION"])
async def test_a_wait_looks_at_each_future_a_few_times(return_when: Any) -> None:
    """It looked at all of them at each end, which kept the loop for seconds with 8,000 futures."""
    import anyio

    futures = [Counted() for _ in range(1000)]
    futures[0].end()
    Counted.looks = 0
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
    assert Counted.looks <= 4 * len(futures)
    assert not any(future.callbacks for future in futures), "nothing stays behind"


async def test_what_cannot_be_waited_for() -> None:
    stream = Stream()
    future = stream.completion_future()
    with pytest.raises(
        TypeError, match=r"wait takes several futures, as in wait\(\[first, second\]\), not"
    ):
        await aiostream.wait(future)
    with pytest.raises(TypeError, match="wait takes several futures"):
        await aiostream.wait(None)  # type: ignore[arg-type]
    coroutine = stream.synchronize_async()
    others: tuple[Any, ...] = (1, coroutine, concurrent.futures.Future())
    for wrong in others:
        with pytest.raises(
            TypeError, match=r"wait takes futures of this loop, not .*asyncio.wrap_future"
        ):
            await aiostream.wait([future, wrong])
    coroutine.close()
    for wrong in ("1", True, [1]):
        for call in (lambda timeout: aiostream.wait([future], timeout=timeout), aiostream.drain):
            with pytest.raises(TypeError, match="a timeout is a number of seconds or None, not"):
                await call(wrong)  # type: ignore[arg-type]
    for call in (lambda timeout: aiostream.wait([future], timeout=timeout), aiostream.drain):
        with pytest.raises(ValueError, match="a timeout is a number of seconds or None, not nan"):
            await call(float("nan"))
    assert await aiostream.wait([future], timeout=float("inf")) == ({future}, set())
    assert await aiostream.drain(-1) is True
    stream.close()


# ------------------------------------------------------------------------- futures of another loop


def in_another_loop(kind: str, function: Any) -> None:
    """Calls a coroutine function with a pending future of a loop that runs in another thread."""
    made, leave = threading.Event(), threading.Event()
    futures: list[Any] = []

    async def hold() -> None:
        with Gate() as gate:
            stream = Stream()
            gate.hold(stream)
            futures.append(stream.completion_future())
            made.set()
            assert await asyncio.to_thread(leave.wait, 30) if kind != "trio" else leave.wait(30)
            gate.open()
            await futures[0]  # nothing was lost, and no other loop's callback is called
        stream.close()

    thread = threading.Thread(target=run_on, args=(kind, hold))
    thread.start()
    try:
        assert made.wait(30)
        function(futures[0])
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize("here", PLAIN_LOOPS)
@pytest.mark.parametrize("there", ["asyncio", "trio"])
def test_pending_future_of_another_loop_is_refused(here: str, there: str) -> None:
    """Its callback would run in the other loop's thread, and this task would never hear of it."""

    async def refuse(future: Any) -> None:
        stream = Stream()
        mine = stream.completion_future()
        with pytest.raises(RuntimeError, match=r"wait takes futures of this loop.*another loop"):
            await aiostream.wait([mine, future], timeout=5)
        with pytest.raises(RuntimeError, match=r"as_completed takes futures of this loop"):
            aiostream.as_completed([mine, future])
        assert await aiostream.wait([mine]) == ({mine}, set())
        assert not future.done()
        stream.close()

    in_another_loop(there, lambda future: run_on(here, refuse, future))


def test_without_a_loop_the_error_says_so() -> None:
    def refuse(future: Any) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            aiostream.as_completed([future])

    in_another_loop("asyncio", refuse)


def test_future_of_another_loop_that_is_done_can_be_waited_for() -> None:
    async def make() -> Any:
        stream = Stream()
        future = stream.completion_future()
        await future
        stream.close()
        return future

    async def wait_for(future: Any) -> None:
        assert await aiostream.wait([future]) == ({future}, set())
        assert [each async for each in aiostream.as_completed([future])] == [future]

    for kind in installed(PLAIN_LOOPS):
        made: list[Any] = []

        async def keep(made: list[Any] = made) -> None:
            made.append(await make())

        run_on(kind, keep)
        for other in installed(PLAIN_LOOPS):
            run_on(other, wait_for, made[0])
