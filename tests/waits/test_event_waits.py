"""Waits for events: many at once, and events that are recorded again, closed or captured while they
are awaited.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import anyio
import pytest

import aiostream
from aiostream import (
    Event,
    OutOfMemoryError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    statistics,
)
from captures import MODES
from internals import EVENT_POLLS, native_counters
from support import EVENT_STRATEGIES, Gate, cases_on_loops, held_stream, spin
from waiters import EVENT_STAGES, Waiter, counts, default_wait, since, turns, until, waiter_in

pytestmark = pytest.mark.usefixtures("default_prediction")
in_each_event_stage = cases_on_loops("stage", [(stage,) for stage in EVENT_STAGES])


def stream_creations(driver_kind: str) -> Callable[[], int]:
    """How many streams the driver has made, as far as it counts them."""
    if driver_kind != "simulator":
        return lambda: 0
    from aiostream import simulator

    return lambda: simulator.calls("cuStreamCreate") + simulator.calls("cuStreamCreateWithPriority")


def worker_threads() -> set[threading.Thread]:
    """The worker threads of anyio and trio."""
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("AnyIO worker", "Trio thread"))
    }


async def until_polled(times: int = 10) -> None:
    """Lets the loop take turns until the watcher has polled that often."""
    before = native_counters()[EVENT_POLLS]
    await until(lambda: native_counters()[EVENT_POLLS] >= before + times)


class Ended:
    """How many tasks have waited for an event to the end."""

    def __init__(self) -> None:
        self.count = 0

    async def wait(self, event: Event) -> None:
        """Waits for the event."""
        await event.synchronize_async()
        self.count += 1


# --------------------------------------------------------------------------------------------- many


@cases_on_loops(
    "strategy, tasks_each, events",
    [(strategy, *each) for strategy in EVENT_STRATEGIES for each in ((1000, 1), (1, 200))],
)
async def test_many_waits_make_no_stream_and_no_thread(
    driver_kind: str, strategy: str, tasks_each: int, events: int
) -> None:
    made, ended = stream_creations(driver_kind), Ended()
    with Gate() as gate:
        stream = held_stream(gate)
        with default_wait(strategy):
            awaited = [Event() for _ in range(events)]
        for event in awaited:
            event.record(stream)
        before, threads = made(), worker_threads()
        async with anyio.create_task_group() as tasks:
            for event in awaited:
                for _ in range(tasks_each):
                    tasks.start_soon(ended.wait, event)
            await until(lambda: counts().pending == events * tasks_each)
            assert ended.count == 0
            gate.open()
        assert ended.count == events * tasks_each
        assert made() == before
        assert worker_threads() <= threads
        for event in awaited:
            event.close()
        stream.close()


async def test_thousand_waits_for_one_record() -> None:
    """In each pass the watcher polls the event once, not once for each wait. They go on when the
    record is replaced.
    """
    ended = Ended()
    with Gate() as gate, Gate() as later:
        stream, other = held_stream(gate), held_stream(later)
        with default_wait("event"):
            event = Event()
        event.record(stream)
        async with anyio.create_task_group() as tasks:
            for _ in range(1000):
                tasks.start_soon(ended.wait, event)
            await until(lambda: counts().pending == 1000)
            await until_polled()
            before = counts()
            await until_polled(100)
            now = since(before)
            assert now.polls <= 2 * now.passes, now
            event.record(other)
            event.record(other)  # no task waits for the record between
            gate.open()
        assert ended.count == 1000
        assert not event.query()
        later.open()
        for thing in (event, stream, other):
            thing.close()


# ----------------------------------------------------------------------------------- recorded again


@in_each_event_stage
async def test_later_record_neither_ends_nor_prolongs_a_wait_in_any_stage(stage: str) -> None:
    """The first later records are over at once, and the last one is over after the wait."""
    ended, free = Ended(), Stream()
    with Gate() as later:
        other = held_stream(later)
        async with waiter_in(stage, "event") as (waiter, gate):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ended.wait, waiter.event)
                await waiter.reach()
                for _ in range(3):
                    waiter.event.record(free)
                    free.synchronize()
                    assert waiter.event.query()
                    await waiter.event.synchronize_async()
                await turns(100)
                assert ended.count == 0
                waiter.event.record(other)
                tasks.start_soon(ended.wait, waiter.event)  # for the last record
                await until(lambda: counts().pending == 2)
                gate.open()
                await until(lambda: ended.count > 0)
                await until_polled() if stage != "spinning" else None
                assert ended.count == 1
                assert not waiter.event.query()
                later.open()
            assert ended.count == 2
        await other.aclose()
    free.close()


@cases_on_loops("stage, mode", itertools.product(EVENT_STAGES, MODES))
async def test_awaited_event_is_recorded_into_a_capture(stage: str, mode: int) -> None:
    ended, captured = Ended(), Stream()
    spin(captured, 0)
    captured.synchronize()
    async with waiter_in(stage, "event") as (waiter, gate):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended.wait, waiter.event)
            await waiter.reach()
            with captured.capture(aiostream.CaptureMode(mode)) as capture:
                spin(captured, 0)
                waiter.event.record(captured)
                with pytest.raises(StreamCaptureError):
                    await waiter.event.synchronize_async()
                await turns(100)
                assert ended.count == 0
                gate.open()
                await until(lambda: ended.count == 1)
                spin(captured, 0)
            assert len(capture.graph.nodes) == 2
            capture.graph.close()
        waiter.event.record(waiter.stream)
    captured.close()


@pytest.mark.simulator_only("a GPU refuses nothing on command")
@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecordWithFlags"])
async def test_record_that_was_refused_and_repeated_prolongs_no_wait(call: str) -> None:
    """The refused record changes nothing, and leaves no handle. The next one finds the wait, as
    does that of another event.
    """
    from aiostream import simulator

    ended, event, another = Ended(), Event(), Event()
    with Gate() as gate, Gate() as later:
        stream, other = held_stream(gate), held_stream(later)
        event.record(stream)
        another.record(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended.wait, event)
            tasks.start_soon(ended.wait, another)
            await until(lambda: counts().pending == 2)
            simulator.fail(call, 2)
            handle, is_open = event.handle, statistics().handles.open
            with pytest.raises(OutOfMemoryError, match=call.removesuffix("WithFlags")):
                event.record(other)
            assert (event.handle, statistics().handles.open) == (handle, is_open)
            await until_polled()
            assert ended.count == 0
            another.record(other)
            event.record(other)
            gate.open()
            with anyio.fail_after(5):
                await until(lambda: ended.count == 2)
            later.open()
        for thing in (event, another, stream, other):
            thing.close()


# -------------------------------------------------------------------------------- closed, cancelled


@in_each_event_stage
async def test_event_closed_in_each_stage_is_destroyed_after_its_wait(stage: str) -> None:
    ended, waiter = Ended(), Waiter(stage, "event")
    with Gate() as gate:
        await waiter.hold(gate)
        is_open = statistics().handles.open
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended.wait, waiter.event)
            tasks.start_soon(ended.wait, waiter.event)
            await waiter.reach()
            await until(lambda: counts().pending == 2)
            waiter.event.close()
            with pytest.raises(StreamClosedError):
                await waiter.event.synchronize_async()
            with pytest.raises(StreamClosedError):
                waiter.event.record(waiter.stream)
            await turns(100)
            assert ended.count == 0
            assert statistics().handles.open == is_open, "the waits poll it"
            gate.open()
        assert ended.count == 2
    await until(lambda: statistics().handles.open == is_open - 1)
    waiter.stream.close()


async def test_cancelled_wait_that_its_task_polled_leaves_no_pin() -> None:
    """The event is destroyed at once, though the GPU has not passed it."""
    waiter = Waiter("spinning", "event")
    with Gate() as gate:
        await waiter.hold(gate)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(waiter.wait)
            await waiter.reach()
            tasks.cancel_scope.cancel()
        assert counts().pending == 0
        is_open = statistics().handles.open
        waiter.event.close()
        assert statistics().handles.open == is_open - 1
    waiter.stream.close()


@cases_on_loops("stage, again", itertools.product(EVENT_STAGES, [False, True]))
async def test_cancelled_waits_in_each_stage_leave_nothing(stage: str, again: bool) -> None:
    """They leave another one alone. Once the GPU has passed the record, no pin and no wait is
    left.
    """
    waiter, free, ended = Waiter(stage, "event"), Stream(), Ended()
    with Gate() as gate:
        await waiter.hold(gate)
        async with anyio.create_task_group() as other:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waiter.wait)
                tasks.start_soon(waiter.wait)
                await waiter.reach()
                other.start_soon(ended.wait, waiter.event)
                await until(lambda: counts().pending == 3)
                is_open = statistics().handles.open
                if again:
                    waiter.event.record(free)
                tasks.cancel_scope.cancel()
            waiter.event.close()
            await turns(100)
            assert ended.count == 0
            gate.open()
        assert ended.count == 1
    await until(lambda: statistics().handles.open == is_open - 1)
    await until(lambda: counts().pending == 0)
    await waiter.stream.aclose()
    free.close()
