"""`serving.Batches`: which items share a batch, and who gets which result or error."""

from __future__ import annotations

import array
import asyncio
import collections
import contextlib
import contextvars
import re
import sys
import time
import types
from collections import Counter, UserDict, UserList
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import anyio
import pytest

from aiostream import PoolFullError, Stream, StreamClosedError, StreamPool
from aiostream.serving import Batches
from batching import double, held
from support import Gate
from waiters import turns, until


def all_tasks() -> set[Any]:
    """Those of asyncio's loop. On trio no task can be cancelled by itself."""
    try:
        return asyncio.all_tasks()
    except RuntimeError:  # no loop of asyncio runs
        return set()


# ------------------------------------------------------------------------------ what shares a batch


@pytest.mark.all_loops
async def test_items_of_one_turn_share_a_batch_and_get_their_own_results() -> None:
    async with StreamPool(2) as pool, Batches(pool, double, most=8) as doubled:
        found: dict[int, int] = {}

        async def ask(number: int) -> None:
            found[number] = await doubled(number)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(ask, number)
        assert found == {number: 2 * number for number in range(5)}
        assert await doubled(7) == 14
        assert doubled.sizes == Counter({5: 1, 1: 1})


@pytest.mark.all_loops
async def test_what_comes_while_the_gpu_is_busy_is_the_next_batch_in_order() -> None:
    async with held() as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, *range(1, 7))
        assert made.batches.waiting == 6
        assert "6 items wait, 1 are in batches" in repr(made.batches)
        assert "Batches of Held.fn" in repr(made.batches)
    assert made.seen == [[0], [1, 2, 3, 4], [5, 6]]
    assert made.outcomes == {number: 2 * number for number in range(7)}
    assert made.batches.sizes == Counter({1: 1, 4: 1, 2: 1})


async def test_many_streams_work_on_as_many_batches() -> None:
    streams = [Stream() for _ in range(3)]
    gate, left = Gate(), list(streams)

    def fn(items: list[int]) -> list[int]:
        gate.hold(left.pop())
        return items

    async with (
        contextlib.AsyncExitStack() as stack,
        StreamPool.borrow(streams) as pool,
        Batches(pool, fn, most=2) as same,
        anyio.create_task_group() as group,
    ):
        for stream in streams:
            await stack.enter_async_context(stream)
        # Which stream it gets does not matter: each holds another one.
        for number in range(6):
            group.start_soon(same, number)
        await until(lambda: not left)
        assert same.sizes == Counter({2: 3})
        gate.open()


async def test_one_item_more_than_may_wait_is_refused() -> None:
    async with held(max_waiting=2) as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, 1, 2, 3)
        assert isinstance(made.outcomes[3], PoolFullError)
        assert "2 items wait for Batches of Held.fn" in str(made.outcomes[3])
        assert "503" in str(made.outcomes[3])
    # The pool's own limit is 0, and does not count.
    assert made.seen == [[0], [1, 2]]


@pytest.mark.all_loops
async def test_items_that_idle_streams_will_take_are_not_refused() -> None:
    async with (
        StreamPool(2) as pool,
        Batches(pool, double, most=2, max_waiting=1) as doubled,
        anyio.create_task_group() as group,
    ):
        refused = []

        async def ask(number: int) -> None:
            try:
                await doubled(number)
            except PoolFullError:
                refused.append(number)

        for number in range(6):  # two batches of two, one that waits, and one more
            group.start_soon(ask, number)
    assert len(refused) == 1
    assert sum(size * count for size, count in doubled.sizes.items()) == 5


@pytest.mark.all_loops
async def test_a_task_that_tries_again_when_it_is_refused_does_not_keep_the_loop() -> None:
    async with held(max_waiting=1) as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, 1)
        ran = anyio.Event()

        async def other() -> None:
            ran.set()

        group.start_soon(other)
        end = time.monotonic() + 10
        while not ran.is_set() and time.monotonic() < end:
            with pytest.raises(PoolFullError):
                await made.batches(2)
        assert ran.is_set()


