"""The benchmark's kernel on a stream of whichever aiostream, with its launches prepared.

This module imports nothing but the standard library: the scripts that run with an older aiostream
load it by its path.
"""

from __future__ import annotations

import ctypes
from typing import Any

SPIN = b"""
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


def load(driver: Any) -> Any:
    """The kernel's function in the current context, by the bindings' `driver` module."""
    module = _checked(driver.cuModuleLoadData(SPIN))
    return _checked(driver.cuModuleGetFunction(module, b"spin"))


def _checked(answer: Any) -> Any:
    if answer[0]:
        raise RuntimeError(repr(answer[0]))
    return answer[1]


class Lane:
    """A stream, and launches on it as cheap as `gpu.BenchStream`'s.

    Args:
        stream: An `aiostream.Stream` of any version.
        driver: The bindings.
        function: What `load` has returned.
    """

    def __init__(self, stream: Any, driver: Any, function: Any) -> None:
        self.stream, self.cu_stream = stream, driver.CUstream(stream.handle)
        self._launch, self._function, self._synchronize = (
            driver.cuLaunchKernel,
            function,
            driver.cuStreamSynchronize,
        )
        self._length = ctypes.c_uint64(0)
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self._length))
        self._address = ctypes.addressof(self._arguments)

    def spin(self, nanoseconds: int) -> None:
        """Launches a kernel that keeps the stream busy for so long."""
        self._length.value = nanoseconds
        (code,) = self._launch(
            self._function, 1, 1, 1, 1, 1, 1, 0, self.cu_stream, self._address, 0
        )
        if code:
            raise RuntimeError(f"cuLaunchKernel: {code!r}")

    def synchronize(self) -> None:
        """Blocks until the stream is done."""
        (code,) = self._synchronize(self.cu_stream)
        if code:
            raise RuntimeError(f"cuStreamSynchronize: {code!r}")
