"""The library notes what goes on in a capture, and forgets it when the capture has ended."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import internals
from aiostream import CaptureMode, CaptureStatus, Event, Stream, StreamCaptureError
from support import settle


def test_captures_that_other_code_ends_are_forgotten(stream: Stream) -> None:
    """What was lent of them is closed when the stream is seen in the next one."""
    driver = internals.bindings()
    graphs = []
    before = internals.captures_in_progress()
    for _ in range(5):
        stream.begin_capture()
        graphs.append(stream.capture_info().graph)
        _, raw = driver.cuStreamEndCapture(driver.CUstream(stream.handle))
        driver.cuGraphDestroy(raw)
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
    """The records of captures, as a thread sees them that looks before another one has added its
    own: so many looks find none.
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
    """Both find no record and add one. Both graphs refuse after the end of the capture."""
    records = Overlooked()
    internals.replace_capture_records(monkeypatch, records)
    stream.begin_capture()
    first = stream.capture_info().graph
    records.overlooks = 2  # the search by id, and that for an earlier capture
    second = stream.capture_info().graph
    assert len(records) == 2
    assert first is not None
    assert second is not None
    stream.end_capture().close()
    assert (first.closed, second.closed, len(records)) == (True, True, 0)
