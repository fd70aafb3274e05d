"""Server-sent events: one launch of a CUDA graph for each token, awaited, and the token is sent.

    pip install . ./driver starlette uvicorn
    python examples/token_stream.py                      # on a GPU; --simulator without one
    curl -N 'http://127.0.0.1:8000/generate?tokens=20'

Each request has a stream of a pool, with a graph that was captured when the server started.
Between two tokens the loop serves the other requests. A client that disconnects ends its
generation: the GPU finishes the token that it computes, and then the pool hands the stream to the
next request.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator

from cuda.bindings import driver as cuda
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import aiostream
from aiostream.testing import check, launch, load_kernels, spin

MOST = 10_000  # tokens of a request
SECONDS = 0.002  # that the GPU works on a token


class Decoder:
    """What belongs to one stream: the state of a generation, and the graph of the next token.

    The "model" adds one to the last token, after a while.
    """

    def __init__(self, stream: aiostream.Stream) -> None:
        # Pinned memory, which host and GPU see at one address: the step, and the token. It is
        # portable and mapped, and lives as long as the process.
        pointer = int(check(cuda.cuMemHostAlloc(8, 3)))
        self.state = (ctypes.c_float * 2).from_address(pointer)
        self.state[:] = [1, 0]
        step, token = ctypes.c_uint64(pointer), ctypes.c_uint64(pointer + 4)
        with stream.capture_executable() as capture:
            spin(stream, SECONDS)
            launch(stream, "saxpy", ctypes.c_float(1), step, token, ctypes.c_uint32(1))
        self.graph = capture.executable
        self.graph.upload(stream)  # else the first launch does it

    async def tokens(self, stream: aiostream.Stream, count: int) -> AsyncIterator[int]:
        """Yields one token after another, each as soon as the GPU has it."""
        self.state[1] = 0  # nothing is in flight: this request alone has the stream
        for _ in range(count):
            await self.graph.launch_and_wait(stream)
            yield round(self.state[1])


class Generate:
    """The ASGI application of `/generate?tokens=n`. It holds a stream until the last token."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        request = Request(scope, receive)
        state = request.app.state
        try:
            count = int(request.query_params.get("tokens", 10))
            if not 0 < count <= MOST:
                raise ValueError
        except ValueError:
            await PlainTextResponse(f"tokens is a number from 1 to {MOST}", 400)(
                scope, receive, send
            )
            return
        try:
            async with state.pool.stream() as stream:
                tokens = stream.own.tokens(stream, count)
                events = (f"data: {token}\n\n" async for token in tokens)
                # Starlette cancels the generator when the client disconnects.
                await StreamingResponse(events, media_type="text/event-stream")(
                    scope, receive, send
                )
        except aiostream.PoolFullError:
            await PlainTextResponse("too many requests wait", 503)(scope, receive, send)


async def ping(_: Request) -> PlainTextResponse:
    return PlainTextResponse("pong")


def application(*, streams: int = 8, waiting: int = 64) -> Starlette:
    """The ASGI application. It serves under any server, on asyncio and on trio."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        stop_watching = aiostream.exit_on_context_failed()
        load_kernels(aiostream.Device(0).primary_context)
        async with aiostream.StreamPool(streams, 0, each=Decoder, max_waiting=waiting) as pool:
            app.state.pool = pool
            yield
        stop_watching()

    routes = [Route("/generate", Generate()), Route("/ping", ping)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens by server-sent events.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--streams", type=int, default=8, help="generations at once (default: 8)")
    parser.add_argument(
        "--waiting", type=int, default=64, help="requests that may wait (default: 64)"
    )
    parser.add_argument("--simulator", action="store_true", help="run without a GPU")
    options = parser.parse_args()
    if options.simulator:
        from aiostream import simulator

        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide the simulated GPU too
        simulator.install()
    try:
        print(f"driver: {aiostream.Device(0).name}; http://127.0.0.1:{options.port}", flush=True)
    except aiostream.NoDriverError as error:
        raise SystemExit(str(error)) from None
    import uvicorn

    # uvicorn raises the signal again when it has shut down: an orderly end here.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = application(streams=options.streams, waiting=options.waiting)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
