"""BentoML with two workers, whose context can be lost: `bentoml serve served_bentoml:Model`."""

from __future__ import annotations

import os

import bentoml

import aiostream
from aiostream import testing


@bentoml.service(workers=2)
class Model:
    """docs/serving.md shows it."""

    @bentoml.on_startup
    async def start(self) -> None:
        self.stop_watching = aiostream.exit_on_context_failed()
        testing.load_kernels(aiostream.Device(0).primary_context)
        self.pool = aiostream.StreamPool(4, 0)

    @bentoml.on_shutdown
    async def stop(self) -> None:
        await aiostream.drain(10)
        await self.pool.aclose()
        self.stop_watching()

    def __is_alive__(self) -> bool:
        return aiostream.health() is None

    @bentoml.api
    async def infer(self, fault: bool = False) -> dict[str, int]:
        """Waits for 2 ms of work."""
        async with self.pool.stream() as stream:
            if fault:
                testing.launch(stream, "trap")  # no task waits for it
            else:
                await stream.enqueue_async(testing.spin, 0.002)
        return {"worker": os.getpid()}
