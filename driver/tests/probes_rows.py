"""Small questions to a CUDA driver about copies, fills, and memory of graphs."""

# A lambda with a default has no type.
# mypy: disable-error-code="misc"

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import cuda.bindings.driver as cu

from probes import (
    NULL,
    RELAXED,
    Probes,
    begin,
    code,
    group,
    ok,
    place,
    pool_properties,
    raw,
    stream,
)


@group
def rows_and_copies() -> Probes:
    begin()
    s = stream()
    d, pitch = 0, 512
    d = int(ok(cu.cuMemAlloc(pitch * 8)))
    host = (ctypes.c_ubyte * (pitch * 8))()

    def fill_and_read(width: int, height: int) -> Any:
        ok(cu.cuMemsetD8(d, 0, pitch * 8))
        answer = raw("cuMemsetD2D8", d + 3, pitch, 9, width, height)
        ok(cu.cuMemcpyDtoH(host, d, pitch * 8))
        return answer, sum(1 for byte in host if byte == 9), [host[3], host[2], host[pitch + 3]]

    yield "a fill of 5 x 3: code, bytes, some of them", lambda: fill_and_read(5, 3)
    yield "a fill of 0 x 3, of 5 x 0", lambda: [fill_and_read(0, 3), fill_and_read(5, 0)]

    def copy(**fields: Any) -> Any:
        for i in range(pitch * 8):
            host[i] = i // pitch * 16 + i % 16
        ok(cu.cuMemcpyHtoD(d, host, pitch * 8))
        target = int(ok(cu.cuMemAlloc(pitch * 8)))
        ok(cu.cuMemsetD8(target, 255, pitch * 8))
        rows = cu.CUDA_MEMCPY2D()
        rows.srcMemoryType = rows.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        rows.srcDevice, rows.dstDevice, rows.srcPitch, rows.dstPitch = d, target, pitch, pitch
        rows.WidthInBytes, rows.Height, rows.srcY, rows.srcXInBytes = 4, 2, 1, 2
        for name, value in fields.items():
            setattr(rows, name, value)
        answers = [
            code(cu.cuMemcpy2D(rows)),
            code(cu.cuMemcpy2DUnaligned(rows)),
            code(cu.cuMemcpy2DAsync(rows, s)),
        ]
        ok(cu.cuStreamSynchronize(s))
        ok(cu.cuMemcpyDtoH(host, target, pitch * 8))
        ok(cu.cuMemFree(target))
        return [*answers, [byte for byte in host if byte != 255]]

    yield "a copy of 4 x 2", copy
    for fields in (
        {"WidthInBytes": 0},
        {"Height": 0},
        {"srcPitch": 3},
        {"srcPitch": 3, "Height": 1},
        {"srcXInBytes": 510},
        {"dstY": 6},
        {"dstY": 7},
        {"srcPitch": 0, "Height": 1},
    ):
        yield f"a copy of 4 x 2 with {fields}", lambda fields=fields: copy(**fields)
    yield "cuMemcpy2D of NULL", lambda: raw("cuMemcpy2D", NULL)

    def cuboid(**fields: Any) -> Any:
        target = int(ok(cu.cuMemAlloc(4096)))
        ok(cu.cuMemsetD8(target, 0, 4096))
        ok(cu.cuMemsetD8(d, 7, 4096))
        box = cu.CUDA_MEMCPY3D()
        box.srcMemoryType = box.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        box.srcDevice, box.dstDevice = d, target
        box.srcPitch = box.dstPitch = 16
        box.srcHeight = box.dstHeight = 8
        box.WidthInBytes, box.Height, box.Depth = 4, 3, 2
        for name, value in fields.items():
            setattr(box, name, value)
        answer = code(cu.cuMemcpy3D(box))
        ok(cu.cuMemcpyDtoH(host, target, 4096))
        return answer, [i for i, byte in enumerate(host) if byte == 7][:30]

    yield "a copy of 4 x 3 x 2: code, which bytes", cuboid
    for fields in (
        {"srcHeight": 2},
        {"srcPitch": 3},
        {"Depth": 0},
        {"srcHeight": 0, "Depth": 1},
        {"srcLOD": 1},
    ):
        yield f"a copy of 4 x 3 x 2 with {fields}", lambda fields=fields: cuboid(**fields)
    yield (
        "cuMemcpy, DtoD beyond the end",
        lambda: [raw("cuMemcpy", d, d + 2048, 4096), raw("cuMemcpyDtoD", d, d + 2048, 4096)],
    )
    yield (
        "copies to and from NULL",
        lambda: [
            raw("cuMemcpyDtoD", NULL, d, 4),
            raw("cuMemcpyDtoD", d, NULL, 4),
            raw("cuMemcpyHtoD", d, NULL, 4),
            raw("cuMemcpyDtoH", NULL, d, 4),
        ],
    )
    yield (
        "copies of 0 bytes to and from NULL",
        lambda: [
            raw("cuMemcpyDtoD", NULL, d, 0),
            raw("cuMemcpyHtoD", d, NULL, 0),
            raw("cuMemcpyDtoH", NULL, d, 0),
            raw("cuMemcpy", NULL, NULL, 0),
        ],
    )
    yield (
        "fills: misaligned by 2 for 32 bits, by 1 for 16; of NULL; of 0 of NULL; beyond",
        lambda: [
            raw("cuMemsetD32", d + 2, 1, 1),
            raw("cuMemsetD16", d + 1, 1, 1),
            raw("cuMemsetD8", NULL, 1, 1),
            raw("cuMemsetD8", NULL, 1, 0),
            raw("cuMemsetD8", d, 1, 1 << 30),
        ],
    )
    for size in ((100, 3, 4), (513, 2, 16), (64, 4, 3), (0, 4, 4), (64, 0, 4)):
        yield (
            f"cuMemAllocPitch {size}",
            lambda size=size: (lambda r: (code(r), r[2]) if code(r) == 0 else code(r))(
                cu.cuMemAllocPitch(*size)
            ),
        )


