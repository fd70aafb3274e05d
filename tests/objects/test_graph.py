"""Graphs and their executable form: made, asked, launched, awaited, updated, shared with other
libraries, and ended.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import internals
from aiostream import (
    CaptureMode,
    CaptureStatus,
    CudaError,
    DebugDotFlags,
    ExecutableGraph,
    Graph,
    GraphNodeType,
    GraphUpdateError,
    GraphUpdateResult,
    InstantiateFlags,
    NotSupportedError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    statistics,
)
from support import Gate, settle, spin


def captured(stream: Stream, kernels: int = 1) -> Graph:
    with stream.capture() as capture:
        for _ in range(kernels):
            spin(stream, 0)
    return capture.graph


def counting(stream: Stream, seconds: float = 0.0) -> tuple[ExecutableGraph, list[int]]:
    """A kernel and a host function, and the list to which that appends."""
    calls: list[int] = []
    with stream.capture_executable() as capture:
        spin(stream, seconds)
        stream.launch_host_func(calls.append, 1)
    return capture.executable, calls


def executable_of(stream: Stream) -> ExecutableGraph:
    with captured(stream) as graph:
        return graph.instantiate()


# ------------------------------------------------------------------------------------------- graphs


def test_an_empty_graph_can_be_launched(stream: Stream) -> None:
    with Graph() as graph:
        assert graph.nodes == graph.root_nodes == ()
        assert int(graph) == graph.handle != 0
        with graph.instantiate() as executable:
            executable.launch(stream)
            stream.synchronize()
    assert graph.closed
    assert executable.closed
    with pytest.raises(TypeError, match="comes from"):
        ExecutableGraph()


@pytest.mark.needs_edge_data
def test_nodes_know_their_neighbours(stream: Stream) -> None:
    graph = captured(stream, 3)
    (root,) = graph.root_nodes
    order = [root]
    while order[-1].dependents:
        (next_one,) = order[-1].dependents
        order.append(next_one.node)
    assert len(order) == 3
    assert set(order) == set(graph.nodes)
    for before, after in itertools.pairwise(order):
        assert [dependency.node for dependency in after.dependencies] == [before]
    assert root.dependencies == ()
    assert {node.type for node in order} == {GraphNodeType.KERNEL}
    assert root.graph is graph
    assert int(root) == root.handle
    assert "GraphNode" in repr(root)
    graph.close()
    for gone in (
        lambda: root.type,
        lambda: root.handle,
        lambda: root.dependencies,
        lambda: graph.nodes,
        lambda: graph.handle,
    ):
        with pytest.raises(StreamClosedError):
            gone()


def test_clone_is_independent(stream: Stream) -> None:
    graph = captured(stream, 2)
    clone = graph.clone()
    assert clone != graph
    assert len(clone.nodes) == 2
    assert not set(clone.nodes) & set(graph.nodes)
    graph.close()
    with clone, clone.instantiate() as executable:
        executable.launch(stream)
        stream.synchronize()


# What makes something of a graph, or changes it, and the address that native code calls.
MAKERS: dict[str, tuple[Callable[[Graph, ExecutableGraph], object], int]] = {
    "cuGraphClone": (lambda graph, _: graph.clone().close(), 2),
    "cuGraphInstantiateWithParams": (lambda graph, _: graph.instantiate().close(), 3),
    "cuGraphExecUpdate": (lambda graph, executable: executable.update(graph), 3),
}


def destroyed_during(call: str, use: Callable[[], object], held: list[Any]) -> bool:
    """Drops what is held while `use` is in a driver call. Whether it was destroyed in that time."""
    _, count = MAKERS[call]
    name = "cuGraphDestroy" if isinstance(held[0], Graph) else "cuGraphExecDestroy"
    destroyed, overlaps = threading.Event(), []

    def destroy(original: Callable[..., int]) -> Callable[..., int]:
        return lambda handle: destroyed.set() or original(handle)

    def use_slowly(original: Callable[..., int]) -> Callable[..., int]:
        def slow(*args: int) -> int:
            held.clear()  # the janitor destroys it as soon as it may
            overlaps.append(destroyed.wait(0.05))
            return original(*args)

        return slow

    signature = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)
    destructor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    with (
        internals.native_call_replaced(name, destructor, destroy),
        internals.native_call_replaced(call, signature, use_slowly),
    ):
        use()
        assert destroyed.wait(5)
    return any(overlaps)


@pytest.mark.parametrize("dropped", [Graph, ExecutableGraph])
@pytest.mark.parametrize("call", MAKERS)
def test_what_is_dropped_is_not_destroyed_during_a_call_on_its_graph(
    stream: Stream, call: str, dropped: type
) -> None:
    """The driver crashes then, and the program does not know when a dropped object is destroyed."""
    use, _ = MAKERS[call]
    with captured(stream) as graph, graph.instantiate() as executable:
        held = [graph.clone() if dropped is Graph else graph.instantiate()]
        assert not destroyed_during(call, lambda: use(graph, executable), held)


def itself(graph: Graph) -> Graph:
    return graph


def by_handle(graph: Graph) -> Graph:
    return Graph.borrow(int(graph))


def taken_back(graph: Graph) -> Graph:
    return Graph.from_raw(graph.into_raw())


@pytest.mark.parametrize(
    ("first", "second"),
    [(by_handle, by_handle), (by_handle, itself), (itself, by_handle), (itself, taken_back)],
)
def test_two_objects_on_one_graph_are_one_to_the_janitor(
    stream: Stream, first: Callable[[Graph], Graph], second: Callable[[Graph], Graph]
) -> None:
    graph = captured(stream)
    held: list[Any] = [first(graph).clone()]
    again = second(graph)
    assert not destroyed_during("cuGraphClone", lambda: again.clone().close(), held)
    with again.clone() as clone:
        held = [first(clone).instantiate()]
        assert not destroyed_during("cuGraphClone", lambda: again.clone().close(), held)
    again.close()
    graph.close()


def test_objects_on_other_graphs_share_nothing(stream: Stream) -> None:
    with captured(stream) as graph, captured(stream) as other:
        held: list[Any] = [by_handle(graph).clone()]
        use = by_handle(other)
        assert destroyed_during("cuGraphClone", lambda: use.clone().close(), held)


def test_a_destructor_that_waits_for_a_lock_of_the_thread_that_clones(stream: Stream) -> None:
    """The janitor destroys a clone, and another thread has the lock and wants to use the graph."""
    cuda, lock, began = internals.bindings(), threading.Lock(), threading.Event()

    def wait_for_lock(_: int) -> None:
        began.set()
        with lock:
            pass

    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(wait_for_lock)
    address = cuda.CUhostFn(ctypes.cast(destroy, ctypes.c_void_p).value)
    graph = captured(stream)
    dropped = [graph.clone()]
    made = internals.driver_call("cuUserObjectCreate", 0, address, 1, 1)
    internals.driver_call("cuGraphRetainUserObject", cuda.CUgraph(int(dropped[0])), made, 1, 1)
    with lock:
        dropped.clear()
        assert began.wait(5)
        with pytest.raises(CudaError, match="wait for a lock that this thread holds") as caught:
            graph.clone()
        assert (caught.value.code, caught.value.call) == (600, "cuGraphClone")
        graph.close()
    assert graph.closed
    assert settle(lambda: statistics().handles.open == 1)
    assert statistics().balanced


def test_nothing_else_waits_for_a_slow_call(stream: Stream) -> None:
    """What was dropped meanwhile is destroyed later, and the janitor goes on."""
    ended: list[bool] = []

    def replace(original: Callable[..., int]) -> Callable[..., int]:
        def slow(*args: int) -> int:
            dropped.clear()
            thread, passed = threading.Thread(target=other.close), threading.Event()
            internals.run_in_janitor(passed.set)
            thread.start()
            thread.join(5)
            related.close()  # as a destructor of a user object may
            ended.extend([not thread.is_alive(), passed.wait(5)])
            return original(*args)

        return slow

    with captured(stream) as graph, captured(stream) as other:
        dropped, related = [graph.clone()], graph.clone()
        signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        with internals.native_call_replaced("cuGraphClone", signature, replace):
            graph.clone().close()
    assert ended == [True, True]
    assert settle(lambda: statistics().balanced)


def test_clones_are_dropped_while_their_graph_is_used(stream: Stream) -> None:
    """For as long as a driver without the library's lock needed to crash on an H200."""
    with captured(stream) as graph:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            for _ in range(20):
                graph.clone()
            graph.instantiate()
            graph.clone().instantiate().launch(stream)
        stream.synchronize()


