"""Graphs: built by hand and captured, instantiated, updated, launched."""

from __future__ import annotations

import ctypes
import threading

import pytest
from simdriver import HOST, Gate, code, cu, host, in_thread, keep, ok, raw, run_python, until

from aiostream import simulator

RELAXED = cu.CUstreamCaptureMode(2)
ADDRESS, SIZE, UINT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
KERNEL, COPY, FILL, HOST_NODE, CHILD, EMPTY, WAIT, RECORD, WORDS = 0, 1, 2, 3, 4, 5, 6, 7, 12


class Nodes:
    """Builds a graph node by node."""

    def __init__(self, graph=None) -> None:
        self.graph = ok(cu.cuGraphCreate(0)) if graph is None else graph
        self.context = ok(cu.cuCtxGetCurrent())

    def host(self, function, *before):
        native = HOST(lambda _: function())
        keep.append(native)
        return ok(cu.cuGraphAddHostNode(self.graph, before, len(before), host_params(native)))

    def empty(self, *before):
        return ok(cu.cuGraphAddEmptyNode(self.graph, before, len(before)))

    def fill(self, address, value, count, *before, width=1):
        params = fill_params(address, value, count, width)
        return ok(cu.cuGraphAddMemsetNode(self.graph, before, len(before), params, self.context))

    def copy(self, to, source, count, *before):
        return ok(cu.cuGraphAddMemcpyNode(self.graph, before, len(before), copy_params(to, source, count), self.context))

    def kernel(self, function, *before, arguments=None):
        params = kernel_params(function, arguments)
        return ok(cu.cuGraphAddKernelNode(self.graph, before, len(before), params))

    def instantiate(self, flags=0):
        return ok(cu.cuGraphInstantiate(self.graph, flags))


def host_params(native):
    params = cu.CUDA_HOST_NODE_PARAMS()
    params.fn = cu.CUhostFn(ctypes.cast(native, ADDRESS).value)
    return params


def fill_params(address, value, count, width=1):
    params = cu.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.value = cu.CUdeviceptr(int(address)), value
    params.elementSize, params.width, params.height = width, count, 1
    return params


def copy_params(to, source, count):
    params = cu.CUDA_MEMCPY3D()
    params.srcMemoryType = params.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    params.srcDevice, params.dstDevice = cu.CUdeviceptr(int(source)), cu.CUdeviceptr(int(to))
    params.WidthInBytes, params.Height, params.Depth = count, 1, 1
    return params


def kernel_params(function, arguments=None):
    params = cu.CUDA_KERNEL_NODE_PARAMS()
    params.func = function
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1
    if arguments is not None:
        params.kernelParams = (tuple(a.value for a in arguments), tuple(type(a) for a in arguments))
    return params


def listed(answer):
    found, count = ok(answer)[0], ok(answer)[-1]
    return [int(node) for node in found[:count]]


def before(node):
    return listed(cu.cuGraphNodeGetDependencies(node, 64))


def after(node):
    return listed(cu.cuGraphNodeGetDependentNodes(node, 64))


def types(graph):
    found, count = ok(cu.cuGraphGetNodes(graph, 64))
    return [int(ok(cu.cuGraphNodeGetType(node))) for node in found[:count]]


def edges(graph):
    answer = ok(cu.cuGraphGetEdges(graph, 64))
    return [(int(a), int(b)) for a, b in zip(answer[0][: answer[-1]], answer[1][: answer[-1]], strict=True)]


def change_edges(call, graph, *pairs):
    """cuGraphAddDependencies or cuGraphRemoveDependencies, which got an argument more with CUDA 13."""
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    data = [[cu.CUgraphEdgeData() for _ in pairs]] if cu.CUDA_VERSION >= 13000 else []
    return code(call(graph, sources, targets, *data, len(pairs)))


@pytest.fixture
def build(driver):
    return Nodes()


# --- replay ---


def test_a_captured_host_node_is_replayed_as_often_as_it_is_launched(stream, kernels):
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


def test_nodes_run_after_what_they_depend_on(build, stream):
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


def test_a_launch_keeps_its_place_in_the_stream(build, stream, gate):
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


