"""What a stream does with memory: it waits for a value, writes one, or attaches managed memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiostream._base import checks, driver
from aiostream._handles.operand import Operand, WithOperand, call_on, refuse_capture
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
    """An operation of `Stream.batch_mem_op`, which does what `Stream.wait_value` does."""

    pointer: int
    value: int
    flags: WaitValueFlags = WaitValueFlags.GEQ
    bits: int = 32


@dataclass(frozen=True, slots=True)
class WriteValue:
    """An operation of `Stream.batch_mem_op`, which does what `Stream.write_value` does."""

    pointer: int
    value: int
    flags: WriteValueFlags = WriteValueFlags.DEFAULT
    bits: int = 32


@dataclass(frozen=True, slots=True)
class FlushRemoteWrites:
    """An operation of `Stream.batch_mem_op`. It makes earlier remote writes visible."""


@dataclass(frozen=True, slots=True)
class MemoryBarrier:
    """An operation of `Stream.batch_mem_op`. It orders the operations before it and after it."""

    kind: MemoryBarrierType = MemoryBarrierType.SYS


@dataclass(frozen=True, slots=True)
class DevResource:
    """A device's resources that a stream may use (`CUdevResource`).

    Attributes:
        sm_count: How many multiprocessors, for `DevResourceType.SM`. Otherwise 0.
        raw: The bindings' own structure, which you can pass to other functions of the driver.
    """

    kind: DevResourceType
    sm_count: int
    raw: Any


def _address(pointer: Any) -> int:
    """The address that an int, a `CUdeviceptr` or another object with `__int__` stands for."""
    if isinstance(pointer, bool) or not hasattr(pointer, "__int__") or isinstance(pointer, float):
        raise TypeError(f"an address is needed, not {type(pointer).__name__}")
    return checks.address(int(pointer))


def _checked(operation: WaitValue | WriteValue) -> tuple[Any, int]:
    """The address and the flags of an operation, as the driver takes them."""
    kind = WaitValueFlags if isinstance(operation, WaitValue) else WriteValueFlags
    flags = int(checks.member(kind, operation.flags, "flags"))
    value, bits = operation.value, operation.bits
    if bits not in (32, 64):
        raise ValueError(f"a value has 32 or 64 bits, not {bits}")
    if not 0 <= checks.integer("the value", value) < 1 << bits:
        raise ValueError(f"{value} is not an unsigned number of {bits} bits")
    return driver.bindings().CUdeviceptr(_address(operation.pointer)), flags


def _one(stream: Operand, name: str, operation: WaitValue | WriteValue) -> None:
    pointer, flags = _checked(operation)
    call_on(stream, f"{name}{operation.bits}", pointer, operation.value, flags)


def _as_driver_operation(operation: Any) -> Any:
    cuda = driver.bindings()
    raw = cuda.CUstreamBatchMemOpParams()
    if isinstance(operation, (WaitValue, WriteValue)):
        waits = isinstance(operation, WaitValue)
        kinds = {32: _WAIT_32, 64: _WAIT_64} if waits else {32: _WRITE_32, 64: _WRITE_64}
        part = raw.waitValue if waits else raw.writeValue
        part.address, part.flags = _checked(operation)
        part.operation = cuda.CUstreamBatchMemOpType(kinds[operation.bits])
        # Its lower half is the value of 32 bits.
        part.value64 = cuda.cuuint64_t(operation.value)
    elif isinstance(operation, FlushRemoteWrites):
        raw.flushRemoteWrites.operation = cuda.CUstreamBatchMemOpType(_FLUSH)
        raw.flushRemoteWrites.flags = 0
    elif isinstance(operation, MemoryBarrier):
        raw.memoryBarrier.operation = cuda.CUstreamBatchMemOpType(_BARRIER)
        raw.memoryBarrier.flags = int(checks.member(MemoryBarrierType, operation.kind, "kind"))
    else:
        raise TypeError(
            "an operation is a WaitValue, WriteValue, FlushRemoteWrites or MemoryBarrier, not "
            f"{operation!r}"
        )
    return raw


class MemoryMethods(WithOperand):
    """What a `Stream` does with memory. It inherits this from here."""

    def attach_mem_async(
        self, pointer: Any, length: int = 0, flags: MemAttach = MemAttach.SINGLE
    ) -> None:
        """Sets which streams may access managed memory (`cuStreamAttachMemAsync`).

        It takes effect in the stream's order.

        Args:
            pointer: The address of memory from `cuMemAllocManaged`, or of pageable memory if the
                device can access that.
            length: In bytes. For managed memory it is 0, which means all of it, or its whole size.
            flags: Which streams may access it.

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures, and the driver cannot capture this. The capture
                goes on.
            CudaError: The driver refused, for example because this is not managed memory.
        """
        size = checks.address(checks.integer("length", length))
        who = int(checks.member(MemAttach, flags, "flags"))
        address = driver.bindings().CUdeviceptr(_address(pointer))
        refuse_capture(self._operand, "cuStreamAttachMemAsync")
        call_on(self._operand, "cuStreamAttachMemAsync", address, size, who)

    def wait_value(
        self,
        pointer: Any,
        value: int,
        flags: WaitValueFlags = WaitValueFlags.GEQ,
        *,
        bits: int = 32,
    ) -> None:
        """Makes later work wait, on the GPU, until a number in memory has a value.

        (`cuStreamWaitValue32`, `cuStreamWaitValue64`.)

        The driver does not see that the stream depends on the stream that writes the number. So if
        both share a hardware queue, they may deadlock. A pending wait holds one of the queues.
        Prefer `wait_event` where you can.

        Args:
            pointer: The number's address on the device, or in pinned host memory.
            value: The unsigned number with which it is compared.
            flags: How it is compared.
            bits: 32 or 64.

        Raises:
            TypeError: The address or the value is not an int.
            ValueError: The value does not fit.
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
        """
        _one(self._operand, "cuStreamWaitValue", WaitValue(pointer, value, flags, bits))

    def write_value(
        self,
        pointer: Any,
        value: int,
        flags: WriteValueFlags = WriteValueFlags.DEFAULT,
        *,
        bits: int = 32,
    ) -> None:
        """Writes a number to memory in the stream's order (`cuStreamWriteValue32` or `64`).

        The arguments and errors are those of `wait_value`.
        """
        _one(self._operand, "cuStreamWriteValue", WriteValue(pointer, value, flags, bits))

    def batch_mem_op(self, operations: Iterable[Any]) -> None:
        """Enqueues several operations on memory in one call, in their order (`cuStreamBatchMemOp`).

        Args:
            operations: 1 to 255 of `WaitValue`, `WriteValue`, `FlushRemoteWrites` and
                `MemoryBarrier`.

        Raises:
            TypeError: One of them is something else.
            ValueError: There are too few or too many, or a value does not fit.
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
        """
        raw = [*map(_as_driver_operation, checks.several("operations", operations))]
        if not 0 < len(raw) <= _MOST_OPERATIONS:
            raise ValueError(f"a batch has 1 to {_MOST_OPERATIONS} operations, not {len(raw)}")
        call_on(self._operand, "cuStreamBatchMemOp", len(raw), raw, 0)

    def dev_resource(self, kind: DevResourceType = DevResourceType.SM) -> DevResource:
        """Returns which resources of the device the stream may use (`cuStreamGetDevResource`).

        Raises:
            StreamClosedError: The stream is closed.
            StreamCaptureError: The stream captures. The capture goes on.
            NotSupportedError: The driver is older than CUDA 13.1.
            CudaError: The driver refused. It knows multiprocessors only.
        """
        stream, name = self._operand, "cuStreamGetDevResource"
        kind = checks.member(DevResourceType, kind, "kind")
        driver.require(name, stream.name)
        refuse_capture(stream, name)
        raw = call_on(stream, name, driver.bindings().CUdevResourceType(int(kind)))
        return DevResource(kind, int(raw.sm.smCount) if kind is DevResourceType.SM else 0, raw)
