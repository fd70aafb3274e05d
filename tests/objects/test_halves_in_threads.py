"""Functions in two halves, whose halves run in threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import Generator
from typing import Any

import anyio
import pytest

from aiostream import ContextFailedError, Stream, StreamClosedError, drain, statistics
from support import Gate, Kept, settle, spin
from waiters import until

Half = Generator[None, None, Any]
variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")


async def test_each_half_runs_in_a_thread_and_in_one_context(stream: Stream) -> None:
    loops_thread = threading.get_ident()
    variable.set(0)

    def three() -> Half:
        for number in range(3):
            assert variable.get() == number
            assert threading.get_ident() != loops_thread
            variable.set(number + 1)
            spin(stream, 0.002)
            yield
            assert stream.query()
        return variable.get()

    assert await stream.run_in_thread(three) == 3
    assert variable.get() == 0
    Stream.from_raw(stream.into_raw()).close()


async def test_what_a_half_raises_reaches_the_task(stream: Stream) -> None:
    ended: list[str] = []

    def fails() -> Half:
        try:
            yield
            raise KeyError("mine")
        finally:
            ended.append("finally")

    def misuse() -> Generator[int, None, None]:
        yield 5

    with pytest.raises(KeyError, match="mine"):
        await stream.run_in_thread(fails)
    assert ended == ["finally"]
    with pytest.raises(TypeError, match="yields nothing, not int"):
        await stream.run_in_thread(misuse)


async def test_a_stream_that_is_closed_at_a_yield_raises_there() -> None:
    stream, caught = Stream(), list[str]()

    def closes() -> Half:
        stream.close()
        try:
            yield
        except StreamClosedError:
            caught.append("first")
        try:
            yield
        except StreamClosedError:
            caught.append("second")
        return "result"

    assert await stream.run_in_thread(closes) == "result"
    assert caught == ["first", "second"]


@pytest.mark.simulator_only("a GPU's context cannot be broken and recovered")
@pytest.mark.cuda_leaks(1)
async def test_context_that_fails_between_halves(breakable: Any) -> None:
    stream, caught, begun = Stream(), list[BaseException](), threading.Event()
    with Gate() as gate:

        def held() -> Half:
            gate.hold(stream)
            begun.set()
            try:
                yield
            except ContextFailedError as error:
                caught.append(error)
                raise

        async def call() -> None:
            with pytest.raises(ContextFailedError):
                await stream.run_in_thread(held)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: begun.is_set() and statistics().waits.pending == 1)
            breakable.break_context(700)
    assert len(caught) == 1
    with pytest.raises(ContextFailedError):
        stream.close()


@pytest.mark.parametrize("when", ["a half runs", "the GPU works"])
async def test_cancelled_it_is_closed_when_the_gpu_has_passed(stream: Stream, when: str) -> None:
    begun, may_end, closed = threading.Event(), threading.Event(), list[str]()
    things = [Kept()]
    watched = weakref.ref(things[0])
    with Gate() as gate:

        def held(thing: Kept) -> Half:
            try:
                gate.hold(stream)
                begun.set()
                if when == "a half runs":
                    assert may_end.wait(20)
                yield
            finally:
                closed.append(threading.current_thread().name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run_in_thread, held, things.pop())
            await until(begun.is_set)
            if when == "the GPU works":
                await until(lambda: statistics().waits.pending == 1)
            tasks.cancel_scope.cancel()
        may_end.set()
        await anyio.sleep(0.01)
        gc.collect()
        assert watched() is not None
        assert not closed
        with pytest.raises(RuntimeError, match="in use"):
            stream.into_raw()
        gate.open()
        await until(lambda: bool(closed))
        assert await drain(10)
    assert closed[0].startswith("aiostream-launch")
    gc.collect()
    assert settle(lambda: watched() is None)
    with anyio.fail_after(10):
        while True:  # until the loop has heard of the close
            try:
                Stream.from_raw(stream.into_raw()).close()
                break
            except RuntimeError:
                await anyio.sleep(0.001)


def test_cancelled_when_a_half_is_over_and_the_task_has_not_gone_on() -> None:
    closed: list[str] = []

    async def main() -> None:
        stream = Stream()

        def two() -> Half:
            try:
                yield
                yield
            finally:
                closed.append(threading.current_thread().name)

        task = asyncio.create_task(stream.run_in_thread(two))
        await until(lambda: statistics().waits.pending == 1 or bool(closed))
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: bool(closed))
        assert await drain(10)
        stream.close()

    asyncio.run(main())
    assert closed[0].startswith("aiostream-launch")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of asyncio
def test_stream_can_be_given_away_after_its_loop_was_dropped(driver_kind: str) -> None:
    """The collector closes the generator together with the loop."""

    def halves() -> Half:
        spin(stream, 0.002)
        yield

    stream = Stream()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending"
    tasks = [loop.create_task(stream.run_in_thread(halves))]
    loop.run_until_complete(asyncio.sleep(0))
    tasks.clear()
    del loop
    given: list[int] = []

    def is_given() -> bool:
        gc.collect()
        with contextlib.suppress(RuntimeError):  # it is in use
            given.append(stream.into_raw())
        return bool(given)

    assert settle(is_given)
    Stream.from_raw(given[0]).close()
