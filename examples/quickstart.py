"""Await GPU work: alone, with a timeout, and several streams at once.

pip install . ./driver
python examples/quickstart.py                        # on a GPU; --simulator without one
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time

import anyio

import aiostream
from aiostream.testing import load_kernels, spin


async def main() -> None:
    device = aiostream.Device(0)
    print(f"driver: {device.name}")
    load_kernels(device.primary_context)  # so that the first launch takes no longer than others

    async with aiostream.Stream() as stream:
        # One await: the loop is free meanwhile.
        began = time.perf_counter()
        await stream.run(spin, stream, 0.02)
        print(f"one kernel of 20 ms: {(time.perf_counter() - began) * 1000:.1f} ms")

        # A timeout stops the waiting and not the GPU: the kernel runs to its end.
        try:
            async with asyncio.timeout(0.02):
                await stream.run(spin, stream, 0.5)
        except TimeoutError:
            print(f"timed out after 20 ms; is the GPU done? {stream.query()}")

    # Several streams at once, in anyio's task group (trio's and asyncio's serve as well).
    async def one(milliseconds: float) -> None:
        async with aiostream.Stream() as stream:
            spin(stream, milliseconds / 1000)
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
    parser = argparse.ArgumentParser(description="Awaits GPU work in three ways.")
    parser.add_argument(
        "--simulator", action="store_true", help="run on aiostream's simulator of a CUDA driver"
    )
    if parser.parse_args().simulator:
        from aiostream import simulator

        # What hides this machine's GPUs would hide the simulated one.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        simulator.install()
    try:
        asyncio.run(main())
    except aiostream.NoDriverError as error:
        raise SystemExit(str(error)) from None