@group
def graphs_with_memory() -> Probes:
    begin()
    s = stream()

    def graph(size: int = 4096, free: bool = True) -> Any:
        made = ok(cu.cuGraphCreate(0))
        parameters = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
        parameters.poolProps, parameters.bytesize = pool_properties(), size
        answer = cu.cuGraphAddMemAllocNode(made, [], 0, parameters)
        if code(answer):
            return made, None, code(answer)
        node = answer[1][0] if isinstance(answer[1], tuple) else answer[1]
        address = int(ok(cu.cuGraphMemAllocNodeGetParams(node)).dptr)
        if free:
            ok(cu.cuGraphAddMemFreeNode(made, [node], 1, address))
        return made, node, address

    yield (
        "an alloc node of 0 bytes, of 2^60",
        lambda: [
            graph(size, free=False)[2] if graph(size, free=False)[1] is None else 0
            for size in (0, 1 << 60)
        ],
    )

    def types() -> Any:
        nodes, count = ok(cu.cuGraphGetNodes(graph()[0], 4))
        return sorted(int(ok(cu.cuGraphNodeGetType(node))) for node in nodes[:count])

    yield "types of the nodes", types

    def answers(*calls: Callable[[Any, Any, Any], Any], free: bool = True) -> Any:
        made = graph(free=free)
        return [call(*made) for call in calls]

    yield "clone", lambda: answers(lambda g, n, a: code(cu.cuGraphClone(g)))
    yield "destroy the alloc node", lambda: answers(lambda g, n, a: code(cu.cuGraphDestroyNode(n)))
    yield (
        "a second free node",
        lambda: answers(lambda g, n, a: code(cu.cuGraphAddMemFreeNode(g, [n], 1, a))),
    )
    yield (
        "a free node of memory from elsewhere",
        lambda: answers(
            lambda g, n, a: code(cu.cuGraphAddMemFreeNode(g, [n], 1, int(ok(cu.cuMemAlloc(64)))))
        ),
    )
    yield (
        "instantiate twice",
        lambda: answers(*[lambda g, n, a: code(cu.cuGraphInstantiate(g, 0))] * 2),
    )
    yield (
        "instantiate with AUTO_FREE_ON_LAUNCH",
        lambda: answers(lambda g, n, a: code(cu.cuGraphInstantiate(g, 1)), free=False),
    )
    yield (
        "instantiate, destroy, instantiate",
        lambda: answers(
            lambda g, n, a: [
                code(cu.cuGraphExecDestroy(ok(cu.cuGraphInstantiate(g, 0)))),
                code(cu.cuGraphInstantiate(g, 0)),
            ]
        ),
    )
    yield (
        "as a child graph: the graph, then a copy of it",
        lambda: answers(
            lambda g, n, a: code(cu.cuGraphAddChildGraphNode(ok(cu.cuGraphCreate(0)), [], 0, g))
        ),
    )

    def launches(flags: int, free: bool, *between: Callable[[int], int]) -> Any:
        made, _, address = graph(free=free)
        executable = ok(cu.cuGraphInstantiate(made, flags))
        found = [code(cu.cuGraphLaunch(executable, s))]
        for step in between:
            found += [step(address), code(cu.cuGraphLaunch(executable, s))]
        return [*found, code(cu.cuStreamSynchronize(s)), code(cu.cuGraphExecDestroy(executable))]

    yield "launch three times", lambda: launches(0, True, lambda a: 0, lambda a: 0)
    yield "without a free node: launch twice", lambda: launches(0, False, lambda a: 0)
    yield (
        "without a free node: fill, launch",
        lambda: launches(0, False, lambda a: code(cu.cuMemsetD8Async(a, 1, 64, s))),
    )
    yield (
        "without a free node: cuMemFreeAsync, launch",
        lambda: launches(0, False, lambda a: code(cu.cuMemFreeAsync(a, s))),
    )
    yield (
        "without a free node: cuMemFree, launch",
        lambda: launches(0, False, lambda a: code(cu.cuMemFree(a))),
    )
    yield "AUTO_FREE_ON_LAUNCH: launch twice", lambda: launches(1, False, lambda a: 0)

    def captured(*steps: Callable[[int], Any]) -> Any:
        ok(cu.cuStreamBeginCapture(s, cu.CUstreamCaptureMode(RELAXED)))
        address = int(ok(cu.cuMemAllocAsync(4096, s)))
        found = [step(address) for step in steps]
        ended = cu.cuStreamEndCapture(s)
        return [
            *found,
            code(ended),
            int(ok(cu.cuGraphGetNodes(ended[1], 9))[1]) if code(ended) == 0 else None,
        ]

    yield "captured: allocate", captured
    yield (
        "captured: allocate, fill, free",
        lambda: captured(
            lambda a: code(cu.cuMemsetD8Async(a, 1, 64, s)), lambda a: code(cu.cuMemFreeAsync(a, s))
        ),
    )
    yield (
        "captured: free twice",
        lambda: captured(
            lambda a: code(cu.cuMemFreeAsync(a, s)), lambda a: code(cu.cuMemFreeAsync(a, s))
        ),
    )
    yield (
        "captured: free memory from elsewhere",
        lambda: captured(lambda a: code(cu.cuMemFreeAsync(int(ok(cu.cuMemAlloc(64))), s))),
    )
    for which in range(4):
        yield (
            f"the device's graph memory {which}: get, set to 0, to 1",
            lambda which=which: [
                graph_memory(which),
                raw("cuDeviceSetGraphMemAttribute", 0, which, place()),
                raw("cuDeviceSetGraphMemAttribute", 0, which, ctypes.byref(ctypes.c_uint64(1))),
            ],
        )
    yield (
        "cuDeviceGraphMemTrim of devices 0, 9",
        lambda: [raw("cuDeviceGraphMemTrim", 0), raw("cuDeviceGraphMemTrim", 9)],
    )


def graph_memory(which: int) -> Any:
    out = ctypes.c_uint64(0)
    answer = raw("cuDeviceGetGraphMemAttribute", 0, which, ctypes.byref(out))
    return out.value > 0 if answer == 0 else f"code {answer}"