# ------------------------------------------------------------------------------ cancellation


@pytest.mark.all_loops
async def test_an_item_that_is_cancelled_before_its_batch_is_not_in_it() -> None:
    async with held() as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, 1)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as others:
                await made.begin(others, 2)
                assert made.batches.waiting == 2
                scope.cancel()
                made.gate.open()  # in the same step: the next batch begins before the task runs
        await made.begin(group, 3)
    assert [item for items in made.seen for item in items] == [0, 1, 3]
    assert made.outcomes == {0: 0, 1: 2, 3: 6}


@pytest.mark.all_loops
async def test_a_batch_goes_on_without_a_cancelled_task() -> None:
    async with held() as (made, group):
        async with anyio.create_task_group() as others:
            await made.begin(others, 0)
            await until(lambda: made.seen == [[0]])
            await made.begin(group, 1, 2)
            others.cancel_scope.cancel()
        assert made.outcomes == {}
        made.gate.open()
        await until(lambda: len(made.outcomes) == 2)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await made.batches(5)
        assert scope.cancelled_caught
        with anyio.CancelScope(shield=True):
            assert await made.batches(6) == 12
    assert made.seen == [[0], [1, 2], [6]]


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_an_item_alone_that_is_cancelled_leaves_the_others_to_a_task() -> None:
    """It is cancelled in the turn in which it waits for others."""
    async with StreamPool(1) as pool, Batches(pool, double, most=8) as doubled:
        for other in (None, 2):
            first = asyncio.ensure_future(doubled(1))
            await asyncio.sleep(0)
            rest = [asyncio.ensure_future(doubled(other))] if other else []
            first.cancel()
            assert await asyncio.gather(*rest) == [4] * len(rest)
            assert first.cancelled() or await asyncio.wait([first])
        assert doubled.waiting == 0
        assert doubled.sizes == Counter({1: 1})
        assert await doubled(3) == 6


@pytest.mark.all_loops
async def test_a_task_goes_on_with_its_stream_while_items_wait() -> None:
    """And gives it to others in their turn."""
    async with held(most=1) as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, 1, 2)
        async with Batches(made.pool, made.fn, most=1) as other:
            group.start_soon(other, "other")
            await turns()
            made.gate.open()
    assert made.seen == [[0], [1], ["other"], [2]]


async def test_nothing_runs_if_all_items_of_a_batch_are_cancelled() -> None:
    async with held() as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        async with anyio.create_task_group() as others:
            await made.begin(others, 1, 2)
            others.cancel_scope.cancel()
    assert made.seen == [[0]]
    assert made.batches.sizes == Counter({1: 1})


async def test_no_request_s_variables_reach_a_batch_or_the_next_one() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("of the block")
    seen = []

    def fn(items: list[int]) -> list[int]:
        seen.append(variable.get())
        variable.set("of a batch")
        return items

    async def ask(number: int) -> None:
        variable.set("of a request")
        await same(number)
        assert variable.get() == "of a request"

    async with (
        StreamPool(1) as pool,
        Batches(pool, fn, most=1) as same,
        anyio.create_task_group() as group,
    ):
        for number in range(3):
            group.start_soon(ask, number)
    assert seen == ["of the block"] * 3


# ------------------------------------------------------------------------------ errors


