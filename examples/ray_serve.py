"""Ray Serve: replicas with a GPU each, many requests at once in the loop of each, batched.

    pip install . ./driver 'ray[serve]'
    python examples/ray_serve.py                         # on GPUs; --simulator without one
    curl 'http://127.0.0.1:8000/?x=21'
    curl -N 'http://127.0.0.1:8000/tokens?prompt=7&count=5'

Ray places, batches, routes and restarts. aiostream keeps each replica's loop free while the GPU
works, so that one replica serves many requests and answers its health checks in time. A replica
whose CUDA context is lost, or whose GPU hangs, ends itself, which Ray notices at once.
`check_health` alone takes three failures, with the default period of 10 s each. When Serve stops a
replica, `__del__` awaits what its GPU still has to do.

Tokens are streamed: each replica runs `serving.Steps`, and its generator `tokens` is what HTTP
clients read, and other deployments by `handle.options(stream=True).tokens.remote(7, 5)`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Generator
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

import aiostream
from aiostream.serving import Active, Steps
from aiostream.testing import load_kernels, spin

SLOTS = 16


@serve.deployment(
    max_ongoing_requests=64,  # the loop is free while the GPU works
    health_check_period_s=1,
    health_check_timeout_s=5,
    graceful_shutdown_timeout_s=20,
)
class Model:
    """One replica. Its GPU is device 0, because Ray sets `CUDA_VISIBLE_DEVICES`."""

    def __init__(self, milliseconds: float = 5.0, stalled_after: float = 30.0) -> None:
        self._seconds = milliseconds / 1000
        self._stop_watching = aiostream.exit_on_context_failed(stalled=True)
        load_kernels(aiostream.Device(0).primary_context)
        self._pool = aiostream.StreamPool(4, 0, name="model", stalled_after=stalled_after)
        self._decode = aiostream.Stream(0, name="decode", stalled_after=stalled_after)
        self._last = [0] * SLOTS  # the tokens, which stay on the GPU in a real decoder
        self._steps: Steps[int, int] = Steps(self._decode, self._step, slots=SLOTS, max_waiting=64)
        self._begins, self._has_begun = asyncio.Lock(), False

    def check_health(self) -> None:
        """Ray calls it each period. It launches nothing, so a busy GPU does not fail it."""
        if (lost := aiostream.health()) is not None:
            raise lost

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    async def double(self, numbers: list[float]) -> list[dict[str, Any]]:
        """Computes a whole batch in one launch. Several batches run at once, each on its stream."""
        async with self._pool.stream() as stream:
            await stream.run(spin, stream, self._seconds)
        return [{"y": 2 * n, "pid": os.getpid(), "batch": len(numbers)} for n in numbers]

    def _step(self, active: Active[int]) -> Generator[None, None, dict[int, int]]:
        for slot in active.new:
            self._last[slot] = active[slot]
        self._last = found = [token + 1 for token in self._last]
        spin(self._decode, self._seconds)
        yield
        return {slot: found[slot] for slot in active}

    async def tokens(self, prompt: int, count: int) -> AsyncIterator[int]:
        """Yields each token as soon as the GPU has it."""
        async with self._begins:  # with the first request, because `__init__` cannot await
            if not self._has_begun:
                await self._steps.__aenter__()
                self._has_begun = True
        async with self._steps(prompt) as results:
            for _ in range(count):
                yield await anext(results)

    async def __call__(self, request: Request) -> Any:
        """Answers `GET /?x=number`, and `GET /tokens?prompt=number&count=number`."""
        if request.url.path.endswith("/tokens"):
            numbers = (int(request.query_params[name]) for name in ("prompt", "count"))
            lines = (f"{token}\n" async for token in self.tokens(*numbers))
            return StreamingResponse(lines, media_type="text/plain")
        answer: dict[str, Any] = await self.double(float(request.query_params.get("x", 1)))
        return answer

    async def __del__(self) -> None:
        """Serve awaits it after the last request."""
        self._steps.close()
        await aiostream.drain(10)
        self._pool.close()  # without waiting, because the GPU may hang
        self._decode.close()
        self._stop_watching()


def application(deployment: Any = Model, *, replicas: int = 2, gpus: float = 1.0) -> Any:
    """What Serve runs. Several replicas share a GPU if `gpus` is less than 1."""
    resources = {"num_cpus": 0, "num_gpus": gpus}
    return deployment.options(num_replicas=replicas, ray_actor_options=resources).bind()


def start(app: Any, *, port: int = 8000, **settings: Any) -> None:
    """Starts Ray on this machine with these settings of `ray.init`, and serves the application."""
    ray.init(include_dashboard=False, log_to_driver=False, **settings)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app, route_prefix="/")


def stop() -> None:
    """Ends both; the replicas await their work."""
    serve.shutdown()
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description="Ray Serve on CUDA streams.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--replicas", type=int, default=2, help="default: 2")
    parser.add_argument("--gpus", type=float, default=1.0, help="of each replica (default: 1)")
    parser.add_argument("--simulator", action="store_true", help="run without a GPU")
    options = parser.parse_args()
    settings: dict[str, Any] = {}
    if options.simulator:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide the simulated GPUs too
        os.environ["AIOSTREAM_SIMULATOR"] = "1"
        os.environ["AIOSTREAM_SIMULATOR_DEVICES"] = str(options.replicas)
        settings["num_gpus"] = options.replicas  # Ray finds none by itself
    app = application(replicas=options.replicas, gpus=options.gpus)
    start(app, port=options.port, **settings)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # now, because Ray has set handlers of its own
        signal.signal(number, lambda *_: ended.set())
    print(f"{options.replicas} replicas, http://127.0.0.1:{options.port}", flush=True)
    ended.wait()
    stop()


if __name__ == "__main__":
    main()
