"""Launches with attributes: which are taken and kept, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

import nogpu as simulator
from simdriver import code, cu, ok

ID = cu.CUlaunchAttributeID
CLUSTER = ID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
PRIORITY = ID.CU_LAUNCH_ATTRIBUTE_PRIORITY
RELAXED = cu.CUstreamCaptureMode(2)
INVALID_CLUSTER_SIZE, NOT_SUPPORTED = 912, 801
COOPERATIVE, TOO_LARGE = ID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 720


def attribute(which: Any, **fields: Any) -> Any:
    made = cu.CUlaunchAttribute()
    made.id = which
    for name, value in fields.items():
        if name == "cluster":
            dimensions = made.value.clusterDim
            dimensions.x, dimensions.y, dimensions.z = value
        else:
            setattr(made.value, name, value)
    return made


def launch(
    kernels: Any, stream: Any, *attributes: Any, grid: tuple[int, int, int] = (8, 1, 1)
) -> int:
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX = config.blockDimY = config.blockDimZ = 1
    config.hStream = stream
    config.attrs, config.numAttrs = list(attributes), len(attributes)
    return code(cu.cuLaunchKernelEx(config, kernels.function("empty"), ((), ()), 0))


@pytest.mark.parametrize(
    ("cluster", "grid", "expected"),
    [
        ((2, 1, 1), (8, 1, 1), 0),
        ((2, 2, 2), (8, 2, 4), 0),
        ((0, 0, 0), (8, 1, 1), 0),  # none is asked for
        ((3, 1, 1), (8, 1, 1), INVALID_CLUSTER_SIZE),  # the grid is no multiple of it
        ((1, 2, 1), (8, 1, 1), INVALID_CLUSTER_SIZE),
        ((16, 1, 1), (16, 1, 1), INVALID_CLUSTER_SIZE),  # more than is portable
        ((2, 0, 1), (8, 1, 1), INVALID_CLUSTER_SIZE),
    ],
)
def test_clusters_are_checked(
    kernels: Any, stream: Any, cluster: Any, grid: Any, expected: Any
) -> None:
    assert launch(kernels, stream, attribute(CLUSTER, cluster=cluster), grid=grid) == expected
    ok(cu.cuStreamSynchronize(stream))


def test_larger_clusters_need_the_functions_consent(kernels: Any, stream: Any) -> None:
    function = kernels.function("empty")
    allowed = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    ok(cu.cuFuncSetAttribute(function, allowed, 1))
    sixteen, more = attribute(CLUSTER, cluster=(16, 1, 1)), attribute(CLUSTER, cluster=(32, 1, 1))
    assert launch(kernels, stream, sixteen, grid=(32, 1, 1)) == 0
    assert launch(kernels, stream, more, grid=(32, 1, 1)) == INVALID_CLUSTER_SIZE
    ok(cu.cuFuncSetAttribute(function, allowed, 0))
    assert launch(kernels, stream, sixteen, grid=(32, 1, 1)) == INVALID_CLUSTER_SIZE


def occupied(name: str, function: Any, size: int, threads: int) -> Any:
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 16, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.attrs, config.numAttrs = [attribute(CLUSTER, cluster=(size, 1, 1))], 1
    return getattr(cu, name)(function, config)


@pytest.mark.parametrize(
    ("threads", "clusters"),
    [
        (32, [1056, 528, 248, 124]),
        (128, [1056, 528, 248, 124]),
        (256, [1056, 528, 248, 124]),
        (512, [528, 264, 124, 62]),
        (1024, [264, 132, 62, 30]),
    ],
)
def test_how_many_clusters_run_at_a_time(kernels: Any, threads: int, clusters: list[int]) -> None:
    """As an H200 answers, for clusters of 1, 2, 4 and 8 blocks."""
    function = kernels.function("empty")
    answers = (
        occupied("cuOccupancyMaxActiveClusters", function, size, threads) for size in (1, 2, 4, 8)
    )
    assert [ok(answer) for answer in answers] == clusters


def test_occupancy_of_clusters(kernels: Any) -> None:
    function = kernels.function("empty")
    assert int(
        ok(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0))
    )
    assert ok(occupied("cuOccupancyMaxActiveClusters", function, 2, 1025)) == 0
    assert code(occupied("cuOccupancyMaxActiveClusters", function, 3, 32)) == INVALID_CLUSTER_SIZE
    assert ok(occupied("cuOccupancyMaxPotentialClusterSize", function, 1, 32)) == 8
    allowed = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    ok(cu.cuFuncSetAttribute(function, allowed, 1))
    assert ok(occupied("cuOccupancyMaxPotentialClusterSize", function, 1, 32)) == 16
    assert code(occupied("cuOccupancyMaxPotentialClusterSize", 0, 1, 32)) == 400


def test_hints_are_taken(kernels: Any, stream: Any) -> None:
    overlap = ID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert (
        launch(kernels, stream, attribute(overlap, programmaticStreamSerializationAllowed=1)) == 0
    )
    assert launch(kernels, stream, attribute(PRIORITY, priority=-1)) == 0
    assert launch(kernels, stream, attribute(ID.CU_LAUNCH_ATTRIBUTE_IGNORE)) == 0
    assert (
        launch(
            kernels, stream, attribute(PRIORITY, priority=-1), attribute(CLUSTER, cluster=(4, 1, 1))
        )
        == 0
    )


@pytest.mark.parametrize(
    ("which", "fields"),
    [
        (ID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, {}),
        (ID.CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, {}),
        (ID.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, {}),
    ],
)
def test_what_would_have_to_act_is_refused(
    kernels: Any, stream: Any, which: Any, fields: Any
) -> None:
    """Nothing is enqueued then."""
    assert launch(kernels, stream, attribute(which, **fields)) == NOT_SUPPORTED
    assert simulator.pending_work() == 0


def test_cooperative_launches(kernels: Any, stream: Any, gate: Any) -> None:
    """All blocks must run at a time: 32 of one thread on each of 132 multiprocessors."""
    supported = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
    assert ok(cu.cuDeviceGetAttribute(supported, 0)) == 1
    together, alone = attribute(COOPERATIVE, cooperative=1), attribute(COOPERATIVE, cooperative=0)
    gate.hold(stream)
    pending = simulator.pending_work()
    assert launch(kernels, stream, together, grid=(32 * 132 + 1, 1, 1)) == TOO_LARGE
    assert simulator.pending_work() == pending, "nothing is enqueued then"
    assert launch(kernels, stream, together, grid=(32 * 132, 1, 1)) == 0
    assert launch(kernels, stream, alone, grid=(32 * 132 + 1, 1, 1)) == 0
    gate.open()
    ok(cu.cuStreamSynchronize(stream))


@pytest.mark.parametrize(("blocks", "answer"), [(1, 0), (32 * 132, 0), (32 * 132 + 1, TOO_LARGE)])
def test_the_function_for_cooperative_launches(
    kernels: Any, stream: Any, blocks: Any, answer: Any
) -> None:
    function = kernels.function("empty")
    status = cu.cuLaunchCooperativeKernel(function, blocks, 1, 1, 1, 1, 1, 0, stream, 0)
    assert code(status) == answer
    ok(cu.cuStreamSynchronize(stream))


def test_an_attribute_of_streams_is_none_of_launches(kernels: Any, stream: Any) -> None:
    policy = attribute(ID.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
    assert launch(kernels, stream, policy) == 1


def test_captured_launch_keeps_its_attributes(kernels: Any, stream: Any) -> None:
    ok(cu.cuStreamBeginCapture(stream, RELAXED))
    cluster, priority = attribute(CLUSTER, cluster=(2, 2, 1)), attribute(PRIORITY, priority=-2)
    assert launch(kernels, stream, cluster, priority, grid=(8, 2, 1)) == 0
    assert launch(kernels, stream) == 0
    graph = ok(cu.cuStreamEndCapture(stream))
    nodes, _ = ok(cu.cuGraphGetNodes(graph, 2))
    kept = ok(cu.cuGraphKernelNodeGetAttribute(nodes[0], CLUSTER)).clusterDim
    assert (kept.x, kept.y, kept.z) == (2, 2, 1)
    assert ok(cu.cuGraphKernelNodeGetAttribute(nodes[0], PRIORITY)).priority == -2
    none = ok(cu.cuGraphKernelNodeGetAttribute(nodes[1], CLUSTER)).clusterDim
    assert (none.x, none.y, none.z) == (0, 0, 0)
    assert ok(cu.cuGraphKernelNodeGetAttribute(nodes[1], PRIORITY)).priority == 0
    ok(cu.cuGraphDestroy(graph))


def test_conditional_nodes_are_refused(build: Any) -> None:
    """A kernel on the device would have to set their handle, and no PTX is executed here."""
    context = ok(cu.cuCtxGetCurrent())
    assert code(cu.cuGraphConditionalHandleCreate(build.graph, context, 1, 0)) == NOT_SUPPORTED
    params = cu.CUgraphNodeParams()
    params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    edges: list[list[Any]] = [[]] if cu.CUDA_VERSION >= 13000 else []
    assert code(cu.cuGraphAddNode(build.graph, [], *edges, 0, params)) == NOT_SUPPORTED
    assert "cuGraphConditionalHandleCreate" in simulator.unsupported_calls()
