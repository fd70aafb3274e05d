"""FastAPI and a torch model: a CUDA graph for each batch size, and batches while the GPU is busy.

    pip install . torch fastapi uvicorn
    python examples/torch_server.py                      # needs a GPU
    curl 'http://127.0.0.1:8000/score?item=7'

    python examples/torch_server.py --check              # checks its answers under load

Requests that come while all streams are busy are the next batch. So a request that comes alone is
served at once, and under load the batches grow by themselves. Each stream has a `Replica`, with
pinned memory and a graph for each of a few batch sizes.

`--eager` is for models that cannot be captured. Their launch takes milliseconds of Python, so it
is done in a thread of the library, and awaited in the loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from fastapi import FastAPI, HTTPException, Request

import aiostream
from aiostream import serving

ITEMS, FEATURES, WIDTH, BLOCKS = 1024, 256, 1024, 12
SIZES = (1, 2, 4, 8, 16, 32)  # of batches; each has a graph on each stream
STREAMS = 3  # batches on the GPU at once: one computes while the next is copied and launched
WAITING = 256  # requests that may wait for a batch; one more gets 503
TIMEOUT = 5.0  # seconds for one request
STALLED = 30.0  # seconds after which a batch counts as hung, and the process ends
WARM = 3  # forwards before a capture, as torch's manual asks
CLOSE = 0.1  # how near two scores must be: bfloat16, and kernels that depend on the batch's size


class Model:
    """Scores items: a residual perceptron with random weights, and a table of features."""

    def __init__(self) -> None:
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


class Sized:
    """What a stream has for one batch size. Only with pinned memory a copy does not block."""

    def __init__(self, model: Model, size: int, eager: bool) -> None:
        self.rows = torch.empty((size, FEATURES), dtype=torch.bfloat16, pin_memory=True)
        self.scores = torch.empty((size, 1), pin_memory=True)
        self._model, self._graph = model, None
        if eager:
            return
        torch.index_select(model.features, 0, torch.tensor([0] * size), out=self.rows)
        self._rows_on_gpu = self.rows.to("cuda")
        for _ in range(WARM):
            model(self._rows_on_gpu)
        self._graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # In the mode "global" a call of any other thread would end the capture.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._scores_on_gpu = model(self._rows_on_gpu)

    def launch(self) -> None:
        """Enqueues copy, model, copy."""
        if self._graph is None:
            scores = self._model(self.rows.to("cuda", non_blocking=True))
        else:
            self._rows_on_gpu.copy_(self.rows, non_blocking=True)
            self._graph.replay()
            scores = self._scores_on_gpu
        self.scores.copy_(scores, non_blocking=True)


class Replica:
    """What belongs to one stream, which is torch's current one whenever these methods run."""

    @torch.inference_mode()
    def __init__(self, model: Model, eager: bool, stream: aiostream.Stream) -> None:
        self._features = model.features
        self._sized = {size: Sized(model, size, eager) for size in SIZES}

    @torch.inference_mode()
    def score(self, items: list[int]) -> Generator[None, None, list[float]]:
        """Scores a batch."""
        size = next(size for size in SIZES if size >= len(items))
        sized = self._sized[size]
        filled = torch.tensor(items + [0] * (size - len(items)))
        torch.index_select(self._features, 0, filled, out=sized.rows)
        sized.launch()
        yield  # other tasks run until the GPU is done
        return [score for (score,) in sized.scores.tolist()[: len(items)]]


# ------------------------------------------------------------------------------ the server


def application(*, eager: bool = False) -> FastAPI:
    """The ASGI application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop_watching = aiostream.exit_on_context_failed(stalled=True)
        model = Model()
        with torch.inference_mode():
            rows = model.features.to("cuda")
            app.state.expected = [row[0] for row in model(rows).to("cpu").tolist()]
        streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        each = functools.partial(Replica, model, eager)
        async with (
            aiostream.StreamPool.borrow(
                streams, each=each, name="model", stalled_after=STALLED
            ) as pool,
            serving.Batches(
                pool, Replica.score, most=SIZES[-1], max_waiting=WAITING, in_thread=eager
            ) as app.state.score,
        ):
            # A full collection looks at each object, and torch alone has some 150,000. It stopped
            # the loop for 100 ms, several times a second under load. It does not look at frozen
            # objects.
            gc.collect()
            gc.freeze()
            yield
            await aiostream.drain(10)
            pool.close()  # so that the end of the block does not wait for a GPU that hangs
        stop_watching()

    app = FastAPI(lifespan=lifespan)
    app.get("/score")(score)
    app.get("/expected")(expected)
    return app


async def score(item: int, request: Request) -> dict[str, float]:
    """Scores one item."""
    if not 0 <= item < ITEMS:
        raise HTTPException(404)
    try:
        async with asyncio.timeout(TIMEOUT), serving.while_connected(request):
            return {"score": await request.app.state.score(item)}
    except aiostream.PoolFullError:
        raise HTTPException(503) from None
    except TimeoutError:
        raise HTTPException(504) from None
    raise HTTPException(499)  # the client has left


async def expected(request: Request) -> list[float]:
    """The scores of all items, to check the answers."""
    found: list[float] = request.app.state.expected
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="FastAPI and a torch model on CUDA streams.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--eager", action="store_true", help="launch in a thread, without graphs")
    parser.add_argument("--check", action="store_true", help="check the answers under load")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the load (default: 5)")
    parser.add_argument("--connections", type=int, default=32, help="default: 32")
    options = parser.parse_args()
    if options.check:
        sys.exit(check(options))
    import uvicorn

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = application(eager=options.eager)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


# ------------------------------------------------------------------------------ --check


def check(options: argparse.Namespace) -> int:
    """Starts the server in a process of its own, and compares its answers. Returns its code."""
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    arguments = ["--port", str(port), *(["--eager"] if options.eager else [])]
    server = subprocess.Popen([sys.executable, os.path.abspath(__file__), *arguments])

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return json.load(answer)

    def load(until: float) -> int:
        count = 0
        while time.monotonic() < until:
            item = random.randrange(ITEMS)
            found = ask(f"/score?item={item}")["score"]
            if abs(found - right[item]) > CLOSE * max(1, abs(right[item])):
                raise RuntimeError(f"item {item} has {found}, not {right[item]}")
            count += 1
        return count

    try:
        while True:
            with contextlib.suppress(OSError):
                right = ask("/expected")
                break
            if server.poll() is not None:
                return 1
            time.sleep(0.1)
        with ThreadPoolExecutor(options.connections) as clients:
            ends = [time.monotonic() + options.seconds] * options.connections
            print(f"{sum(clients.map(load, ends))} answers, all right")
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
    return code


if __name__ == "__main__":
    main()