class ChoosyError(Exception):
    """Its copy would fail."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


def choosy() -> Exception:
    return ChoosyError(reason="no")


def chained() -> Exception:
    error = ValueError("no", 3)
    error.__cause__ = KeyError("cause")
    error.add_note("a note")
    return error


@pytest.mark.parametrize("make", [chained, choosy])
@pytest.mark.all_loops
async def test_an_error_reaches_each_task_of_its_batch_and_no_other(
    make: Callable[[], Exception],
) -> None:
    def answer(items: list[int]) -> list[int]:
        if 1 in items:
            raise make()
        return items

    async with held(most=3) as (made, group):
        made.answer = answer
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, 1, 2, 3, 4)
    assert made.outcomes[0] == 0
    assert made.outcomes[4] == 4
    errors = [made.outcomes[number] for number in (1, 2, 3)]
    assert {type(error) for error in errors} == {type(make())}
    assert {error.args for error in errors} == {make().args}
    assert len({id(error) for error in errors}) == (3 if make is chained else 1)
    for error in errors:
        names = []
        traceback = error.__traceback__
        while traceback is not None:
            names.append(traceback.tb_frame.f_code.co_name)
            traceback = traceback.tb_next
        assert "answer" in names  # where it was raised
    if make is chained:
        assert {repr(error.__cause__) for error in errors} == {"KeyError('cause')"}
        errors[0].add_note("of one task")
        assert [error.__notes__ for error in errors[1:]] == [["a note"]] * 2


async def test_a_result_that_is_an_exception_is_raised_in_its_own_task() -> None:
    wrong = ValueError("this one")
    async with held() as (made, group):
        made.answer = lambda items: [wrong if item == 1 else item for item in items]
        await made.begin(group, 0, 1, 2)
    assert made.outcomes == {0: 0, 1: wrong, 2: 2}


@pytest.mark.parametrize("results", [[], [1], [1, 2, 3], None])
async def test_another_number_of_results_is_a_type_error_for_that_batch(results: Any) -> None:
    async with held() as (made, group):
        made.answer = lambda items: results if len(items) == 2 else items
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, 1, 2)
        made.gate.open()
        await until(lambda: len(made.outcomes) == 3)
        assert await made.batches(3) == 3
    assert made.outcomes[0] == 0
    for number in (1, 2):
        assert isinstance(made.outcomes[number], TypeError)
        assert "Held.fn got 2 items and returned" in str(made.outcomes[number])
        what = "NoneType" if results is None else f"{len(results)} results"
        assert what in str(made.outcomes[number])


class Scores(NamedTuple):
    """As `torch.topk` returns it."""

    values: list[int]
    indices: list[int]


class Tensor:
    """As much of an array as `Batches` asks for."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return self.rows[index]


# Each of two items.
UNORDERED: dict[str, Callable[[], Any]] = {
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset({1, 2}),
    "dict": lambda: {0: 1, 1: 2},
    "dict_keys": {1: 0, 2: 0}.keys,
    "dict_values": {0: 1, 1: 2}.values,
    "dict_items": {0: 1, 1: 2}.items,
    "mappingproxy": lambda: types.MappingProxyType({0: 1, 1: 2}),
    "UserDict": lambda: UserDict({0: 1, 1: 2}),
    "Counter": lambda: Counter([1, 2]),
    "str": lambda: "ab",
    "bytes": lambda: b"ab",
    "bytearray": lambda: bytearray(b"ab"),
    "memoryview": lambda: memoryview(b"ab"),
    "Scores": lambda: Scores([1, 2], [0, 0]),
    "map": lambda: map(str, {1, 2}),  # another one's stream would compute it
    "int": lambda: 2,
}


def in_halves(results: Any) -> Any:
    yield
    return results


@pytest.mark.parametrize("name", UNORDERED)
async def test_what_is_no_ordered_collection_is_a_type_error_for_that_batch(name: str) -> None:
    async with held() as (made, group):
        made.gate.open()
        made.answer = lambda items: UNORDERED[name]() if len(items) == 2 else items
        for fn in (made.fn, lambda items: in_halves(made.answer(items))):
            async with Batches(made.pool, fn, most=2) as made.batches:
                await made.begin_together(group, 1, 2)
                await until(lambda: len(made.outcomes) == 2)
                assert await made.batches(3) == 3
            for number in (1, 2):
                error = made.outcomes.pop(number)
                assert isinstance(error, TypeError)
                assert f"got 2 items and returned {name}: it returns a list" in str(error)


