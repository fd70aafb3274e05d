"""Streams whose handle was read while torch or cupy is loaded: they are retired at their end, and a
later `Stream` uses them again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import internals
from aiostream import (
    Context,
    Device,
    Event,
    Stream,
    StreamAttribute,
    StreamClosedError,
    StreamPool,
    SynchronizationPolicy,
    statistics,
)
from support import Gate, held_stream, settle, succeed

READS: dict[str, Callable[[Stream], int]] = {
    "handle": lambda stream: stream.handle,
    "int": int,
    "protocol": lambda stream: stream.__cuda_stream__()[1],
    "borrowed": lambda stream: stream.to_borrowed().handle,
}


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, library, None)


@pytest.fixture(params=["torch"])
def loaded(
    nothing_loaded: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A library that may use a handle after the stream was closed."""
    monkeypatch.setitem(sys.modules, request.param, types.ModuleType(request.param))


def ends() -> tuple[int, int]:
    """How many streams were retired until now, and how many handles destroyed."""
    handles = statistics().handles
    return handles.retired, handles.destroyed


def retired_stream(**options: Any) -> int:
    """Reads the handle of a new stream, and closes it."""
    stream = Stream(0, **options)
    handle = stream.handle
    stream.close()
    return handle


def is_used_again(handle: int, among: int = 1, **options: Any) -> bool:
    """Whether one of `among` new streams gets this handle, of a stream that was not destroyed."""
    with contextlib.ExitStack() as closing:
        new = [
            closing.enter_context(contextlib.closing(Stream(0, **options))) for _ in range(among)
        ]
        return handle in [stream.handle for stream in new]


@pytest.mark.parametrize("loaded", ["torch", "cupy"], indirect=True)
@pytest.mark.parametrize("read", READS)
def test_stream_whose_handle_was_read_can_be_used_after_it_was_closed(
    event: Event, loaded: None, read: str
) -> None:
    """As torch does when pinned memory is freed: it records an event on the stream."""
    retired, destroyed = ends()
    stream = Stream(0)
    handle = READS[read](stream)
    stream.close()
    assert ends() == (retired + 1, destroyed)
    event.record(handle)
    event.synchronize()


@pytest.mark.parametrize("read", READS)
def test_stream_that_was_read_without_these_libraries_is_destroyed(
    nothing_loaded: None, read: str
) -> None:
    retired, destroyed = ends()
    stream = Stream()
    READS[read](stream)
    stream.close()
    assert ends() == (retired, destroyed + 1)


async def test_reads_by_the_library_itself_do_not_count(event: Event, loaded: None) -> None:
    retired, _ = ends()
    async with Stream() as stream, Stream() as other, StreamPool.borrow([stream, other]) as pool:
        event.record(stream)
        other.wait_event(event)
        with stream.capture() as scope:
            stream.launch_host_func(str)
        graph = scope.graph
        with stream.as_current(), graph.instantiate() as executable:
            executable.launch(stream)
        await stream.synchronize_async()
        await other.enqueue_async(lambda _: None)
        await other.enqueue_in_thread(lambda _: None)
        await stream.completion_future()
        async with pool.stream() as used:
            await used.synchronize_async()
        assert repr(stream) != repr(other)
        assert {stream, other} == {other, stream}
        assert stream.priority == other.priority
        graph.close()
        event.close()
    assert ends()[0] == retired


def test_a_thousand_streams_are_one_of_the_driver(loaded: None) -> None:
    retired, destroyed = ends()
    assert len({retired_stream() for _ in range(1_000)}) == 1
    assert ends() == (retired + 1_000, destroyed)


def test_threads_never_share_a_stream_that_is_used_again(loaded: None) -> None:
    _, destroyed = ends()
    start = threading.Barrier(4)
    in_use, seen = dict[int, object](), set[int]()

    def use() -> None:
        start.wait(10)
        for _ in range(250):
            stream = Stream(0)
            handle = stream.handle
            assert in_use.setdefault(handle, stream) is stream  # one step, also without the GIL
            seen.add(handle)
            del in_use[handle]
            stream.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: use(), range(4)))
    assert len(seen) <= 4
    assert ends()[1] == destroyed


def test_new_stream_is_another_object(loaded: None) -> None:
    """What refers to the closed one refuses, and does not touch the new one."""
    old = Stream(0)
    borrowed, handle = old.to_borrowed(), old.handle
    old.close()
    new = Stream(0)
    assert new.handle == handle
    assert new != old
    assert old != new
    old.close()
    for stream in (old, borrowed):
        assert stream.closed
        with pytest.raises(StreamClosedError):
            stream.query()
    borrowed.close()
    assert not new.closed
    assert new.query()
    with contextlib.closing(Stream(0)) as other:
        assert other.handle != handle
    new.close()


