"""Other libraries' streams and events, wherever one is taken: the real objects of cuda.core, and
what the others' look like.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

import internals
from aiostream import Event, Stream
from support import Gate, spin


def shapes_of_a_stream(handle: int) -> list[Any]:
    driver = internals.bindings()
    return [
        handle,
        driver.CUstream(handle),
        SimpleNamespace(__cuda_stream__=lambda: (0, handle)),
        SimpleNamespace(__cuda_stream__=(0, handle)),
        SimpleNamespace(cuda_stream=handle),  # torch
        SimpleNamespace(ptr=handle),  # cupy
        SimpleNamespace(handle=ctypes.c_void_p(handle)),  # numba
        SimpleNamespace(handle=driver.CUstream(handle)),
    ]


def shapes_of_an_event(handle: int) -> list[Any]:
    driver = internals.bindings()
    return [
        handle,
        driver.CUevent(handle),
        SimpleNamespace(cuda_event=handle),  # torch
        SimpleNamespace(ptr=handle),  # cupy
        SimpleNamespace(handle=ctypes.c_void_p(handle)),  # numba
        SimpleNamespace(handle=driver.CUevent(handle)),  # cuda.core
    ]


async def test_streams_of_other_libraries(stream: Stream) -> None:
    """Each shape, in each place that takes a stream."""
    with stream.capture_executable() as capture:
        pass
    for shape in shapes_of_a_stream(stream.handle):
        borrowed = Stream.borrow(shape)
        assert borrowed == stream
        await borrowed.synchronize_async()
        with pytest.raises(ValueError, match="is borrowed"):
            borrowed.into_raw()
        borrowed.close()
        assert borrowed.closed
        assert not stream.closed
        event = Event()
        event.record(shape)
        await event.synchronize_async()
        event.close()
        stream.copy_attributes(shape)
        capture.executable.upload(shape)
        await capture.executable.launch_and_wait(shape)
        await capture.executable.launch_async(shape)
    capture.executable.close()


def test_events_of_other_libraries(stream: Stream, other: Stream, event: Event) -> None:
    with Gate() as gate:
        gate.hold(stream)
        event.record(stream)
        for shape in shapes_of_an_event(event.handle):
            other.wait_event(shape)
        assert not other.query()
        gate.open()
        other.synchronize()


async def test_streams_of_cuda_core() -> None:
    core = pytest.importorskip("cuda.core")
    mine = Stream()
    spin(mine, 0)
    with Gate() as gate:
        with mine.context.as_current():
            device = core.Device(0)
            device.set_current()
            theirs = device.create_stream()
            borrowed = Stream.borrow(theirs)
            assert borrowed.handle == int(theirs.handle)
            gate.hold(theirs)
            future = borrowed.completion_future()
            assert not future.done()
            mine.wait_event(theirs.record())
            assert not mine.query()
            gate.open()
        await future
        await mine.synchronize_async()
    view, seen = mine.core(), weakref.ref(mine)
    assert isinstance(view, core.Stream)
    assert Stream.borrow(view) == mine
    with mine.context.as_current():
        theirs.wait(view)
        view.sync()
        event = view.record()
        event.sync()
    await borrowed.synchronize_async()
    borrowed.close()
    theirs.close()
    mine.close()
    view.sync()  # it may use the stream after that was closed
    del mine
    gc.collect()
    assert seen() is not None, "the stream was dropped under cuda.core's"
    del view, event
    gc.collect()
    assert seen() is None
