"""Cancelled waits, in each stage; and trio's rule that each wait is a checkpoint."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import internals
from aiostream import Stream, drain
from support import Gate, cases_on_loops, settle, spin
from waiters import (
    THINGS,
    Waiter,
    counts,
    in_each_stage,
    in_each_stage_on_loops,
    since,
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


@in_each_stage
def test_asyncio_timeout_and_cancelled_task(stage: str, thing: str) -> None:
    async def main() -> None:
        async with waiter_in(stage, thing) as (waiter, _):
            task = asyncio.ensure_future(waiter.wait())
            await waiter.reach()
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await waiter.wait()
            with anyio.move_on_after(0.005) as scope:
                await waiter.wait()
            assert scope.cancelled_caught

    asyncio.run(main())


@pytest.mark.simulator_only("a GPU does not count its calls")
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
async def test_handed_back_wait_is_polled_once_per_loop_turn(
    monkeypatch: pytest.MonkeyPatch, loop_kind: str
) -> None:
    """Once as soon as its task resumes, and again only after a turn of the loop: the library
    measures the turn by that.
    """
    from aiostream import simulator

    queries: list[int] = []

    def poll_twice(wait: Any, hand_back: Callable[[], None]) -> None:
        internals.stop_watcher()  # it queries events too
        try:
            before = simulator.calls("cuEventQuery")
            assert wait.poll() is wait
            queries.append(simulator.calls("cuEventQuery") - before)
            assert next(wait.__await__()) is None
            queries.append(simulator.calls("cuEventQuery") - before)
        finally:
            internals.start_watcher()
        hand_back()

    for _ in range(20):  # see `Stage.predicted`: on a busy machine it may get no timer
        async with waiter_in("by timer") as (waiter, gate):
            internals.intercept_hand_back(monkeypatch, poll_twice)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                await waiter.reach()
                while not queries and since(waiter.before).watched == 0:
                    await anyio.lowlevel.checkpoint()
                gate.open()
            monkeypatch.undo()
        if queries:
            break
    assert queries == [1, 1]


@cases_on_loops("moment, thing", itertools.product(["before", "after"], THINGS))
async def test_wait_cancelled_while_it_is_handed_back(
    monkeypatch: pytest.MonkeyPatch, loop_kind: str, moment: str, thing: str
) -> None:
    """Just before the delivery, when only the future is cancelled; or between the delivery and the
    task's next step.
    """
    struck: list[bool] = []

    def cancel_meanwhile(wait: Any, hand_back: Callable[[], None]) -> None:
        if (
            given_up
        ):  # the whole group is cancelled already, and that would hide our own cancellation
            hand_back()
            return
        if moment == "before":
            cancel()
        hand_back()
        if moment == "after":
            cancel()
        struck.append(True)  # not the wait, which would not end while this list lives

    async def wait(waiter: Waiter) -> None:
        if loop_kind == "trio":
            with scope:
                await waiter.wait()
            outcome.append(scope.cancelled_caught)
            return
        task.append(asyncio.current_task())
        try:
            await waiter.wait()
        except asyncio.CancelledError:
            outcome.append(True)

    def cancel() -> None:
        if loop_kind == "trio":
            scope.cancel()
        else:
            task[-1].cancel()

    task: list[Any] = []
    for _ in range(20):
        async with waiter_in("handed back", thing) as (waiter, _):
            outcome: list[bool] = []
            given_up = False
            scope = anyio.CancelScope()
            internals.intercept_hand_back(monkeypatch, cancel_meanwhile)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, waiter)
                await waiter.reach()
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                if not struck:  # it was not predicted after all
                    given_up = True
                    tasks.cancel_scope.cancel()
            monkeypatch.undo()
        if struck:
            break
    assert outcome == [True]
    assert len(struck) == 1


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

    class Buffer:
        pass

    def use(stream: Stream, buffer: object) -> None:
        spin(stream, 0.004)

    async def request() -> weakref.ref[Buffer]:
        for _ in range(8 if known else 0):
            await stream.enqueue_async(use, None)
        buffer = Buffer()
        future: asyncio.Future[None]
        if call == "enqueue_async":
            future = stream.enqueue_async(use, buffer)
        else:
            spin(stream, 0.004)
            future = asyncio.ensure_future(stream.synchronize_async())
            await asyncio.sleep(0)
        assert future.cancel()
        await asyncio.gather(future, return_exceptions=True)
        return weakref.ref(buffer)

    stream = Stream(wait=wait)
    with asyncio.Runner() as runner:
        buffer = runner.run(request())
        assert settle(lambda: buffer() is None)
        assert asyncio.run(drain(5))
        runner.run(asyncio.sleep(0))
    stream.close()


async def test_cancelled_future_does_not_settle_those_before_it() -> None:
    """Another thread learns of its end, while the futures of its stream belong to this loop."""
    async with Stream() as stream:
        with Gate() as gate:
            gate.hold(stream)
            first = stream.enqueue_async(lambda _: 1)
            second = stream.enqueue_async(lambda _: 2)
            third = stream.enqueue_async(lambda _: 3)
            assert second.cancel()
            gate.open()
            assert (await third, first.result()) == (3, 1)
        assert await drain(5)


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
