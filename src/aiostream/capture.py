"""Captures: how a stream begins and ends one, scopes that always end it, and modes of threads."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._handles.operand import WithOperand, call_on
from aiostream._objects import captures
from aiostream._objects.nodes import (
    GraphDependency,
    GraphNode,
    as_driver_dependencies,
    dependencies_of,
)
from aiostream.enums import (
    CaptureMode,
    CaptureStatus,
    DependencyUpdate,
    InstantiateFlags,
    RecaptureStatus,
)
from aiostream.errors import CudaError, StreamClosedError
from aiostream.graph import ExecutableGraph, Graph

__all__ = ["CaptureInfo", "CaptureScope", "capture_mode", "exchange_capture_mode"]


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What `Stream.capture_info` returns.

    If the stream does not capture, or if its capture was invalidated, only `status` is set.

    Attributes:
        id: A number that no other capture of this process has.
        graph: The graph that the capture goes into, borrowed until its end. If you captured into a
            `Graph`, it is that same object. If other code than this library ends the capture, do
            not use the graph from then on.
        dependencies: What the next captured operation will depend on.
    """

    status: CaptureStatus
    id: int | None = None
    graph: Graph | None = None
    dependencies: tuple[GraphDependency, ...] = ()


# --------------------------------------------------------------------------------------- recaptures

_RecaptureCallback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
)
_REFUSED = 1  # CUDA_ERROR_INVALID_VALUE: anything but success makes the recapture fail


def _as_native_callback(
    callback: Callable[[GraphNode, RecaptureStatus], object] | None, graph: Graph
) -> Any:
    if callback is None:
        return _RecaptureCallback()
    checks.plain_function(callback, "begin_recapture_to_graph")

    def ask(_data: int, node: int, _original: int, _new: int, status: int) -> int:
        try:
            return 0 if callback(GraphNode(graph, node), RecaptureStatus(status)) else _REFUSED
        except BaseException as error:
            # Caught here, because ctypes would return 0 for it, and so accept.
            _native.write_unraisable(error, callback)
            return _REFUSED

    return _RecaptureCallback(ask)


def _as_driver_mode(mode: CaptureMode) -> Any:
    return driver.bindings().CUstreamCaptureMode(int(checks.member(CaptureMode, mode, "mode")))


# ------------------------------------------------------------------------------------------- scopes


_WITHOUT_GRAPH = (
    "there is no graph: the block has not ended, or the capture has failed. Use the graph after "
    "the block"
)
_IS_EXECUTABLE = (
    "there is no graph, because capture_executable() has made it executable: use capture.executable"
)
_IS_NOT_EXECUTABLE = (
    "there is no executable graph, because this is a block of capture(): use "
    "capture.graph.instantiate(), or capture_executable()"
)


class CaptureScope:
    """A `with` block that captures: what `Stream.capture` and `Stream.capture_executable` return.

    When the block has ended, `graph` or `executable` holds the result, which is yours to close. You
    can enter a scope once.
    """

    def __init__(
        self, stream: CaptureMethods, mode: CaptureMode, flags: InstantiateFlags | None
    ) -> None:
        # The stream itself and not its operand, because the finalizer of a stream to which only
        # this scope refers would close it.
        self._stream = stream
        self._mode = checks.member(CaptureMode, mode, "mode")
        # None if the graph itself is wanted.
        self._flags = None if flags is None else checks.member(InstantiateFlags, flags, "flags")
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
            raise RuntimeError(_WITHOUT_GRAPH if self._executable is None else _IS_EXECUTABLE)
        return self._graph

    @property
    def executable(self) -> ExecutableGraph:
        """The captured graph as an executable one, which you own.

        Raises:
            RuntimeError: The block has not ended, or the capture failed. Or the scope is one of
                `capture`.
        """
        if self._executable is None:
            raise RuntimeError(_WITHOUT_GRAPH if self._graph is None else _IS_NOT_EXECUTABLE)
        return self._executable

    def __repr__(self) -> str:
        state = "ended" if self._ended else "capturing" if self._entered else "not begun"
        return f"<aiostream.CaptureScope of {self._stream._operand.name}, {state}>"

    def __enter__(self) -> CaptureScope:
        if self._entered:
            raise RuntimeError(
                "this capture block was entered before: call stream.capture() for each block"
            )
        self._stream.begin_capture(self._mode)
        self._entered = True
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._ended = True
        if error is not None:
            # The body's error says what went wrong first.
            with contextlib.suppress(CudaError, StreamClosedError):
                self._stream.end_capture().close()
            return
        graph = self._stream.end_capture()
        if self._flags is None:
            self._graph = graph
            return
        with graph:
            self._executable = graph.instantiate(self._flags)


