"""Waits whose context fails, or whose loop is closed, in each stage."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import anyio
import pytest

import internals
from aiostream import ContextFailedError, statistics
from support import Blind, Gate, Kept, cases_on_loops, new_uvloop, recover, run_on, settle
from waiters import CASES, Waiter, in_each_stage, until, waiter_in

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
            # Both, because a refused one would leak nothing.
            await until(lambda: not leaks or waiter.grown(internals.POINTS_ARMED) >= 2)
            breakable.break_context(719)
            began = time.monotonic()
        assert time.monotonic() - began < 1.0
        assert [error.code for error in errors] == [719, 719]
        assert errors[0] is not errors[1]
        assert all(error.call for error in errors)
        recover()


# ---------------------------------------------------------------------------- loops that are closed


@pytest.mark.parametrize(
    ("loop_kind", "collected"),
    [
        ("asyncio", "by hand"),
        ("asyncio", "at once"),
        ("asyncio", "when the GPU has passed"),
        ("uvloop", "when the GPU has passed"),
        ("blind", "at once"),
        ("blind", "when the GPU has passed"),
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
    """The task is not cancelled but dropped with its loop. What a future keeps outlives both.

    (trio ends no run before its tasks have ended.)
    """
    waiter, kept = Waiter(stage, thing), [Kept()]
    watched = weakref.ref(kept[0])
    loop = {"uvloop": new_uvloop, "blind": Blind}.get(loop_kind, asyncio.new_event_loop)()
    with Gate() as gate:
        loop.run_until_complete(waiter.hold(gate))
        coroutine = waiter.wait(kept.pop())
        task = loop.create_task(coroutine)
        # Silences asyncio's own complaint, which is right.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(waiter.reach())
        loop.close()
        if collected == "by hand":
            coroutine.close()
            del task
        del coroutine
        if collected == "at once":
            del task
            gc.collect()
            assert thing != "future" or watched() is not None, "the GPU has not passed"
    if collected == "when the GPU has passed":
        waiter.stream.synchronize()
        assert settle(lambda: statistics().points.pending == 0)
        del task
        gc.collect()
    assert settle(lambda: statistics().futures.pending == 0)
    assert settle(lambda: gc.collect() >= 0 and watched() is None)
    run_on(loop_kind, waiter.wait)  # the stream serves the next loop
    waiter.close()
    assert capfd.readouterr().err == ""
    assert not caplog.records
