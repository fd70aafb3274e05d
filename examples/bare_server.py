"""A model server without a framework: batches behind ASGI and RSGI, in one file.

    pip install . ./driver granian uvloop prometheus-client msgspec    # or uvicorn, hypercorn
    granian --interface rsgi --working-dir examples bare_server:app    # or --interface asgi
    curl -d '{"item": 7}' http://127.0.0.1:8000/score                  # {"score":14.0}

A request gets 503 if too many wait, and 504 if it takes too long. If its client leaves, its item
leaves the queue. After SIGTERM the server answers what it has. AIOSTREAM_SIMULATOR=1 needs no GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

from prometheus_client import generate_latest

import aiostream
from aiostream import serving
from aiostream.metrics import Collector
from aiostream.testing import spin

quick: Any = importlib.import_module("msgspec.json") if find_spec("msgspec") else None
decode = quick.decode if quick else json.loads
encode = quick.encode if quick else lambda found: json.dumps(found).encode()
SECONDS, TIMEOUT, STALLED = 0.001, 1.0, 30.0  # of a batch; of a request; of what counts as hung
WAITING = 256  # requests; one more gets 503
JSON, TEXT = "application/json", "text/plain; version=0.0.4"


def score(stream: aiostream.Stream, items: list[float]) -> Generator[None, None, list[float]]:
    spin(stream, SECONDS)  # stands for the launch of your model
    yield  # other requests are read and answered until the GPU is done
    return [2.0 * item for item in items]


class Application:
    """Takes requests of ASGI by `__call__`, and of RSGI by `__rsgi__`."""

    async def begin(self) -> None:
        """Called when a worker starts, in its loop."""
        self.stack = contextlib.AsyncExitStack()
        self.stack.callback(aiostream.exit_on_context_failed(stalled=True))
        pool = aiostream.StreamPool(3, each=lambda stream: stream, stalled_after=STALLED)
        self.pool = await self.stack.enter_async_context(pool)
        batches = serving.Batches(pool, score, most=32, max_waiting=WAITING)
        self.scored = await self.stack.enter_async_context(batches)
        await self.scored(0.0)  # the first launch takes longer
        self.collector = Collector(pools={"model": pool}, batches={"score": batches})

    async def end(self) -> None:
        """Called when the requests are answered."""
        await aiostream.drain(10)
        self.pool.close()  # else the end of its block would wait for a GPU that hangs
        await self.stack.aclose()

    async def answer(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Returns the status, the type and the body of an answer."""
        if path == "/health":
            lost = aiostream.health()
            return 503 if lost else 200, TEXT, str(lost or "ok").encode()
        if path == "/metrics":
            return 200, TEXT, generate_latest(self.collector)
        if path != "/score":
            return 404, TEXT, b"not found"
        try:
            item = float(decode(body)["item"])
        except (ValueError, TypeError, KeyError) as error:
            return 400, TEXT, f"bad request: {error}".encode()
        try:
            async with asyncio.timeout(TIMEOUT):
                return 200, JSON, encode({"score": await self.scored(item)})
        except aiostream.PoolFullError:
            return 503, TEXT, b"too many requests wait"
        except TimeoutError:
            return 504, TEXT, b"it took too long"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request of ASGI, or the life of a worker."""
        if scope["type"] == "lifespan":
            await receive()
            try:
                await self.begin()
            except BaseException:
                await send({"type": "lifespan.startup.failed"})  # else granian goes on
                raise
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.end()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, message = b"", {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        async with serving.while_connected(receive):
            status, kind, found = await self.answer(scope["path"], body)
            headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(found))]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": found})

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_until_complete(self.begin())

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_until_complete(self.end())

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """One request of RSGI."""
        async with serving.while_connected(protocol):
            status, kind, found = await self.answer(scope.path, await protocol())
            protocol.response_bytes(status, [("content-type", kind)], found)


app = Application()