def test_debug_dot(stream: Stream, tmp_path: Path) -> None:
    with captured(stream, 2) as graph:
        text = graph.debug_dot()
        assert text.lstrip().startswith("digraph")
        assert "->" in text
        path = tmp_path / "graph.dot"
        assert graph.debug_dot(path, DebugDotFlags.HANDLES) == path.read_text()
        with pytest.raises(CudaError):
            graph.debug_dot(tmp_path / "not" / "there.dot")


def test_refused_structure_is_named() -> None:
    driver = internals.bindings()
    with Graph() as graph:
        handle = driver.CUgraph(int(graph))
        _, first = driver.cuGraphAddEmptyNode(handle, [], 0)
        _, second = driver.cuGraphAddEmptyNode(handle, [first], 1)
        edges = [[second], [first]]
        if hasattr(driver, "cuGraphAddDependencies_v2"):
            (code,) = driver.cuGraphAddDependencies(handle, *edges, 1)
        else:
            (code,) = driver.cuGraphAddDependencies(handle, *edges, None, 1)
        if int(code) != 0:
            return  # this driver refuses the cycle at once
        with pytest.raises(CudaError, match="cuGraphInstantiateWithParams") as caught:
            graph.instantiate()
        assert caught.value.code == 1


def test_instantiate_flags(stream: Stream) -> None:
    with captured(stream) as graph:
        for flags in (InstantiateFlags.AUTO_FREE_ON_LAUNCH, InstantiateFlags.USE_NODE_PRIORITY):
            with graph.instantiate(flags) as executable:
                handle = internals.bindings().CUgraphExec(int(executable))
                found = internals.driver_call("cuGraphExecGetFlags", handle)
                # The driver does not report node priorities, here or on an H200.
                assert int(found) == int(flags & InstantiateFlags.AUTO_FREE_ON_LAUNCH)
        with graph.instantiate(InstantiateFlags.UPLOAD, upload_stream=stream) as executable:
            executable.launch(stream)
            stream.synchronize()


