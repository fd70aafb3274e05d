"""Waits whose context fails, or whose loop is closed, in each stage."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import internals
from aiostream import ContextFailedError, statistics
from support import Gate, cases_on_loops, new_uvloop, recover, run_on, settle
from waiters import CASES, Waiter, in_each_stage, since, waiter_in

pytestmark = pytest.mark.usefixtures("default_prediction")


@pytest.mark.simulator_only("a GPU's context cannot be recovered")
@cases_on_loops(
    "stage, thing",
    [
        pytest.param(
            *case,
            marks=pytest.mark.cuda_leaks(2 if "host function" in case or "future" in case else 0),
        )
        for case in CASES
    ],
)
async def test_failing_context_fails_the_wait(
    breakable: Any, stage: str, thing: str, loop_kind: str
) -> None:
    async with waiter_in(stage, thing) as (waiter, _):
        errors = []

        async def wait() -> None:
            with pytest.raises(ContextFailedError) as caught:
                await waiter.wait()
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await waiter.reach()
            leaks = stage == "host function" or thing == "future"
            while (
                leaks
                and statistics().points.armed < waiter.counters_before[internals.POINTS_ARMED] + 2
            ):
                await anyio.lowlevel.checkpoint()  # both, because a refused one would leak nothing
            breakable.break_context(719)
            began = time.monotonic()
        assert time.monotonic() - began < 1.0
        assert [error.code for error in errors] == [719, 719]
        assert errors[0] is not errors[1]
        assert all(error.call for error in errors)
        recover()


@pytest.mark.simulator_only("a GPU's context cannot be recovered")
@pytest.mark.parametrize("loop_kind", ["asyncio", "trio"])
async def test_context_that_fails_while_a_wait_is_handed_back(
    breakable: Any, monkeypatch: pytest.MonkeyPatch, loop_kind: str
) -> None:
    struck: list[Any] = []
    errors: list[ContextFailedError] = []

    def break_and_hand_back(wait: Any, hand_back: Callable[[], None]) -> None:
        breakable.break_context(700)
        struck.append(wait)
        hand_back()

    while not struck:
        async with waiter_in("handed back") as (waiter, gate):
            internals.intercept_hand_back(monkeypatch, break_and_hand_back)

            async def open_if_not_predicted(waiter: Waiter = waiter, gate: Gate = gate) -> None:
                await waiter.reach()
                if not struck and not since(waiter.before).handed_back:
                    struck.clear()
                    monkeypatch.undo()
                    gate.open()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(open_if_not_predicted)
                try:
                    with anyio.fail_after(20):
                        await waiter.wait()
                    assert not struck
                except ContextFailedError as error:
                    errors.append(error)
            monkeypatch.undo()
            recover()
    assert [error.code for error in errors] == [700]


# ---------------------------------------------------------------------------- loops that are closed


@pytest.mark.parametrize(
    ("loop_kind", "collected"),
    [
        ("asyncio", "by hand"),
        ("asyncio", "at once"),
        ("asyncio", "when the GPU has passed"),
        ("uvloop", "when the GPU has passed"),
    ],
)
@in_each_stage
def test_loop_that_is_closed_with_a_wait_in_each_stage(
    loop_kind: str,
    stage: str,
    thing: str,
    collected: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The task is not cancelled but dropped with its loop.

    (trio ends no run before its tasks have ended.)
    """
    waiter = Waiter(stage, thing)
    loop = new_uvloop() if loop_kind == "uvloop" else asyncio.new_event_loop()
    with Gate() as gate:
        loop.run_until_complete(waiter.hold(gate))
        coroutine = waiter.wait()
        task = loop.create_task(coroutine)
        # Silences asyncio's own complaint, which is right.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(waiter.reach())
        loop.close()
        if collected == "by hand":
            coroutine.close()
        del coroutine
        if collected == "at once":
            del task
            gc.collect()
    if collected == "when the GPU has passed":
        waiter.stream.synchronize()
        assert settle(lambda: statistics().points.pending == 0)
        del task
        gc.collect()
    assert settle(lambda: statistics().futures.pending == 0)
    run_on(loop_kind, waiter.wait)  # the stream serves the next loop
    waiter.close()
    assert capfd.readouterr().err == ""
    assert not caplog.records
