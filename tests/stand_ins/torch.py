"""A stand-in for torch, for machines without torch or a GPU.

It has what the benchmark, the examples and the documents use.

Tensors are 4-byte floats in the driver's memory. An operation on the GPU launches one short
kernel on the current stream and returns its input, so a model's result is its input, and arrives
only when the stream has done its work. A copy into fewer columns takes the first ones of each
row. Current streams, copies, events, captures and the memory that belongs to a stream are as
torch has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Self

from cuda.bindings import driver

import aiostream
from benchmarks import lanes

__version__ = "0.stand-in"
bfloat16 = "bfloat16"
int64 = "int64"  # its numbers are floats too
KERNEL = 1_000  # ns
_SIZE = 4  # bytes of a number


def _call(name: str, *arguments: Any) -> Any:
    code, *results = getattr(driver, name)(*arguments)
    if code:
        raise RuntimeError(f"{name}: {code!r}")
    return results[0] if results else None


class _Device:
    """What is made once: the kernel, and the memory that was given back, by its stream and size."""

    def __init__(self) -> None:
        self.context = aiostream.Device(0).primary_context
        with self.context.as_current():
            self.kernel = lanes.load()
        self.given_back: dict[tuple[int, int], list[Any]] = {}


class _Thread(threading.local):
    stream: Stream | None = None
    device: _Device | None = None


_thread = _Thread()
_devices: list[_Device] = []


def _device() -> _Device:
    """The device, with its primary context current in this thread, as the runtime makes it."""
    if _thread.device is None:
        if not _devices:
            _devices.append(_Device())
        _thread.device = _devices[0]
        _call("cuCtxSetCurrent", driver.CUcontext(_thread.device.context.handle))
    return _thread.device


# --------------------------------------------------------------------------------------- torch.cuda


class Stream:
    """`torch.cuda.Stream`; never destroyed, as torch's."""

    def __init__(self, handle: int | None = None) -> None:
        device = _device()
        self.cuda_stream = int(_call("cuStreamCreate", 1)) if handle is None else handle
        self._cu_stream = driver.CUstream(self.cuda_stream)
        self.lane = lanes.Lane(SimpleNamespace(handle=self.cuda_stream), device.kernel)

    def synchronize(self) -> None:
        _call("cuStreamSynchronize", self._cu_stream)

    def query(self) -> bool:
        (code,) = driver.cuStreamQuery(self._cu_stream)
        assert code in (0, 600)
        return int(code) == 0

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event


class ExternalStream(Stream):
    """`torch.cuda.ExternalStream`."""

    def __init__(self, handle: int, device: Any = None) -> None:
        super().__init__(handle)


class Event:
    """`torch.cuda.Event`."""

    def __init__(self) -> None:
        _device()
        self._event = _call("cuEventCreate", 2)

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or _current_stream()
        _call("cuEventRecord", self._event, driver.CUstream(stream.cuda_stream))

    def query(self) -> bool:
        (code,) = driver.cuEventQuery(self._event)
        assert code in (0, 600)
        return int(code) == 0

    def __del__(self) -> None:
        driver.cuEventDestroy(self._event)


class CUDAGraph:
    """`torch.cuda.CUDAGraph`."""

    executable: Any = None

    def replay(self) -> None:
        _call("cuGraphLaunch", self.executable, driver.CUstream(_current_stream().cuda_stream))


_DEFAULT: list[Stream] = []


def _current_stream(device: Any = None) -> Stream:
    _device()
    if _thread.stream is None:
        if not _DEFAULT:
            _DEFAULT.append(Stream(1))  # the legacy stream
        _thread.stream = _DEFAULT[0]
    return _thread.stream


def _set_stream(stream: Stream) -> None:
    _device()
    _thread.stream = stream


@contextlib.contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    before = _current_stream()
    _set_stream(stream)
    try:
        yield
    finally:
        _set_stream(before)


