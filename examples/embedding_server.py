"""One model and one server, and four ways to wait for the GPU: the difference is one line.

    pip install . ./driver torch starlette uvicorn
    python examples/embedding_server.py --way aiostream          # needs a GPU
    curl 'http://127.0.0.1:8000/embed?text=7'
    python examples/embedding_server.py --simulator              # without one, and without torch

The model is a transformer with random weights. Each request gets a stream of a pool, launches the
stream's CUDA graph, and waits for it in the way that you choose: `blocking`, `to_thread`, `polling`
(each millisecond) or `aiostream`. Everything else is the same. `python -m benchmarks proof`
compares the four. `torch_server.py` has batches.

On the simulator, its kernels take the place of the model, and the figures say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import aiostream

TEXTS, LENGTH, TOKENS = 256, 64, 8192  # texts that can be asked for, tokens of each, vocabulary
WIDTH, HEADS, LAYERS = 512, 8, 6
SIZE = 8  # numbers of an embedding
WARM = 3  # forwards before a capture, as torch's manual asks
WAITING = 1024  # requests that may wait; one more gets 503
WAYS = ("blocking", "to_thread", "polling", "aiostream")
MODE = "thread_local"  # in the mode "global" a call of any other thread would end the capture
SECONDS = 0.004  # of the simulator's kernels


async def work(way: str, stream: aiostream.Stream, launch: Callable[[], None]) -> None:
    if way == "aiostream":
        await stream.run(launch)
        return
    launch()
    if way == "blocking":
        stream.synchronize()
    elif way == "to_thread":
        await asyncio.to_thread(stream.synchronize)
    else:
        while not stream.query():  # noqa: ASYNC110, this is what aiostream replaces
            await asyncio.sleep(0.001)


# ------------------------------------------------------------------------------ the server


async def embed(request: Request) -> Response:
    asked = request.query_params.get("text", "")
    if not asked.isdecimal() or int(asked) >= TEXTS:
        return PlainTextResponse(f"text is a number from 0 to {TEXTS - 1}", 400)
    text = int(asked)
    try:
        async with request.app.state.pool.stream() as stream:
            lane = stream.own
            await work(request.app.state.way, stream, lambda: lane.launch(text))
            return JSONResponse({"text": text, "embedding": lane.embedding()})
    except aiostream.PoolFullError:
        return PlainTextResponse("too many requests wait", 503)


async def health(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def expected(request: Request) -> JSONResponse:
    """The embeddings of all texts, to check the answers."""
    return JSONResponse(request.app.state.expected)


def application(way: str, *, lanes: int, simulated: bool) -> Starlette:
    """The ASGI application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        stop_watching = aiostream.exit_on_context_failed()
        pool, app.state.expected = (simulated_pool if simulated else torch_pool)(lanes)
        app.state.pool, app.state.way = pool, way
        # torch alone makes some 150,000 objects, which each full collection would look at.
        gc.collect()
        gc.freeze()
        yield
        await aiostream.drain(10)
        pool.close()  # not `aclose`, which would wait for a GPU that hangs
        stop_watching()

    routes = [Route("/embed", embed), Route("/health", health), Route("/expected", expected)]
    return Starlette(routes=routes, lifespan=lifespan)


# ------------------------------------------------------------------------------ torch


