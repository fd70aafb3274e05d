"""Capture: how a stream begins, steers and ends one; the scopes that always end it; the modes of threads.

The driver keeps the state. What it does not keep is noted here for captures that go on: the `Graph` object that a capture
into an existing graph gives back at its end, and what was lent of a graph that no longer is once its capture has ended.
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

from aiostream import _arguments, _driver, _native, interop
from aiostream.enums import (
    CaptureMode,
    CaptureStatus,
    DependencyUpdate,
    InstantiateFlags,
    RecaptureStatus,
)
from aiostream.errors import CudaError, StreamClosedError
from aiostream.graph import (
    ExecutableGraph,
    Graph,
    GraphDependency,
    GraphNode,
    as_driver_dependencies,
    dependencies_of,
)

__all__ = ["CaptureInfo", "CaptureScope", "capture_mode", "exchange_capture_mode"]


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What `Stream.capture_info` tells. While the stream does not capture, or no longer validly, it is the status alone."""

    status: CaptureStatus
    id: int | None = None
    """A number that no other capture of this process has."""
    graph: Graph | None = None
    """The graph that is being captured into, borrowed until the capture ends; the same `Graph` that was captured into. If others
    end the capture than this library, it must not be used from then on."""
    dependencies: tuple[GraphDependency, ...] = ()
    """What the next captured operation will depend on."""


# ------------------------------------------------------------------------------------------------ captures that go on


class _End(Enum):
    """How a capture ended. One that fails takes the graph with it into which it went; of a recapture that is not said."""

    GOOD = auto()
    FAILED = auto()
    ENDED_ELSEWHERE = auto()  # somebody else ended it, or is ending it


class _CaptureRecord:
    """What is noted of one capture. Made by whoever begins it or asks for it; ended by whoever ends it."""

    def __init__(
        self,
        identity: int | None,
        origin: tuple[Any, ...] | None,
        graph: Graph | None,
        recapture: Any = None,
    ) -> None:
        self.identity = identity  # the driver's number of it
        self.origin = origin  # the stream on which it began, if that is known
        self.graph = graph  # captured into, and pinned
        self.recapture = recapture  # None, or what the driver may call meanwhile
        self.lent: _native.Handle | None = None  # of a graph that is the driver's until the end
        self.seen_on: tuple[Any, ...] | None = None  # the stream on which that was asked for

    def end(self, how: _End) -> None:
        if self.lent is not None:
            self.lent.close()
        if self.graph is None:
            return
        # Without proof that it is there, it is never destroyed again: by then its handle may be
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


_in_progress: list[
    _CaptureRecord
] = []  # any thread; appends, removals and copies are single list operations


def _origin_of(stream: interop.Reference) -> tuple[Any, ...]:
    thread = threading.get_ident() if stream.handle.value == interop.PER_THREAD else 0
    return stream.handle.value, stream.context, thread


def _find(identity: int | None, origin: tuple[Any, ...] | None) -> _CaptureRecord | None:
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
        _in_progress.remove(capture)
    except ValueError:
        return  # another thread was first
    capture.end(how)


# The id of the capture that began on a stream latest, by this library; any thread, single dict
# operations.
_begun: dict[tuple[Any, ...], int] = {}


def _identity_of(stream: interop.Reference) -> int | None:
    """The id of the capture that a stream is in; `None` if it is in none, or the driver would not say."""
    with contextlib.suppress(CudaError):
        return _query_capture(stream)[1]
    return None


def _note_begun(stream: interop.Reference) -> None:
    identity = _identity_of(stream)
    if identity is not None:
        _begun[_origin_of(stream)] = identity


def end_left(stream: interop.Reference) -> None:
    """Ends a capture that began on this stream by this library, and was left open. Leaves any other alone."""
    begun = _begun.pop(_origin_of(stream), None)
    if begun is None:
        return
    with contextlib.suppress(CudaError):
        status, identity, *_ = _query_capture(stream)
        if identity == begun or status is CaptureStatus.INVALIDATED:
            _end(stream)


def _began_on(identity: int) -> tuple[Any, ...] | None:
    """The stream on which this library has begun a capture; `None` if it has not."""
    for origin, begun in list(_begun.items()):
        if begun == identity:
            return origin
    return None


def is_noted(stream: interop.Reference) -> bool:
    """Whether `forget` has anything to do. Quick, for a finalizer: most streams never capture."""
    return bool(_begun or _in_progress) and _origin_of(stream) in {
        *list(_begun),
        *(place for capture in list(_in_progress) for place in (capture.origin, capture.seen_on)),
    }


