"""`examples/ray_serve.py` with what a test needs.

`/?fault=1` loses the context, `/?hang=1` awaits a kernel of a minute, and the end of a replica is
written to a file.

SERVED_RAY_FILE=ends python served_ray.py PORT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request

import aiostream
from aiostream import testing

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import ray_serve


@serve.deployment(
    max_ongoing_requests=64,
    health_check_period_s=1,
    health_check_timeout_s=5,
    graceful_shutdown_timeout_s=20,
)
class Model(ray_serve.Model.func_or_class):  # type: ignore[name-defined, misc, unused-ignore]
    """The example's, which loses its context or hangs when it is asked to."""

    def __init__(self) -> None:
        super().__init__(stalled_after=2.0)  # no loop of a busy machine is blocked for longer

    async def __call__(self, request: Request) -> dict[str, Any]:
        if "fault" in request.query_params:
            testing.launch(aiostream.Stream(0), "trap")  # no task waits for it
            return {"pid": os.getpid()}
        if "hang" in request.query_params:
            async with self._pool.stream() as stream:
                await stream.run(testing.spin, stream, 60.0)
        answer: dict[str, Any] = await super().__call__(request)
        return answer

    async def __del__(self) -> None:
        await super().__del__()
        handles = aiostream.statistics().handles.open
        with open(os.environ["SERVED_RAY_FILE"], "a") as file:
            file.write(f"{os.getpid()} ended with {handles} handles open\n")


if __name__ == "__main__":
    app = ray_serve.application(Model)
    limits = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 100 << 20}
    ray_serve.start(app, port=int(sys.argv[1]), **limits)
    print("ready", flush=True)
    sys.stdin.read()
    ray_serve.stop()
