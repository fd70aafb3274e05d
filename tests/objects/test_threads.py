"""`enqueue_in_thread`: a function in a worker thread, the wait for its work in the loop, what a
cancelled call still holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import anyio
import anyio.to_thread
import pytest

import aiostream
import internals
from aiostream import (
    CaptureMode,
    Context,
    ContextFailedError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    WaitStrategy,
    drain,
    simulator,
    statistics,
)
from interrupts import run_interrupted
from support import PLAIN_LOOPS, Gate, Kept, run_on, settle, spin
from waiters import until


class Thread:
    """A function for a worker thread, which says when it has begun and returns when it may."""

    def __init__(self, then: Callable[[Stream], Any] = lambda _: None) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.then = then

    def __call__(self, stream: Stream, *arguments: Any) -> Any:
        self.begun.set()
        assert self.may_end.wait(20)
        return self.then(stream)


@contextlib.asynccontextmanager
async def called(
    stream: Stream, thread: Thread, *arguments: Any, **options: Any
) -> AsyncIterator[anyio.CancelScope]:
    """A task in which the call has begun; yields what cancels it."""
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: stream.enqueue_in_thread(thread, *arguments, **options))
        await until(thread.begun.is_set)
        yield group.cancel_scope


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


async def test_wait_is_for_the_gpu_and_not_for_the_thread(stream: Stream) -> None:
    limiter = anyio.CapacityLimiter(1)
    returned = threading.Event()
    results = []
    with Gate() as gate:

        def launch(given: Stream) -> str:
            gate.hold(given)
            returned.set()
            return "done"

        async def call() -> None:
            results.append(await stream.enqueue_in_thread(launch, limiter=limiter))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until(returned.is_set)
            await until(lambda: taken(limiter) == 0)  # another thread may launch meanwhile
            assert not results
            gate.open()
    assert results == ["done"]


async def test_error_of_fn_is_raised_when_its_work_is_done(stream: Stream) -> None:
    def launch(given: Stream, error: type[Exception]) -> None:
        spin(given, 0.002)
        raise error("mine")

    with pytest.raises(KeyError, match="mine"):
        await stream.enqueue_in_thread(launch, KeyError)
    assert stream.query()
    with pytest.raises(RuntimeError, match="StopIteration"):
        await stream.enqueue_in_thread(launch, StopIteration)


@pytest.mark.needs_gil("a worker that idles frees the frames of its error when it runs again")
async def test_error_keeps_nothing_alive(stream: Stream) -> None:
    held = Kept()
    watched = weakref.ref(held)

    def launch(_: Stream, thing: Kept) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        await stream.enqueue_in_thread(launch, held)
    del held
    gc.disable()
    try:
        await until(lambda: watched() is None)  # by reference counts alone
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------- cancelled


async def test_cancelled_call_holds_all_until_its_work_is_done(stream: Stream) -> None:
    limiter = anyio.CapacityLimiter(1)
    things = [Kept()]
    watched = weakref.ref(things[0])
    with Gate() as gate:
        thread = Thread(gate.hold)
        async with called(stream, thread, things.pop(), limiter=limiter) as scope:
            scope.cancel()
        # It has raised at once: the thread still runs.
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


async def test_token_comes_back_if_a_call_is_cancelled_when_its_thread_has_just_ended(
    stream: Stream,
) -> None:
    """The thread has recorded its event, and the task has not heard of that."""
    limiter = anyio.CapacityLimiter(1)
    with Gate() as gate:
        thread = Thread(gate.hold)
        async with called(stream, thread, limiter=limiter) as scope:
            armed = statistics().points.armed
            thread.may_end.set()
            assert settle(lambda: statistics().points.armed > armed)  # without a turn of the loop
            scope.cancel()
        assert taken(limiter) == 1
        gate.open()
        assert await drain(10)
    await until(lambda: taken(limiter) == 0)


async def test_cancelled_before_the_thread_takes_it(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the task's turn and the worker's: the second of them does nothing."""
    limiter = anyio.CapacityLimiter(1)
    calls: list[Any] = []
    runs: list[Callable[[], None]] = []

    async def never(function: Callable[[], None], **_: Any) -> None:
        runs.append(function)
        scope.cancel()
        await anyio.sleep_forever()

    async def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(anyio.to_thread, "run_sync", never)
        with anyio.CancelScope() as scope:
            await stream.enqueue_in_thread(calls.append, limiter=limiter)
        assert taken(limiter) == 0
        patch.setattr(anyio.to_thread, "run_sync", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await stream.enqueue_in_thread(calls.append, limiter=limiter)
    assert taken(limiter) == 0
    assert await drain(10)
    runs[0]()  # the worker comes after all
    assert not calls


async def test_stream_that_is_closed_meanwhile_lives_until_then(stream: Stream) -> None:
    thread = Thread(lambda given: spin(Stream.borrow(handle), 0.001))
    handle = stream.handle
    async with called(stream, thread):
        stream.close()
        assert statistics().handles.open == 1
        thread.may_end.set()
    assert statistics().handles.open == 0


@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
def test_loop_that_ends_before_its_thread(stream: Stream, loop_kind: str) -> None:
    """No task can be called: what was kept alive is released, and the numbers add up."""
    things = [Kept()]
    watched = weakref.ref(things[0])
    thread = Thread(lambda given: spin(given, 0.001))

    async def main() -> None:
        async with called(stream, thread, things.pop()) as scope:
            scope.cancel()

    run_on(loop_kind, main)
    thread.may_end.set()
    gc.collect()
    assert settle(lambda: watched() is None)
    assert settle(lambda: statistics().futures.pending == statistics().waits.pending == 0)


# ----------------------------------------------------------------------------------------- failures


@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
@pytest.mark.cuda_leaks(1)
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
@pytest.mark.parametrize("cancelled", [False, True], ids=["awaited", "cancelled"])
@pytest.mark.parametrize("when", ["while fn runs", "while the GPU works"])
async def test_context_that_fails_meanwhile(
    breakable: Any, loop_kind: str, when: str, cancelled: bool
) -> None:
    """The call raises it, nothing is released, and the token comes back."""
    stream = Stream()
    limiter = anyio.CapacityLimiter(1)
    before = statistics().points.leaked
    with Gate() as gate:
        thread = Thread(gate.hold if when == "while the GPU works" else lambda _: None)
        errors: list[BaseException] = []

        async def call() -> None:
            try:
                await stream.enqueue_in_thread(thread, limiter=limiter)
            except ContextFailedError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until(thread.begun.is_set)
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


@pytest.mark.cuda_leaks(1)
@pytest.mark.simulator_only("a GPU's context cannot be recovered")
def test_failure_of_a_call_that_is_cancelled_is_not_reported() -> None:
    """The context is lost while the function runs, and the loop is busy until it has returned."""
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, report: reported.append(report))
        stream, thread = Stream(), Thread()
        task = asyncio.create_task(stream.enqueue_in_thread(thread))
        await until(thread.begun.is_set)
        simulator.break_context(700)
        loop.call_later(0, task.cancel)
        thread.may_end.set()
        # Blocks the loop, so that the failure and the cancellation come in one turn.
        assert settle(lambda: statistics().waits.pending == 0)
        with pytest.raises(asyncio.CancelledError):
            await task
        simulator.recover()
        stream.close()

    asyncio.run(main())
    assert reported == []


