"""Which stages a wait goes through: what was done, by the counters and by the driver's calls. And
waits that come back to their task several times, because their stream has had work of several
lengths.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

import internals
from aiostream import statistics
from internals import EVENT_POLLS, WAITS_BY_TIMER, WAITS_HANDED_BACK, WAITS_WATCHED
from support import EVENT_STRATEGIES, Gate, cases_on_loops, held_stream
from waiters import (
    POLLS_IF_NOT_PREDICTED,
    THINGS,
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

    def queries() -> int:
        while True:  # until no pass of the watcher came between the two
            passes = statistics().watcher_passes
            found = simulator.calls("cuStreamQuery") - passes
            if statistics().watcher_passes == passes:
                return found

    with Gate() as gate:
        stream = held_stream(gate, wait="event")
        before = counts()
        asked = queries()
        async with anyio.create_task_group() as tasks:
            for _ in range(24):
                tasks.start_soon(stream.synchronize_async)
            await until(lambda: since(before).watched == 24)
            asked = queries() - asked
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
    assert now.handed_back <= now.watched + 1, now  # one may be counted late
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


# -------------------------------------------------------------------------- work of several lengths


LENGTHS = (0.012, 0.03)  # far apart, so that each gets a window of its own
STAGES = ["by timer", "handed back"]
on_loops = cases_on_loops("stage, thing", itertools.product(STAGES, THINGS))
POLLS_OF_ALL = 600  # more than the watcher makes before the last window closes


async def learn_lengths(waiter: Waiter, rounds: int = 1) -> None:
    """Waits for work of each length in turn."""
    for _ in range(rounds):
        for length in LENGTHS:
            waiter.work(length)
            await waiter.wait()


async def waiter_of_lengths(stage: str, thing: str) -> Waiter:
    """A waiter that expects ends at each of the lengths."""
    waiter = Waiter(stage, thing)
    internals.limit_timer(waiter.stage.timers)
    await learn_lengths(waiter, 3)
    return waiter


def enclose(waiter: Waiter, gate: Gate) -> None:
    """Holds the waiter when its stream is idle."""
    waiter.stream.synchronize()
    waiter.enclose(gate)


async def until_left(waiter: Waiter, times: int, outcome: Sequence[bool] = ()) -> None:
    """Lets the loop take turns until the wait was left to the timer or the watcher that often, or
    until there is an outcome.

    On a busy machine it may be left less often: then the watcher has it in the end.
    """

    def is_left() -> bool:
        left = waiter.grown(WAITS_BY_TIMER) + waiter.grown(WAITS_WATCHED)
        return bool(outcome) or left >= times or waiter.grown(EVENT_POLLS) > POLLS_OF_ALL

    await until(is_left)


async def check(waiter: Waiter) -> None:
    """Nothing is left behind, and the waiter serves as before."""
    await until(lambda: counts().pending == 0)
    await learn_lengths(waiter)


@on_loops
async def test_wait_comes_back_once_for_each_length(stage: str, thing: str) -> None:
    """The end does not come at any of them. At last the watcher has the wait, and sees its end."""
    expected = (2, 1, 0, 0) if stage == "by timer" else (0, 3, 2, 0)
    found = []
    for _ in range(20):
        waiter = await waiter_of_lengths(stage, thing)
        with Gate() as gate:
            enclose(waiter, gate)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                await until_left(waiter, 3)
                gate.open()
        now = since(waiter.before)
        await check(waiter)
        waiter.close()
        found.append((now.by_timer, now.watched, now.handed_back, now.spun))
        if found[-1] == expected:
            return
    raise AssertionError(found)


@cases_on_loops("stage, thing, end", itertools.product(STAGES, THINGS, ["cancelled", "over"]))
async def test_wait_ends_wherever_it_was_left(stage: str, thing: str, end: str) -> None:
    """It is cancelled, or its work ends, while the timer or the watcher has the wait for the first
    time, for the second or for the third.
    """
    waiter = await waiter_of_lengths(stage, thing)
    for times in (1, 2, 3):
        with Gate() as gate:
            enclose(waiter, gate)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                await until_left(waiter, times)
                tasks.cancel_scope.cancel() if end == "cancelled" else gate.open()
            assert waiter.stream.query() is (end == "over"), "the work goes on, or was awaited"
            assert waiter.grown(WAITS_HANDED_BACK) <= len(LENGTHS)
        await check(waiter)
    waiter.close()


@cases_on_loops(
    "stage, thing, moment",
    [
        ("by timer", "stream", "before"),
        ("by timer", "event", "after"),
        ("handed back", "event", "before"),
        ("handed back", "stream", "after"),
    ],
)
async def test_wait_is_cancelled_each_time_it_comes_back(
    monkeypatch: pytest.MonkeyPatch, stage: str, thing: str, moment: str, loop_kind: str
) -> None:
    """Just before the hand-back is delivered, when only the future is cancelled; or between the
    delivery and the task's next step.
    """
    waiter = await waiter_of_lengths(stage, thing)
    cancels: list[Callable[[], object]] = []
    returns: list[None] = []
    outcome: list[bool] = []

    async def wait() -> None:
        task: Any = asyncio.current_task() if loop_kind != "trio" else None
        with anyio.CancelScope() as scope:
            cancels.append(scope.cancel if task is None else task.cancel)
            try:
                await waiter.wait()
            except asyncio.CancelledError:
                outcome.append(True)
        outcome.append(scope.cancelled_caught)

    for times in (1, 2):

        def cancel_in_time(wait: Any, hand_back: Callable[[], None], times: int = times) -> None:
            returns.append(None)
            if len(returns) == times and moment == "before":
                cancels[-1]()
            hand_back()
            if len(returns) == times and moment == "after":
                cancels[-1]()

        returns.clear()
        outcome.clear()
        with Gate() as gate:
            enclose(waiter, gate)
            internals.intercept_hand_back(monkeypatch, cancel_in_time)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await until_left(waiter, 3, outcome)
                tasks.cancel_scope.cancel()  # unless it was cancelled before
            monkeypatch.undo()
        assert outcome[:1] == [True] or len(returns) < times
        await check(waiter)
    waiter.close()
