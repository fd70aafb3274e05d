"""One model behind one server after another. `engines.py` starts each in a process of its own.

    python -m benchmarks.engine_servers 'aiostream graphs' 8000

Each answers `POST /predict` with `{"item": 7}` by `{"score": 0.5}`. `expected` in place of a way
prints the scores of all items. They share the model, its pinned buffers, its graphs and the largest
batch. The engines are used as their documents recommend: one process with the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import aiostream
from aiostream import serving

ITEMS, FEATURES, WIDTH, BLOCKS = 1024, 256, 1024, 12
MOST = 32  # items of a batch
SIZES = (1, 2, 4, 8, 16, 32)  # of batches; each has a graph on each stream
STREAMS = 3
WARM = 3  # forwards before a capture, as torch's manual asks

torch: Any = None  # imported by `Model`


class Model:
    """A residual perceptron with random weights, and a table of features."""

    def __init__(self) -> None:
        global torch
        torch = importlib.import_module("torch")
        nn, on = torch.nn, {"device": "cuda", "dtype": torch.bfloat16}
        torch.manual_seed(0)
        self._first = nn.Linear(FEATURES, WIDTH, **on)
        self._blocks = [
            nn.Sequential(nn.LayerNorm(WIDTH, **on), nn.Linear(WIDTH, WIDTH, **on), nn.GELU())
            for _ in range(BLOCKS)
        ]
        self._last = nn.Linear(WIDTH, 1, **on)
        self.features = torch.randn((ITEMS, FEATURES)).to(torch.bfloat16)  # on the host

    def __call__(self, rows: Any) -> Any:
        """Launches the forward on torch's current stream."""
        hidden = self._first(rows)
        for block in self._blocks:
            hidden = hidden + block(hidden)
        return self._last(hidden).float()

    def expected(self) -> list[float]:
        """The scores of all items."""
        with torch.inference_mode():
            rows = self.features.to("cuda")
            return [row[0] for row in self(rows).to("cpu").tolist()]


class Sized:
    """The pinned memory of one batch size, and perhaps its graph on one stream."""

    def __init__(self, model: Model, size: int, stream: Any, captured: bool) -> None:
        self._model, self._graph = model, None
        self._rows = torch.empty((size, FEATURES), dtype=torch.bfloat16, pin_memory=True)
        self._scores = torch.empty((size, 1), pin_memory=True)
        if not captured:
            return
        self._gather([0] * size)
        self._rows_on_gpu = self._rows.to("cuda")
        torch.cuda.synchronize()
        with torch.inference_mode():
            with torch.cuda.stream(stream):
                for _ in range(WARM):
                    model(self._rows_on_gpu)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._scores_on_gpu = model(self._rows_on_gpu)
        torch.cuda.synchronize()
        self._graph = graph

    def _gather(self, items: list[int]) -> None:
        torch.index_select(self._model.features, 0, torch.tensor(items), out=self._rows)

    def launch(self, items: list[int]) -> None:
        """Enqueues copy, model, copy on torch's current stream."""
        with torch.inference_mode():
            self._gather(items)
            if self._graph is None:
                scores = self._model(self._rows.to("cuda", non_blocking=True))
            else:
                self._rows_on_gpu.copy_(self._rows, non_blocking=True)
                self._graph.replay()
                scores = self._scores_on_gpu
            self._scores.copy_(scores, non_blocking=True)

    def read(self, count: int) -> list[float]:
        """The scores of the first items, when the GPU is done."""
        return [row[0] for row in self._scores.tolist()[:count]]


class Replica:
    """What belongs to one stream: a `Sized` for each batch size."""

    def __init__(
        self, model: Model, stream: Any, captured: bool, sizes: tuple[int, ...] = SIZES
    ) -> None:
        self.stream = stream
        self._sized = {size: Sized(model, size, stream, captured) for size in sizes}

    def launch(self, items: list[int]) -> Sized:
        """Enqueues a batch on torch's current stream."""
        size = next(size for size in self._sized if size >= len(items))
        self._sized[size].launch(items + [0] * (size - len(items)))
        return self._sized[size]

    def halves(self, items: list[int]) -> Generator[None, None, list[float]]:
        """The whole batch, in two halves."""
        sized = self.launch(items)
        yield  # other requests are read and answered until the GPU is done
        return sized.read(len(items))

    def score(self, items: list[int]) -> list[float]:
        """The whole batch, blocking: what the engines call in processes of their own."""
        with torch.cuda.stream(self.stream):
            sized = self.launch(items)
        self.stream.synchronize()
        return sized.read(len(items))


def replicas(model: Model, captured: bool) -> list[Replica]:
    """One for each stream."""
    return [Replica(model, torch.cuda.Stream(), captured) for _ in range(STREAMS)]


# ------------------------------------------------------------------------------ FastAPI


Score = Callable[[int], Awaitable[float]]


@contextlib.asynccontextmanager
async def with_batches(model: Model, captured: bool, in_thread: bool) -> AsyncIterator[Score]:
    """`serving.Batches` on a pool."""
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]

    def each(_: aiostream.Stream) -> Replica:
        return Replica(model, torch.cuda.current_stream(), captured)

    async with (
        aiostream.StreamPool.borrow(streams, each=each) as pool,
        serving.Batches(pool, Replica.halves, most=MOST, in_thread=in_thread) as scored,
    ):
        yield scored


