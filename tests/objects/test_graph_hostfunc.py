"""Host functions in graphs live as long as anything may call them, and no longer."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aiostream import (
    CaptureMode,
    CudaError,
    Event,
    Graph,
    GraphNodeType,
    Stream,
    StreamCaptureError,
    simulator,
    statistics,
)
from internals import bindings, native_call_replaced
from support import FULL, Gate, settle


class Owner:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.arguments: Any = None

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        self.arguments = arguments


def captured_owner(stream: Stream, *arguments: Any) -> tuple[Graph, weakref.ref[Owner]]:
    """A graph that holds the only reference to the owner that it calls."""
    owner = Owner()
    with stream.capture() as capture:
        stream.launch_host_func(owner, *arguments)
    return capture.graph, weakref.ref(owner)


def is_gone(owner: weakref.ref[Owner]) -> bool:
    return settle(lambda: gc.collect() >= 0 and owner() is None)


def calls_of(owner: weakref.ref[Owner]) -> int:
    living = owner()
    assert living is not None, "freed early"
    return living.calls


async def test_thousands_of_replays(stream: Stream) -> None:
    """Replayed in flights of 100, each launch awaited with those before it."""
    graph, owner = captured_owner(stream, "argument", 5)
    executable = graph.instantiate()
    graph.close()
    for flight in range(100 if FULL else 20):
        for _ in range(100):
            executable.launch(stream)
        await stream.synchronize_async()
        assert calls_of(owner) == (flight + 1) * 100
    living = owner()
    assert living is not None
    assert living.arguments == ("argument", 5)
    del living
    executable.close()
    assert is_gone(owner)


def test_graphs_are_dropped_while_launches_are_in_flight(stream: Stream) -> None:
    """Two hundred graphs, dropped in all ways with launches held on the GPU: every launch calls its
    owner, which then dies.
    """
    counts: list[int] = []

    class Counting(Owner):
        def __del__(self) -> None:
            counts.append(self.calls)

    for number in range(100):
        with Gate() as gate:
            gate.hold(stream)
            # Few at a time: with some dozens of launches with host nodes pending, an H200 blocked
            # the next one.
            for each in range(number * 2, number * 2 + 2):
                with stream.capture() as capture:
                    stream.launch_host_func(Counting())
                graph = capture.graph
                executable = (graph.clone() if each % 2 else graph).instantiate()
                for _ in range(3):
                    executable.launch(stream)
                if each % 3 == 0:
                    executable.close()
                if each % 5 == 0:
                    graph.close()
                del graph, executable, capture
            gc.collect()
            assert len(counts) == number * 2, "an owner was freed under a launch"
            gate.open()
            stream.synchronize()
        assert settle(lambda wanted=(number + 1) * 2: len(counts) == wanted), "an owner was lost"
    assert counts == [3] * 200


def test_it_lives_as_long_as_any_graph_that_may_call_it(stream: Stream) -> None:
    graph, owner = captured_owner(stream)
    clone, executable = graph.clone(), graph.instantiate()
    graph.close()
    del graph
    gc.collect()
    copy = clone.instantiate()
    clone.close()
    executable.launch(stream)
    executable.close()
    copy.launch(stream)
    stream.synchronize()
    assert calls_of(owner) == 2
    copy.close()
    assert is_gone(owner)


def test_it_lives_in_a_child_graph(stream: Stream) -> None:
    driver = bindings()
    child, owner = captured_owner(stream)
    with Graph() as parent:
        (code, _) = driver.cuGraphAddChildGraphNode(
            driver.CUgraph(int(parent)), [], 0, driver.CUgraph(int(child))
        )
        assert int(code) == 0
        child.close()
        assert [node.type for node in parent.nodes] == [GraphNodeType.GRAPH]
        executable = parent.instantiate()
    executable.launch(stream)
    stream.synchronize()
    assert calls_of(owner) == 1
    executable.close()
    assert is_gone(owner)


def test_an_update_replaces_the_owners(stream: Stream) -> None:
    first, first_owner = captured_owner(stream)
    second, second_owner = captured_owner(stream)
    executable = first.instantiate()
    first.close()
    with Gate() as gate:
        gate.hold(stream)
        executable.launch(stream)
        executable.update(second)
        second.close()
        executable.launch(stream)
        gc.collect()
        assert first_owner() is not None, "freed under a launch"
        gate.open()
        stream.synchronize()
    assert is_gone(first_owner)
    assert calls_of(second_owner) == 1
    executable.close()
    assert is_gone(second_owner)


def test_a_graph_that_is_never_launched(stream: Stream) -> None:
    graph, owner = captured_owner(stream)
    before = statistics().points
    assert before.captured == before.pending == 1
    assert calls_of(owner) == 0
    graph.close()
    assert is_gone(owner)
    assert settle(lambda: statistics().points.fired == before.fired + 1)


@pytest.mark.parametrize("how", ["exception", "invalidated", "unjoined"])
def test_a_capture_that_fails_frees_what_it_took_in(
    stream: Stream, other: Stream, event: Event, how: str
) -> None:
    owner = Owner()
    seen = weakref.ref(owner)
    error = ValueError if how == "exception" else StreamCaptureError
    with pytest.raises(error), stream.capture():
        stream.launch_host_func(owner)
        del owner
        if how == "exception":
            raise ValueError("body")
        if how == "invalidated":
            driver = bindings()
            driver.cuStreamQuery(driver.CUstream(stream.handle))
        if how == "unjoined":
            event.record(stream)
            other.wait_event(event)
            other.launch_host_func(print, "never")
    assert is_gone(seen)


def test_a_native_function_is_captured_raw_and_kept_with_its_data(stream: Stream) -> None:
    """The driver is given the user's own pointers. Both live as long as the graph."""
    seen: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int))(
        lambda data: seen.append(data.contents.value)
    )
    data = ctypes.c_int(42)
    addresses = ctypes.cast(function, ctypes.c_void_p).value, ctypes.addressof(data)
    kept = weakref.ref(data), weakref.ref(function)
    with stream.capture() as capture:
        stream.launch_host_func(function, data)
    del data, function
    gc.collect()
    driver = bindings()
    node = driver.CUgraphNode(int(capture.graph.nodes[0]))
    code, parameters = driver.cuGraphHostNodeGetParams(node)
    assert (int(code), int(parameters.fn), int(parameters.userData)) == (0, *addresses)
    with capture.graph as graph, graph.instantiate() as executable:
        for _ in range(3):
            executable.launch(stream)
        stream.synchronize()
        assert seen == [42] * 3
        assert all(reference() is not None for reference in kept)
    assert settle(lambda: gc.collect() >= 0 and all(reference() is None for reference in kept))