@contextlib.contextmanager
def _graph(
    graph: CUDAGraph, *, stream: Stream, capture_error_mode: str = "global"
) -> Iterator[None]:
    _synchronize()
    name = f"CU_STREAM_CAPTURE_MODE_{capture_error_mode.upper()}"
    cu_stream, mode = driver.CUstream(stream.cuda_stream), getattr(driver.CUstreamCaptureMode, name)
    with _stream(stream):
        _call("cuStreamBeginCapture", cu_stream, mode)
        try:
            yield
        finally:
            captured = _call("cuStreamEndCapture", cu_stream)
    graph.executable = _call("cuGraphInstantiate", captured, 0)
    _call("cuGraphDestroy", captured)


def _synchronize() -> None:
    _device()
    _call("cuCtxSynchronize")


cuda = SimpleNamespace(
    Stream=Stream,
    ExternalStream=ExternalStream,
    Event=Event,
    CUDAGraph=CUDAGraph,
    current_stream=_current_stream,
    set_stream=_set_stream,
    stream=_stream,
    graph=_graph,
    synchronize=_synchronize,
    is_available=lambda: True,
)


# ------------------------------------------------------------------------------------------ tensors


class Memory:
    """A block of the driver's memory.

    On the GPU it goes back to those of the stream on which it was allocated.
    """

    def __init__(self, count: int, on_gpu: bool) -> None:
        device = _device()
        self.key: tuple[int, int] | None = None
        if on_gpu:
            self.key = (_current_stream().cuda_stream, count)
            free = device.given_back.setdefault(self.key, [])
            self.address = free.pop() if free else int(_call("cuMemAlloc", count * _SIZE))
        else:
            self.address = int(_call("cuMemHostAlloc", count * _SIZE, 0))

    def __del__(self) -> None:
        if self.key is None:
            driver.cuMemFreeHost(self.address)
        else:
            _devices[0].given_back[self.key].append(self.address)


class Tensor:
    """`torch.Tensor`."""

    def __init__(
        self, count: int, on_gpu: bool = False, memory: Memory | None = None, *, columns: int = 1
    ) -> None:
        self.count, self.on_gpu, self.columns = count, on_gpu, columns
        self.memory = memory or Memory(count, on_gpu)

    @property
    def numbers(self) -> Any:
        assert not self.on_gpu
        return (ctypes.c_float * self.count).from_address(self.memory.address)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.count // self.columns, self.columns)

    def clone(self) -> Tensor:
        return self.to("cuda" if self.on_gpu else "cpu")

    def to(self, what: str, non_blocking: bool = False) -> Tensor:
        if what == bfloat16:
            return self
        found = Tensor(self.count, what == "cuda", columns=self.columns)
        found.copy_(self, non_blocking=non_blocking)
        return found

    def cuda(self, non_blocking: bool = False) -> Tensor:
        return self.to("cuda", non_blocking)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def pin_memory(self) -> Tensor:
        assert not self.on_gpu
        return self  # all memory of the host is pinned here

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Tensor:
        count = min(self.count, source.count)  # the model's layers keep their input's size
        if not (self.on_gpu or source.on_gpu):
            ctypes.memmove(self.memory.address, source.memory.address, count * _SIZE)
            return self
        stream = _current_stream()
        if self.columns < source.columns:
            _call("cuMemcpy2DAsync", self._columns_of(source), driver.CUstream(stream.cuda_stream))
        else:
            to, origin = self.memory.address, source.memory.address
            _call("cuMemcpyAsync", to, origin, count * _SIZE, driver.CUstream(stream.cuda_stream))
        if not non_blocking:
            stream.synchronize()
        return self

    def _columns_of(self, source: Tensor) -> Any:
        copy, unified = driver.CUDA_MEMCPY2D(), driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        copy.srcMemoryType, copy.dstMemoryType = unified, unified
        copy.srcDevice, copy.dstDevice = source.memory.address, self.memory.address
        copy.srcPitch, copy.dstPitch = source.columns * _SIZE, self.columns * _SIZE
        copy.WidthInBytes, copy.Height = self.columns * _SIZE, self.count // self.columns
        return copy

    def tolist(self) -> list[list[float]]:
        numbers = list(self.numbers)
        return [numbers[at : at + self.columns] for at in range(0, self.count, self.columns)]

    def __add__(self, other: Tensor) -> Tensor:
        return self.float()

    def float(self) -> Tensor:
        _current_stream().lane.spin(KERNEL)
        return self

    def __getitem__(self, rows: slice) -> Tensor:
        count = len(range(*rows.indices(self.shape[0])))
        assert not rows.start
        return Tensor(count * self.columns, self.on_gpu, self.memory, columns=self.columns)

    def __setitem__(self, rows: slice, values: list[Any]) -> None:
        self[rows].numbers[:] = [number for row in values for number in row]

    def mean(self, dimension: int) -> Tensor:
        assert dimension == 1
        return self.float()

    def argmax(self) -> int:
        numbers = list(self.numbers)
        return numbers.index(max(numbers))


