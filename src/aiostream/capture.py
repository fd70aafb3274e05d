"""Captures: how a stream begins and ends one, scopes that always end it, and modes of threads.

The driver keeps the state of a capture. This module notes two things of each capture that goes on,
because the driver does not keep them. One is the `Graph` object that a capture into an existing
graph returns at its end. The other is the handles that `capture_info` gave out of a graph that
belongs to the driver until the end. They are closed then, so that a stale `Graph` refuses instead
of reading freed memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import Any

from aiostream import _arguments, _driver, _native, errors
from aiostream._reference import PER_THREAD, Reference, call_on
from aiostream.enums import (
    CaptureMode,
    CaptureStatus,
    DependencyUpdate,
    InstantiateFlags,
    RecaptureStatus,
)
from aiostream.errors import CudaError, StreamClosedError
from aiostream.graph import ExecutableGraph, Graph
from aiostream.nodes import GraphDependency, GraphNode, as_driver_dependencies, dependencies_of

__all__ = ["CaptureInfo", "CaptureScope", "capture_mode", "exchange_capture_mode"]


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What `Stream.capture_info` returns.

    If the stream does not capture, or if its capture was invalidated, only `status` is set.
    """

    status: CaptureStatus
    id: int | None = None
    """A number that no other capture of this process has."""
    graph: Graph | None = None
    """The graph that the capture goes into, borrowed until its end. If you captured into a `Graph`,
    it is that same object. If other code than this library ends the capture, do not use the graph
    from then on."""
    dependencies: tuple[GraphDependency, ...] = ()
    """What the next captured operation will depend on."""


# ------------------------------------------------------------------------------ captures that go on

_Origin = tuple[Any, ...]


class _End(Enum):
    """How a capture ended."""

    GOOD = auto()
    # The driver has destroyed the graph that the capture went into. After a recapture it may not.
    FAILED = auto()
    ENDED_ELSEWHERE = auto()  # other code has ended it, or is ending it


class _CaptureRecord:
    """What is noted of one capture until its end."""

    def __init__(
        self,
        identity: int | None,
        origin: _Origin | None,
        graph: Graph | None,
        recapture: Any = None,
    ) -> None:
        # Constant once the record is in `_in_progress`. To `lent` any thread may append.
        self.identity = identity  # the driver's number of the capture
        self.origin = origin  # the stream on which it began, if this library began it
        self.graph = graph  # into which it goes, pinned; None if it makes a new one
        self.recapture = recapture  # None, or what the driver may call during the capture
        self.lent: list[_native.Handle] = []  # of the graph that is the driver's until the end
        self.seen_on: _Origin | None = None  # the stream that capture_info() was asked for

    def end(self, how: _End) -> None:
        # Called once, by the thread that took the record out of `_in_progress` (see `_forget`).
        # First the graph that was given out: from here on the driver may free it, and another
        # thread that still has its `Graph` must be refused.
        for lent in self.lent:
            lent.close()
        if self.graph is None:
            return
        # A graph that may be gone must not be destroyed again, because by then its handle may be
        # that of another graph.
        if how is not _End.GOOD and (
            (how is _End.FAILED and self.recapture is None) or not _exists(self.graph)
        ):
            self.graph._handle.mark_destroyed()
        self.graph._captured_into = False
        self.graph._handle.let_go()


def _exists(graph: Graph) -> bool:
    with _driver.relaxed(), contextlib.suppress(CudaError):
        _driver.call("cuGraphGetNodes", _driver.bindings().CUgraph(graph._handle.value))
        return True
    return False


# Any thread may change these two, without a lock: each change and each copy is one operation of the
# list or dict. A thread that iterates iterates over a copy.
_in_progress: list[_CaptureRecord] = []
# The id of the latest capture that this library began on a stream, by that stream. It finds the
# capture again when the driver gives no id, because the capture was invalidated.
_begun: dict[_Origin, int] = {}


