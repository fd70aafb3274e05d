"""Graphs: what a capture collects, their nodes, and their executable form.

A `Graph` is owned or borrowed as a stream is. What its host nodes call is not kept here but by the driver, in user objects that
clones, executables and launches in flight hold too (see `hostfunc`): so any of these objects may be dropped at any time.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from aiostream import _arguments, _arming, _driver, _native, _process, interop, waiting
from aiostream._reference import Reference, current_or_default_context, pinned
from aiostream.device import Context
from aiostream.enums import (
    DebugDotFlags,
    GraphDependencyType,
    GraphInstantiateResult,
    GraphNodeType,
    GraphUpdateResult,
    InstantiateFlags,
)
from aiostream.errors import GraphUpdateError, StreamClosedError
from aiostream.futures import CompletionFuture

__all__ = ["ExecutableGraph", "Graph", "GraphDependency", "GraphEdgeData", "GraphNode"]

# ------------------------------------------------------------------------------------------------ nodes and edges


class GraphNode:
    """A node of a graph. Not constructed by hand: `Graph.nodes` and `Stream.capture_info` give them.

    It keeps its `Graph` object alive, and is of no more use once that is closed or the node destroyed. Nodes compare equal by
    handle, so that those of `capture_info` are found among the nodes of the finished graph. Do not look up nodes of a graph that
    was destroyed: the driver may have given their handles to others.
    """

    __slots__ = ("_graph", "_handle")

    def __init__(self, graph: Graph, handle: int) -> None:
        self._graph = graph
        self._handle = handle

    @property
    def graph(self) -> Graph:
        """The graph to which it belongs."""
        return self._graph

    @property
    def handle(self) -> int:
        """The driver's `CUgraphNode`, as an int. Raises `StreamClosedError` once its graph is closed."""
        self._graph.handle  # noqa: B018  (raises)
        return self._handle

    @property
    def type(self) -> GraphNodeType:
        """What the node does (`cuGraphNodeGetType`)."""
        return GraphNodeType(int(self._graph._call("cuGraphNodeGetType", node=self._handle)))

    @property
    def dependencies(self) -> tuple[GraphDependency, ...]:
        """The nodes that come directly before it (`cuGraphNodeGetDependencies`)."""
        return self._neighbours("cuGraphNodeGetDependencies")

    @property
    def dependents(self) -> tuple[GraphDependency, ...]:
        """The nodes that come directly behind it (`cuGraphNodeGetDependentNodes`)."""
        return self._neighbours("cuGraphNodeGetDependentNodes")

    def _neighbours(self, name: str) -> tuple[GraphDependency, ...]:
        name = _driver.annotated(name)
        *_, count = self._graph._call(name, node=self._handle)
        if not count:
            return ()
        nodes, edges, _ = self._graph._call(name, count, node=self._handle)
        return dependencies_of(self._graph, nodes, edges)

    def __int__(self) -> int:
        return self.handle

    def __eq__(self, other: object) -> bool:
        return self._handle == other._handle if isinstance(other, GraphNode) else NotImplemented

    def __hash__(self) -> int:
        return hash(("aiostream.GraphNode", self._handle))

    def __repr__(self) -> str:
        return f"<aiostream.GraphNode {self._handle:#x}>"


@dataclass(frozen=True, slots=True)
class GraphEdgeData:
    """How one node depends on another (`CUgraphEdgeData`). The default is the usual: wholly, after its end.

    Args:
        from_port: What of the earlier node is waited for; 0 for its end. Only kernels have others.
        to_port: What of the later node waits; 0 for the whole. No kind of node has others yet.
        type: Whether it is a programmatic dependency.
    """

    from_port: int = 0
    to_port: int = 0
    type: GraphDependencyType = GraphDependencyType.DEFAULT

    def __post_init__(self) -> None:
        """Refuses what no driver takes.

        Raises:
            TypeError: A port is no int.
            ValueError: A port is not from 0 to 255, or there is no such type.
        """
        _arguments.byte("from_port", self.from_port)
        _arguments.byte("to_port", self.to_port)
        _arguments.member(GraphDependencyType, self.type, "type")


