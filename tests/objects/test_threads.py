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
from aiostream import (
    CaptureMode,
    Context,
    ContextFailedError,
    Stream,
    StreamCaptureError,
    WaitStrategy,
    drain,
    simulator,
    statistics,
)
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
    stream: Stream, thread: Thread, *arguments: Any
) -> AsyncIterator[anyio.CancelScope]:
    """A task in which the call has begun; yields what cancels it."""
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: stream.enqueue_in_thread(thread, *arguments))
        await until(thread.begun.is_set)
        yield group.cancel_scope


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
    returned = threading.Event()
    results = []
    with Gate() as gate:

        def launch(given: Stream) -> str:
            gate.hold(given)
            returned.set()
            return "done"

        async def call() -> None:
            results.append(await stream.enqueue_in_thread(launch))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until(returned.is_set)
            async with Stream() as other:  # another function may launch meanwhile
                await other.enqueue_in_thread(str)
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
    things = [Kept()]
    watched = weakref.ref(things[0])
    with Gate() as gate:
        thread = Thread(gate.hold)
        async with called(stream, thread, things.pop()) as scope:
            scope.cancel()
        # It has raised at once: the thread still runs.
        gc.collect()
        assert not await drain(0.01)
        thread.may_end.set()
        await until(lambda: not stream.query())
        await anyio.sleep(0.01)  # the thread has returned: the GPU works
        assert watched() is not None
        assert not await drain(0.01)
        gate.open()
        assert await drain(10)
    await until(lambda: gc.collect() >= 0 and watched() is None)  # the loop has yet to hear of it


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
    """The call raises it, and nothing is released."""
    stream = Stream()
    before = statistics().points.leaked
    with Gate() as gate:
        thread = Thread(gate.hold if when == "while the GPU works" else lambda _: None)
        errors: list[BaseException] = []

        async def call() -> None:
            try:
                await stream.enqueue_in_thread(thread)
            except ContextFailedError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until(thread.begun.is_set)
            if when == "while the GPU works":
                thread.may_end.set()
                await until(lambda: not stream.query())
            if cancelled:
                group.cancel_scope.cancel()
            breakable.break_context(700)
            thread.may_end.set()
        with anyio.CancelScope(shield=True):
            await until(lambda: statistics().points.leaked == before + 1)
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