def test_branches_do_not_wait_for_each_other(build, stream):
    """One branch is held by a word that only the other branch's end lets the program write."""
    gates, passed = [Gate(), Gate()], threading.Event()
    for gate in gates:
        ok(cu.cuGraphAddBatchMemOpNode(build.graph, [], 0, wait_params(build.context, gate.address)))
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


def wait_params(context, address):
    word = cu.CUstreamBatchMemOpParams()
    word.operation = cu.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32
    word.waitValue.operation = word.operation
    word.waitValue.address = cu.CUdeviceptr(address)
    word.waitValue.value = 1
    params = cu.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    params.ctx, params.count, params.paramArray, params.flags = context, 1, [word], 0
    keep.append(params)
    return params


def test_an_executable_runs_one_launch_at_a_time(build, stream, gate):
    running, most, other = [], [], ok(cu.cuStreamCreate(1))
    start = build.host(lambda: running.append(1))
    middle = ok(cu.cuGraphAddBatchMemOpNode(build.graph, [start], 1, wait_params(build.context, gate.address)))
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


def test_an_executable_destroyed_in_flight_finishes(build, stream, gate):
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


def test_the_stream_may_go_with_a_launch_in_flight(build, gate):
    stream, fired = ok(cu.cuStreamCreate(1)), threading.Event()
    build.host(fired.set, build.empty(), build.empty())
    gate.hold(stream)
    ok(cu.cuGraphLaunch(build.instantiate(), stream))
    ok(cu.cuStreamDestroy(stream))
    gate.open()
    assert fired.wait(10)


def test_a_launch_counts_as_one_towards_the_depth_of_a_stream(build, stream, kernels, gate):
    node = build.kernel(kernels.function("empty"))
    for _ in range(9):
        node = build.kernel(kernels.function("empty"), node)
    executable = build.instantiate()
    gate.hold(stream)
    for _ in range(1020):
        ok(cu.cuGraphLaunch(executable, stream))
    done = []
    thread = threading.Thread(target=lambda: done.append(code(cu.cuGraphLaunch(executable, stream))))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "a full stream blocks the launch"
    gate.open()
    thread.join(30)
    assert done == [0]
    ok(cu.cuStreamSynchronize(stream))


def test_a_fault_in_a_graph_drops_its_host_nodes(build, stream, kernels):
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


def test_memory_that_went_is_an_illegal_address(build, stream):
    memory = ok(cu.cuMemAlloc(64))
    build.fill(memory, 1, 64)
    executable = build.instantiate()
    ok(cu.cuMemFree(memory))
    ok(cu.cuGraphLaunch(executable, stream))
    assert code(cu.cuStreamSynchronize(stream)) == 700
    simulator.recover()


def test_on_the_legacy_and_the_per_thread_stream(build):
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


def test_every_kind_of_node_does_its_work(build, stream, kernels):
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


def test_copies_and_fills_of_more_dimensions(build, stream):
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


def test_the_parameters_of_nodes(build, kernels):
    memory = ok(cu.cuMemAlloc(256))
    filled, copied = build.fill(memory, 3, 8, width=2), build.copy(int(memory) + 128, memory, 32)
    arguments = (ctypes.c_uint64(int(memory)), ctypes.c_uint32(9), ctypes.c_uint32(16))
    kernel = build.kernel(kernels.function("fill32"), arguments=arguments)
    hosted = build.host(lambda: None)
    told = ok(cu.cuGraphMemsetNodeGetParams(filled))
    assert (int(told.dst), told.value, told.elementSize, told.width, told.height) == (int(memory), 3, 2, 8, 1)
    told = ok(cu.cuGraphMemcpyNodeGetParams(copied))
    assert (int(told.srcDevice), int(told.dstDevice), told.WidthInBytes) == (int(memory), int(memory) + 128, 32)
    told = ok(cu.cuGraphKernelNodeGetParams(kernel))
    assert int(told.func) == int(kernels.function("fill32"))
    pointers = (ctypes.c_void_p * 3).from_address(int(told.kernelParams))
    assert ctypes.c_uint32.from_address(pointers[1]).value == 9
    other = HOST(lambda _: None)
    keep.append(other)
    ok(cu.cuGraphHostNodeSetParams(hosted, host_params(other)))
    assert int(ok(cu.cuGraphHostNodeGetParams(hosted)).fn) == ctypes.cast(other, ADDRESS).value
    assert code(cu.cuGraphHostNodeGetParams(kernel)) == 1
    assert code(cu.cuGraphKernelNodeSetParams(kernel, kernel_params(kernels.function("fill32")))) == 1, "arguments are missing"
    assert code(cu.cuGraphMemsetNodeSetParams(filled, fill_params(int(memory) + 255, 1, 8))) == 1, "beyond the memory"