@dataclass(frozen=True, slots=True)
class GraphDependency:
    """A node that something depends on, and how."""

    node: GraphNode
    edge_data: GraphEdgeData = GraphEdgeData()


def dependencies_of(
    graph: Graph, nodes: Iterable[Any], edges: Iterable[Any]
) -> tuple[GraphDependency, ...]:
    """The driver's nodes and edges as ours; without edges, all are of the usual sort."""
    found = [GraphNode(graph, int(node)) for node in nodes]
    data = [
        GraphEdgeData(edge.from_port, edge.to_port, GraphDependencyType(edge.type))
        for edge in edges or ()
    ]
    if len(data) != len(found):
        data = [GraphEdgeData()] * len(found)
    return tuple(GraphDependency(node, edge) for node, edge in zip(found, data, strict=True))


def as_driver_dependencies(dependencies: Iterable[Any]) -> tuple[list[Any], list[Any] | None]:
    """Our nodes and dependencies, other libraries' nodes and handles, as the bindings take them.

    Returns:
        The nodes, and the edges, or `None` for them if all are of the usual sort: that is what old drivers understand.
    """
    if not isinstance(dependencies, Iterable):
        raise TypeError(
            f"dependencies are nodes in a list or tuple, not one {type(dependencies).__name__}"
        )
    driver = _driver.bindings()
    plain = GraphEdgeData()
    nodes: list[Any] = []
    edges: list[GraphEdgeData] = []
    for dependency in dependencies:
        node = dependency.node if isinstance(dependency, GraphDependency) else dependency
        nodes.append(driver.CUgraphNode(_node_handle(node)))
        edges.append(dependency.edge_data if isinstance(dependency, GraphDependency) else plain)
    return nodes, None if all(edge == plain for edge in edges) else [
        _as_driver_edge(edge) for edge in edges
    ]


def _node_handle(node: Any) -> int:
    handle = getattr(node, "handle", node)  # ours and cuda.core's have it
    if _arguments.is_integer(handle):
        return _arguments.handle(handle, "a node")
    if type(handle).__name__ in ("CUgraphNode", "cudaGraphNode_t"):
        return int(handle)
    raise TypeError(f"a dependency is a GraphNode or a GraphDependency, not {type(node).__name__}")


def _as_driver_edge(edge: GraphEdgeData) -> Any:
    raw = _driver.bindings().CUgraphEdgeData()
    raw.from_port, raw.to_port, raw.type = edge.from_port, edge.to_port, int(edge.type)
    return raw


# ------------------------------------------------------------------------------------------------ graphs


