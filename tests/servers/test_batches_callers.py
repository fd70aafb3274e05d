"""`serving.Batches`: callers who ask again when they are answered share their batches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

import internals
from aiostream import PoolFullError, Stream, StreamPool
from aiostream.serving import Batches
from batching import held
from support import spin
from waiters import turns, until

LONG = 1e6  # the part of a batch's time that a stream waits, if the tests shall wait for no timer


class Model:
    """Its batches take 8 ms, however many items they have."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def same(self, items: list[Any]) -> Generator[None, None, list[Any]]:
        spin(self.stream, 0.008)
        yield
        return items


@asynccontextmanager
async def served(streams: int = 1, **options: Any) -> AsyncIterator[Batches[Any, Any]]:
    async with (
        StreamPool(streams, each=Model) as pool,
        Batches(pool, Model.same, **{"most": 16, **options}) as same,
    ):
        yield same


async def ask_again(same: Batches[Any, Any], times: int, further: int) -> None:
    """Asks again when it is answered and some turns of the loop are over."""
    for _ in range(times):
        await same(None)
        for _ in range(further):
            await anyio.lowlevel.checkpoint()


FURTHER: dict[str, Callable[[int], int]] = {
    **{f"{each} turns": partial(lambda turns, _: turns, each) for each in range(4)},
    "0 to 3 turns": lambda number: number % 4,
    "0 to 8 turns": lambda number: number,
}


@pytest.mark.alone
@pytest.mark.parametrize("further", FURTHER.values(), ids=FURTHER)
async def test_callers_who_come_back_share_their_batches(further: Callable[[int], int]) -> None:
    async with served() as same, anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(ask_again, same, 15, further(number))
    assert same.sizes.total() <= 18  # of 15, and 29 if there are two groups


@pytest.mark.alone
@pytest.mark.parametrize("groups", [(1, 1), (4, 4), (5, 4), (4, 4, 4)], ids=str)
async def test_groups_of_callers_become_one(groups: tuple[int, ...]) -> None:
    """Also equal ones, of which each would be there when the other one's batch ends."""
    async with served() as same, anyio.create_task_group() as group:
        for count in groups:
            for number in range(count):
                group.start_soon(ask_again, same, 15, number % 4)
            await until(lambda: same.waiting == 0)  # its batch has begun, or it waits for one
            await turns()
    assert same.sizes.total() <= 22  # of 15, and 30 if they stay two groups


# ------------------------------------------------------------------------------ what ends the wait


@pytest.fixture
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream waits for its callers until something else ends that."""
    internals.wait_for_callers(monkeypatch, LONG)


async def ended(made: Any, group: Any, *items: Any) -> None:
    """A batch of these items has ended. Its stream waits for two callers."""
    await made.begin_together(group, *items)
    await until(lambda: [*map(sorted, made.seen)] == [[*items]])
    made.gate.open()
    await until(lambda: len(made.outcomes) == len(items))
    await turns()


@pytest.mark.all_loops
async def test_the_last_caller_who_comes_back_ends_the_wait(for_long: None) -> None:
    async with held() as (made, group):
        await ended(made, group, 0, 1)
        await made.begin(group, 2)
        assert made.batches.waiting == 1
        assert made.pool.idle == 0
        await made.begin(group, 3)
        await until(lambda: len(made.outcomes) == 4)
    assert [*map(sorted, made.seen)] == [[0, 1], [2, 3]]


@pytest.mark.all_loops
async def test_another_task_that_wants_the_stream_ends_the_wait(for_long: None) -> None:
    async with held() as (made, group), Batches(made.pool, made.fn, most=1) as other:
        await ended(made, group, 0, 1)
        await made.begin(group, 2)
        assert await other("other") == "otherother"
        await until(lambda: len(made.outcomes) == 3)
    assert sorted(made.seen[1:], key=str) == [["other"], [2]]


@pytest.mark.all_loops
async def test_a_stream_that_others_wait_for_does_not_wait(for_long: None) -> None:
    async with held() as (made, group), Batches(made.pool, made.fn, most=1) as other:
        await made.begin_together(group, 0, 1)
        await until(lambda: bool(made.seen))
        group.start_soon(other, "other")
        await turns()
        made.gate.open()
        await until(lambda: made.seen[1:] == [["other"]])


@pytest.mark.all_loops
async def test_the_end_of_the_block_ends_the_wait(for_long: None) -> None:
    async with (
        StreamPool(1, each=Model) as pool,
        anyio.create_task_group() as group,
        Batches(pool, Model.same, most=4) as same,
    ):
        async with anyio.create_task_group() as first:
            first.start_soon(same, 0)
            first.start_soon(same, 1)
        group.start_soon(same, 2)
        await turns()
        assert same.waiting == 1
    assert same.sizes == Counter({2: 1, 1: 1})


@pytest.mark.all_loops
async def test_the_end_of_the_pool_ends_the_wait(for_long: None) -> None:
    async with held() as (made, group):
        await ended(made, group, 0, 1)
        await made.begin(group, 2)
        made.pool.close()
        await until(lambda: 2 in made.outcomes)
    assert "closed" in str(made.outcomes[2])


@pytest.mark.all_loops
async def test_a_caller_alone_finds_its_stream_idle(for_long: None) -> None:
    async with StreamPool(1, each=Model) as pool, Batches(pool, Model.same, most=4) as same:
        for _ in range(2):
            assert await same(0) == 0
            await until(lambda: pool.idle == 1)
    assert same.sizes == Counter({1: 2})


@pytest.mark.all_loops
async def test_a_stream_that_waits_is_idle_for_the_limit(for_long: None) -> None:
    async with held(max_waiting=1) as (made, group):
        await ended(made, group, 0, 1)
        await made.begin_together(group, 2, 3)
        await until(lambda: len(made.outcomes) == 4)
    assert not [each for each in made.outcomes.values() if isinstance(each, PoolFullError)]


@pytest.mark.all_loops
async def test_the_time_ends_the_wait_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timer is finer than a loop's own, and leaves the loop alone."""
    internals.wait_for_callers(monkeypatch, 0.25)
    took, ran = [], 0
    async with served() as same:

        async def caller() -> None:
            await same(None)

        for _ in range(10):
            async with anyio.create_task_group() as group:
                group.start_soon(caller)
                group.start_soon(caller)
            began, used = time.perf_counter(), time.thread_time()
            await same(None)  # the other one does not come back
            took.append(time.perf_counter() - began)
            ran += time.thread_time() - used > 0.002
    # The wait takes about 2 ms, and the batch 8.
    assert 0.0095 < min(took) < 0.0115
    assert ran < 5
