"""Streams with their launches prepared, so that launching is cheap and the same for every peer."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

from aiostream import Device, Stream, _driver, _kernels


class BenchStream:
    """A stream, and launches on it whose arguments stand ready: some 3 us each, where `_kernels.spin` takes 20.

    Used by one thread at a time, with the stream's context current.
    """

    def __init__(self, stream: Stream) -> None:
        driver = _driver.bindings()
        kernels = _kernels.load(stream.context)
        self.stream = stream
        self.handle = stream.handle
        self.cu_stream = driver.CUstream(self.handle)
        self._launch = driver.cuLaunchKernel
        self._synchronize = driver.cuStreamSynchronize
        self._spin, self._stamp = kernels["spin"], kernels["stamp"]
        # What the driver is given is the address of an array of addresses of arguments; both must
        # outlive the launch only.
        self._length = ctypes.c_uint64(0)
        self._lengths = (ctypes.c_void_p * 1)(ctypes.addressof(self._length))
        self._length_address = ctypes.addressof(self._lengths)
        self._target = ctypes.c_uint64(0)
        self._targets = (ctypes.c_void_p * 1)(ctypes.addressof(self._target))
        self._target_address = ctypes.addressof(self._targets)

    def spin(self, nanoseconds: int) -> None:
        """Launches a kernel that keeps the stream busy for so long by the GPU's own clock."""
        self._length.value = nanoseconds
        (code,) = self._launch(
            self._spin, 1, 1, 1, 1, 1, 1, 0, self.cu_stream, self._length_address, 0
        )
        if code:
            raise _driver.error(int(code), "cuLaunchKernel")

    def stamp(self, address: int) -> None:
        """Launches a kernel that writes the GPU's clock, in ns, to a word."""
        self._target.value = address
        (code,) = self._launch(
            self._stamp, 1, 1, 1, 1, 1, 1, 0, self.cu_stream, self._target_address, 0
        )
        if code:
            raise _driver.error(int(code), "cuLaunchKernel")

    def synchronize(self) -> None:
        """Blocks until the stream is done."""
        (code,) = self._synchronize(self.cu_stream)
        if code:
            raise _driver.error(int(code), "cuStreamSynchronize")

    def close(self) -> None:
        """Blocks until the stream is done, and destroys it."""
        self.synchronize()
        self.stream.close()


def make_current() -> None:
    """Makes device 0's primary context current in this thread until `cuCtxPopCurrent`, and loads the kernels.

    Once, so that no launch has to. The libraries that are compared use that context too. Kernels first: the first look for a
    function waits for all work.
    """
    context = Device(0).primary_context
    _driver.call("cuCtxPushCurrent", _driver.bindings().CUcontext(context.handle))
    _kernels.load(context)


@contextlib.contextmanager
def pinned(count: int) -> Iterator[Any]:
    """64-bit words that the host and the device see at the same address."""
    pointer = int(_driver.call("cuMemHostAlloc", 8 * count, 3))  # portable, mapped
    try:
        yield (ctypes.c_uint64 * count).from_address(pointer)
    finally:
        _driver.call("cuMemFreeHost", pointer)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection meanwhile, for nobody: it would strike one peer and spare the next.

    What lives by now stays frozen until the run is over, so that the next collection is short: torch alone brings as many objects
    as take 100 ms.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def computing(busy: bool) -> Iterator[None]:
    """Another Python thread that computes all the time, and so wants the GIL all the time."""
    if not busy:
        yield
        return
    stop = False

    def compute() -> None:
        while not stop:
            sum(range(1000))

    thread = threading.Thread(target=compute, name="bench-computing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()