class Graph(_arguments.NotCopied):
    """A CUDA graph: operations and their dependencies, from a capture or made by hand. `Graph()` is an empty one.

    The driver's functions for editing take it by its handle (`int(graph)`). Owned ones are destroyed by `close()`, and in the
    background when they are dropped; `borrow` gives one that somebody else owns. A Python host function captured into it lives
    as long as the driver may call it; one that refers to its own `Graph` object keeps both alive until `close()`.

    Open graphs compare equal by handle. A closed one equals only itself, because the driver gives its handle to a new graph; its
    hash stays. A `Graph` object cannot be copied or pickled: `clone()` copies the graph.

    Threads: from any thread, but by one at a time, as the driver does not guard a graph.

    Raises:
        NoDriverError: There is no CUDA driver.
        CudaError: The driver refused (`cuGraphCreate`).
    """

    _instead = "clone() copies the graph, and borrow(int(graph)) gives a second object on it"

    def __init__(self) -> None:
        _process.start()
        with _driver.unless_owned("cuGraphDestroy") as made:
            with _driver.relaxed():
                made.append(_driver.call("cuGraphCreate", 0))
            self._init_fields(int(made[0]), current_or_default_context(), owned=True)

    def _init_fields(
        self,
        value: int,
        context: Context,
        *,
        owned: bool,
        source: Any = None,
        parent: _native.Handle | None = None,
    ) -> None:
        self._context = context  # where it is instantiated
        self._owned = owned
        self._source = source  # the object from which the handle was borrowed
        self._name = f"graph {value:#x}"
        self._handle = _native.Handle(
            _native.HANDLE_GRAPH, value, context.handle, owned, False, parent
        )
        self._captured_into = (
            False  # while a capture that capture.py has noted goes into it: that pins the handle
        )

    @classmethod
    def _from_handle(
        cls, value: int, context: Context, *, owned: bool, source: Any = None, parent: Any = None
    ) -> Graph:
        _process.start()
        graph = cls.__new__(cls)
        graph._init_fields(value, context, owned=owned, source=source, parent=parent)
        return graph

    @classmethod
    def borrow(cls, graph: Any) -> Graph:
        """Another library's graph. It is kept alive and never destroyed; one of ours is given back as it is.

        Args:
            graph: A graph of cuda.core (`GraphDefinition`), torch or cupy, or a handle.

        Raises:
            TypeError: It names no graph.
        """
        if isinstance(graph, Graph):
            return graph
        return cls._from_handle(
            interop.graph_handle(graph),
            current_or_default_context(),
            owned=False,
            source=graph,
        )

    @classmethod
    def from_raw(cls, handle: int) -> Graph:
        """Takes over a `CUgraph`, and with it the duty to destroy it; the reverse of `into_raw`."""
        return cls._from_handle(_raw(handle), current_or_default_context(), owned=True)

    @property
    def handle(self) -> int:
        """The driver's `CUgraph`, as an int. Raises `StreamClosedError` once closed."""
        if not self._handle.is_open:
            raise StreamClosedError(
                f"{self._name} is closed: its handle was destroyed or given away"
            )
        return self._handle.value

    @property
    def closed(self) -> bool:
        """Whether it was closed or given away, or, for one of `Stream.capture_info`, its capture has ended."""
        return not self._handle.is_open

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        """All its nodes (`cuGraphGetNodes`)."""
        return self._nodes("cuGraphGetNodes")

    @property
    def root_nodes(self) -> tuple[GraphNode, ...]:
        """The nodes that depend on none (`cuGraphGetRootNodes`)."""
        return self._nodes("cuGraphGetRootNodes")

    def _nodes(self, name: str) -> tuple[GraphNode, ...]:
        _, count = self._call(name)
        if not count:
            return ()
        nodes, _ = self._call(name, count)
        return tuple(GraphNode(self, int(node)) for node in nodes)

    def debug_dot(
        self,
        path: str | os.PathLike[str] | None = None,
        flags: DebugDotFlags = DebugDotFlags.VERBOSE,
    ) -> str:
        """Its description in graphviz's language (`cuGraphDebugDotPrint`).

        Args:
            path: A file to write it to as well.
            flags: What it says of each node.

        Returns:
            The text.
        """
        with tempfile.TemporaryDirectory() if path is None else contextlib.nullcontext() as folder:
            target = Path(path) if path is not None else Path(str(folder)) / "graph.dot"
            self._call(
                "cuGraphDebugDotPrint",
                os.fsencode(target),
                int(_arguments.member(DebugDotFlags, flags, "flags")),
            )
            return target.read_text()

    def clone(self) -> Graph:
        """A copy of its own, the host functions shared (`cuGraphClone`)."""
        with _driver.unless_owned("cuGraphDestroy") as made:
            with self._pinned() as value, _driver.relaxed():
                made.append(
                    _driver.call(
                        "cuGraphClone", _driver.bindings().CUgraph(value), stream=self._name
                    )
                )
            return Graph._from_handle(int(made[0]), self._context, owned=True)

    def instantiate(
        self, flags: InstantiateFlags = InstantiateFlags.DEFAULT, *, upload_stream: Any = None
    ) -> ExecutableGraph:
        """Its executable form, which no longer needs the graph (`cuGraphInstantiateWithParams`).

        Args:
            flags: How; `UPLOAD` uploads it too.
            upload_stream: On which stream to upload, with `UPLOAD`.

        Raises:
            StreamClosedError: The graph is closed.
            CudaError: The driver refused; a structure that cannot be executed is named in the error.
        """
        driver = _driver.bindings()
        parameters = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
        parameters.flags = driver.cuuint64_t(
            int(_arguments.member(InstantiateFlags, flags, "flags"))
        )
        with _driver.unless_owned("cuGraphExecDestroy") as made:
            code = self._instantiate(parameters, upload_stream, made)
            if code == 0:
                return ExecutableGraph._from_handle(int(made[0]), self._context, owned=True)
        reason = GraphInstantiateResult(int(parameters.result_out))
        raise _driver.error(
            code,
            _INSTANTIATE,
            self._name,
            f"The driver's reason: {reason.name}" if reason else None,
        )

    def _instantiate(self, parameters: Any, upload_stream: Any, made: list[Any]) -> int:
        driver = _driver.bindings()
        with contextlib.ExitStack() as stack:
            if upload_stream is not None:
                stream = stack.enter_context(pinned(interop.reference_to(upload_stream)))
                parameters.hUploadStream = driver.CUstream(stream)
            value = stack.enter_context(self._pinned())
            stack.enter_context(self._context._pushed())
            stack.enter_context(_driver.relaxed())  # it allocates
            code, outputs = _driver.answer(
                _INSTANTIATE, driver.CUgraph(value), parameters, stream=self._name
            )
            made.extend(outputs if code == 0 else ())
        return code

    def close(self) -> None:
        """Destroys the graph (`cuGraphDestroy`); its executables and launches go on. May be called again.

        A borrowed one is only let go of. While a stream captures into it, it is destroyed at the end of that capture.

        Raises:
            CudaError: The driver refused; the graph is closed all the same.
        """
        code = self._handle.close()
        self._source = None
        _driver.raise_for(code, "cuGraphDestroy", self._name)

    def into_raw(self) -> int:
        """Gives the handle away, and with it the duty to destroy it.

        Raises:
            StreamClosedError: It was closed before.
            ValueError: It is borrowed, so there is nothing to give. Or a stream captures into it: end that first.
        """
        if self._captured_into:
            raise ValueError(
                f"a stream captures into {self._name}: end the capture before you give the handle away"
            )
        return _into_raw(self._handle, self._owned, self._name)

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __int__(self) -> int:
        return self.handle

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        mine, its = self._handle, other._handle
        return self is other or (mine.value == its.value and mine.is_open and its.is_open)

    def __hash__(self) -> int:
        return hash(("aiostream.Graph", self._handle.value))

    def __repr__(self) -> str:
        return f"<aiostream.Graph {self._handle.value:#x}{'' if self._owned else ' borrowed'}{' closed' if self.closed else ''}>"

    def __del__(
        self, run_in_janitor: Callable[..., None] = _process.run_in_janitor
    ) -> None:  # as in Stream
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.is_open:
            run_in_janitor(handle.drop)

    @contextlib.contextmanager
    def _pinned(self) -> Iterator[int]:
        held: list[bool] = []
        try:
            if not self._handle.pin(held):
                raise StreamClosedError(
                    f"{self._name} is closed: its handle was destroyed or given away"
                )
            yield self._handle.value
        finally:
            if held:
                self._handle.unpin()

    def _call(self, name: str, *args: Any, node: int | None = None) -> Any:
        """Calls the driver on the graph, or on one of its nodes, pinned."""
        driver = _driver.bindings()
        with (
            self._pinned() as value,
            _driver.relaxed(),
        ):  # some of these would end a capture that is on
            subject = driver.CUgraph(value) if node is None else driver.CUgraphNode(node)
            return _driver.call(name, subject, *args, stream=self._name)


