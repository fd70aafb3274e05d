"""A model server: each HTTP request takes a stream of a pool, enqueues its work there, and awaits it, with a timeout.

`python examples/model_server.py [--server uvicorn|hypercorn] [--port N]` runs on the GPU; with `--simulator` (or
`AIOSTREAM_SIMULATOR=1`) on aiostream's simulator. uvicorn brings asyncio, hypercorn here brings trio: the application is the
same.

    curl -d '{"a": 2, "x": [1, 2, 3], "y": [10, 20, 30]}' http://127.0.0.1:8000/infer
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
from cuda.bindings import driver as cuda
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import aiostream

LONGEST = 4096  # numbers in a request
BLOCK = 2 * 4 * LONGEST  # bytes of its two vectors

# The model: y = a * x + y, and a wait on the GPU in place of the layers that a real one has. The
# simulator knows both kernels by their names.
PTX = b"""
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
.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .u64 %px, %py, %offset;
    .reg .u32 %i, %block, %threads, %thread, %count;
    .reg .f32 %a, %vx, %vy;
    .reg .pred %out;
    ld.param.f32 %a, [a];
    ld.param.u64 %px, [x];
    ld.param.u64 %py, [y];
    ld.param.u32 %count, [n];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %threads, %thread;
    setp.ge.u32 %out, %i, %count;
    @%out bra DONE;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %px, %px, %offset;
    add.u64 %py, %py, %offset;
    ld.global.f32 %vx, [%px];
    ld.global.f32 %vy, [%py];
    fma.rn.f32 %vy, %a, %vx, %vy;
    st.global.f32 [%py], %vy;
DONE:
    ret;
}
\0"""


def check(answer: tuple[Any, ...]) -> Any:
    """What a call of the bindings gave back, or its error as an exception."""
    code, *results = answer
    if code:
        raise RuntimeError(str(code))
    return results[0] if results else None


class Block:
    """Pinned memory for the two vectors of one request, which the host and the GPU see at the same address."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.x = (ctypes.c_float * LONGEST).from_address(address)
        self.y = (ctypes.c_float * LONGEST).from_address(address + 4 * LONGEST)


class Model:
    """The kernels, and a block of memory for each stream of a pool.

    The pool lends a stream to one request at a time, and again only when the GPU has done all its work. So no request ever
    writes into memory that the GPU still uses, also when the one before has long timed out.
    """

    def __init__(self, pool: aiostream.StreamPool) -> None:
        self._pool = pool
        self._blocks: dict[int, Block] = {}  # by the stream's handle
        self._context = aiostream.Device(0).primary_context
        with self._context.as_current():
            module = check(cuda.cuModuleLoadData(PTX))
            self._spin = check(cuda.cuModuleGetFunction(module, b"spin"))
            self._saxpy = check(cuda.cuModuleGetFunction(module, b"saxpy"))
            self._memory = int(check(cuda.cuMemHostAlloc(pool.size * BLOCK, 3)))  # portable, mapped

    async def warm_up(self) -> None:
        """Gives each stream its memory, and has it run the model once: the driver loads kernels at their first launch."""
        streams = [await self._pool.acquire() for _ in range(self._pool.size)]
        for number, stream in enumerate(streams):
            self._blocks[stream.handle] = Block(self._memory + number * BLOCK)
            await stream.enqueue_async(self.enqueue, 0.0, [0.0], [0.0], 0.0)
            self._pool.release(stream)

    def enqueue(
        self, stream: aiostream.Stream, a: float, x: list[Any], y: list[Any], milliseconds: float
    ) -> Block:
        """Puts one request's kernels on the stream and returns at once. `enqueue_async` calls it with the context current."""
        block, count = self._blocks[stream.handle], len(x)
        block.x[:count], block.y[:count] = x, y
        spin = ((round(milliseconds * 1e6),), (ctypes.c_uint64,))
        types = (ctypes.c_float, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
        saxpy = ((a, block.address, block.address + 4 * LONGEST, count), types)
        check(cuda.cuLaunchKernel(self._spin, 1, 1, 1, 1, 1, 1, 0, stream.handle, spin, 0))
        check(
            cuda.cuLaunchKernel(
                self._saxpy, -(-count // 256), 1, 1, 256, 1, 1, 0, stream.handle, saxpy, 0
            )
        )
        return block

    async def infer(self, a: float, x: list[Any], y: list[Any], milliseconds: float) -> list[float]:
        """Computes `a * x + y`."""
        async with self._pool.stream() as stream:
            block = await stream.enqueue_async(self.enqueue, a, x, y, milliseconds)
            return block.y[: len(x)]  # copied while the stream, and so the block, is still ours

    def close(self) -> None:
        """Frees the memory, when the pool is closed and the GPU done."""
        with self._context.as_current():
            check(cuda.cuMemFreeHost(self._memory))


async def ping(_: Request) -> Response:
    return PlainTextResponse("pong")


async def infer(request: Request) -> Response:
    """Reads `{"a": 2, "x": [...], "y": [...], "milliseconds": 5}`, answers `{"y": [...]}`."""
    try:
        body = await request.json()
        a, x, y = (
            float(body.get("a", 1)),
            [float(n) for n in body["x"]],
            [float(n) for n in body["y"]],
        )
        milliseconds = float(body.get("milliseconds", 1))
        if not (0 < len(x) == len(y) <= LONGEST and 0 <= milliseconds <= 60_000):
            raise ValueError(
                f"x and y must have the same length, 1 to {LONGEST}, and milliseconds lie in 0 to 60000"
            )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return JSONResponse({"error": f"bad request: {error}"}, status_code=400)
    try:
        # On a timeout the request is answered; the GPU finishes what it was given, and the stream
        # comes back after that.
        with anyio.fail_after(request.app.state.timeout):
            result = await request.app.state.model.infer(a, x, y, milliseconds)
    except aiostream.PoolFullError:
        # Better refused at once than answered too late: a queue that is longer than the timeout
        # serves nobody.
        return JSONResponse({"error": "too many requests wait"}, status_code=503)
    except TimeoutError:
        return JSONResponse({"error": "the GPU did not finish in time"}, status_code=504)
    return JSONResponse({"y": [number if math.isfinite(number) else None for number in result]})


def application(*, streams: int = 8, waiting: int = 64, timeout: float = 1.0) -> Starlette:
    """The ASGI application; serves under any server, on asyncio and on trio."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # After a sticky error no CUDA call of this process succeeds again: it ends, and its
        # supervisor starts another.
        stop_watching = aiostream.exit_on_context_failed()
        async with aiostream.StreamPool(streams, 0, max_waiting=waiting) as pool:
            app.state.model = Model(pool)
            await app.state.model.warm_up()
            app.state.timeout = timeout
            yield
            # Leaving the block awaits what the GPU still has to do, and destroys the streams.
        app.state.model.close()
        stop_watching()

    return Starlette(
        routes=[Route("/ping", ping), Route("/infer", infer, methods=["POST"])], lifespan=lifespan
    )


def serve_uvicorn(app: Any, port: int) -> None:
    import uvicorn

    # After its graceful shutdown uvicorn raises the signal again, for whoever handled it before: an
    # orderly end here.
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
