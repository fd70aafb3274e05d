"""Events: snapshots of a stream's end."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import aiostream
from aiostream import ContextFailedError, CudaError, Event, Stream, StreamClosedError
from support import Gate, held_stream, recover, spin


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
    assert 9.0 < start.elapsed_time(end) < 100.0
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


async def test_end_of_an_async_block_awaits_the_event(stream: Stream) -> None:
    steps: list[Any] = []

    async def use() -> None:
        async with Event() as event:
            event.record(stream)
            steps.append(event)
        steps.append("end")

    with Gate() as gate:
        gate.hold(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await anyio.wait_all_tasks_blocked()
            (event,) = steps
            assert isinstance(event, Event)
            assert not event.closed
            gate.open()
    assert steps == [event, "end"]
    assert event.closed
    with pytest.raises(StreamClosedError):
        async with event:
            raise AssertionError("a closed event was entered")


async def test_cancelled_end_of_an_async_block_destroys_the_event(stream: Stream) -> None:
    with Gate() as gate:
        gate.hold(stream)
        with anyio.move_on_after(0.01) as scope:
            async with Event() as event:
                event.record(stream)
        assert scope.cancelled_caught
        assert event.closed


async def test_async_block_that_has_nothing_to_wait_for(stream: Stream) -> None:
    """There is nothing to wait for, and the body's error wins."""
    async with Event() as event:
        event.close()
    stream.begin_capture()
    async with Event() as event:
        event.record(stream)
    stream.end_capture().close()
    assert event.closed
    with pytest.raises(LookupError):
        async with Event() as event:
            raise LookupError
    assert event.closed
    await event.aclose()


async def test_end_of_an_async_block_raises_a_failure(breakable: Any) -> None:
    """The event is closed nevertheless."""
    with Gate() as gate:
        stream = held_stream(gate)
        with pytest.raises(ContextFailedError):
            async with Event() as event:
                event.record(stream)
                breakable.break_context(719)
        assert event.closed
    recover()
    stream.close()
