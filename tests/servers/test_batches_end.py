"""The end of a block of `serving.Batches`, the next block, and what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import weakref
from collections import Counter
from collections.abc import Generator
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import Stream, StreamClosedError, StreamPool
from aiostream.serving import Batches
from batching import Held, double
from interrupts import run_interrupted, sample
from support import Gate, new_uvloop, run_on
from waiters import turns, until


@pytest.mark.all_loops
async def test_the_end_waits_for_all_items_and_refuses_new_ones() -> None:
    async with Stream() as stream:
        made = Held(stream)
        with pytest.raises(RuntimeError, match="within their `async with` block"):
            await made.batches(0)
        async with made.pool, anyio.create_task_group() as group:
            async with made.batches:
                with pytest.raises(RuntimeError, match="has begun before"):
                    await made.batches.__aenter__()
                await made.begin(group, 0)
                await until(lambda: made.seen == [[0]])
                await made.begin(group, *range(1, 7))

                async def late() -> None:
                    await until(lambda: "closed" in repr(made.batches))
                    with pytest.raises(RuntimeError, match="within their `async with` block"):
                        await made.batches(9)
                    made.gate.open()

                group.start_soon(late)
            assert made.batches.waiting == 0
            assert made.batches.sizes == Counter({1: 1, 4: 1, 2: 1})
            async with made.batches:  # once more, when it is over
                assert await made.batches(9) == 18
    assert made.outcomes == {number: 2 * number for number in range(7)}


async def test_a_body_that_raises_cancels_nothing() -> None:
    async with Stream() as stream, anyio.create_task_group() as group:
        made = Held(stream)
        async with made.pool:
            with pytest.raises(KeyError):
                async with made.batches:
                    await made.begin(group, 0)
                    await until(lambda: made.seen == [[0]])
                    await made.begin(group, 1)
                    made.gate.open()
                    raise KeyError
            await until(lambda: len(made.outcomes) == 2)
    assert made.outcomes == {0: 0, 1: 2}


async def cancel_the_end(made: Held, group: anyio.abc.TaskGroup) -> None:
    """One item is in work then, and one waits."""
    with anyio.CancelScope() as scope:
        async with made.batches:
            await made.begin(group, 0)
            await until(lambda: made.seen == [[0]])
            await made.begin(group, 1)
            scope.cancel()
    assert scope.cancelled_caught


@pytest.mark.all_loops
async def test_a_cancelled_end_leaves_the_batches_to_themselves() -> None:
    async with Stream() as stream, anyio.create_task_group() as group:
        made = Held(stream)
        async with made.pool:
            await cancel_the_end(made, group)
            assert made.outcomes == {}
            made.gate.open()
            await until(lambda: len(made.outcomes) == 2)
    assert made.outcomes == {0: 0, 1: 2}


@pytest.mark.all_loops
async def test_a_block_after_a_cancelled_end_goes_on_with_its_items() -> None:
    async with Stream() as stream, anyio.create_task_group() as group:
        made = Held(stream)
        async with made.pool:
            await cancel_the_end(made, group)
            with anyio.fail_after(10):
                async with made.batches:
                    await made.begin(group, 2)
                    made.gate.open()
            assert made.seen == [[0], [1, 2]]
            await until(lambda: len(made.outcomes) == 3)
    assert made.outcomes == {0: 0, 1: 2, 2: 4}


@pytest.mark.all_loops
async def test_a_block_that_begins_while_one_ends_keeps_no_end_waiting() -> None:
    async with Stream() as stream, anyio.create_task_group() as group:
        made = Held(stream)
        async with made.pool:
            ended = []

            async def end() -> None:
                await made.batches.__aexit__(None, None, None)
                ended.append(made.batches.waiting)

            await made.batches.__aenter__()
            await made.begin(group, 0)
            group.start_soon(end)
            await turns()
            await made.batches.__aenter__()
            await made.begin(group, 1)
            group.start_soon(end)
            await turns()
            assert ended == []
            made.gate.open()
            await until(lambda: ended == [0, 0])
    assert made.outcomes == {0: 0, 1: 2}


def test_batches_that_are_at_work_in_one_loop_begin_in_no_other() -> None:
    async def leave() -> asyncio.Future[Any]:
        with anyio.CancelScope() as scope:
            async with made.batches:
                task = asyncio.ensure_future(made.ask(1))
                await until(lambda: made.seen == [[1]])
                scope.cancel()
        return task

    async def begin() -> None:
        with pytest.raises(RuntimeError, match="has not ended"):
            await made.batches.__aenter__()

    async def stay(task: Any) -> None:
        made.gate.open()
        await task
        await made.pool.aclose()

    with contextlib.closing(Stream()) as stream, asyncio.Runner() as runner:
        made = Held(stream, in_thread=True)
        task = runner.run(leave())
        asyncio.run(begin())
        runner.run(stay(task))
    assert made.outcomes == {1: 2}


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_the_end_does_not_wait_for_tasks_that_are_cancelled_before_they_begin() -> None:
    async with StreamPool(1) as pool:
        before = asyncio.all_tasks()
        for count in range(4):
            with anyio.fail_after(10):
                async with Batches(pool, double, most=4) as doubled:
                    asks = [asyncio.ensure_future(doubled(number)) for number in range(2)]
                    for _ in range(count):
                        await asyncio.sleep(0)
                    for task in asyncio.all_tasks() - before:
                        task.cancel()
            await asyncio.wait(asks)


async def test_a_closed_pool_ends_all_that_wait() -> None:
    async with Stream() as stream, anyio.create_task_group() as group:
        made = Held(stream)
        async with made.batches:
            await made.begin(group, 0)
            await until(lambda: made.seen == [[0]])
            await made.begin(group, 1, 2)
            made.pool.close()
            await until(lambda: len(made.outcomes) == 2)
            with pytest.raises(StreamClosedError):
                await made.batches(3)
        # The end did not wait for the GPU, which may hang.
        assert 0 not in made.outcomes
        made.gate.open()
        await until(lambda: len(made.outcomes) == 3)
    assert made.outcomes[0] == 0
    assert all(isinstance(made.outcomes[n], StreamClosedError) for n in (1, 2))
    assert made.outcomes[1] is not made.outcomes[2]


@pytest.mark.cuda_leaks(1)
async def test_a_lost_context_ends_all_that_wait(breakable: Any) -> None:
    async with anyio.create_task_group() as group:
        stream = Stream()
        made = Held(stream)
        async with made.batches:
            await made.begin(group, 0)
            await until(lambda: made.seen == [[0]])
            await made.begin(group, 1, 2)
            breakable.break_context(700)
            await until(lambda: len(made.outcomes) == 3)
            with pytest.raises(aiostream.ContextFailedError):
                await made.batches(3)
        made.gate.open()
        for thing in (made.pool, stream):
            with contextlib.suppress(aiostream.CudaError):
                thing.close()
    assert all(isinstance(error, aiostream.ContextFailedError) for error in made.outcomes.values())
    assert len({id(error) for error in made.outcomes.values()}) == 3


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_loop_that_is_closed_in_the_middle(kind: str) -> None:
    """Its tasks never run again. Another loop uses the batches, and nothing is kept."""
    if kind == "uvloop":
        pytest.importorskip("uvloop")
    made: Any = None

    async def leave() -> None:
        await made.batches.__aenter__()
        tasks: list[Any] = [asyncio.ensure_future(made.ask(n)) for n in range(2)]
        await until(lambda: made.seen == [[0, 1]])
        for task in {*tasks, *asyncio.all_tasks()}:  # else asyncio reports them
            task._log_destroy_pending = False

    async def use() -> None:
        made.gate.open()
        with pytest.raises(RuntimeError, match="in tasks of its loop"):
            await made.batches(5)
        async with made.batches:
            # The stream comes back when the dead task is gone.
            await until(lambda: gc.collect() >= 0 and made.pool.lent == 0)
            assert await made.batches(5) == 10
        await made.pool.aclose()

    with contextlib.closing(Stream()) as stream:
        made = Held(stream)
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(leave())
        finally:
            loop.close()
        del loop
        gc.collect()
        run_on(kind, use)


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_batches_are_used_again_after_their_loop_was_closed_at_a_yield(kind: str) -> None:
    """Without a collection of garbage."""

    def halves(items: list[int]) -> Generator[None, None, list[int]]:
        seen.append(items)
        gate.hold(stream)
        yield
        return items

    async def leave() -> None:
        await same.__aenter__()
        tasks: list[Any] = [asyncio.ensure_future(same(number)) for number in range(3)]
        await until(lambda: seen == [[0, 1]])
        for task in {*tasks, *asyncio.all_tasks()}:  # else asyncio reports them
            task._log_destroy_pending = False
        gate.open()

    async def use() -> None:
        with anyio.fail_after(10):
            async with same:
                assert await same(5) == 5
        await pool.aclose()

    seen: list[list[int]] = []
    with contextlib.closing(Stream()) as stream, Gate() as gate:
        pool = StreamPool.borrow([stream])
        same = Batches(pool, halves, most=2)
        loop = new_uvloop() if kind == "uvloop" else asyncio.new_event_loop()
        gc.collect()
        gc.disable()
        try:
            loop.run_until_complete(leave())
            loop.close()
            run_on(kind, use)
        finally:
            gc.enable()
            gc.collect()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_an_interrupt_leaves_no_item_without_an_answer(kind: str) -> None:
    """At a place of this class: each task gets a result or an error, and the end of the block
    comes. A stream that the interrupt has lost comes back when the pool is closed.
    """

    async def ask(same: Batches[int, int], item: int) -> None:
        try:
            outcomes[item] = await same(item)
        except BaseException as error:
            outcomes[item] = error

    async def use() -> None:
        pool = StreamPool(1)
        async with contextlib.AsyncExitStack() as stack:
            same = await stack.enter_async_context(Batches(pool, double, most=2))
            stack.callback(pool.close)
            asks = [asyncio.ensure_future(ask(same, item)) for item in range(4)]
            _, pending = await asyncio.wait(asks, timeout=1)
            pool.close()
            if pending:
                await asyncio.wait(asks)

    async def later() -> None:
        assert len(outcomes) in (0, 4)  # none if the block has not begun

    outcomes: dict[int, Any] = {}
    codes = {each.__code__ for each in vars(Batches).values() if inspect.isfunction(each)}
    interrupted = functools.partial(run_interrupted, kind, cancels=False, codes=codes)
    count = interrupted(0, use, later).passed
    for number in sample(count, 100, kind):
        outcomes.clear()
        interrupted(number, use, later)


async def test_nothing_is_kept_when_an_item_is_over() -> None:
    class Big:
        pass

    kept: list[weakref.ref[Big]] = []

    def fn(items: list[Any]) -> list[Any]:
        if len(items) == 2:
            raise ValueError
        return [Big() for _ in items]

    async with StreamPool(1) as pool, Batches(pool, fn, most=2) as made:

        async def ask() -> None:
            item = Big()
            kept.append(weakref.ref(item))
            with contextlib.suppress(ValueError):
                kept.append(weakref.ref(await made(item)))

        gc.collect()
        gc.disable()
        try:
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(ask)
            assert len(kept) == 4
            await until(lambda: [reference() for reference in kept] == [None] * 4)
        finally:
            gc.enable()
