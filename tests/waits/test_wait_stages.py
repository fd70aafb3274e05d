"""Which stages a wait goes through: what was done, by the counters and by the driver's calls."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import anyio
import pytest

import internals
from aiostream import Event, Stream, statistics
from support import EVENT_STRATEGIES, Gate, held_stream, run_on, settle, spin
from waiters import POLLS_IF_NOT_PREDICTED, Waiter, counts, default_wait, since, waiter_in

pytestmark = pytest.mark.usefixtures("default_prediction")


@pytest.mark.simulator_only("a GPU does not count its calls")
@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
async def test_ready_stream_costs_one_query(strategy: Any) -> None:
    from aiostream import simulator

    calls = (
        "cuStreamQuery",
        "cuEventQuery",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuLaunchHostFunc",
    )
    async with Stream(wait=strategy) as stream:
        await stream.synchronize_async()
        # While anything is pending the watcher queries the health of the contexts, so nothing may
        # be pending.
        assert settle(lambda: statistics().points.pending == 0)
        passes, before = statistics().watcher_passes, counts()
        asked = [simulator.calls(call) for call in calls]
        for _ in range(20):
            await stream.synchronize_async()
        answered = [simulator.calls(call) for call in calls]
        assert statistics().watcher_passes == passes
        assert [after - start for start, after in zip(asked, answered, strict=True)] == [
            20,
            0,
            0,
            0,
            0,
        ]
        assert {
            name: number for name, number in dataclasses.asdict(since(before)).items() if number
        } == {"ready": 20}


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
            while since(before).watched < 24:
                await anyio.lowlevel.checkpoint()
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


@pytest.mark.simulator_only("a GPU does not count its calls")
@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
async def test_ready_event_costs_one_query(strategy: str) -> None:
    from aiostream import simulator

    calls = (
        "cuStreamQuery",
        "cuEventQuery",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuLaunchHostFunc",
    )
    async with Stream() as stream:
        with default_wait(strategy):
            event = Event()
        event.record(stream)
        stream.synchronize()
        await event.synchronize_async()
        assert settle(lambda: statistics().points.pending == 0)
        asked = [simulator.calls(call) for call in calls]
        for _ in range(20):
            await event.synchronize_async()
        answered = [simulator.calls(call) for call in calls]
        assert [after - start for start, after in zip(asked, answered, strict=True)] == [
            0,
            20,
            0,
            0,
            0,
        ]
        event.close()


async def test_spinning_wait_never_goes_to_the_watcher() -> None:
    async with waiter_in("spinning") as (waiter, gate):
        before = counts()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            gate.open()
        now = since(before)
        assert (now.spun, now.watched, now.polls) == (1, 0, 0)


async def test_unpredicted_wait_is_polled_then_watched() -> None:
    """Its task polls for a moment, then the watcher does."""
    with Gate() as gate:
        stream = held_stream(gate)
        before = counts()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.synchronize_async)
            while since(before).polls < 40:
                await anyio.lowlevel.checkpoint()
            gate.open()
        now = since(before)
        assert (now.watched, now.by_timer, now.spun, now.handed_back) == (1, 0, 0, 0)
        stream.close()


async def test_watched_wait_stays_with_the_watcher() -> None:
    async with waiter_in("watched") as (waiter, gate):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            await waiter.reach()
            while since(waiter.before).polls < 40:
                await anyio.lowlevel.checkpoint()
            gate.open()
        now = since(waiter.before)
        assert (now.watched, now.by_timer, now.spun, now.handed_back) == (1, 0, 0, 0)


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


async def test_equal_waits_are_predicted_and_handed_back() -> None:
    waiter = Waiter("handed back")
    await waiter.prepare()
    before = now = counts()
    for _ in range(400):
        waiter.work(0.008)
        await waiter.wait()
        now = since(before)
        if now.handed_back >= 10 and now.spun >= 5:  # on an idle machine after a dozen
            break
    assert now.handed_back >= 10, now
    assert now.spun >= 5, "many that are handed back complete while their task polls"
    assert now.by_timer == 0
    assert now.handed_back <= now.watched, now
    waiter.close()


async def test_equal_waits_use_a_timer_and_are_not_handed_back() -> None:
    waiter = Waiter("by timer")
    await waiter.prepare()
    before = now = counts()
    for _ in range(400):
        waiter.work(0.008)
        await waiter.wait()
        now = since(before)
        if now.by_timer >= 10 and now.spun >= 5 and now.handed_back <= now.by_timer // 5:
            break
    assert now.by_timer >= 10, now
    assert now.spun >= 5, "many complete while their task polls"
    assert now.handed_back <= now.by_timer // 5, now  # on an idle machine none
    waiter.close()


async def test_short_equal_waits_use_a_timer_and_not_the_watcher() -> None:
    """A wait whose timer comes before the first guard look, at the age of 150 us, is unknown to the
    watcher.
    """
    short = 0
    for number in range(300):
        if number % 30 == 0:
            waiter = Waiter("by timer")
            await waiter.prepare()
        waiter.work(0.0001 + 0.00001 * (number // 30))
        before, began = counts(), time.perf_counter()
        await waiter.wait()
        took, now = time.perf_counter() - began, since(before)
        if now.by_timer == now.spun == 1 and took < 0.00015:
            short += 1
            if now.polls == 0:
                assert now.watched == 0
                break
        if number % 30 == 29:
            waiter.close()
    else:
        assert short < 10, "the watcher had a part in each of them"
        pytest.skip("this machine is too slow for waits so short")
    waiter.close()


async def test_late_wait_by_timer_goes_to_the_watcher() -> None:
    found = []
    for _ in range(20):
        async with waiter_in("by timer") as (waiter, gate), anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            await waiter.reach()
            while since(waiter.before).watched == 0:
                await anyio.lowlevel.checkpoint()
            now = since(waiter.before)
            gate.open()
        found.append((now.by_timer, now.watched, now.handed_back, now.spun))
        if found[-1] == (
            1,
            1,
            0,
            0,
        ):  # on a busy machine the lengths before it may have had two windows, or none
            return
    raise AssertionError(found)


async def test_only_one_wait_of_a_stream_uses_a_timer() -> None:
    """Of two waits, the later one does not take as long as a wait by itself."""
    async with waiter_in("by timer") as (waiter, gate), anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        tasks.start_soon(waiter.wait)
        with anyio.fail_after(10):
            while since(waiter.before).watched == 0:
                await anyio.lowlevel.checkpoint()
        assert since(waiter.before).by_timer <= 1
        gate.open()


async def test_many_waits_on_timers_all_complete() -> None:
    """Some in one turn of the loop and the others in the next ones, however many timers are due."""
    streams = [Stream() for _ in range(24)]
    before = counts()

    async def serve(stream: Stream) -> None:
        for _ in range(25):
            spin(stream, 0.002)
            with anyio.fail_after(10):
                await stream.synchronize_async()

    for _ in range(40):
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(serve, stream)
        if since(before).by_timer > 100:
            break
    assert (
        since(before).by_timer > 10
    )  # few on a machine that is busy with other things: see `Stage.predicted`
    for stream in streams:
        stream.close()


async def test_timers_stay_within_their_limit() -> None:
    waiters = [Waiter("by timer") for _ in range(3)]
    for waiter in waiters:
        await waiter.prepare()
    internals.limit_timer(1)
    for _ in range(
        20
    ):  # on a busy machine the first may be over, and its place free, before the last begins
        before = counts()
        async with anyio.create_task_group() as tasks:
            for waiter in waiters:
                waiter.work(0.008)
                tasks.start_soon(waiter.wait)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            together, by_timer = counts().pending - before.pending, since(before).by_timer
        if together == len(waiters):
            assert by_timer <= 1
            break
    else:
        raise AssertionError("three waits of 8 ms were never pending at once, 20 times")
    for waiter in waiters:
        waiter.close()


async def test_loop_that_ends_leaves_its_timer_waits_to_the_watcher(loop_kind: str) -> None:
    """So does a task that is never resumed. The record is reused once the GPU has passed it."""
    waiter = Waiter("by timer")
    await waiter.prepare()

    def elsewhere() -> None:
        async def leave() -> None:
            waiter.work(0.008)
            with anyio.move_on_after(0):
                await waiter.wait()

        run_on(loop_kind, leave)

    await anyio.to_thread.run_sync(elsewhere)
    waiter.work(0)
    await waiter.wait()
    assert settle(lambda: counts().pending == 0)
    waiter.close()


async def test_late_handed_back_wait_is_watched_again() -> None:
    found = []
    for _ in range(20):
        async with waiter_in("handed back") as (waiter, gate), anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            await waiter.reach()
            handed_back = since(waiter.before).handed_back > 0
            while since(waiter.before).watched < 1 + handed_back:  # the task has polled long enough
                await anyio.lowlevel.checkpoint()
            now = since(waiter.before)
            gate.open()
        found.append((now.watched, now.handed_back, now.by_timer, now.spun))
        if found[-1] == (2, 1, 0, 0):  # on a busy machine there may be two windows, or none
            return
    raise AssertionError(found)


async def test_predicted_waits_of_two_tasks_are_not_handed_back() -> None:
    """Two tasks wait on one stream: neither wait is handed back, because the watcher must poll the
    other one too.
    """
    found = []
    for _ in range(20):
        async with waiter_in("handed back") as (waiter, gate), anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            tasks.start_soon(waiter.wait)
            with anyio.fail_after(10):
                while waiter.grown(internals.EVENT_POLLS) < POLLS_IF_NOT_PREDICTED:
                    await anyio.lowlevel.checkpoint()
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
