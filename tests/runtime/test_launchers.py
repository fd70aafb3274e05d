"""The threads that launch serve calls in their order, and a slow call does not delay others."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

import internals
from aiostream import Stream, StreamClosedError, drain, statistics
from interrupts import run_interrupted
from support import USUAL, Kept, run_script, settle, succeed
from waiters import until

PLACES = internals.LAUNCH_PLACES

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


class Busy:
    """Calls that keep every launching thread until `may_end` is set."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.begun.append(threading.current_thread().name)
        assert self.may_end.wait(20)


@asynccontextmanager
async def all_busy() -> AsyncIterator[Busy]:
    busy, streams = Busy(), [Stream() for _ in range(PLACES)]
    async with anyio.create_task_group() as tasks:
        for stream in streams:
            tasks.start_soon(stream.run_in_thread, busy)
        await until(lambda: len(busy.begun) == PLACES)
        try:
            yield busy
        finally:
            busy.may_end.set()
    for stream in streams:
        stream.close()


async def test_calls_begin_in_order_and_a_few_at_a_time() -> None:
    order: list[int] = []
    others, one = Busy(), Busy()
    streams = [Stream() for _ in range(PLACES + 8)]
    async with anyio.create_task_group() as tasks:
        for number, stream in enumerate(streams):
            call: Any = others if number < PLACES - 1 else one
            given: list[Any] = [call] if number < PLACES else [order.append, number]
            tasks.start_soon(partial(stream.run_in_thread, *given))
            await until(lambda n=number: statistics().futures.pending == n + 1)
        await until(lambda: len(others.begun) == PLACES - 1 and len(one.begun) == 1)
        assert not order
        one.may_end.set()  # one thread makes all the calls
        await until(lambda: len(order) == 8)
        others.may_end.set()
    assert order == list(range(PLACES, PLACES + 8))
    for stream in streams:
        stream.close()


async def test_context_variables_are_those_of_the_caller(stream: Stream) -> None:
    variable.set("caller's")

    def call() -> str:
        found = variable.get()
        variable.set("function's")
        return found

    assert await stream.run_in_thread(call) == "caller's"
    assert variable.get() == "caller's"


async def test_slow_calls_stop_no_other_one(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    internals.limit_launch_patience(monkeypatch, 0.05)
    async with all_busy() as busy:
        name = await stream.run_in_thread(lambda: threading.current_thread().name)
        assert name not in busy.begun
        assert not busy.may_end.is_set()


async def test_threads_that_come_back_do_not_add_up(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        with monkeypatch.context() as patch:
            internals.limit_launch_patience(patch, 0.05)
            async with all_busy():
                await stream.run_in_thread(int)
    begun, streams = Busy(), [Stream() for _ in range(PLACES + 2)]
    async with anyio.create_task_group() as tasks:
        for each in streams:
            tasks.start_soon(each.run_in_thread, begun)
        await until(lambda: len(begun.begun) >= PLACES)
        await anyio.sleep(0.02)
        assert len(begun.begun) == PLACES
        begun.may_end.set()
    for each in streams:
        each.close()


SLOW = """
    import asyncio, threading
    import pytest
    import internals
    from aiostream import Stream
    from waiters import until

    begun, may_end, refused = [], threading.Event(), []
    start = threading.Thread.start

    def refuse_once(thread):
        if thread.name == "aiostream-launch-{last}" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    def call(number):
        begun.append(number)
        may_end.wait(20)

    async def main():
        with pytest.MonkeyPatch.context() as patch:
            internals.limit_launch_patience(patch, {patience})
            if {refuses}:
                patch.setattr(threading.Thread, "start", refuse_once)
            streams = [Stream() for _ in range({calls})]
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(s.run_in_thread(call, n)) for n, s in enumerate(streams)]
            await until(lambda: len(begun) > {places})
            first = loop.time()
            await until(lambda: len(begun) == {calls})
            print(loop.time() - first < {patience}, len(refused))
            may_end.set()
            await asyncio.gather(*tasks)
            for stream in streams:
                stream.close()

    asyncio.run(main())
"""


def test_each_slow_call_gives_its_place_away(driver_kind: str) -> None:
    script = SLOW.format(
        last=PLACES + 2, places=PLACES, calls=2 * PLACES, patience=1, refuses=False
    )
    assert succeed(driver_kind, script) == "True 0\n"  # not one after another


def test_a_thread_that_cannot_start_is_tried_again(driver_kind: str) -> None:
    script = SLOW.format(
        last=PLACES + 2, places=PLACES, calls=PLACES + 1, patience=0.1, refuses=True
    )
    done = run_script(driver_kind, script)
    assert done.stdout == "True 1\n", done.stderr


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_a_call_may_wait_for_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    internals.limit_launch_patience(monkeypatch, 0.05)
    loop, streams = asyncio.get_running_loop(), [Stream() for _ in range(PLACES + 3)]

    def call(depth: int) -> int:
        if depth == 0:
            return 0
        inner = streams[depth - 1].run_in_thread(call, depth - 1)
        return 1 + asyncio.run_coroutine_threadsafe(inner, loop).result(20)

    assert await streams[-1].run_in_thread(call, len(streams) - 1) == len(streams) - 1
    for stream in streams:
        stream.close()


async def test_cancelled_before_it_begins_is_not_called(stream: Stream) -> None:
    called: list[Any] = []
    things = [Kept()]
    watched = weakref.ref(things[0])
    async with all_busy() as busy:
        with anyio.move_on_after(0.01) as scope:
            await stream.run_in_thread(called.append, things.pop())
        assert scope.cancelled_caught
        assert not await drain(0.01)  # for the others
        busy.may_end.set()
    assert await drain(10)
    await stream.run_in_thread(int)  # the threads have met the call that was cancelled
    gc.collect()
    assert settle(lambda: watched() is None)
    assert not called


async def test_stream_that_is_closed_before_the_call_begins() -> None:
    called: list[int] = []
    stream = Stream()
    errors: list[BaseException] = []

    async def call() -> None:
        try:
            await stream.run_in_thread(called.append, 1)
        except StreamClosedError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks, all_busy() as busy:
        tasks.start_soon(call)
        await until(lambda: statistics().futures.pending == PLACES + 1)
        stream.close()
        busy.may_end.set()
    assert len(errors) == 1
    assert not called


async def test_stream_is_free_when_the_call_has_returned(stream: Stream) -> None:
    for _ in range(50):
        await stream.run_in_thread(int)
        Stream.from_raw(Stream().into_raw()).close()
    stream.to_borrowed()
    Stream.from_raw(stream.into_raw()).close()


def test_interrupt_anywhere_in_a_call_that_is_cancelled_before_it_begins(stream: Stream) -> None:
    called: list[int] = []
    may_end = threading.Event()

    async def main() -> None:
        tasks = [asyncio.create_task(stream.run_in_thread(called.append, 1))]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks)

    async def later() -> None:
        may_end.set()
        assert await drain(10)

    struck = 0
    for number in range(1, 80):  # more than there are places, because some Pythons trace late
        may_end.clear()
        for _ in range(PLACES):
            internals.call_in_launching_thread(partial(may_end.wait, 20))
        struck += run_interrupted("asyncio", number, main, later, cancels=True).has_struck
        assert statistics().balanced
    assert struck > 10
    assert not called
    Stream.from_raw(stream.into_raw()).close()


def test_loop_that_is_closed_before_a_call_begins() -> None:
    called: list[int] = []
    busy = Busy()

    async def main() -> None:
        streams = [Stream() for _ in range(PLACES + 1)]
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(stream.run_in_thread(busy)) for stream in streams[:-1]]
        await until(lambda: len(busy.begun) == PLACES)
        tasks.append(loop.create_task(streams[-1].run_in_thread(called.append, 1)))
        await asyncio.sleep(0)
        for stream in streams:
            stream.close()

    asyncio.run(main())
    busy.may_end.set()
    assert settle(lambda: statistics().futures.pending == statistics().waits.pending == 0)
    assert not called


