"""NVIDIA's own cuda.core on the simulator: whether it behaves as a driver, judged by code that was
written for one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import nogpu as simulator
from simdriver import PTX, Gate, cu, host, ok, until

core = pytest.importorskip("cuda.core", reason="cuda.core is not installed", exc_type=ImportError)
if not hasattr(core, "Device"):
    pytest.skip(
        "this cuda.core has no Device outside of its experimental part", allow_module_level=True
    )


@pytest.fixture
def device(driver: None) -> Any:
    device = core.Device(0)
    device.set_current()
    return device


@pytest.fixture
def stream(device: Any) -> Iterator[Any]:
    stream = device.create_stream()
    yield stream
    stream.close()


@pytest.fixture
def kernel(device: Any) -> Any:
    return core.ObjectCode.from_ptx(PTX[:-1]).get_kernel("empty")


ONE = {"grid": 1, "block": 1}


def test_devices(device: Any) -> None:
    assert device.name == "nogpu simulator"
    assert tuple(device.compute_capability) == (9, 0)
    assert int(device.context.handle) == int(ok(cu.cuCtxGetCurrent()))
    assert device.properties.multiprocessor_count == 132
    other = core.Device(1)
    other.set_current()
    assert int(other.context.handle) != int(device.context.handle)
    device.set_current()


@pytest.mark.parametrize("nonblocking", [True, False])
@pytest.mark.parametrize("priority", [None, 0, -3])
def test_streams_are_as_they_were_asked_for(device: Any, nonblocking: Any, priority: Any) -> None:
    stream = device.create_stream(
        options=core.StreamOptions(nonblocking=nonblocking, priority=priority)
    )
    assert stream.is_nonblocking == nonblocking
    assert stream.priority == (priority or 0)
    assert stream.device.device_id == 0
    assert int(stream.context.handle) == int(device.context.handle)
    assert stream.__cuda_stream__() == (0, int(stream.handle))
    assert stream != device.default_stream
    stream.close()


def test_a_handle_becomes_a_stream_that_is_not_owned(stream: Any) -> None:
    borrowed = core.Stream.from_handle(int(stream.handle))
    assert borrowed == stream
    borrowed.sync()
    borrowed.close()
    stream.sync()


def test_events_and_waits(stream: Any, device: Any) -> None:
    gate, order, other = Gate(), [], device.create_stream()
    gate.hold(stream.handle)
    host(stream.handle, lambda: order.append("first"))
    event = stream.record()
    assert not event.is_done
    other.wait(event)
    host(other.handle, lambda: order.append("second"))
    assert order == []
    gate.open()
    other.sync()
    assert event.is_done
    event.sync()
    assert order == ["first", "second"]
    other.wait(stream)
    other.close()


def test_time_between_events(stream: Any, device: Any) -> None:
    timed = core.EventOptions(timing_enabled=True)
    start = stream.record(options=timed)
    ends = threading.Event()
    host(stream.handle, lambda: ends.wait(0.02))
    end = stream.record(options=timed)
    stream.sync()
    assert 15 < end - start < 10_000
    assert end.is_timing_enabled
    assert end.device.device_id == 0


def test_streams_of_two_devices(stream: Any) -> None:
    second = core.Device(1)
    second.set_current()
    there = second.create_stream()
    event = there.record()
    stream.wait(event)
    stream.sync()
    assert event.is_done
    assert there.device.device_id == event.device.device_id == 1
    there.close()
    core.Device(0).set_current()


def test_launches_and_memory(stream: Any, device: Any, kernel: Any) -> None:
    for _ in range(10):
        core.launch(stream, core.LaunchConfig(**ONE), kernel)
    buffer = device.allocate(1024, stream=stream)
    assert buffer.size == 1024
    buffer.close(stream)
    stream.sync()


def build(device: Any, kernel: Any, call: Any) -> Any:
    """Two branches between a callback and another, as a capture."""
    builder = device.create_graph_builder().begin_building()
    core.launch(builder, core.LaunchConfig(**ONE), kernel)
    builder.callback(lambda: call("fork"))
    left, right = builder.split(2)
    core.launch(left, core.LaunchConfig(**ONE), kernel)
    right.callback(lambda: call("right"))
    builder = type(builder).join(left, right)
    builder.callback(lambda: call("join"))
    return builder.end_building()


def test_a_graph_builder_captures_forks_joins_and_callbacks(
    stream: Any, device: Any, kernel: Any
) -> None:
    order: list[str] = []
    built = build(device, kernel, order.append)
    graph = built.complete()
    graph.upload(stream)
    for _ in range(20):
        graph.launch(stream)
    stream.sync()
    assert order == ["fork", "right", "join"] * 20
    again: list[str] = []
    graph.update(build(device, kernel, again.append))
    graph.launch(stream)
    stream.sync()
    assert again == ["fork", "right", "join"]
    assert len(order) == 60


def test_a_graph_by_its_nodes(stream: Any, device: Any, kernel: Any) -> None:
    pytest.importorskip("cuda.core.graph", reason="this cuda.core builds no graphs by nodes")
    from cuda.core.graph import GraphDefinition

    order, event = [], device.create_event()
    definition = GraphDefinition()
    first = definition.launch(core.LaunchConfig(**ONE), kernel)
    sides = [first.callback(lambda word=word: order.append(word)) for word in ("a", "b")]
    inner = GraphDefinition()
    inner.callback(lambda: order.append("inner"))
    definition.join(*sides).record(event).wait(event).callback(lambda: order.append("x")).embed(
        inner
    )
    assert len(definition.nodes()) == 8
    assert len(definition.edges()) == 8
    graph = definition.instantiate()
    for _ in range(3):
        order.clear()
        graph.launch(stream)
        stream.sync()
        assert sorted(order[:2]) == ["a", "b"]
        assert order[2:] == ["x", "inner"]
    with pytest.raises(Exception, match="topology changed"):
        graph.update(GraphDefinition())


def test_what_a_callback_holds_goes_with_the_graph(stream: Any, device: Any) -> None:
    """cuda.core gives its graphs user objects that hold the callables; their destructors leave the
    letting go to the main thread, which therefore must not sleep here.
    """

    class Word:
        pass

    word, gone = Word(), threading.Event()
    builder = device.create_graph_builder().begin_building()
    builder.callback(lambda word=word: word)
    graph = builder.end_building().complete()
    weakref.finalize(word, gone.set)
    del word
    graph.launch(stream)
    stream.sync()
    assert not gone.is_set()
    graph.close()
    builder.close()
    del graph, builder
    until(gone.is_set)
    until(lambda: simulator.pending_work() == 0)


def test_launches_in_clusters(stream: Any, kernel: Any) -> None:
    core.launch(stream, core.LaunchConfig(grid=4, cluster=2, block=1), kernel)
    stream.sync()
