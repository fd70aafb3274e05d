"""One decoder behind one server after another. `steps.py` starts each in a process of its own.

    python -m benchmarks.step_servers Steps 8000 SETTINGS COUNTS

Each answers `POST /predict` with `{"prompt": 7, "tokens": 20}` by an event for each token:
`data: {"token": 1244}`. They share the model. `COUNTS` is a file in which it counts its steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import step_ways
from benchmarks.step_model import Model, Settings, model_of
from benchmarks.step_ways import Answer, Request, Way

EVENT = 'data: {"token": %d}\n\n'
BYTES = EVENT.encode()
KIND = "text/event-stream"
# Processes that the engines start find there which way they serve, the settings and the counts.
VARIABLE = "AIOSTREAM_BENCHMARK_STEPS"


def new_model() -> tuple[str, Settings, Model]:
    """Returns what this process serves."""
    way, settings, counts = json.loads(os.environ[VARIABLE])
    known = Settings(**settings)
    return way, known, model_of(known, Path(counts))


class Serving:
    """A model, and a way to run its steps."""

    answer: Answer

    def __init__(self, way: Way) -> None:
        self._way, self._stack = way, contextlib.AsyncExitStack()

    async def begin(self) -> None:
        """Loads the model in the loop of the server."""
        _, settings, model = new_model()
        way = self._way(model, settings.python_ms / 1e3)
        self.answer = await self._stack.enter_async_context(way)
        await step_ways.read_all(self.answer, [0], 2)
        gc.collect()
        gc.freeze()

    async def end(self) -> None:
        """Ends the steps."""
        await self._stack.aclose()

    def asked(self, body: bytes) -> Request:
        """The block of a request."""
        request = json.loads(body)
        return self.answer(request["prompt"], request["tokens"])


# ------------------------------------------------------------------------------ bare ASGI


class Asgi(Serving):
    """An application of ASGI, without a framework."""

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        """Called by the server, for itself and for each request."""
        if scope["type"] == "lifespan":
            await receive()
            await self.begin()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.end()
            await send({"type": "lifespan.shutdown.complete"})
            return
        request = self.asked((await receive())["body"])
        head = [(b"content-type", KIND.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        part = {"type": "http.response.body", "more_body": True}
        async with request as tokens:
            async for token in tokens:
                await send({**part, "body": BYTES % token})
        await send({"type": "http.response.body", "body": b""})


def run_uvicorn(app: Any, port: int) -> None:
    """Runs an application."""
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def asgi_server(way: Way, port: int) -> None:
    """Uvicorn alone."""
    run_uvicorn(Asgi(way), port)


def fastapi_server(way: Way, port: int) -> None:
    """FastAPI's `StreamingResponse`, on uvicorn."""
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse
    from pydantic import BaseModel

    serving = Serving(way)

    class Asked(BaseModel):
        prompt: int
        tokens: int

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await serving.begin()
        yield
        await serving.end()

    async def events(request: Request) -> AsyncIterator[str]:
        async with request as tokens:
            async for token in tokens:
                yield EVENT % token

    async def predict(asked: Any) -> StreamingResponse:
        return StreamingResponse(
            events(serving.answer(asked.prompt, asked.tokens)), media_type=KIND
        )

    # FastAPI reads it, and a name of this function would not be found by its string.
    predict.__annotations__ = {"asked": Asked}
    app = FastAPI(lifespan=lifespan)
    app.post("/predict")(predict)
    run_uvicorn(app, port)


# ------------------------------------------------------------------------------ granian


class Rsgi(Serving):
    """An application of granian's own interface."""

    def __rsgi_init__(self, loop: Any) -> None:
        """Called by granian, before the loop runs."""
        loop.run_until_complete(self.begin())

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Called by granian for each request."""
        request = self.asked(await protocol())
        transport = protocol.response_stream(200, [("content-type", KIND)])
        async with request as tokens:
            async for token in tokens:
                await transport.send_str(EVENT % token)


GRANIAN = {"Steps, granian": step_ways.STEPS, "one ahead by hand, granian": step_ways.ONE_AHEAD}


def new_rsgi() -> Rsgi:
    """The application, in granian's worker."""
    way, _, _ = json.loads(os.environ[VARIABLE])
    return Rsgi(GRANIAN[way])


def granian_server(port: int) -> None:
    """Granian with one worker."""
    granian = importlib.import_module("granian")
    options = {"interface": "rsgi", "workers": 1, "factory": True, "log_access": False}
    target = f"{__spec__.name}:{new_rsgi.__name__}" if __spec__ else ""
    granian.Granian(target, address="127.0.0.1", port=port, log_level="warning", **options).serve()


# ------------------------------------------------------------------------------ LitServe


def litserve_server(port: int) -> None:
    """LitServe's continuous batching."""
    litserve = importlib.import_module("litserve")
    decoder = importlib.import_module("benchmarks.step_litserve").new_decoder()
    # Not "cuda": the model chooses its GPU by itself.
    server = litserve.LitServer(decoder, accelerator="cpu", workers_per_device=1, timeout=60)
    options = {"num_api_servers": 1, "generate_client_file": False, "log_level": "warning"}
    server.run(host="127.0.0.1", port=port, access_log=False, **options)


# What needs which package, and starts it. In the order in which they are measured.
WAYS: dict[str, tuple[str, Callable[[int], None]]] = {
    "Steps": ("uvicorn", partial(asgi_server, step_ways.STEPS)),
    "one ahead by hand": ("uvicorn", partial(asgi_server, step_ways.ONE_AHEAD)),
    "Steps, granian": ("granian", granian_server),
    "one ahead by hand, granian": ("granian", granian_server),
    "Steps, FastAPI": ("fastapi", partial(fastapi_server, step_ways.STEPS)),
    "one after another": ("uvicorn", partial(asgi_server, step_ways.ONE_AFTER_ANOTHER)),
    "blocking thread": ("uvicorn", partial(asgi_server, step_ways.THREAD)),
    "LitServe": ("litserve", litserve_server),
}


def arguments(settings: Settings, counts: Path) -> list[str]:
    """Those of a server's process that follow its way and its port."""
    return [json.dumps(dataclasses.asdict(settings)), str(counts)]


def main(given: Sequence[str]) -> None:
    """Serves until it gets a signal."""
    way, port, settings, counts = given
    os.environ[VARIABLE] = json.dumps([way, json.loads(settings), counts])
    WAYS[way][1](int(port))


if __name__ == "__main__":
    main(sys.argv[1:])
