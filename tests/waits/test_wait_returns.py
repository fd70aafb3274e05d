"""Waits that come back to their task several times before their end: their stream has had work of
several lengths.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

import internals
from internals import EVENT_POLLS, WAITS_BY_TIMER, WAITS_HANDED_BACK, WAITS_WATCHED
from support import Gate, cases_on_loops
from waiters import THINGS, Waiter, counts, since, until

pytestmark = pytest.mark.usefixtures("default_prediction")

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


def times_left(waiter: Waiter) -> int:
    """How often the wait was left to the timer or the watcher."""
    return waiter.grown(WAITS_BY_TIMER) + waiter.grown(WAITS_WATCHED)


async def until_left(waiter: Waiter, times: int, outcome: Sequence[bool] = ()) -> None:
    """Lets the loop take turns until then, or until there is an outcome.

    On a busy machine it may not get so far: then the watcher has it in the end.
    """
    await until(
        lambda: (
            bool(outcome) or times_left(waiter) >= times or waiter.grown(EVENT_POLLS) > POLLS_OF_ALL
        )
    )


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
