"""Graphs: built by hand and captured, launched, and edited."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import nogpu as simulator
from simdriver import HOST, Gate, Kernels, code, cu, host, keep, ok, raw, until
from simgraphs import (
    ADDRESS,
    CHILD,
    COPY,
    FILL,
    HOST_NODE,
    KERNEL,
    RECORD,
    RELAXED,
    SIZE,
    WAIT,
    Nodes,
    after,
    before,
    change_edges,
    copy_params,
    edges,
    fill_params,
    host_params,
    kernel_params,
    listed,
    types,
)

# --- replay ---


def test_a_captured_host_node_is_replayed_as_often_as_it_is_launched(
    stream: Any, kernels: Kernels
) -> None:
    fired = []
    ok(cu.cuStreamBeginCapture(stream, RELAXED))
    ok(kernels.launch("empty", stream))
    host(stream, lambda: fired.append(threading.get_native_id()))
    ok(kernels.launch("empty", stream))
    graph = ok(cu.cuStreamEndCapture(stream))
    assert types(graph) == [KERNEL, HOST_NODE, KERNEL]
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    for _ in range(500):
        ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert len(fired) == 500
    seen = []
    host(stream, lambda: seen.append(threading.get_native_id()))
    ok(cu.cuStreamSynchronize(stream))
    assert set(fired) == set(seen), "the context's host thread runs them"
    ok(cu.cuGraphExecDestroy(executable))
    assert code(cu.cuGraphLaunch(executable, stream)) == 1


def test_nodes_run_after_what_they_depend_on(build: Nodes, stream: Any) -> None:
    order = []
    last = build.host(lambda: order.append("d"))
    first = build.host(lambda: order.append("a"))
    left = build.host(lambda: order.append("b"), first)
    right = build.host(lambda: order.append("c"), first)
    assert change_edges(cu.cuGraphAddDependencies, build.graph, (left, last), (right, last)) == 0
    executable = build.instantiate()
    for _ in range(20):
        order.clear()
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuStreamSynchronize(stream))
        assert order[0] == "a"
        assert order[-1] == "d"
        assert sorted(order) == ["a", "b", "c", "d"]


def test_a_launch_keeps_its_place_in_the_stream(build: Nodes, stream: Any, gate: Gate) -> None:
    order = []
    build.host(lambda: order.append("graph"), build.empty())
    executable = build.instantiate()
    gate.hold(stream)
    host(stream, lambda: order.append("before"))
    ok(cu.cuGraphLaunch(executable, stream))
    host(stream, lambda: order.append("after"))
    assert code(cu.cuStreamQuery(stream)) == 600
    assert order == []
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert order == ["before", "graph", "after"]


def test_branches_do_not_wait_for_each_other(build: Nodes, stream: Any) -> None:
    """One branch is held by a word that only the other branch's end lets the program write."""
    gates, passed = [Gate(), Gate()], threading.Event()
    for gate in gates:
        ok(
            cu.cuGraphAddBatchMemOpNode(
                build.graph, [], 0, wait_params(build.context, gate.address)
            )
        )
    held, free = listed(cu.cuGraphGetNodes(build.graph, 8))
    build.host(passed.set, cu.CUgraphNode(free))
    executable = build.instantiate()
    ok(cu.cuGraphLaunch(executable, stream))
    gates[1].open()
    assert passed.wait(10)
    assert code(cu.cuStreamQuery(stream)) == 600
    gates[0].open()
    ok(cu.cuStreamSynchronize(stream))
    assert held


def wait_params(context: Any, address: Any) -> Any:
    word = cu.CUstreamBatchMemOpParams()
    word.operation = cu.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32
    word.waitValue.operation = word.operation
    word.waitValue.address = cu.CUdeviceptr(address)
    word.waitValue.value = 1
    params = cu.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    params.ctx, params.count, params.paramArray, params.flags = context, 1, [word], 0
    keep.append(params)
    return params