def test_nodes_of_any_type_by_one_call(build, stream, gate):
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


def test_edges(build):
    a, b, c = build.empty(), build.empty(), build.empty()
    assert change_edges(cu.cuGraphAddDependencies, build.graph, (a, b), (b, c)) == 0
    assert edges(build.graph) == [(int(a), int(b)), (int(b), int(c))]
    assert (before(b), after(b)) == ([int(a)], [int(c)])
    assert change_edges(cu.cuGraphAddDependencies, build.graph, (a, c), (a, b)) == 1, "there is one already"
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


def test_a_cycle_shows_at_instantiation(build):
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


def test_edge_data(build, kernels):
    function = kernels.function("empty")
    a, b, host_node = build.kernel(function), build.kernel(function), build.host(lambda: None)
    add = raw("cuGraphAddDependencies", 12030, ADDRESS, ADDRESS, ADDRESS, ADDRESS, SIZE)
    get = raw("cuGraphGetEdges", 12030, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ctypes.POINTER(SIZE))
    old_get = raw("cuGraphGetEdges", 10000, ADDRESS, ADDRESS, ADDRESS, ctypes.POINTER(SIZE))
    one = lambda node: (ADDRESS * 1)(int(node))  # noqa: E731
    programmatic = (ctypes.c_ubyte * 8)(1, 0, 1)
    graph = int(build.graph)
    assert add(graph, one(host_node), one(b), programmatic, 1) == 1
    assert add(graph, one(a), one(host_node), programmatic, 1) == 1
    assert add(graph, one(a), one(b), (ctypes.c_ubyte * 8)(0, 0, 0, 1), 1) == 1
    assert add(graph, one(a), one(b), programmatic, 1) == 0
    sources, targets, data, count = (ADDRESS * 4)(), (ADDRESS * 4)(), (ctypes.c_ubyte * 32)(), SIZE(4)
    assert get(graph, sources, targets, data, ctypes.byref(count)) == 0
    assert (count.value, sources[0], targets[0], bytes(data[:8])) == (1, int(a), int(b), bytes([1, 0, 1, 0, 0, 0, 0, 0]))
    assert sources[1] is None
    count.value = 4
    assert old_get(graph, sources, targets, ctypes.byref(count)) == 402
    assert old_get(graph, None, None, ctypes.byref(count)) == 0
    assert count.value == 1
    remove = raw("cuGraphRemoveDependencies", 12030, ADDRESS, ADDRESS, ADDRESS, ADDRESS, SIZE)
    assert remove(graph, one(a), one(b), (ctypes.c_ubyte * 8)(2, 0, 1), 1) == 1, "another edge than this one"
    assert remove(graph, one(a), one(b), None, 1) == 0, "any edge"
    assert remove(graph, one(a), one(b), programmatic, 1) == 1
    for port, kind, answer in ((1, 0, 1), (0, 1, 1), (2, 0, 0), (3, 0, 1), (0, 2, 1)):
        assert add(graph, one(a), one(b), (ctypes.c_ubyte * 8)(port, 0, kind), 1) == answer


def test_a_clone_is_on_its_own(build, stream):
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


def test_a_drawing(build, tmp_path, kernels):
    arguments = [ctypes.c_float(1), ctypes.c_uint64(0), ctypes.c_uint64(0), ctypes.c_uint32(0)]
    build.kernel(kernels.function("saxpy"), build.empty(), arguments=arguments)
    ok(cu.cuGraphDebugDotPrint(build.graph, str(tmp_path / "graph.dot").encode(), 0))
    text = (tmp_path / "graph.dot").read_text()
    assert "saxpy" in text
    assert text.count("->") == 1