@contextlib.asynccontextmanager
async def with_sketch(model: Model, captured: bool) -> AsyncIterator[Score]:
    """What one writes by hand: a queue, and a task for each stream."""
    waiting: deque[tuple[int, asyncio.Future[float]]] = deque()
    comes = asyncio.Event()

    async def serve(replica: Replica, stream: aiostream.Stream) -> None:
        while True:
            while not waiting:
                comes.clear()
                await comes.wait()
            batch = [waiting.popleft() for _ in range(min(len(waiting), MOST))]
            sized = await stream.run(replica.launch, [item for item, _ in batch])
            for (_, future), score in zip(batch, sized.read(len(batch)), strict=True):
                future.set_result(score)

    async def score(item: int) -> float:
        future = asyncio.get_running_loop().create_future()
        waiting.append((item, future))
        comes.set()
        found: float = await future
        return found

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(serve(each, aiostream.Stream.borrow(each.stream)))
            for each in replicas(model, captured)
        ]
        yield score
        for task in tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def with_threads(model: Model, captured: bool) -> AsyncIterator[Score]:
    """One request at a time on each stream, in `asyncio.to_thread`."""
    free: asyncio.Queue[Replica] = asyncio.Queue()
    for each in replicas(model, captured):
        free.put_nowait(each)

    async def score(item: int) -> float:
        replica = await free.get()
        try:
            return (await asyncio.to_thread(replica.score, [item]))[0]
        finally:
            free.put_nowait(replica)

    yield score


def fastapi_server(way: Callable[..., Any], *options: Any) -> Callable[[int], None]:
    """A server of FastAPI on uvicorn."""

    def serve(port: int) -> None:
        import uvicorn
        from fastapi import FastAPI
        from pydantic import BaseModel

        class Request(BaseModel):
            item: int

        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            async with way(Model(), *options) as app.state.score:
                await app.state.score(0)
                gc.collect()
                gc.freeze()
                yield

        app = FastAPI(lifespan=lifespan)

        async def predict(request: Any) -> dict[str, float]:
            return {"score": await app.state.score(request.item)}

        # FastAPI reads it, and a name of this function would not be found by its string.
        predict.__annotations__ = {"request": Request, "return": dict[str, float]}
        app.post("/predict")(predict)

        uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)

    return serve


# ------------------------------------------------------------------------------ engines


def litserve_server(name: str, timeout: float) -> Callable[[int], None]:
    """A server of LitServe."""

    def serve(port: int) -> None:
        litserve = importlib.import_module("litserve")
        kind = getattr(importlib.import_module("benchmarks.engine_litserve"), name)
        api = kind(max_batch_size=MOST, batch_timeout=timeout)
        # Not "cuda": the model chooses its GPU by itself, and the stand-in has none.
        server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
        options = {"num_api_servers": 1, "generate_client_file": False, "log_level": "warning"}
        server.run(host="127.0.0.1", port=port, access_log=False, **options)

    return serve


def mosec_server(wait: int) -> Callable[[int], None]:
    """A server of mosec."""

    def serve(port: int) -> None:
        mosec: Any = importlib.import_module("mosec")
        runtime: Any = importlib.import_module("mosec.runtime")
        # mosec looks for its program where this Python's are. `pip install --target` puts it
        # elsewhere, into a `bin` of a folder above the package.
        programs = (folder / "bin" / "mosec" for folder in Path(mosec.__file__).parents)
        program = next(filter(Path.is_file, programs))
        runtime.get_mosec_path = lambda: program
        worker = importlib.import_module("benchmarks.engine_mosec").Scorer
        sys.argv = ["mosec", "--address", "127.0.0.1", "--port", str(port), "--timeout", "60000"]
        server = mosec.Server()
        options = {"max_batch_size": MOST, "max_wait_time": wait, "route": "/predict"}
        server.append_worker(worker, num=1, **options)
        server.run()

    return serve


def bentoml_server(port: int) -> None:
    """A server of BentoML, whose model has a process of its own."""
    os.environ["BENTOML_DO_NOT_TRACK"] = "True"
    command = ["-m", "bentoml", "serve", "benchmarks.engine_bentoml:Front"]
    os.execv(sys.executable, [sys.executable, *command, "--host=127.0.0.1", f"--port={port}"])


# What needs which package, and starts it. In the order in which they are measured.
WAYS: dict[str, tuple[str, Callable[[int], None]]] = {
    "aiostream graphs": ("fastapi", fastapi_server(with_batches, True, False)),
    "LitServe graphs": ("litserve", litserve_server("Graphs", 0.0)),
    "mosec graphs": ("mosec", mosec_server(1)),
    "sketch graphs": ("fastapi", fastapi_server(with_sketch, True)),
    "to_thread eager": ("fastapi", fastapi_server(with_threads, False)),
    "to_thread graphs": ("fastapi", fastapi_server(with_threads, True)),
    "aiostream eager": ("fastapi", fastapi_server(with_batches, False, False)),
    "aiostream eager in threads": ("fastapi", fastapi_server(with_batches, False, True)),
    "LitServe eager": ("litserve", litserve_server("Eager", 0.0)),
    "LitServe graphs, 5 ms": ("litserve", litserve_server("Graphs", 0.005)),
    "mosec graphs, 10 ms": ("mosec", mosec_server(10)),
    "BentoML graphs": ("bentoml", bentoml_server),
}


if __name__ == "__main__":
    if os.environ.get("AIOSTREAM_SIMULATOR"):
        aiostream.Device(0)
    if sys.argv[1] == "expected":
        print(json.dumps(Model().expected()))
    else:
        WAYS[sys.argv[1]][1](int(sys.argv[2]))
