"""What a stream does with memory by itself: values waited for and written, batches, and managed
memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

import internals
from aiostream import (
    CudaError,
    Device,
    DevResourceType,
    FlushRemoteWrites,
    GraphNodeType,
    MemAttach,
    MemoryBarrier,
    MemoryBarrierType,
    NotSupportedError,
    Stream,
    StreamCaptureError,
    StreamClosedError,
    WaitValue,
    WaitValueFlags,
    WriteValue,
    WriteValueFlags,
)


class Words:
    """Pinned memory that host and device see."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.small = (ctypes.c_uint32 * 16).from_address(address)
        self.large = (ctypes.c_uint64 * 8).from_address(address)
        ctypes.memset(address, 0, 64)


@pytest.fixture
def words() -> Iterator[Words]:
    with Device(0).primary_context.as_current():
        address = int(internals.driver_call("cuMemHostAlloc", 64, 3))
    yield Words(address)
    with Device(0).primary_context.as_current():
        internals.driver_call("cuMemFreeHost", address)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(
    "case",
    [
        (WaitValueFlags.GEQ, 5, 4, 6),
        (WaitValueFlags.EQ, 5, 6, 5),
        (WaitValueFlags.AND, 4, 3, 5),
        (WaitValueFlags.NOR, ~1, 1, 0),
    ],
)
async def test_work_waits_for_a_value(stream: Stream, words: Words, bits: int, case: Any) -> None:
    flags, wanted, before, after = case
    memory: Any = words.small if bits == 32 else words.large
    memory[0] = before
    stream.wait_value(words.address, wanted & ((1 << bits) - 1), flags, bits=bits)
    future = stream.completion_future()
    assert not stream.query()
    memory[0] = after
    await future


@pytest.mark.parametrize("bits", [32, 64])
def test_values_are_written_in_order(stream: Stream, words: Words, bits: int) -> None:
    last = (1 << bits) - 1
    for value in (1, 2, last):
        stream.write_value(words.address + 8, value, bits=bits)
    stream.synchronize()
    assert (words.small[2] if bits == 32 else words.large[1]) == last
    try:
        stream.write_value(words.address + 16, 7, WriteValueFlags.NO_MEMORY_BARRIER, bits=bits)
    except CudaError as error:  # the manual says that not every device can
        assert error.code in (1, 801)  # noqa: PT017
    else:
        stream.synchronize()
        assert words.small[4] == 7


def test_a_batch_is_done_in_order(stream: Stream, words: Words) -> None:
    pointer = internals.bindings().CUdeviceptr(words.address)
    stream.batch_mem_op(
        [
            WaitValue(pointer, 1),
            WriteValue(words.address + 4, 11),
            WriteValue(words.address + 8, 1 << 40, bits=64),
            WaitValue(words.address + 8, 1 << 40, WaitValueFlags.EQ, 64),
            WriteValue(words.address + 16, 13, WriteValueFlags.DEFAULT),
        ]
    )
    assert not stream.query()
    assert list(words.small[:5]) == [0] * 5
    words.small[0] = 1
    stream.synchronize()
    assert (words.small[1], words.large[1], words.small[4]) == (11, 1 << 40, 13)


def test_barriers_and_flushes(stream: Stream, words: Words) -> None:
    """Not every device can flush."""
    for kind in MemoryBarrierType:
        try:
            stream.batch_mem_op(
                [WriteValue(words.address, 1), MemoryBarrier(kind), WriteValue(words.address, 2)]
            )
        except CudaError as error:
            assert error.call == "cuStreamBatchMemOp"  # noqa: PT017
    try:
        stream.batch_mem_op([FlushRemoteWrites()])
    except CudaError as error:
        assert error.code in (1, 801)  # noqa: PT017
    stream.synchronize()


def test_memory_operations_are_captured(stream: Stream, words: Words) -> None:
    with stream.capture() as capture:
        stream.write_value(words.address, 5)
        stream.batch_mem_op([WriteValue(words.address + 4, 6), WriteValue(words.address + 8, 7)])
    with capture.graph as graph, graph.instantiate() as executable:
        assert {node.type for node in graph.nodes} == {GraphNodeType.BATCH_MEM_OP}
        assert words.small[0] == 0
        executable.launch(stream)
        stream.synchronize()
    assert list(words.small[:3]) == [5, 6, 7]


def test_wrong_values_are_refused_before_the_driver_is_asked(stream: Stream, words: Words) -> None:
    here = words.address
    wrong: list[tuple[type[Exception], Any]] = [
        (ValueError, lambda: stream.wait_value(here, -1)),
        (ValueError, lambda: stream.wait_value(here, 1 << 32)),
        (ValueError, lambda: stream.write_value(here, 1 << 64, bits=64)),
        (ValueError, lambda: stream.write_value(here, 1, bits=16)),
        (TypeError, lambda: stream.wait_value("here", 1)),
        (TypeError, lambda: stream.wait_value(1.5, 1)),
        (TypeError, lambda: stream.wait_value(True, 1)),
        (TypeError, lambda: stream.write_value(here, 1.5)),  # type: ignore[arg-type]
        (ValueError, lambda: stream.batch_mem_op([])),
        (ValueError, lambda: stream.batch_mem_op([WriteValue(here, 1)] * 256)),
        (TypeError, lambda: stream.batch_mem_op([("write", here, 1)])),
        (ValueError, lambda: stream.batch_mem_op([WriteValue(here, 1), WaitValue(here, -1)])),
        (ValueError, lambda: stream.attach_mem_async(here, -1)),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    stream.synchronize()
    assert list(words.small) == [0] * 16


def test_refusals_of_the_driver(stream: Stream, words: Words) -> None:
    with pytest.raises(CudaError) as caught:
        stream.write_value(words.address + 2, 1)  # not aligned
    assert (caught.value.code, caught.value.call) == (1, "cuStreamWriteValue32")
    stream.synchronize()


def test_managed_memory_is_attached(stream: Stream) -> None:
    with Device(0).primary_context.as_current():
        pointer = internals.driver_call("cuMemAllocManaged", 4096, MemAttach.GLOBAL.value)
    for flags in MemAttach:
        stream.attach_mem_async(pointer, 0, flags)
        stream.attach_mem_async(int(pointer), 4096, flags)
    stream.synchronize()
    with stream.capture() as capture, pytest.raises(StreamCaptureError):
        stream.attach_mem_async(pointer)
    capture.graph.close()
    with pytest.raises(CudaError) as caught:
        stream.attach_mem_async(1 << 20)  # an address where no memory is
    assert caught.value.call == "cuStreamAttachMemAsync"
    with Device(0).primary_context.as_current():
        internals.driver_call("cuMemFree", pointer)


def test_dev_resource(stream: Stream) -> None:
    try:
        resource = stream.dev_resource(DevResourceType.SM)
    except NotSupportedError as error:
        pytest.skip(str(error))
    assert resource.sm_count > 0
    stream.close()
    with pytest.raises(StreamClosedError):
        stream.dev_resource()
