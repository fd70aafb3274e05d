"""What a stream does with memory by itself: waiting for a value, writing one, attaching managed memory; and its resources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiostream import _arguments, _driver
from aiostream._reference import Reference, call_on, refuse_capture
from aiostream.enums import (
    DevResourceType,
    MemAttach,
    MemoryBarrierType,
    WaitValueFlags,
    WriteValueFlags,
)

__all__ = ["DevResource", "FlushRemoteWrites", "MemoryBarrier", "WaitValue", "WriteValue"]

_MOST_OPERATIONS = 255  # of one cuStreamBatchMemOp
_WAIT_32, _WRITE_32, _FLUSH, _WAIT_64, _WRITE_64, _BARRIER = range(1, 7)  # CUstreamBatchMemOpType


@dataclass(frozen=True, slots=True)
class WaitValue:
    """For `Stream.batch_mem_op`: what `Stream.wait_value` does, with the same arguments."""

    pointer: int
    value: int
    flags: WaitValueFlags = WaitValueFlags.GEQ
    bits: int = 32


@dataclass(frozen=True, slots=True)
class WriteValue:
    """For `Stream.batch_mem_op`: what `Stream.write_value` does, with the same arguments."""

    pointer: int
    value: int
    flags: WriteValueFlags = WriteValueFlags.DEFAULT
    bits: int = 32


@dataclass(frozen=True, slots=True)
class FlushRemoteWrites:
    """For `Stream.batch_mem_op`: makes remote writes that came before visible."""


@dataclass(frozen=True, slots=True)
class MemoryBarrier:
    """For `Stream.batch_mem_op`: orders the memory operations before it and behind it."""

    kind: MemoryBarrierType = MemoryBarrierType.SYS


@dataclass(frozen=True, slots=True)
class DevResource:
    """A device's resources that a stream may use (`CUdevResource`)."""

    kind: DevResourceType
    sm_count: int
    """How many multiprocessors, for `DevResourceType.SM`; else 0."""
    raw: Any
    """The bindings' own structure, for the driver's other functions."""


def _address(pointer: Any) -> int:
    """An address, a `CUdeviceptr`, or whatever else becomes an int."""
    if isinstance(pointer, bool) or not hasattr(pointer, "__int__") or isinstance(pointer, float):
        raise TypeError(f"an address is needed, not {type(pointer).__name__}")
    return _arguments.address(int(pointer))