def forget(stream: interop.Reference) -> None:
    """The stream is gone, and with it the capture that it began.

    What was seen of a capture that others began is closed too: this stream may have been its origin, and then the driver has
    freed the graph.
    """
    here = _origin_of(stream)
    _begun.pop(here, None)
    for capture in list(_in_progress):
        if capture.origin == here or (capture.origin is None and capture.seen_on == here):
            _forget(capture, _End.FAILED)


def _forget_ended_elsewhere(stream: interop.Reference) -> None:
    """A capture that the stream began before, and somebody else ended. Before the next begins: its graph may get that handle."""
    capture = _find(None, _origin_of(stream)) if _in_progress else None
    if capture is not None and not _still_captures(stream):
        _forget(capture, _End.ENDED_ELSEWHERE)


# ------------------------------------------------------------------------------------------------ begin


def _begin(stream: interop.Reference, mode: CaptureMode) -> None:
    _forget_ended_elsewhere(stream)
    interop.call_on(stream, "cuStreamBeginCapture", _as_driver_mode(mode))
    _note_begun(stream)


def _begin_to_graph(
    stream: interop.Reference, graph: Any, dependencies: Iterable[Any], mode: CaptureMode
) -> None:
    nodes, edges = as_driver_dependencies(dependencies)
    driver = _driver.bindings()
    with _capturing_into(stream, Graph.borrow(graph)) as value:
        handle = driver.CUgraph(value)
        interop.call_on(
            stream,
            "cuStreamBeginCaptureToGraph",
            handle,
            nodes,
            edges,
            len(nodes),
            _as_driver_mode(mode),
        )
        _note_begun(stream)


def _begin_recapture(
    stream: interop.Reference,
    graph: Any,
    callback: Callable[[GraphNode, RecaptureStatus], object] | None,
    mode: CaptureMode,
) -> None:
    if not _driver.supports("cuStreamBeginRecaptureToGraph"):
        raise _driver.too_old("cuStreamBeginRecaptureToGraph", stream.name)
    driver = _driver.bindings()
    existing = Graph.borrow(graph)
    native = _as_native_callback(callback, existing)
    with _capturing_into(stream, existing, native) as value:
        handle = driver.CUgraph(value)
        function = driver.CUgraphRecaptureCallback(ctypes.cast(native, ctypes.c_void_p).value or 0)
        interop.call_on(
            stream, "cuStreamBeginRecaptureToGraph", _as_driver_mode(mode), handle, function, 0
        )
        _note_begun(stream)


@contextlib.contextmanager
def _capturing_into(
    stream: interop.Reference, graph: Graph, recapture: Any = None
) -> Iterator[int]:
    """Pins a graph, begins in the block to capture into it, and notes that."""
    held: list[bool] = []
    try:
        if not graph._handle.hold(held):
            raise StreamClosedError(f"{graph._name} is closed")
        _forget_ended_elsewhere(stream)
        yield graph._handle.value
    except BaseException:
        if held:
            graph._handle.let_go()
        raise
    graph._captured_into = True
    # The capture has begun, so it is noted in any case: without its id it is known by the stream on
    # which it began.
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
        # ctypes reports an exception to sys.unraisablehook and returns 0, which would accept: so
        # refuse here.
        try:
            return 0 if callback(GraphNode(graph, node), RecaptureStatus(status)) else _REFUSED
        except BaseException as error:
            _native.write_unraisable(error, callback)
            return _REFUSED

    return _RecaptureCallback(ask)


def _as_driver_mode(mode: CaptureMode) -> Any:
    return _driver.bindings().CUstreamCaptureMode(int(_arguments.member(CaptureMode, mode, "mode")))


# ------------------------------------------------------------------------------------------------ ask, steer, end


def _query_capture(stream: interop.Reference) -> tuple[CaptureStatus, int | None, int, Any, Any]:
    name = _driver.annotated("cuStreamGetCaptureInfo")
    status, identity, graph, nodes, edges, _ = interop.call_on(stream, name)
    status = CaptureStatus(int(status))
    return (
        status,
        int(identity) if status is CaptureStatus.ACTIVE else None,
        int(graph),
        nodes,
        edges,
    )


def _status(stream: interop.Reference) -> CaptureStatus:
    return CaptureStatus(int(interop.call_on(stream, "cuStreamIsCapturing")))


def _info(stream: interop.Reference) -> CaptureInfo:
    now, identity, value, nodes, edges = _query_capture(stream)
    if identity is None:
        return CaptureInfo(now)
    graph = _borrowed_graph(stream, identity, value)
    return CaptureInfo(now, identity, graph, dependencies_of(graph, nodes, edges))


