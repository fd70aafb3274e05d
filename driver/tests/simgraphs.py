"""Graphs for the simulator's tests: built node by node, and read back."""

from __future__ import annotations

import ctypes
from typing import Any

from simdriver import HOST, code, cu, keep, ok

RELAXED = cu.CUstreamCaptureMode(2)
ADDRESS, SIZE, UINT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
KERNEL, COPY, FILL, HOST_NODE, CHILD, EMPTY, WAIT, RECORD, WORDS = 0, 1, 2, 3, 4, 5, 6, 7, 12


class Nodes:
    """Builds a graph node by node."""

    def __init__(self, graph: Any = None) -> None:
        self.graph = ok(cu.cuGraphCreate(0)) if graph is None else graph
        self.context = ok(cu.cuCtxGetCurrent())

    def host(self, function: Any, *before: Any) -> Any:
        native = HOST(lambda _: function())
        keep.append(native)
        return ok(cu.cuGraphAddHostNode(self.graph, before, len(before), host_params(native)))

    def empty(self, *before: Any) -> Any:
        return ok(cu.cuGraphAddEmptyNode(self.graph, before, len(before)))

    def fill(self, address: Any, value: Any, count: Any, *before: Any, width: int = 1) -> Any:
        params = fill_params(address, value, count, width)
        return ok(cu.cuGraphAddMemsetNode(self.graph, before, len(before), params, self.context))

    def copy(self, to: Any, source: Any, count: Any, *before: Any) -> Any:
        return ok(
            cu.cuGraphAddMemcpyNode(
                self.graph, before, len(before), copy_params(to, source, count), self.context
            )
        )

    def kernel(self, function: Any, *before: Any, arguments: Any = None) -> Any:
        params = kernel_params(function, arguments)
        return ok(cu.cuGraphAddKernelNode(self.graph, before, len(before), params))

    def instantiate(self, flags: int = 0) -> Any:
        return ok(cu.cuGraphInstantiate(self.graph, flags))


def host_params(native: Any) -> Any:
    params = cu.CUDA_HOST_NODE_PARAMS()
    params.fn = cu.CUhostFn(ctypes.cast(native, ADDRESS).value)
    return params


def fill_params(address: Any, value: Any, count: Any, width: int = 1) -> Any:
    params = cu.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.value = cu.CUdeviceptr(int(address)), value
    params.elementSize, params.width, params.height = width, count, 1
    return params


def copy_params(to: Any, source: Any, count: Any) -> Any:
    params = cu.CUDA_MEMCPY3D()
    params.srcMemoryType = params.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    params.srcDevice, params.dstDevice = cu.CUdeviceptr(int(source)), cu.CUdeviceptr(int(to))
    params.WidthInBytes, params.Height, params.Depth = count, 1, 1
    return params


def kernel_params(function: Any, arguments: Any = None) -> Any:
    params = cu.CUDA_KERNEL_NODE_PARAMS()
    params.func = function
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = (
        params.blockDimZ
    ) = 1
    if arguments is not None:
        params.kernelParams = (tuple(a.value for a in arguments), tuple(type(a) for a in arguments))
    return params


def listed(answer: Any) -> Any:
    found, count = ok(answer)[0], ok(answer)[-1]
    return [int(node) for node in found[:count]]


def before(node: Any) -> Any:
    return listed(cu.cuGraphNodeGetDependencies(node, 64))


def after(node: Any) -> Any:
    return listed(cu.cuGraphNodeGetDependentNodes(node, 64))


def types(graph: Any) -> Any:
    found, count = ok(cu.cuGraphGetNodes(graph, 64))
    return [int(ok(cu.cuGraphNodeGetType(node))) for node in found[:count]]


def edges(graph: Any) -> Any:
    answer = ok(cu.cuGraphGetEdges(graph, 64))
    return [
        (int(a), int(b))
        for a, b in zip(answer[0][: answer[-1]], answer[1][: answer[-1]], strict=True)
    ]


def change_edges(call: Any, graph: Any, *pairs: Any) -> Any:
    """cuGraphAddDependencies or cuGraphRemoveDependencies, which got an argument more with
    CUDA 13.
    """
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    data = [[cu.CUgraphEdgeData() for _ in pairs]] if cu.CUDA_VERSION >= 13000 else []
    return code(call(graph, sources, targets, *data, len(pairs)))