def _check(value: Any, bits: int) -> None:
    if bits not in (32, 64):
        raise ValueError(f"a value has 32 or 64 bits, not {bits}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"the value is an int, not {type(value).__name__}")
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{value} is no unsigned number of {bits} bits")


def _wait_value(stream: Reference, operation: WaitValue) -> None:
    flags = int(_arguments.member(WaitValueFlags, operation.flags, "flags"))
    _one(stream, f"cuStreamWaitValue{operation.bits}", operation, flags)


def _write_value(stream: Reference, operation: WriteValue) -> None:
    flags = int(_arguments.member(WriteValueFlags, operation.flags, "flags"))
    _one(stream, f"cuStreamWriteValue{operation.bits}", operation, flags)


def _one(stream: Reference, name: str, operation: WaitValue | WriteValue, flags: int) -> None:
    _check(operation.value, operation.bits)
    pointer = _driver.bindings().CUdeviceptr(_address(operation.pointer))
    call_on(stream, name, pointer, operation.value, flags)


def _batch(stream: Reference, operations: Iterable[Any]) -> None:
    if not isinstance(operations, Iterable):
        raise TypeError(f"operations are in a list or tuple, not one {type(operations).__name__}")
    raw = [_as_driver_operation(operation) for operation in operations]
    if not 0 < len(raw) <= _MOST_OPERATIONS:
        raise ValueError(f"a batch has 1 to {_MOST_OPERATIONS} operations, not {len(raw)}")
    call_on(stream, "cuStreamBatchMemOp", len(raw), raw, 0)


def _as_driver_operation(operation: Any) -> Any:
    driver = _driver.bindings()
    raw = driver.CUstreamBatchMemOpParams()
    if isinstance(operation, (WaitValue, WriteValue)):
        waits = isinstance(operation, WaitValue)
        _check(operation.value, operation.bits)
        kinds = {32: _WAIT_32, 64: _WAIT_64} if waits else {32: _WRITE_32, 64: _WRITE_64}
        kind = driver.CUstreamBatchMemOpType(kinds[operation.bits])
        part = raw.waitValue if waits else raw.writeValue
        part.operation = kind
        part.address = driver.CUdeviceptr(_address(operation.pointer))
        if operation.bits == 32:
            part.value = driver.cuuint32_t(operation.value)
        else:
            part.value64 = driver.cuuint64_t(operation.value)
        part.flags = int(
            _arguments.member(
                WaitValueFlags if waits else WriteValueFlags, operation.flags, "flags"
            )
        )
    elif isinstance(operation, FlushRemoteWrites):
        raw.flushRemoteWrites.operation = driver.CUstreamBatchMemOpType(_FLUSH)
        raw.flushRemoteWrites.flags = 0
    elif isinstance(operation, MemoryBarrier):
        raw.memoryBarrier.operation = driver.CUstreamBatchMemOpType(_BARRIER)
        raw.memoryBarrier.flags = int(_arguments.member(MemoryBarrierType, operation.kind, "kind"))
    else:
        raise TypeError(
            f"an operation is a WaitValue, WriteValue, FlushRemoteWrites or MemoryBarrier, not {operation!r}"
        )
    return raw


def _attach(stream: Reference, pointer: Any, length: int, flags: MemAttach) -> None:
    size = _arguments.address(_arguments.integer("length", length))
    who = int(_arguments.member(MemAttach, flags, "flags"))
    address = _driver.bindings().CUdeviceptr(_address(pointer))
    refuse_capture(stream, "cuStreamAttachMemAsync")
    call_on(stream, "cuStreamAttachMemAsync", address, size, who)


def _dev_resource(stream: Reference, kind: DevResourceType) -> DevResource:
    kind = _arguments.member(DevResourceType, kind, "kind")
    if not _driver.supports("cuStreamGetDevResource"):
        raise _driver.too_old("cuStreamGetDevResource", stream.name)
    refuse_capture(stream, "cuStreamGetDevResource")
    raw = call_on(stream, "cuStreamGetDevResource", _driver.bindings().CUdevResourceType(int(kind)))
    return DevResource(kind, int(raw.sm.smCount) if kind is DevResourceType.SM else 0, raw)


class MemoryStream:
    """What a `Stream` does with memory by itself; it inherits this from here."""

    _reference: Reference  # set by `Stream`

    def attach_mem_async(
        self, pointer: Any, length: int = 0, flags: MemAttach = MemAttach.SINGLE
    ) -> None:
        """Says, in the stream's order, who may touch managed memory (`cuStreamAttachMemAsync`).

        Args:
            pointer: The address of memory from `cuMemAllocManaged`; or of pageable memory, where the device can access that.
            length: In bytes; for managed memory 0, which means all of it, or its whole size.
            flags: Who may.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures, which the driver cannot do with this; it was not touched.
            CudaError: The driver refused, for example what is no managed memory.
        """
        _attach(self._reference, pointer, length, flags)

    def wait_value(
        self,
        pointer: Any,
        value: int,
        flags: WaitValueFlags = WaitValueFlags.GEQ,
        *,
        bits: int = 32,
    ) -> None:
        """Makes later work wait, on the GPU, until a number in memory is as wanted (`cuStreamWaitValue32` or `64`).

        The driver does not see such an order between streams, and may deadlock on it where hardware queues are shared; a
        pending wait holds one of them.

        Args:
            pointer: The number's address on the device; pinned host memory will do.
            value: What it is compared with, unsigned.
            flags: How.
            bits: 32 or 64.

        Raises:
            TypeError: The address or the value is no int.
            ValueError: The value does not fit.
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
        """
        _wait_value(self._reference, WaitValue(pointer, value, flags, bits))

    def write_value(
        self,
        pointer: Any,
        value: int,
        flags: WriteValueFlags = WriteValueFlags.DEFAULT,
        *,
        bits: int = 32,
    ) -> None:
        """Writes a number to memory in the stream's order (`cuStreamWriteValue32` or `64`); arguments as of `wait_value`."""
        _write_value(self._reference, WriteValue(pointer, value, flags, bits))

    def batch_mem_op(self, operations: Iterable[Any]) -> None:
        """Several operations on memory in one call, in their order (`cuStreamBatchMemOp`).

        Args:
            operations: 1 to 255 of `WaitValue`, `WriteValue`, `FlushRemoteWrites` and `MemoryBarrier`.

        Raises:
            TypeError: Something else is among them.
            ValueError: None, too many, or a value does not fit.
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
        """
        _batch(self._reference, operations)

    def dev_resource(self, kind: DevResourceType = DevResourceType.SM) -> DevResource:
        """Which resources of the device the stream may use (`cuStreamGetDevResource`).

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures; it was not touched.
            NotSupportedError: The driver is older than CUDA 13.1.
            CudaError: The driver refused; it tells of multiprocessors only.
        """
        return _dev_resource(self._reference, kind)
