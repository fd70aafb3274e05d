"""The benchmark's kernels on a stream of any version of aiostream, with their launches prepared."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
from collections.abc import Iterator
from typing import Any

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %start, %now, %length, %gone;
    .reg .pred %again;
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %start, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %gone, %now, %start;
    setp.lt.u64 %again, %gone, %length;
    @%again bra AGAIN;
    ret;
}
\0"""


def bindings() -> Any:
    """The driver's bindings. The import is here because `--show` needs no driver."""
    return importlib.import_module("cuda.bindings.driver")


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the driver.

    Raises:
        RuntimeError: The driver refused.
    """
    code, *results = getattr(bindings(), name)(*arguments)
    check(code, name)
    return results[0] if results else None


def check(code: Any, name: str) -> None:
    """Raises `RuntimeError` if a function of the driver failed."""
    if code:
        raise RuntimeError(f"{name}: {code!r}")


def load() -> Any:
    """Loads the kernel `spin` into the current context.

    It comes before anything is launched, because the driver's first look for a function waits for
    all work in flight.
    """
    module = call("cuModuleLoadData", PTX)
    return call("cuModuleGetFunction", module, b"spin")


class Lane:
    """A stream, and launches on it that take some 3 us. One thread at a time uses it.

    Args:
        stream: Anything with a `handle`, such as a `Stream` of any version of aiostream.
        kernel: What `load` has returned.
    """

    def __init__(self, stream: Any, kernel: Any) -> None:
        driver = bindings()
        self.stream, self.handle = stream, stream.handle
        self.cu_stream = driver.CUstream(self.handle)
        self._launch, self._synchronize = driver.cuLaunchKernel, driver.cuStreamSynchronize
        self._spin = kernel
        # The driver gets the address of an array of addresses of arguments. All of it must
        # outlive the launch only.
        self._argument = ctypes.c_uint64(0)
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self._argument))
        self._address = ctypes.addressof(self._arguments)

    def spin(self, nanoseconds: int) -> None:
        """Launches a kernel that keeps the stream busy for so long by the GPU's own clock."""
        self._argument.value = nanoseconds
        self.launch()

    def expect(self, nanoseconds: int) -> None:
        """Says how long the kernel of the next `launch` keeps the stream busy."""
        self._argument.value = nanoseconds

    def launch(self) -> None:
        """Launches the kernel as `spin` does, for as long as the last one, or as `expect` said."""
        (code,) = self._launch(self._spin, 1, 1, 1, 1, 1, 1, 0, self.cu_stream, self._address, 0)
        if code:
            check(code, "cuLaunchKernel")

    @property
    def length(self) -> float:
        """How long the last kernel keeps the stream busy, in seconds."""
        return self._argument.value / 1e9

    def synchronize(self) -> None:
        """Blocks until the stream is done."""
        (code,) = self._synchronize(self.cu_stream)
        if code:
            check(code, "cuStreamSynchronize")

    def close(self) -> None:
        """Blocks until the stream is done, and destroys it."""
        self.synchronize()
        self.stream.close()


@contextlib.contextmanager
def current(library: Any) -> Iterator[None]:
    """Device 0's primary context is current in this thread: all that are compared use it.

    Args:
        library: The module `aiostream`, of any version.
    """
    context = library.Device(0).primary_context
    call("cuCtxPushCurrent", bindings().CUcontext(context.handle))
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The garbage collector is off, because it would strike one peer and spare the next.

    What lives by now stays frozen, so that the next collection is short: torch alone brings objects
    for 100 ms.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