def _origin_of(stream: Reference) -> _Origin:
    # The per-thread stream is another stream in each thread.
    thread = threading.get_ident() if stream.handle.value == PER_THREAD else 0
    return stream.handle.value, stream.context, thread


def _find(identity: int | None, origin: _Origin | None) -> _CaptureRecord | None:
    # Over a copy. If another thread removes what is found here, `_forget` finds it gone.
    for capture in list(_in_progress):
        if (identity is not None and capture.identity == identity) or (
            origin is not None and capture.origin == origin
        ):
            return capture
    return None


def _forget(capture: _CaptureRecord | None, how: _End) -> None:
    if capture is None:
        return
    try:
        # The thread that removes the record ends it. Two ends would let go of one pin twice.
        _in_progress.remove(capture)
    except ValueError:
        return
    capture.end(how)


def _identity_of(stream: Reference) -> int | None:
    """The id of the capture that a stream is in. `None` if there is none, or if it is unknown."""
    with contextlib.suppress(CudaError):
        return _query_capture(stream)[1]
    return None


def _note_begun(stream: Reference) -> None:
    # An interrupt before this leaves a capture that is not noted. It then counts as one of other
    # code, which the library never ends by itself.
    identity = _identity_of(stream)
    if identity is not None:
        _begun[_origin_of(stream)] = identity


def _began_on(identity: int) -> _Origin | None:
    """The stream on which this library has begun a capture. `None` if other code has."""
    for origin, begun in list(_begun.items()):
        if begun == identity:
            return origin
    return None


def end_left(stream: Reference) -> None:
    """Ends a capture that this library began on this stream, and no other capture."""
    # Popped, so that of two threads one ends the capture.
    begun = _begun.pop(_origin_of(stream), None)
    if begun is None:
        return
    with contextlib.suppress(CudaError):
        status, identity, *_ = _query_capture(stream)
        # Other code may have ended that capture and begun its own, which is not ours to end.
        if identity == begun or status is CaptureStatus.INVALIDATED:
            _end(stream)


def is_noted(stream: Reference) -> bool:
    """Whether `forget` has anything to do. It is quick, because each finalizer asks."""
    # In any thread, also one that is just changing the two: so without a lock, and over copies.
    # What another thread is adding now is of a stream that it refers to, and that is not finalized.
    return bool(_begun or _in_progress) and _origin_of(stream) in {
        *list(_begun),
        *(place for capture in list(_in_progress) for place in (capture.origin, capture.seen_on)),
    }


def forget(stream: Reference) -> None:
    """Forgets the capture of a stream that is destroyed, because the capture has ended with it.

    This closes what was seen of a capture that other code began, too. The stream may have been its
    origin, and then the driver has freed the graph.
    """
    here = _origin_of(stream)
    _begun.pop(here, None)
    for capture in list(_in_progress):
        if capture.origin == here or (capture.origin is None and capture.seen_on == here):
            _forget(capture, _End.FAILED)


def end_shared(stream: Reference) -> None:
    """Ends the capture of a shared stream that is about to be retired.

    A retired stream is not destroyed, so nothing else would ever end its capture.
    """
    # Asked first, because a stream whose context was destroyed must not be touched.
    if stream.context.health() == 0:
        with contextlib.suppress(StreamClosedError):
            end_left(stream)


def retire(stream: Reference) -> None:
    """Closes, for the janitor, a dropped stream that was shared, or that has captured."""
    # In the janitor's thread, because a finalizer must not call the driver.
    if stream.handle.is_shared:
        end_shared(stream)
    stream.handle.drop()
    forget(stream)


def _forget_ended_elsewhere(stream: Reference) -> None:
    """Forgets a capture of the stream that other code has ended.

    This comes before the next capture begins, because the graph of that one may get the handle of
    the old graph.
    """
    capture = _find(None, _origin_of(stream)) if _in_progress else None
    if capture is not None and not _still_captures(stream):
        _forget(capture, _End.ENDED_ELSEWHERE)


