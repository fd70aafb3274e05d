"""Copies and fills of several rows, memory with a pitch, and access between devices."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import nogpu as simulator
from simdriver import Gate, code, cu, ok

HOST, DEVICE = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE


@pytest.fixture
def rows(driver: None) -> Iterator[Any]:
    """4 rows of 64 bytes, and their pitch."""
    memory, pitch = ok(cu.cuMemAllocPitch(64, 4, 4))
    assert pitch == 512
    ok(cu.cuMemsetD8(memory, 0, pitch * 4))
    ok(cu.cuCtxSynchronize())
    yield int(memory), pitch
    ok(cu.cuMemFree(memory))


def copy(**fields: Any) -> Any:
    made = cu.CUDA_MEMCPY2D()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def upload(memory: Any, source: Any, width: int = 16, height: int = 2, **fields: Any) -> Any:
    return copy(
        srcMemoryType=HOST, srcHost=ctypes.addressof(source), srcPitch=width,
        dstMemoryType=DEVICE, dstDevice=memory[0], dstPitch=memory[1],
        WidthInBytes=width, Height=height, **fields,
    )  # fmt: skip


def download(memory: Any, target: Any, width: int = 16, height: int = 2, **fields: Any) -> Any:
    return copy(
        srcMemoryType=DEVICE, srcDevice=memory[0], srcPitch=memory[1],
        dstMemoryType=HOST, dstHost=ctypes.addressof(target), dstPitch=width,
        WidthInBytes=width, Height=height, **fields,
    )  # fmt: skip


def test_rows_there_and_back(rows: Any) -> None:
    source, target = (
        ctypes.create_string_buffer(b"0123456789abcdefABCDEFGHIJKLMNOP", 32),
        ctypes.create_string_buffer(32),
    )
    ok(cu.cuMemcpy2D(upload(rows, source, dstY=1, dstXInBytes=8)))
    assert ctypes.string_at(rows[0] + rows[1] + 8, 16) == source.raw[:16]
    assert ctypes.string_at(rows[0] + 2 * rows[1] + 8, 16) == source.raw[16:]
    ok(cu.cuMemcpy2DUnaligned(download(rows, target, srcY=1, srcXInBytes=8)))
    assert target.raw == source.raw
    assert ctypes.string_at(rows[0], rows[1]) == bytes(rows[1]), "the row above is untouched"


def test_in_stream_order_and_pageable_memory(rows: Any, stream: Any, gate: Gate) -> None:
    source, target = ctypes.create_string_buffer(b"x" * 32, 32), ctypes.create_string_buffer(32)
    context, done = ok(cu.cuCtxGetCurrent()), threading.Event()
    gate.hold(stream)
    ok(cu.cuMemcpy2DAsync(upload(rows, source), stream))
    source.raw = b"y" * 32  # was read at the call

    def back() -> None:
        ok(cu.cuCtxSetCurrent(context))
        ok(
            cu.cuMemcpy2DAsync(download(rows, target), stream)
        )  # returns when it has been carried out
        done.set()

    thread = threading.Thread(target=back)
    thread.start()
    assert not done.wait(0.03)
    assert ctypes.string_at(rows[0], 1) == b"\0"
    gate.open()
    assert done.wait(10)
    thread.join()
    assert target.raw == b"x" * 32


def test_under_capture_rows_are_one_node(rows: Any, stream: Any) -> None:
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
    ok(cu.cuMemsetD2D8Async(rows[0], rows[1], 5, 16, 2, stream))
    ok(cu.cuMemcpy2DAsync(copy(
        srcMemoryType=DEVICE, srcDevice=rows[0], srcPitch=rows[1],
        dstMemoryType=DEVICE, dstDevice=rows[0], dstPitch=rows[1], dstY=2, WidthInBytes=16,
        Height=2,
    ), stream))  # fmt: skip
    graph = ok(cu.cuStreamEndCapture(stream))
    nodes = ok(cu.cuGraphGetNodes(graph, 4))
    assert [int(ok(cu.cuGraphNodeGetType(node))) for node in nodes[0][: nodes[1]]] == [2, 1]
    ok(cu.cuGraphLaunch(ok(cu.cuGraphInstantiate(graph, 0)), stream))
    ok(cu.cuStreamSynchronize(stream))
    for row in range(4):
        assert ctypes.string_at(rows[0] + row * rows[1], 17) == b"\5" * 16 + b"\0"


def test_fills_of_three_widths(rows: Any, stream: Any) -> None:
    memory, pitch = rows
    ok(cu.cuMemsetD2D32(memory, pitch, 0x01020304, 2, 2))
    ok(cu.cuMemsetD2D16Async(memory + pitch, pitch, 0xABCD, 1, 1, stream))
    ok(cu.cuMemsetD2D8Async(memory, pitch, 9, 1, 1, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert ctypes.string_at(memory, 9) == b"\x09\x03\x02\x01" + b"\x04\x03\x02\x01\0"
    assert ctypes.string_at(memory + pitch, 9) == b"\xcd\xab\x02\x01" + b"\x04\x03\x02\x01\0"
    assert code(cu.cuMemsetD2D32(memory + 2, pitch, 1, 1, 1)) == 1, "not aligned"
    assert code(cu.cuMemsetD2D32(memory, 6, 1, 1, 2)) == 1, "the second row is not aligned"
    assert code(cu.cuMemsetD2D8(memory, 8, 1, 16, 2)) == 1, "the pitch is less than a row"
    assert code(cu.cuMemsetD2D8(memory, pitch, 1, pitch, 5)) == 1, "more than there is"
    ok(cu.cuMemsetD2D8(memory, pitch, 1, 0, 5))


def test_rows_that_are_refused(rows: Any) -> None:
    source = ctypes.create_string_buffer(64)
    assert code(cu.cuMemcpy2D(upload(rows, source, dstY=3))) == 1, "beyond the memory"
    assert code(cu.cuMemcpy2D(copy(WidthInBytes=4, Height=1))) == 1, "of no memory"
    narrow = upload(rows, source)
    narrow.srcPitch = 8
    assert code(cu.cuMemcpy2D(narrow)) == 1
    narrow.Height = 1
    assert code(cu.cuMemcpy2D(narrow)) == 1, "the pitch is looked at for one row too"
    narrow.srcPitch = 0
    ok(cu.cuMemcpy2D(narrow))
    ok(cu.cuMemcpy2D(upload(rows, source, height=0)))
    for arguments in ((64, 4, 3), (0, 4, 4), (64, 0, 4)):
        assert code(cu.cuMemAllocPitch(*arguments)) == 1, arguments
    assert code(cu.cuMemAllocPitch(64, 1 << 60, 4)) in (1, 2)


def test_three_dimensions(rows: Any) -> None:
    memory, pitch = rows
    source = ctypes.create_string_buffer(bytes(range(32)), 32)
    volume = cu.CUDA_MEMCPY3D()
    volume.srcMemoryType, volume.srcHost, volume.srcPitch, volume.srcHeight = (
        HOST,
        ctypes.addressof(source),
        8,
        2,
    )
    volume.dstMemoryType, volume.dstDevice, volume.dstPitch, volume.dstHeight = (
        DEVICE,
        memory,
        pitch,
        2,
    )
    volume.WidthInBytes, volume.Height, volume.Depth = 8, 2, 2
    ok(cu.cuMemcpy3D(volume))
    for row in range(4):
        assert ctypes.string_at(memory + row * pitch, 8) == source.raw[row * 8 : row * 8 + 8]


def test_a_fault_is_injected_by_name(rows: Any) -> None:
    simulator.fail("cuMemsetD2D8", 2)
    assert code(cu.cuMemsetD2D8(rows[0], rows[1], 1, 1, 1)) == 2


def test_peers() -> None:
    first, second = ok(cu.cuCtxGetCurrent()), ok(cu.cuDevicePrimaryCtxRetain(1))
    attribute = cu.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    assert (
        ok(cu.cuDeviceCanAccessPeer(0, 1)) == ok(cu.cuDeviceGetP2PAttribute(attribute, 0, 1)) == 1
    )
    assert ok(cu.cuDeviceCanAccessPeer(0, 0)) == 0
    assert (
        code(cu.cuDeviceGetP2PAttribute(attribute, 0, 0))
        == code(cu.cuDeviceGetP2PAttribute(attribute, 0, 9))
        == 101
    )
    assert code(cu.cuCtxDisablePeerAccess(second)) == 705
    ok(cu.cuCtxEnablePeerAccess(second, 0))
    assert code(cu.cuCtxEnablePeerAccess(second, 0)) == 704
    assert code(cu.cuCtxEnablePeerAccess(second, 1)) == 1
    assert code(cu.cuCtxEnablePeerAccess(first, 0)) == 217, "it is the current one"
    ok(cu.cuCtxDisablePeerAccess(second))
    ok(cu.cuDevicePrimaryCtxRelease(1))


@pytest.mark.parametrize(
    "fields", [{"srcXInBytes": 500}, {"srcY": 3}, {"dstXInBytes": 5}, {"srcPitch": 15}]
)
def test_rows_that_do_not_fit(rows: Any, fields: dict[str, int]) -> None:
    """A row ends before the next one begins, and the last one with its memory."""
    target = ctypes.create_string_buffer(32)
    asked = download(rows, target)
    for name, value in fields.items():
        setattr(asked, name, value)
    assert code(cu.cuMemcpy2D(asked)) == 1


def test_rows_do_not_reach_into_the_memory_behind() -> None:
    """Two allocations may lie side by side."""
    several = sorted(int(ok(cu.cuMemAlloc(4096))) for _ in range(8))
    for memory in several:
        asked = copy(
            srcMemoryType=DEVICE, srcDevice=memory, srcPitch=512, srcY=7,
            dstMemoryType=DEVICE, dstDevice=several[0], dstPitch=512, WidthInBytes=4, Height=2,
        )  # fmt: skip
        assert code(cu.cuMemcpy2D(asked)) == 1
    for memory in several:
        ok(cu.cuMemFree(memory))


def test_a_pitch_of_0_is_that_of_rows_without_a_gap(rows: Any) -> None:
    """The row is as long as what is left out of it and what is copied."""
    source, target = ctypes.create_string_buffer(b"0123456789abcdef", 16), bytes(6)
    ok(cu.cuMemcpyHtoD(rows[0], ctypes.addressof(source), 16))
    buffer = ctypes.create_string_buffer(target, 6)
    asked = download(rows, buffer, width=3, srcXInBytes=1, srcY=1)
    asked.srcPitch = 0
    ok(cu.cuMemcpy2D(asked))
    assert buffer.raw == b"5679ab"
