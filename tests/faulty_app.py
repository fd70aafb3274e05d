"""An ASGI application whose GPU can be made to fail: `servers.serving`.

A worker process ends with its context.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import aiostream
import internals

LIMIT = 2.0  # seconds; no loop of a busy machine is blocked for longer

if os.environ.get("FAULTY_TOUCHES_CUDA"):  # in the parent of workers that are forked
    aiostream.Device.count()


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    code = int(os.environ.get("FAULTY_EXIT_CODE", "70"))
    end = aiostream.exit_on_context_failed(code, stalled=True)
    async with aiostream.StreamPool(8, name="model", stalled_after=LIMIT) as pool:
        app.state.pool = pool
        yield
        await aiostream.drain(5)
    end()


async def infer(request: Request) -> Response:
    """Waits for 2 ms of work."""
    try:
        async with request.app.state.pool.stream() as stream:
            await stream.enqueue_async(lambda stream: internals.spin(stream, 0.002))
    except aiostream.ContextFailedError as error:
        return JSONResponse({"error": str(error)}, status_code=500)
    return JSONResponse({"worker": os.getpid()})


async def fault(request: Request) -> Response:
    """Launches a kernel that fails, and does not wait for it."""
    async with request.app.state.pool.stream() as stream:
        internals.launch_kernel(stream, "trap")
    return JSONResponse({"worker": os.getpid()})


async def hang(request: Request) -> Response:
    """Awaits a kernel that ends after a minute, which is long after the limit."""
    async with request.app.state.pool.stream() as stream:
        await stream.run(internals.spin, stream, 60.0)
    return JSONResponse({"worker": os.getpid()})


routes = [Route("/infer", infer), Route("/fault", fault), Route("/hang", hang)]
app = Starlette(routes=routes, lifespan=lifespan)
