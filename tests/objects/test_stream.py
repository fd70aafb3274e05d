"""Stream: its life, its order, what it is."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import aiostream
import internals
from aiostream import Context, Device, Event, Stream, StreamClosedError, StreamFlags
from support import Gate, spin, succeed

# --------------------------------------------------------------------------------------- what it is


def test_properties(stream: Stream) -> None:
    least, greatest = Device(0).stream_priority_range
    assert greatest < least
    assert stream.flags is StreamFlags.NON_BLOCKING
    assert stream.priority == 0
    assert stream.device == Device(0)
    assert int(stream.device) == 0
    assert stream.context == Device(0).primary_context
    assert stream.handle == int(stream) > 2
    assert stream.__cuda_stream__() == (0, stream.handle)
    assert repr(stream.to_borrowed()).endswith(" on device 0, borrowed>")
    other = Stream(non_blocking=False, priority=greatest - 100)
    assert other.flags is StreamFlags.DEFAULT
    assert other.priority == greatest, "clamped as the driver clamps"
    assert other.id != stream.id
    assert stream != other
    assert stream == stream.to_borrowed()
    assert hash(stream) == hash(stream.to_borrowed())
    assert stream != stream.handle
    other.close()


def test_what_is_no_raw_handle_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"use borrow\(\) for an object"):
        Stream.from_raw("stream")  # type: ignore[arg-type]
    for special in (0, 1, 2):
        with pytest.raises(ValueError, match="without an owner"):
            Stream.from_raw(special)


def test_stream_lives_in_the_current_context_or_on_its_device() -> None:
    if Device.count() < 2:
        pytest.skip("one device only")
    second = Device(1).primary_context
    with second.as_current():
        stream = Stream()
        assert Context.get_current() == second
    assert stream.context == second
    assert Context.get_current() is None, "the previous context is back"
    there = Stream(Device(1))
    assert there.device == Device(1)
    assert Stream.legacy(1).device == Device(1)
    for each in (stream, there):
        each.synchronize()
        each.close()


def test_devices_and_contexts_compare_by_identity() -> None:
    assert Device(0) == Device(0)
    assert hash(Device(0)) == hash(Device(0))
    assert Device(0) != 0
    assert Device(0).primary_context is Device(0).primary_context
    assert Device(0).primary_context != 0
    assert Device(0).name
    assert [10, 20][Device(0)] == 10


# ----------------------------------------------------------------------------------------- its ends


async def test_closed_stream_refuses_everything(stream: Stream, event: Event) -> None:
    stream.close()
    uses: list[Any] = [
        stream.query,
        stream.synchronize,
        stream.completion_future,
        stream.checked_completion_future,
        stream.to_borrowed,
        stream.into_raw,
        stream.shutdown,
        lambda: int(stream),
        lambda: stream.handle,
        lambda: stream.flags,
        lambda: stream.priority,
        lambda: stream.id,
        lambda: stream.green_context,
        lambda: stream.get_attribute(aiostream.StreamAttribute.PRIORITY),
        stream.__cuda_stream__,
        lambda: stream.wait_event(event),
        lambda: event.record(stream),
        lambda: stream.enqueue_async(print),
        lambda: stream.launch_host_func(print),
        lambda: stream.add_callback(print),
        lambda: stream.wait_value(0x1000, 1),
        lambda: stream.write_value(0x1000, 1),
        lambda: stream.batch_mem_op([aiostream.WriteValue(0x1000, 1)]),
        lambda: stream.attach_mem_async(0x1000),
        stream.begin_capture,
        stream.end_capture,
        stream.capture_status,
        stream.capture_info,
        stream.capture().__enter__,
        stream.sync_scope().__enter__().synchronize,
    ]
    for use in uses:
        with pytest.raises(StreamClosedError):
            use()
    with pytest.raises(StreamClosedError):
        await stream.synchronize_async()
    with pytest.raises(StreamClosedError):
        async with stream:
            pass
    await stream.aclose()  # closing is no use


def test_shutdown_synchronizes_first(stream: Stream) -> None:
    with ThreadPoolExecutor(1) as thread, Gate() as gate:
        gate.hold(stream)
        future = thread.submit(stream.shutdown)
        with pytest.raises(TimeoutError):
            future.result(0.02)
        gate.open()
    assert future.result() is None
    assert stream.closed


DROPPED = """
import gc, sys, warnings
import aiostream
from support import settle

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    stream = aiostream.Stream()
    borrowed, name = stream.to_borrowed(), repr(stream)
    del borrowed
    aiostream.Stream().close()
    del stream
    gc.collect()
