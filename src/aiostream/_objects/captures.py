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
from enum import Enum, auto
from typing import Any

from aiostream import _native, errors
from aiostream._base import driver
from aiostream._handles.operand import PER_THREAD, Operand, call_on, keep_retired
from aiostream.enums import CaptureStatus
from aiostream.errors import CudaError, StreamClosedError
from aiostream.graph import Graph

_Origin = tuple[Any, ...]


class _End(Enum):
    """How a capture ended."""

    GOOD = auto()
    # The driver has destroyed the graph that the capture went into. After a recapture it may not.
    FAILED = auto()
    ENDED_ELSEWHERE = auto()  # other code has ended it, or is ending it


@dataclass(slots=True, eq=False)
class _Noted:
    """What is noted of one capture until its end."""

    # Constant once this is in `_in_progress`. To `given` any thread may append.
    identity: int | None  # the driver's number of the capture; None if it has given none
    origin: _Origin | None  # the stream on which it began, if this library began it
    graph: Graph | None = None  # into which it goes, pinned; None if it makes a new one
    recapture: Any = None  # None, or what the driver may call during the capture
    pins: list[bool] = field(default_factory=list)  # of the graph
    given: list[_native.Handle] = field(default_factory=list)  # of a graph of the driver's own
    seen_on: _Origin | None = None  # the stream that capture_info() was asked for

    def end(self, how: _End) -> None:
        # This is called once, by the thread that took this out of `_in_progress` (see `_forget`).
        # First the graph that was given out: from here on the driver may free it, and another
        # thread that still has its `Graph` must be refused.
        for given in self.given:
            given.close()
        if self.graph is None:
            return
        # A graph that may be gone must not be destroyed again, because by then its handle may be
        # that of another graph.
        if how is not _End.GOOD and (
            (how is _End.FAILED and self.recapture is None) or not _exists(self.graph)
        ):
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


def _find(identity: int | None) -> _Noted | None:
    # Over a copy. If another thread removes what is found here, `_forget` finds it gone.
    known = list(_in_progress)
    found = (each for each in known if identity is not None and each.identity == identity)
    return next(found, None)


def _begun_on(stream: Operand) -> _Noted | None:
    """Finds the capture that this library began on a stream, also if the driver gives no id."""
    here = _origin_of(stream)
    return next((each for each in list(_in_progress) if each.origin == here), None)


def _forget(capture: _Noted | None, how: _End) -> None:
    if capture is None:
        return
    try:
        # The thread that removes it ends it. Two ends would let go of one pin twice.
        _in_progress.remove(capture)
    except ValueError:
        return
    capture.end(how)


def _identity_of(stream: Operand) -> int | None:
    """The id of the capture that a stream is in. `None` if there is none, or if it is unknown."""
    with contextlib.suppress(CudaError):
        return query(stream)[1]
    return None


def begin(
    stream: Operand, name: str, *args: Any, graph: Graph | None = None, recapture: Any = None
) -> None:
    """Begins a capture by a call of the driver, and notes it. Pins the graph into which it goes."""
    forget_ended_elsewhere(stream)
    noted = _Noted(None, _origin_of(stream), graph, recapture)
    if graph is not None:
        graph._captured_into = True
    # Noted before it begins. An end that found nothing noted would make a second owner of the
    # graph, which would destroy it twice. What has not begun is forgotten here, and after an
    # interrupt by the stream's next capture (`forget_ended_elsewhere`).
    _in_progress.append(noted)
    try:
        # Another thread may end the capture, and unpins then. Without this, a `close` would free
        # the graph under the capture.
        if graph is not None and not graph._handle.pin(noted.pins):
            raise errors.closed(graph._name)
        call_on(stream, name, *args)
    except Exception:
        _forget(noted, _End.GOOD)
        raise
    # If the driver gives no id, the stream finds what is noted. Without that the graph would stay
    # pinned after the capture.
    noted.identity = _identity_of(stream)


def end_left(stream: Operand) -> None:
    """Ends a capture that this library began on this stream, and no other capture."""
    begun = _begun_on(stream)
    if begun is None:
        return
    # Another thread may end it first, or close a borrowed stream.
    with contextlib.suppress(CudaError, StreamClosedError):
        status, identity, *_ = query(stream)
        # Other code may have ended that capture and begun its own, which is not ours to end.
        if status is not CaptureStatus.NONE and identity in (None, begun.identity):
            end(stream)


