"""How a wait ends: when the work before it has completed, when its context fails, when its loop is
closed, and when it is cancelled. In each strategy, in each stage, on special streams.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import ContextFailedError, Event, Stream, drain, statistics
from support import (
    EVENT_STRATEGIES,
    STRATEGIES,
    Blind,
    Gate,
    Kept,
    cases_on_loops,
    held_stream,
    new_uvloop,
    recover,
    run_on,
    settle,
    spin,
)
from waiters import (
    CASES,
    THINGS,
    Waiter,
    counts,
    default_wait,
    in_each_stage,
    in_each_stage_on_loops,
    since,
    take_spares,
    turns,
    until,
    waiter_in,
)

pytestmark = pytest.mark.usefixtures("default_prediction")
on_each_strategy = cases_on_loops("strategy", [(strategy,) for strategy in STRATEGIES])


@cases_on_loops("strategy, thing", itertools.product(STRATEGIES, ["stream", "future"]))
async def test_each_strategy_waits_for_the_work_and_no_longer(strategy: str, thing: str) -> None:
    with Gate() as first, Gate() as second:
        async with held_stream(first, wait=strategy) as stream:
            early, late = anyio.Event(), anyio.Event()

            async def wait(end: anyio.Event) -> None:
                if thing == "stream":
                    await stream.synchronize_async()
                else:
                    assert await stream.enqueue_async(lambda _: 7) == 7
                end.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, early)
                await turns(50)
                second.hold(stream)  # later work does not prolong the wait
                tasks.start_soon(wait, late)
                await turns(30)
                assert not early.is_set()
                first.open()
                with anyio.fail_after(20):
                    await early.wait()
                assert not late.is_set()
                second.open()


@in_each_stage_on_loops
async def test_wait_in_each_stage_completes_with_the_work(stage: str, thing: str) -> None:
    async with waiter_in(stage, thing) as (waiter, gate), anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        await waiter.reach()
        gate.open()


async def test_wait_back_at_the_watcher_keeps_its_place() -> None:
    """The watcher hands it back, gets later waits of the same stream, and then gets it again: it
    is still the first.
    """
    waiter = Waiter("handed back")
    with Gate() as first, Gate() as second:
        await waiter.hold(first)
        ended = anyio.Event()

        async def wait() -> None:
            await waiter.wait()
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await waiter.reach()
            for _ in range(3):
                second.hold(waiter.stream)
                with default_wait("event"):
                    tasks.start_soon(Stream.borrow(waiter.stream).synchronize_async)
                    await anyio.lowlevel.checkpoint()
            # It has come back behind them.
            await until(
                lambda: since(waiter.before).watched >= 4 + since(waiter.before).handed_back
            )
            polls = counts().polls
            await until(lambda: counts().polls >= polls + 3)
            first.open()
            with anyio.fail_after(10):
                await ended.wait()
            second.open()
    waiter.close()


@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
def test_many_waits_on_per_thread_streams_end_thread_by_thread(strategy: str) -> None:
    """All through one object.

    The waits of the held thread came first, and hold up none of the other thread's.
    """
    with default_wait(strategy):
        stream = Stream.per_thread()
    began = threading.Event()
    ended: list[str] = []

    async def wait(name: str) -> None:
        await stream.synchronize_async()
        ended.append(name)

    async def hold() -> None:
        gate.hold(stream)
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(wait, "held")
            await until(lambda: counts().pending == 10)
            began.set()

    async def pass_by() -> None:
        for _ in range(20):
            spin(stream, 0.001)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, "free")
                tasks.start_soon(wait, "free")

    with ThreadPoolExecutor(2) as threads, Gate() as gate:
        held = threads.submit(run_on, "asyncio", hold)
        assert began.wait(20)
        threads.submit(run_on, "asyncio", pass_by).result(30)
        assert ended == ["free"] * 40
        gate.open()
        held.result(20)
    assert ended[40:] == ["held"] * 10


def test_per_thread_streams_learn_nothing_from_each_other() -> None:
    """Each thread has a history of its own: another thread's work says nothing of this one's."""
    learnt: list[int] = []

    async def learn() -> None:
        for _ in range(30):
            spin(stream, 0.008)
            await stream.synchronize_async()
            if counts().by_timer > before.by_timer:
                break

    async def first_waits() -> None:
        now = counts()
        spin(stream, 0.008)
        await stream.synchronize_async()
        learnt.append(since(now).by_timer)

    stream, before = Stream.per_thread(), counts()
    for function in (learn, first_waits):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(run_on, "asyncio", function).result(30)
    assert learnt == [0]


def test_wait_lists_of_many_streams_are_dropped_by_many_threads() -> None:
    """A context keeps the wait lists of the latest 1,024 streams."""
    context = aiostream.Device(0).primary_context
    internals.register_context(context)

    def ask(number: int) -> None:
        for identity in range(5000):
            internals.use_wait_list(context, 1 << 40 | number << 20 | identity)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(ask, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert internals.wait_list_count(context) < 1100


@on_each_strategy
async def test_each_strategy_waits_for_the_legacy_stream(strategy: str) -> None:
    with default_wait(strategy):
        legacy = Stream.legacy()
    blocking, other = Stream(non_blocking=False), Stream()
    await legacy.synchronize_async()
    with Gate() as gate:
        gate.hold(blocking)
        event = Event()
        event.record(blocking)
        spin(legacy, 0)  # it waits for all blocking streams
        woken = []

        async def wait() -> None:
            await legacy.synchronize_async()
            woken.append(event.query())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await other.synchronize_async()
            await turns(30)
            assert woken == []
            gate.open()
        assert woken == [True]
    for thing in (blocking, other, event):
        thing.close()


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("strategy", EVENT_STRATEGIES)
def test_full_stream_does_not_block_the_loop(driver_kind: str, strategy: str, thing: str) -> None:
    """P10: 1,022 launches deep the driver blocks a launch and a host function, but not the record
    of an event.
    """
    with default_wait(strategy):
        stream, event = Stream(), Event()
    spin(stream, 0)
    stream.synchronize()
    # If it does block, the test fails and does not hang.
    safety = threading.Timer(30, lambda: gate.open())
    safety.daemon = True

    async def main() -> None:
        gate.hold(stream)
        for _ in range(1000):
            spin(stream, 0)
        event.record(stream)
        before = counts()
        began = time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                stream.synchronize_async if thing == "stream" else event.synchronize_async
            )
            while strategy != "spin" and since(before).polls < 20:
                await anyio.lowlevel.checkpoint()
            await turns()
            assert time.monotonic() - began < 10, "something blocked the loop"
            gate.open()

    with Gate() as gate:
        safety.start()
        asyncio.run(main())
        safety.cancel()
        safety.join()
    stream.close()
    event.close()


# --------------------------------------------------------------------------------- failing contexts


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
async def test_failing_context_fails_the_wait(breakable: Any, stage: str, thing: str) -> None:
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
    said = [record.getMessage() for record in caplog.records]
    assert not [text for text in said if "is slow" not in text]  # as on a busy machine it may be


# ---------------------------------------------------------------------------------- cancelled waits


@in_each_stage_on_loops
async def test_cancelled_wait_raises_at_once(stage: str, thing: str) -> None:
    async with waiter_in(stage, thing) as (waiter, _):
        scope = anyio.CancelScope()

        async def wait() -> None:
            with scope:
                await waiter.wait()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await waiter.reach()
                scope.cancel()
        assert scope.cancelled_caught
        assert not waiter.stream.query(), "the work goes on"


@pytest.mark.simulator_only("a GPU does not count its calls")
@in_each_stage_on_loops
async def test_cancelled_waits_lose_no_memory(stage: str, thing: str) -> None:
    """The library reuses their events once the GPU has passed them."""
    from aiostream import simulator

    waiter, other = Waiter(stage, thing), Stream()
    spare = take_spares(other)
    rounds_without = 0
    for _ in range(60):  # a watcher that is late may still have the waits of many rounds
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
@pytest.mark.parametrize("loop_kind", ["trio"])
async def test_each_wait_is_a_checkpoint_on_trio(stage: str, thing: str) -> None:
    import trio
    import trio.testing

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