@pytest.mark.parametrize(
    "kind",
    [list, tuple, collections.deque, UserList, partial(array.array, "i"), Tensor, "numpy.array"],
)
async def test_each_ordered_collection_gives_its_items_in_order(kind: Any) -> None:
    if kind == "numpy.array":
        kind = pytest.importorskip("numpy").array
    async with held() as (made, group):
        made.answer = lambda items: kind(double(items))
        await made.begin(group, 0, 3, 1, 2)
    assert made.outcomes == {0: 0, 1: 2, 2: 4, 3: 6}


async def test_a_row_of_an_array_for_each_item() -> None:
    numpy = pytest.importorskip("numpy")
    async with held() as (made, group):
        made.answer = lambda items: numpy.array([[each, -each] for each in items])
        await made.begin(group, 0, 3, 1)
    assert {item: [*row] for item, row in made.outcomes.items()} == {
        0: [0, 0],
        3: [3, -3],
        1: [1, -1],
    }


async def test_a_class_of_exceptions_is_no_result() -> None:
    async with held() as (made, group):
        made.answer = lambda items: [ValueError if item == 1 else item for item in items]
        await made.begin_together(group, 1, 2)
        await until(lambda: made.seen != [])
        await made.begin(group, 3)
    for number in (1, 2):
        assert isinstance(made.outcomes[number], TypeError)
        assert "returned a class of exceptions in place of one" in str(made.outcomes[number])
    assert made.outcomes[3] == 3


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("in_half", [0, 1, 2])
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_a_cancelled_error_of_a_function_cancels_no_task(
    in_half: int, number: int, in_thread: bool
) -> None:
    """As `future.result()` of a cancelled future raises it: all tasks get one error."""
    table: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    table.cancel("the table was not loaded")

    def halves(items: list[int]) -> Any:
        if in_half == 2:
            yield
        results = [table.result()[item] for item in items]
        yield
        return results

    def fn(items: list[int]) -> Any:
        if items == [9]:
            return items
        return halves(items) if in_half else [table.result()[item] for item in items]

    def is_told(error: object) -> bool:
        return (
            isinstance(error, RuntimeError)
            and re.search(r"fn has raised CancelledError\('the table was not", str(error))
            is not None
            and isinstance(error.__cause__, asyncio.CancelledError)
        )

    async with StreamPool(1) as pool, Batches(pool, fn, most=4, in_thread=in_thread) as scored:
        asks = [scored(item) for item in range(number)]
        errors = await asyncio.gather(*asks, return_exceptions=True)
        assert all(map(is_told, errors)), errors
        # Also in a task that has been asked to end before, as on Python 3.11 a TaskGroup leaves it.
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="its task was not cancelled"):
            await scored(1)
        task.uncancel()
        assert await scored(9) == 9


@pytest.mark.parametrize("come_together", [False, True])
@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.all_loops
async def test_a_function_that_closes_the_pool_has_the_last_batch(
    most: int, come_together: bool
) -> None:
    """The others come before it, or while it runs."""
    async with held(most=most) as (made, group):
        made.gate.open()

        def answer(items: list[int]) -> list[int]:
            if not come_together and len(made.seen) == 1:
                for each in range(1, 5):
                    group.start_soon(made.ask, each)
            made.pool.close()
            return double(items)

        made.answer = answer
        await made.begin_together(group, *(range(5) if come_together else [0]))
        await until(lambda: len(made.outcomes) == 5)
    assert len(made.seen) == 1
    for item, outcome in made.outcomes.items():
        assert (outcome == 2 * item) if item in made.seen[0] else type(outcome) is StreamClosedError


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_an_end_of_the_program_in_a_batch_is_raised_in_its_task(kind: Any) -> None:
    def fn(items: list[int]) -> list[int]:
        if items == [1]:
            raise kind("now")
        return items

    async with StreamPool(1) as pool, Batches(pool, fn, most=1) as same:
        # The loop would end at once if it left a task.
        with pytest.raises(kind, match="now"):
            await same(1)
        assert await same(2) == 2