# --------------------------------------------------------------------------------- exit and fork

EXIT = """
    import asyncio, threading, time
    from aiostream import Stream
    begun = threading.Barrier({places} + 1)

    def call():
        begun.wait()
        time.sleep({seconds})
        print("returned", flush=True)

    async def main():
        streams = [Stream() for _ in range({places} + 1)]
        for stream in streams[:-1]:
            asyncio.ensure_future(stream.run_in_thread(call))
        asyncio.ensure_future(streams[-1].run_in_thread(print, "never"))
        await asyncio.sleep(0)
        begun.wait()
        for stream in streams:
            stream.close()

    asyncio.run(main())
    print("ends", flush=True)
"""


@pytest.mark.parametrize("seconds", [0.1, 30])
def test_calls_under_way_have_two_seconds_at_the_end(driver_kind: str, seconds: float) -> None:
    began = time.monotonic()
    printed = succeed(driver_kind, EXIT.format(places=PLACES, seconds=seconds), forked=USUAL)
    assert printed == "ends\n" + "returned\n" * (PLACES if seconds < 1 else 0)
    assert time.monotonic() - began < 25  # far less, but for the start of a process


def test_a_function_that_forks(driver_kind: str) -> None:
    script = """
        import asyncio, os
        from aiostream import Stream

        async def main():
            async with Stream() as stream:
                pid = await stream.run_in_thread(os.fork)
                print(pid > 0, os.waitpid(pid, 0)[1], flush=True)
                print(await stream.run_in_thread(int), flush=True)

        asyncio.run(main())
    """
    done = run_script(driver_kind, script, forked=USUAL)
    assert done.stdout == "True 0\n0\n", done.stderr


def test_a_forked_child_makes_no_threads(driver_kind: str) -> None:
    script = """
        import asyncio, os, threading
        from aiostream import Stream

        async def main():
            stream = Stream()
            await stream
            if (pid := os.fork()) == 0:
                try:
                    await stream.run_in_thread(print)
                except RuntimeError:
                    names = [each.name for each in threading.enumerate()]
                    print(any("launch" in name for name in names), flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
            stream.close()

        asyncio.run(main())
    """
    assert succeed(driver_kind, script, forked=USUAL) == "False\n"
