"""Captures into a graph that exists, however they end; and what the library notes of captures."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
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
    StreamCaptureError,
    StreamClosedError,
    statistics,
)
from aiostream.testing import Faults
from captures import PROGRAMMATIC, code_of, end, in_thread
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


def test_closed_graph_lives_until_the_capture_into_it_ends(stream: Stream) -> None:
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


# ---------------------------------------------------------------------- captures that are forgotten


def test_captures_that_other_code_ends_are_forgotten(stream: Stream) -> None:
    """What was handed out of them is closed when the stream is seen in the next one."""
    graphs = []
    before = internals.captures_in_progress()
    for _ in range(5):
        stream.begin_capture()
        graphs.append(stream.capture_info().graph)
        end(stream)  # by the driver's own call
        assert internals.captures_in_progress() == before + 1
    assert [graph is not None and graph.closed for graph in graphs] == [True] * 4 + [False]
    stream.begin_capture()
    graphs.append(stream.capture_info().graph)
    stream.end_capture().close()
    assert internals.captures_in_progress() == before
    assert all(graph is not None and graph.closed for graph in graphs)


@pytest.mark.parametrize("how", ["close", "drop", "invalidate and end", "invalidate and close"])
def test_captures_that_end_without_a_graph_are_forgotten(other: Stream, how: str) -> None:
    """Its graph is the driver's, and goes with the capture: the object refuses from then on."""
    before = internals.captures_in_progress()
    stream = Stream()
    stream.begin_capture(CaptureMode.RELAXED)
    graph = stream.capture_info().graph
    assert graph is not None
    assert not graph.closed
    assert internals.captures_in_progress() == before + 1
    if how.startswith("invalidate"):
        event = Event()
        event.record(stream)
        other.wait_event(event)
        with pytest.raises(StreamCaptureError):
            other.end_capture()
        event.close()
        assert stream.capture_status() is CaptureStatus.INVALIDATED
    if how == "invalidate and end":
        with pytest.raises(StreamCaptureError):
            stream.end_capture()
    if how != "drop":
        stream.close()
    del stream
    gc.collect()
    assert settle(lambda: graph.closed), "the graph of a capture that is gone can still be used"
    assert internals.captures_in_progress() == before


class Overlooked(list[Any]):
    """The list of captures, as a thread sees it that asks before another one has added its own:
    that many searches find none.
    """

    overlooks = 0

    def __iter__(self) -> Iterator[Any]:
        if self.overlooks:
            self.overlooks -= 1
            return iter(())
        return super().__iter__()


def test_two_threads_that_ask_for_one_capture_at_once(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find no entry and add one. Both graphs refuse after the end of the capture."""
    listed = Overlooked()
    internals.replace_captures(monkeypatch, listed)
    stream.begin_capture()
    first = stream.capture_info().graph
    listed.overlooks = 2  # the search by id, and that for an earlier capture
    second = stream.capture_info().graph
    assert len(listed) == 2
    assert first is not None
    assert second is not None
    stream.end_capture().close()
    assert (first.closed, second.closed, len(listed)) == (True, True, 0)


@pytest.mark.simulator_only("has a driver call fail on command")
def test_a_capture_whose_number_is_unknown_still_goes_into_its_graph(stream: Stream) -> None:
    """Not into a second owner of it, which would destroy the graph twice."""
    graph = Graph()
    with Faults() as faults:
        faults.fail("cuStreamGetCaptureInfo", 2)
        stream.begin_capture_to_graph(graph)
    stream.capture_info()  # notes the capture by its number
    assert stream.end_capture() is graph
    graph.close()