# ----------------------------------------------------------------------------------------- launches


async def test_launch_can_be_awaited(stream: Stream) -> None:
    executable, calls = counting(stream, 0.002)
    await executable.upload_and_wait(stream)
    assert calls == []
    await executable.launch_and_wait(stream)
    assert calls == [1]
    future = executable.launch_async(stream)
    assert await future is None
    assert calls == [1, 1]
    assert await executable.upload_async(stream) is None
    executable.close()


async def test_many_launches_in_flight(stream: Stream) -> None:
    executable, calls = counting(stream)
    with Gate() as gate:
        gate.hold(stream)
        # Few while it is held: with some dozens of launches with host nodes pending, an H200
        # blocked the next one.
        futures = [executable.launch_async(stream) for _ in range(5)]
        assert not any(future.done() for future in futures)
        assert calls == []
        gate.open()
        futures += [executable.launch_async(stream) for _ in range(45)]
        for number, future in enumerate(futures):
            await future
            assert len(calls) > number
    assert len(calls) == 50
    executable.close()


async def test_cancelled_wait_leaves_the_launch_alone(stream: Stream) -> None:
    executable, calls = counting(stream)
    with Gate() as gate:
        gate.hold(stream)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await executable.launch_and_wait(stream)
        assert scope.cancelled_caught
        executable.close()  # also then
        assert calls == []
        gate.open()
        await stream.synchronize_async()
    assert calls == [1]


