"""A few kernels for the demo, the doctor and the tests.

`_kernels.ptx` has their text. The simulator knows them by their names.
"""

from __future__ import annotations

import ctypes
from importlib import resources
from typing import Any

from aiostream import _arguments, _driver, interop
from aiostream._reference import pinned
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
            text = resources.files("aiostream").joinpath("_kernels.ptx").read_bytes()
            module = _driver.call("cuModuleLoadData", text + b"\0")
            known = {
                name: _driver.call("cuModuleGetFunction", module, name.encode()) for name in NAMES
            }
        known = _functions.setdefault(context, known)  # two threads may both load it
    return known


def launch(stream: Any, name: str, *arguments: Any, threads: int = 1) -> None:
    """Launches one of the kernels on a stream of any library.

    Args:
        stream: Where to launch it.
        name: `spin`, `stamp`, `saxpy`, `trap` or `illegal_address`.
        arguments: ctypes values, in the kernel's order.
        threads: How many threads, in blocks of 256.

    Raises:
        TypeError: An argument is not a ctypes value.
        ValueError: There are fewer threads than 1, or too many.
    """
    if not 1 <= _arguments.integer("threads", threads) <= _MOST_THREADS:
        raise ValueError(f"threads is a number from 1 to {_MOST_THREADS}, not {threads}")
    for argument in arguments:
        if not isinstance(argument, ctypes._SimpleCData):
            raise TypeError(
                f"{name} is launched with ctypes values, such as ctypes.c_uint64(5), not with "
                f"{type(argument).__name__}"
            )
    reference = interop.reference_to(stream)
    values = tuple(argument.value for argument in arguments)
    types = tuple(type(argument) for argument in arguments)
    function = load(reference.context)[name]
    with pinned(reference, "cuLaunchKernel") as value, reference.context._pushed():
        blocks, per_block = -(-threads // _BLOCK), min(threads, _BLOCK)
        shape = (blocks, 1, 1, per_block, 1, 1, 0)  # without shared memory
        cu_stream = _driver.bindings().CUstream(value)
        arguments_of_call = (function, *shape, cu_stream, (values, types), 0)
        _driver.call("cuLaunchKernel", *arguments_of_call, stream=reference.name)


def spin(stream: Any, seconds: float) -> None:
    """Keeps a stream busy on the GPU for so many seconds.

    Raises:
        TypeError: They are no number.
        ValueError: They are fewer than 0 or too many, or a NaN.
    """
    length = _arguments.real(seconds, "spin takes a number of seconds")
    if not 0 <= length <= _LONGEST_SPIN:
        raise ValueError(f"a kernel spins for 0 to {_LONGEST_SPIN:.0e} seconds, not {length}")
    launch(stream, "spin", ctypes.c_uint64(round(length * 1e9)))