class AnEnd(BaseException):
    """No Exception, such as what `pytest.fail` raises."""


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", [GeneratorExit, SystemExit, AnEnd])
async def test_an_end_that_a_function_raises_is_an_error(
    kind: Any, number: int, in_thread: bool
) -> None:
    """A GeneratorExit says elsewhere that the loop is gone, and no other one is a cancellation."""

    def fn(items: list[int]) -> list[int]:
        raise kind("now")

    found = []
    async with StreamPool(1) as pool, Batches(pool, fn, most=2, in_thread=in_thread) as fails:

        async def ask(item: int) -> None:
            with pytest.raises(kind, match="now"):
                await fails(item)
            found.append(item)

        async with anyio.create_task_group() as group:
            for item in range(number):
                group.start_soon(ask, item)
    assert sorted(found) == list(range(number))


@pytest.mark.parametrize("kind", [SystemExit, AnEnd])
@pytest.mark.parametrize("loop_kind", ["trio"])
async def test_an_end_that_no_task_waits_for_does_not_end_the_run_of_trio(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(found.exc_value))

    def fn(items: list[int]) -> list[int]:
        if items == [3]:
            return items
        scope.cancel()
        raise kind("now")

    async with StreamPool(1) as pool, Batches(pool, fn, most=2) as fails:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(fails, 1)
                group.start_soon(fails, 2)
        assert await fails(3) == 3
    assert [repr(each) for each in seen] == [repr(kind("now"))]


async def test_a_task_of_a_batch_that_is_cancelled_leaves_no_item_waiting() -> None:
    """As all tasks are when `asyncio.run` ends."""
    async with held(most=2) as (made, group):
        await made.begin_together(group, 0, 1)
        await until(lambda: len(made.seen) == 1)
        await made.begin(group, 2)
        if tasks := [each for each in all_tasks() if "Batches of" in str(each)]:
            for task in tasks:
                task.cancel()
            await until(lambda: len(made.outcomes) == 3)
            for error in made.outcomes.values():
                assert isinstance(error, RuntimeError)
                assert str(error) == "the task of Batches of Held.fn was cancelled"
                assert isinstance(error.__cause__, asyncio.CancelledError)
        made.gate.open()
        assert await made.batches(3) == 6


async def test_a_task_that_is_cancelled_before_it_begins_leaves_no_item_waiting() -> None:
    async with StreamPool(1) as pool, Batches(pool, double, most=8) as doubled:
        before = all_tasks()
        found: list[int] = []

        async def ask(number: int) -> None:
            found.append(await doubled(number))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, 1)
            group.start_soon(ask, 2)
            for _ in range(5):
                for task in all_tasks() - before:
                    if task.get_name().startswith("Batches of"):
                        task.cancel()
                        before.add(task)
                await anyio.lowlevel.checkpoint()
        assert sorted(found) == [2, 4]


async def test_wrong_arguments_are_refused() -> None:
    async with StreamPool(1) as pool:
        for options, error in [
            ({"most": 0}, ValueError),
            ({"most": 1.5}, TypeError),
            ({"most": 1, "max_waiting": 0}, ValueError),
            ({"most": 1, "in_thread": 1}, TypeError),
        ]:
            with pytest.raises(error):
                Batches(pool, double, **options)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes a StreamPool, not list"):
            Batches([], double, most=1)  # type: ignore[call-overload]

        async def awaits(items: list[int]) -> list[int]:
            return items

        with pytest.raises(TypeError, match="coroutine function"):
            Batches(pool, awaits, most=1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="async with"), Batches(pool, double, most=1):
            pass
