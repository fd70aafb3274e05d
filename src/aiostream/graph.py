"""Graphs: what a capture collects, and the executable form that can be launched.

What the host nodes of a graph call is not kept alive here. The driver keeps it in user objects,
which clones, executables and launches in flight hold too (see `hostfunc`). So you may drop any of
these Python objects at any time.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._handles import interop
from aiostream._handles.operand import Operand, current_or_default_context, pin, pinned
from aiostream._handles.owned import Transferable, WithBlock
from aiostream._objects.nodes import GraphNode
from aiostream._runtime import process
from aiostream._runtime.observing import hook
from aiostream._waits import enqueuing, strategies, waiting
from aiostream.device import Context
from aiostream.enums import (
    DebugDotFlags,
    GraphInstantiateResult,
    GraphUpdateResult,
    InstantiateFlags,
)
from aiostream.errors import GraphUpdateError
from aiostream.futures import CompletionFuture

__all__ = ["ExecutableGraph", "Graph"]

# ------------------------------------------------------------------------------------------- graphs


Made = TypeVar("Made", bound="_AnyGraph")


class _AnyGraph(Transferable, WithBlock):
    """What a graph and an executable graph have in common."""

    _kind: ClassVar[int]  # of the native handle
    _called: ClassVar[str]

    def _init_fields(
        self, handle: _native.Handle, context: Context, owned: bool, source: Any = None
    ) -> Self:
        self._note_place()
        self._context = context  # where it is instantiated
        self._owned, self._source = owned, source
        self._name = f"{self._called} {handle.value:#x}"
        self._handle = handle
        return self

    def _init_made(self, value: int, context: Context) -> Self:
        """Makes this the object of what the library has just made."""
        handle = driver.owned_handle(self._kind, value, context.handle, self._destructor)
        return self._init_fields(handle, context, True)

    @classmethod
    def _from_any(cls, graph: Any, *, owned: bool) -> Self:
        value = interop.graph_handle(graph, executable=cls._kind == _native.HANDLE_GRAPH_EXEC)
        process.start()
        context = current_or_default_context()
        handle = _native.Handle(cls._kind, value, context.handle, owned)
        return cls.__new__(cls)._init_fields(handle, context, owned, None if owned else graph)

    @classmethod
    def from_raw(cls, handle: int) -> Self:
        """Takes over a `CUgraph` or `CUgraphExec`. The reverse of `into_raw`.

        This object then destroys it.

        Raises:
            TypeError: `handle` is not an int.
            ValueError: It is not a handle.
        """
        return cls._from_any(interop.raw_handle(handle, "a graph"), owned=True)


class Graph(_AnyGraph):
    """A CUDA graph: operations and how they depend on each other.

    `Stream.capture` makes one from the work of a stream. `Graph()` makes an empty one, and you edit
    it with the driver's functions, which take its handle (`int(graph)`). `Graph.borrow` takes
    another library's graph.

    `close()` destroys a graph that you own, as does the end of a `with` block. If you drop the
    object, the graph is destroyed in the background. Its executables and their launches go on.
    While a stream captures into the graph, it is destroyed at the end of that capture.

    A Python host function in the graph lives as long as the driver may call it. If it refers to its
    own `Graph` object, both live until you close the graph.

    Open graphs compare equal by handle. A closed graph equals only itself, because the driver gives
    its handle to a new graph. The hash stays the same. You cannot copy or pickle a `Graph` object:
    `clone()` copies the graph.

    Threads: you may use it in any thread, but in one at a time with its clones and executables,
        because the driver does not guard them. What you drop is destroyed when no call of this
        library clones, instantiates, updates or destroys one of them. If you or another library
        call the driver for that, close clones and executables, and do not drop them. A destructor
        of a user object must not wait for a lock under which you make such a call: the call fails
        after a second (code 600).

    Raises:
        NoDriverError: There is no CUDA driver.
        CudaError: The driver refused (`cuGraphCreate`).

    Example:
        >>> async with aiostream.Stream() as stream:
        ...     with stream.capture() as capture:
        ...         stream.launch_host_func(print, "a node")
        ...     with capture.graph as graph:
        ...         print([node.type.name for node in graph.nodes])
        ['HOST']
    """

    _instead = "clone() copies the graph, and borrow(int(graph)) gives a second object on it"
    _destructor = "cuGraphDestroy"
    _kind = _native.HANDLE_GRAPH
    _called = "graph"
    # True while a capture that capture.py has noted goes into it. The capture pins the handle.
    _captured_into = False

    def __init__(self) -> None:
        process.start()
        context = current_or_default_context()
        with driver.relaxed():
            self._init_made(int(driver.call("cuGraphCreate", 0)), context)

    @classmethod
    def borrow(cls, graph: Any) -> Graph:
        """Returns a `Graph` on another library's graph, which it keeps alive and never destroys.

        If you pass a `Graph`, you get that same object.

        Args:
            graph: A graph of cuda.core (`GraphDefinition`), torch or cupy, or a handle.

        Raises:
            TypeError: It names no graph.
            ValueError: The int is not a handle.
        """
        return graph if isinstance(graph, Graph) else cls._from_any(graph, owned=False)

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        """All its nodes (`cuGraphGetNodes`)."""
        return self._nodes("cuGraphGetNodes")

    @property
    def root_nodes(self) -> tuple[GraphNode, ...]:
        """The nodes that depend on no other (`cuGraphGetRootNodes`)."""
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
        """Describes the graph in the language of graphviz (`cuGraphDebugDotPrint`).

        Args:
            path: A file to which the text is written too.
            flags: What it says of each node.

        Returns:
            The text.

        Raises:
            StreamClosedError: The graph is closed.
        """
        import tempfile  # with what it imports, a tenth of what `import aiostream` takes

        with tempfile.TemporaryDirectory() if path is None else contextlib.nullcontext() as folder:
            target = Path(path) if path is not None else Path(str(folder)) / "graph.dot"
            chosen = int(checks.member(DebugDotFlags, flags, "flags"))
            self._call("cuGraphDebugDotPrint", os.fsencode(target), chosen)
            return target.read_text()

    def clone(self) -> Graph:
        """Copies the graph (`cuGraphClone`). The copy calls the same host functions.

        Raises:
            StreamClosedError: The graph is closed.
            CudaError: The driver refused.
        """
        code, clone = _native.graph_clone(self._handle)
        driver.raise_for(code, "cuGraphClone", self._name)
        return self._related(Graph, clone)

    def instantiate(
        self, flags: InstantiateFlags = InstantiateFlags.DEFAULT, *, upload_stream: Any = None
    ) -> ExecutableGraph:
        """Makes the graph executable (`cuGraphInstantiateWithParams`).

        The executable graph does not need this one any more, so you may close it.

        Args:
            flags: How to make it. `UPLOAD` uploads it too.
            upload_stream: The stream on which to upload it, with `UPLOAD`.

        Raises:
            StreamClosedError: The graph is closed.
            CudaError: The driver refused. If the graph cannot be executed, the error says why.

        Example:
            >>> with aiostream.Graph() as graph:
            ...     with graph.instantiate() as executable:
            ...         print(executable.closed)
            False
        """
        chosen, stream = int(checks.member(InstantiateFlags, flags, "flags")), 0
        with contextlib.ExitStack() as stack:
            if upload_stream is not None:
                stream = stack.enter_context(pinned(interop.operand_of(upload_stream)))
            stack.enter_context(self._context._pushed())
            code, result, value = _native.graph_instantiate(self._handle, chosen, stream)
            if code == 0:
                return self._related(ExecutableGraph, value)
        name, reason = "cuGraphInstantiateWithParams", GraphInstantiateResult(result)
        if code < 0:
            driver.raise_for(code, name, self._name)
        hint = f"The driver's reason: {reason.name}" if reason else None
        raise driver.error(code, name, self._name, hint)

    def into_raw(self) -> int:
        """Gives the handle away, and returns it.

        From then on you have to destroy the graph, or to pass the handle to `from_raw`.

        Returns:
            The `CUgraph`, as an int.

        Raises:
            StreamClosedError: It was closed before.
            ValueError: It is borrowed, so it is not yours to give. Or a stream captures into it.
            RuntimeError: It is in use, in this thread or another one.
        """
        if self._captured_into:
            raise ValueError(
                f"a stream captures into {self._name}: end the capture before you give the handle "
                "away"
            )
        return super().into_raw()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return self is other or self._is_same(other)

    def __hash__(self) -> int:
        return hash(("aiostream.Graph", self._handle.value))

    def _related(self, kind: type[Made], value: int) -> Made:
        """Returns the object of what was made of this graph."""
        made = kind.__new__(kind)._init_made(value, self._context)
        made._handle.relate(self._handle)
        return made

    def _call(self, name: str, *args: Any, node: int | None = None) -> Any:
        """Calls the driver on the graph, or on one of its nodes.

        In RELAXED mode, because some of these functions would end a capture of this thread.
        """
        cuda = driver.bindings()
        with pin(self._handle, self._name) as value, driver.relaxed():
            subject = cuda.CUgraph(value) if node is None else cuda.CUgraphNode(node)
            return driver.call(name, subject, *args, stream=self._name)


# -------------------------------------------------------------------------------- executable graphs


class ExecutableGraph(_AnyGraph):
    """A graph that you can launch any number of times.

    `Stream.capture_executable` and `Graph.instantiate` make one. Its launches run one after the
    other, whatever their streams.

    `close()` destroys it, as does the end of a `with` block. If you drop the object, it is
    destroyed in the background. Launches in flight finish. You cannot copy or pickle it.

    Threads: you may use it in any thread, but in one at a time, because the driver does not guard
        it.

    Example:
        >>> async with aiostream.Stream() as stream:
        ...     done = []
        ...     with stream.capture_executable() as capture:
        ...         stream.launch_host_func(done.append, "launched")
        ...     with capture.executable as executable:
        ...         for _ in range(3):
        ...             await executable.launch_and_wait(stream)
        ...     print(done)
        ['launched', 'launched', 'launched']
    """

    _instead = "Graph.instantiate() makes another one"
    _destructor = "cuGraphExecDestroy"
    _kind = _native.HANDLE_GRAPH_EXEC
    _called = "executable graph"

    def __init__(self) -> None:
        raise TypeError(
            "an ExecutableGraph comes from Graph.instantiate(), Stream.capture_executable(), "
            "borrow() or from_raw()"
        )

    @classmethod
    def borrow(cls, executable: Any) -> ExecutableGraph:
        """Returns an `ExecutableGraph` on another library's executable graph.

        It keeps that one alive, and never destroys it. If you pass an `ExecutableGraph`, you get
        that same object.

        Args:
            executable: An executable graph of cuda.core (`Graph`), torch or cupy, or a handle.

        Raises:
            TypeError: It names no executable graph.
            ValueError: The int is not a handle.
        """
        if isinstance(executable, ExecutableGraph):
            return executable
        return cls._from_any(executable, owned=False)

    def launch(self, stream: Any) -> None:
        """Enqueues the whole graph on a stream (`cuGraphLaunch`).

        If the stream is full, the call blocks its thread until there is room. Do not launch on a
        stream that captures: the driver would end the capture, so the call is refused. To put a
        graph into a graph, add it as a child node (`cuGraphAddChildGraphNode`).

        Args:
            stream: A `Stream`, or another library's.

        Raises:
            StreamClosedError: The graph or the stream is closed.
            StreamCaptureError: The stream captures. Nothing was launched, and the capture goes on.
            CudaError: The driver refused.

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     with stream.capture_executable() as capture:
            ...         stream.launch_host_func(str)
            ...     with capture.executable as executable:
            ...         executable.launch(stream)
            ...         executable.launch(stream)
            ...         await stream.synchronize_async()
        """
        self._use(interop.operand_of(stream), "launch")

    def launch_async(self, stream: Any) -> CompletionFuture[None]:
        """Launches the graph, and returns a future that settles when the GPU has run it.

        Equals `stream.enqueue_async(executable.launch)`. The future ends by an event behind the
        launch, which is not part of the graph. Every refusal comes before the launch. Only the
        driver may refuse the event after it.

        Cancellation: stops the waiting. The GPU goes on.

        Threads: call it in the thread of a running asyncio or trio loop. The future settles there.

        Raises:
            RuntimeError: No loop runs in this thread.
            StreamClosedError: The graph or the stream is closed.
            StreamCaptureError: The stream captures. Nothing was launched, and the capture goes on.
            CudaError: The driver refused, or the context has failed.

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     with stream.capture_executable() as capture:
            ...         stream.launch_host_func(str)
            ...     with capture.executable as executable:
            ...         future = executable.launch_async(stream)  # the GPU works from here on
            ...         await future
        """
        return self._use_async(stream, "launch")

    async def launch_and_wait(self, stream: Any) -> None:
        """Launches the graph, and waits until the stream's work is done.

        It waits as `Stream.synchronize_async` does.

        Cancellation: raises at once. The GPU goes on.

        Raises:
            RuntimeError: No loop runs in this thread.
            StreamClosedError: The graph or the stream is closed.
            StreamCaptureError: The stream captures. Nothing was launched, and the capture goes on.
            CudaError: The driver refused, or the work has failed.
        """
        await self._use_and_wait(stream, "launch")

    def upload(self, stream: Any) -> None:
        """Prepares the next launch, in a stream's order (`cuGraphUpload`).

        Raises the same errors as `launch`.
        """
        self._use(interop.operand_of(stream), "upload")

    def upload_async(self, stream: Any) -> CompletionFuture[None]:
        """Uploads the graph, and returns a future of that.

        Raises the same errors as `launch_async`.
        """
        return self._use_async(stream, "upload")

    async def upload_and_wait(self, stream: Any) -> None:
        """Uploads the graph, and waits until the stream's work is done.

        Raises the same errors as `launch_and_wait`.
        """
        await self._use_and_wait(stream, "upload")

    def update(self, graph: Any) -> None:
        """Takes over the parameters of a graph of the same shape (`cuGraphExecUpdate`).

        Later launches use them, and the host functions of `graph` too. Launches in flight keep the
        old parameters.

        Args:
            graph: A `Graph`, or another library's.

        Raises:
            StreamClosedError: One of the two is closed.
            GraphUpdateError: The graphs differ too much. Nothing was changed, and `result` says how
                they differ.
        """
        source = Graph.borrow(graph)
        code, result, node, before = _native.graph_update(self._handle, source._handle)
        if code <= 0 or code == driver.NOT_READY:
            named = source if source.closed else self
            driver.raise_for(code, "cuGraphExecUpdate", named._name)
            return
        where = f" at node {node:#x}" if node else ""
        where += f" and its dependency {before:#x}" if before else ""
        # A number if the driver is newer than this library.
        reason = next((each.name for each in GraphUpdateResult if each == result), result)
        hint = f"The driver's reason: {reason}{where}"
        error = driver.error(code, "cuGraphExecUpdate", self._name, hint)
        if isinstance(error, GraphUpdateError):
            error.result = result
        raise error

    def _use(self, stream: Operand, use: str) -> None:
        code = _native.graph_use(self._handle, stream.handle, use == "launch")
        if code == _native.RESULT_CLOSED:
            self._require_open()  # else the stream is closed
        driver.raise_for(code, f"cuGraph{use.title()}", stream.name)

    def _use_async(self, stream: Any, use: str) -> CompletionFuture[None]:
        if hook and not hook.is_observed():
            name, method = f"ExecutableGraph.{use}_async", ExecutableGraph._use_async
            return hook.observed(name, method, self, stream, use)
        operand = interop.operand_of(stream)
        mode = strategies.mode_for(stream)
        future = enqueuing.enqueue(operand, mode, lambda: self._use(operand, use))
        return cast("CompletionFuture[None]", future)

    async def _use_and_wait(self, stream: Any, use: str) -> None:
        if hook and not hook.is_observed():
            name, method = f"ExecutableGraph.{use}_and_wait", ExecutableGraph._use_and_wait
            await hook.observed(name, method, self, stream, use)
            return
        operand = interop.operand_of(stream)
        enqueuing.require_ready(operand)
        self._use(operand, use)
        await waiting.synchronize_async(waiting.Unobserved(operand, strategies.mode_for(stream)))
