"""Memory and copies."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

import pytest

import nogpu as simulator
from simdriver import Gate, Kernels, code, cu, in_thread, ok, raw, until


def test_copies_really_copy(stream: Any, kernels: Kernels) -> None:
    x, y = ok(cu.cuMemAlloc(400)), ok(cu.cuMemAlloc(400))
    source = struct.pack("100f", *range(100))
    ok(cu.cuMemcpyHtoD(x, source, 400))
    ok(cu.cuMemcpyDtoDAsync(y, x, 400, stream))
    arguments = (
        ctypes.c_float(2),
        ctypes.c_uint64(int(x)),
        ctypes.c_uint64(int(y)),
        ctypes.c_uint32(100),
    )
    ok(kernels.launch("saxpy", stream, *arguments))
    pinned = ok(cu.cuMemHostAlloc(400, 0))
    ok(cu.cuMemcpyDtoHAsync(pinned, y, 400, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert (ctypes.c_float * 100).from_address(int(pinned))[:] == [3.0 * n for n in range(100)]
    for memory in (x, y):
        ok(cu.cuMemFree(memory))
    ok(cu.cuMemFreeHost(pinned))


def test_fills_of_three_widths(stream: Any) -> None:
    memory, out = ok(cu.cuMemAlloc(16)), bytearray(16)
    ok(cu.cuMemsetD32Async(memory, 0x01020304, 4, stream))
    ok(cu.cuMemsetD16Async(memory, 0xABCD, 2, stream))
    ok(cu.cuMemsetD8Async(memory, 0xFF, 1, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemcpyDtoH(out, memory, 16))
    assert bytes(out) == b"\xff\xab\xcd\xab" + b"\x04\x03\x02\x01" * 3
    assert code(cu.cuMemsetD32(int(memory) + 2, 1, 1)) == 1
    assert code(cu.cuMemsetD8(memory, 1, 17)) == 1
    ok(cu.cuMemFree(memory))


def test_a_fill_of_device_memory_does_not_wait(gate: Gate) -> None:
    """It comes behind the work of blocking streams, and only a fill of other memory waits."""
    blocking, memory, pinned = ok(cu.cuStreamCreate(0)), ok(cu.cuMemAlloc(16)), []
    host = ok(cu.cuMemHostAlloc(16, 0))
    gate.hold(blocking)
    ok(cu.cuMemsetD8(memory, 7, 16))
    assert code(cu.cuStreamQuery(0)) == 600
    before, context = simulator.calls("cuMemsetD8"), ok(cu.cuCtxGetCurrent())

    def fill() -> None:
        ok(cu.cuCtxSetCurrent(context))
        pinned.append(code(cu.cuMemsetD8(int(host), 9, 16)))

    thread = threading.Thread(target=fill)
    thread.start()
    until(lambda: simulator.calls("cuMemsetD8") > before)
    thread.join(0.1)
    assert thread.is_alive()
    gate.open()
    thread.join(10)
    assert pinned == [0]
    assert ctypes.string_at(int(host), 16) == b"\x09" * 16
    assert ctypes.string_at(int(memory), 16) == b"\x07" * 16
    ok(cu.cuMemFree(memory))
    ok(cu.cuMemFreeHost(host))
    ok(cu.cuStreamDestroy(blocking))


def test_copies_keep_the_streams_order(stream: Any, gate: Gate) -> None:
    memory = ok(cu.cuMemAlloc(8))
    pinned = int(ok(cu.cuMemHostAlloc(8, 0)))
    word = ctypes.c_uint64.from_address(pinned)
    gate.hold(stream)
    ok(cu.cuMemcpyHtoDAsync(memory, pinned, 8, stream))
    word.value = 77  # after the call, before the copy: pinned memory is read when the copy runs
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    out = bytearray(8)
    ok(cu.cuMemcpyDtoH(out, memory, 8))
    assert struct.unpack("Q", out) == (77,)
    ok(cu.cuMemFree(memory))


def test_pageable_memory(stream: Any, gate: Gate) -> None:
    memory, source, out = ok(cu.cuMemAlloc(8)), bytearray(b"12345678"), bytearray(8)
    context, done = ok(cu.cuCtxGetCurrent()), threading.Event()
    gate.hold(stream)
    ok(cu.cuMemcpyHtoDAsync(memory, source, 8, stream))
    source[:] = b"xxxxxxxx"  # was read at the call

    def copy_back() -> None:
        ok(cu.cuCtxSetCurrent(context))
        ok(cu.cuMemcpyDtoHAsync(out, memory, 8, stream))  # returns when it has been carried out
        done.set()

    thread = threading.Thread(target=copy_back)
    thread.start()
    assert not done.wait(0.03)
    gate.open()
    assert done.wait(10)
    thread.join()
    assert bytes(out) == b"12345678"
    ok(cu.cuMemFree(memory))


def test_memory_runs_out() -> None:
    unused, total = ok(cu.cuMemGetInfo())
    assert total == 1 << 30
    assert code(cu.cuMemAlloc(total + 1)) == 2
    memory = ok(cu.cuMemAlloc(unused // 2 + 1))
    assert code(cu.cuMemAlloc(unused // 2 + 1)) == 2
    assert ok(cu.cuMemGetInfo())[0] == unused - unused // 2 - 1
    ok(cu.cuMemFree(memory))
    assert ok(cu.cuMemGetInfo())[0] == unused
    assert code(cu.cuMemAlloc(0)) == 1


def test_freeing() -> None:
    memory = ok(cu.cuMemAlloc(64))
    assert code(cu.cuMemFree(int(memory) + 8)) == 1
    assert code(cu.cuMemFreeHost(int(memory))) == 1
    ok(cu.cuMemFree(memory))
    assert code(cu.cuMemFree(memory)) == 1
    ok(cu.cuMemFree(0))


def test_freeing_waits_for_the_work(stream: Any, gate: Gate) -> None:
    memory, context, freed = ok(cu.cuMemAlloc(64)), ok(cu.cuCtxGetCurrent()), threading.Event()
    gate.hold(stream)

    def free() -> None:
        ok(cu.cuCtxSetCurrent(context))
        ok(cu.cuMemFree(memory))
        freed.set()

    thread = threading.Thread(target=free)
    thread.start()
    assert not freed.wait(0.03)
    gate.open()
    assert freed.wait(10)
    thread.join()


def test_stream_ordered_allocation(stream: Any, gate: Gate) -> None:
    pool = ok(cu.cuDeviceGetDefaultMemPool(0))  # cuda.core lets it keep all that was ever reserved
    ok(
        cu.cuMemPoolSetAttribute(
            pool, cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cu.cuuint64_t(0)
        )
    )
    ok(cu.cuMemPoolTrimTo(pool, 0))
    before = ok(cu.cuMemGetInfo())[0]
    gate.hold(stream)
    memory = ok(cu.cuMemAllocAsync(1 << 20, stream))
    ok(cu.cuMemsetD8Async(memory, 1, 1 << 20, stream))
    ok(cu.cuMemFreeAsync(memory, stream))
    assert ok(cu.cuMemGetInfo())[0] == before - (1 << 20)
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert ok(cu.cuMemGetInfo())[0] == before


def test_pointers_say_what_they_are() -> None:
    kinds = cu.CUpointer_attribute
    memory, pinned = ok(cu.cuMemAlloc(64)), int(ok(cu.cuMemHostAlloc(64, 0)))
    assert int(ok(cu.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory))) == 2
    assert int(ok(cu.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned))) == 1
    assert ok(cu.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory)) == 0
    assert code(cu.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096)) == 1
    base, size = ok(cu.cuMemGetAddressRange(int(memory) + 8))
    assert (int(base), size) == (int(memory), 64)
    assert int(ok(cu.cuMemHostGetDevicePointer(pinned, 0))) == pinned
    ok(cu.cuMemFree(memory))
    ok(cu.cuMemFreeHost(pinned))


def test_registered_memory() -> None:
    buffer = (ctypes.c_char * 4096)()
    there = ctypes.addressof(buffer)
    ok(cu.cuMemHostRegister(there, 4096, 0))
    assert code(cu.cuMemHostRegister(there + 100, 8, 0)) == 712
    assert code(cu.cuMemHostUnregister(there + 100)) == 1, "inside of it"
    assert code(cu.cuMemHostRegister(ok(cu.cuMemHostAlloc(64, 0)), 64, 0)) == 1, "pinned already"
    ok(cu.cuMemHostUnregister(there))
    assert code(cu.cuMemHostUnregister(there)) == 713


def test_whole_pages_round_memory_of_the_heap_can_be_registered() -> None:
    kept = []
    for _ in range(100):
        buffer = ctypes.create_string_buffer(16)
        pages = ctypes.addressof(buffer) & ~4095
        assert code(cu.cuMemHostRegister(pages, 8192, 0)) == 0, "shared with memory of the driver"
        ok(cu.cuMemHostUnregister(pages))
        kept += [buffer, ok(cu.cuMemAlloc(64)), ok(cu.cuMemHostAlloc(64, 0))]
        assert int(kept[-1]) % 4096 == int(kept[-2]) % 512 == 0
    for memory in kept[1::3]:
        ok(cu.cuMemFree(memory))
    for memory in kept[2::3]:
        ok(cu.cuMemFreeHost(memory))


def test_managed_memory(stream: Any) -> None:
    memory = ok(cu.cuMemAllocManaged(64, 1))
    ok(cu.cuStreamAttachMemAsync(stream, memory, 0, 4))
    ok(cu.cuMemsetD8Async(memory, 9, 64, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.c_uint8.from_address(int(memory)).value == 9
    ok(cu.cuMemFree(memory))


def test_kernels_are_known_by_name(stream: Any, kernels: Kernels) -> None:
    ran = []
    native = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p))(
        lambda parameters: ran.append(
            (
                ctypes.c_uint8.from_address(parameters[0]).value,
                ctypes.c_double.from_address(parameters[1]).value,
            )
        )
    )
    __import__("simdriver").keep.append(native)
    assert code(cu.cuModuleGetFunction(kernels.module, b"unknown")) == 500
    assert code(cu.cuModuleGetFunction(kernels.module, b"spi")) == 500
    simulator.register_kernel(
        "mine", ctypes.cast(native, ctypes.c_void_p).value or 0, parameters=[1, 8]
    )
    ok(kernels.launch("mine", stream, ctypes.c_uint8(3), ctypes.c_double(0.5)))
    ok(cu.cuStreamSynchronize(stream))
    assert ran == [(3, 0.5)]
    with pytest.raises(ValueError, match="positive size"):
        simulator.register_kernel("bad", 1, parameters=[0])
    assert code(cu.cuModuleLoadData(b"\x7fELF\x02\x01\x01\0")) == 200
    assert code(cu.cuModuleLoadData(b"nonsense\0")) == 200


def test_the_extra_buffer(stream: Any, kernels: Kernels) -> None:
    memory = ok(cu.cuMemAlloc(16))
    ok(cu.cuMemsetD32(memory, 0, 4))
    buffer = ctypes.create_string_buffer(struct.pack("QII", int(memory), 42, 3))
    size = ctypes.c_size_t(16)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    shape = (1, 1, 1, 1, 1, 1, 0)
    ok(cu.cuLaunchKernel(kernels.function("fill32"), *shape, stream, 0, ctypes.addressof(extra)))
    ok(cu.cuStreamSynchronize(stream))
    assert (ctypes.c_uint32 * 4).from_address(int(memory))[:] == [42, 42, 42, 0]
    size.value = 12
    assert (
        code(
            cu.cuLaunchKernel(
                kernels.function("fill32"), *shape, stream, 0, ctypes.addressof(extra)
            )
        )
        == 1
    )
    assert (
        code(cu.cuLaunchKernel(kernels.function("empty"), 0, 1, 1, 1, 1, 1, 0, stream, 0, 0)) == 1
    )
    assert (
        code(cu.cuLaunchKernel(kernels.function("empty"), 1, 1, 1, 2048, 1, 1, 0, stream, 0, 0))
        == 1
    )
    ok(cu.cuMemFree(memory))


def test_libraries(stream: Any) -> None:
    from simdriver import PTX

    library = ok(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
    kernel = ok(cu.cuLibraryGetKernel(library, b"empty"))
    function = ok(cu.cuKernelGetFunction(kernel))
    ok(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
    config = cu.CUlaunchConfig()
    for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"):
        setattr(config, name, 1)
    config.hStream = stream
    ok(cu.cuLaunchKernelEx(config, function, 0, 0))
    ok(cu.cuStreamSynchronize(stream))
    assert code(cu.cuLibraryGetKernel(library, b"unknown")) == 500
    ok(cu.cuLibraryUnload(library))
    assert code(cu.cuLibraryUnload(library)) == 400


def test_a_launch_needs_a_context(stream: Any, kernels: Kernels) -> None:
    assert in_thread(lambda: code(kernels.launch("empty", stream))) == 201


def test_nothing_is_allocated_of_0_bytes() -> None:
    """An error for device memory, and none for pinned memory."""
    for name, more, answer in (
        ("cuMemAlloc", (), 1),
        ("cuMemAllocManaged", (1,), 1),
        ("cuMemAllocHost", (), 0),
        ("cuMemHostAlloc", (0,), 0),
    ):
        out = ctypes.c_uint64(77)
        types = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_uint] * len(more)]
        assert raw(name, 6000, *types)(ctypes.addressof(out), 0, *more) == answer, name
        assert out.value == 0, name
