"""Futures of one stream and one loop settle in the stream's order, whatever ends them."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import internals
from aiostream import ContextFailedError, Stream, statistics
from interrupts import at_line
from support import PLAIN_LOOPS, Gate, Kept, cases_on_loops, held_stream, spin
from waiters import until

KINDS: dict[str, Callable[[Stream], Any]] = {
    "event": lambda stream: stream.enqueue_async(lambda _: None),
    "host_function": Stream.completion_future,
    "callback": Stream.checked_completion_future,
}
PAIRS = list(itertools.product(KINDS, repeat=2))


@pytest.mark.parametrize("first_used", KINDS)
async def test_all_kinds_settle_in_one_order(first_used: str) -> None:
    """Also if the watcher has some of them, and the driver's thread reports others to the loop."""
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


@cases_on_loops(
    "earlier, later, length", [(*pair, length) for pair in PAIRS for length in (0.0, 0.0003, 0.005)]
)
async def test_a_later_future_leaves_no_earlier_one_open(
    earlier: str, later: str, length: float
) -> None:
    """Also if each belongs to another object, which is new and has looked up nothing."""
    owner = Stream()
    for number in range(30):
        streams = (owner.to_borrowed(), Stream.borrow(owner)) if number % 3 else (owner, owner)
        spin(owner, length)
        before = KINDS[earlier](streams[0])
        await KINDS[later](streams[1])
        assert before.done()
        assert before.result() is None
    owner.close()


async def test_cancelled_future_does_not_stand_in_the_way() -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        futures = [kind(stream) for kind in KINDS.values() for _ in range(3)]
        for future in futures[1::3]:
            future.cancel()
        gate.open()
        await futures[-1]
    assert all(future.done() for future in futures)
    assert [future.cancelled() for future in futures] == [False, True, False] * 3
    assert [future.result() for future in futures if not future.cancelled()] == [None] * 6
    await until(lambda: statistics().points.pending == 0)
    stream.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_work_that_a_signal_handler_enqueues_in_between(kind: str) -> None:
    """It may be behind or in front of the point whose call it interrupts. It lies behind a gate, so
    it must not end, and its buffer must live, whatever ends before.
    """
    stream = Stream()
    for number in itertools.count(1):
        with Gate() as gate:
            inner: list[Any] = []

            def handle(gate: Gate = gate, inner: list[Any] = inner) -> None:
                gate.hold(stream)
                buffer = Kept()
                inner.append(weakref.ref(buffer))
                inner.append(stream.enqueue_async(lambda _, kept: None, buffer))

            with at_line(number, handle) as lines:
                outer = KINDS[kind](stream)
            if len(lines) < number:
                break
            later = KINDS[kind](stream)
            await anyio.sleep(0.0005)
            gc.collect(1)  # which is all that this round has made
            assert inner[0]() is not None, number
            assert (inner[1].done(), later.done()) == (False, False), number
            gate.open()
            await later
            assert (outer.done(), inner[1].done()) == (True, True), number
    assert number > 15
    stream.close()


@pytest.mark.cuda_leaks(2)
@pytest.mark.simulator_only("a GPU does not recover")
@pytest.mark.parametrize("loop_kind", PLAIN_LOOPS)
async def test_failed_futures_leave_the_order(breakable: Any) -> None:
    """Also if no later future of the stream comes."""
    stream = Stream()
    with Gate() as gate:
        gate.hold(stream)
        futures = [kind(stream) for kind in KINDS.values()]
        assert internals.ordered_completions() == len(futures)
        breakable.break_context(700)
        for future in futures:
            with pytest.raises(ContextFailedError):
                await future
        breakable.recover()
        gate.open()
    await until(lambda: internals.ordered_completions() == 0)
    stream.close()