_INSTANTIATE = "cuGraphInstantiateWithParams"


def _raw(handle: int) -> int:
    value = interop.raw_handle(handle, "a graph")
    if value == 0:
        raise ValueError("0 is no handle of a graph")
    return value


def _into_raw(handle: _native.Handle, owned: bool, name: str) -> int:
    if not owned:
        raise ValueError("a borrowed graph's handle belongs to somebody else: read it with .handle")
    if not handle.release():
        raise StreamClosedError(f"{name} is closed: its handle was destroyed or given away")
    return handle.value


# ------------------------------------------------------------------------------------------------ executable graphs


class ExecutableGraph(_arguments.NotCopied):
    """A graph that can be launched, any number of times, as `Graph.instantiate` and `Stream.capture_executable` give it.

    Launches of one executable graph run one after the other, whatever their streams. `close()` destroys it, as does dropping it,
    and launches in flight finish.

    It cannot be copied or pickled.

    Threads: from any thread, but by one at a time, as the driver does not guard it.
    """

    _instead = "Graph.instantiate() makes another one"

    def __init__(self) -> None:
        raise TypeError(
            "an ExecutableGraph comes from Graph.instantiate(), Stream.capture_executable(), borrow() or from_raw()"
        )

    @classmethod
    def _from_handle(
        cls, value: int, context: Context, *, owned: bool, source: Any = None
    ) -> ExecutableGraph:
        _process.start()
        executable = cls.__new__(cls)
        executable._owned = owned
        executable._source = source
        executable._name = f"executable graph {value:#x}"
        executable._handle = _native.Handle(
            _native.HANDLE_GRAPH_EXEC, value, context.handle, owned, False
        )
        return executable

    _owned: bool
    _source: Any  # the object from which the handle was borrowed
    _name: str
    _handle: _native.Handle

    @classmethod
    def borrow(cls, executable: Any) -> ExecutableGraph:
        """Another library's executable graph (cuda.core's `Graph`, torch's, cupy's, or a handle); see `Graph.borrow`."""
        if isinstance(executable, ExecutableGraph):
            return executable
        value = interop.graph_handle(executable, executable=True)
        return cls._from_handle(value, current_or_default_context(), owned=False, source=executable)

    @classmethod
    def from_raw(cls, handle: int) -> ExecutableGraph:
        """Takes over a `CUgraphExec`, and with it the duty to destroy it; the reverse of `into_raw`."""
        return cls._from_handle(_raw(handle), current_or_default_context(), owned=True)

    @property
    def handle(self) -> int:
        """The driver's `CUgraphExec`, as an int. Raises `StreamClosedError` once closed."""
        self._require_open()
        return self._handle.value

    @property
    def closed(self) -> bool:
        """Whether it was closed, or given away by `into_raw`."""
        return not self._handle.is_open

    def launch(self, stream: Any) -> None:
        """Enqueues the whole graph on a stream (`cuGraphLaunch`).

        It may block the calling thread when the stream is full.

        Args:
            stream: A `Stream`, or another library's.

        Raises:
            StreamClosedError: The graph or the stream is closed.
            StreamCaptureError: The stream captures; it was not touched. (The driver would end the capture. To have a graph in a
                graph, add it as a child: `cuGraphAddChildGraphNode`.)
            CudaError: The driver refused.
        """
        self._use(interop.reference_to(stream), _native.graph_launch, "cuGraphLaunch")

    def launch_async(self, stream: Any) -> CompletionFuture[None]:
        """Launches it, and gives a future that settles when the GPU has passed.

        Equals `stream.enqueue_async(executable.launch)`: every refusal comes before the launch, except that the driver may
        refuse the completion behind it. The completion is an event behind the launch, and no part of the graph.

        Raises:
            RuntimeError: No loop runs here.
            StreamClosedError: The graph or the stream is closed.
            StreamCaptureError: The stream captures; it was not touched.
            CudaError: The driver refused, or the context has failed.
        """
        return self._use_async(stream, _native.graph_launch, "cuGraphLaunch")

    async def launch_and_wait(self, stream: Any) -> None:
        """Launches it, and waits until the stream's work is done, as `Stream.synchronize_async` does.

        Cancellation: raises at once; the GPU goes on.

        Raises:
            RuntimeError: No loop runs here.
            StreamClosedError: The graph or the stream is closed.
            StreamCaptureError: The stream captures; it was not touched.
            CudaError: The driver refused, or the work has failed.
        """
        await self._use_and_wait(stream, _native.graph_launch, "cuGraphLaunch")

    def upload(self, stream: Any) -> None:
        """Has the driver prepare the next launch, in the order of a stream (`cuGraphUpload`); errors as of `launch`."""
        self._use(interop.reference_to(stream), _native.graph_upload, "cuGraphUpload")

    def upload_async(self, stream: Any) -> CompletionFuture[None]:
        """Uploads it, and gives a future that settles when that is done; errors as of `launch_async`."""
        return self._use_async(stream, _native.graph_upload, "cuGraphUpload")

    async def upload_and_wait(self, stream: Any) -> None:
        """Uploads it, and waits until the stream's work is done; errors as of `launch_and_wait`."""
        await self._use_and_wait(stream, _native.graph_upload, "cuGraphUpload")

    def update(self, graph: Any) -> None:
        """Takes over the parameters of a graph of the same shape (`cuGraphExecUpdate`), for the launches to come.

        The host functions of `graph` take the place of those it had.

        Args:
            graph: A `Graph`, or another library's.

        Raises:
            StreamClosedError: One of the two is closed.
            GraphUpdateError: The graphs differ in what cannot be updated; nothing was changed. `result` says in what.
        """
        source = Graph.borrow(graph)
        source.handle  # noqa: B018  (raises if it is closed)
        self._require_open()
        code, result, node, before = _native.graph_update(self._handle, source._handle)
        if code <= 0:
            _driver.raise_for(code, "cuGraphExecUpdate", self._name)
            return
        where = f" at node {node:#x}" if node else ""
        where += f" and its dependency {before:#x}" if before else ""
        error = _driver.error(
            code,
            "cuGraphExecUpdate",
            self._name,
            f"The driver's reason: {_update_reason(result)}{where}",
        )
        if isinstance(error, GraphUpdateError):
            error.result = result
        raise error

    def close(self) -> None:
        """Destroys it (`cuGraphExecDestroy`); launches in flight finish. May be called again.

        Raises:
            CudaError: The driver refused; it is closed all the same.
        """
        code = self._handle.close()
        self._source = None
        _driver.raise_for(code, "cuGraphExecDestroy", self._name)

    def into_raw(self) -> int:
        """Gives the handle away, and with it the duty to destroy it; errors as of `Graph.into_raw`."""
        return _into_raw(self._handle, self._owned, self._name)

    def __enter__(self) -> ExecutableGraph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __int__(self) -> int:
        return self.handle

    def __repr__(self) -> str:
        return (
            f"<aiostream.ExecutableGraph {self._handle.value:#x}{' closed' if self.closed else ''}>"
        )

    def __del__(
        self, run_in_janitor: Callable[..., None] = _process.run_in_janitor
    ) -> None:  # as in Stream
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.is_open:
            run_in_janitor(handle.drop)

    def _require_open(self) -> None:
        if not self._handle.is_open:
            raise StreamClosedError(
                f"{self._name} is closed: its handle was destroyed or given away"
            )

    def _use(self, stream: Reference, call: Any, name: str) -> None:
        self._require_open()
        code = call(self._handle, stream.handle)
        if code == _native.RESULT_CLOSED:
            self._require_open()  # another thread may have closed it just now
        _driver.raise_for(code, name, stream.name)

    def _use_async(self, stream: Any, call: Any, name: str) -> CompletionFuture[None]:
        reference = interop.reference_to(stream)
        mode = waiting.mode_for(stream)
        with pinned(reference):
            if mode == waiting.BY_HOST_FUNCTION:
                _arming.require_ready(reference)
                completion = _arming.enqueue(reference, lambda: self._use(reference, call, name))
            else:
                completion = waiting.enqueue(
                    reference, mode, lambda: self._use(reference, call, name)
                )
        return cast("CompletionFuture[None]", completion.future)

    async def _use_and_wait(self, stream: Any, call: Any, name: str) -> None:
        reference = interop.reference_to(stream)
        _arming.require_ready(reference)
        self._use(reference, call, name)
        await waiting.synchronize_async(waiting.Target(reference, waiting.mode_for(stream)))


def _update_reason(result: int) -> str:
    try:
        return GraphUpdateResult(result).name
    except ValueError:
        return str(result)  # newer than this library
