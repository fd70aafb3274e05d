"""Which stages a wait goes through: what was done, by the counters and by the driver's calls."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import internals
from aiostream import statistics
from internals import EVENT_POLLS
from support import EVENT_STRATEGIES, Gate, held_stream
from waiters import (
    POLLS_IF_NOT_PREDICTED,
    Waiter,
    counts,
    since,
    turns,
    until,
    use_many_timers,
    waiter_in,
)

pytestmark = pytest.mark.usefixtures("default_prediction")


@pytest.mark.simulator_only("a GPU does not count its calls")
async def test_always_busy_stream_is_not_queried_each_time() -> None:
    """After eight waits in a row that were not ready, only each eighth wait queries the stream: it
    may be ready again.
    """
    from aiostream import simulator

    with Gate() as gate:
        stream = held_stream(gate, wait="event")
        before = counts()
        asked = simulator.calls("cuStreamQuery") - statistics().watcher_passes
        async with anyio.create_task_group() as tasks:
            for _ in range(24):
                tasks.start_soon(stream.synchronize_async)
            await until(lambda: since(before).watched == 24)
            asked = simulator.calls("cuStreamQuery") - statistics().watcher_passes - asked
            gate.open()
    assert 9 <= asked <= 12, (
        "8 in a row, then each eighth; and the health of the contexts, as often as was counted"
    )
    ready = counts()
    for _ in range(16):
        await stream.synchronize_async()
    assert since(ready).ready >= 8, "it is queried again now that it is ready"
    stream.close()


@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
async def test_unpredicted_wait_stays_with_its_task_or_goes_to_the_watcher(strategy: Any) -> None:
    spun, watched = (1, 0) if strategy == "spin" else (0, 1)
    with Gate() as gate:
        stream = held_stream(gate, wait=strategy)
        before = counts()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.synchronize_async)
            await turns(100)
            await until(lambda: since(before).polls >= 40 * watched)
            gate.open()
        now = since(before)
        assert (now.spun, now.watched, now.by_timer, now.handed_back) == (spun, watched, 0, 0)
        assert watched or not now.polls
        stream.close()


async def test_watched_waits_are_handed_back_to_no_task() -> None:
    """The strategy "event" leaves them to the watcher, also when their length is known."""
    waiter = Waiter("watched")
    before = counts()
    for _ in range(100):  # on a busy machine the work may be over before its wait begins
        waiter.work(0.004)
        await waiter.wait()
        if since(before).watched == 10:
            break
    now = since(before)
    assert (now.watched, now.by_timer, now.spun, now.handed_back) == (10, 0, 0, 0)
    waiter.close()


@pytest.mark.parametrize(("stage", "most"), [("handed back", 0), ("by timer", 0.2)])
async def test_equal_waits_are_predicted(stage: str, most: float) -> None:
    """At most so large a part goes the other way: on an idle machine none."""
    waiter = Waiter(stage)
    await waiter.prepare()
    before = counts()
    for _ in range(400):
        waiter.work(0.008)
        await waiter.wait()
        now = since(before)
        predicted, other = now.handed_back, now.by_timer
        if stage == "by timer":
            predicted, other = other, predicted
        if predicted >= 10 and now.spun >= 5 and other <= most * predicted:
            break  # on an idle machine after a dozen
    else:
        raise AssertionError(now)
    assert now.handed_back <= now.watched, now
    waiter.close()


async def test_only_one_wait_of_a_stream_uses_a_timer() -> None:
    """Of two waits, the later one does not take as long as a wait by itself."""
    async with waiter_in("by timer") as (waiter, gate), anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        tasks.start_soon(waiter.wait)
        await until(lambda: since(waiter.before).watched > 0)
        assert since(waiter.before).by_timer <= 1
        gate.open()


async def test_many_waits_on_timers_all_complete() -> None:
    """Some in one turn of the loop and the others in the next ones, however many timers are due."""
    # Few on a machine that is busy with other things: see `Stage.predicted`.
    assert await use_many_timers() > 10


async def test_predicted_waits_of_two_tasks_are_not_handed_back() -> None:
    """Two tasks wait on one stream: neither wait is handed back, because the watcher must poll the
    other one too.
    """
    found = []
    for _ in range(20):
        async with waiter_in("handed back") as (waiter, gate), anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            tasks.start_soon(waiter.wait)
            await until(lambda waiter=waiter: waiter.grown(EVENT_POLLS) >= POLLS_IF_NOT_PREDICTED)
            now = since(waiter.before)
            gate.open()
        found.append((now.watched, now.handed_back))
        # On a busy machine the first may be handed back before the second begins.
        if found[-1] == (2, 0):
            return
    raise AssertionError(found)


async def test_without_prediction_no_wait_is_predicted() -> None:
    waiters = [Waiter("handed back"), Waiter("by timer")]
    for waiter in waiters:
        await waiter.prepare()
    internals.set_prediction(False)
    before = counts()
    for waiter in waiters:
        for _ in range(5):
            waiter.work(0.008)
            await waiter.wait()
        waiter.close()
    assert (since(before).by_timer, since(before).handed_back) == (0, 0)