# --- executables ---


@pytest.mark.parametrize(("flags", "answer"), [(0, 0), (1, 0), (8, 0), (9, 0), (2, 1), (4, 0), (5, 1), (16, 1)])
def test_instantiation_flags(build, flags, answer):
    status, executable = cu.cuGraphInstantiate(build.graph, flags)
    assert int(status) == answer
    if answer == 0:
        assert int(ok(cu.cuGraphExecGetFlags(executable))) == flags & ~8, "node priorities are not told"


def test_what_no_kernel_could_launch_is_refused(build, kernels):
    build.kernel(kernels.function("empty"))
    ok(cu.cuGraphInstantiate(build.graph, 4))
    node = build.host(lambda: None)
    params = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    params.flags = 4
    assert code(cu.cuGraphInstantiateWithParams(build.graph, params)) == 801
    assert int(params.result_out) == 3
    assert int(params.hErrNode_out) == int(node)


def test_instantiation_with_an_upload(build, stream):
    params = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    params.flags, params.hUploadStream = 2 | 1, stream
    executable = ok(cu.cuGraphInstantiateWithParams(build.graph, params))
    assert int(ok(cu.cuGraphExecGetFlags(executable))) == 1
    ok(cu.cuGraphUpload(executable, stream))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))


class UpdateInfo(ctypes.Structure):
    _fields_ = [("result", ctypes.c_int), ("node", ADDRESS), ("from_node", ADDRESS)]


def updated(executable, graph):
    """By address: the bindings keep back what a refused update says of itself."""
    info = UpdateInfo()
    answer = raw("cuGraphExecUpdate", 12000, ADDRESS, ADDRESS, ADDRESS)(int(executable), int(graph), ctypes.addressof(info))
    return answer, info.result, info.node or 0, info.from_node or 0


def test_an_update_takes_new_parameters(build, stream, gate):
    order, other = [], Nodes()
    build.host(lambda: order.append("old"), build.empty())
    other.host(lambda: order.append("new"), other.empty())
    executable = build.instantiate()
    gate.hold(stream)
    ok(cu.cuGraphLaunch(executable, stream))
    assert updated(executable, other.graph) == (0, 0, 0, 0)
    ok(cu.cuGraphLaunch(executable, stream))
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert order == ["old", "new"], "what is in flight keeps its parameters"


def test_updates_that_are_refused(build, stream, kernels):
    order, memory, host_memory = [], ok(cu.cuMemAlloc(64)), ok(cu.cuMemHostAlloc(64, 0))
    build.host(lambda: order.append(1), build.fill(memory, 1, 8))
    executable = build.instantiate()
    more, fewer, kind, place, shape = Nodes(), Nodes(), Nodes(), Nodes(), Nodes()
    more.host(lambda: None, more.fill(memory, 1, 8), more.empty())
    fewer.empty()
    kind.empty(kind.fill(memory, 1, 8))
    place.host(lambda: None, place.fill(host_memory, 1, 8))
    shape.fill(memory, 1, 8)
    shape.host(lambda: None)
    assert updated(executable, more.graph) == (910, 2, 0, 0)
    assert updated(executable, fewer.graph) == (910, 2, 0, 0)
    assert updated(executable, kind.graph)[:2] == (910, 3)
    assert updated(executable, kind.graph)[2] == listed(cu.cuGraphGetNodes(kind.graph, 8))[1]
    assert updated(executable, place.graph)[:2] == (910, 5)
    swapped = Nodes()
    swapped.fill(memory, 1, 8, swapped.host(lambda: None))
    assert updated(executable, swapped.graph)[:2] == (910, 3)
    assert updated(executable, swapped.graph)[2] == listed(cu.cuGraphGetNodes(swapped.graph, 8))[1], "the first from the end"
    assert updated(executable, shape.graph)[:2] == (910, 2)
    assert updated(executable, shape.graph)[2] != 0
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert order == [1], "all or nothing"


