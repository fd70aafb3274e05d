"""A model server: each request takes a stream of a pool, enqueues its work there, and awaits it.

    pip install ./driver '.[metrics]' starlette uvicorn
    python examples/model_server.py                      # on a GPU; --simulator without one
    curl -d '{"a": 2, "x": [1, 2, 3], "y": [10, 20, 30]}' http://127.0.0.1:8000/infer

It shows what a service needs. `/infer` has a timeout (504), a queue with a limit (503), and stops
waiting when its client disconnects. `/ping` says that the loop runs, `/livez` that the CUDA context
is well, and `/metrics` is for Prometheus. SIGTERM lets the requests finish. A lost context ends the
process, so that its supervisor starts another.

uvicorn brings asyncio. `--server hypercorn` brings trio here (`pip install 'hypercorn[trio]'`): the
application is the same. For several processes, each with its own streams:

    uvicorn --app-dir examples --factory model_server:application --workers 2
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Generator
from functools import partial
from typing import Any

import anyio
from cuda.bindings import driver as cuda
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import aiostream
from aiostream import serving
from aiostream.metrics import Collector
from aiostream.testing import check, launch, load_kernels, spin

LONGEST = 4096  # numbers in a request
BLOCK = 2 * 4 * LONGEST  # bytes of its two vectors


class Replica:
    """Computes y = a * x + y, and keeps the GPU busy for a while in place of a real model's layers.

    Each stream of the pool has one, with memory of its own. The pool gives a stream to one request
    at a time, and again only when the GPU has done all its work. So no request ever writes into
    memory that the GPU still uses, also when the one before has long timed out.
    """

    def __init__(self, stream: aiostream.Stream) -> None:
        load_kernels(stream.context)
        # Pinned memory for the two vectors of a request. Host and GPU see it at one address. The
        # driver frees it when the process ends.
        address = int(check(cuda.cuMemHostAlloc(BLOCK, 3)))  # portable, mapped
        self._stream = stream
        self._pointers = ctypes.c_uint64(address), ctypes.c_uint64(address + 4 * LONGEST)
        self._x, self._y = (
            (ctypes.c_float * LONGEST).from_address(pointer.value) for pointer in self._pointers
        )
        next(self.infer(0.0, [0.0], [0.0], 0.0))  # first launches take longer

    def infer(
        self, a: float, x: list[Any], y: list[Any], milliseconds: float
    ) -> Generator[None, None, list[float]]:
        """Computes `a * x + y`, in two halves."""
        count = len(x)
        self._x[:count], self._y[:count] = x, y
        spin(self._stream, milliseconds / 1000)
        numbers = ctypes.c_float(a), *self._pointers, ctypes.c_uint32(count)
        launch(self._stream, "saxpy", *numbers, threads=count)
        yield  # other tasks run until the GPU is done
        return self._y[:count]  # no other request has the memory yet


async def ping(_: Request) -> Response:
    return PlainTextResponse("pong")


async def livez(_: Request) -> Response:
    """What a health check asks. It launches nothing, so a busy GPU does not fail it."""
    lost = aiostream.health()
    return PlainTextResponse(str(lost), 503) if lost is not None else PlainTextResponse("ok")


async def metrics(request: Request) -> Response:
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    except ImportError:
        return PlainTextResponse("pip install prometheus-client", 501)
    return Response(generate_latest(request.app.state.collector), media_type=CONTENT_TYPE_LATEST)


async def infer(request: Request) -> Response:
    """Reads `{"a": 2, "x": [...], "y": [...], "milliseconds": 5}`, answers `{"y": [...]}`."""
    try:
        body = await request.json()
        a = float(body.get("a", 1))
        x, y = [float(n) for n in body["x"]], [float(n) for n in body["y"]]
        milliseconds = float(body.get("milliseconds", 1))
        if not (0 < len(x) == len(y) <= LONGEST and 0 <= milliseconds <= 60_000):
            limits = (
                f"x and y have the same length, 1 to {LONGEST}, and milliseconds are 0 to 60000"
            )
            raise ValueError(limits)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return JSONResponse({"error": f"bad request: {error}"}, status_code=400)
    state = request.app.state
    answer = Response(status_code=499)  # for a client that has gone
    try:
        # On a timeout the request is answered. The GPU finishes what it was given, and the pool
        # hands the stream out again after that.
        with anyio.fail_after(state.timeout):
            async with serving.while_connected(request):
                result = await state.pool.run(Replica.infer, a, x, y, milliseconds)
                numbers = [number if math.isfinite(number) else None for number in result]
                answer = JSONResponse({"y": numbers})
    except aiostream.PoolFullError:
        # A request that would wait longer than its timeout is better refused at once.
        return JSONResponse({"error": "too many requests wait"}, status_code=503)
    except TimeoutError:
        return JSONResponse({"error": "the GPU did not finish in time"}, status_code=504)
    return answer


def application(
    *, streams: int = 8, waiting: int = 64, timeout: float = 1.0, last: float = 10.0
) -> Starlette:
    """The ASGI application. It serves under any server, on asyncio and on trio.

    Args:
        streams: How many requests are on the GPU at once.
        waiting: How many more wait at most.
        timeout: Seconds for each request.
        last: Seconds at the end for what the GPU still does.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # No CUDA call of this process succeeds any more when its context is lost.
        stop_watching = aiostream.exit_on_context_failed()
        async with aiostream.StreamPool(
            streams, 0, each=Replica, max_waiting=waiting, name="model"
        ) as pool:
            app.state.pool, app.state.timeout = pool, timeout
            collector = Collector(pools={"model": pool})
            app.state.collector = collector
            # A full garbage collection stops the loop. It does not look at frozen objects.
            gc.collect()
            gc.freeze()
            yield
            # SIGTERM: the server has answered the requests that it had. What they have left to
            # the GPU is awaited here, for a limited time, because the GPU may hang. So the pool is
            # closed now: the end of its block would wait for all work.
            await aiostream.drain(last)
            pool.close()
            collector.close()
        stop_watching()

    routes = [
        Route("/infer", infer, methods=["POST"]),
        Route("/ping", ping),
        Route("/livez", livez),
        Route("/metrics", metrics),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def serve_uvicorn(app: Any, port: int) -> None:
    import uvicorn

    # After its graceful shutdown uvicorn raises the signal again: an orderly end here.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def serve_hypercorn(app: Any, port: int) -> None:
    import hypercorn.config
    import hypercorn.trio
    import trio

    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "WARNING"

    async def until_signalled() -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                return

    trio.run(partial(hypercorn.trio.serve, app, config, shutdown_trigger=until_signalled))


def main() -> None:
    parser = argparse.ArgumentParser(description="A model server on CUDA streams.")
    parser.add_argument(
        "--server", choices=["uvicorn", "hypercorn"], default="uvicorn", help="default: uvicorn"
    )
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument(
        "--timeout", type=float, default=1.0, help="seconds for one request (default: 1)"
    )
    parser.add_argument(
        "--streams", type=int, default=8, help="requests that the GPU may have at once (default: 8)"
    )
    parser.add_argument(
        "--waiting", type=int, default=64, help="requests that may wait for a stream (default: 64)"
    )
    parser.add_argument(
        "--simulator", action="store_true", help="run on aiostream's simulator of a CUDA driver"
    )
    options = parser.parse_args()
    if options.simulator:
        from aiostream import simulator

        os.environ.pop(
            "CUDA_VISIBLE_DEVICES", None
        )  # what hides this machine's GPUs would hide the simulated one
        simulator.install()
    try:
        print(
            f"driver: {aiostream.Device(0).name}; {options.server} on http://127.0.0.1:{options.port}",
            flush=True,
        )
    except aiostream.NoDriverError as error:
        raise SystemExit(str(error)) from None
    app = application(streams=options.streams, waiting=options.waiting, timeout=options.timeout)
    (serve_uvicorn if options.server == "uvicorn" else serve_hypercorn)(app, options.port)


if __name__ == "__main__":
    main()
