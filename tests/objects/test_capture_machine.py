"""Captures against a plain model in Python, step by step, on asyncio and trio: see
test_state_machines.py.
"""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from aiostream import (
    CaptureMode,
    CaptureStatus,
    CudaError,
    Device,
    Event,
    ExecutableGraph,
    Graph,
    Stream,
    StreamCaptureError,
    statistics,
)
from internals import load_kernels
from machines import OnLoop, Waiter, check, only_simulated
from support import BACKENDS, LIMIT, Kept, spin


class Recording:
    """A capture that goes on, as the model knows it."""

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.nodes = self.host_functions = 0
        # of each stream that has joined: whether it has been joined back since its last operation
        self.members = {origin: True}
        self.invalidated = False

    def ends_well(self) -> bool:
        return not self.invalidated and all(
            joined for number, joined in self.members.items() if number != self.origin
        )


one_captures = precondition(lambda self: self.recordings)
one_is_free = precondition(lambda self: len(self.recordings) < len(self.streams))


class Captures(OnLoop):
    """Streams that capture, fork and join; what the graphs contain, and how often they run what
    they contain.
    """

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[int, Stream] = {}
        self.recordings: dict[int, Recording] = {}  # by each stream that takes part
        self.graphs: list[tuple[Graph, int]] = []  # with the number of host functions
        self.executables: list[tuple[ExecutableGraph, int]] = []
        self.made = self.expected = 0
        self.ran: list[None] = []

    @initialize()
    def begin(self) -> None:
        load_kernels(Device(0).primary_context)  # in a capture the driver would load nothing
        for _ in range(3):
            self.made += 1
            self.streams[self.made] = Stream()

    def a_stream(self, data: st.DataObject, capturing: bool | None = None) -> int:
        numbers = sorted(self.streams)
        if capturing is not None:
            numbers = [n for n in numbers if (n in self.recordings) is capturing]
        return data.draw(st.sampled_from(numbers))

    def end(self, recording: Recording) -> None:
        for number in recording.members:
            self.recordings.pop(number, None)

    @one_is_free
    @rule(data=st.data(), mode=st.sampled_from([CaptureMode.THREAD_LOCAL, CaptureMode.RELAXED]))
    def begin_capture(self, data: st.DataObject, mode: CaptureMode) -> None:
        number = self.a_stream(data, capturing=False)
        self.call(self.streams[number].begin_capture, mode)
        self.recordings[number] = Recording(number)

    @rule(data=st.data(), kind=st.sampled_from(["kernel", "host function"]))
    def operate(self, data: st.DataObject, kind: str) -> None:
        number = self.a_stream(data)
        stream, recording = self.streams[number], self.recordings.get(number)
        if recording is not None and recording.invalidated:
            return
        if kind == "kernel":
            self.call(spin, stream, 0)
        else:
            self.call(stream.launch_host_func, self.ran.append, None)
        if recording is not None:
            recording.nodes += 1
            recording.host_functions += kind != "kernel"
            recording.members[number] = number == recording.origin
        else:
            self.expected += kind != "kernel"

    @one_captures
    @one_is_free
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """A second stream joins a capture, with an operation of its own."""
        first, second = self.a_stream(data, capturing=True), self.a_stream(data, capturing=False)
        recording = self.recordings[first]
        if recording.invalidated:
            return
        self.depend(second, first)
        self.call(spin, self.streams[second], 0)
        self.recordings[second] = recording
        recording.nodes += 1
        recording.members[second] = False

    def depend(self, later: int, earlier: int) -> None:
        event = Event()
        self.call(event.record, self.streams[earlier])
        self.call(self.streams[later].wait_event, event)
        self.call(event.close)

    @one_captures
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        number = self.a_stream(data, capturing=True)
        recording = self.recordings[number]
        if not recording.invalidated and number != recording.origin:
            self.depend(recording.origin, number)
            recording.members[number] = True

    @rule(data=st.data())
    def end_capture(self, data: st.DataObject) -> None:
        number = self.a_stream(data)
        stream, recording = self.streams[number], self.recordings.get(number)
        if recording is None:
            with pytest.raises(CudaError) as caught:
                self.call(stream.end_capture)
            assert caught.value.code == 401
        elif number != recording.origin:
            with pytest.raises(StreamCaptureError):
                self.call(stream.end_capture)
            recording.invalidated = True
        elif recording.ends_well():
            self.end(recording)
            graph = self.call(stream.end_capture)
            assert len(graph.nodes) == recording.nodes
            self.graphs.append((graph, recording.host_functions))
        else:
            self.end(recording)
            with pytest.raises(StreamCaptureError) as caught:
                self.call(stream.end_capture)
            assert caught.value.code == (901 if recording.invalidated else 904)

    @one_captures
    @rule(data=st.data())
    def what_a_capture_refuses(self, data: st.DataObject) -> None:
        """It is refused before the driver sees it, and the capture goes on."""
        stream, thing = self.streams[self.a_stream(data, capturing=True)], Kept()
        reference = weakref.ref(thing)
        for refused in (
            stream.completion_future,
            stream.checked_completion_future,
            stream.query,
            stream.synchronize,
        ):
            with pytest.raises(StreamCaptureError):
                self.call(refused)
        with pytest.raises(StreamCaptureError):
            self.call(stream.enqueue_async, lambda _, kept: None, thing)
        waiter = Waiter(self, stream.synchronize_async)
        assert isinstance(waiter.error, StreamCaptureError)
        if self.executables:
            with pytest.raises(StreamCaptureError):
                self.call(self.executables[0][0].launch, stream)
        del thing
        gc.collect()  # the errors' tracebacks
        assert reference() is None, "a refused call keeps its arguments"

    @precondition(lambda self: self.graphs)
    @rule(data=st.data())
    def instantiate(self, data: st.DataObject) -> None:
        graph, host_functions = data.draw(st.sampled_from(self.graphs))
        self.executables.append((self.call(graph.instantiate), host_functions))

    @one_is_free
    @precondition(lambda self: self.executables)
    @rule(data=st.data(), waited=st.booleans())
    def launch(self, data: st.DataObject, waited: bool) -> None:
        stream = self.streams[self.a_stream(data, capturing=False)]
        executable, host_functions = data.draw(st.sampled_from(self.executables))
        self.expected += host_functions
        if waited:
            waiter = Waiter(self, lambda: executable.launch_and_wait(stream))
            self.until(lambda: waiter.done, "launch_and_wait() goes on")
            assert waiter.error is None
        else:
            self.call(executable.launch, stream)

    @precondition(lambda self: self.graphs or self.executables)
    @rule(data=st.data(), drop=st.booleans())
    def close_a_graph(self, data: st.DataObject, drop: bool) -> None:
        """Also while it runs."""
        filled = [things for things in (self.graphs, self.executables) if things]
        which = data.draw(st.sampled_from(filled))
        thing, _ = which.pop(data.draw(st.integers(0, len(which) - 1)))
        if not drop:
            self.call(thing.close)

    @rule(data=st.data())
    def close_an_origin(self, data: st.DataObject) -> None:
        """Its capture ends, without a graph."""
        number = self.a_stream(data)
        recording = self.recordings.get(number)
        if recording is not None and (number != recording.origin or len(recording.members) > 1):
            return  # the streams that have joined it would go on capturing
        self.call(self.streams.pop(number).close)
        if recording is not None:
            self.end(recording)
        self.made += 1
        self.streams[self.made] = Stream()

    @invariant()
    def each_stream_knows_whether_it_captures(self) -> None:
        def look() -> None:
            for number, stream in self.streams.items():
                recording = self.recordings.get(number)
                expected = CaptureStatus.NONE if recording is None else CaptureStatus.ACTIVE
                if recording is not None and recording.invalidated:
                    expected = CaptureStatus.INVALIDATED
                assert stream.capture_status() is expected
                info = stream.capture_info()
                assert info.status is expected
                if expected is CaptureStatus.ACTIVE:
                    assert info.graph is not None
                    assert recording is not None
                    assert len(info.graph.nodes) == recording.nodes

        self.call(look)

    @invariant()
    def no_host_function_runs_too_often(self) -> None:
        assert len(self.ran) <= self.expected

    def finish(self) -> None:
        for recording in set(self.recordings.values()):
            refused = pytest.raises(StreamCaptureError)
            with contextlib.nullcontext() if recording.ends_well() else refused:
                self.call(self.streams[recording.origin].end_capture)
        self.until(lambda: len(self.ran) == self.expected, "a host function did not run")
        for things in (self.graphs, self.executables, self.streams):
            things.clear()
        gc.collect()
        self.until(
            lambda: statistics().points.captured == self.before.points.captured,
            "a graph's host function is not let go of",
        )


@only_simulated
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_of_captures(backend: str) -> None:
    check(Captures, backend, examples=10, steps=40)