async def test_launches_are_refused_before_anything_is_enqueued(stream: Stream) -> None:
    executable, closed_stream = executable_of(stream), Stream()
    closed_stream.close()
    armed = statistics().points.armed
    calls: list[Any] = [
        getattr(executable, name + ending)
        for name in ("launch", "upload")
        for ending in ("", "_async", "_and_wait")
    ]

    async def try_on(call: Any, stream: Any) -> None:
        result = call(stream)
        if result is not None:
            await result

    for call in calls:
        with pytest.raises(StreamClosedError):
            await try_on(call, closed_stream)
        with pytest.raises(TypeError):
            await try_on(call, "stream")
        with stream.capture() as capture:
            with pytest.raises(StreamCaptureError):
                await try_on(call, stream)
            spin(stream, 0)
        with capture.graph as graph:
            assert [node.type for node in graph.nodes] == [GraphNodeType.KERNEL]
    executable.close()
    for call in calls:
        with pytest.raises(StreamClosedError, match="executable graph"):
            await try_on(call, stream)
    assert statistics().points.armed == armed


def test_launches_from_a_thread_without_a_context(stream: Stream) -> None:
    executable = executable_of(stream)

    def work() -> None:
        executable.upload(stream)
        for target in (stream, Stream.per_thread(), Stream.legacy(), stream.handle):
            executable.launch(target)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()
    stream.synchronize()
    Stream.legacy().synchronize()
    executable.close()


# ------------------------------------------------------------------------------------------ updates


def test_an_update_takes_over_the_parameters(stream: Stream) -> None:
    calls: list[str] = []

    def graph_saying(word: str) -> Graph:
        with stream.capture() as capture:
            spin(stream, 0)
            stream.launch_host_func(calls.append, word)
        return capture.graph

    with graph_saying("old") as old, graph_saying("new") as new, old.instantiate() as executable:
        executable.launch(stream)
        executable.update(new)
        executable.launch(stream)
        executable.update(old.handle)
        executable.launch(stream)
        stream.synchronize()
    assert calls == ["old", "new", "old"]


def test_update_that_does_not_fit_says_why(stream: Stream) -> None:
    executable, calls = counting(stream)
    refused = pytest.raises(GraphUpdateError, match="TOPOLOGY_CHANGED")
    with captured(stream, 3) as longer, refused as caught:
        executable.update(longer)
    assert caught.value.code == 910
    assert caught.value.call == "cuGraphExecUpdate"
    assert GraphUpdateResult(caught.value.result) is GraphUpdateResult.ERROR_TOPOLOGY_CHANGED
    with captured(stream, 2) as other, pytest.raises(GraphUpdateError) as caught:
        executable.update(other)
    assert GraphUpdateResult(caught.value.result) is GraphUpdateResult.ERROR_NODE_TYPE_CHANGED
    executable.launch(stream)
    stream.synchronize()
    assert calls == [1]
    gone = captured(stream)
    gone.close()
    with pytest.raises(StreamClosedError):
        executable.update(gone)
    executable.close()
    with captured(stream) as graph, pytest.raises(StreamClosedError):
        executable.update(graph)