# ---------------------------------------------------------------------------- the methods of Stream


class CaptureMethods(WithOperand):
    """The captures of a `Stream`, which inherits them from here."""

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

        Threads: no other thread may use this stream while the capture begins or ends, not even to
        wait for it, because the driver may then crash the process.

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

        Threads: no other thread may use this stream while the capture begins or ends, because the
        driver may then crash the process.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: It is the legacy stream, which cannot capture.
            CudaError: It captures already (401).
        """
        captures.begin(self._operand, "cuStreamBeginCapture", _as_driver_mode(mode))

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
        name, existing = "cuStreamBeginCaptureToGraph", Graph.borrow(graph)
        nodes, edges = as_driver_dependencies(dependencies)
        # None would not do, which the bindings refuse before 12.9.10 and in 13.0.
        edges = edges or [driver.bindings().CUgraphEdgeData()] * len(nodes)
        into = driver.bindings().CUgraph(existing.handle)
        args = into, nodes, edges, len(nodes), _as_driver_mode(mode)
        captures.begin(self._operand, name, *args, graph=existing)

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
            TypeError: `callback` is not callable, or is a coroutine or generator function.
            StreamClosedError: The stream or the graph is closed.
            NotSupportedError: The driver is older than CUDA 13.3.
            CudaError: The driver refused.
        """
        stream, name = self._operand, "cuStreamBeginRecaptureToGraph"
        driver.require(name, stream.name)
        cuda = driver.bindings()
        existing = Graph.borrow(graph)
        native = _as_native_callback(callback, existing)
        function = cuda.CUgraphRecaptureCallback(ctypes.cast(native, ctypes.c_void_p).value or 0)
        args = _as_driver_mode(mode), cuda.CUgraph(existing.handle), function, 0
        captures.begin(stream, name, *args, graph=existing, recapture=native)

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
        return captures.end(self._operand)

    def capture_status(self) -> CaptureStatus:
        """Whether the stream captures (`cuStreamIsCapturing`).

        The question does not disturb the capture.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: It is the legacy stream while a blocking stream captures (906).
        """
        return captures.status(self._operand)

    def capture_info(self) -> CaptureInfo:
        """The capture's status, id, graph and present dependencies (`cuStreamGetCaptureInfo`).

        The question does not disturb the capture. It raises the same errors as `capture_status`.
        """
        stream = self._operand
        status, identity, value, nodes, edges = captures.query(stream)
        if identity is None:
            return CaptureInfo(status)
        graph = captures.borrowed_graph(stream, identity, value)
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
        name = driver.annotated("cuStreamUpdateCaptureDependencies")
        update = int(checks.member(DependencyUpdate, mode, "mode"))
        call_on(self._operand, name, nodes, edges, len(nodes), update)


# ----------------------------------------------------------------------------- the modes of threads


def exchange_capture_mode(mode: CaptureMode) -> CaptureMode:
    """Sets the calling thread's capture mode, and returns the mode before.

    (`cuThreadExchangeStreamCaptureMode`.) `capture_mode` does this for a block. The mode says which
    captures, of this thread and of others, forbid this thread potentially unsafe calls: see
    `CaptureMode`. It is not the mode of a capture, which you pass to `Stream.begin_capture`.

    Threads: this concerns the calling thread alone.
    """
    return CaptureMode(int(driver.call("cuThreadExchangeStreamCaptureMode", _as_driver_mode(mode))))


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
    with driver.capture_mode(_as_driver_mode(mode)) as before:
        yield CaptureMode(int(before))
