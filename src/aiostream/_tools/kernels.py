"""A few kernels for the demo, the doctor and the tests.

`kernels.ptx` has their text. The simulator knows them by their names.
`aiostream.testing` gives `spin` and `launch` to users.
"""

from __future__ import annotations

import ctypes
from importlib import resources
from typing import Any

from aiostream._base import checks, driver
from aiostream._handles import interop
from aiostream._handles.operand import pinned
from aiostream.device import Context

# Any thread, single dict operations. The kernels stay loaded as long as their context exists.
_functions: dict[Context, dict[str, Any]] = {}
NAMES = ("spin", "stamp", "saxpy", "trap", "illegal_address")
_BLOCK = 256  # threads
_MOST_THREADS = _BLOCK * (2**31 - 1)
# Seconds. The kernel and the simulator count nanoseconds in 64 bits, and the simulator adds its
# clock. A larger number would wrap, and the kernel would end at once.
_LONGEST_SPIN = 9e9


def load(context: Context) -> dict[str, Any]:
    """Loads all kernels into a context.

    Call it before you launch behind a gate. The driver loads lazily, and on an H200 the first
    look-up of a function waits for all work in flight, so it would wait for the gate.
    """
    known = _functions.get(context)
    if known is None:
        with context._pushed():
            text = resources.files(__package__).joinpath("kernels.ptx").read_bytes()
            module = driver.call("cuModuleLoadData", text + b"\0")
            known = {
                name: driver.call("cuModuleGetFunction", module, name.encode()) for name in NAMES
            }
        known = _functions.setdefault(context, known)  # two threads may both load it
    return known


def launch(stream: Any, name: str, *arguments: Any, threads: int = 1) -> None:
    """Launches one of the few kernels that the library brings, on any library's stream.

    They are `spin(u64 nanoseconds)`, `saxpy(f32 a, u64 x, u64 y, u32 n)`, `stamp(u64 pointer)`,
    which writes the GPU's clock, and two that lose the context: `trap()` and `illegal_address()`.

    Args:
        stream: A `Stream`, or another library's stream.
        name: The kernel.
        arguments: ctypes values, in the kernel's order.
        threads: How many threads run it.

    Raises:
        KeyError: There is no such kernel.
        TypeError: An argument is not a ctypes value.
        ValueError: `threads` is less than 1, or too large.
        StreamClosedError: You have closed the stream.
        CudaError: The driver refused.
    """
    if not 1 <= checks.integer("threads", threads) <= _MOST_THREADS:
        raise ValueError(f"threads is a number from 1 to {_MOST_THREADS}, not {threads}")
    rule = f"{name} is launched with ctypes values, such as ctypes.c_uint64(5), not with"
    for argument in arguments:
        checks.instance(ctypes._SimpleCData, argument, rule)
    operand = interop.operand_of(stream)
    values = tuple(argument.value for argument in arguments)
    types = tuple(type(argument) for argument in arguments)
    function = load(operand.context)[name]
    with pinned(operand, "cuLaunchKernel") as value, operand.context._pushed():
        blocks, per_block = -(-threads // _BLOCK), min(threads, _BLOCK)
        shape = (blocks, 1, 1, per_block, 1, 1, 0)  # without shared memory
        cu_stream = driver.bindings().CUstream(value)
        arguments_of_call = (function, *shape, cu_stream, (values, types), 0)
        driver.call("cuLaunchKernel", *arguments_of_call, stream=operand.name)


def spin(stream: Any, seconds: float) -> None:
    """Launches a kernel that keeps a stream busy for that time. It returns at once.

    Args:
        stream: A `Stream`, or another library's stream.
        seconds: How long the kernel runs, on the GPU and on the simulator.

    Raises:
        TypeError: `seconds` is not a number.
        ValueError: `seconds` is below 0, or above 9e9.
        CudaError: The driver refused.

    Example:
        >>> from aiostream.testing import spin
        >>> async with aiostream.Stream() as stream:
        ...     spin(stream, 0.001)
        ...     await stream.synchronize_async()
    """
    length = checks.real(seconds, "spin takes a number of seconds")
    if not 0 <= length <= _LONGEST_SPIN:
        raise ValueError(f"a kernel spins for 0 to {_LONGEST_SPIN:.0e} seconds, not {length}")
    launch(stream, "spin", ctypes.c_uint64(round(length * 1e9)))
