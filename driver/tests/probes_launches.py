"""Small questions to a CUDA driver about launches, occupancy, modules and peers."""

# A lambda with a default has no type.
# mypy: disable-error-code="misc"

from __future__ import annotations

import ctypes
from typing import Any

import cuda.bindings.driver as cu

from probes import (
    LEGACY,
    NULL,
    ONE_ENTRY,
    PER_THREAD,
    PTX,
    Probes,
    answered,
    begin,
    code,
    group,
    kernel,
    ok,
    place,
    raw,
    stream,
)

ATTRIBUTE = cu.CUlaunchAttributeID


@group
def launches() -> Probes:
    begin()
    s = stream()
    function = kernel()
    handle = int(function)
    ok(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, 0, 0))
    ok(cu.cuStreamSynchronize(s))

    def launch(
        *attributes: Any,
        grid: Any = (8, 1, 1),
        block: Any = (1, 1, 1),
        shared: int = 0,
        to: int = s,
    ) -> int:
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared, to
        config.attrs, config.numAttrs = list(attributes), len(attributes)
        return code(cu.cuLaunchKernelEx(config, function, 0, 0))

    def cluster(x: int, y: int = 1, z: int = 1) -> Any:
        made = cu.CUlaunchAttribute()
        made.id = ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = made.value.clusterDim
        size.x, size.y, size.z = x, y, z
        return made

    for size, grid in (
        ((1, 1, 1), (8, 1, 1)),
        ((2, 1, 1), (8, 1, 1)),
        ((2, 2, 2), (8, 2, 4)),
        ((0, 0, 0), (8, 1, 1)),
        ((3, 1, 1), (8, 1, 1)),
        ((1, 2, 1), (8, 1, 1)),
        ((8, 1, 1), (8, 1, 1)),
        ((16, 1, 1), (16, 1, 1)),
        ((9, 1, 1), (9, 1, 1)),
        ((2, 0, 1), (8, 1, 1)),
        ((32, 1, 1), (32, 1, 1)),
    ):
        yield (
            f"cluster {size} of grid {grid}",
            lambda size=size, grid=grid: launch(cluster(*size), grid=grid),
        )

    def larger() -> Any:
        allowed = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        found = [code(cu.cuFuncSetAttribute(function, allowed, 1))]
        found += [launch(cluster(n), grid=(32, 1, 1)) for n in (16, 32)]
        return [
            *found,
            code(cu.cuFuncSetAttribute(function, allowed, 0)),
            launch(cluster(16), grid=(32, 1, 1)),
        ]

    yield "not portable: allow, 16, 32, forbid, 16", larger
    yield "cluster 2 with 1,024 threads a block", lambda: launch(cluster(2), block=(1024, 1, 1))
    yield "two cluster attributes", lambda: launch(cluster(2), cluster(4))
    for name, value in (
        ("COOPERATIVE", 1),
        ("COOPERATIVE", 0),
        ("PRIORITY", -1),
        ("PRIORITY", 99),
        ("CLUSTER_SCHEDULING_POLICY_PREFERENCE", 1),
        ("PROGRAMMATIC_STREAM_SERIALIZATION", 1),
        ("SYNCHRONIZATION_POLICY", 1),
        ("IGNORE", 0),
        ("MEM_SYNC_DOMAIN", 0),
    ):

        def other(name: str = name, value: int = value) -> int:
            made = cu.CUlaunchAttribute()
            made.id = getattr(ATTRIBUTE, "CU_LAUNCH_ATTRIBUTE_" + name)
            field = {
                "COOPERATIVE": "cooperative",
                "PRIORITY": "priority",
                "PROGRAMMATIC_STREAM_SERIALIZATION": "programmaticStreamSerializationAllowed",
            }.get(name)
            if field:
                setattr(made.value, field, value)
            return launch(made)

        yield f"attribute {name} = {value}", other
    yield (
        "cooperative with more blocks than fit",
        lambda: launch(_cooperative(), grid=(1 << 20, 1, 1)),
    )
    yield (
        "cuLaunchCooperativeKernel",
        lambda: raw("cuLaunchCooperativeKernel", handle, 1, 1, 1, 1, 1, 1, 0, s, NULL),
    )
    for grid, block in (
        ((0, 1, 1), (1, 1, 1)),
        ((1, 65535, 1), (1, 1, 1)),
        ((1, 65536, 1), (1, 1, 1)),
        ((1, 1, 65536), (1, 1, 1)),
        ((1, 1, 1), (0, 1, 1)),
        ((1, 1, 1), (1024, 1, 1)),
        ((1, 1, 1), (1025, 1, 1)),
        ((1, 1, 1), (32, 32, 2)),
        ((1, 1, 1), (1, 1, 64)),
        ((1, 1, 1), (1, 1, 65)),
    ):
        yield (
            f"grid {grid}, block {block}",
            lambda grid=grid, block=block: launch(grid=grid, block=block),
        )
    for shared in (49152, 49153, 1 << 30):
        yield f"{shared} bytes of shared memory", lambda shared=shared: launch(shared=shared)
    yield (
        "on the legacy, the per-thread stream",
        lambda: [launch(to=to) for to in (0, LEGACY, PER_THREAD)],
    )
    yield (
        "cuLaunchKernel of NULL; with an unknown extra",
        lambda: [
            raw("cuLaunchKernel", NULL, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL),
            raw(
                "cuLaunchKernel", handle, 1, 1, 1, 1, 1, 1, 0, s, NULL, (ctypes.c_void_p * 2)(99, 0)
            ),
        ],
    )
    number = int(kernel(b"number"))
    yield (
        "a kernel's parameters that are not given",
        lambda: raw("cuLaunchKernel", number, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL),
    )
    yield (
        "cuLaunchKernelEx without a configuration",
        lambda: raw("cuLaunchKernelEx", NULL, handle, NULL, NULL),
    )
    yield "cuLaunchHostFunc of NULL", lambda: raw("cuLaunchHostFunc", s, NULL, NULL)