def test_from_many_threads_into_many_captures() -> None:
    """Threads that capture, launch and drop, each on its stream, while the others do: every call
    comes, every owner goes.
    """
    rounds, threads = 20, 4
    owners: list[weakref.ref[Owner]] = []
    calls: list[int] = []

    def work(stream: Stream) -> None:
        for _ in range(rounds):
            owner = Owner()
            owners.append(weakref.ref(owner))
            with stream.capture_executable(CaptureMode.THREAD_LOCAL) as capture:
                stream.launch_host_func(owner)
                stream.launch_host_func(calls.append, 1)
            for _ in range(5):
                capture.executable.launch(stream)
            stream.synchronize()
            assert owner.calls == 5
        stream.close()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [Stream() for _ in range(threads)]))
    assert len(calls) == rounds * threads * 5
    assert settle(lambda: gc.collect() >= 0 and all(owner() is None for owner in owners))


def test_a_cycle_through_the_graph_ends_with_its_closing(stream: Stream) -> None:
    graph, owner = captured_owner(stream)
    living = owner()
    assert living is not None
    living.graph = graph  # type: ignore[attr-defined]
    del living
    gc.collect()
    assert owner() is not None
    graph.close()
    del graph
    assert is_gone(owner)


REFUSALS = {
    "cuUserObjectCreate": (2, 0),
    "cuGraphRetainUserObject": (2, 1),
    "cuLaunchHostFunc": (2, 1),
    "cuStreamGetCaptureInfo": (999, 0),
}


@pytest.mark.simulator_only("has a driver call fail on command")
@pytest.mark.parametrize("call", REFUSALS)
def test_a_refused_step_leaves_nothing_behind(stream: Stream, call: str) -> None:
    code, armed = REFUSALS[call]
    owner = Owner()
    seen = weakref.ref(owner)
    before = statistics().points
    with stream.capture() as capture:
        simulator.fail(call, code)
        with pytest.raises(CudaError) as caught:
            stream.launch_host_func(owner)
        assert caught.value.code == code
        del caught, owner
        assert is_gone(seen)
        ran: list[int] = []
        stream.launch_host_func(ran.append, 1)
    assert settle(lambda: statistics().points.fired == before.fired + armed)
    assert statistics().points.armed == before.armed + armed + 1
    with capture.graph as graph, graph.instantiate() as executable:
        assert [node.type for node in graph.nodes] == [GraphNodeType.HOST]
        executable.launch(stream)
        stream.synchronize()
    assert ran == [1]


@pytest.mark.cuda_leaks(1)
def test_a_capture_that_another_thread_ends_in_between_is_quarantined(stream: Stream) -> None:
    """The record is kept and does nothing, because the stream may still run what was enqueued."""
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    graphs: list[Graph] = []

    def replace(original: Callable[..., int]) -> Callable[..., int]:
        def end_first(asked: int, function: int, data: int) -> int:
            graphs.append(stream.end_capture())
            return original(asked, function, data)

        return end_first

    called: list[int] = []
    stream.begin_capture(CaptureMode.RELAXED)
    refused = pytest.raises(StreamCaptureError, match="began or ended a capture")
    with native_call_replaced("cuLaunchHostFunc", signature, replace), refused:
        stream.launch_host_func(called.append, 1)
    stream.synchronize()
    graphs[0].close()
    assert called in ([], [1])
    assert statistics().balanced
