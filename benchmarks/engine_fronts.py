"""Fronts: what stands between HTTP and `serving.Batches`. `engines.py` starts each in a process.

    python -m benchmarks.engine_fronts 'granian RSGI' 8000

All have the model, the graphs and the batches of the way "aiostream graphs", which is FastAPI with
pydantic on uvicorn. What differs is who reads the request and who writes the answer.

A front can also be measured by parts: each of `PARTS` does what the one before does, and one thing
more. So the CPU of a request is that of its parts. The last part has the model in place of the two
before it, and is what is measured where parts are not asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiostream
from aiostream import serving
from benchmarks import engine_servers

NAME = "benchmarks.engine_fronts"  # by which workers import this module
PARTS = {
    "answer": "the front: it reads a request's head, and answers",
    "body": "the body is read",
    "JSON": "JSON is read and written",
    "Batches": "`Batches` of a function that does nothing",
    "timeout": "`asyncio.timeout`",
    "while_connected": "`serving.while_connected`",
    "model": "`Batches` of the model, which is launched and awaited",
}
LEVELS = list(PARTS)
JSON, BATCHES, TIMEOUT, CONNECTED, MODEL = range(2, len(LEVELS))
WITHOUT = 1.0  # the score of parts that have no model
PART = "BENCHMARKS_FRONT_PART"  # the environment variable with one of these


def level() -> int:
    """How much a request does."""
    return LEVELS.index(os.environ.get(PART, LEVELS[MODEL]))


@contextlib.asynccontextmanager
async def without_model() -> AsyncIterator[engine_servers.Score]:
    """`Batches` alone."""

    def score(items: list[int]) -> list[float]:
        return [WITHOUT] * len(items)

    async with (
        aiostream.StreamPool(engine_servers.STREAMS) as pool,
        serving.Batches(pool, score, most=engine_servers.MOST) as scored,
    ):
        yield scored


class Application:
    """A request of ASGI by `__call__`, of RSGI by `__rsgi__`."""

    async def begin(self) -> None:
        """Loads the model, in a worker."""
        self._level, self._stack = level(), contextlib.AsyncExitStack()
        if self._level < MODEL:
            batches = without_model()
        else:
            batches = engine_servers.with_batches(engine_servers.Model(), True, False)
        self._score = await self._stack.enter_async_context(batches)
        await self._score(0)
        gc.collect()
        gc.freeze()

    async def end(self) -> None:
        """Called when the requests are answered."""
        await self._stack.aclose()

    async def _answer(self, body: bytes, connection: Any) -> bytes:
        score, level = WITHOUT, self._level
        if level < JSON:
            return b'{"score": 1.0}'
        item = json.loads(body)["item"]
        if level == TIMEOUT:
            async with asyncio.timeout(5):
                score = await self._score(item)
        elif level == CONNECTED:
            async with asyncio.timeout(5), serving.while_connected(connection):
                score = await self._score(item)
        elif level != JSON:
            score = await self._score(item)
        return json.dumps({"score": score}).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await receive()
            await self.begin()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.end()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", self._level > 0
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        found = await self._answer(body, receive)
        length = str(len(found)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": found})

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_until_complete(self.begin())

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_until_complete(self.end())

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """RSGI."""
        body = await protocol() if self._level else b""
        found = await self._answer(body, protocol)
        protocol.response_bytes(200, [("content-type", "application/json")], found)


def starlette() -> Any:
    """The same in Starlette."""
    responses, routing = (
        importlib.import_module(f"starlette.{n}") for n in ("responses", "routing")
    )
    served = Application()

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        await served.begin()
        yield
        await served.end()

    async def predict(request: Any) -> Any:
        score = await served._score((await request.json())["item"])
        return responses.JSONResponse({"score": score})

    routes = [routing.Route("/predict", predict, methods=["POST"])]
    return importlib.import_module("starlette.applications").Starlette(
        routes=routes, lifespan=lifespan
    )


bare = Application()  # granian and uvicorn's workers import it by its name


def uvicorn_server(name: str, workers: int = 1, part: str = LEVELS[MODEL]) -> Callable[[int], None]:
    """A server of uvicorn."""

    def serve(port: int) -> None:
        import uvicorn

        os.environ[PART] = part
        uvicorn.run(
            f"{NAME}:{name}",
            factory=name == "starlette",
            workers=workers,
            host="127.0.0.1",
            port=port,
            log_level="warning",
            access_log=False,
        )

    return serve


def granian_server(
    interface: str, workers: int = 1, part: str = LEVELS[MODEL]
) -> Callable[[int], None]:
    """A server of granian. It forks, so its first process does not use CUDA."""

    def serve(port: int) -> None:
        granian = importlib.import_module("granian")
        constants = importlib.import_module("granian.constants")
        os.environ[PART] = part
        granian.Granian(
            f"{NAME}:bare",
            address="127.0.0.1",
            port=port,
            workers=workers,
            interface=constants.Interfaces(interface),
            log_level="warning",
        ).serve()

    return serve


Ways = dict[str, tuple[str, Callable[[int], None]]]
FRONTS: Ways = {
    "bare ASGI": ("uvicorn", uvicorn_server("bare")),
    "bare ASGI x2": ("uvicorn", uvicorn_server("bare", 2)),
    "Starlette": ("starlette", uvicorn_server("starlette")),
    "granian ASGI": ("granian", granian_server("asgi")),
    "granian RSGI": ("granian", granian_server("rsgi")),
    "granian RSGI x2": ("granian", granian_server("rsgi", 2)),
}
BY_PARTS: Ways = {
    **{f"ASGI: {each}": ("uvicorn", uvicorn_server("bare", 1, each)) for each in LEVELS},
    **{f"RSGI: {each}": ("granian", granian_server("rsgi", 1, each)) for each in LEVELS},
}
# The parts whose answers are those of no model.
CONSTANT = {way for way in BY_PARTS if LEVELS.index(way.partition(": ")[2]) < MODEL}


if __name__ == "__main__":
    (FRONTS | BY_PARTS)[sys.argv[1]][1](int(sys.argv[2]))