@pytest.mark.needs_edge_data
@pytest.mark.parametrize("mode", list(CaptureMode))
def test_graph_calls_do_not_end_a_capture(stream: Stream, other: Stream, mode: CaptureMode) -> None:
    """In the very thread that captures: the driver forbids much of it there, unless the thread is
    RELAXED.
    """
    graph = captured(stream, 2)
    doomed = graph.clone(), graph.instantiate()
    dropped = [graph.clone(), graph.instantiate()]
    open_before = statistics().handles.open
    with stream.capture(mode) as capture:
        spin(stream, 0)
        for each in doomed:
            each.close()
        dropped.clear()
        assert settle(lambda: statistics().handles.open == open_before - 4)
        with Graph() as empty, empty.instantiate():
            pass
        with graph.clone() as clone, clone.instantiate() as executable:
            assert len(clone.nodes[0].dependencies) + len(clone.nodes[1].dependencies) == 1
            executable.upload(other)
            executable.launch(other)
            executable.update(graph)
            other.synchronize()
        graph.debug_dot()
        assert stream.capture_status() is CaptureStatus.ACTIVE
    assert len(capture.graph.nodes) == 1
    capture.graph.close()
    graph.close()


# ----------------------------------------------------------------------------------- captures again


def test_calls_that_need_a_newer_driver_say_so(stream: Stream) -> None:
    graph = captured(stream)
    if internals.driver_version() < 13030:
        with pytest.raises(NotSupportedError, match=r"needs a driver of CUDA 13\.3 or newer"):
            stream.begin_recapture_to_graph(graph)
    if internals.driver_version() < 13020:
        with pytest.raises(NotSupportedError, match=r"needs a driver of CUDA 13\.2 or newer"):
            stream.launch_host_func(print, sync_mode=1)  # type: ignore[arg-type]
    if internals.driver_version() < 13010:
        with pytest.raises(NotSupportedError, match=r"needs a driver of CUDA 13\.1 or newer"):
            stream.dev_resource()
    graph.close()


# ---------------------------------------------------------------------------------- other libraries


def test_graphs_of_other_libraries(stream: Stream) -> None:
    driver = internals.bindings()
    graph = captured(stream)
    executable = graph.instantiate()
    raw, raw_executable = driver.CUgraph(int(graph)), driver.CUgraphExec(int(executable))
    torch = SimpleNamespace(
        raw_cuda_graph=lambda: int(graph), raw_cuda_graph_exec=lambda: int(executable)
    )
    cupy = SimpleNamespace(graph=int(graph), graphExec=int(executable))
    for thing in (raw, int(graph), torch, cupy, SimpleNamespace(handle=raw)):
        borrowed = Graph.borrow(thing)
        assert borrowed == graph
        assert len(borrowed.nodes) == 1
        executable.update(thing)
    of_executable = SimpleNamespace(handle=raw_executable)
    for thing in (raw_executable, int(executable), torch, cupy, of_executable):
        ExecutableGraph.borrow(thing).launch(stream)
    stream.synchronize()
    for wrong in (of_executable, raw_executable):
        with pytest.raises(TypeError):
            Graph.borrow(wrong)
    for wrong in (SimpleNamespace(handle=raw), raw):
        with pytest.raises(TypeError):
            ExecutableGraph.borrow(wrong)
    executable.close()
    graph.close()


def test_graphs_of_cuda_core(stream: Stream) -> None:
    pytest.importorskip("cuda.core.graph")
    from cuda.core import Device as CoreDevice
    from cuda.core.graph import GraphDefinition

    with stream.context.as_current():
        CoreDevice(0).set_current()
        definition = GraphDefinition()
        definition.empty()
        graph = Graph.borrow(definition)
        assert [node.type for node in graph.nodes] == [GraphNodeType.EMPTY]
        with graph.instantiate() as executable:
            executable.launch(stream.core())
        stream.begin_capture_to_graph(definition, definition.nodes())
        dependencies = stream.capture_info().dependencies
        assert [dependency.node for dependency in dependencies] == list(graph.nodes)
        spin(stream, 0)
        assert stream.end_capture() == graph
        assert len(graph.nodes) == 2
        ready = definition.instantiate()
        borrowed = ExecutableGraph.borrow(ready)
        borrowed.launch(stream)
        stream.synchronize()
        del borrowed, graph
        ready.close()