# ---------------------------------------------------------------------- calls that wait for a token


@contextlib.asynccontextmanager
async def waiting_for_tokens(
    *calls: Callable[[anyio.CapacityLimiter], Any], kind: Any = anyio.CapacityLimiter
) -> AsyncIterator[tuple[anyio.CapacityLimiter, anyio.CancelScope]]:
    """Tasks that wait for the token that other code has, as in a server which shares it."""
    limiter = kind(1)
    await limiter.acquire_on_behalf_of("other code")
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call, limiter)
        await until(lambda: limiter.statistics().tasks_waiting == len(calls))
        yield limiter, group.cancel_scope


class Limiter:
    """A limiter of the application's own, without a hash and without weak references."""

    __slots__ = ("limiter",)

    def __init__(self, tokens: int) -> None:
        self.limiter = anyio.CapacityLimiter(tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.limiter, name)

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.mark.parametrize("kind", [anyio.CapacityLimiter, Limiter])
async def test_drain_waits_for_calls_that_wait_for_their_token(stream: Stream, kind: Any) -> None:
    calls: list[Stream] = []

    async def call(limiter: anyio.CapacityLimiter) -> None:
        await stream.enqueue_in_thread(calls.append, limiter=limiter)

    async with waiting_for_tokens(call, call, call, kind=kind) as (limiter, _):
        assert statistics().futures.pending == 3
        assert statistics().balanced
        assert not await drain(0.01)
        assert calls == []
        limiter.release_on_behalf_of("other code")
        assert await drain(10)
        assert calls == [stream] * 3


