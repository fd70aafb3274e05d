"""`enqueue_in_thread`: a function in a worker thread, the wait for its work in the loop, what a
cancelled call still holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest

import aiostream
from aiostream import (
    CaptureMode,
    Context,
    ContextFailedError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    StreamPool,
    WaitStrategy,
    drain,
    statistics,
)
from foreign import current_handles, install_libraries
from support import Gate, run_on, settle, spin


class Held:
    """An object that is watched: what keeps it alive?"""


class Thread:
    """A function for a worker thread, which says when it has begun and returns when it may."""

    def __init__(self, then: Callable[[Stream], Any] | None = None) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.then = then

    def __call__(self, stream: Stream, *arguments: Any) -> Any:
        self.begun.set()
        assert self.may_end.wait(20)
        return self.then(stream) if self.then is not None else None

    async def has_begun(self) -> None:
        with anyio.fail_after(10):
            while not self.begun.is_set():
                await anyio.sleep(0.001)


async def until(condition: Callable[..., bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.001)


def taken(limiter: anyio.CapacityLimiter) -> int:
    return limiter.statistics().borrowed_tokens


@pytest.mark.parametrize("strategy", list(WaitStrategy))
async def test_result_comes_when_its_work_is_done(strategy: WaitStrategy) -> None:
    here = threading.get_ident()
    stream = Stream(wait=strategy)

    def launch(given: Stream, factor: int, *, more: int) -> Any:
        assert given is stream
        assert threading.get_ident() != here
        assert Context.get_current() == stream.context
        spin(given, 0.002)
        return factor * more

    assert await stream.enqueue_in_thread(launch, 6, more=7) == 42
    assert stream.query()
    await stream.aclose()


async def test_wait_is_for_the_gpu_and_not_for_the_thread() -> None:
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    returned = threading.Event()
    with Gate() as gate:

        def launch(given: Stream) -> str:
            gate.hold(given)
            returned.set()
            return "done"

        results = []

        async def call() -> None:
            results.append(await stream.enqueue_in_thread(launch, limiter=limiter))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until(returned.is_set)
            for _ in range(20):
                await anyio.sleep(0.001)
                assert not results
            assert taken(limiter) == 0  # another thread may launch meanwhile
            gate.open()
    assert results == ["done"]
    stream.close()


async def test_loop_goes_on_meanwhile() -> None:
    stream = Stream()
    thread = Thread()
    async with anyio.create_task_group() as group:
        group.start_soon(stream.enqueue_in_thread, thread)
        await thread.has_begun()
        await stream.synchronize_async()
        thread.may_end.set()
    stream.close()


async def test_error_of_fn_is_raised_when_its_work_is_done() -> None:
    stream = Stream()

    def launch(given: Stream) -> None:
        spin(given, 0.002)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await stream.enqueue_in_thread(launch)
    assert stream.query()

    def stop(_: Stream) -> None:
        raise StopIteration("mine")

    with pytest.raises(RuntimeError, match="StopIteration"):
        await stream.enqueue_in_thread(stop)
    stream.close()


@pytest.mark.needs_gil("a worker that idles frees the frames of its error when it runs again")
async def test_error_keeps_nothing_alive() -> None:
    stream = Stream()
    held = Held()
    watched = weakref.ref(held)

    def launch(_: Stream, thing: Held) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        await stream.enqueue_in_thread(launch, held)
    del held
    gc.disable()
    try:
        await until(lambda: watched() is None)  # by reference counts alone
    finally:
        gc.enable()
    stream.close()


async def test_what_is_refused_is_refused_before_fn_is_called() -> None:
    called: list[Any] = []
    stream = Stream()
    refused: tuple[tuple[Any, str], ...] = (
        (None, "takes a callable, not NoneType"),
        (anyio.sleep, "it cannot await"),
    )
    for wrong, says in refused:
        with pytest.raises(
            TypeError, match=f"run_in_thread takes a .*{says}" if wrong is not None else says
        ):
            await stream.enqueue_in_thread(wrong)
    with pytest.raises(TypeError, match=r"an anyio\.CapacityLimiter, not int"):
        await stream.enqueue_in_thread(called.append, limiter=3)
    stream.begin_capture(CaptureMode.THREAD_LOCAL)
    with pytest.raises(StreamCaptureError):
        await stream.enqueue_in_thread(called.append)
    stream.end_capture().close()
    stream.close()
    with pytest.raises(StreamClosedError):
        await stream.enqueue_in_thread(called.append)
    assert not called
    with pytest.raises(RuntimeError, match="no running event loop"):
        threading_free = stream.enqueue_in_thread(called.append)
        step_without_a_loop(threading_free)


def step_without_a_loop(coroutine: Any) -> None:
    errors: list[BaseException] = []

    def step() -> None:
        try:
            coroutine.send(None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    raise errors[0]


# ---------------------------------------------------------------------------------------- cancelled


async def test_cancelled_call_holds_all_until_its_work_is_done() -> None:
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    held = Held()
    watched = weakref.ref(held)
    with Gate() as gate:
        thread = Thread(gate.hold)
        async with anyio.create_task_group() as group:

            async def call(thing: Held) -> None:
                await stream.enqueue_in_thread(thread, thing, limiter=limiter)

            group.start_soon(call, held)
            await thread.has_begun()
            group.cancel_scope.cancel()
        # It has raised at once: the thread still runs.
        del held
        gc.collect()
        assert taken(limiter) == 1
        assert not await drain(0.01)
        thread.may_end.set()
        await until(lambda: not stream.query())
        await anyio.sleep(0.01)
        assert taken(limiter) == 1  # the thread has returned: the GPU works
        assert watched() is not None
        assert not await drain(0.01)
        gate.open()
        assert await drain(10)
    await until(lambda: taken(limiter) == 0)
    gc.collect()
    assert settle(lambda: watched() is None)
    stream.close()


async def test_token_comes_back_if_a_call_is_cancelled_when_its_thread_has_just_ended() -> None:
    """The thread has recorded its event, and the task has not heard of that."""
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    begun, ended = threading.Event(), threading.Event()

    def work(on: Stream, gate: Gate) -> None:
        begun.set()
        assert ended.wait(10)
        gate.hold(on)

    with Gate() as gate:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: stream.enqueue_in_thread(work, gate, limiter=limiter))
            await until(begun.is_set)
            armed = statistics().points.armed
            ended.set()
            assert settle(lambda: statistics().points.armed > armed)  # without a turn of the loop
            group.cancel_scope.cancel()
        assert taken(limiter) == 1
        gate.open()
        assert await drain(10)
    await until(lambda: taken(limiter) == 0)
    stream.close()


async def test_call_that_has_not_begun_is_not_made() -> None:
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    thread = Thread()
    called: list[Any] = []
    async with anyio.create_task_group() as outer:
        outer.start_soon(lambda: stream.enqueue_in_thread(thread, limiter=limiter))
        await thread.has_begun()
        with anyio.move_on_after(0.01):
            await stream.enqueue_in_thread(called.append, limiter=limiter)
        assert limiter.statistics().tasks_waiting == 0
        thread.may_end.set()
    assert not called
    await stream.enqueue_in_thread(called.append, limiter=limiter)
    assert called == [stream]
    assert await drain(10)
    stream.close()


async def test_cancelled_before_the_thread_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the task's turn and the worker's: whoever comes second does nothing."""
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    called: list[Any] = []
    runs: list[Callable[[], None]] = []

    async def never(function: Callable[[], None], **_: Any) -> None:
        runs.append(function)
        await anyio.sleep_forever()

    with monkeypatch.context() as patch:
        patch.setattr(anyio.to_thread, "run_sync", never)
        with anyio.move_on_after(0.01):
            await stream.enqueue_in_thread(called.append, limiter=limiter)
    assert taken(limiter) == 0
    assert await drain(10)
    runs[0]()  # the worker comes after all
    assert not called
    stream.close()


