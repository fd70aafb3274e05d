"""The captures that go on: what the library notes of each, and how they end.

The driver keeps the state of a capture. This module notes three things of each, because the driver
does not keep them. One is the stream on which this library began it. One is the `Graph` object that
a capture into an existing graph returns at its end. The last is the handles that `capture_info`
gave out of a graph that belongs to the driver until the end. They are closed then, so that a stale
`Graph` refuses instead of reading freed memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiostream import _native, errors
from aiostream._base import driver
from aiostream._handles.operand import PER_THREAD, Operand, call_on, keep_retired
from aiostream.enums import CaptureStatus
from aiostream.errors import CudaError, StreamClosedError
from aiostream.graph import Graph

_Origin = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class _Noted:
    """What is noted of one capture until its end."""

    # Constant once this is in `_in_progress`. To `given` any thread may append.
    identity: int | None  # the driver's number of the capture; None if it has given none
    # The stream on which it began, or if other code began it, the first one whose info was asked.
    origin: _Origin
    is_own: bool = True  # this library began it
    graph: Graph | None = None  # into which it goes, pinned; None if it makes a new one
    recapture: Any = None  # None, or what the driver may call during the capture
    pins: list[bool] = field(default_factory=list)  # of the graph
    given: list[_native.Handle] = field(default_factory=list)  # of a graph of the driver's own

    def end(self, is_gone: bool | None) -> None:
        # This is called once, by the thread that took this out of `_in_progress` (see `_forget`).
        # First the graph that was given out: from here on the driver may free it, and another
        # thread that still has its `Graph` must be refused.
        for given in self.given:
            given.close()
        if self.graph is None:
            return
        # A graph that may be gone must not be destroyed again, because by then its handle may be
        # that of another graph. A recapture that has failed may have left it.
        if is_gone is None or (is_gone and self.recapture is not None):
            is_gone = not _exists(self.graph)
        if is_gone:
            self.graph._handle.mark_destroyed()
        self.graph._captured_into = any(each.graph is self.graph for each in list(_in_progress))
        self.graph._handle.unpin(self.pins)


def _exists(graph: Graph) -> bool:
    # A driver usually refuses the handle of a graph that it has destroyed. It did not always.
    with driver.relaxed(), contextlib.suppress(CudaError):
        driver.call("cuGraphGetNodes", driver.bindings().CUgraph(graph._handle.value))
        return True
    return False


# Any thread may change it, without a lock: each change and each copy is one operation of the list.
# A thread that iterates iterates over a copy.
_in_progress: list[_Noted] = []


def _origin_of(stream: Operand) -> _Origin:
    # The per-thread stream is another stream in each thread.
    thread = threading.get_ident() if stream.handle.value == PER_THREAD else 0
    return stream.handle.value, stream.context, thread


def _find(stream: Operand, identity: int | None) -> _Noted | None:
    """Finds the capture that a stream is in, by its id, and by the stream if there is none."""
    # Over a copy. If another thread removes what is found here, `_forget` finds it gone.
    known, here = list(_in_progress), _origin_of(stream)
    begun = next((each for each in known if each.origin == here), None)
    # One without an id is known by its stream alone.
    if identity is None or (begun is not None and begun.identity in (None, identity)):
        return begun
    return next((each for each in known if each.identity == identity), begun)


def _forget(capture: _Noted | None, is_gone: bool | None) -> None:
    """Ends what is noted of a capture, once.

    `is_gone` says whether the driver has destroyed the graph that the capture went into. `None`:
    other code has ended the capture, or is ending it, so the driver is asked.
    """
    if capture is None:
        return
    try:
        # The thread that removes it ends it. Two ends would let go of one pin twice.
        _in_progress.remove(capture)
    except ValueError:
        return
    capture.end(is_gone)


def _identity_of(stream: Operand) -> int | None:
    """The id of the capture that a stream is in. `None` if there is none, or if it is unknown."""
    with contextlib.suppress(CudaError):
        return query(stream)[1]
    return None


def begin(
    stream: Operand, name: str, *args: Any, graph: Graph | None = None, recapture: Any = None
) -> None:
    """Begins a capture by a call of the driver, and notes it. Pins the graph into which it goes."""
    # What other code has ended is forgotten first, because the graph of this capture may get the
    # handle of the old graph.
    earlier = _find(stream, None)
    if earlier is not None and not _still_captures(stream):
        _forget(earlier, None)
    noted = _Noted(None, _origin_of(stream), graph=graph, recapture=recapture)
    if graph is not None:
        graph._captured_into = True
    # Noted before it begins. An end that found nothing noted would make a second owner of the
    # graph, which would destroy it twice. What has not begun is forgotten here, and after an
    # interrupt by the stream's next capture.
    _in_progress.append(noted)
    try:
        # Another thread may end the capture, and unpins then. Without this, a `close` would free
        # the graph under the capture.
        if graph is not None and not graph._handle.pin(noted.pins):
            raise errors.closed(graph._name)
        call_on(stream, name, *args)
    except Exception:
        _forget(noted, False)
        raise
    # If the driver gives no id, the stream finds what is noted. Without that the graph would stay
    # pinned after the capture.
    noted.identity = _identity_of(stream)


def end_left(stream: Operand) -> None:
    """Ends a capture that this library began on this stream, and no other capture."""
    begun = _find(stream, None)
    if begun is None or not begun.is_own:
        return
    # Another thread may end it first, or close a borrowed stream.
    with contextlib.suppress(CudaError, StreamClosedError):
        status, identity, *_ = query(stream)
        # Other code may have ended that capture and begun its own, which is not ours to end.
        if status is not CaptureStatus.NONE and identity in (None, begun.identity):
            end(stream)


def retire(stream: Operand, close: Callable[[], Any]) -> None:
    """Closes a stream that the library owns by `close`, with what is noted of its captures.

    A shared stream is not destroyed, so nothing else would ever end its capture.
    """
    # Looked up before the close, because a new `Stream` may have the handle of a closed one, and
    # capture on it.
    here, handle = _origin_of(stream), stream.handle
    noted = [each for each in list(_in_progress) if each.origin == here and handle.is_open]
    # A closed handle refuses the calls that end a capture. The health is asked first, because a
    # stream whose context was destroyed must not be touched.
    if noted and handle.is_shared and stream.context.health() == 0:
        end_left(stream)
    try:
        close()
    finally:
        for capture in noted:  # it has ended with its stream, and the driver has freed its graph
            _forget(capture, True)
        keep_retired(stream)


def query(stream: Operand) -> tuple[CaptureStatus, int | None, int, Any, Any]:
    name = driver.annotated("cuStreamGetCaptureInfo")
    status, identity, graph, nodes, edges, _ = call_on(stream, name)
    status = CaptureStatus(int(status))
    identity = int(identity) if status is CaptureStatus.ACTIVE else None
    return status, identity, int(graph), nodes, edges


def status(stream: Operand) -> CaptureStatus:
    return CaptureStatus(int(call_on(stream, "cuStreamIsCapturing")))


def borrowed_graph(stream: Operand, identity: int, value: int) -> Graph:
    capture = _find(stream, identity)
    if capture is None or capture.identity not in (None, identity):
        _forget(capture, None)  # it has ended, because a stream is in one capture at a time
        capture = _Noted(identity, _origin_of(stream), is_own=False)
        _in_progress.append(capture)
    if capture.graph is not None:
        return capture.graph
    if not capture.given:
        capture.given.append(
            _native.Handle(_native.HANDLE_GRAPH, value, stream.context.handle, False)
        )
    same = capture.given[0].borrow()
    graph = Graph.__new__(Graph)._init_fields(same, stream.context, owned=False)
    # Another thread may have ended the capture since then, and have closed what it found.
    if capture not in _in_progress:
        capture.end(None)
    return graph


def end(stream: Operand) -> Graph:
    # The capture is found before the driver ends it and forgets its id. It is let go of last,
    # because it holds the graph.
    identity = _identity_of(stream)
    capture = _find(stream, identity)
    try:
        ended = call_on(stream, "cuStreamEndCapture")
    except CudaError:
        # After code 903 the capture goes on, and what is noted of it stays.
        if not _still_captures(stream):
            _forget(capture, True)
        raise
    existing = capture.graph if capture is not None else None
    try:
        if existing is not None and existing._handle.value == int(ended):
            return existing
        return Graph.__new__(Graph)._init_made(int(ended), stream.context)
    finally:
        # All of the id, because two threads may have asked for it at once, and noted it twice.
        for each in list(_in_progress):
            if each is capture or (identity is not None and each.identity == identity):
                _forget(each, False)


def _still_captures(stream: Operand) -> bool:
    try:
        return status(stream) is not CaptureStatus.NONE
    except (CudaError, StreamClosedError):
        return False