async def test_call_that_is_cancelled_before_it_has_a_token_is_not_made(stream: Stream) -> None:
    """A program that keeps its error keeps the frames of the call. That is no pending wait."""
    calls: list[Stream] = []
    kept: list[BaseException] = []

    async def call(limiter: anyio.CapacityLimiter) -> None:
        try:
            await stream.enqueue_in_thread(calls.append, limiter=limiter)
        except BaseException as error:
            kept.append(error)
            raise

    async with waiting_for_tokens(call) as (limiter, scope):
        scope.cancel()
    assert len(kept) == 1
    assert statistics().waits.pending == limiter.statistics().tasks_waiting == 0
    assert await drain(10)
    assert taken(limiter) == 1
    limiter.release_on_behalf_of("other code")
    assert not calls
    await stream.enqueue_in_thread(calls.append, limiter=limiter)
    assert calls == [stream]
    kept.clear()


@pytest.mark.parametrize("state", ["closed", "capturing"])
async def test_state_of_the_stream_is_asked_again_when_the_token_has_come(
    stream: Stream, state: str
) -> None:
    calls: list[Any] = []

    async def call(limiter: anyio.CapacityLimiter) -> None:
        with pytest.raises(StreamClosedError if state == "closed" else StreamCaptureError):
            await stream.enqueue_in_thread(calls.append, limiter=limiter)
        calls.append("refused")

    async with waiting_for_tokens(call) as (limiter, _):
        if state == "closed":
            stream.close()
        else:
            stream.begin_capture(CaptureMode.THREAD_LOCAL)
        limiter.release_on_behalf_of("other code")
        await until(lambda: bool(calls))
        if state == "capturing":
            stream.end_capture().close()
    assert calls == ["refused"]
    assert taken(limiter) == 0
    assert await drain(10)


