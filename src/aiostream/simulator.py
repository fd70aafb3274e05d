"""A CUDA driver for machines without a GPU: the package `nogpu`, by the name it has in aiostream.

`pip install 'aiostream-cuda[simulator]'` brings it along. All functions but `install` are those of
`nogpu`.

Example:
    >>> from aiostream import simulator
    >>> simulator.install()  # before any other use of CUDA
    >>> simulator.fail("cuStreamCreateWithPriority", 2)  # the next call is out of memory
    >>> aiostream.Stream()
    Traceback (most recent call last):
    aiostream.errors.OutOfMemoryError: ...
    >>> with simulator.adversary(shuffle_callbacks=True):  # a nastier driver, for this block
    ...     async with aiostream.Stream() as stream:
    ...         await stream.completion_future()
"""

from __future__ import annotations

from aiostream._base import checks as _checks  # noqa: F401  (it says if another aiostream is there)
from aiostream._base import stand_ins

stand_ins.simulator("aiostream.simulator")

from nogpu import *  # noqa: E402  (the line above says what to install)

__all__ = [
    "adversary",
    "break_context",
    "calls",
    "clear_faults",
    "fail",
    "hang",
    "install",
    "installed",
    "pending_work",
    "recover",
    "register_kernel",
    "register_ptx",
    "seed",
    "unsupported_calls",
]


def install(  # type: ignore[no-redef]  # nogpu has one too, without the environment
    *,
    devices: int | None = None,
    driver_version: int | None = None,
    memory: int | None = None,
    hardware_queues: bool | None = None,
) -> None:
    """Makes the simulator this process's CUDA driver.

    Call it before any other library loads a driver, because a process keeps the first
    `libcuda.so.1` that it loads. `AIOSTREAM_SIMULATOR=1` in the environment has the same effect
    when aiostream is imported. You may call it again with the same options, or without options.

    Args:
        devices: How many GPUs there are, 0 to 16. The default is `AIOSTREAM_SIMULATOR_DEVICES`, or
            else 1.
        driver_version: The CUDA version of the driver. The default is 13000, for 13.0. Functions of
            later versions are not found.
        memory: Bytes of memory per device. The default is 1 GiB. A larger allocation fails with
            code 2.
        hardware_queues: Whether pending host functions and memory operations occupy hardware queues
            of the device, as on an H200. This is the default. There are
            `CUDA_DEVICE_MAX_CONNECTIONS` queues, or else 8. While all are occupied, other streams
            wait.

    Threads: any.

    Raises:
        RuntimeError: Another driver is already loaded, or the simulator is installed with other
            options.
        ValueError: An option is out of range, or an environment variable is not a number or out of
            range.
        OSError: The simulator's library cannot be loaded.

    Example:
        >>> from aiostream import simulator
        >>> simulator.install()
        >>> simulator.installed()
        True
        >>> async with aiostream.Stream() as stream:
        ...     await stream.synchronize_async()
    """
    stand_ins.install_simulator(
        "aiostream.simulator",
        devices=devices,
        driver_version=driver_version,
        memory=memory,
        hardware_queues=hardware_queues,
    )