def test_an_executable_runs_one_launch_at_a_time(build: Nodes, stream: Any, gate: Gate) -> None:
    running, most, other = [], [], ok(cu.cuStreamCreate(1))
    start = build.host(lambda: running.append(1))
    middle = ok(
        cu.cuGraphAddBatchMemOpNode(
            build.graph, [start], 1, wait_params(build.context, gate.address)
        )
    )
    build.host(lambda: (most.append(len(running)), running.pop()), middle)
    executable = build.instantiate()
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphLaunch(executable, other))
    until(lambda: running)
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(event, other))
    assert code(cu.cuEventQuery(event)) == 600
    gate.open()
    ok(cu.cuStreamSynchronize(other))
    assert most == [1, 1]


def test_an_executable_destroyed_in_flight_finishes(build: Nodes, stream: Any, gate: Gate) -> None:
    order = []
    first = build.host(lambda: order.append(1))
    build.host(lambda: order.append(2), first)
    executable = build.instantiate()
    gate.hold(stream)
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphDestroy(build.graph))
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert order == [1, 2, 1, 2]


def test_the_stream_may_go_with_a_launch_in_flight(build: Nodes, gate: Gate) -> None:
    stream, fired = ok(cu.cuStreamCreate(1)), threading.Event()
    build.host(fired.set, build.empty(), build.empty())
    gate.hold(stream)
    ok(cu.cuGraphLaunch(build.instantiate(), stream))
    ok(cu.cuStreamDestroy(stream))
    gate.open()
    assert fired.wait(10)


def test_a_launch_counts_as_one_towards_the_depth_of_a_stream(
    build: Nodes, stream: Any, kernels: Kernels, gate: Gate
) -> None:
    node = build.kernel(kernels.function("empty"))
    for _ in range(9):
        node = build.kernel(kernels.function("empty"), node)
    executable = build.instantiate()
    gate.hold(stream)
    for _ in range(1020):
        ok(cu.cuGraphLaunch(executable, stream))
    done = []
    thread = threading.Thread(
        target=lambda: done.append(code(cu.cuGraphLaunch(executable, stream)))
    )
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "a full stream blocks the launch"
    gate.open()
    thread.join(30)
    assert done == [0]
    ok(cu.cuStreamSynchronize(stream))


def test_a_fault_in_a_graph_drops_its_host_nodes(
    build: Nodes, stream: Any, kernels: Kernels
) -> None:
    fired = []
    trap = build.kernel(kernels.function("trap"))
    build.host(lambda: fired.append(1), trap)
    executable = build.instantiate()
    ok(cu.cuGraphLaunch(executable, stream))
    assert code(cu.cuStreamSynchronize(stream)) == 719
    assert code(cu.cuGraphLaunch(executable, stream)) == 719
    simulator.recover()
    assert fired == []
    ok(cu.cuGraphExecDestroy(executable))


def test_memory_that_went_is_an_illegal_address(build: Nodes, stream: Any) -> None:
    memory = ok(cu.cuMemAlloc(64))
    build.fill(memory, 1, 64)
    executable = build.instantiate()
    ok(cu.cuMemFree(memory))
    ok(cu.cuGraphLaunch(executable, stream))
    assert code(cu.cuStreamSynchronize(stream)) == 700
    simulator.recover()


def test_on_the_legacy_and_the_per_thread_stream(build: Nodes) -> None:
    fired = []
    build.host(lambda: fired.append(1), build.empty(), build.empty())
    executable = build.instantiate()
    blocking = ok(cu.cuStreamCreate(0))
    for handle in (0, 1, 2):
        ok(cu.cuGraphLaunch(executable, cu.CUstream(handle)))
        ok(cu.cuStreamSynchronize(blocking if handle < 2 else cu.CUstream(2)))
    ok(cu.cuCtxSynchronize())
    assert len(fired) == 3


# --- the kinds of nodes ---