def _borrowed_graph(stream: interop.Reference, identity: int, value: int) -> Graph:
    capture = _find(identity, None)
    if capture is None:
        here = _origin_of(stream)
        for earlier in list(_in_progress):
            if earlier.seen_on == here:
                _forget(earlier, _End.ENDED_ELSEWHERE)  # a stream is in one capture at a time
        capture = _CaptureRecord(identity, _began_on(identity), None)
        capture.seen_on = here
        _in_progress.append(capture)
    if capture.graph is not None:
        return capture.graph
    if capture.lent is None:
        capture.lent = _native.Handle(
            _native.HANDLE_GRAPH, value, stream.context.handle, False, False
        )
    return Graph._from_handle(value, stream.context, owned=False, parent=capture.lent)


def _update_dependencies(
    stream: interop.Reference, dependencies: Iterable[Any], mode: DependencyUpdate
) -> None:
    nodes, edges = as_driver_dependencies(dependencies)
    name = _driver.annotated("cuStreamUpdateCaptureDependencies")
    update = int(_arguments.member(DependencyUpdate, mode, "mode"))
    interop.call_on(stream, name, nodes, edges, len(nodes), update)


def _end(stream: interop.Reference) -> Graph:
    capture = _of_origin(stream)
    try:
        ended = interop.call_on(stream, "cuStreamEndCapture")
    except CudaError:
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
        _forget(capture, _End.GOOD)


def _of_origin(stream: interop.Reference) -> _CaptureRecord | None:
    return _find(_identity_of(stream), _origin_of(stream)) if _in_progress else None


def _still_captures(stream: interop.Reference) -> bool:
    try:
        return _status(stream) is not CaptureStatus.NONE
    except (CudaError, StreamClosedError):
        return False


# ------------------------------------------------------------------------------------------------ scopes


class CaptureScope:
    """What `with stream.capture() as capture:` gives; the product is on it once the block has ended. It serves for one block."""

    def __init__(
        self, stream: CapturingStream, mode: CaptureMode, flags: InstantiateFlags | None
    ) -> None:
        self._owner = (
            stream  # a stream that only this scope refers to must not be closed by its finalizer
        )
        self._stream = stream._reference
        self._mode = _arguments.member(CaptureMode, mode, "mode")
        self._flags = (
            None if flags is None else _arguments.member(InstantiateFlags, flags, "flags")
        )  # None: the graph is wanted
        self._entered = False
        self._graph: Graph | None = None
        self._executable: ExecutableGraph | None = None

    @property
    def graph(self) -> Graph:
        """What was captured, the caller's own. Raises `RuntimeError` before the block has ended, and if that failed."""
        if self._graph is None:
            raise RuntimeError(
                "there is no graph: the capture goes on, or has failed, or was one of capture_executable()"
            )
        return self._graph

    @property
    def executable(self) -> ExecutableGraph:
        """Its executable form, of `capture_executable()`; `RuntimeError` likewise."""
        if self._executable is None:
            raise RuntimeError(
                "there is no executable graph: the capture goes on, or has failed, or was one of capture()"
            )
        return self._executable

    def __enter__(self) -> CaptureScope:
        if self._entered:
            raise RuntimeError(
                "this capture block was entered before: call stream.capture() for each block"
            )
        _begin(self._stream, self._mode)
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            with contextlib.suppress(
                CudaError, StreamClosedError
            ):  # the body's error says what went wrong first
                _end(self._stream).close()
            return
        graph = _end(self._stream)
        if self._flags is None:
            self._graph = graph
            return
        try:
            self._executable = graph.instantiate(self._flags)
        finally:
            graph.close()


# ------------------------------------------------------------------------------------------------ what a Stream has of this


