"""What tests of captures share, and captures by the driver's own calls, without the library."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aiostream import CaptureMode, CudaError, Event, GraphDependencyType, GraphEdgeData, Stream
from internals import bindings, driver_call
from support import spin

GLOBAL, THREAD_LOCAL, RELAXED = MODES = (0, 1, 2)
PROGRAMMATIC = GraphEdgeData(from_port=1, type=GraphDependencyType.PROGRAMMATIC)


def in_context(stream: Stream, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function where the context of the stream is current."""
    with stream.context.as_current():
        return function(*args)


@contextlib.contextmanager
def in_anothers_capture(stream: Stream) -> Iterator[None]:
    """Has the stream take part in the capture of another stream, which ends with the block."""
    origin, forked, joined = Stream(), Event(), Event()
    with origin.capture(CaptureMode.RELAXED) as capture:
        forked.record(origin)
        stream.wait_event(forked)
        spin(stream, 0)
        joined.record(stream)
        yield
        origin.wait_event(joined)
    assert capture.graph is not None
    for thing in (capture.graph, origin, forked, joined):
        thing.close()


def in_thread(function: Callable[[], Any], stream: Stream) -> Any:
    """Calls a function in another thread, where the context of the stream is current.

    Returns what it returned or raised.
    """
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(in_context, stream, function)
    return future.exception() or future.result()


def code_of(
    function: Any, *args: Any, match: str = ".", **options: Any
) -> tuple[type[CudaError], int, str]:
    """Calls what must raise an error of the driver; returns its class, its code and its call."""
    with pytest.raises(CudaError, match=match) as caught:
        function(*args, **options)
    return type(caught.value), caught.value.code, caught.value.call


def begin(stream: Stream, mode: int) -> None:
    """Begins a capture by the driver's own call."""
    driver = bindings()
    driver_call(
        "cuStreamBeginCapture", driver.CUstream(stream.handle), driver.CUstreamCaptureMode(mode)
    )


def end(stream: Stream) -> int:
    """Ends the capture, which must have survived; returns how many nodes its graph has."""
    graph = driver_call("cuStreamEndCapture", bindings().CUstream(stream.handle))
    assert int(graph) != 0, "the capture ended without a graph"
    _, nodes = driver_call("cuGraphGetNodes", graph)
    driver_call("cuGraphDestroy", graph)
    return int(nodes)


class HereCapture:
    """Captures in the calling thread."""

    def __init__(self, stream: Stream, mode: int) -> None:
        self.stream = stream
        begin(stream, mode)

    def end(self) -> int:
        return end(self.stream)


class ElsewhereCapture:
    """Captures in a thread of its own, which alone may end what it began (unless RELAXED)."""

    def __init__(self, stream: Stream, mode: int) -> None:
        self.stream = stream
        self._thread = ThreadPoolExecutor(1, "aiostream-test-capture")
        self._thread.submit(in_context, stream, begin, stream, mode).result(30)

    def end(self) -> int:
        with self._thread:
            return int(self._thread.submit(in_context, self.stream, end, self.stream).result())


# Where a test captures: in its own thread, or in another one.
CAPTURES: dict[str, Callable[[Stream, int], Any]] = {
    "here": HereCapture,
    "elsewhere": ElsewhereCapture,
}