def _cooperative() -> Any:
    made = cu.CUlaunchAttribute()
    made.id = ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    made.value.cooperative = 1
    return made


@group
def occupancy() -> Probes:
    begin()
    function = kernel()
    for block in (-1, 0, 1, 32, 33, 128, 256, 1024, 1025):
        for shared in (0, 40000):
            yield (
                f"blocks of {block} threads, {shared} bytes",
                lambda block=block, shared=shared: answered(
                    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                    ctypes.c_int,
                    int(function),
                    block,
                    shared,
                ),
            )
    for flags in (0, 1, 2):
        yield (
            f"with flags {flags}",
            lambda flags=flags: answered(
                "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
                ctypes.c_int,
                int(function),
                128,
                0,
                flags,
            ),
        )

    def best(shared: int, limit: int) -> Any:
        grid, block = ctypes.c_int(), ctypes.c_int()
        answer = raw(
            "cuOccupancyMaxPotentialBlockSize",
            ctypes.byref(grid),
            ctypes.byref(block),
            int(function),
            NULL,
            shared,
            limit,
        )
        return (answer, grid.value, block.value) if answer == 0 else answer

    for shared, limit in ((0, 0), (0, 128), (0, 33), (40000, 0), (300000, 0), (0, -1)):
        yield (
            f"the best block: {shared} bytes, at most {limit} threads",
            lambda shared=shared, limit=limit: best(shared, limit),
        )
    for blocks, size in ((1, 128), (16, 128), (0, 128), (99, 128)):
        yield (
            f"shared memory for {blocks} blocks of {size}",
            lambda blocks=blocks, size=size: answered(
                "cuOccupancyAvailableDynamicSMemPerBlock",
                ctypes.c_size_t,
                int(function),
                blocks,
                size,
            ),
        )

    def clusters(name: str, size: int) -> Any:
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = max(size, 1), 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 128, 1, 1
        made = cu.CUlaunchAttribute()
        made.id = ATTRIBUTE.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        made.value.clusterDim.x, made.value.clusterDim.y, made.value.clusterDim.z = size, 1, 1
        config.attrs, config.numAttrs = [made], 1
        answer = getattr(cu, name)(function, config)
        return (code(answer), int(answer[1])) if code(answer) == 0 else code(answer)

    for size in (1, 2, 8, 16):
        yield (
            f"active clusters of {size}",
            lambda size=size: clusters("cuOccupancyMaxActiveClusters", size),
        )
    yield "the largest cluster", lambda: clusters("cuOccupancyMaxPotentialClusterSize", 1)


