"""One model and one server, and four ways to wait for the GPU: the difference is one line.

    pip install . torch starlette uvicorn
    python examples/embedding_server.py --way aiostream          # needs a GPU
    curl 'http://127.0.0.1:8000/embed?text=7'
    python examples/embedding_server.py --simulator              # without one, and without torch

The model is a transformer with random weights. Each of a few streams has a task, which takes up to
`--batch` requests that wait, launches the CUDA graph of that size, and waits for it in the way that
you choose: `blocking`, `to_thread`, `polling` (each millisecond) or `aiostream`. Everything else is
the same. `python -m benchmarks proof` compares the four.

On the simulator, kernels of its own take the place of the model: they take some milliseconds and
compute numbers that can be checked. Those figures say nothing about a GPU.
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
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

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
# Of the simulator's kernels, seconds: a batch, and each text of it.
BASE, EACH = 0.0035, 0.0005


class Lane(Protocol):
    """A stream with the memory and the graphs of one batch at a time."""

    stream: aiostream.Stream

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the stream torch's current one for a block."""

    def launch(self, texts: list[int]) -> None:
        """Enqueues copy, model, copy on the current stream. It does not block."""

    def synchronize(self) -> None:
        """Blocks until the stream is done."""

    def query(self) -> bool:
        """Whether the stream is done."""

    def embeddings(self, count: int) -> list[list[float]]:
        """What the last batch has computed."""


# ------------------------------------------------------------------------------ the four ways


async def blocking(lane: Lane, texts: list[int]) -> None:
    with lane.current():
        lane.launch(texts)
    lane.synchronize()


async def to_thread(lane: Lane, texts: list[int]) -> None:
    with lane.current():
        lane.launch(texts)
    await asyncio.to_thread(lane.synchronize)


async def polling(lane: Lane, texts: list[int]) -> None:
    with lane.current():
        lane.launch(texts)
    while not lane.query():  # noqa: ASYNC110, this is what aiostream replaces
        await asyncio.sleep(0.001)


async def with_aiostream(lane: Lane, texts: list[int]) -> None:
    await lane.stream.run(lane.launch, texts)  # with the stream current


WAYS: dict[str, Callable[[Lane, list[int]], Awaitable[None]]] = {
    "blocking": blocking,
    "to_thread": to_thread,
    "polling": polling,
    "aiostream": with_aiostream,
}

# ------------------------------------------------------------------------------ the server


class Batches:
    """Collects the requests that wait, and runs each batch on the next free lane."""

    def __init__(self, way: str, most: int) -> None:
        self._wait, self._most = WAYS[way], most
        self._queue: asyncio.Queue[tuple[int, asyncio.Future[list[float]]]]
        self._queue = asyncio.Queue(WAITING)

    async def embed(self, text: int) -> list[float]:
        """Waits for the embedding of one text.

        Raises:
            asyncio.QueueFull: Too many requests wait.
        """
        future = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((text, future))
        embedding: list[float] = await future
        return embedding

    async def serve(self, lane: Lane) -> None:
        """Runs one batch after another on a lane."""
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self._most and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            batch = [(text, future) for text, future in batch if not future.done()]
            if not batch:
                continue
            try:
                await self._wait(lane, [text for text, _ in batch])
                embeddings = lane.embeddings(len(batch))
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), embedding in zip(batch, embeddings, strict=True):
                if not future.done():
                    future.set_result(embedding)


async def embed(request: Request) -> Response:
    try:
        text = int(request.query_params["text"])
        if not 0 <= text < TEXTS:
            raise ValueError
    except (KeyError, ValueError):
        return PlainTextResponse(f"text is a number from 0 to {TEXTS - 1}", 400)
    try:
        return JSONResponse({"text": text, "embedding": await request.app.state.embed(text)})
    except asyncio.QueueFull:
        return PlainTextResponse("too many requests wait", 503)