print([str(each.message).replace(name, "it") for each in caught])
print([each.category.__name__ for each in caught])
del caught
assert settle(lambda: aiostream.statistics().handles.open == 0)

reported = []  # now each warning is an error
sys.unraisablehook = lambda it: reported.append(it.exc_type.__name__)
aiostream.Stream()
gc.collect()
assert settle(lambda: aiostream.statistics().handles.open == 0)
print(reported)
"""


@pytest.mark.parametrize("development", [True, False])
def test_development_mode_warns_of_a_dropped_stream(driver_kind: str, development: bool) -> None:
    """The stream is destroyed in both modes, and also if its warning is an error."""
    out = succeed(driver_kind, DROPPED, PYTHONDEVMODE="1" if development else "")
    dropped = "it was dropped and not closed. It was made at <string>:8"
    kinds = ["ResourceWarning"] if development else []
    assert out == f"{[dropped] if development else []}\n{kinds}\n{kinds}\n"


def test_last_user_of_a_closed_stream_destroys_it(stream: Stream) -> None:
    before = aiostream.statistics().handles
    with internals.pinned(stream):  # what every call does while the driver may look at the handle
        stream.close()
        assert stream.closed
        assert aiostream.statistics().handles.destroyed == before.destroyed, "a call still uses it"
        with pytest.raises(StreamClosedError):
            stream.query()
    assert aiostream.statistics().handles.destroyed == before.destroyed + 1


def test_stream_can_be_closed_during_a_blocked_call(stream: Stream) -> None:
    with ThreadPoolExecutor(1) as thread, Gate() as gate:
        gate.hold(stream)
        other = stream.to_borrowed()
        future = thread.submit(other.synchronize)
        stream.close()
        assert other.closed
        gate.open()
    with contextlib.suppress(StreamClosedError):  # if it came too late
        future.result()


# --------------------------------------------------------------------------------- raw and borrowed


def test_stream_that_other_code_has_made_is_taken_over() -> None:
    context = Device(0).primary_context
    with context.as_current():
        handle = int(internals.driver_call("cuStreamCreate", 1))
    stream = Stream.from_raw(handle)
    assert (stream.handle, stream.context) == (handle, context)
    again = Stream.from_raw(stream.into_raw(), context=context)
    again.synchronize()
    assert again.query()
    again.close()


@pytest.mark.parametrize("special", [Stream.legacy, Stream.per_thread])
async def test_special_streams_can_be_awaited_without_a_context(event: Event, special: Any) -> None:
    assert Context.get_current() is None
    stream = special()
    for _ in range(3):
        await stream.synchronize_async()
        await stream.completion_future()
        await stream.checked_completion_future()
    spin(stream, 0.001)
    stream.synchronize(timeout=20)
    assert stream.query()
    event.record(stream)
    stream.wait_event(event)
    assert stream.device == Device(0)
    assert stream.green_context is None
    stream.close()
    assert Context.get_current() is None


# ---------------------------------------------------------------------------------------- its order


def test_sync_scope_always_synchronizes(stream: Stream, event: Event) -> None:
    with stream.sync_scope() as inside:
        assert inside is stream
        spin(stream, 0.005)
        event.record(stream)
    assert event.query()
    with pytest.raises(LookupError), stream.sync_scope():
        spin(stream, 0.005)
        event.record(stream)
        raise LookupError
    assert event.query()
    with pytest.raises(LookupError), stream.sync_scope():
        stream.close()
        raise LookupError


def test_wait_event_orders_streams(stream: Stream, other: Stream, event: Event) -> None:
    with Gate() as gate:
        gate.hold(stream)
        event.record(stream)
        other.wait_event(event)
        assert not other.query()
        gate.open()
        other.synchronize()
        assert stream.query()
    other.wait_event(Event())  # never recorded: holds nothing up
    other.synchronize()


def test_streams_of_another_device_can_be_awaited() -> None:
    if Device.count() < 2:
        pytest.skip("one device only")
    first, second = Stream(0), Stream(1)
    event = Event(device=1)
    event.record(second)
    first.wait_event(event)
    first.synchronize()
    advice = "The event lives on device 1: an event is recorded on streams of its own context"
    with pytest.raises(aiostream.CudaError, match=advice) as caught:
        event.record(first)
    assert caught.value.code == 400
    for each in (first, second, event):
        each.close()