def torch_pool(count: int) -> tuple[aiostream.StreamPool[Any], Any]:
    """Builds the model, and captures a graph of it on each stream."""
    import torch

    nn, on = torch.nn, {"device": "cuda", "dtype": torch.bfloat16}
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, **on)
    embedding = nn.Embedding(TOKENS, WIDTH, **on)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    projection = nn.Linear(WIDTH, SIZE, **on)
    texts = torch.randint(TOKENS, (TEXTS, LENGTH))  # on the host

    def model(tokens: Any) -> Any:
        return projection(encoder(embedding(tokens)).mean(1)).float()

    class Lane:
        """What belongs to one stream: a graph, and the memory that it works on."""

        def __init__(self, _: aiostream.Stream) -> None:
            self._stream = torch.cuda.current_stream()
            # Only with pinned memory a copy does not block.
            self._tokens = torch.empty((1, LENGTH), dtype=torch.int64, pin_memory=True)
            self._result = torch.empty((1, SIZE), pin_memory=True)
            torch.index_select(texts, 0, torch.tensor([0]), out=self._tokens)
            self._tokens_on_gpu = self._tokens.to("cuda")
            self._graph = torch.cuda.CUDAGraph()
            with torch.inference_mode():
                for _again in range(WARM):
                    model(self._tokens_on_gpu)
                with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode=MODE):
                    self._result_on_gpu = model(self._tokens_on_gpu)

        def launch(self, text: int) -> None:
            """Enqueues copy, model, copy. It does not block."""
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                torch.index_select(texts, 0, torch.tensor([text]), out=self._tokens)
                self._tokens_on_gpu.copy_(self._tokens, non_blocking=True)
                self._graph.replay()
                self._result.copy_(self._result_on_gpu, non_blocking=True)

        def embedding(self) -> list[float]:
            """What the last launch has computed."""
            return list(self._result.tolist()[0])

    streams = [torch.cuda.Stream() for _ in range(count)]
    pool = aiostream.StreamPool.borrow(streams, each=Lane, max_waiting=WAITING)
    with torch.inference_mode():
        return pool, [row[:SIZE] for row in model(texts.to("cuda")).to("cpu").tolist()]


# ------------------------------------------------------------------------------ the simulator


class SimulatedLane:
    """In place of the model: a kernel that takes some time, and one that multiplies by three."""

    def __init__(self, stream: aiostream.Stream) -> None:
        from cuda.bindings import driver as cuda

        from aiostream.testing import check, load_kernels

        load_kernels(stream.context)
        self._stream = stream
        self._pointer = int(check(cuda.cuMemHostAlloc(8 * SIZE, 3)))  # portable, mapped
        self._numbers = (ctypes.c_float * (2 * SIZE)).from_address(self._pointer)

    def launch(self, text: int) -> None:  # noqa: D102
        from aiostream.testing import launch, spin

        self._numbers[:SIZE] = [float(text + at) for at in range(SIZE)]
        self._numbers[SIZE:] = [0.0] * SIZE
        spin(self._stream, SECONDS)
        pointers = ctypes.c_uint64(self._pointer), ctypes.c_uint64(self._pointer + 4 * SIZE)
        launch(self._stream, "saxpy", ctypes.c_float(3), *pointers, ctypes.c_uint32(SIZE))

    def embedding(self) -> list[float]:  # noqa: D102
        return self._numbers[SIZE:]


def simulated_pool(count: int) -> tuple[aiostream.StreamPool[Any], Any]:
    """Makes the pool, and computes on the host what it will answer."""
    pool = aiostream.StreamPool(count, each=SimulatedLane, max_waiting=WAITING)
    return pool, [[3.0 * (text + at) for at in range(SIZE)] for text in range(TEXTS)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Four ways to wait for a model on the GPU.")
    parser.add_argument("--way", choices=WAYS, default="aiostream")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--streams", type=int, default=8, help="requests at once (default: 8)")
    parser.add_argument("--simulator", action="store_true", help="run without a GPU")
    options = parser.parse_args()
    if options.simulator:
        from aiostream import simulator

        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it would hide the simulated GPU too
        simulator.install()
    try:
        name = aiostream.Device(0).name
    except aiostream.NoDriverError as error:
        raise SystemExit(str(error)) from None
    print(f"{options.way} on {name}; http://127.0.0.1:{options.port}", flush=True)
    import uvicorn

    # uvicorn raises the signal again when it has shut down: an orderly end here.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = application(options.way, lanes=options.streams, simulated=options.simulator)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