async def health(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def expected(request: Request) -> JSONResponse:
    """The embeddings of all texts, to check the answers."""
    return JSONResponse(request.app.state.expected)


def application(way: str, *, lanes: int, batch: int, simulated: bool) -> Starlette:
    """The ASGI application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        stop_watching = aiostream.exit_on_context_failed()
        ready, app.state.expected = (simulated_lanes if simulated else torch_lanes)(lanes, batch)
        batches = Batches(way, batch)
        app.state.embed = batches.embed
        # torch alone makes some 150,000 objects, which each full collection would look at.
        gc.collect()
        gc.freeze()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(batches.serve(lane)) for lane in ready]
            yield
            await aiostream.drain(10)
            for task in tasks:
                task.cancel()
        stop_watching()

    routes = [Route("/embed", embed), Route("/health", health), Route("/expected", expected)]
    return Starlette(routes=routes, lifespan=lifespan)


# ------------------------------------------------------------------------------ torch


def torch_lanes(count: int, batch: int) -> tuple[list[Lane], list[list[float]]]:
    """Builds the model, and captures a graph for each batch size on each of its streams."""
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

    class Captured:
        """A graph for one batch size, with the memory that it works on."""

        def __init__(self, size: int, stream: Any) -> None:
            # Only with pinned memory a copy does not block.
            self._tokens = torch.empty((size, LENGTH), dtype=torch.int64, pin_memory=True)
            self.result = torch.empty((size, SIZE), pin_memory=True)
            self._gather([0] * size)
            self._tokens_on_gpu = self._tokens.to("cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                for _ in range(WARM):
                    model(self._tokens_on_gpu)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._result_on_gpu = model(self._tokens_on_gpu)
            torch.cuda.synchronize()

        def _gather(self, rows: list[int]) -> None:
            torch.index_select(texts, 0, torch.tensor(rows), out=self._tokens)

        def launch(self, rows: list[int]) -> None:
            self._gather(rows)
            self._tokens_on_gpu.copy_(self._tokens, non_blocking=True)
            self._graph.replay()
            self.result.copy_(self._result_on_gpu, non_blocking=True)

    class TorchLane:
        def __init__(self) -> None:
            self._theirs = torch.cuda.Stream()
            self.stream = aiostream.Stream.borrow(self._theirs)
            sizes = [size for size in (1, 2, 4, 8, 16, 32) if size < 2 * batch]
            self._graphs = {size: Captured(size, self._theirs) for size in sizes}
            self._used = self._graphs[1]

        def current(self) -> contextlib.AbstractContextManager[Any]:
            block: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self._theirs)
            return block

        def launch(self, texts: list[int]) -> None:
            size = next(size for size in self._graphs if size >= len(texts))
            self._used = self._graphs[size]
            with torch.inference_mode():
                self._used.launch(texts + [0] * (size - len(texts)))

        def synchronize(self) -> None:
            self._theirs.synchronize()

        def query(self) -> bool:
            return bool(self._theirs.query())

        def embeddings(self, count: int) -> list[list[float]]:
            found: list[list[float]] = self._used.result.tolist()[:count]
            return found

    with torch.inference_mode():
        lanes: list[Lane] = [TorchLane() for _ in range(count)]
        return lanes, [row[:SIZE] for row in model(texts.to("cuda")).to("cpu").tolist()]


# ------------------------------------------------------------------------------ the simulator


class SimulatedLane:
    """In place of the model: a kernel that takes some time, and one that multiplies by three."""

    def __init__(self, batch: int) -> None:
        from cuda.bindings import driver as cuda

        from aiostream.testing import check

        self.stream = aiostream.Stream()
        numbers = batch * SIZE
        with self.stream.context.as_current():
            self._pointer = int(check(cuda.cuMemHostAlloc(8 * numbers, 3)))  # portable, mapped
        self._numbers = (ctypes.c_float * (2 * numbers)).from_address(self._pointer)
        self._half = numbers  # the first half is what comes in, the second what goes out

    def current(self) -> contextlib.AbstractContextManager[Any]:  # noqa: D102
        return contextlib.nullcontext()

    def launch(self, texts: list[int]) -> None:  # noqa: D102
        from aiostream.testing import launch, spin

        count = len(texts) * SIZE
        self._numbers[:count] = [float(text + at) for text in texts for at in range(SIZE)]
        self._numbers[self._half : self._half + count] = [0.0] * count
        spin(self.stream, BASE + EACH * len(texts))
        source, result = self._pointer, self._pointer + 4 * self._half
        pointers = ctypes.c_uint64(source), ctypes.c_uint64(result)
        launch(self.stream, "saxpy", ctypes.c_float(3), *pointers, ctypes.c_uint32(count))

    def synchronize(self) -> None:  # noqa: D102
        self.stream.synchronize()

    def query(self) -> bool:  # noqa: D102
        return self.stream.query()

    def embeddings(self, count: int) -> list[list[float]]:  # noqa: D102
        found = self._numbers[self._half : self._half + count * SIZE]
        return [found[at : at + SIZE] for at in range(0, count * SIZE, SIZE)]


def simulated_lanes(count: int, batch: int) -> tuple[list[Lane], list[list[float]]]:
    """Makes the lanes, and computes on the host what they will answer."""
    from aiostream.testing import load_kernels

    load_kernels(aiostream.Device(0).primary_context)
    right = [[3.0 * (text + at) for at in range(SIZE)] for text in range(TEXTS)]
    return [SimulatedLane(batch) for _ in range(count)], right


def main() -> None:
    parser = argparse.ArgumentParser(description="Four ways to wait for a model on the GPU.")
    parser.add_argument("--way", choices=list(WAYS), default="aiostream")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--streams", type=int, default=8, help="batches at once (default: 8)")
    parser.add_argument(
        "--batch", type=int, choices=range(1, 33), default=1, metavar="1..32", help="default: 1"
    )
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
    app = application(
        options.way, lanes=options.streams, batch=options.batch, simulated=options.simulator
    )
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