@contextlib.contextmanager
def _capturing_into(stream: Reference, graph: Graph, recapture: Any = None) -> Iterator[int]:
    """Pins a graph, and notes the capture into it that begins in the block."""
    held: list[bool] = []
    try:
        # `hold` and not `pin`, because another thread may end the capture, and lets go then.
        # Without it, a `close` would free the graph under the capture.
        if not graph._handle.hold(held):
            raise errors.closed(graph._name)
        _forget_ended_elsewhere(stream)
        yield graph._handle.value
    except BaseException:
        if held:
            graph._handle.let_go()
        raise
    # The driver captures already, and another thread may have ended it. Its `_end` then found no
    # record, and the stream's next capture forgets this one (`_forget_ended_elsewhere`).
    graph._captured_into = True
    # The record is made even if the driver gives no id, because without it the graph would stay
    # pinned after the capture. The stream finds it then.
    _in_progress.append(_CaptureRecord(_identity_of(stream), _origin_of(stream), graph, recapture))


_RecaptureCallback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
)
_REFUSED = 1  # CUDA_ERROR_INVALID_VALUE: anything but success makes the recapture fail


def _as_native_callback(
    callback: Callable[[GraphNode, RecaptureStatus], object] | None, graph: Graph
) -> Any:
    if callback is None:
        return _RecaptureCallback()
    if not callable(callback):
        raise TypeError(f"the callback must be callable, not {type(callback).__name__}")

    def ask(_data: int, node: int, _original: int, _new: int, status: int) -> int:
        try:
            return 0 if callback(GraphNode(graph, node), RecaptureStatus(status)) else _REFUSED
        except BaseException as error:
            # Caught here, because ctypes would return 0 for it, and so accept.
            _native.write_unraisable(error, callback)
            return _REFUSED

    return _RecaptureCallback(ask)


def _as_driver_mode(mode: CaptureMode) -> Any:
    return _driver.bindings().CUstreamCaptureMode(int(_arguments.member(CaptureMode, mode, "mode")))


def _query_capture(stream: Reference) -> tuple[CaptureStatus, int | None, int, Any, Any]:
    name = _driver.annotated("cuStreamGetCaptureInfo")
    status, identity, graph, nodes, edges, _ = call_on(stream, name)
    status = CaptureStatus(int(status))
    return (
        status,
        int(identity) if status is CaptureStatus.ACTIVE else None,
        int(graph),
        nodes,
        edges,
    )


def _status(stream: Reference) -> CaptureStatus:
    return CaptureStatus(int(call_on(stream, "cuStreamIsCapturing")))


def _borrowed_graph(stream: Reference, identity: int, value: int) -> Graph:
    capture = _find(identity, None)
    if capture is None:
        here = _origin_of(stream)
        for earlier in list(_in_progress):
            if earlier.seen_on == here:
                # It has ended, because a stream is in one capture at a time.
                _forget(earlier, _End.ENDED_ELSEWHERE)
        capture = _CaptureRecord(identity, _began_on(identity), None)
        capture.seen_on = here
        _in_progress.append(capture)
    if capture.graph is not None:
        return capture.graph
    if not capture.lent:
        capture.lent.append(
            _native.Handle(_native.HANDLE_GRAPH, value, stream.context.handle, False, False)
        )
    graph = Graph._from_handle(value, stream.context, owned=False, parent=capture.lent[0])
    # Another thread may have ended the capture since then, and have closed what it found.
    if capture not in _in_progress:
        capture.end(_End.ENDED_ELSEWHERE)
    return graph


def _end(stream: Reference) -> Graph:
    # Looked up before the driver ends it, because afterwards the driver no longer knows its id.
    capture = _of_origin(stream)
    try:
        ended = call_on(stream, "cuStreamEndCapture")
    except CudaError:
        # Code 903 leaves the capture going, and its record with it.
        if not _still_captures(stream):
            _begun.pop(_origin_of(stream), None)
            _forget(capture, _End.FAILED)
        raise
    _begun.pop(_origin_of(stream), None)
    existing = capture.graph if capture is not None else None
    try:
        if existing is not None and existing._handle.value == int(ended):
            return existing
        with _driver.unless_owned("cuGraphDestroy") as made:
            made.append(ended)
            return Graph._from_handle(int(ended), stream.context, owned=True)
    finally:
        # Last, because it lets go of the graph. All of the id, because two threads may have asked
        # for the capture at once, and added a record each.
        identity = capture.identity if capture is not None else None
        while capture is not None:
            _forget(capture, _End.GOOD)
            capture = _find(identity, None) if identity is not None else None


