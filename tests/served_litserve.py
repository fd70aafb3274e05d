"""LitServe with two workers, whose context can be lost: `python served_litserve.py PORT`."""

from __future__ import annotations

import os
import sys
from typing import Any

import litserve

import aiostream
from aiostream import testing


class Api(litserve.LitAPI):
    """Docs/serving.md shows it."""

    def setup(self, device: str) -> None:
        aiostream.exit_on_context_failed()
        testing.load_kernels(aiostream.Device(0).primary_context)
        self.pool = aiostream.StreamPool(4, 0)

    async def predict(self, request: dict[str, Any]) -> dict[str, Any]:
        """Waits for 2 ms of work."""
        async with self.pool.stream() as stream:
            if "fault" in request:
                testing.launch(stream, "trap")  # no task waits for it
            else:
                await stream.enqueue_async(testing.spin, 0.002)
        return {"worker": os.getpid()}


if __name__ == "__main__":
    server = litserve.LitServer(
        Api(enable_async=True, api_path="/infer"),
        accelerator="cpu",  # else it numbers GPUs by torch
        workers_per_device=2,
        restart_workers=True,
    )
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