def test_every_kind_of_node_does_its_work(build: Nodes, stream: Any, kernels: Kernels) -> None:
    memory = ok(cu.cuMemHostAlloc(4096, 0))
    words = (ctypes.c_uint32 * 64).from_address(int(memory))
    event, order = ok(cu.cuEventCreate(2)), []
    filled = build.fill(memory, 7, 16, width=4)
    copied = build.copy(int(memory) + 64, memory, 64, filled)
    arguments = (ctypes.c_uint64(int(memory) + 128), ctypes.c_uint32(9), ctypes.c_uint32(16))
    ran = build.kernel(kernels.function("fill32"), copied, arguments=arguments)
    recorded = ok(cu.cuGraphAddEventRecordNode(build.graph, [ran], 1, event))
    inner = Nodes()
    inner.host(lambda: order.append("child"), inner.empty())
    child = ok(cu.cuGraphAddChildGraphNode(build.graph, [recorded], 1, inner.graph))
    waited = ok(cu.cuGraphAddEventWaitNode(build.graph, [child], 1, event))
    build.host(lambda: order.append("end"), waited)
    assert types(build.graph) == [FILL, COPY, KERNEL, RECORD, CHILD, WAIT, HOST_NODE]
    executable = build.instantiate()
    for _ in range(3):
        ctypes.memset(int(memory), 0, 4096)
        order.clear()
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuEventSynchronize(event))
        ok(cu.cuStreamSynchronize(stream))
        assert list(words[:48]) == [7] * 32 + [9] * 16
        assert order == ["child", "end"]
    assert int(ok(cu.cuGraphEventRecordNodeGetEvent(recorded))) == int(event)
    assert int(ok(cu.cuGraphEventWaitNodeGetEvent(waited))) == int(event)
    ok(cu.cuEventDestroy(event))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))


def test_copies_and_fills_of_more_dimensions(build: Nodes, stream: Any) -> None:
    memory = ok(cu.cuMemHostAlloc(4096, 0))
    data = (ctypes.c_uint8 * 4096).from_address(int(memory))
    data[:] = [0] * 4096
    fill = fill_params(memory, 5, 4)
    fill.height, fill.pitch = 3, 16
    node = ok(cu.cuGraphAddMemsetNode(build.graph, [], 0, fill, build.context))
    copy = copy_params(int(memory) + 1024, memory, 4)
    copy.srcPitch, copy.dstPitch, copy.Height = 16, 8, 3
    ok(cu.cuGraphAddMemcpyNode(build.graph, [node], 1, copy, build.context))
    ok(cu.cuGraphLaunch(build.instantiate(), stream))
    ok(cu.cuStreamSynchronize(stream))
    assert list(data[:40]) == [5] * 4 + [0] * 12 + [5] * 4 + [0] * 12 + [5] * 4 + [0] * 4
    assert list(data[1024:1048]) == ([5] * 4 + [0] * 4) * 3


def test_the_parameters_of_nodes(build: Nodes, kernels: Kernels) -> None:
    memory = ok(cu.cuMemAlloc(256))
    filled, copied = build.fill(memory, 3, 8, width=2), build.copy(int(memory) + 128, memory, 32)
    arguments = (ctypes.c_uint64(int(memory)), ctypes.c_uint32(9), ctypes.c_uint32(16))
    kernel = build.kernel(kernels.function("fill32"), arguments=arguments)
    hosted = build.host(lambda: None)
    reported = ok(cu.cuGraphMemsetNodeGetParams(filled))
    assert (
        int(reported.dst),
        reported.value,
        reported.elementSize,
        reported.width,
        reported.height,
    ) == (
        int(memory),
        3,
        2,
        8,
        1,
    )
    reported = ok(cu.cuGraphMemcpyNodeGetParams(copied))
    assert (int(reported.srcDevice), int(reported.dstDevice), reported.WidthInBytes) == (
        int(memory),
        int(memory) + 128,
        32,
    )
    reported = ok(cu.cuGraphKernelNodeGetParams(kernel))
    assert int(reported.func) == int(kernels.function("fill32"))
    pointers = (ctypes.c_void_p * 3).from_address(int(reported.kernelParams))
    assert ctypes.c_uint32.from_address(pointers[1] or 0).value == 9
    other = HOST(lambda _: None)
    keep.append(other)
    ok(cu.cuGraphHostNodeSetParams(hosted, host_params(other)))
    assert int(ok(cu.cuGraphHostNodeGetParams(hosted)).fn) == ctypes.cast(other, ADDRESS).value
    assert code(cu.cuGraphHostNodeGetParams(kernel)) == 1
    assert (
        code(cu.cuGraphKernelNodeSetParams(kernel, kernel_params(kernels.function("fill32")))) == 1
    ), "arguments are missing"
    assert code(cu.cuGraphMemsetNodeSetParams(filled, fill_params(int(memory) + 255, 1, 8))) == 1, (
        "beyond the memory"
    )


