"""Executable graphs: instantiated, updated, and launched by many threads."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

import nogpu as simulator
from simdriver import HOST, Gate, Kernels, code, cu, in_thread, keep, ok, raw, run_python, until
from simgraphs import ADDRESS, Nodes, copy_params, fill_params, host_params, kernel_params, listed


@pytest.mark.parametrize(
    ("flags", "answer"), [(0, 0), (1, 0), (8, 0), (9, 0), (2, 1), (4, 1), (5, 1), (16, 1)]
)
def test_instantiation_flags(build: Nodes, flags: Any, answer: Any) -> None:
    """Of an empty graph, which no kernel may launch (4)."""
    status, executable = cu.cuGraphInstantiate(build.graph, flags)
    assert int(status) == answer
    if answer == 0:
        assert int(ok(cu.cuGraphExecGetFlags(executable))) == flags & ~8, (
            "node priorities are not reported"
        )


def test_what_no_kernel_could_launch_is_refused(build: Nodes, kernels: Kernels) -> None:
    build.kernel(kernels.function("empty"))
    ok(cu.cuGraphInstantiate(build.graph, 4))
    node = build.host(lambda: None)
    params = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    params.flags = 4
    assert code(cu.cuGraphInstantiateWithParams(build.graph, params)) == 801
    assert int(params.result_out) == 3
    assert int(params.hErrNode_out) == int(node)


def test_instantiation_with_an_upload(build: Nodes, stream: Any) -> None:
    params = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    params.flags, params.hUploadStream = 2 | 1, stream
    executable = ok(cu.cuGraphInstantiateWithParams(build.graph, params))
    assert int(ok(cu.cuGraphExecGetFlags(executable))) == 1
    ok(cu.cuGraphUpload(executable, stream))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))


class UpdateInfo(ctypes.Structure):
    _fields_ = [("result", ctypes.c_int), ("node", ADDRESS), ("from_node", ADDRESS)]


def updated(executable: Any, graph: Any) -> Any:
    """By address: the bindings keep back what a refused update says of itself."""
    info = UpdateInfo()
    answer = raw("cuGraphExecUpdate", 12000, ADDRESS, ADDRESS, ADDRESS)(
        int(executable), int(graph), ctypes.addressof(info)
    )
    return answer, info.result, info.node or 0, info.from_node or 0


def test_an_update_takes_new_parameters(build: Nodes, stream: Any, gate: Gate) -> None:
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


def test_updates_that_are_refused(build: Nodes, stream: Any, kernels: Kernels) -> None:
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
    assert (
        updated(executable, swapped.graph)[2] == listed(cu.cuGraphGetNodes(swapped.graph, 8))[1]
    ), "the first from the end"
    assert updated(executable, shape.graph)[:2] == (910, 2)
    assert updated(executable, shape.graph)[2] != 0
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert order == [1], "all or nothing"


def test_an_update_reaches_into_child_graphs(build: Nodes, stream: Any) -> None:
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


def test_single_nodes_of_an_executable(build: Nodes, stream: Any, kernels: Kernels) -> None:
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
    ok(
        cu.cuGraphExecKernelNodeSetParams(
            executable, kernel, kernel_params(kernels.function("fill32"), arguments)
        )
    )
    ok(
        cu.cuGraphExecMemsetNodeSetParams(
            executable, filled, fill_params(int(memory) + 64, 2, 4, 4), build.context
        )
    )
    ok(
        cu.cuGraphExecMemcpyNodeSetParams(
            executable, copied, copy_params(int(memory) + 192, memory, 16), build.context
        )
    )
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
    seen = ok(cu.cuGraphKernelNodeGetParams(kernel))
    pointers = (ctypes.c_void_p * 3).from_address(int(seen.kernelParams))
    assert ctypes.c_uint32.from_address(pointers[1] or 0).value == 9, (
        "the graph's own node is as it was"
    )


def test_a_kernel_of_another_context_is_no_update(build: Nodes, kernels: Kernels) -> None:
    build.kernel(kernels.function("empty"))
    executable = build.instantiate()
    ok(cu.cuCtxPushCurrent(ok(cu.cuDevicePrimaryCtxRetain(1))))
    elsewhere = type(kernels)()
    other = Nodes()
    other.kernel(elsewhere.function("empty"))
    assert updated(executable, other.graph)[:2] == (910, 7)
    ok(cu.cuCtxPopCurrent())
    ok(cu.cuDevicePrimaryCtxRelease(1))


def test_nodes_of_two_devices(build: Nodes, stream: Any, kernels: Kernels) -> None:
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


def test_a_wide_graph_of_fences(build: Nodes, stream: Any) -> None:
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


def test_launches_of_many_threads(build: Nodes) -> None:
    """One executable, eight threads, streams of their own: each launch runs whole, and no two at
    once.
    """
    running: list[int] = []
    wrong: list[int] = []
    total: list[int] = []

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


def test_host_nodes_may_not_call_cuda(build: Nodes, stream: Any) -> None:
    answers = []
    executable: Any = None
    build.host(
        lambda: answers.append(
            (code(cu.cuGraphCreate(0)), code(cu.cuGraphLaunch(executable, stream)))
        )
    )
    executable = build.instantiate()
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert answers == [(800, 800)]


def test_unknown_graphs_nodes_and_executables_are_refused(stream: Any) -> None:
    nothing = 0xDEAD0000
    assert code(cu.cuGraphDestroy(cu.CUgraph(nothing))) == 1
    assert code(cu.cuGraphClone(cu.CUgraph(nothing))) == 1
    assert code(cu.cuGraphInstantiate(cu.CUgraph(nothing), 0)) == 1
    assert code(cu.cuGraphExecDestroy(cu.CUgraphExec(nothing))) == 1
    assert code(cu.cuGraphLaunch(cu.CUgraphExec(nothing), stream)) == 1
    assert code(cu.cuGraphNodeGetType(cu.CUgraphNode(nothing))) == 400
    assert in_thread(lambda: code(cu.cuGraphDestroyNode(cu.CUgraphNode(nothing)))) == 400


def test_identities_came_with_cuda_13_1() -> None:
    program = """
        import nogpu as simulator
        simulator.install(driver_version={version})
        import ctypes
        from simdriver import cu, ok, raw
        ok(cu.cuInit(0))
        ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        found = cu.cuGetProcAddress(b"cuGraphGetId", {version}, 1)
        print(int(found[0]))
        if int(found[0]) == 0:
            ask = raw("cuGraphGetId", 13010, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint))
            first, second = ok(cu.cuGraphCreate(0)), ok(cu.cuGraphCreate(0))
            id = (ctypes.c_uint * 2)()
            assert ask(int(first), ctypes.cast(id, ctypes.POINTER(ctypes.c_uint))) == 0
            where = ctypes.cast(ctypes.addressof(id) + 4, ctypes.POINTER(ctypes.c_uint))
            assert ask(int(second), where) == 0 and id[0] != id[1]
            node, local = ok(cu.cuGraphAddEmptyNode(first, [], 0)), ctypes.c_uint(9)
            local_id = raw("cuGraphNodeGetLocalId", 13010, ctypes.c_void_p,
                ctypes.POINTER(ctypes.c_uint))
            assert local_id(int(node), ctypes.byref(local)) == 0 and local.value == 0
            graph = ctypes.c_void_p()
            contains = raw("cuGraphNodeGetContainingGraph", 13010, ctypes.c_void_p,
                ctypes.POINTER(ctypes.c_void_p))
            assert contains(int(node), ctypes.byref(graph)) == 0 and graph.value == int(first)
    """
    for version, answer in ((13000, "500"), (13010, "0")):
        ran = run_python(program.format(version=version))
        assert ran.stdout.strip() == answer, ran.stderr
