"""Await GPU work: alone, with a timeout, and several streams at once.

`python examples/quickstart.py` runs on the GPU; with `--simulator` (or `AIOSTREAM_SIMULATOR=1`)
on aiostream's simulator.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from typing import Any

import anyio
from cuda.bindings import driver as cuda

import aiostream
from aiostream.testing import check

# Your framework's kernels in real life. This one keeps its stream busy for a while; the simulator
# knows it by its name.
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


def launch(kernel: Any, stream: aiostream.Stream, milliseconds: float) -> None:
    """Enqueues the kernel and returns at once."""
    arguments = ((round(milliseconds * 1e6),), (ctypes.c_uint64,))
    with stream.context.as_current():
        check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream.handle, arguments, 0))


async def main() -> None:
    device = aiostream.Device(0)
    print(f"driver: {device.name}")
    with device.primary_context.as_current():
        kernel = check(cuda.cuModuleGetFunction(check(cuda.cuModuleLoadData(SPIN)), b"spin"))

    async with aiostream.Stream() as stream:
        # One await: the loop is free meanwhile.
        began = time.perf_counter()
        await stream.run(launch, kernel, stream, 20)
        print(f"one kernel of 20 ms: {(time.perf_counter() - began) * 1000:.1f} ms")

        # A timeout stops the waiting and not the GPU: the kernel runs to its end.
        launch(kernel, stream, 200)
        try:
            async with asyncio.timeout(0.02):
                await stream
        except TimeoutError:
            print(f"timed out after 20 ms; is the GPU done? {stream.query()}")

    # Several streams at once, in anyio's task group (trio's and asyncio's serve as well).
    async def one(milliseconds: float) -> None:
        async with aiostream.Stream() as stream:
            launch(kernel, stream, milliseconds)
        # Leaving the block has awaited the work.
        print(f"the stream with {milliseconds} ms is done")

    async with anyio.create_task_group():
        pass  # the first use imports parts of anyio, and that is not to be timed
    async with anyio.create_task_group() as group:
        began = time.perf_counter()
        for milliseconds in (40, 20, 30):
            group.start_soon(one, milliseconds)
    print(f"all three: {(time.perf_counter() - began) * 1000:.1f} ms")


if __name__ == "__main__":
    if "--simulator" in sys.argv[1:]:
        from aiostream import simulator

        os.environ.pop(
            "CUDA_VISIBLE_DEVICES", None
        )  # what hides this machine's GPUs would hide the simulated one
        simulator.install()
    try:
        asyncio.run(main())
    except aiostream.NoDriverError as error:
        raise SystemExit(str(error)) from None