def test_an_update_reaches_into_child_graphs(build, stream):
    order = []
    graphs = []
    for word in ("old", "new"):
        outer, inner = Nodes(), Nodes()
        inner.host(lambda word=word: order.append(word))
        ok(cu.cuGraphAddChildGraphNode(outer.graph, [], 0, inner.graph))
        graphs.append(outer)
    executable = graphs[0].instantiate()
    assert updated(executable, graphs[1].graph)[0] == 0
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    child = cu.CUgraphNode(listed(cu.cuGraphGetNodes(graphs[0].graph, 1))[0])
    third = Nodes()
    third.host(lambda: order.append("third"))
    ok(cu.cuGraphExecChildGraphNodeSetParams(executable, child, third.graph))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    third.empty()
    assert code(cu.cuGraphExecChildGraphNodeSetParams(executable, child, third.graph)) == 1
    assert order == ["new", "third"]


def test_single_nodes_of_an_executable(build, stream, kernels):
    memory = ok(cu.cuMemHostAlloc(256, 0))
    words, fired = (ctypes.c_uint32 * 64).from_address(int(memory)), []
    words[32] = 0
    arguments = [ctypes.c_uint64(int(memory)), ctypes.c_uint32(9), ctypes.c_uint32(4)]
    kernel = build.kernel(kernels.function("fill32"), arguments=arguments)
    filled = build.fill(int(memory) + 64, 1, 4, width=4)
    copied = build.copy(int(memory) + 128, memory, 16, kernel)
    hosted = build.host(lambda: fired.append("old"))
    executable = build.instantiate()
    arguments[1] = ctypes.c_uint32(11)
    ok(cu.cuGraphExecKernelNodeSetParams(executable, kernel, kernel_params(kernels.function("fill32"), arguments)))
    ok(cu.cuGraphExecMemsetNodeSetParams(executable, filled, fill_params(int(memory) + 64, 2, 4, 4), build.context))
    ok(cu.cuGraphExecMemcpyNodeSetParams(executable, copied, copy_params(int(memory) + 192, memory, 16), build.context))
    new = HOST(lambda _: fired.append("new"))
    keep.append(new)
    ok(cu.cuGraphExecHostNodeSetParams(executable, hosted, host_params(new)))
    assert code(cu.cuGraphExecHostNodeSetParams(executable, kernel, host_params(new))) == 1
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert (words[0], words[16], words[32], words[48], fired) == (11, 2, 0, 11, ["new"])
    ok(cu.cuGraphNodeSetEnabled(executable, filled, 0))
    assert int(ok(cu.cuGraphNodeGetEnabled(executable, filled))) == 0
    assert code(cu.cuGraphNodeSetEnabled(executable, hosted, 0)) == 1
    words[16] = 0
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert words[16] == 0
    ok(cu.cuGraphNodeSetEnabled(executable, filled, 1))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert words[16] == 2
    told = ok(cu.cuGraphKernelNodeGetParams(kernel))
    pointers = (ctypes.c_void_p * 3).from_address(int(told.kernelParams))
    assert ctypes.c_uint32.from_address(pointers[1]).value == 9, "the graph's own node is as it was"


def test_a_kernel_of_another_context_is_no_update(build, kernels):
    build.kernel(kernels.function("empty"))
    executable = build.instantiate()
    ok(cu.cuCtxPushCurrent(ok(cu.cuDevicePrimaryCtxRetain(1))))
    elsewhere = type(kernels)()
    other = Nodes()
    other.kernel(elsewhere.function("empty"))
    assert updated(executable, other.graph)[:2] == (910, 7)
    ok(cu.cuCtxPopCurrent())
    ok(cu.cuDevicePrimaryCtxRelease(1))


def test_nodes_of_two_devices(build, stream, kernels):
    """A graph's work runs where its nodes say; its launch waits for all of it."""
    fired = []
    context = ok(cu.cuDevicePrimaryCtxRetain(1))
    ok(cu.cuCtxPushCurrent(context))
    there = type(kernels)()
    far = build.kernel(there.function("spin"), arguments=[ctypes.c_uint64(5_000_000)])
    ok(cu.cuCtxPopCurrent())
    near = build.kernel(kernels.function("empty"))
    build.host(lambda: fired.append(1), far, near)
    executable = build.instantiate()
    for _ in range(3):
        ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert fired == [1, 1, 1]
    ok(cu.cuDevicePrimaryCtxRelease(1))


