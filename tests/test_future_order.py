"""Futures of one stream and one loop settle in the stream's order, whatever ends them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from aiostream import Stream, statistics
from support import Gate, held_stream, spin
from waiters import until

KINDS: dict[str, Callable[[Stream], Any]] = {
    "event": lambda stream: stream.enqueue_async(lambda _: None),
    "host_function": Stream.completion_future,
    "callback": Stream.checked_completion_future,
}
PAIRS = [pytest.param(*pair, id="_then_".join(pair)) for pair in itertools.permutations(KINDS, 2)]


@pytest.mark.parametrize("first_used", KINDS)
async def test_all_kinds_settle_in_one_order(first_used: str) -> None:
    """Also if the watcher has some of them, and the driver's thread tells the loop of others."""
    stream, order, futures = Stream(), list[int](), list[Any]()
    await KINDS[first_used](stream)
    watched = statistics().waits.watched
    with Gate() as gate:
        gate.hold(stream)
        for number, kind in enumerate([*KINDS.values(), *reversed(KINDS.values())] * 3):
            future = kind(stream)
            future.add_done_callback(lambda _, number=number: order.append(number))
            futures.append(future)
        await until(lambda: statistics().waits.watched > watched)  # the loop polls none of them
        gate.open()
        for future in reversed(futures):
            await future
    await until(lambda: len(order) == len(futures))
    assert order == sorted(order)
    stream.close()


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
@pytest.mark.parametrize("length", [0.0, 0.0003, 0.005])
async def test_a_later_future_leaves_no_earlier_one_open(
    earlier: str, later: str, length: float
) -> None:
    stream = Stream()
    for _ in range(60):
        spin(stream, length)
        before = KINDS[earlier](stream)
        await KINDS[later](stream)
        assert before.done()
        assert before.result() is None
    stream.close()


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
async def test_objects_on_one_stream_share_the_order(earlier: str, later: str) -> None:
    """Each is new, so that it has looked up nothing."""
    owner = Stream()
    for _ in range(10):
        first, second = owner.to_borrowed(), Stream.borrow(owner.handle)
        spin(owner, 0.002)
        before = KINDS[earlier](first)
        await KINDS[later](second)
        assert before.done()
    owner.close()


async def test_cancelled_future_does_not_stand_in_the_way() -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        futures = [kind(stream) for kind in KINDS.values() for _ in range(3)]
        for future in futures[::3]:
            future.cancel()
        gate.open()
        await futures[-1]
    assert all(future.done() for future in futures)
    assert [future.cancelled() for future in futures] == [True, False, False] * 3
    await until(lambda: statistics().points.pending == 0)
    stream.close()


async def test_streams_do_not_wait_for_each_other() -> None:
    with Gate() as gate:
        held, free = held_stream(gate), Stream()
        waiting = [kind(held) for kind in KINDS.values()]
        for kind in KINDS.values():
            await kind(free)
        assert not any(future.done() for future in waiting)
        gate.open()
        for future in waiting:
            await future
    held.close()
    free.close()