def test_nodes_of_any_type_by_one_call(build: Nodes, stream: Any, gate: Gate) -> None:
    fired = []
    native = HOST(lambda _: fired.append(1))
    keep.append(native)
    params = cu.CUgraphNodeParams()
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_HOST
    params.host.fn = cu.CUhostFn(ctypes.cast(native, ADDRESS).value)
    first = build.empty()
    more = [[cu.CUgraphEdgeData()]] if cu.CUDA_VERSION >= 13000 else []
    node = ok(cu.cuGraphAddNode(build.graph, [first], *more, 1, params))
    assert before(node) == [int(first)]
    ok(cu.cuGraphLaunch(build.instantiate(), stream))
    ok(cu.cuStreamSynchronize(stream))
    assert fired == [1]
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    assert code(cu.cuGraphAddNode(build.graph, [first], *more, 1, params)) == 801


# --- editing ---


def test_edges(build: Nodes) -> None:
    a, b, c = build.empty(), build.empty(), build.empty()
    assert change_edges(cu.cuGraphAddDependencies, build.graph, (a, b), (b, c)) == 0
    assert edges(build.graph) == [(int(a), int(b)), (int(b), int(c))]
    assert (before(b), after(b)) == ([int(a)], [int(c)])
    assert change_edges(cu.cuGraphAddDependencies, build.graph, (a, c), (a, b)) == 1, (
        "there is one already"
    )
    assert edges(build.graph) == [(int(a), int(b)), (int(b), int(c))]
    assert change_edges(cu.cuGraphRemoveDependencies, build.graph, (a, b)) == 0
    assert change_edges(cu.cuGraphRemoveDependencies, build.graph, (a, b)) == 1
    assert change_edges(cu.cuGraphAddDependencies, build.graph, (a, a)) == 1
    assert edges(build.graph) == [(int(b), int(c))]
    assert listed(cu.cuGraphGetRootNodes(build.graph, 8)) == [int(a), int(b)]
    ok(cu.cuGraphDestroyNode(b))
    assert edges(build.graph) == []
    assert len(types(build.graph)) == 2
    assert code(cu.cuGraphNodeGetType(b)) == 400
    assert code(cu.cuGraphAddEmptyNode(build.graph, [b], 1)) == 1
    assert code(cu.cuGraphAddEmptyNode(build.graph, [a, a], 2)) == 1, "no node twice"


def test_a_cycle_shows_at_instantiation(build: Nodes) -> None:
    a = build.empty()
    b = build.empty(a)
    assert change_edges(cu.cuGraphAddDependencies, build.graph, (b, a)) == 0
    assert code(cu.cuGraphInstantiate(build.graph, 0)) == 1
    params = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    assert code(cu.cuGraphInstantiateWithParams(build.graph, params)) == 1
    assert int(params.result_out) == 2
    assert int(params.hErrNode_out) in (int(a), int(b))
    assert change_edges(cu.cuGraphRemoveDependencies, build.graph, (b, a)) == 0
    ok(cu.cuGraphInstantiateWithParams(build.graph, params))
    assert int(params.result_out) == 0