def is_noted(stream: Operand) -> bool:
    """Whether `forget` has anything to do. It is quick, because each finalizer asks."""
    # Any thread may ask, also one that is just changing the list. So this takes no lock and reads a
    # copy. What another thread is adding now is of a stream that it refers to, and that is not
    # finalized.
    here = _origin_of(stream)
    return any(here in (capture.origin, capture.seen_on) for capture in list(_in_progress))


def forget(stream: Operand) -> None:
    """Forgets the capture of a stream that is destroyed, because the capture has ended with it.

    This closes what was seen of a capture that other code began, too. The stream may have been its
    origin, and then the driver has freed the graph.
    """
    here = _origin_of(stream)
    for capture in list(_in_progress):
        if capture.origin == here or (capture.origin is None and capture.seen_on == here):
            _forget(capture, _End.FAILED)


def retire(stream: Operand, close: Callable[[], Any]) -> None:
    """Closes a stream that the library owns by `close`, with what is noted of its captures.

    A shared stream is not destroyed, so nothing else would ever end its capture.
    """
    # A closed handle refuses the calls that end a capture. A stream that is closed already is left
    # out, because a new `Stream` may use it and capture on it. The health is asked first, because a
    # stream whose context was destroyed must not be touched.
    handle = stream.handle
    if handle.is_shared and handle.is_open and stream.context.health() == 0:
        end_left(stream)
    # Until the close another thread may ask for the capture, which notes it again. After the last
    # step a new `Stream` may capture.
    try:
        close()
    finally:
        forget(stream)
        keep_retired(stream)


def forget_ended_elsewhere(stream: Operand) -> None:
    """Forgets a capture of the stream that other code has ended.

    Call it before the next capture begins, because the graph of that one may get the handle of the
    old graph.
    """
    capture = _begun_on(stream)
    if capture is not None and not _still_captures(stream):
        _forget(capture, _End.ENDED_ELSEWHERE)


def query(stream: Operand) -> tuple[CaptureStatus, int | None, int, Any, Any]:
    name = driver.annotated("cuStreamGetCaptureInfo")
    status, identity, graph, nodes, edges, _ = call_on(stream, name)
    status = CaptureStatus(int(status))
    identity = int(identity) if status is CaptureStatus.ACTIVE else None
    return status, identity, int(graph), nodes, edges


def status(stream: Operand) -> CaptureStatus:
    return CaptureStatus(int(call_on(stream, "cuStreamIsCapturing")))


def borrowed_graph(stream: Operand, identity: int, value: int) -> Graph:
    capture, here = _find(identity), _origin_of(stream)
    if capture is None:
        for earlier in list(_in_progress):
            if earlier.seen_on == here:
                # It has ended, because a stream is in one capture at a time.
                _forget(earlier, _End.ENDED_ELSEWHERE)
        capture = _Noted(identity, None)
        _in_progress.append(capture)
    capture.seen_on = capture.seen_on or here
    if capture.graph is not None:
        return capture.graph
    if not capture.given:
        capture.given.append(
            _native.Handle(_native.HANDLE_GRAPH, value, stream.context.handle, False)
        )
    same = capture.given[0].borrow()
    graph = Graph._from_handle(value, stream.context, owned=False, handle=same)
    # Another thread may have ended the capture since then, and have closed what it found.
    if capture not in _in_progress:
        capture.end(_End.ENDED_ELSEWHERE)
    return graph


def end(stream: Operand) -> Graph:
    # The capture is found before the driver ends it and forgets its id. It is let go of last,
    # because it holds the graph.
    identity, capture = _identity_of(stream), _begun_on(stream)
    # A capture into a graph is known by its stream, if an interrupt came before its id was noted.
    if capture is None or capture.identity not in (None, identity):
        capture = _find(identity) or capture
    try:
        ended = call_on(stream, "cuStreamEndCapture")
    except CudaError:
        # After code 903 the capture goes on, and what is noted of it stays.
        if not _still_captures(stream):
            _forget(capture, _End.FAILED)
        raise
    existing = capture.graph if capture is not None else None
    try:
        if existing is not None and existing._handle.value == int(ended):
            return existing
        return Graph._from_handle(int(ended), stream.context, owned=True, made=True)
    finally:
        # All of the id, because two threads may have asked for it at once, and noted it twice.
        while capture is not None:
            _forget(capture, _End.GOOD)
            capture = _find(identity)


def _still_captures(stream: Operand) -> bool:
    try:
        return status(stream) is not CaptureStatus.NONE
    except (CudaError, StreamClosedError):
        return False
