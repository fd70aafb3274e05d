"""Small questions to a CUDA driver about allocations, managed memory and pools."""

# A lambda with a default has no type.
# mypy: disable-error-code="misc"

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import cuda.bindings.driver as cu

from probes import (
    DEVICE_PLACE,
    HOST_PLACE,
    LEGACY,
    MIB,
    NULL,
    Place,
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
def allocations() -> Probes:
    begin()
    s = stream()
    huge = 1 << 60
    for name, more in (
        ("cuMemAlloc", ()),
        ("cuMemAllocHost", ()),
        ("cuMemHostAlloc", (0,)),
        ("cuMemAllocManaged", (1,)),
        ("cuMemAllocAsync", (s,)),
    ):

        def zero(name: str = name, more: Any = more) -> Any:
            out = ctypes.c_uint64(77)
            answer = raw(name, ctypes.byref(out), 0, *more)
            return answer, {0: "NULL", 77: "untouched"}.get(out.value, "an address")

        yield f"{name} of 0 bytes", zero
        yield (
            f"{name} without a place for the answer",
            lambda name=name, more=more: raw(name, NULL, 64, *more),
        )
        if name != "cuMemAllocManaged":
            yield (
                f"{name} of 2^60 bytes",
                lambda name=name, more=more: raw(name, place(), huge, *more),
            )
    yield (
        "cuMemHostAlloc with flags 8, 16",
        lambda: [raw("cuMemHostAlloc", place(), 64, flags) for flags in (8, 16)],
    )
    yield (
        "cuMemAllocManaged with flags 0, 3, 4",
        lambda: [raw("cuMemAllocManaged", place(), 64, flags) for flags in (0, 3, 4)],
    )
    for name in ("cuMemFree", "cuMemFreeHost", "cuMemHostUnregister", "cuMemFreeAsync"):
        more = (s,) if name == "cuMemFreeAsync" else ()
        yield f"{name} of NULL", lambda name=name, more=more: raw(name, NULL, *more)
        yield f"{name} of nonsense", lambda name=name, more=more: raw(name, 0x7F0000001000, *more)

    def twice(allocate: Any, free: Any) -> Any:
        address = int(ok(allocate()))
        return [free(address), free(address)]

    yield "cuMemFree twice", lambda: twice(lambda: cu.cuMemAlloc(64), lambda p: raw("cuMemFree", p))
    yield "cuMemFree of an inner address", lambda: raw("cuMemFree", int(ok(cu.cuMemAlloc(64))) + 8)
    yield "cuMemFree of pinned memory", lambda: raw("cuMemFree", int(ok(cu.cuMemHostAlloc(64, 0))))
    yield (
        "cuMemFree of managed memory",
        lambda: raw("cuMemFree", int(ok(cu.cuMemAllocManaged(64, 1)))),
    )
    yield (
        "cuMemFreeHost twice",
        lambda: twice(lambda: cu.cuMemHostAlloc(64, 0), lambda p: raw("cuMemFreeHost", p)),
    )
    yield "cuMemFreeHost of device memory", lambda: raw("cuMemFreeHost", int(ok(cu.cuMemAlloc(64))))
    yield (
        "cuMemFreeHost of an inner address",
        lambda: raw("cuMemFreeHost", int(ok(cu.cuMemHostAlloc(64, 0))) + 8),
    )
    yield (
        "cuMemFreeAsync twice",
        lambda: twice(lambda: cu.cuMemAllocAsync(64, s), lambda p: raw("cuMemFreeAsync", p, s)),
    )
    yield (
        "cuMemFreeAsync of cuMemAlloc's",
        lambda: raw("cuMemFreeAsync", int(ok(cu.cuMemAlloc(64))), s),
    )
    yield (
        "cuMemFreeAsync of managed memory",
        lambda: raw("cuMemFreeAsync", int(ok(cu.cuMemAllocManaged(64, 1))), s),
    )
    yield (
        "cuMemFree of cuMemAllocAsync's, pending and complete",
        lambda: [
            raw("cuMemFree", int(ok(cu.cuMemAllocAsync(64, s)))),
            (ok_address := int(ok(cu.cuMemAllocAsync(64, s)))) and code(cu.cuStreamSynchronize(s)),
            raw("cuMemFree", ok_address),
        ],
    )

    def whole(allocate: Any, at: int = 0) -> Any:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        address = int(ok(allocate()))
        answer = raw("cuMemGetAddressRange", ctypes.byref(base), ctypes.byref(size), address + at)
        return (answer, base.value == address, size.value) if answer == 0 else answer

    yield (
        "cuMemGetAddressRange of 1,000 bytes: code, at the base, size",
        lambda: whole(lambda: cu.cuMemAlloc(1000)),
    )
    yield "cuMemGetAddressRange inside", lambda: whole(lambda: cu.cuMemAlloc(1000), 999)
    yield "cuMemGetAddressRange behind the end", lambda: whole(lambda: cu.cuMemAlloc(1000), 1000)
    yield "cuMemGetAddressRange of pinned memory", lambda: whole(lambda: cu.cuMemHostAlloc(1000, 0))
    yield (
        "cuMemGetAddressRange of managed memory",
        lambda: whole(lambda: cu.cuMemAllocManaged(1000, 1)),
    )
    yield (
        "cuMemGetAddressRange of cuMemAllocAsync's",
        lambda: whole(lambda: cu.cuMemAllocAsync(1000, s)),
    )
    yield "cuMemGetInfo without places", lambda: raw("cuMemGetInfo", NULL, NULL)
    asked = [
        "MEMORY_TYPE",
        "IS_MANAGED",
        "DEVICE_ORDINAL",
        "SYNC_MEMOPS",
        "RANGE_SIZE",
        "MAPPED",
        "IS_LEGACY_CUDA_IPC_CAPABLE",
        "ALLOWED_HANDLE_TYPES",
        "ACCESS_FLAGS",
    ]
    memory: dict[str, Callable[[], int]] = {
        "device": lambda: int(ok(cu.cuMemAlloc(1000))),
        "pinned": lambda: int(ok(cu.cuMemHostAlloc(1000, 0))),
        "managed": lambda: int(ok(cu.cuMemAllocManaged(1000, 1))),
        "ordered": lambda: int(ok(cu.cuMemAllocAsync(1000, s))),
        "unknown": lambda: 0x1000,
    }
    for attribute in asked:
        which = int(getattr(cu.CUpointer_attribute, "CU_POINTER_ATTRIBUTE_" + attribute))

        def ask(which: int = which) -> Any:
            found = {}
            for kind, allocate in memory.items():
                out = (ctypes.c_uint64 * 2)()
                answer = raw("cuPointerGetAttribute", out, which, allocate())
                found[kind] = out[0] & 0xFFFFFFFF if answer == 0 else f"code {answer}"
            return found

        yield f"pointer attribute {attribute}", ask


@group
def managed_memory() -> Probes:
    begin()
    s = stream()
    m = int(ok(cu.cuMemAllocManaged(MIB, 1)))
    d = int(ok(cu.cuMemAlloc(4096)))

    def advise(address: int, size: int, advice: int, device: int) -> int:
        return raw("cuMemAdvise", address, size, advice, device, version=8000)

    def attribute(which: int, size: int = 4, address: int = m, count: int = MIB) -> Any:
        out = (ctypes.c_int * 8)(*([-77] * 8))
        answer = raw("cuMemRangeGetAttribute", out, size, which, address, count)
        return (answer, list(out)[: size // 4]) if answer == 0 else answer

    for which in range(8):
        yield f"range attribute {which} at first", lambda which=which: attribute(which)
    for size in (0, 2, 8, 16):
        yield (
            f"read mostly, accessed by: {size} bytes",
            lambda size=size: (attribute(1, size), attribute(3, size)),
        )
    for advice in range(8):
        for device in (0, -1, 9):
            yield (
                f"advice {advice} for {device}",
                lambda advice=advice, device=device: advise(m, MIB, advice, device),
            )

    def reported(advice: int, device: int, which: int, undo: int) -> Any:
        return [
            advise(m, MIB, advice, device),
            attribute(which),
            advise(m, MIB, undo, device),
            attribute(which),
        ]

    yield "read mostly and back", lambda: reported(1, 0, 1, 2)
    yield "preferred: the device, and back", lambda: reported(3, 0, 2, 4)
    yield "preferred: the host, and back", lambda: reported(3, -1, 2, 4)
    yield "accessed by the device, and back", lambda: reported(5, 0, 3, 6)
    yield "accessed by the host, and back", lambda: reported(5, -1, 3, 6)

    def half() -> Any:
        advise(m, MIB // 2, 3, 0)
        found = [
            attribute(2, count=MIB // 2),
            attribute(2),
            attribute(2, address=m + MIB // 2, count=MIB // 2),
        ]
        advise(m, MIB, 4, 0)
        return found

    yield "half of it has a preferred place: half, all, the other half", half
    yield (
        "advice for 0 bytes, for more than there is",
        lambda: [advise(m, 0, 1, 0), advise(m, 2 * MIB, 1, 0)],
    )
    yield (
        "advice for device, pinned, unknown memory",
        lambda: [
            advise(d, 4096, 1, 0),
            advise(int(ok(cu.cuMemHostAlloc(4096, 0))), 4096, 1, 0),
            advise(0x1000, 4096, 1, 0),
        ],
    )
    yield (
        "range attribute of 0 bytes, of more, of device memory",
        lambda: [
            attribute(1, count=0),
            attribute(1, count=2 * MIB),
            attribute(1, address=d, count=4096),
        ],
    )

    def prefetch(device: int, address: int = m, size: int = MIB) -> Any:
        return raw("cuMemPrefetchAsync", address, size, device, s, version=8000), raw(
            "cuStreamSynchronize", s
        )

    for device in (0, -1, 9):
        yield (
            f"prefetch to {device}, and the last place",
            lambda device=device: (prefetch(device), attribute(4)),
        )
    yield (
        "prefetch of 0 bytes, of more, of device memory",
        lambda: [prefetch(0, size=0)[0], prefetch(0, size=2 * MIB)[0], prefetch(0, d, 4096)[0]],
    )
    yield (
        "attach: length 0, all, half, flags 0, 3",
        lambda: [
            raw("cuStreamAttachMemAsync", s, m, length, flags)
            for length, flags in ((0, 1), (MIB, 1), (MIB // 2, 1), (0, 0), (0, 3))
        ],
    )
    yield (
        "attach SINGLE to the legacy stream; device memory",
        lambda: [
            raw("cuStreamAttachMemAsync", LEGACY, m, 0, 4),
            raw("cuStreamAttachMemAsync", s, d, 0, 4),
        ],
    )


@group
def pools() -> Probes:
    begin()
    s = stream()

    def make(**fields: Any) -> int:
        return int(ok(cu.cuMemPoolCreate(pool_properties(**fields))))

    def get(pool: int, which: int) -> Any:
        out = ctypes.c_uint64(0)
        answer = raw("cuMemPoolGetAttribute", pool, which, ctypes.byref(out))
        return out.value if answer == 0 else f"code {answer}"

    def put(pool: int, which: int, value: int) -> int:
        return raw("cuMemPoolSetAttribute", pool, which, ctypes.byref(ctypes.c_uint64(value)))

    for which in range(12):
        yield f"attribute {which} of a new pool", lambda which=which: get(make(), which)
        yield (
            f"attribute {which} set to 0, 1",
            lambda which=which: [put(make(), which, 0), put(make(), which, 1)],
        )
    for kind in (0, 1, 2, 3, 99):
        yield f"create with allocType {kind}", lambda kind=kind: make_raw(kind)
    for where in ((0, 0), (1, 9), (1, -1), (2, 0), (3, 0), (4, 0), (99, 0)):
        yield f"create at location {where}", lambda where=where: make_raw(1, where)
    for size in (1, 4 * MIB, 1 << 60):
        yield (
            f"create with a maximum of {size}",
            lambda size=size: code(cu.cuMemPoolCreate(pool_properties(maxSize=size))),
        )
    for handles in (1, 2, 4, 8):
        yield (
            f"create with handle types {handles}",
            lambda handles=handles: make_raw(1, (1, 0), handles),
        )
    yield (
        "create without properties, without a place",
        lambda: [raw("cuMemPoolCreate", place(), NULL), raw("cuMemPoolCreate", NULL, NULL)],
    )

    def counts() -> Any:
        pool = make()
        address = int(ok(cu.cuMemAllocFromPoolAsync(3 * MIB, pool, s)))
        used = [get(pool, 7), get(pool, 5) >= get(pool, 7)]
        ok(cu.cuMemFreeAsync(address, s))
        ok(cu.cuStreamSynchronize(s))
        return [*used, get(pool, 7), get(pool, 8), get(pool, 5)]

    yield "3 MiB: used, reserved is not less; freed: used, highest used, reserved", counts

    def kept() -> Any:
        pool = make()
        put(pool, 4, 64 * MIB)
        address = int(ok(cu.cuMemAllocFromPoolAsync(3 * MIB, pool, s)))
        ok(cu.cuMemFreeAsync(address, s))
        ok(cu.cuStreamSynchronize(s))
        before = get(pool, 5) >= 3 * MIB
        return [before, raw("cuMemPoolTrimTo", pool, 0), get(pool, 5)]

    yield "a threshold keeps memory; trim to 0; reserved", kept

    def limit() -> Any:
        pool = make(maxSize=4 * MIB)
        return [
            code(cu.cuMemAllocFromPoolAsync(size, pool, s)) for size in (MIB, 64 * MIB, 0, 1 << 60)
        ]

    yield "of a pool with a maximum of 4 MiB: 1 MiB, 64 MiB, 0, 2^60", limit

    def destroyed_in_use() -> Any:
        pool = make()
        address = int(ok(cu.cuMemAllocFromPoolAsync(MIB, pool, s)))
        return [
            raw("cuMemPoolDestroy", pool),
            code(cu.cuMemsetD8Async(address, 1, MIB, s)),
            code(cu.cuMemFreeAsync(address, s)),
            code(cu.cuStreamSynchronize(s)),
        ]

    yield "destroyed while in use: destroy, fill, free, synchronize", destroyed_in_use
    yield (
        "destroy the default pool; NULL",
        lambda: [
            raw("cuMemPoolDestroy", int(ok(cu.cuDeviceGetDefaultMemPool(0)))),
            raw("cuMemPoolDestroy", NULL),
        ],
    )

    def access(flags: int, device: int = 0, kind: int = DEVICE_PLACE) -> Any:
        words = (ctypes.c_int * 3)(kind, device, flags)
        return raw("cuMemPoolSetAccess", make(), words, 1)

    for flags in (0, 1, 2, 3, 7):
        yield f"access of its own device: {flags}", lambda flags=flags: access(flags)
    yield "access of device 9, of the host", lambda: [access(3, 9), access(3, 0, HOST_PLACE)]

    def get_access(device: int, kind: int = DEVICE_PLACE) -> Any:
        out = ctypes.c_int(-77)
        answer = raw(
            "cuMemPoolGetAccess", ctypes.byref(out), make(), ctypes.byref(Place(kind, device))
        )
        return (answer, out.value) if answer == 0 else answer

    yield (
        "asked for access: its device, device 9, the host",
        lambda: [get_access(0), get_access(9), get_access(0, HOST_PLACE)],
    )

    def current() -> Any:
        pool, default = make(), int(ok(cu.cuDeviceGetDefaultMemPool(0)))
        found = [
            int(ok(cu.cuDeviceGetMemPool(0))) == default,
            raw("cuDeviceSetMemPool", 0, pool),
            int(ok(cu.cuDeviceGetMemPool(0))) == pool,
        ]
        address = int(ok(cu.cuMemAllocAsync(64, s)))
        found += [get(pool, 7), code(cu.cuMemFreeAsync(address, s)), raw("cuMemPoolDestroy", pool)]
        return [*found, int(ok(cu.cuDeviceGetMemPool(0))) == default]

    yield (
        "the device's pool: default, set, is it, used of 64 bytes, free, destroyed, default again",
        current,
    )
    yield (
        "trim to 0 of a new pool; of NULL",
        lambda: [raw("cuMemPoolTrimTo", make(), 0), raw("cuMemPoolTrimTo", NULL, 0)],
    )


def make_raw(kind: int, where: tuple[int, int] = (DEVICE_PLACE, 0), handles: int = 0) -> int:
    """cuMemPoolCreate with numbers that the bindings do not know."""
    words = (ctypes.c_uint64 * 16)()
    ints = ctypes.cast(words, ctypes.POINTER(ctypes.c_int))
    ints[0], ints[1], ints[2], ints[3] = kind, handles, *where
    return raw("cuMemPoolCreate", place(), words)