def _of_origin(stream: Reference) -> _CaptureRecord | None:
    return _find(_identity_of(stream), _origin_of(stream)) if _in_progress else None


def _still_captures(stream: Reference) -> bool:
    try:
        return _status(stream) is not CaptureStatus.NONE
    except (CudaError, StreamClosedError):
        return False


# ------------------------------------------------------------------------------------------- scopes


class CaptureScope:
    """A `with` block that captures: what `Stream.capture` and `Stream.capture_executable` return.

    When the block has ended, `graph` or `executable` holds the result, which is yours to close. You
    can enter a scope once.
    """

    def __init__(
        self, stream: CaptureMethods, mode: CaptureMode, flags: InstantiateFlags | None
    ) -> None:
        # The stream itself and not its reference, because the finalizer of a stream to which only
        # this scope refers would close it.
        self._stream = stream
        self._mode = _arguments.member(CaptureMode, mode, "mode")
        # None if the graph itself is wanted.
        self._flags = None if flags is None else _arguments.member(InstantiateFlags, flags, "flags")
        self._entered = self._ended = False
        self._graph: Graph | None = None
        self._executable: ExecutableGraph | None = None

    @property
    def graph(self) -> Graph:
        """The captured graph, which you own.

        Raises:
            RuntimeError: The block has not ended, or the capture failed. Or the scope is one of
                `capture_executable`.
        """
        if self._graph is None:
            raise RuntimeError(
                "there is no graph: the capture goes on, or has failed, or was one of "
                "capture_executable()"
            )
        return self._graph

    @property
    def executable(self) -> ExecutableGraph:
        """The captured graph as an executable one, which you own.

        Raises:
            RuntimeError: The block has not ended, or the capture failed. Or the scope is one of
                `capture`.
        """
        if self._executable is None:
            raise RuntimeError(
                "there is no executable graph: the capture goes on, or has failed, or was one of "
                "capture(). Use capture_executable() or graph.instantiate()"
            )
        return self._executable

    def __repr__(self) -> str:
        state = "ended" if self._ended else "capturing" if self._entered else "not begun"
        return f"<aiostream.CaptureScope of {self._stream._reference.name}, {state}>"

    def __enter__(self) -> CaptureScope:
        if self._entered:
            raise RuntimeError(
                "this capture block was entered before: call stream.capture() for each block"
            )
        self._stream.begin_capture(self._mode)
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended = True
        stream = self._stream._reference
        if error is not None:
            # The body's error says what went wrong first.
            with contextlib.suppress(CudaError, StreamClosedError):
                _end(stream).close()
            return
        graph = _end(stream)
        if self._flags is None:
            self._graph = graph
            return
        try:
            self._executable = graph.instantiate(self._flags)
        finally:
            graph.close()


# ---------------------------------------------------------------------------- the methods of Stream