def test_edge_data(build: Nodes, kernels: Kernels) -> None:
    function = kernels.function("empty")
    a, b, host_node = build.kernel(function), build.kernel(function), build.host(lambda: None)
    add = raw("cuGraphAddDependencies", 12030, ADDRESS, ADDRESS, ADDRESS, ADDRESS, SIZE)
    get = raw("cuGraphGetEdges", 12030, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ctypes.POINTER(SIZE))
    old_get = raw("cuGraphGetEdges", 10000, ADDRESS, ADDRESS, ADDRESS, ctypes.POINTER(SIZE))

    def one(node: Any) -> ctypes.Array[Any]:
        return (ADDRESS * 1)(int(node))

    programmatic = (ctypes.c_ubyte * 8)(1, 0, 1)
    graph = int(build.graph)
    assert add(graph, one(host_node), one(b), programmatic, 1) == 1
    assert add(graph, one(a), one(host_node), programmatic, 1) == 1
    assert add(graph, one(a), one(b), (ctypes.c_ubyte * 8)(0, 0, 0, 1), 1) == 1
    assert add(graph, one(a), one(b), programmatic, 1) == 0
    sources, targets, data, count = (
        (ADDRESS * 4)(),
        (ADDRESS * 4)(),
        (ctypes.c_ubyte * 32)(),
        SIZE(4),
    )
    assert get(graph, sources, targets, data, ctypes.byref(count)) == 0
    assert (count.value, sources[0], targets[0], bytes(data[:8])) == (
        1,
        int(a),
        int(b),
        bytes([1, 0, 1, 0, 0, 0, 0, 0]),
    )
    assert sources[1] is None
    count.value = 4
    assert old_get(graph, sources, targets, ctypes.byref(count)) == 402
    assert old_get(graph, None, None, ctypes.byref(count)) == 0
    assert count.value == 1
    remove = raw("cuGraphRemoveDependencies", 12030, ADDRESS, ADDRESS, ADDRESS, ADDRESS, SIZE)
    assert remove(graph, one(a), one(b), (ctypes.c_ubyte * 8)(2, 0, 1), 1) == 1, (
        "another edge than this one"
    )
    assert remove(graph, one(a), one(b), None, 1) == 0, "any edge"
    assert remove(graph, one(a), one(b), programmatic, 1) == 1
    for port, kind, answer in ((1, 0, 1), (0, 1, 1), (2, 0, 0), (3, 0, 1), (0, 2, 1)):
        assert add(graph, one(a), one(b), (ctypes.c_ubyte * 8)(port, 0, kind), 1) == answer


def test_a_clone_is_on_its_own(build: Nodes, stream: Any) -> None:
    order = []
    node = build.host(lambda: order.append("old"))
    inner = Nodes()
    leaf = inner.host(lambda: order.append("child"))
    child = ok(cu.cuGraphAddChildGraphNode(build.graph, [node], 1, inner.graph))
    clone = ok(cu.cuGraphClone(build.graph))
    twin = ok(cu.cuGraphNodeFindInClone(node, clone))
    assert int(twin) != int(node)
    assert code(cu.cuGraphNodeFindInClone(leaf, clone)) == 1
    own = ok(cu.cuGraphGetNodes(ok(cu.cuGraphChildGraphNodeGetGraph(child)), 1))[0][0]
    assert code(cu.cuGraphNodeFindInClone(own, clone)) == 1, "not below the first level"
    new = HOST(lambda _: order.append("new"))
    keep.append(new)
    ok(cu.cuGraphHostNodeSetParams(twin, host_params(new)))
    for graph in (build.graph, clone):
        ok(cu.cuGraphLaunch(ok(cu.cuGraphInstantiate(graph, 0)), stream))
    ok(cu.cuStreamSynchronize(stream))
    assert order == ["old", "child", "new", "child"]
    nested = ok(cu.cuGraphChildGraphNodeGetGraph(child))
    assert int(nested) != int(inner.graph)
    assert types(nested) == [HOST_NODE]
    assert code(cu.cuGraphDestroy(nested)) == 1, "it is the node's"
    ok(cu.cuGraphDestroyNode(node))
    assert types(build.graph) == [CHILD]
    assert types(clone) == [HOST_NODE, CHILD]


def test_a_drawing(build: Nodes, tmp_path: Path, kernels: Kernels) -> None:
    arguments = [ctypes.c_float(1), ctypes.c_uint64(0), ctypes.c_uint64(0), ctypes.c_uint32(0)]
    build.kernel(kernels.function("saxpy"), build.empty(), arguments=arguments)
    ok(cu.cuGraphDebugDotPrint(build.graph, str(tmp_path / "graph.dot").encode(), 0))
    text = (tmp_path / "graph.dot").read_text()
    assert "saxpy" in text
    assert text.count("->") == 1