def test_stream_that_is_used_again_is_retired_again(loaded: None) -> None:
    """Because the library that knows its handle may use it as long as the process lives."""
    handle = retired_stream()
    retired, destroyed = ends()
    Stream(0).close()  # whose handle is not read
    assert ends() == (retired + 1, destroyed)
    assert is_used_again(handle)


async def test_busy_stream_is_not_used_again(loaded: None) -> None:
    with Gate() as gate:
        stream = held_stream(gate)
        handle = stream.handle
        future = stream.completion_future()
        stream.close()
        assert not is_used_again(handle)
        gate.open()
        await future
    assert settle(lambda: is_used_again(handle))


def test_stream_in_a_call_of_another_thread_is_not_used_again(loaded: None) -> None:
    stream = Stream(0)
    handle = stream.handle
    with internals.pinned(stream):
        stream.close()
        assert not is_used_again(handle)
    assert is_used_again(handle, among=2)


def test_capturing_stream_is_not_used_again(loaded: None) -> None:
    """Another library captures on it, so its capture goes on."""
    driver = internals.bindings()
    stream = Stream(0)
    handle = stream.handle
    raw = driver.CUstream(handle)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    internals.driver_call("cuStreamBeginCapture", raw, mode)
    stream.close()
    assert not is_used_again(handle)
    internals.driver_call("cuGraphDestroy", internals.driver_call("cuStreamEndCapture", raw))
    assert is_used_again(handle, among=2)


@pytest.mark.parametrize("how", ["set", "set on a borrowed one", "copied"])
def test_stream_with_attributes_is_not_used_again(loaded: None, how: str) -> None:
    attribute, value = StreamAttribute.SYNCHRONIZATION_POLICY, SynchronizationPolicy.YIELD
    stream = Stream(0)
    handle = stream.handle
    if how == "copied":
        with contextlib.closing(Stream(0)) as source:
            source.set_attribute(attribute, value)
            stream.copy_attributes(source)
    else:
        (stream if how == "set" else stream.to_borrowed()).set_attribute(attribute, value)
    retired, destroyed = ends()
    stream.close()
    assert ends() == (retired + 1, destroyed)
    assert not is_used_again(handle)


def test_stream_of_another_kind_is_not_given(loaded: None) -> None:
    handle = retired_stream()
    for other in ({"priority": -1}, {"non_blocking": False}):
        assert not is_used_again(handle, **other)
        assert is_used_again(handle, wait="spin")  # which belongs to the object alone
    _, greatest = Device(0).stream_priority_range
    urgent = retired_stream(priority=greatest - 100)  # clamped
    assert is_used_again(urgent, priority=greatest - 100)


def test_stream_of_another_context_is_not_given(loaded: None) -> None:
    handle = retired_stream()
    context = Context.from_handle(int(internals.create_context()))
    with context.as_current(), contextlib.closing(Stream()) as stream:
        assert stream.context == context
        assert stream.handle != handle
    assert is_used_again(handle)
    internals.driver_call("cuCtxDestroy", internals.bindings().CUcontext(context.handle))


@pytest.mark.simulator_only("a GPU's context cannot be broken on command")
def test_stream_of_a_context_that_has_failed_is_not_given(loaded: None, breakable: Any) -> None:
    handle = retired_stream()
    breakable.fail("cuStreamQuery", 700)
    assert not is_used_again(handle)


def test_stream_that_went_with_its_context_is_not_given(driver_kind: str) -> None:
    script = """
        import sys, types
        import internals
        from aiostream import Stream, statistics
        sys.modules["torch"] = types.ModuleType("torch")
        stream = Stream(0)
        identity, handle = stream.id, stream.handle
        stream.close()
        device = internals.driver_call("cuDeviceGet", 0)
        internals.driver_call("cuDevicePrimaryCtxReset", device)
        stream = Stream(0)
        assert stream.id != identity and stream.query()
        stream.close()
        assert statistics().handles.destroyed == 1
        assert statistics().handles.retired == 1
    """
    succeed(driver_kind, script)


def test_shared_stream_that_was_given_away_and_taken_back_is_retired(loaded: None) -> None:
    """Its receiver may do what they like with it, so no later `Stream` gets it."""
    stream = Stream(0)
    handle = stream.handle
    retired, destroyed = ends()
    given, released = stream.into_raw(), statistics().handles.released
    stream.close()
    assert given == handle
    assert (*ends(), statistics().handles.released) == (retired, destroyed, released)
    assert not is_used_again(handle)
    taken = Stream.from_raw(handle)
    taken.close()
    assert ends() == (retired + 2, destroyed)  # with the one in between
    assert not is_used_again(handle)
