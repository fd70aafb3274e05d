"""Events: snapshots of a stream's end."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import anyio
import pytest

import aiostream
from aiostream import CudaError, Event, Stream, StreamCaptureError, StreamClosedError
from captures import MODES
from internals import bindings, driver_call
from interrupts import Striker
from support import USUAL, Gate, held_stream, recover, settle, spin, succeed
from waiters import EVENT_STAGES, counts, until, waiter_in

pytestmark = pytest.mark.usefixtures("default_prediction")


def test_event_without_a_record_is_complete() -> None:
    event = Event()
    assert event.query()
    event.synchronize()
    assert event.device == aiostream.Device(0)
    assert event.context == aiostream.Device(0).primary_context
    event.close()
    for use in (
        event.query,
        event.synchronize,
        lambda: event.handle,
        lambda: event.record(Stream.legacy()),
    ):
        with pytest.raises(StreamClosedError):
            use()


async def test_awaiting_an_event(stream: Stream, event: Event) -> None:
    """It equals `synchronize_async`, and can be awaited again."""
    await event.synchronize_async()
    woken = []

    async def wait(awaitable: Any) -> None:
        await awaitable
        woken.append(event.query())

    with Gate() as gate:
        gate.hold(stream)
        event.record(stream)
        with anyio.move_on_after(0.01) as scope:
            await event
        assert scope.cancelled_caught
        assert not event.query()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, event)
            tasks.start_soon(wait, event.synchronize_async())
            await anyio.wait_all_tasks_blocked()
            assert woken == []
            gate.open()
    assert woken == [True, True]
    await event
    event.close()
    with pytest.raises(StreamClosedError):
        await event


async def test_waiting_for_an_event_on_a_stream(stream: Stream, event: Event) -> None:
    with Gate() as gate:
        async with held_stream(gate) as producer:
            event.record(producer)
            futures = [
                event.completion_future_on(stream),
                event.checked_completion_future_on(stream),
            ]
            assert not any(future.done() for future in futures)
            gate.open()
            for future in futures:
                await future


def test_elapsed_time_is_in_milliseconds(stream: Stream) -> None:
    with pytest.raises(ValueError, match="interprocess"):
        Event(timing=True, interprocess=True)
    start, end, plain = Event(timing=True), Event(timing=True, blocking_sync=True), Event()
    with pytest.raises(CudaError, match="One of the two events was never recorded") as caught:
        start.elapsed_time(end)
    assert caught.value.code == 400
    start.record(stream)
    spin(stream, 0.01)
    end.record(stream)
    end.synchronize()
    assert 9.0 < start.elapsed_time(end) < 5000.0  # on a busy machine
    with Gate() as gate:
        gate.hold(stream)
        end.record(stream)
        with pytest.raises(CudaError, match="The GPU has not passed both events yet"):
            start.elapsed_time(end)
    with pytest.raises(ValueError, match=r"Event\(timing=True\)"):
        start.elapsed_time(plain)
    with pytest.raises(TypeError):
        start.elapsed_time(3)  # type: ignore[arg-type]
    for each in (start, end, plain):
        each.close()


async def test_async_block_of_an_event_that_a_capture_has_recorded(stream: Stream) -> None:
    """There is nothing to wait for."""
    stream.begin_capture()
    async with Event() as event:
        event.record(stream)
    stream.end_capture().close()
    assert event.closed


async def test_end_of_an_async_block_raises_a_failure(breakable: Any) -> None:
    """The event is closed nevertheless."""
    with Gate() as gate:
        stream = held_stream(gate)
        with pytest.raises(aiostream.ContextFailedError):
            async with Event() as event:
                event.record(stream)
                breakable.break_context(719)
        assert event.closed
    recover()
    stream.close()


# ------------------------------------------------------------------- the handle of an awaited event


EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL: a node that records the event at each launch
NOT_READY = 600


def is_over(handle: int) -> bool:
    """What the driver says of a raw handle."""
    (code,) = bindings().cuEventQuery(bindings().CUevent(handle))
    assert int(code) in (0, NOT_READY)
    return int(code) == 0


@contextlib.asynccontextmanager
async def awaited(event: Event) -> AsyncIterator[Gate]:
    """A task awaits the event until the gate is opened, at the end of the block at the latest."""
    with Gate() as gate:
        held = held_stream(gate)
        event.record(held)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(event.synchronize_async)
            await until(lambda: counts().pending == 1)
            yield gate
            gate.open()
    await held.aclose()


@pytest.mark.parametrize("stage", EVENT_STAGES)
async def test_event_that_no_task_awaits_keeps_its_handle(stage: str) -> None:
    """Also right after a wait has ended, or was cancelled while its task polled."""
    async with waiter_in(stage, "event") as (waiter, gate):
        handle = waiter.event.handle
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.wait)
            await waiter.reach()
            gate.open()
        for _ in range(3):
            waiter.event.record(waiter.stream)
            await waiter.event
        assert waiter.event.handle == handle


async def test_new_handle_stands_for_the_new_record(stream: Stream) -> None:
    """`query`, `wait_event` and `elapsed_time` use it, and the flags of the event are kept."""
    event, begin = Event(timing=True, blocking_sync=True), Event(timing=True)
    handle, name = event.handle, repr(event)
    async with awaited(event):
        begin.record(stream)
        spin(stream, 0.002)
        # in a thread without a current context, in which the driver makes no event
        thread = threading.Thread(target=event.record, args=(stream,))
        thread.start()
        thread.join()
        assert event.handle != handle
        assert repr(event) == name.replace(f"{handle:#x}", f"{event.handle:#x}")
        event.synchronize()
        assert event.query()
        assert begin.elapsed_time(event) >= 2
        stream.wait_event(event)
        stream.synchronize()
        await event
        assert counts().pending == 1
    for thing in (event, begin):
        thing.close()


@pytest.mark.parametrize("read", [False, True])
async def test_old_handle_stands_for_the_old_record_until_the_event_is_closed(
    stream: Stream, other: Stream, event: Event, read: bool
) -> None:
    """If it was not read, it goes with its waits."""
    opened = aiostream.statistics().handles.open
    old = event.handle if read else None
    async with awaited(event) as gate:
        event.record(stream)
        event.synchronize()
        assert aiostream.statistics().handles.open == opened + 2  # with the stream that is held
        if old is not None:
            assert not is_over(old)
            other.wait_event(old)
            assert not other.query()
        gate.open()
        await other.synchronize_async()
    if old is None:
        await until(lambda: aiostream.statistics().handles.open == opened)
    for _ in range(3):  # the wait is over, and the old handle was given away
        await anyio.sleep(0)
        assert old is None or is_over(old)
    event.close()
    await until(lambda: aiostream.statistics().handles.open == opened - 1)


async def test_graph_records_the_handle_with_which_it_was_captured(
    stream: Stream, event: Event
) -> None:
    with stream.capture() as capture:
        driver_call(
            "cuEventRecordWithFlags",
            bindings().CUevent(event.handle),
            bindings().CUstream(stream.handle),
            EXTERNAL,
        )
    old = event.handle
    with Gate() as gate, Gate() as later, capture.graph.instantiate() as executable:
        other = held_stream(later)
        async with awaited(event):
            event.record(other)
        gate.hold(stream)
        executable.launch(stream)
        later.open()
        await event  # what the graph records does not concern it
        assert not is_over(old)
        gate.open()
        await stream.synchronize_async()
        assert is_over(old)
    for thing in (capture.graph, other):
        thing.close()


async def test_interprocess_event_is_not_recorded_while_it_is_awaited(stream: Stream) -> None:
    event = Event(interprocess=True)
    handle = event.handle
    async with awaited(event):
        with pytest.raises(RuntimeError, match="record it after the wait"):
            event.record(stream)
        assert not event.query()
    event.record(stream)
    await event
    assert event.handle == handle
    event.close()


@pytest.mark.parametrize("loop_kind", ["asyncio"])
async def test_event_that_is_closed_while_it_is_recorded_stays_closed(stream: Stream) -> None:
    """The handle that a record makes in another thread is closed too: `cuda_ledger` sees it."""
    both = threading.Barrier(2)
    events = [Event() for _ in range(300)]

    def record() -> None:
        for event in events:
            both.wait()
            with suppress(StreamClosedError):
                event.record(stream)

    with Gate() as gate:
        held = held_stream(gate)
        async with anyio.create_task_group() as tasks:
            for event in events:
                event.record(held)
                tasks.start_soon(event.synchronize_async)
            await until(lambda: counts().pending == len(events))
            with ThreadPoolExecutor(1) as thread:
                future = thread.submit(record)
                for event in events:
                    both.wait()
                    event.close()
            future.result()
            assert all(event.closed for event in events)
            gate.open()
    held.close()


@pytest.mark.parametrize("mode", MODES)
def test_waits_that_begin_during_a_record_into_a_capture_leave_it(
    stream: Stream, other: Stream, event: Event, mode: int
) -> None:
    """Each wait is for a record before it, or is refused."""
    stop = threading.Event()

    async def wait() -> None:
        while not stop.is_set():
            with suppress(StreamCaptureError):
                await event
                event.query()
            await anyio.sleep(0)

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(anyio.run, wait)
        try:
            for _ in range(60):
                spin(other, 0.0002)
                event.record(other)
                with stream.capture(aiostream.CaptureMode(mode)) as capture:
                    event.record(stream)
                    spin(stream, 0)
                assert len(capture.graph.nodes) == 1
                capture.graph.close()
        finally:
            stop.set()
    future.result()


async def test_interrupted_record_leaves_an_event_with_one_handle(
    stream: Stream, event: Event
) -> None:
    """It is the old one or the new one, and the other one is not lost."""
    opened = aiostream.statistics().handles.open
    with Gate() as gate:
        held = held_stream(gate)
        event.record(held)
        struck, number = True, 0
        async with anyio.create_task_group() as tasks:
            while struck:
                number += 1
                pending = counts().pending
                event.record(held)
                tasks.start_soon(event.synchronize_async)
                await until(lambda pending=pending: counts().pending == pending + 1)
                with suppress(KeyboardInterrupt), Striker(number) as striker:
                    event.record(stream)
                struck = striker.has_struck
                assert not event.closed
                event.record(stream)
                event.synchronize()
                assert event.query()
            gate.open()
    gc.collect()
    assert settle(lambda: aiostream.statistics().handles.open == opened + 1)
    held.close()


@pytest.mark.simulator_only("no GPU's driver says which calls have the GIL")
@pytest.mark.parametrize("end", ["close", "record"])
def test_cancelled_wait_that_is_the_last_user_of_an_event_calls_no_driver(
    driver_kind: str, end: str
) -> None:
    """Under the GIL, the call would wait for a host function that waits for the GIL."""
    script = f"""
    import asyncio, threading, time
    from aiostream import Event, Stream, simulator
    from support import Gate, settle

    async def main():
        held, free, event, gate = Stream(), Stream(), Event(), Gate()
        gate.hold(held)
        event.record(held)
        task = asyncio.ensure_future(event.synchronize_async())
        await asyncio.sleep(0.01)
        if "{end}" == "close":
            event.close()
        else:
            event.record(free)
            await asyncio.sleep(0.01)  # the janitor closes the old event
        entered = threading.Event()

        def host():
            entered.set()
            time.sleep(0.1)  # gives up the GIL, and not the driver's lock

        simulator.adversary(driver_lock=True)
        free.launch_host_func(host)
        assert settle(entered.is_set)
        task.cancel()
        await asyncio.wait([task])
        simulator.adversary()
        gate.open()
        free.synchronize()
        for stream in (held, free):
            stream.close()

    asyncio.run(main())
    """
    succeed(driver_kind, script, timeout=20.0, AIOSTREAM_WAIT="spin", forked=USUAL)


@pytest.mark.simulator_only("a GPU's driver counts no calls")
async def test_event_that_a_graph_has_is_not_destroyed_when_it_is_replaced(
    stream: Stream, event: Event
) -> None:
    with stream.capture() as capture:
        stream.wait_event(event, aiostream.WaitEventFlags.EXTERNAL)
    async with awaited(event):
        destroyed = aiostream.simulator.calls("cuEventDestroy")
        event.record(stream)
    gc.collect()
    assert settle(lambda: counts().pending == 0)
    await stream.synchronize_async()
    capture.graph.close()
    assert aiostream.simulator.calls("cuEventDestroy") == destroyed
    event.close()
    assert settle(lambda: aiostream.simulator.calls("cuEventDestroy") == destroyed + 2)
