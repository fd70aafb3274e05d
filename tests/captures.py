"""What tests of captures share, and captures by the driver's own calls, without the library."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiostream import (
    CaptureMode,
    CaptureStatus,
    CudaError,
    Event,
    GraphDependencyType,
    GraphEdgeData,
    Stream,
)
from internals import bindings, driver_call
from support import spin

GLOBAL, THREAD_LOCAL, RELAXED = MODES = (0, 1, 2)
PROGRAMMATIC = GraphEdgeData(from_port=1, type=GraphDependencyType.PROGRAMMATIC)


@contextlib.contextmanager
def warm_stream() -> Iterator[Stream]:
    """A stream that has run a kernel: to load its module would end a capture."""
    stream = Stream()
    spin(stream, 0)
    yield stream
    assert stream.closed or stream.capture_status() is CaptureStatus.NONE
    stream.close()


class Owned:
    """What a graph keeps alive."""

    def call(self) -> None:
        """A host function."""


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


def in_thread(function: Any, stream: Stream) -> Any:
    """Calls a function in another thread, where the context of the stream is current.

    Returns what it returned or raised.
    """
    outcome: list[Any] = []

    def run() -> None:
        with stream.context.as_current():
            try:
                outcome.append(function())
            except Exception as error:
                outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


def code_of(function: Any, *args: Any, **options: Any) -> tuple[type[CudaError], int, str]:
    """Calls what must raise an error of the driver; returns its class, its code and its call."""
    with pytest.raises(CudaError) as caught:
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
        self._begun, self._to_end = threading.Event(), threading.Event()
        self._outcome: Any = None  # what `end` answered, or an error: the thread sets it
        self._thread = threading.Thread(
            target=self._run, args=(stream, mode), name="aiostream-test-capture"
        )
        self._thread.start()
        assert self._begun.wait(30)
        if self._failed():
            self.end()

    def _failed(self) -> bool:
        return self._outcome is not None

    def _run(self, stream: Stream, mode: int) -> None:
        try:
            with stream.context.as_current():
                begin(stream, mode)
                self._begun.set()
                assert self._to_end.wait(60)
                self._outcome = end(stream)
        except BaseException as error:
            self._outcome = error
        finally:
            self._begun.set()

    def end(self) -> int:
        self._to_end.set()
        self._thread.join()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return int(self._outcome)


# Where a test captures: in its own thread, or in another one.
CAPTURES: dict[str, Callable[[Stream, int], Any]] = {
    "here": HereCapture,
    "elsewhere": ElsewhereCapture,
}
