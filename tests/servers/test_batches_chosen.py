"""`serving.Batches`: a cost, and a priority, choose what the next batch has."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
from collections import Counter, defaultdict
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import PoolFullError, Stream, StreamPool
from aiostream.serving import Batches
from batching import double, held
from support import FULL, cases_on_loops, run_on, spin
from waiters import turns, until


def padded(lengths: list[int]) -> int:
    return len(lengths) * max(lengths)


# ------------------------------------------------------------------------------ a cost


@pytest.mark.all_loops
async def test_items_are_taken_in_order_while_the_cost_allows() -> None:
    async with held(most=8, cost=padded, most_cost=32) as (made, group):
        await made.begin(group, 1)
        await until(lambda: made.seen == [[1]])
        await made.begin(group, 2, 3, 4, 20, 5, 6, 7, 8, 32, 9, 10)
    assert made.seen == [[1], [2, 3, 4], [20], [5, 6, 7, 8], [32], [9, 10]]
    assert made.outcomes == {item: 2 * item for items in made.seen for item in items}


async def test_an_item_that_costs_too_much_alone_is_a_value_error_at_its_call() -> None:
    async with held(cost=padded, most_cost=32) as (made, group):
        await made.begin(group, 1, 33, 2)
        assert made.batches.waiting == 1
    refused = made.outcomes.pop(33)
    assert isinstance(refused, ValueError)
    assert "alone costs 33" in str(refused)
    assert "32" in str(refused)
    assert made.outcomes == {1: 2, 2: 4}


@pytest.mark.all_loops
async def test_the_cost_is_asked_seldom() -> None:
    asked: list[int] = []

    def cost(items: list[int]) -> int:
        asked.append(len(items))
        return len(items)

    async with held(most=64, cost=cost, most_cost=10) as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin_together(group, *range(1, 50))
        assert asked == [1] * 50
    batches = len(made.seen) - 1
    assert [len(items) for items in made.seen] == [1, 10, 10, 10, 10, 9]
    assert len(asked) - 50 <= batches * (2 + math.log2(64))


@pytest.mark.all_loops
async def test_what_the_cost_raises_is_raised_where_it_was_asked() -> None:
    def cost(items: list[int]) -> int:
        if 13 in items:
            raise KeyError("alone")
        if 7 in items and len(items) > 1:
            raise KeyError("together")
        return 1

    async with held(cost=cost, most_cost=1) as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, 13, 1, 2, 7, 3, 4)
    errors = {item: str(each) for item, each in made.outcomes.items() if isinstance(each, KeyError)}
    assert errors == {13: "'alone'", **dict.fromkeys((1, 2, 7, 3), "'together'")}
    assert made.outcomes[4] == 8
    assert made.seen == [[0], [4]]


async def test_a_wrong_cost_is_refused() -> None:
    async def not_plain(items: list[int]) -> int:
        return 1

    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (TypeError, {"cost": padded}),
        (TypeError, {"most_cost": 8}),
        (TypeError, {"cost": not_plain, "most_cost": 8}),
        (TypeError, {"cost": padded, "most_cost": "8"}),
        (ValueError, {"cost": padded, "most_cost": math.nan}),
        (TypeError, {"name": 3}),
    ]
    async with StreamPool(1) as pool:
        for error, options in wrong:
            with pytest.raises(error):
                Batches(pool, double, most=1, **options)


# ------------------------------------------------------------------------------ a priority


@pytest.mark.all_loops
async def test_higher_ones_are_first_and_equal_ones_in_order() -> None:
    async with held(most=2) as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        for item, priority in {1: 0, 2: -1, 3: 5, 4: 0, 5: 5, 6: 2**70, 7: 0}.items():
            group.start_soon(functools.partial(made.batches, item, priority=priority))
            await turns()
        assert made.batches.waiting == 7
        assert len([each for each in aiostream.pending() if each["function"] == "Held.fn"]) >= 7
        made.gate.open()
        await until(lambda: len(made.seen) == 5)
    assert made.seen == [[0], [6, 3], [5, 1], [4, 7], [2]]


@pytest.mark.all_loops
async def test_the_limit_counts_all_priorities_and_a_cancelled_one_leaves() -> None:
    async with held(max_waiting=2) as (made, group):
        await made.begin(group, 0)
        await until(lambda: made.seen == [[0]])
        await made.begin(group, 1)
        async with anyio.create_task_group() as others:
            others.start_soon(functools.partial(made.batches, 2, priority=1))
            await turns()
            with pytest.raises(PoolFullError):
                await made.batches(3, priority=2)
            others.cancel_scope.cancel()
        await made.begin(group, 4)
    assert made.seen == [[0], [1, 4]]


async def test_a_priority_is_an_int() -> None:
    async with held() as (made, _):
        made.gate.open()
        wrong: Any
        for wrong in (None, 0.5, "1"):
            with pytest.raises(TypeError, match="priority is an int"):
                await made.batches(1, priority=wrong)
        assert await made.batches(2, priority=-3) == 4


# ------------------------------------------------------------------------------ at random


class UnluckyError(Exception):
    """What a random batch raises."""


MOST_COST = 40


@cases_on_loops("streams", [(1,), (3,)])
def test_random_costs_and_priorities_keep_all_rules(streams: int, loop_kind: str) -> None:
    """With random cancellations, timeouts and errors."""
    count = 100_000 if FULL else 1000
    ended = run_on(loop_kind, choose_at_random, random.Random(3), count, streams)
    assert ended.total() == count
    assert not ended["wrong"]
    assert ended["done"] > count / 50
    assert min(ended[each] for each in ("timeout", "error", "too much", "refused")) > 0


async def choose_at_random(chance: random.Random, count: int, size: int) -> Counter[str]:
    """Asks for `count` items. Each is a number, a cost and a priority."""
    seen: Counter[int] = Counter()
    ended: Counter[str] = Counter()
    taken: defaultdict[int, int] = defaultdict(lambda: -1)  # the latest number of each priority
    asked: dict[int, int] = {}  # when each was asked for, in order
    numbers, calls = iter(range(count)), itertools.count()
    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(Stream()) for _ in range(size)]
        pool = await stack.enter_async_context(StreamPool.borrow(streams))

        def fn(items: list[tuple[int, int, int]]) -> list[Any]:
            assert cost(items) <= MOST_COST
            assert len(items) <= 7
            ranks = [priority for _, _, priority in items]
            assert ranks == sorted(ranks, reverse=True)
            seen.update(number for number, _, _ in items)
            for number, _, priority in items:
                # On several streams a batch may launch before one that was taken before it.
                assert size > 1 or taken[priority] < asked[number]
                taken[priority] = asked[number]
            spin(chance.choice(streams), chance.random() * 0.0003)
            if next(calls) % 10 == 9:
                raise UnluckyError(items)
            return [("result", number) for number, _, _ in items]

        def cost(items: list[tuple[int, int, int]]) -> int:
            return len(items) * max(length for _, length, _ in items)

        options: Any = {"most": 7, "max_waiting": 40, "cost": cost, "most_cost": MOST_COST}
        async with Batches(pool, fn, **options) as batches, anyio.create_task_group() as group:

            async def client() -> None:
                for number in numbers:
                    await ask(number, chance.choice([1, 2, 4, 8, 40, 41]), chance.randrange(-1, 3))

            async def ask(number: int, length: int, priority: int) -> None:
                patience = chance.choice([None, None, None, 0, chance.random() * 0.002])
                outcome = "timeout"
                with anyio.move_on_after(patience):
                    try:
                        asked[number] = len(asked)
                        item = number, length, priority
                        found = await batches(item, priority=priority)
                        outcome = "done" if found == ("result", number) else "wrong"
                    except ValueError:
                        outcome = "too much" if length > MOST_COST else "wrong"
                    except UnluckyError as error:
                        outcome = "error" if item in error.args[0] else "wrong"
                    except PoolFullError:
                        outcome = "refused"
                        await anyio.sleep(0.001)
                ended[outcome] += 1
                assert seen[number] <= 1
                assert seen[number] == 1 or outcome in ("timeout", "refused", "too much")

            for _ in range(48):
                group.start_soon(client)
        assert batches.waiting == 0
        assert sum(size * n for size, n in batches.sizes.items()) == len(seen)
    return ended
