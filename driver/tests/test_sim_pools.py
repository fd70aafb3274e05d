"""Memory pools: accounts of what is allocated in stream order."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from simdriver import Gate, code, cu, ok

ATTRIBUTE = cu.CUmemPool_attribute
of_cuda_13 = pytest.mark.skipif(
    not hasattr(cu, "cuMemGetMemPool"), reason="these bindings are older"
)
MIB = 1 << 20


def location(device: int) -> Any:
    made = cu.CUmemLocation()
    made.type, made.id = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
    return made


def properties(device: int = 0, **fields: Any) -> Any:
    made = cu.CUmemPoolProps()
    made.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location = location(device)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def get(pool: Any, name: str) -> int:
    return int(ok(cu.cuMemPoolGetAttribute(pool, getattr(ATTRIBUTE, f"CU_MEMPOOL_ATTR_{name}"))))


def put(pool: Any, name: str, value: int) -> int:
    attribute = getattr(ATTRIBUTE, f"CU_MEMPOOL_ATTR_{name}")
    return code(
        cu.cuMemPoolSetAttribute(
            pool, attribute, value if name.startswith("REUSE") else cu.cuuint64_t(value)
        )
    )


def unused() -> int:
    return int(ok(cu.cuMemGetInfo())[0])


def pool_of(memory: Any) -> int:
    return int(
        ok(
            cu.cuPointerGetAttribute(
                cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory
            )
        )
    )


@pytest.fixture
def pool(driver: None) -> Iterator[Any]:
    made = ok(cu.cuMemPoolCreate(properties()))
    yield made
    cu.cuMemPoolDestroy(made)


def test_a_pool_counts_what_is_allocated_of_it(pool: Any, stream: Any) -> None:
    before = unused()
    first = ok(cu.cuMemAllocFromPoolAsync(MIB, pool, stream))
    second = ok(cu.cuMemAllocFromPoolAsync(2 * MIB, pool, stream))
    ok(cu.cuMemsetD8Async(second, 7, 2 * MIB, stream))
    assert (
        get(pool, "USED_MEM_CURRENT"),
        get(pool, "RESERVED_MEM_CURRENT"),
        before - unused(),
    ) == (3 * MIB,) * 3
    assert pool_of(first) == int(pool)
    ok(cu.cuMemFreeAsync(first, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.c_uint8.from_address(int(second)).value == 7
    assert (get(pool, "USED_MEM_CURRENT"), get(pool, "USED_MEM_HIGH")) == (2 * MIB, 3 * MIB)
    assert put(pool, "USED_MEM_HIGH", 1) == put(pool, "USED_MEM_CURRENT", 0) == 1
    assert put(pool, "USED_MEM_HIGH", 0) == 0
    assert get(pool, "USED_MEM_HIGH") == 2 * MIB
    ok(cu.cuMemFree(second))
    assert (get(pool, "USED_MEM_CURRENT"), unused()) == (0, before)


def test_memory_is_freed_in_stream_order(pool: Any, stream: Any, gate: Gate) -> None:
    memory = ok(cu.cuMemAllocFromPoolAsync(MIB, pool, stream))
    gate.hold(stream)
    ok(cu.cuMemFreeAsync(memory, stream))
    assert get(pool, "USED_MEM_CURRENT") == MIB
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert get(pool, "USED_MEM_CURRENT") == 0


def test_memory_is_freed_once(stream: Any, gate: Gate) -> None:
    memory = ok(cu.cuMemAllocAsync(MIB, stream))
    gate.hold(stream)
    ok(cu.cuMemFreeAsync(memory, stream))
    assert code(cu.cuMemFreeAsync(memory, stream)) == 1
    assert code(cu.cuMemFree(memory)) == 1
    gate.open()
    ok(cu.cuStreamSynchronize(stream))


def test_the_threshold_keeps_memory_reserved(pool: Any, stream: Any) -> None:
    before = unused()
    assert put(pool, "RELEASE_THRESHOLD", 4 * MIB) == 0
    ok(cu.cuMemFree(ok(cu.cuMemAllocFromPoolAsync(6 * MIB, pool, stream))))
    assert (get(pool, "RESERVED_MEM_CURRENT"), before - unused()) == (4 * MIB, 4 * MIB)
    memory = ok(cu.cuMemAllocFromPoolAsync(3 * MIB, pool, stream))
    assert before - unused() == 4 * MIB, "of what is reserved"
    ok(cu.cuMemPoolTrimTo(pool, MIB))
    assert get(pool, "RESERVED_MEM_CURRENT") == 3 * MIB, "what is in use stays"
    ok(cu.cuMemFree(memory))
    ok(cu.cuMemPoolTrimTo(pool, MIB))
    assert (get(pool, "RESERVED_MEM_CURRENT"), get(pool, "RESERVED_MEM_HIGH")) == (MIB, 6 * MIB)
    ok(cu.cuMemPoolDestroy(pool))
    assert unused() == before


def test_a_pool_has_an_end(stream: Any) -> None:
    small = ok(cu.cuMemPoolCreate(properties(maxSize=MIB)))
    memory = ok(cu.cuMemAllocFromPoolAsync(MIB, small, stream))
    assert code(cu.cuMemAllocFromPoolAsync(1, small, stream)) == 2
    ok(cu.cuMemFree(memory))
    total = ok(cu.cuMemGetInfo())[1]
    assert code(cu.cuMemAllocFromPoolAsync(total + 1, small, stream)) == 2
    nothing = ok(cu.cuMemAllocFromPoolAsync(0, small, stream))
    ok(cu.cuMemFreeAsync(nothing, stream))
    ok(cu.cuMemPoolDestroy(small))


def test_destroyed_with_memory_out(pool: Any, stream: Any) -> None:
    before = unused()
    memory = ok(cu.cuMemAllocFromPoolAsync(MIB, pool, stream))
    ok(cu.cuMemPoolDestroy(pool))
    assert code(cu.cuMemPoolDestroy(pool)) == code(cu.cuMemPoolTrimTo(pool, 0)) == 1
    ok(cu.cuMemsetD8Async(memory, 1, MIB, stream))
    ok(cu.cuMemFreeAsync(memory, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert unused() == before


@of_cuda_13
def test_the_pools_of_a_device(pool: Any, stream: Any) -> None:
    default = ok(cu.cuDeviceGetDefaultMemPool(0))
    assert (
        int(ok(cu.cuDeviceGetMemPool(0)))
        == int(default)
        != int(ok(cu.cuDeviceGetDefaultMemPool(1)))
    )
    assert code(cu.cuMemPoolDestroy(default)) == 1
    assert code(cu.cuDeviceSetMemPool(1, pool)) == 1, "of device 0"
    ok(cu.cuDeviceSetMemPool(0, pool))
    memory = ok(cu.cuMemAllocAsync(64, stream))
    assert pool_of(memory) == int(ok(cu.cuDeviceGetMemPool(0))) == int(pool)
    place = location(0)
    kind = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert int(ok(cu.cuMemGetMemPool(place, kind))) == int(pool)
    assert int(ok(cu.cuMemGetDefaultMemPool(place, kind))) == int(default)
    ok(cu.cuMemSetMemPool(place, kind, default))
    other = ok(cu.cuMemAllocAsync(64, stream))
    assert pool_of(other) == int(default)
    ok(cu.cuDeviceSetMemPool(0, pool))
    ok(cu.cuMemPoolDestroy(pool))
    assert int(ok(cu.cuDeviceGetMemPool(0))) == int(default)
    for each in (memory, other):
        ok(cu.cuMemFree(each))


@of_cuda_13
def test_memory_of_another_devices_pool(stream: Any) -> None:
    own, other, access = (
        ok(cu.cuMemAlloc(64)),
        ok(cu.cuMemPoolCreate(properties(1))),
        cu.CUmemAccessDesc(),
    )
    memory = ok(cu.cuMemAllocFromPoolAsync(64, other, stream))
    assert (
        ok(
            cu.cuPointerGetAttribute(
                cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory
            )
        )
        == 1
    )
    access.location = location(0)
    for flags, answer in ((0, 1), (3, 0), (0, 1)):
        access.flags = cu.CUmemAccess_flags(flags)
        ok(cu.cuMemPoolSetAccess(other, [access], 1))
        assert (
            code(cu.cuMemcpyDtoDAsync(memory, own, 64, stream))
            == code(cu.cuMemcpyAsync(own, memory, 64, stream))
            == answer
        )
        assert code(cu.cuMemsetD8Async(memory, 1, 64, stream)) == answer
    first, second = ok(cu.cuCtxGetCurrent()), ok(cu.cuDevicePrimaryCtxRetain(1))
    ok(cu.cuMemcpyPeerAsync(memory, second, own, first, 64, stream))
    ok(cu.cuMemFreeAsync(memory, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(other))
    ok(cu.cuMemFree(own))
    ok(cu.cuDevicePrimaryCtxRelease(1))


def test_access(pool: Any) -> None:
    place, desc = location(1), cu.CUmemAccessDesc()
    both = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    assert int(ok(cu.cuMemPoolGetAccess(pool, location(0)))) == 3
    assert int(ok(cu.cuMemPoolGetAccess(pool, place))) == 0
    desc.location, desc.flags = place, both
    ok(cu.cuMemPoolSetAccess(pool, [desc], 1))
    assert int(ok(cu.cuMemPoolGetAccess(pool, place))) == 3
    desc.location, desc.flags = location(0), cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    assert code(cu.cuMemPoolSetAccess(pool, [desc], 1)) == 101, "its own"
    desc.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    assert code(cu.cuMemPoolSetAccess(pool, [desc], 1)) == 801, "reading alone"
    desc.location, desc.flags = location(9), both
    assert code(cu.cuMemPoolSetAccess(pool, [desc], 1)) == 101
    assert code(cu.cuMemPoolGetAccess(pool, desc.location)) == 1
    desc.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    assert code(cu.cuMemPoolSetAccess(pool, [desc], 1)) == 801, "the host"


def test_reuse_is_kept(pool: Any) -> None:
    for name in ("FOLLOW_EVENT_DEPENDENCIES", "ALLOW_OPPORTUNISTIC", "ALLOW_INTERNAL_DEPENDENCIES"):
        assert get(pool, f"REUSE_{name}") == 1
        assert put(pool, f"REUSE_{name}", 0) == 0
        assert get(pool, f"REUSE_{name}") == 0


@of_cuda_13
@pytest.mark.parametrize(
    ("allocation", "place", "memory_type"), [(1, 2, 1), (1, 3, 1), (2, 1, 2), (2, 2, 2)]
)
def test_memory_of_the_host_and_managed_memory(
    stream: Any, allocation: Any, place: Any, memory_type: Any
) -> None:
    where, kind, before = location(0), cu.CUmemAllocationType(allocation), unused()
    where.type = cu.CUmemLocationType(place)
    own = ok(cu.cuMemPoolCreate(properties(allocType=kind, location=where)))
    default = ok(cu.cuMemGetDefaultMemPool(where, kind))
    ok(cu.cuMemSetMemPool(where, kind, own))
    assert int(ok(cu.cuMemGetMemPool(where, kind))) == int(own) != int(default)
    assert code(cu.cuDeviceSetMemPool(0, own)) == 1, "not of a device"
    memory = ok(cu.cuMemAllocFromPoolAsync(MIB, own, stream))
    assert (
        int(
            ok(
                cu.cuPointerGetAttribute(
                    cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory
                )
            )
        )
        == memory_type
    )
    assert (get(own, "USED_MEM_CURRENT"), unused()) == (MIB, before), "no device's memory"
    assert code(cu.cuMemFreeHost(int(memory))) == 1
    ok(cu.cuMemsetD8Async(memory, 3, MIB, stream))
    ok(cu.cuMemFreeAsync(memory, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(own))
    assert int(ok(cu.cuMemGetMemPool(where, kind))) == int(default)


def test_a_pool_that_could_be_shared(stream: Any) -> None:
    """It is one like all others, and to share it is refused."""
    handles = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    pool = ok(cu.cuMemPoolCreate(properties(handleTypes=handles)))
    memory = ok(cu.cuMemAllocFromPoolAsync(64, pool, stream))
    allowed = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
    assert int(ok(cu.cuPointerGetAttribute(allowed, memory))) == int(handles)
    assert code(cu.cuMemPoolExportToShareableHandle(pool, handles, 0)) == 801
    ok(cu.cuMemFreeAsync(memory, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(pool))


def test_pools_that_are_refused() -> None:
    kind, handles = cu.CUmemAllocationType, cu.CUmemAllocationHandleType
    assert code(cu.cuMemPoolCreate(properties(allocType=kind.CU_MEM_ALLOCATION_TYPE_INVALID))) == 1
    assert code(cu.cuMemPoolCreate(properties(9))) == 1
    of_windows = properties(handleTypes=handles.CU_MEM_HANDLE_TYPE_WIN32)
    assert code(cu.cuMemPoolCreate(of_windows)) == 1
    assert code(cu.cuMemPoolCreate(properties(maxSize=1 << 60))) == 2
    nowhere = location(0)
    nowhere.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
    assert code(cu.cuMemPoolCreate(properties(location=nowhere))) == 1
    assert code(cu.cuDeviceGetMemPool(9)) == 101