class CaptureMethods:
    """The captures of a `Stream`, which inherits them from here."""

    _reference: Reference  # set by `Stream`

    def capture(self, mode: CaptureMode = CaptureMode.GLOBAL) -> CaptureScope:
        """Captures the work of a `with` block into a graph.

        Work that you put on the stream in the block does not run. It becomes the nodes of
        `capture.graph`. You can launch that as often as you like, and own it.

        The end of the block always ends the capture, also if the body raises or is cancelled. Then
        you get the body's error. The stream is as usable as before. In the block, waits on this
        stream are refused. You may await other streams, as long as the block goes on in the same
        thread.

        Args:
            mode: What else is forbidden during the capture, and to whom.

        Raises:
            CudaError: As `begin_capture` at the start of the block, and as `end_capture` at its
                end.
            RuntimeError: You have entered the block before.

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     with stream.capture() as capture:
            ...         stream.launch_host_func(print, "not yet")
            ...     with capture.graph as graph:
            ...         print(len(graph.nodes))
            1
        """
        return CaptureScope(self, mode, None)

    def capture_executable(
        self,
        mode: CaptureMode = CaptureMode.GLOBAL,
        flags: InstantiateFlags = InstantiateFlags.DEFAULT,
    ) -> CaptureScope:
        """Captures as `capture` does, and makes the graph executable.

        You find it as `capture.executable`.

        Args:
            mode: As of `capture`.
            flags: As of `Graph.instantiate`, whose errors the end of the block raises too.

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     steps = []
            ...     with stream.capture_executable() as capture:
            ...         stream.launch_host_func(steps.append, "step")
            ...     with capture.executable as executable:
            ...         await executable.launch_and_wait(stream)
            ...     print(steps)
            ['step']
        """
        return CaptureScope(self, mode, flags)

    def begin_capture(self, mode: CaptureMode = CaptureMode.GLOBAL) -> None:
        """Begins to collect the stream's work in a graph (`cuStreamBeginCapture`).

        The work does not run. `capture` does this for a block, and always ends it. Other streams
        join the capture if they wait for an event that you record on this stream. You have to join
        them back in the same way before the end. During the capture, the waits, `query` and
        `synchronize` are refused.

        Args:
            mode: What else is forbidden during the capture, and to whom. Unless it is `RELAXED`,
                end the capture in the thread that began it.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: It is the legacy stream, which cannot capture.
            CudaError: It captures already (401).
        """
        stream = self._reference
        _forget_ended_elsewhere(stream)
        call_on(stream, "cuStreamBeginCapture", _as_driver_mode(mode))
        _note_begun(stream)

    def begin_capture_to_graph(
        self,
        graph: Any,
        dependencies: Iterable[Any] = (),
        *,
        mode: CaptureMode = CaptureMode.GLOBAL,
    ) -> None:
        """Begins to capture into an existing graph (`cuStreamBeginCaptureToGraph`).

        `end_capture` then returns that graph.

        Args:
            graph: A `Graph`, or another library's. It stays valid until the capture ends, even if
                you close it before.
            dependencies: What the first operation depends on: nodes of the graph, as `GraphNode` or
                `GraphDependency`.
            mode: As of `begin_capture`.

        Raises:
            StreamClosedError: The stream or the graph is closed.
            StreamCaptureError: It is the legacy stream, which cannot capture.
            NotSupportedError: The driver is older than CUDA 12.3.
            CudaError: It captures already, or a dependency is not a node of the graph.
        """
        stream, name = self._reference, "cuStreamBeginCaptureToGraph"
        nodes, edges = as_driver_dependencies(dependencies)
        with _capturing_into(stream, Graph.borrow(graph)) as value:
            handle = _driver.bindings().CUgraph(value)
            call_on(stream, name, handle, nodes, edges, len(nodes), _as_driver_mode(mode))
            _note_begun(stream)

    def begin_recapture_to_graph(
        self,
        graph: Any,
        callback: Callable[[GraphNode, RecaptureStatus], object] | None = None,
        *,
        mode: CaptureMode = CaptureMode.GLOBAL,
    ) -> None:
        """Captures into the nodes of a graph of the same shape (`cuStreamBeginRecaptureToGraph`).

        The host functions of the graph are released first. If the recapture fails, the graph is in
        an undefined state: close it.

        Args:
            graph: A `Graph`, or another library's.
            callback: Called for each node whose parameters differ. It returns whether to accept
                them. If it raises, they are refused, and its exception goes to
                `sys.unraisablehook`.
            mode: As of `begin_capture`.

        Raises:
            StreamClosedError: The stream or the graph is closed.
            NotSupportedError: The driver is older than CUDA 13.3.
            CudaError: The driver refused.
        """
        stream, name = self._reference, "cuStreamBeginRecaptureToGraph"
        if not _driver.supports(name):
            raise _driver.too_old(name, stream.name)
        driver = _driver.bindings()
        existing = Graph.borrow(graph)
        native = _as_native_callback(callback, existing)
        with _capturing_into(stream, existing, native) as value:
            handle = driver.CUgraph(value)
            address = ctypes.cast(native, ctypes.c_void_p).value or 0
            function = driver.CUgraphRecaptureCallback(address)
            call_on(stream, name, _as_driver_mode(mode), handle, function, 0)
            _note_begun(stream)

    def end_capture(self) -> Graph:
        """Ends the capture, and returns what it has collected (`cuStreamEndCapture`).

        Returns:
            The graph, which you own. If you captured into an existing graph, it is that same
            `Graph`.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The capture was invalidated (901), has streams that were not joined
                back (904), or began in another thread (908). It has ended without a graph. If it
                went into an existing graph, that one is destroyed with what it owns. Or the capture
                began on another stream (903): it is invalidated, and you have to end it there.
            CudaError: The stream does not capture (401).
        """
        return _end(self._reference)

    def capture_status(self) -> CaptureStatus:
        """Whether the stream captures (`cuStreamIsCapturing`).

        The question does not disturb the capture.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: It is the legacy stream while a blocking stream captures (906).
        """
        return _status(self._reference)

    def capture_info(self) -> CaptureInfo:
        """The capture's status, id, graph and present dependencies (`cuStreamGetCaptureInfo`).

        The question does not disturb the capture. It raises the same errors as `capture_status`.
        """
        stream = self._reference
        status, identity, value, nodes, edges = _query_capture(stream)
        if identity is None:
            return CaptureInfo(status)
        graph = _borrowed_graph(stream, identity, value)
        return CaptureInfo(status, identity, graph, dependencies_of(graph, nodes, edges))

    def update_capture_dependencies(
        self, dependencies: Iterable[Any], *, mode: DependencyUpdate = DependencyUpdate.ADD
    ) -> None:
        """Sets what the next captured operation depends on (`cuStreamUpdateCaptureDependencies`).

        Args:
            dependencies: Nodes of the graph that is being captured, as `GraphNode` or
                `GraphDependency`.
            mode: `ADD` them to the present dependencies, or `SET` them in their place.

        Raises:
            StreamClosedError: The stream is closed.
            CudaError: The stream does not capture (401), or a dependency is not a node of the
                graph.
        """
        nodes, edges = as_driver_dependencies(dependencies)
        name = _driver.annotated("cuStreamUpdateCaptureDependencies")
        update = int(_arguments.member(DependencyUpdate, mode, "mode"))
        call_on(self._reference, name, nodes, edges, len(nodes), update)


# ----------------------------------------------------------------------------- the modes of threads


def exchange_capture_mode(mode: CaptureMode) -> CaptureMode:
    """Sets the calling thread's capture mode, and returns the mode before.

    (`cuThreadExchangeStreamCaptureMode`.) `capture_mode` does this for a block. The mode says which
    captures, of this thread and of others, forbid this thread potentially unsafe calls: see
    `CaptureMode`. It is not the mode of a capture, which you pass to `Stream.begin_capture`.

    Threads: this concerns the calling thread alone.
    """
    return CaptureMode(
        int(_driver.call("cuThreadExchangeStreamCaptureMode", _as_driver_mode(mode)))
    )


@contextlib.contextmanager
def capture_mode(mode: CaptureMode) -> Iterator[CaptureMode]:
    """Sets the calling thread's capture mode for a `with` block, and puts the mode before back.

    `as` gives the mode before. Do not await in the block, because the loop's other tasks would run
    in this mode too.

    Example:
        >>> with aiostream.capture_mode(aiostream.CaptureMode.RELAXED) as before:
        ...     print(before.name)
        GLOBAL
    """
    before = exchange_capture_mode(mode)
    try:
        yield before
    finally:
        exchange_capture_mode(before)
