"""Cancelled waits, in each stage; and trio's rule that each wait is a checkpoint."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import anyio
import pytest

from aiostream import Stream, drain
from support import Gate, Kept, settle, spin
from waiters import (
    Waiter,
    counts,
    in_each_stage,
    in_each_stage_on_loops,
    take_spare_records,
    until,
    waiter_in,
)

pytestmark = pytest.mark.usefixtures("default_prediction")


@in_each_stage_on_loops
async def test_cancelled_wait_raises_at_once(stage: str, thing: str) -> None:
    async with waiter_in(stage, thing) as (waiter, _):
        caught = []

        async def wait(scope: anyio.CancelScope) -> None:
            with scope:
                await waiter.wait()
            caught.append(scope.cancelled_caught)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()
                tasks.start_soon(wait, scope)
                await waiter.reach()
                scope.cancel()
        assert caught == [True]
        assert not waiter.stream.query(), "the work goes on"


@pytest.mark.simulator_only("a GPU does not count its calls")
@in_each_stage_on_loops
async def test_cancelled_waits_lose_no_records(stage: str, thing: str) -> None:
    """The library reuses their events once the GPU has passed them."""
    from aiostream import simulator

    waiter, other = Waiter(stage, thing), Stream()
    spare = take_spare_records(other)
    rounds_without = 0
    for _ in range(60):  # a watcher that is late may still have the records of many rounds
        made = simulator.calls("cuEventCreate")
        with Gate() as gate:
            await waiter.hold(gate)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                await waiter.reach()
                tasks.cancel_scope.cancel()
        await waiter.wait()
        rounds_without = rounds_without + 1 if simulator.calls("cuEventCreate") == made else 0
        if rounds_without == 10:
            break
    assert rounds_without == 10, "new events are made again and again"
    spare.clear()
    await until(lambda: counts().pending == 0)
    waiter.close()
    other.close()


@pytest.mark.parametrize("wait", ["auto", "event"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("call", ["enqueue_async", "synchronize_async"])
def test_cancelled_waits_end_while_their_loop_is_idle(call: str, known: bool, wait: Any) -> None:
    """A loop that is not closed, but does not run, as between two tests of one session's loop."""

    def use(stream: Stream, buffer: object) -> None:
        gate.hold(stream)

    async def request() -> weakref.ref[Kept]:
        for _ in range(8 if known else 0):
            await stream.enqueue_async(spin, 0.004)
        buffer = Kept()
        future: asyncio.Future[None]
        if call == "enqueue_async":
            future = stream.enqueue_async(use, buffer)
        else:
            use(stream, None)
            future = asyncio.ensure_future(stream.synchronize_async())
            await asyncio.sleep(0)
        assert future.cancel()
        await asyncio.gather(future, return_exceptions=True)
        return weakref.ref(buffer)

    stream = Stream(wait=wait)
    with Gate() as gate, asyncio.Runner() as runner:
        buffer = runner.run(request())
        gate.open()
        assert settle(lambda: buffer() is None)
        assert asyncio.run(drain(5))
        runner.run(asyncio.sleep(0))
    stream.close()


# --------------------------------------------------------------------------- trio's checkpoint rule


@in_each_stage
def test_each_wait_is_a_checkpoint_on_trio(stage: str, thing: str) -> None:
    import trio
    import trio.testing

    async def main() -> None:
        async with waiter_in(stage, thing) as (waiter, gate):

            async def open_soon() -> None:
                await waiter.reach()
                gate.open()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(open_soon)
                with trio.testing.assert_checkpoints():
                    await waiter.wait()
            with trio.testing.assert_checkpoints():
                await waiter.wait()  # ready, or about to be
            with trio.CancelScope() as scope:
                scope.cancel()
                await waiter.wait()
            assert scope.cancelled_caught

    trio.run(main)
