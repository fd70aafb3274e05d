"""`aiostream.ready`: waits for what only a function knows."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, assert_type

import anyio
import pytest

import aiostream
from aiostream.testing import Gate
from internals import HISTORIES, code_of_query, native_counters
from interrupts import run_interrupted, sample
from support import ASYNCIO_LOOPS, PLAIN_LOOPS, Blind, Kept, run_on, settle


class Work:
    """Says no that many times, and then gives its answer."""

    def __init__(self, noes: int, answer: Any = "done") -> None:
        self.noes, self.answer, self.calls = noes, answer, 0

    def query(self) -> Any:
        self.calls += 1
        return self.answer if self.calls > self.noes else None


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await anyio.sleep(0.001)


@pytest.mark.parametrize("noes", [0, 1, 2, 30])
async def test_ready_returns_the_first_answer_that_is_true(noes: int) -> None:
    work = Work(noes, answer=[7])
    assert await aiostream.ready(work.query) is work.answer
    assert work.calls == noes + 1
    await turns()
    assert work.calls == noes + 1  # nothing asks once it is over


async def test_ready_has_the_type_of_the_answer() -> None:
    assert_type(await aiostream.ready(lambda: 7), int)
    assert_type(await aiostream.ready(functools.partial(str.upper, "a"), key="a"), str)


async def test_many_wait_at_once_and_each_gets_its_own_answer() -> None:
    answers: dict[int, int] = {}

    async def one(number: int) -> None:
        until = time.monotonic() + 0.0002 * number
        answers[number] = await aiostream.ready(lambda: time.monotonic() > until and number)

    async with anyio.create_task_group() as group:
        for number in range(1, 60):
            group.start_soon(one, number)
    assert answers == {number: number for number in range(1, 60)}


@pytest.mark.parametrize("noes", [0, 3])
@pytest.mark.parametrize("error", [ValueError("broken"), StopIteration(), OSError()])
async def test_error_of_the_query_is_raised_in_its_task(noes: int, error: Exception) -> None:
    calls = 0

    def query() -> bool:
        nonlocal calls
        calls += 1
        if calls > noes:
            raise error
        return False

    other = Work(20)
    async with anyio.create_task_group() as group:
        group.start_soon(aiostream.ready, other.query)
        # Python makes a RuntimeError of a StopIteration that leaves a coroutine.
        expected = RuntimeError if isinstance(error, StopIteration) else type(error)
        with pytest.raises(expected) as raised:
            await aiostream.ready(query)
    assert error in (raised.value, raised.value.__cause__)
    assert other.calls == 21  # its neighbour did not suffer


async def test_answer_without_a_truth_is_an_error() -> None:
    class Array:
        def __bool__(self) -> bool:
            raise ValueError("the truth of an array")

    work = Work(2, answer=Array())
    with pytest.raises(ValueError, match="the truth of an array"):
        await aiostream.ready(work.query)


async def coroutine_function() -> bool:
    return True


class AsyncCall:
    async def __call__(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("query", "options", "match"),
    [
        (coroutine_function, {}, "says whether the work is over"),
        (AsyncCall(), {}, "says whether the work is over"),
        (functools.partial(coroutine_function), {}, "says whether the work is over"),
        (7, {}, "takes a callable"),
        (int, {"key": []}, "unhashable"),
    ],
)
async def test_wrong_arguments_are_refused(query: Any, options: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        await aiostream.ready(query, **options)


async def test_query_runs_in_the_thread_and_the_context_of_its_task() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    seen: list[tuple[int, int]] = []

    async def one(number: int) -> None:
        variable.set(number)
        mine = 0

        def query() -> bool:
            nonlocal mine
            mine += 1
            seen.append((variable.get(), threading.get_ident()))
            return mine > 5

        await aiostream.ready(query)

    async with anyio.create_task_group() as group:
        group.start_soon(one, 1)
        group.start_soon(one, 2)
    here = threading.get_ident()
    assert sorted(seen) == [(1, here)] * 6 + [(2, here)] * 6


async def test_cancelled_wait_ends_at_once_and_asks_no_more() -> None:
    work = Work(10**9)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(aiostream.ready, work.query)
            while work.calls < 2:
                await anyio.sleep(0)
            scope.cancel()
    assert scope.cancelled_caught
    calls = work.calls
    await turns()
    assert work.calls == calls
    work.noes = 0
    assert await aiostream.ready(work.query) == "done"  # and one may ask again


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
async def test_query_may_cancel_its_own_task_and_begin_others(loop_kind: str) -> None:
    loop, work = asyncio.get_running_loop(), Work(3)
    begun: list[asyncio.Task[Any]] = []
    calls = 0

    def query() -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            begun.append(loop.create_task(aiostream.ready(work.query)))
            task.cancel()
        return calls >= 3

    task = loop.create_task(aiostream.ready(query))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await begun[0] == "done"


async def test_loop_that_was_blocked_asks_again() -> None:
    is_over = False

    async def wait() -> None:
        with anyio.fail_after(10):
            assert await aiostream.ready(lambda: is_over)

    async with aiostream.Stream() as stream, anyio.create_task_group() as watched:
        with Gate() as gate:
            gate.hold(stream)
            watched.start_soon(stream.synchronize_async)  # so that the watcher runs
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await turns()
                time.sleep(0.3)  # it blocks the loop
                is_over = True


async def test_queries_leave_half_of_the_time_to_others() -> None:
    """Also if they are many, if each is slow, and if the loop drains its queue all the time.

    The times are of the thread's CPU, because other processes take time from both.
    """
    spent = 0.0

    def query() -> bool:
        nonlocal spent
        began = time.thread_time()
        while (used := time.thread_time() - began) < 0.0003:
            pass
        spent += used
        return False

    async with aiostream.Stream() as stream, anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(aiostream.ready, query)
        await anyio.sleep(0)
        spent, began = 0.0, time.thread_time()
        while (passed := time.thread_time() - began) < 0.15:
            await stream.synchronize_async()
            await anyio.sleep(0)
        group.cancel_scope.cancel()
    assert 0.02 < spent / passed < 0.7  # it was 0.95 when each drain asked all of them


def test_waits_with_the_same_code_learn_together() -> None:
    def made(number: int) -> Callable[[], int]:
        return lambda: number

    one, two = Work(1), Work(2)
    equal: list[list[Callable[[], Any]]] = [
        [made(1), made(2), functools.partial(made(3))],
        [one.query, two.query, functools.partial(one.query)],
        ["a".isdigit, "b".isdigit],
        [[0].copy, [1].copy],
    ]
    keys = [{code_of_query(query) for query in queries} for queries in equal]
    assert [len(each) for each in keys] == [1] * len(equal)
    assert len(set[Any]().union(*keys)) == len(equal)


async def test_thousands_of_keys_need_no_more_memory_than_one_thousand() -> None:
    async def wait(key: int) -> None:
        await aiostream.ready(Work(1).query, key=key)

    for key in range(1100):
        await wait(key)
    before = native_counters()[HISTORIES]
    for key in range(1100, 1400):
        await wait(key)
    assert native_counters()[HISTORIES] == before


@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
async def test_error_leaves_no_cycle(loop_kind: str) -> None:
    def failing() -> Callable[[], bool]:
        argument, noes = Kept(), iter([False, False])
        watched.append(weakref.ref(argument))

        def query() -> bool:
            assert argument
            return next(noes, None) is not None and 1 / 0 > 1

        return query

    watched: list[weakref.ref[Kept]] = []
    gc.disable()
    try:
        for _ in range(3):
            with contextlib.suppress(ZeroDivisionError):
                await aiostream.ready(failing())
        await asyncio.sleep(0)
        assert [each() for each in watched] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [asyncio.SelectorEventLoop, Blind])
def test_closed_loop_takes_its_waits_along(kind: Callable[[], asyncio.AbstractEventLoop]) -> None:
    work = Work(10**9)
    watched = weakref.ref(work)
    loop = kind()
    task: Any = loop.create_task(aiostream.ready(work.query))
    loop.run_until_complete(asyncio.sleep(0.002))
    task._log_destroy_pending = False
    loop.close()
    dropped = weakref.ref(loop)
    del task, work, loop
    assert settle(lambda: gc.collect() >= 0 and (watched(), dropped()) == (None, None))


def test_loop_without_readers_is_served_by_the_janitor() -> None:
    assert run_on("blind", aiostream.ready, Work(10).query) == "done"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("kind", PLAIN_LOOPS)
def test_interrupted_wait_neither_hangs_nor_asks_on(kind: str) -> None:
    def strike(number: int) -> Any:
        async def wait() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(aiostream.ready, Work(4).query)
                await aiostream.ready(Work(6).query)

        async def later() -> None:
            assert await aiostream.ready(Work(3).query) == "done"

        return run_interrupted(kind, number, wait, later, cancels=True)

    count = strike(0).passed
    assert count > 10
    for number in sample(count, 12, f"ready {kind}"):
        strike(number)


def test_each_loop_asks_only_its_own(loop_kind: str) -> None:
    """Two loops in two threads, each with a wait, and each query sees one thread."""
    threads: dict[str, set[int]] = {"one": set(), "two": set()}

    async def wait(name: str) -> None:
        work = Work(30)

        def query() -> Any:
            threads[name].add(threading.get_ident())
            return work.query()

        await aiostream.ready(query)

    other = threading.Thread(target=run_on, args=(loop_kind, wait, "two"))
    other.start()
    run_on(loop_kind, wait, "one")
    other.join()
    assert len(threads["one"]) == len(threads["two"]) == 1
    assert threads["one"] != threads["two"]
