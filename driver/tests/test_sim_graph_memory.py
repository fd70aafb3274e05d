"""Nodes that allocate and free memory, captured and added; what a launch asks of them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from simdriver import code, cu, ok

MIB = 1 << 20


def used() -> int:
    """What graphs have: what they had and gave back counts until it is trimmed."""
    ok(cu.cuDeviceGraphMemTrim(0))
    return int(
        ok(
            cu.cuDeviceGetGraphMemAttribute(
                0, cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
            )
        )
    )


def unused() -> int:
    return int(ok(cu.cuMemGetInfo())[0])


@pytest.fixture
def captured(stream: Any) -> Any:
    """A graph that allocates and fills, and what it allocates; it frees it if asked for."""

    def capture(*, frees: bool) -> Any:
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
        memory = ok(cu.cuMemAllocAsync(MIB, stream))
        ok(cu.cuMemsetD8Async(memory, 7, MIB, stream))
        if frees:
            ok(cu.cuMemFreeAsync(memory, stream))
        return ok(cu.cuStreamEndCapture(stream)), memory

    return capture


def types(graph: Any) -> list[int]:
    nodes, count = ok(cu.cuGraphGetNodes(graph, 8))
    return [int(ok(cu.cuGraphNodeGetType(node))) for node in nodes[:count]]


def test_what_a_graph_frees_itself(captured: Any, stream: Any) -> None:
    before = unused()
    graph, memory = captured(frees=True)
    assert types(graph) == [10, 2, 11]
    assert used() == MIB
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    for _ in range(3):
        ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert code(cu.cuMemFree(memory)) == code(cu.cuMemFreeAsync(memory, stream)) == 1, "it is free"
    ok(cu.cuGraphDestroy(graph))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphExecDestroy(executable))  # while its launch is in flight
    ok(cu.cuStreamSynchronize(stream))
    assert (used(), unused()) == (0, before)


@pytest.mark.parametrize("at_once", [True, False])
def test_what_the_program_frees(captured: Any, stream: Any, at_once: Any) -> None:
    before = unused()
    graph, memory = captured(frees=False)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, stream))
    assert code(cu.cuGraphLaunch(executable, stream)) == 1, "it was not freed yet"
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.c_uint8.from_address(int(memory)).value == 7
    ok(cu.cuMemFree(memory) if at_once else cu.cuMemFreeAsync(memory, stream))
    assert code(cu.cuMemFree(memory)) == 1, "twice"
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphDestroy(graph))
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.c_uint8.from_address(int(memory)).value == 7, "it outlives its graph"
    ok(cu.cuMemFree(memory))
    assert (used(), unused()) == (0, before)


def test_freed_by_the_next_launch(captured: Any, stream: Any) -> None:
    graph, memory = captured(frees=False)
    executable = ok(cu.cuGraphInstantiate(graph, 1))  # AUTO_FREE_ON_LAUNCH
    for _ in range(3):
        ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemFree(memory))
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphDestroy(graph))
    assert used() == 0


def test_freed_by_another_graph(captured: Any, stream: Any) -> None:
    graph, memory = captured(frees=False)
    freeing = ok(cu.cuGraphCreate(0))
    node = ok(cu.cuGraphAddMemFreeNode(freeing, [], 0, memory))
    assert int(ok(cu.cuGraphMemFreeNodeGetParams(node))) == int(memory)
    first, second = ok(cu.cuGraphInstantiate(graph, 0)), ok(cu.cuGraphInstantiate(freeing, 0))
    assert code(cu.cuGraphLaunch(second, stream)) == 1, "nothing to free"
    for _ in range(2):
        ok(cu.cuGraphLaunch(first, stream))
        ok(cu.cuGraphLaunch(second, stream))
    ok(cu.cuStreamSynchronize(stream))
    for each in (first, second):
        ok(cu.cuGraphExecDestroy(each))
    for each in (graph, freeing):
        ok(cu.cuGraphDestroy(each))
    assert used() == 0


def test_nodes_that_are_added(stream: Any) -> None:
    graph, params = ok(cu.cuGraphCreate(0)), cu.CUDA_MEM_ALLOC_NODE_PARAMS()
    params.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    params.poolProps.location.type, params.poolProps.location.id = (
        cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE,
        0,
    )
    assert code(cu.cuGraphAddMemAllocNode(graph, [], 0, params)) == 1, "of no bytes"
    params.bytesize = MIB
    allocation = ok(cu.cuGraphAddMemAllocNode(graph, [], 0, params))
    assert int(params.dptr) % 512 == 0 != int(params.dptr)
    reported = ok(cu.cuGraphMemAllocNodeGetParams(allocation))
    assert (reported.bytesize, int(reported.dptr), reported.poolProps.location.id) == (
        MIB,
        int(params.dptr),
        0,
    )
    ok(cu.cuGraphAddMemFreeNode(graph, [allocation], 1, params.dptr))
    assert code(cu.cuGraphAddMemFreeNode(graph, [allocation], 1, params.dptr)) == 1, "twice"
    assert code(cu.cuGraphAddMemFreeNode(graph, [], 0, ok(cu.cuMemAllocAsync(64, stream)))) == 1, (
        "of no graph"
    )
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphDestroy(graph))
    assert used() == 0


def test_what_cannot_be_done_with_a_graph_that_allocates(captured: Any) -> None:
    graph, _ = captured(frees=True)
    assert code(cu.cuGraphClone(graph)) == 801
    nodes, _ = ok(cu.cuGraphGetNodes(graph, 3))
    assert code(cu.cuGraphDestroyNode(nodes[2])) == 801
    parent = ok(cu.cuGraphCreate(0))
    assert code(cu.cuGraphAddChildGraphNode(parent, [], 0, graph)) == 801
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    assert code(cu.cuGraphInstantiate(graph, 0)) == 801, "one executable at a time"
    ok(cu.cuGraphExecDestroy(executable))
    ok(cu.cuGraphExecDestroy(ok(cu.cuGraphInstantiate(graph, 0))))
    ok(cu.cuGraphDestroy(graph))
    assert used() == 0


def test_a_capture_frees_no_other_memory(stream: Any) -> None:
    memory = ok(cu.cuMemAllocAsync(64, stream))
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
    assert code(cu.cuMemFreeAsync(memory, stream)) == 1
    ok(cu.cuStreamEndCapture(stream))
    ok(cu.cuMemFree(memory))


def test_the_high_water_mark() -> None:
    high = cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH
    assert int(ok(cu.cuDeviceGetGraphMemAttribute(0, high))) >= 0
    ok(cu.cuDeviceSetGraphMemAttribute(0, high, cu.cuuint64_t(0)))
    assert int(ok(cu.cuDeviceGetGraphMemAttribute(0, high))) == used()
    assert code(cu.cuDeviceSetGraphMemAttribute(0, high, cu.cuuint64_t(1))) == 1
    assert code(cu.cuDeviceGetGraphMemAttribute(9, high)) == code(cu.cuDeviceGraphMemTrim(9)) == 101


def test_memory_is_kept_until_it_is_trimmed(captured: Any) -> None:
    attribute = cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
    before = used()
    ok(cu.cuGraphDestroy(captured(frees=True)[0]))
    assert int(ok(cu.cuDeviceGetGraphMemAttribute(0, attribute))) == before + MIB
    assert used() == before