def _made(shape: tuple[Any, ...], on_gpu: bool = False) -> Tensor:
    rows, columns = shape if len(shape) == 2 else shape[0]
    return Tensor(rows * columns, on_gpu, columns=columns)


def empty(*shape: Any, dtype: Any = None, pin_memory: bool = False) -> Tensor:
    assert pin_memory
    return _made(shape)


def zeros(*shape: int, device: str = "cpu") -> Tensor:
    return _made(shape, on_gpu=device == "cuda")


def randn(*shape: Any) -> Tensor:
    found = _made(shape)
    found.numbers[:] = [_random.gauss() for _ in range(found.count)]
    return found


def randint(most: int, shape: tuple[int, int]) -> Tensor:
    found = _made(shape)
    found.numbers[:] = [_random.randrange(most) for _ in range(found.count)]
    return found


def allclose(one: Tensor, other: Tensor, *, atol: float) -> bool:
    # The first of each row, as it was copied.
    others = other.numbers[:: other.columns // one.columns]
    return all(abs(a - b) <= atol for a, b in zip(one.numbers, others, strict=True))


def tensor(numbers: list[int]) -> list[int]:
    return numbers


def index_select(source: Tensor, dimension: int, rows: list[int], *, out: Tensor) -> None:
    assert dimension == 0
    width, numbers = source.columns, source.numbers
    for at, row in enumerate(rows):
        out.numbers[at * width : (at + 1) * width] = numbers[row * width : (row + 1) * width]


def device(kind: str, index: int) -> str:
    return f"{kind}:{index}"


_random = random.Random()
manual_seed: Callable[[int], None] = _random.seed


class _Mode(contextlib.nullcontext[None]):
    """A block of settings, and a decorator."""

    def __call__(self, function: Any) -> Any:
        return function


inference_mode = autocast = _Mode


# ----------------------------------------------------------------------------------------- torch.nn


class Module:
    """`torch.nn.Module`."""

    def requires_grad_(self, requires_grad: bool) -> Self:
        assert not requires_grad
        return self

    def cuda(self) -> Self:
        return self

    def eval(self) -> Self:
        return self


class Layer(Module):
    """Any layer: one kernel."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.float()


class Sequential(Module):
    """`torch.nn.Sequential`."""

    def __init__(self, *layers: Layer) -> None:
        self._layers = layers

    def __call__(self, tensor: Tensor) -> Tensor:
        for layer in self._layers:
            tensor = layer(tensor)
        return tensor


# Each is one kernel.
_LAYERS = "Linear LayerNorm GELU Embedding TransformerEncoderLayer TransformerEncoder"
nn = SimpleNamespace(Sequential=Sequential, **dict.fromkeys(_LAYERS.split(), Layer))
