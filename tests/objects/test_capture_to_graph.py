"""Captures into a graph that exists: what becomes of that graph, however the capture ends."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

import internals
from aiostream import (
    CaptureMode,
    CaptureStatus,
    DependencyUpdate,
    Event,
    Graph,
    GraphDependency,
    Stream,
    StreamClosedError,
    statistics,
)
from captures import PROGRAMMATIC, code_of, in_thread
from support import Kept, settle, spin

MODES = list(CaptureMode)


@pytest.mark.parametrize("mode", MODES)
def test_capture_into_a_graph_returns_that_graph(stream: Stream, mode: CaptureMode) -> None:
    graph = Graph()
    for number in range(3):
        before = statistics().handles.created
        stream.begin_capture_to_graph(graph, graph.nodes[-1:], mode=mode)
        info = stream.capture_info()
        assert info.graph is graph
        assert [dependency.node for dependency in info.dependencies] == list(graph.nodes[-1:])
        spin(stream, 0)
        assert stream.end_capture() is graph
        assert statistics().handles.created == before
        assert len(graph.nodes) == number + 1
    assert len(graph.root_nodes) == 1
    with graph.instantiate() as executable:
        executable.launch(stream)
        stream.synchronize()
    graph.close()


def test_capture_into_a_graph_with_annotated_dependencies(stream: Stream) -> None:
    graph = Graph()
    stream.begin_capture_to_graph(graph)
    spin(stream, 0)
    stream.end_capture()
    (node,) = graph.nodes
    dependency = GraphDependency(node, PROGRAMMATIC)
    stream.begin_capture_to_graph(graph, [dependency])
    assert stream.capture_info().dependencies == (dependency,)
    stream.update_capture_dependencies([], mode=DependencyUpdate.SET)
    assert stream.end_capture() is graph
    graph.close()


def test_closed_graph_lives_until_the_capture_into_it_ends(
    stream: Stream,
) -> None:
    graph = Graph()
    open_before = statistics().handles.open
    stream.begin_capture_to_graph(graph)
    graph.close()
    spin(stream, 0)
    assert statistics().handles.open == open_before
    assert stream.end_capture() is graph
    assert graph.closed
    assert statistics().handles.open == open_before - 1
    with pytest.raises(StreamClosedError):
        stream.begin_capture_to_graph(graph)
    assert stream.capture_status() is CaptureStatus.NONE


@pytest.mark.parametrize("closed_before", [False, True])
@pytest.mark.parametrize(
    "how", ["unjoined", "invalidated", "ended on another", "elsewhere", "closed"]
)
def test_failed_capture_closes_its_graph(stream: Stream, how: str, closed_before: bool) -> None:
    """Also one that was there before.

    The library must not destroy it twice, because another graph may have its handle by then.
    """
    other, event, graph = Stream(), Event(), Graph()
    open_before, owned = statistics().handles.open, Kept()
    gone = weakref.ref(owned)
    stream.begin_capture_to_graph(graph)
    stream.launch_host_func(id, owned)
    del owned
    event.record(stream)
    if how in ("unjoined", "ended on another"):
        other.wait_event(event)
        spin(other, 0)
    if closed_before:
        graph.close()
    if how == "closed":
        stream.close()
    elif how == "elsewhere":
        assert in_thread(stream.end_capture, stream).code == 908
    else:
        if how == "invalidated":
            driver = internals.bindings()
            driver.cuStreamQuery(driver.CUstream(stream.handle))
        if how == "ended on another":
            assert code_of(other.end_capture)[1] == 903
            assert stream.capture_status() is CaptureStatus.INVALIDATED
            assert graph.closed is closed_before
        assert code_of(stream.end_capture)[1] == (904 if how == "unjoined" else 901)
    assert graph.closed
    others = [Graph() for _ in range(8)]  # one of them may have the handle now
    graph.close()
    assert all(another.nodes == () for another in others)
    assert settle(lambda: gone() is None)
    things: list[Any] = [event, other, stream, *others]
    for thing in things:
        thing.close()
    assert statistics().handles.open == open_before - 4


def test_into_raw_is_refused_during_a_capture_into_the_graph(stream: Stream) -> None:
    graph = Graph()
    stream.begin_capture_to_graph(graph)
    with pytest.raises(ValueError, match="end the capture before"):
        graph.into_raw()
    assert stream.end_capture() is graph
    Graph.from_raw(graph.into_raw()).close()


@pytest.mark.parametrize(
    "good",
    [
        True,
        pytest.param(
            False,
            marks=pytest.mark.simulator_only("a GPU's driver may still know a graph that is gone"),
        ),
    ],
)
def test_capture_into_a_graph_that_other_code_ended(stream: Stream, good: bool) -> None:
    """Noticed when the stream captures again: then the graph is let go of, or closed if it is no
    more.
    """
    driver, graph = internals.bindings(), Graph()
    stream.begin_capture_to_graph(graph)
    if not good:
        driver.cuStreamQuery(driver.CUstream(stream.handle))
    assert int(driver.cuStreamEndCapture(driver.CUstream(stream.handle))[0]) == (0 if good else 901)
    with stream.capture() as capture:
        pass
    assert graph.closed is not good
    for one in (capture.graph, graph):
        one.close()


def test_node_of_another_graph_is_refused_as_a_dependency(stream: Stream) -> None:
    graph, foreign = Graph(), Graph()
    stream.begin_capture_to_graph(foreign)
    spin(stream, 0)
    stream.end_capture()
    assert code_of(stream.begin_capture_to_graph, graph, foreign.nodes)[1] == 1
    assert stream.capture_status() is CaptureStatus.NONE
    graph.close()
    foreign.close()