def test_a_wide_graph_of_fences(build, stream):
    """Many forks and joins in a row: the hidden streams are used again and go away."""
    count, node = [], build.empty()
    for _ in range(30):
        sides = [build.host(lambda: count.append(1), node) for _ in range(4)]
        node = build.empty(*sides)
    executable = build.instantiate()
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert len(count) == 120
    until(lambda: simulator.pending_work() == 0)


def test_launches_of_many_threads(build):
    """One executable, eight threads, streams of their own: each launch runs whole, and none beside another."""
    running, wrong, total = [], [], []

    def enter() -> None:
        if running:
            wrong.append(1)
        running.append(1)

    build.host(lambda: (running.pop(), total.append(1)), build.empty(build.host(enter)))
    executable, context = build.instantiate(), ok(cu.cuCtxGetCurrent())

    def launch() -> bool:
        ok(cu.cuCtxSetCurrent(context))
        mine = ok(cu.cuStreamCreate(1))
        for _ in range(50):
            ok(cu.cuGraphLaunch(executable, mine))
        ok(cu.cuStreamSynchronize(mine))
        ok(cu.cuStreamDestroy(mine))
        return True

    threads = [threading.Thread(target=launch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(total), wrong) == (400, [])


def test_host_nodes_may_not_call_cuda(build, stream):
    answers = []
    build.host(lambda: answers.append((code(cu.cuGraphCreate(0)), code(cu.cuGraphLaunch(executable, stream)))))
    executable = build.instantiate()
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert answers == [(800, 800)]


def test_unknown_graphs_nodes_and_executables_are_refused(stream):
    nothing = 0xDEAD0000
    assert code(cu.cuGraphDestroy(cu.CUgraph(nothing))) == 1
    assert code(cu.cuGraphClone(cu.CUgraph(nothing))) == 1
    assert code(cu.cuGraphInstantiate(cu.CUgraph(nothing), 0)) == 1
    assert code(cu.cuGraphExecDestroy(cu.CUgraphExec(nothing))) == 1
    assert code(cu.cuGraphLaunch(cu.CUgraphExec(nothing), stream)) == 1
    assert code(cu.cuGraphNodeGetType(cu.CUgraphNode(nothing))) == 400
    assert in_thread(lambda: code(cu.cuGraphDestroyNode(cu.CUgraphNode(nothing)))) == 400


def test_identities_came_with_cuda_13_1():
    program = """
        from aiostream import simulator
        simulator.install(driver_version={version})
        import ctypes
        from simdriver import cu, ok, raw
        ok(cu.cuInit(0))
        ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        found = cu.cuGetProcAddress(b"cuGraphGetId", {version}, 1)
        print(int(found[0]))
        if int(found[0]) == 0:
            ask = raw("cuGraphGetId", 13010, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint))
            first, second, id = ok(cu.cuGraphCreate(0)), ok(cu.cuGraphCreate(0)), (ctypes.c_uint * 2)()
            assert ask(int(first), ctypes.cast(id, ctypes.POINTER(ctypes.c_uint))) == 0
            where = ctypes.cast(ctypes.addressof(id) + 4, ctypes.POINTER(ctypes.c_uint))
            assert ask(int(second), where) == 0 and id[0] != id[1]
            node, local = ok(cu.cuGraphAddEmptyNode(first, [], 0)), ctypes.c_uint(9)
            tell = raw("cuGraphNodeGetLocalId", 13010, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint))
            assert tell(int(node), ctypes.byref(local)) == 0 and local.value == 0
            graph = ctypes.c_void_p()
            contains = raw("cuGraphNodeGetContainingGraph", 13010, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
            assert contains(int(node), ctypes.byref(graph)) == 0 and graph.value == int(first)
    """
    for version, answer in ((13000, "500"), (13010, "0")):
        ran = run_python(program.format(version=version))
        assert ran.stdout.strip() == answer, ran.stderr