class CapturingStream:
    """The captures of a `Stream`, which inherits them from here."""

    _reference: interop.Reference  # set by `Stream`

    def begin_capture(self, mode: CaptureMode = CaptureMode.GLOBAL) -> None:
        """From now on work that is put on the stream is collected in a graph instead (`cuStreamBeginCapture`).

        Other streams join the capture by waiting for an event that was recorded on it, and must be joined back before its end.
        `capture` does this for a block, and always ends it. Meanwhile the waits, `query` and `synchronize` refuse.

        Args:
            mode: What else is forbidden meanwhile, and to whom. Unless it is `RELAXED`, this thread must end the capture.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: It is the legacy stream, which cannot capture.
            CudaError: It captures already (401).
        """
        _begin(self._reference, mode)

    def begin_capture_to_graph(
        self,
        graph: Any,
        dependencies: Iterable[Any] = (),
        *,
        mode: CaptureMode = CaptureMode.GLOBAL,
    ) -> None:
        """The same into an existing graph (`cuStreamBeginCaptureToGraph`), which `end_capture` then gives back.

        Args:
            graph: A `Graph`, or another library's. It stays valid until the capture ends, also if it is closed before.
            dependencies: What the first operation depends on: nodes of the graph, as `GraphNode` or `GraphDependency`.
            mode: As of `begin_capture`.

        Raises:
            StreamClosedError: The stream or the graph is closed.
            StreamCaptureError: It is the legacy stream, which cannot capture.
            NotSupportedError: The driver is older than CUDA 12.3.
            CudaError: It captures already, or a dependency is no node of the graph.
        """
        _begin_to_graph(self._reference, graph, dependencies, mode)

    def begin_recapture_to_graph(
        self,
        graph: Any,
        callback: Callable[[GraphNode, RecaptureStatus], object] | None = None,
        *,
        mode: CaptureMode = CaptureMode.GLOBAL,
    ) -> None:
        """Captures a graph of the same shape once more, into its own nodes (`cuStreamBeginRecaptureToGraph`).

        Its host functions are released first. If it fails, the graph is in no defined state and should be closed.

        Args:
            graph: A `Graph`, or another library's.
            callback: Called for each node whose parameters differ; what it returns says whether to accept them. Its exception
                goes to `sys.unraisablehook`, and refuses.
            mode: As of `begin_capture`.

        Raises:
            StreamClosedError: The stream or the graph is closed.
            NotSupportedError: The driver is older than CUDA 13.3.
            CudaError: The driver refused.
        """
        _begin_recapture(self._reference, graph, callback, mode)

    def end_capture(self) -> Graph:
        """Ends the capture, and gives what it has collected (`cuStreamEndCapture`).

        Returns:
            The graph, the caller's own; for a capture into an existing graph that same `Graph`.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: It was invalidated (901), has streams that were not joined back (904), or began in another thread
                (908): it has ended without a graph, and one that went into an existing graph has destroyed that, with what
                it owns. Or it began on another stream (903): that invalidates it, and it is still to be ended there.
            CudaError: The stream does not capture (401).
        """
        return _end(self._reference)

    def capture(self, mode: CaptureMode = CaptureMode.GLOBAL) -> CaptureScope:
        """Captures a block: `with stream.capture() as capture: ...`, then `capture.graph`.

        The capture always ends, also on an exception or a cancellation, which wins; the stream can be used on. In the block,
        in place of waits, other streams can be awaited, as long as the thread stays the same.

        Raises:
            CudaError: As `begin_capture` on the way in, and as `end_capture` on the way out.
            RuntimeError: The block was entered before.
        """
        return CaptureScope(self, mode, None)

    def capture_executable(
        self,
        mode: CaptureMode = CaptureMode.GLOBAL,
        flags: InstantiateFlags = InstantiateFlags.DEFAULT,
    ) -> CaptureScope:
        """The same with the graph made executable: `capture.executable`. Errors also as of `Graph.instantiate`."""
        return CaptureScope(self, mode, flags)

    def capture_status(self) -> CaptureStatus:
        """Whether the stream captures (`cuStreamIsCapturing`); harmless to the capture.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: It is the legacy stream, while a blocking stream captures (906).
        """
        return _status(self._reference)

    def capture_info(self) -> CaptureInfo:
        """Its capture's status, id, graph and present dependencies (`cuStreamGetCaptureInfo`); harmless, errors likewise."""
        return _info(self._reference)

    def update_capture_dependencies(
        self, dependencies: Iterable[Any], *, mode: DependencyUpdate = DependencyUpdate.ADD
    ) -> None:
        """Says what the next captured operation depends on (`cuStreamUpdateCaptureDependencies`).

        Args:
            dependencies: Nodes of the graph that is being captured, as `GraphNode` or `GraphDependency`.
            mode: Beside those that it depends on already, or in their place.

        Raises:
            StreamClosedError: The stream is closed.
            CudaError: The stream does not capture (401), or a dependency is no node of the graph.
        """
        _update_dependencies(self._reference, dependencies, mode)


# ------------------------------------------------------------------------------------------------ the modes of threads


def exchange_capture_mode(mode: CaptureMode) -> CaptureMode:
    """Sets the calling thread's capture mode, and tells which it had (`cuThreadExchangeStreamCaptureMode`).

    `capture_mode` does this for a block. The mode says which captures, of this thread and of others, forbid it potentially unsafe
    calls: see `CaptureMode`. It is not the mode of a capture, which `Stream.begin_capture` is given.

    Threads: concerns the calling thread alone.
    """
    return CaptureMode(
        int(_driver.call("cuThreadExchangeStreamCaptureMode", _as_driver_mode(mode)))
    )


@contextlib.contextmanager
def capture_mode(mode: CaptureMode) -> Iterator[CaptureMode]:
    """Sets the calling thread's capture mode for a `with` block, and puts the previous one back; `as` gives the previous one.

    Do not await within it: the loop's other tasks would run in this mode too.
    """
    before = exchange_capture_mode(mode)
    try:
        yield before
    finally:
        exchange_capture_mode(before)
