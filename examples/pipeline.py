"""A pipeline on three streams: host to device, compute, device to host, ordered by events.

    pip install . ./driver
    python examples/pipeline.py                          # on a GPU; --simulator without one

While the GPU computes one batch, the next one is copied to it and the one before is copied back.
Events order the three streams on the GPU, and the host waits only for what it needs: a free
buffer before it fills one, and a result before it reads one. The compute stream has the highest
priority, so that its kernels go first where a copy is made by kernels. The program checks each
result, and prints how long it took on three streams, and on one.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import time

from cuda.bindings import driver as cuda

import aiostream
from aiostream.testing import check, launch, load_kernels, spin


class Buffer:
    """The memory of one batch on its way, and the events that say how far it is."""

    def __init__(self, numbers: int) -> None:
        self.numbers, self.bytes = numbers, 4 * numbers
        self.input = self._pinned()  # only a copy from and to pinned memory is asynchronous
        self.output = self._pinned()
        self.x, self.y = (check(cuda.cuMemAlloc(self.bytes)) for _ in range(2))
        self.uploaded, self.computed, self.downloaded = (aiostream.Event() for _ in range(3))

    def _pinned(self) -> ctypes.Array[ctypes.c_float]:
        pointer = int(check(cuda.cuMemHostAlloc(self.bytes, 0)))
        return (ctypes.c_float * self.numbers).from_address(pointer)

    def free(self) -> None:
        """Frees everything, when the GPU is done with it."""
        for event in (self.uploaded, self.computed, self.downloaded):
            event.close()
        for host in (self.input, self.output):
            check(cuda.cuMemFreeHost(ctypes.addressof(host)))
        for device in (self.x, self.y):
            check(cuda.cuMemFree(device))


class Pipeline:
    """Sends batches through the GPU."""

    def __init__(
        self, upload: aiostream.Stream, compute: aiostream.Stream, download: aiostream.Stream
    ) -> None:
        self._upload, self._compute, self._download = upload, compute, download

    def enqueue(self, buffer: Buffer, milliseconds: float) -> None:
        """Enqueues the three stages of one batch and returns at once."""
        upload, compute, download = self._upload, self._compute, self._download
        with upload.context.as_current():
            source = ctypes.addressof(buffer.input)
            check(cuda.cuMemcpyHtoDAsync(buffer.x, source, buffer.bytes, upload.handle))
            buffer.uploaded.record(upload)

            compute.wait_event(buffer.uploaded)  # the GPU waits, not the host
            check(cuda.cuMemsetD32Async(buffer.y, 0, buffer.numbers, compute.handle))
            spin(compute, milliseconds / 1000)  # stands for the layers of a model
            arguments = (ctypes.c_uint64(int(buffer.x)), ctypes.c_uint64(int(buffer.y)))
            count = ctypes.c_uint32(buffer.numbers)
            launch(compute, "saxpy", ctypes.c_float(2), *arguments, count, threads=buffer.numbers)
            buffer.computed.record(compute)

            download.wait_event(buffer.computed)
            target = ctypes.addressof(buffer.output)
            check(cuda.cuMemcpyDtoHAsync(target, buffer.y, buffer.bytes, download.handle))
            buffer.downloaded.record(download)

    async def run(self, buffers: list[Buffer], batches: int, milliseconds: float) -> None:
        """Sends the batches through, as many at once as there are buffers.

        Raises:
            RuntimeError: A result is wrong.
        """
        free: asyncio.Queue[Buffer] = asyncio.Queue()
        for buffer in buffers:
            free.put_nowait(buffer)

        async def finish(buffer: Buffer, number: int) -> None:
            await buffer.downloaded  # other batches go on meanwhile
            if (
                buffer.output[0] != 2 * number
                or buffer.output[buffer.numbers - 1] != 2 * number + 2
            ):
                raise RuntimeError(f"batch {number} has a wrong result: {buffer.output[0]}")
            free.put_nowait(buffer)

        async with asyncio.TaskGroup() as group:
            for number in range(batches):
                buffer = await free.get()
                buffer.input[0], buffer.input[buffer.numbers - 1] = number, number + 1
                self.enqueue(buffer, milliseconds)
                group.create_task(finish(buffer, number))


async def main(options: argparse.Namespace) -> None:
    device = aiostream.Device(0)
    context = device.primary_context
    print(f"driver: {device.name}")
    load_kernels(context)
    with context.as_current():
        buffers = [Buffer(options.numbers) for _ in range(3)]
    _, greatest = device.stream_priority_range
    async with (
        aiostream.Stream() as upload,
        aiostream.Stream(priority=greatest) as compute,
        aiostream.Stream() as download,
    ):
        for name, pipeline in (
            ("three streams", Pipeline(upload, compute, download)),
            ("one stream", Pipeline(compute, compute, compute)),
        ):
            await pipeline.run(buffers, 3, options.milliseconds)  # first uses take longer
            began = time.perf_counter()
            await pipeline.run(buffers, options.batches, options.milliseconds)
            seconds = time.perf_counter() - began
            print(
                f"{name}: {options.batches} batches in {1000 * seconds:.1f} ms, all results right"
            )
    with context.as_current():
        for buffer in buffers:
            buffer.free()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A pipeline on three streams.")
    parser.add_argument("--batches", type=int, default=50, help="default: 50")
    parser.add_argument(
        "--numbers", type=int, default=1 << 20, help="in a batch (default: 1048576)"
    )
    parser.add_argument("--milliseconds", type=float, default=1.0, help="of compute (default: 1)")
    parser.add_argument("--simulator", action="store_true", help="run without a GPU")
    options = parser.parse_args()
    if options.simulator:
        from aiostream import simulator

        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide the simulated GPU too
        simulator.install()
    try:
        asyncio.run(main(options))
    except aiostream.NoDriverError as error:
        raise SystemExit(str(error)) from None