@group
def modules() -> Probes:
    begin()
    module = ok(cu.cuModuleLoadData(PTX))
    function = ok(cu.cuModuleGetFunction(module, b"empty"))

    def variable(name: bytes) -> Any:
        found = cu.cuModuleGetGlobal(module, name)
        if code(found):
            return code(found)
        value = ctypes.c_uint32(99)
        return [found[2], code(cu.cuMemcpyDtoH(ctypes.addressof(value), found[1], 4)), value.value]

    for name in (b"counter", b"table", b"constant", b"empty", b"unknown", b""):
        yield (
            f"the variable {name.decode() or 'without a name'}: size, copied, first word",
            lambda name=name: variable(name),
        )
    yield (
        "written and read",
        lambda: [
            code(cu.cuMemsetD32(ok(cu.cuModuleGetGlobal(module, b"counter"))[0], 11, 1)),
            variable(b"counter"),
        ],
    )
    yield (
        "a function without a name, unknown, of NULL",
        lambda: [
            raw("cuModuleGetFunction", place(), int(module), b""),
            raw("cuModuleGetFunction", place(), int(module), b"unknown"),
            raw("cuModuleGetFunction", place(), NULL, b"empty"),
        ],
    )
    yield (
        "load NULL; without a place",
        lambda: [raw("cuModuleLoadData", place(), NULL), raw("cuModuleLoadData", NULL, b"\0")],
    )
    yield (
        "load a missing file, NULL",
        lambda: [
            raw("cuModuleLoad", place(), b"/no/such/file"),
            raw("cuModuleLoad", place(), NULL),
        ],
    )
    yield (
        "unload twice; NULL",
        lambda: [
            (lambda m: [raw("cuModuleUnload", m), raw("cuModuleUnload", m)])(
                int(ok(cu.cuModuleLoadData(ONE_ENTRY)))
            ),
            raw("cuModuleUnload", NULL),
        ],
    )
    yield (
        "count and names of functions",
        lambda: [answered("cuModuleGetFunctionCount", ctypes.c_uint, int(module), version=12040)],
    )
    for which in range(16):
        if which in (1, 2, 3, 4, 5, 6, 7, 9):  # registers and code are the compiler's
            yield (
                f"function attribute {which}",
                lambda which=which: answered(
                    "cuFuncGetAttribute", ctypes.c_int, which, int(function)
                ),
            )


@group
def peers() -> Probes:
    context = begin()
    yield (
        "can access itself, device 9",
        lambda: [
            answered("cuDeviceCanAccessPeer", ctypes.c_int, 0, 0),
            answered("cuDeviceCanAccessPeer", ctypes.c_int, 0, 9),
        ],
    )
    yield (
        "enable itself, flags 1, NULL; disable itself, NULL",
        lambda: [
            raw("cuCtxEnablePeerAccess", int(context), 0),
            raw("cuCtxEnablePeerAccess", int(context), 1),
            raw("cuCtxEnablePeerAccess", NULL, 0),
            raw("cuCtxDisablePeerAccess", int(context)),
            raw("cuCtxDisablePeerAccess", NULL),
        ],
    )
    for which in (1, 2, 3, 4, 99):
        yield (
            f"P2P attribute {which} of itself, of device 9",
            lambda which=which: [
                answered("cuDeviceGetP2PAttribute", ctypes.c_int, which, 0, device)
                for device in (0, 9)
            ],
        )

    def copy() -> Any:
        a, b = (int(ok(cu.cuMemAlloc(64))) for _ in range(2))
        ok(cu.cuMemsetD8(a, 5, 64))
        word = ctypes.c_uint32()
        found = [code(cu.cuMemcpyPeer(b, context, a, context, 64))]
        ok(cu.cuMemcpyDtoH(ctypes.addressof(word), b, 4))
        return [*found, hex(word.value)]

    yield "cuMemcpyPeer within a device", copy
    yield (
        "devices -1, 9: get, attribute, name, memory, primary context",
        lambda: [
            [
                raw("cuDeviceGet", place(), device),
                raw("cuDeviceGetAttribute", place(), 1, device),
                raw("cuDeviceGetName", place(), 4, device),
                raw("cuDeviceTotalMem", place(), device),
                raw("cuDevicePrimaryCtxRetain", place(), device),
            ]
            for device in (-1, 9)
        ],
    )
    yield (
        "device attributes 0, -1, 9999",
        lambda: [raw("cuDeviceGetAttribute", place(), which, 0) for which in (0, -1, 9999)],
    )