@pytest.mark.simulator_only("a GPU's driver may wait for the gate when it destroys a context")
@pytest.mark.parametrize("loop_kind", ["asyncio"])
async def test_call_that_waits_for_its_token_is_not_woken_when_its_context_is_gone(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = internals.create_context()
    with Context.from_handle(int(handle)).as_current():
        lost = Stream()
    drains: list[None] = []

    async def call(limiter: anyio.CapacityLimiter) -> None:
        with pytest.raises(ContextFailedError):
            await lost.enqueue_in_thread(print, limiter=limiter)

    with monkeypatch.context() as patch, Gate() as gate:
        internals.intercept_drain(patch, lambda _, drain: (drains.append(None), drain()))
        gate.hold(stream)
        held = stream.completion_future()  # so that the watcher goes on
        async with waiting_for_tokens(call) as (limiter, _):
            internals.driver_call("cuCtxDestroy", handle)
            passes = statistics().watcher_passes
            await until(lambda: statistics().watcher_passes >= passes + 10)
            assert not drains
            limiter.release_on_behalf_of("other code")
        gate.open()
        await held
    lost.close()


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
    assert asyncio.run(drain(10))
    assert statistics().balanced


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # anyio's
def test_interrupt_anywhere_in_a_call_that_is_cancelled_while_it_waits_for_its_token(
    stream: Stream,
) -> None:
    async def call(limiter: anyio.CapacityLimiter) -> None:
        await stream.enqueue_in_thread(lambda _: None, limiter=limiter)

    async def main() -> None:
        async with waiting_for_tokens(call) as (_, scope):
            scope.cancel()

    async def later() -> None:
        gc.collect()  # what the frames of the interrupt's traceback held
        assert await drain(10)

    # More numbers than there are places, because some Pythons trace late.
    strikers = [run_interrupted("asyncio", n, main, later, cancels=True) for n in range(1, 80)]
    assert sum(striker.has_struck for striker in strikers) > 10


# ------------------------------------------------------------------------------ what a review found


async def test_stream_is_not_given_away_under_a_call(stream: Stream) -> None:
    thread = Thread()
    async with called(stream, thread):
        with pytest.raises(RuntimeError, match="is in use"):
            stream.into_raw()
        with pytest.raises(RuntimeError, match="in use"):
            stream.to_borrowed().enqueue_async(lambda _: stream.into_raw())
        thread.may_end.set()
    with stream.as_current(), pytest.raises(RuntimeError, match="in use"):
        stream.into_raw()
    Stream.from_raw(stream.into_raw()).close()


@pytest.mark.parametrize("refused", [False, True], ids=["runs", "refused"])
async def test_run_during_a_call_in_a_thread(stream: Stream, refused: bool) -> None:
    """Each use of the stream ends by itself, in any order."""
    thread = Thread()
    async with called(stream, thread):
        if refused:
            stream.begin_capture()
            with pytest.raises(StreamCaptureError):
                await stream.run(int)
            stream.end_capture()
        else:
            with Gate() as gate:
                gate.hold(stream)
                with anyio.move_on_after(0.01):
                    await stream.run(int)
            await stream.run(int)
        with pytest.raises(RuntimeError, match="in use"):
            stream.into_raw()
        thread.may_end.set()
    Stream.from_raw(stream.into_raw()).close()


@pytest.mark.cuda_leaks(1)
def test_refusal_reaches_a_loop_that_is_closed(stream: Stream) -> None:
    """The worker has said that nothing could be recorded, and the loop is closed before it hears of
    it.
    """
    thread = Thread(lambda given: given.begin_capture(CaptureMode.RELAXED))
    loop = asyncio.new_event_loop()

    async def main() -> None:
        async with called(stream, thread) as scope:
            scope.cancel()

    loop.run_until_complete(main())
    thread.may_end.set()
    assert settle(lambda: statistics().waits.pending == 0)
    loop.close()
    assert settle(lambda: statistics().points.leaked == 1 or statistics().balanced)
    stream.end_capture().close()


async def test_each_thread_has_its_own_per_thread_stream() -> None:
    """A short call does not wait for a long one of another thread."""
    stream = Stream.per_thread()
    both = threading.Barrier(2)
    results: list[str] = []
    with Gate() as gate:

        def work(given: Stream, length: str) -> str:
            if length == "long":
                gate.hold(given)
            both.wait(10)
            return length

        async def call(length: str) -> None:
            results.append(await stream.enqueue_in_thread(work, length))

        async with anyio.create_task_group() as group:
            group.start_soon(call, "long")
            group.start_soon(call, "short")
            await until(lambda: results == ["short"])
            gate.open()
    assert results == ["short", "long"]
    stream.close()


def test_a_call_while_another_thread_imports_sniffio(monkeypatch: pytest.MonkeyPatch) -> None:
    """anyio imports it at its first use, and asks it whether a loop runs."""
    monkeypatch.setitem(sys.modules, "sniffio", ModuleType("sniffio"))  # its import has begun

    async def main() -> int:
        async with Stream() as stream:
            return await stream.run_in_thread(lambda: 6)

    assert asyncio.run(main()) == 6