async def test_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)

    async def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(anyio.to_thread, "run_sync", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await stream.enqueue_in_thread(spin, 0.0, limiter=limiter)
    assert taken(limiter) == 0
    stream.close()


class Limiter:
    """A limiter of the application's own, without a hash and without weak references."""

    __slots__ = ("limiter",)

    def __init__(self) -> None:
        self.limiter = anyio.CapacityLimiter(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.limiter, name)

    def __eq__(self, other: object) -> bool:
        return self is other


async def test_limiter_of_another_class() -> None:
    limiter, thread, results = Limiter(), Thread(), []
    async with Stream() as stream, anyio.create_task_group() as group:
        group.start_soon(lambda: stream.enqueue_in_thread(thread, limiter=limiter))
        await thread.has_begun()

        async def call() -> None:
            results.append(await stream.enqueue_in_thread(lambda _: "served", limiter=limiter))

        group.start_soon(call)
        await until(lambda: limiter.statistics().tasks_waiting == 1)
        thread.may_end.set()
    assert results == ["served"]


async def test_stream_of_a_pool_stays_taken() -> None:
    handles: list[int] = []
    with Gate() as gate:
        # By its handle, because the thread comes to it after the release, which closes the object.
        thread = Thread(lambda _: gate.hold(Stream.borrow(handles[0])))
        async with StreamPool(1) as pool:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def call() -> None:
                        async with pool.stream() as stream:
                            handles.append(stream.handle)
                            await stream.enqueue_in_thread(thread)

                    group.start_soon(call)
                    await thread.has_begun()
                    scope.cancel()
            assert (pool.idle, pool.busy, pool.lent) == (0, 1, 0)
            served: list[bool] = []

            async def next_one() -> None:
                async with pool.stream() as stream:
                    served.append(stream.query())

            async with anyio.create_task_group() as group:
                group.start_soon(next_one)
                await anyio.sleep(0.02)
                thread.may_end.set()
                await anyio.sleep(0.03)
                assert not served  # the thread has returned: the GPU works
                gate.open()
            assert served == [True]
            assert await drain(10)


async def test_stream_that_is_closed_meanwhile_lives_until_then() -> None:
    stream = Stream()
    thread = Thread(lambda given: spin(Stream.borrow(handle), 0.001))
    handle = stream.handle
    async with anyio.create_task_group() as group:
        group.start_soon(stream.enqueue_in_thread, thread)
        await thread.has_begun()
        stream.close()
        assert statistics().handles.open == 1
        thread.may_end.set()
    assert statistics().handles.open == 0


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop", "trio"])
def test_loop_that_ends_before_its_thread(driver_kind: str, loop_kind: str) -> None:
    """Nobody can be told: what was kept alive is released all the same, and the ledger balances."""
    stream = Stream()
    held = Held()
    watched = weakref.ref(held)
    thread = Thread(lambda given: spin(given, 0.001))

    async def main(thing: Held) -> None:
        async with anyio.create_task_group() as group:

            async def call() -> None:
                await stream.enqueue_in_thread(thread, thing)

            group.start_soon(call)
            await thread.has_begun()
            group.cancel_scope.cancel()

    run_on(loop_kind, main, held)
    thread.may_end.set()
    del held
    gc.collect()
    assert settle(lambda: watched() is None)
    assert settle(lambda: statistics().futures.pending == statistics().waits.pending == 0)
    stream.close()


# ----------------------------------------------------------------------------------------- failures


@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop", "trio"])
async def test_stream_that_fn_leaves_capturing(loop_kind: str) -> None:
    stream = Stream()
    before = statistics().points.leaked

    def capture(given: Stream) -> None:
        given.begin_capture(CaptureMode.RELAXED)

    with pytest.raises(StreamCaptureError):
        await stream.enqueue_in_thread(capture)
    assert statistics().points.leaked == before + 1
    stream.end_capture().close()
    assert await stream.enqueue_in_thread(lambda _: "again") == "again"
    stream.close()


@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize("cancelled", [False, True], ids=["awaited", "cancelled"])
@pytest.mark.parametrize("when", ["while fn runs", "while the GPU works"])
async def test_context_that_fails_meanwhile(
    breakable: Any, loop_kind: str, when: str, cancelled: bool
) -> None:
    """It is told, nothing is released, and the token comes back."""
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    before = statistics().points.leaked
    with Gate() as gate:
        thread = Thread(gate.hold if when == "while the GPU works" else None)
        errors: list[BaseException] = []

        async def call() -> None:
            try:
                await stream.enqueue_in_thread(thread, limiter=limiter)
            except ContextFailedError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await thread.has_begun()
            if when == "while the GPU works":
                thread.may_end.set()
                # The token is back when the task is through with the thread. Before that, the task
                # would meet the error before the cancellation.
                await until(lambda: taken(limiter) == 0)
                assert not stream.query()
            if cancelled:
                group.cancel_scope.cancel()
            breakable.break_context(700)
            thread.may_end.set()
        with anyio.CancelScope(shield=True):
            await until(lambda: taken(limiter) == 0 and statistics().points.leaked == before + 1)
    assert len(errors) == (not cancelled)
    with contextlib.suppress(ContextFailedError):
        stream.close()
    assert aiostream.health() is not None


async def test_library_s_current_stream_is_set_in_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_libraries(monkeypatch)
    stream = Stream()
    stream.torch()
    handles = await stream.enqueue_in_thread(lambda _: current_handles())
    assert handles == {"torch": stream.handle, "cupy": None}
    assert current_handles() == {"torch": None, "cupy": None}
    stream.close()


async def test_many_at_once_under_cancellation() -> None:
    """Some are cancelled at random places. Nothing is lost, and all tokens come back."""
    limiter = anyio.CapacityLimiter(4)
    async with StreamPool(4) as pool:
        done: list[int] = []

        async def call(number: int) -> None:
            with anyio.move_on_after(0.0005 * (number % 7) if number % 3 == 0 else None):
                async with pool.stream() as stream:
                    done.append(
                        await stream.enqueue_in_thread(
                            lambda given: spin(given, 0.0005) or number, limiter=limiter
                        )
                    )

        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(call, number)
        assert {number for number in range(60) if number % 3} <= set(done)
        assert await drain(10)
        await until(lambda: taken(limiter) == 0)


# ------------------------------------------------------------------------------ what a review found


async def test_stream_is_not_given_away_under_a_call() -> None:
    """`into_raw` would wait for the thread, whose call only this loop can begin."""
    stream = Stream()
    thread = Thread()
    async with anyio.create_task_group() as group:
        group.start_soon(stream.enqueue_in_thread, thread)
        await thread.has_begun()
        with pytest.raises(RuntimeError, match="in use, in a block of as_current"):
            stream.into_raw()
        with pytest.raises(RuntimeError, match="in use"):
            stream.to_borrowed().enqueue_async(lambda _: stream.into_raw())
        thread.may_end.set()
    with stream.as_current(), pytest.raises(RuntimeError, match="in use"):
        stream.into_raw()
    Stream.from_raw(stream.into_raw()).close()


async def test_error_of_a_call_that_had_no_token_holds_nothing() -> None:
    """Whoever keeps it keeps the frames of the call. That is no pending wait."""
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    kept: list[BaseException] = []
    limiter.acquire_on_behalf_of_nowait(object())

    async def call() -> None:
        try:
            await stream.enqueue_in_thread(spin, 0.0, limiter=limiter)
        except BaseException as error:
            kept.append(error)
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await until(lambda: limiter.statistics().tasks_waiting == 1)
        group.cancel_scope.cancel()
    assert len(kept) == 1
    assert statistics().waits.pending == 0
    kept.clear()
    stream.close()


async def test_state_of_the_stream_is_asked_again_when_the_token_has_come() -> None:
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    called: list[Any] = []
    errors: list[BaseException] = []
    other = object()
    limiter.acquire_on_behalf_of_nowait(other)

    async def call() -> None:
        with pytest.raises(StreamCaptureError) as caught:
            await stream.enqueue_in_thread(called.append, limiter=limiter)
        errors.append(caught.value)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await until(lambda: limiter.statistics().tasks_waiting == 1)
        stream.begin_capture(CaptureMode.THREAD_LOCAL)
        limiter.release_on_behalf_of(other)
        await until(lambda: bool(errors))
        stream.end_capture().close()
    assert not called
    assert taken(limiter) == 0
    errors.clear()
    stream.close()


@pytest.mark.cuda_leaks(1)
def test_refusal_reaches_a_loop_that_is_closed(driver_kind: str) -> None:
    """The worker has said that nothing could be recorded, and the loop is closed before it hears of
    it.
    """
    stream = Stream()
    thread = Thread(lambda given: given.begin_capture(CaptureMode.RELAXED))
    loop = asyncio.new_event_loop()

    async def main() -> None:
        task = asyncio.ensure_future(stream.enqueue_in_thread(thread))
        await thread.has_begun()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    loop.run_until_complete(main())
    thread.may_end.set()
    assert settle(lambda: statistics().waits.pending == 0)
    loop.close()
    assert settle(lambda: statistics().points.leaked == 1 or statistics().balanced)
    stream.end_capture().close()
    stream.close()


async def test_each_thread_has_its_own_per_thread_stream() -> None:
    """A short call does not wait for a long one of another thread."""
    stream = Stream.per_thread()
    both = threading.Barrier(2)
    results: list[str] = []
    with Gate() as gate:

        def long(given: Stream) -> str:
            gate.hold(given)
            both.wait(10)
            return "long"

        def short(given: Stream) -> str:
            both.wait(10)
            return "short"

        async def call(function: Callable[[Stream], str]) -> None:
            results.append(await stream.enqueue_in_thread(function))

        async with anyio.create_task_group() as group:
            group.start_soon(call, long)
            group.start_soon(call, short)
            await until(lambda: results == ["short"])
            gate.open()
    assert results == ["short", "long"]
    stream.close()
