"""Waits for events: many at once, and events that are recorded again, closed or captured while they
are awaited.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import (
    Context,
    CudaError,
    Event,
    OutOfMemoryError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    statistics,
)
from captures import MODES
from internals import EVENT_POLLS, helpers, native_counters
from support import BACKENDS, EVENT_STRATEGIES, Gate, cases_on_loops, held_stream, spin
from waiters import EVENT_STAGES, Waiter, counts, default_wait, since, until, waiter_in

pytestmark = pytest.mark.usefixtures("default_prediction")
in_each_event_stage = cases_on_loops("stage", [(stage,) for stage in EVENT_STAGES])

MOST_HELPERS = 4


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
    """Lets the loop take turns until the watcher has polled so often."""
    before = native_counters()[EVENT_POLLS]
    await until(lambda: native_counters()[EVENT_POLLS] >= before + times)


async def until_helpers_are_idle(context: Context) -> int:
    """Lets the loop take turns until the watcher has given back all helper streams; how many."""

    def are_idle() -> bool:
        idle, made = helpers(context)
        return idle == made

    await until(are_idle)
    return helpers(context)[1]


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
        await until_helpers_are_idle(stream.context)
        before, threads, had = made(), worker_threads(), helpers(stream.context)
        async with anyio.create_task_group() as tasks:
            for event in awaited:
                for _ in range(tasks_each):
                    tasks.start_soon(ended.wait, event)
            await until(lambda: counts().pending == events * tasks_each)
            assert ended.count == 0
            gate.open()
        assert ended.count == events * tasks_each
        assert made() == before
        assert helpers(stream.context) == had
        assert worker_threads() <= threads
        for event in awaited:
            event.close()
        stream.close()


async def test_thousand_waits_for_one_record_share_the_polls() -> None:
    """In each pass the watcher polls the event once, not once for each wait."""
    ended = Ended()
    with Gate() as gate:
        stream = held_stream(gate)
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
            gate.open()
        assert ended.count == 1000
        event.close()
        stream.close()


async def test_thousand_waits_for_one_record_share_one_helper() -> None:
    ended = Ended()
    with Gate() as gate, Gate() as later:
        stream, other = held_stream(gate), held_stream(later)
        event = Event()
        event.record(stream)
        idle = await until_helpers_are_idle(stream.context)
        async with anyio.create_task_group() as tasks:
            for _ in range(1000):
                tasks.start_soon(ended.wait, event)
            await until(lambda: counts().pending == 1000)
            event.record(other)
            event.record(other)  # no task waits for the record between
            assert helpers(stream.context)[0] == idle - 1
            gate.open()
        assert ended.count == 1000
        assert not event.query()
        later.open()
        assert await until_helpers_are_idle(stream.context) == idle
        for thing in (event, stream, other):
            thing.close()


async def test_more_events_than_helper_streams_are_recorded_again() -> None:
    """All helper streams are shared then. Each wait ends with the first record of its event."""
    ended, number = Ended(), MOST_HELPERS + 18
    with Gate() as gate, Gate() as later:
        stream, other = held_stream(gate), held_stream(later)
        events = [Event() for _ in range(number)]
        for event in events:
            event.record(stream)
        async with anyio.create_task_group() as tasks:
            for event in events:
                tasks.start_soon(ended.wait, event)
            await until(lambda: counts().pending == number)
            for event in events:
                event.record(other)
            assert helpers(stream.context) == (0, MOST_HELPERS)
            await until_polled()
            assert ended.count == 0
            gate.open()
        assert ended.count == number
        assert not any(event.query() for event in events)
        later.open()
        for event in events:
            await event.synchronize_async()
            event.close()
        await until_helpers_are_idle(stream.context)
        await stream.aclose()
        await other.aclose()


async def test_shared_helper_streams_serve_records_in_any_order() -> None:
    """The events of a held stream come first, those of another end first: they may wait for the
    former, but not for good.
    """
    ended, number = Ended(), MOST_HELPERS + 4
    with Gate() as gate, Gate() as free:
        streams = held_stream(gate), held_stream(free)
        events = [Event() for _ in range(2 * number)]
        for index, event in enumerate(events):
            event.record(streams[index >= number])
        async with anyio.create_task_group() as tasks:
            for event in events:
                tasks.start_soon(ended.wait, event)
            await until(lambda: counts().pending == len(events))
            for event in events:
                event.record(streams[0])
            free.open()
            await until_polled()
            gate.open()
        assert ended.count == len(events)
        for event in events:
            event.close()
        for stream in streams:
            stream.close()


# ----------------------------------------------------------------------------------- recorded again


@in_each_event_stage
async def test_later_record_does_not_prolong_a_wait_in_any_stage(stage: str) -> None:
    ended = Ended()
    with Gate() as later:
        other = held_stream(later)
        async with waiter_in(stage, "event") as (waiter, gate):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ended.wait, waiter.event)
                await waiter.reach()
                waiter.event.record(other)
                tasks.start_soon(ended.wait, waiter.event)  # for the second record
                await until(lambda: counts().pending == 2)
                gate.open()
                await until(lambda: ended.count > 0)
                await until_polled() if stage != "spinning" else None
                assert ended.count == 1
                assert not waiter.event.query()
                later.open()
            assert ended.count == 2
        await other.aclose()


@in_each_event_stage
async def test_later_record_does_not_end_a_wait_in_any_stage(stage: str) -> None:
    """The second record is over at once. The wait is for the first."""
    ended, free = Ended(), Stream()
    async with waiter_in(stage, "event") as (waiter, gate):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended.wait, waiter.event)
            await waiter.reach()
            for _ in range(3):
                waiter.event.record(free)
                free.synchronize()
                assert waiter.event.query()
                await waiter.event.synchronize_async()
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert ended.count == 0
            gate.open()
        assert ended.count == 1
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
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
                assert ended.count == 0
                gate.open()
                await until(lambda: ended.count == 1)
                spin(captured, 0)
            assert len(capture.graph.nodes) == 2
            capture.graph.close()
        waiter.event.record(waiter.stream)
    captured.close()


@pytest.mark.simulator_only("a GPU refuses nothing on command")
@pytest.mark.parametrize("call", ["cuStreamWaitEvent", "cuEventRecordWithFlags"])
async def test_record_that_was_refused_and_repeated_prolongs_no_wait(call: str) -> None:
    """No helper stream could stand in for the first record: the next try must find the wait
    again.
    """
    from aiostream import simulator

    ended, event = Ended(), Event()
    with Gate() as gate, Gate() as later:
        stream, other = held_stream(gate), held_stream(later)
        event.record(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended.wait, event)
            await until(lambda: counts().pending == 1)
            simulator.fail(call, 2)
            with pytest.raises(OutOfMemoryError):
                event.record(other)
            event.record(other)
            gate.open()
            with anyio.move_on_after(5):
                while ended.count == 0:
                    await anyio.lowlevel.checkpoint()
            prolonged = ended.count == 0
            later.open()
        assert not prolonged
        for thing in (event, stream, other):
            thing.close()


@pytest.mark.simulator_only("a GPU refuses nothing on command")
async def test_refused_second_record_leaves_the_first_awaited() -> None:
    from aiostream import simulator

    ended, event = Ended(), Event()
    with Gate() as gate, Gate() as later:
        stream, other = held_stream(gate), held_stream(later)
        event.record(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended.wait, event)
            await until(lambda: counts().pending == 1)
            simulator.fail("cuEventRecordWithFlags", 2, nth=2)  # the first is the helper stream's
            with pytest.raises(CudaError):
                event.record(other)
            await until_polled()
            assert ended.count == 0
            gate.open()
        assert ended.count == 1
        later.open()
        for thing in (event, stream, other):
            thing.close()


async def test_thread_records_again_while_tasks_wait() -> None:
    """Each wait ends, and no helper stream stays in use, however records and waits meet."""
    stream, event, stop = Stream(), Event(), threading.Event()
    errors: list[BaseException] = []

    def record() -> None:
        try:
            while not stop.is_set():
                spin(stream, 0.0001)
                event.record(stream)
                event.record(stream)
                stream.synchronize()  # because the work would pile up
        except BaseException as error:
            errors.append(error)

    event.record(stream)
    thread = threading.Thread(target=record, name="aiostream-test-recorder")
    thread.start()
    try:
        with anyio.fail_after(30):
            for _ in range(40):
                async with anyio.create_task_group() as tasks:
                    for _ in range(5):
                        tasks.start_soon(event.synchronize_async)
    finally:
        stop.set()
        thread.join(30)
    assert not errors, errors
    await event.synchronize_async()
    await until_helpers_are_idle(stream.context)
    event.close()
    stream.close()


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
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
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
    """Once the GPU has passed the record, no pin, no wait and no helper stream is left."""
    waiter, free = Waiter(stage, "event"), Stream()
    with Gate() as gate:
        await waiter.hold(gate)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            tasks.start_soon(waiter.wait)
            await waiter.reach()
            if again:
                waiter.event.record(free)
            tasks.cancel_scope.cancel()
        is_open = statistics().handles.open
        waiter.event.close()
    await until(lambda: statistics().handles.open == is_open - 1)
    await until(lambda: counts().pending == 0)
    await until_helpers_are_idle(free.context)
    await waiter.stream.aclose()
    free.close()


@pytest.mark.simulator_only("a GPU's driver refuses nothing on command")
@pytest.mark.parametrize("loop_kind", BACKENDS)
async def test_wait_that_ends_with_an_error_leaves_its_helper_to_no_other(loop_kind: str) -> None:
    """The helper stream still waits for the first event.

    Another event's waits would end only after that.
    """
    from aiostream import simulator

    first, second = Waiter("watched", "event"), Waiter("watched", "event")
    free = Stream()
    failed: list[CudaError] = []

    async def fail() -> None:
        with pytest.raises(CudaError) as caught:
            await first.event.synchronize_async()
        failed.append(caught.value)

    with Gate() as shut:
        await first.hold(shut)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)
            await until(lambda: counts().pending == 1)
            first.event.record(free)
            simulator.fail("cuEventQuery", 2)
        assert failed[0].code == 2
        for _ in range(2 * MOST_HELPERS):
            with anyio.fail_after(20), Gate() as gate:
                await second.hold(gate)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(second.wait)
                    await until(lambda: counts().pending == 1)
                    second.event.record(free)
                    gate.open()
    for waiter in (first, second):
        waiter.event.close()
        await waiter.stream.aclose()
    free.close()


async def test_one_cancelled_wait_of_two_leaves_the_other() -> None:
    ended = Ended()
    async with waiter_in("watched", "event") as (waiter, gate), anyio.create_task_group() as tasks:
        scope: Any = anyio.CancelScope()

        async def cancelled() -> None:
            with scope:
                await waiter.wait()

        tasks.start_soon(cancelled)
        tasks.start_soon(ended.wait, waiter.event)
        await until(lambda: since(waiter.before).watched == 2)
        scope.cancel()
        await until_polled()
        assert ended.count == 0
        gate.open()
    assert ended.count == 1
